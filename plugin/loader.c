/*
 * From the first question for the trio to its entry points: decides whether
 * this process can hold a Go runtime at all, loads the Go object, and hands it
 * the registry. Whatever stands in the way gives one line and stock behaviour.
 */
#define _GNU_SOURCE
#include "interpose.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
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
#include <sys/stat.h>
#include <unistd.h>

#include "registry.h"
#include "submit.h"
#include "team.h"

#define GO_OBJECT "libggml-vk-comm.so"

/* Go reserves address space in large pieces, and ends the process when it gets
 * none ("failed to reserve page summary memory"): with 1,200 MiB left under
 * RLIMIT_AS at times, with less always. A communicator of two ranks takes
 * 1,700 MiB in all. */
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

/* A child without exec has our state, but not Go's threads. One from before
 * there was any of either is as good as its parent. */
static atomic_bool forked;
#ifdef VKCOMM_SHIM
static atomic_bool in_use;
#else
static atomic_bool in_use = true; /* the dynamic linker starts Go's runtime */
#endif

static void in_child(void) {
    vkcomm_registry_forked();
    vkcomm_submit_forked();
    atomic_store(&forked, atomic_load(&in_use));
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(NULL, NULL, in_child);
}

static bool switched_off; /* another value than 1 or on means 0; config.go complains of wrong ones */

static void read_switches(void) {
    const char *text = getenv("GGML_VK_COMM_OFF");
    switched_off     = text && (!strcmp(text, "1") || !strcasecmp(text, "on"));
    atomic_store(&in_use, true);
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

static bool go_object_path(char *path, size_t size);

struct go_search {
    char        path[4096]; /* of the Go object that is to be used */
    const char *other;
};

/* By file, not by name: a copy elsewhere would be a second runtime. */
static bool same_file(const char *a, const char *b) {
    struct stat left, right;
    return strcmp(a, b) == 0 ||
           (stat(a, &left) == 0 && stat(b, &right) == 0 && left.st_dev == right.st_dev && left.st_ino == right.st_ino);
}

static int find_go_object(struct dl_phdr_info *object, size_t size, void *argument) {
    struct go_search *search = argument;
    (void) size;
    if (!has_go_note(object) || (object->dlpi_name[0] && same_file(object->dlpi_name, search->path))) {
        return 0;
    }
    search->other = object->dlpi_name[0] ? object->dlpi_name : "the program itself";
    return 1;
}

/* Bytes of address space that this process has mapped, 0 if nobody says. */
static rlim_t address_space_used(void) {
    unsigned long pages = 0;
    FILE         *statm = fopen("/proc/self/statm", "re");
    if (statm) {
        if (fscanf(statm, "%lu", &pages) != 1) {
            pages = 0;
        }
        fclose(statm);
    }
    return (rlim_t) pages * (rlim_t) sysconf(_SC_PAGESIZE);
}

/* NULL, or why no Go runtime may be started in this process. */
static const char *unfit_process(char *text, size_t size) {
    struct rlimit    limit;
    struct go_search search = { .other = NULL };
    rlim_t           used   = address_space_used();
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        (limit.rlim_cur < used || limit.rlim_cur - used < MIN_ADDRESS_SPACE)) {
        snprintf(text, size, "RLIMIT_AS is %llu MiB, of which %llu are used; the Go runtime needs 2048 MiB more, or no limit",
                 (unsigned long long) limit.rlim_cur >> 20, (unsigned long long) used >> 20);
        return text;
    }
    if (go_object_path(search.path, sizeof(search.path)) && dl_iterate_phdr(find_go_object, &search)) {
        snprintf(text, size, "%s holds a Go runtime already, and Go supports one a process", search.other);
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

/* llama.cpp installs SIGINT and SIGTERM handlers without SA_ONSTACK, which must
 * not run on a goroutine's stack, a few KiB. Go's threads inherit the mask that
 * they are started under, and a host's thread runs on such a stack while it is
 * in Go: with everything blocked, handlers land on neither. */
static void block_signals(sigset_t *before) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, before);
}

static void restore_signals(const sigset_t *before) {
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

#ifndef VKCOMM_SHIM
/* The dynamic linker starts the runtime from a constructor without a priority,
 * Go's, which comes before those of C. */
static sigset_t before_start;

__attribute__((constructor(101))) static void before_runtime(void) {
    block_signals(&before_start);
}

__attribute__((constructor)) static void after_runtime(void) {
    restore_signals(&before_start);
}
#endif

/* In the Go object itself, this runs with the runtime already started by the
 * dynamic linker; the checks then keep it from being used. */
static void load(void) {
    char        text[4400];
    sigset_t    before;
    int         saved  = errno;
    const char *reason = unfit_process(text, sizeof(text));
    if (!reason) {
        block_signals(&before);
        reason = load_go_object(text, sizeof(text));
        restore_signals(&before);
    }
    errno = saved;
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
    sigset_t before;
    if (vkcomm_inert()) {
        return NULL;
    }
    block_signals(&before);
    void *comm = ((ggml_backend_comm_init_t) trio.init)(backends, count);
    restore_signals(&before);
    return comm;
}

static bool front_allreduce(void *comm, struct ggml_tensor **tensors) {
    sigset_t before;
    if (atomic_load_explicit(&forked, memory_order_relaxed)) {
        return false;
    }
    vkcomm_team_reduces(comm);
    block_signals(&before);
    bool done = ((ggml_backend_comm_allreduce_tensor_t) trio.allreduce)(comm, tensors);
    restore_signals(&before);
    vkcomm_team_reduced(comm, done);
    return done;
}

static void front_free(void *comm) {
    sigset_t before;
    if (!atomic_load(&forked)) {
        block_signals(&before);
        ((ggml_backend_comm_free_t) trio.free)(comm);
        restore_signals(&before);
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
        .submit      = vkcomm_submit,
        .hold        = vkcomm_hold,
        .flush       = vkcomm_flush_held,
        .sync_add    = vkcomm_sync_add,
        .sync_remove = vkcomm_sync_remove,
        .team_start  = vkcomm_team_start,
        .team_stop   = vkcomm_team_stop,
    };
    return &api;
}
