/*
 * From the first question for the trio to its entry points: decides whether
 * this process can hold a Go runtime at all, loads the Go object, and hands it
 * the registry. Whatever stands in the way gives one line and stock behaviour.
 */
#define _GNU_SOURCE
#include "interpose.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>

#include "registry.h"

#define GO_OBJECT "libggml-vk-comm.so"

/* Go reserves address space in large pieces: 1,000,000 KiB of RLIMIT_AS let the
 * runtime start, 500,000 ended the process ("failed to reserve page summary
 * memory"). */
#define MIN_ADDRESS_SPACE ((rlim_t) 2 << 30)

/* ---- log ------------------------------------------------------------------------- */

void vkcomm_log_line(int level, const char *line) {
    vkcomm_ggml_log_internal_fn sink = (vkcomm_ggml_log_internal_fn) vkcomm_host_symbol("ggml_log_internal");
    if (sink) {
        sink(level, "ggml_vk_comm: %s\n", line);
    } else {
        fprintf(stderr, "ggml_vk_comm: %s\n", line);
    }
}

void vkcomm_logf(int level, const char *format, ...) {
    char    line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    vkcomm_log_line(level, line);
}

/* ---- reasons to do nothing ---------------------------------------------------------- */

static atomic_bool forked; /* a child without exec has our state, but not Go's threads */

static void mark_forked(void) {
    atomic_store(&forked, true);
}

static bool switched_off; /* read from C: Go's copy of the environment misses what the host sets later */

static void read_switches(void) {
    const char *text = getenv("GGML_VK_COMM_OFF");
    switched_off     = text && (!strcmp(text, "1") || !strcasecmp(text, "on"));
    if (text && !switched_off && strcmp(text, "0") != 0 && strcasecmp(text, "off") != 0) {
        fprintf(stderr, "ggml_vk_comm: GGML_VK_COMM_OFF=%s is not a switch, using 0 (accepted: 1, 0, on, off)\n", text);
    }
    pthread_atfork(NULL, NULL, mark_forked);
}

bool vkcomm_inert(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_switches);
    return switched_off || atomic_load_explicit(&forked, memory_order_relaxed);
}

/* A second Go runtime in one process is unsupported by Go. Every Go object
 * carries its build id in a note, which the linker maps. */
static bool has_go_note(const struct dl_phdr_info *object) {
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        const char       *note    = (const char *) object->dlpi_addr + segment->p_vaddr;
        const char       *end     = note + segment->p_memsz;
        while (segment->p_type == PT_NOTE && note + sizeof(ElfW(Nhdr)) <= end) {
            const ElfW(Nhdr) *header = (const ElfW(Nhdr) *) note;
            const char       *name   = note + sizeof(*header);
            if (header->n_namesz == 4 && memcmp(name, "Go\0", 4) == 0) {
                return true;
            }
            note = name + ((header->n_namesz + 3) & ~3u) + ((header->n_descsz + 3) & ~3u);
        }
    }
    return false;
}

static int find_go_object(struct dl_phdr_info *object, size_t size, void *found) {
    (void) size;
    const char *base = strrchr(object->dlpi_name, '/');
    if (strncmp(base ? base + 1 : object->dlpi_name, GO_OBJECT, strlen(GO_OBJECT)) == 0 || !has_go_note(object)) {
        return 0;
    }
    *(const char **) found = object->dlpi_name[0] ? object->dlpi_name : "the program itself";
    return 1;
}

/* NULL, or why no Go runtime may be started in this process. */
static const char *unfit_process(char *text, size_t size) {
    struct rlimit limit;
    const char   *other = NULL;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < MIN_ADDRESS_SPACE) {
        snprintf(text, size, "RLIMIT_AS is %llu MiB, the Go runtime needs 2048 MiB or no limit",
                 (unsigned long long) limit.rlim_cur >> 20);
        return text;
    }
    if (dl_iterate_phdr(find_go_object, (void *) &other)) {
        snprintf(text, size, "%s holds a Go runtime already, and Go supports one a process", other);
        return text;
    }
    return NULL;
}

/* ---- loading --------------------------------------------------------------------------- */

static const struct vkcomm_host_api *host_api(void);

static struct {
    void *init, *allreduce, *free;
} trio;

/* The Go object: this very file's object, or its sibling. */
static bool go_object_path(char *path, size_t size) {
    Dl_info info;
    if (!dladdr((void *) go_object_path, &info)) {
        return false;
    }
#ifdef VKCOMM_SHIM
    const char *slash = strrchr(info.dli_fname, '/');
    int directory = slash ? (int) (slash - info.dli_fname) + 1 : 0;
    return snprintf(path, size, "%.*s" GO_OBJECT, directory, info.dli_fname) < (int) size;
#else
    return snprintf(path, size, "%s", info.dli_fname) < (int) size;
#endif
}

static const char *load_go_object(char *text, size_t size) {
    char path[4096];
    if (!go_object_path(path, sizeof(path))) {
        return "cannot tell where " GO_OBJECT " is";
    }
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) {
        snprintf(text, size, "cannot load %s: %s", path, dlerror());
        return text;
    }
    uint32_t (*attach)(const struct vkcomm_host_api *) = (uint32_t(*)(const struct vkcomm_host_api *)) dlsym(handle, "vkcomm_attach");
    trio.init      = dlsym(handle, VKCOMM_NAME_INIT);
    trio.allreduce = dlsym(handle, VKCOMM_NAME_ALLREDUCE);
    trio.free      = dlsym(handle, VKCOMM_NAME_FREE);
    dlerror();
    uint32_t version = attach ? attach(host_api()) : 0;
    if (version != VKCOMM_HOST_API_VERSION || !trio.init || !trio.allreduce || !trio.free) {
        snprintf(text, size, "%s has interface version %u, this preload object has %u: install the two together", path,
                 version, VKCOMM_HOST_API_VERSION);
        return text;
    }
    return NULL;
}

static atomic_bool loaded;

/* In the Go object itself, this runs with the runtime already started by the
 * dynamic linker; the checks then keep it from being used. */
static void load(void) {
    char        text[4400];
    sigset_t    all, before;
    const char *reason = unfit_process(text, sizeof(text));
    if (!reason) {
        /* Go's threads inherit the mask. llama.cpp installs SIGINT and SIGTERM
         * handlers without SA_ONSTACK, which must not run on a goroutine's
         * stack; with everything blocked they never land there. */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        reason = load_go_object(text, sizeof(text));
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (reason) {
        vkcomm_logf(VKCOMM_GGML_LOG_LEVEL_WARN, "%s; llama.cpp goes on with its own AllReduce", reason);
        return;
    }
    atomic_store(&loaded, true);
}

/* ---- the trio's front -------------------------------------------------------------------- */

/* Never enters Go in a forked child, whose runtime threads are gone: the first
 * call that needs one would hang. */
static void *front_init(struct ggml_backend **backends, size_t count) {
    sigset_t all, before;
    if (vkcomm_inert()) {
        return NULL;
    }
    sigfillset(&all); /* the runtime starts threads on demand: see load() */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    void *comm = ((ggml_backend_comm_init_t) trio.init)(backends, count);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return comm;
}

static bool front_allreduce(void *comm, struct ggml_tensor **tensors) {
    return !atomic_load_explicit(&forked, memory_order_relaxed) &&
           ((ggml_backend_comm_allreduce_tensor_t) trio.allreduce)(comm, tensors);
}

static void front_free(void *comm) {
    if (!atomic_load(&forked)) {
        ((ggml_backend_comm_free_t) trio.free)(comm);
    }
}

void *vkcomm_trio(const char *name) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    if (!atomic_load(&loaded)) {
        return NULL;
    }
    if (strcmp(name, VKCOMM_NAME_INIT) == 0) {
        return (void *) front_init;
    }
    if (strcmp(name, VKCOMM_NAME_ALLREDUCE) == 0) {
        return (void *) front_allreduce;
    }
    return strcmp(name, VKCOMM_NAME_FREE) == 0 ? (void *) front_free : NULL;
}

/* ---- the table ------------------------------------------------------------------------------ */

static bool device_info(VkDevice handle, struct vkcomm_device_info *out) {
    struct vkcomm_device *device = vkcomm_registry_device(handle);
    if (device) {
        *out = device->info;
    }
    return device != NULL;
}

static const struct vkcomm_host_api *host_api(void) {
    static const struct vkcomm_host_api api = {
        .version     = VKCOMM_HOST_API_VERSION,
        .symbol      = vkcomm_host_symbol,
        .log         = vkcomm_log_line,
        .device      = device_info,
        .queue       = vkcomm_registry_queue_info,
        .second_queue = vkcomm_registry_second_queue,
        .buffer      = vkcomm_registry_buffer,
        .last_submit = vkcomm_registry_last_submit,
        .submit      = vkcomm_registry_submit,
        .sync_add    = vkcomm_sync_add,
        .sync_remove = vkcomm_sync_remove,
    };
    return &api;
}
