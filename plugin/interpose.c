/*
 * The calls of ggml that are intercepted. Each does what the real function
 * does, and notes something down; none changes an argument or a result, except
 * that the Vulkan registry, which has no collective of its own, is made to
 * answer for the trio.
 *
 * Compiled twice: into the preload shim, which is C alone, and into the Go
 * object, so that preloading that one works as well.
 */
#define _GNU_SOURCE
#include "interpose.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "registry.h"
#include "team.h"

#define EXPORT __attribute__((visibility("default")))

/* ---- finding the real functions ------------------------------------------------ */

/* dlopen()ed backends are RTLD_LOCAL, which RTLD_NEXT does not look into, so
 * the search starts in the module that called. The result is kept per call
 * site and function: two builds of ggml in one process each go on with their
 * own, and one place may call several (a table of pointers, libffi). */
enum { CALL_SITES = 1024 };
static struct {
    _Atomic(void *)       return_address;
    _Atomic(void *)       real;
    _Atomic(const char *) name; /* written last; the caller's very pointer */
} call_sites[CALL_SITES];

/* Marks both of our objects, and says what they are. */
EXPORT const char vkcomm_version[] = VKCOMM_VERSION;

static bool is_ours(void *function) {
    return vkcomm_own_symbol(function, "vkcomm_version") != NULL;
}

/* Names of the modules that are loaded. They are only noted while the list is
 * walked: a dlopen() in there could meet one of another thread, which waits for
 * the walk to end. */
struct modules {
    char  *names[512];
    size_t count;
};

static int note_module(struct dl_phdr_info *object, size_t size, void *argument) {
    struct modules *modules = argument;
    (void) size;
    if (object->dlpi_name[0] && modules->count < sizeof(modules->names) / sizeof(modules->names[0])) {
        char *name = strdup(object->dlpi_name);
        if (name) {
            modules->names[modules->count++] = name;
        }
    }
    return 0;
}

/* A function of any module but ours. */
static void *search_modules(const char *function) {
    struct modules modules = { .count = 0 };
    void          *found   = NULL;
    dl_iterate_phdr(note_module, &modules);
    for (size_t i = 0; i < modules.count; i++) {
        void *handle = found ? NULL : dlopen(modules.names[i], RTLD_LAZY | RTLD_NOLOAD);
        void *symbol = handle ? dlsym(handle, function) : NULL;
        if (symbol && !is_ours(symbol)) {
            found = symbol; /* not closed: the address must stay mapped */
        } else if (handle) {
            dlclose(handle);
        }
        free(modules.names[i]);
    }
    return found;
}

/* Where the caller would find it; then where the program would; then, for a
 * call whose last step was a jump, so that the return address is that of the
 * caller's caller, in any module that is loaded. */
static void *search_real(const char *name, void *return_address) {
    int              saved = errno;
    Dl_info          info;
    struct link_map *module = NULL;
    void            *found  = NULL;
    if (dladdr1(return_address, &info, (void **) &module, RTLD_DL_LINKMAP) && module && module->l_name[0]) {
        void *handle = dlopen(module->l_name, RTLD_LAZY | RTLD_NOLOAD); /* not closed, as above */
        found        = handle ? dlsym(handle, name) : NULL;
    }
    if (!found || is_ours(found)) {
        found = dlsym(RTLD_NEXT, name);
    }
    if (!found || is_ours(found)) {
        found = search_modules(name);
    }
    dlerror(); /* the host must not find a message of ours pending */
    errno = saved;
    return found;
}

void *vkcomm_real(const char *name, void *return_address) {
    size_t start = ((uintptr_t) return_address ^ (uintptr_t) return_address >> 12) % CALL_SITES;
    for (size_t i = 0; i < 8; i++) {
        size_t slot = (start + i) % CALL_SITES;
        void       *site   = atomic_load_explicit(&call_sites[slot].return_address, memory_order_acquire);
        const char *filled = atomic_load_explicit(&call_sites[slot].name, memory_order_acquire);
        if (site == return_address && filled == name) {
            return atomic_load_explicit(&call_sites[slot].real, memory_order_relaxed);
        }
        if (!site) {
            void *real = search_real(name, return_address);
            if (real && atomic_compare_exchange_strong(&call_sites[slot].return_address, &site, return_address)) {
                atomic_store_explicit(&call_sites[slot].real, real, memory_order_relaxed);
                atomic_store_explicit(&call_sites[slot].name, name, memory_order_release);
            }
            return real;
        }
    }
    return search_real(name, return_address);
}

void *vkcomm_own_symbol(void *address, const char *name) {
    Dl_info          info, found;
    struct link_map *module = NULL;
    if (!dladdr1(address, &info, (void **) &module, RTLD_DL_LINKMAP) || !module) {
        return NULL;
    }
    void *handle = dlopen(module->l_name[0] ? module->l_name : NULL, RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = handle ? dlsym(handle, name) : NULL;
    if (symbol && (!dladdr(symbol, &found) || found.dli_fbase != info.dli_fbase)) {
        symbol = NULL;
    }
    if (handle) {
        dlclose(handle);
    }
    dlerror();
    return symbol;
}

/* ---- ggml ------------------------------------------------------------------------ */

static _Atomic(void *) host_function; /* some real function of libggml-base */

void *vkcomm_host_symbol(const char *name) {
    void *host = atomic_load(&host_function);
    return host ? vkcomm_own_symbol(host, name) : NULL;
}

static bool is_vulkan(struct ggml_backend_reg *reg) {
    vkcomm_ggml_backend_reg_name_fn reg_name = (vkcomm_ggml_backend_reg_name_fn) vkcomm_host_symbol("ggml_backend_reg_name");
    return reg_name && strcmp(reg_name(reg), VKCOMM_REG_NAME) == 0;
}

EXPORT void *ggml_backend_reg_get_proc_address(struct ggml_backend_reg *reg, const char *name) {
    void *return_address = __builtin_return_address(0);
    vkcomm_ggml_backend_reg_get_proc_address_fn real = (vkcomm_ggml_backend_reg_get_proc_address_fn) vkcomm_real(
        "ggml_backend_reg_get_proc_address", return_address);
    if (!real) {
        return NULL;
    }
    void *address = real(reg, name);
    /* A llama.cpp that one day reduces on Vulkan by itself keeps its own. */
    if (address || !name || strncmp(name, "ggml_backend_comm_", 18) != 0 || vkcomm_inert()) {
        return address;
    }
    atomic_store(&host_function, (void *) real);
    return is_vulkan(reg) ? vkcomm_trio(name) : NULL;
}

EXPORT struct ggml_backend_buffer *ggml_backend_buft_alloc_buffer(struct ggml_backend_buffer_type *buft, size_t size) {
    void *return_address = __builtin_return_address(0);
    vkcomm_ggml_backend_buft_alloc_buffer_fn real = (vkcomm_ggml_backend_buft_alloc_buffer_fn) vkcomm_real(
        "ggml_backend_buft_alloc_buffer", return_address);
    if (!real || vkcomm_inert()) {
        return real ? real(buft, size) : NULL;
    }
    /* Allocations nest: a meta buffer allocates one buffer a rank. */
    struct vkcomm_capture capture;
    vkcomm_capture_begin(&capture);
    struct ggml_backend_buffer *buffer = real(buft, size);
    vkcomm_capture_end(&capture);
    /* Pinned host memory is a VkBuffer too, but its tensors may start anywhere
     * in it (ggml shifts them to its alignment): left unknown, hence refused. */
    vkcomm_ggml_backend_buft_is_host_fn is_host =
        (vkcomm_ggml_backend_buft_is_host_fn) vkcomm_own_symbol((void *) real, "ggml_backend_buft_is_host");
    if (buffer && capture.alive == 1 && capture.created.buffer && is_host && !is_host(buft)) {
        vkcomm_registry_bind(buffer, &capture.created);
    } else if (buffer) {
        vkcomm_registry_unbind(buffer); /* whatever had this address before */
    }
    return buffer;
}

EXPORT void ggml_backend_buffer_free(struct ggml_backend_buffer *buffer) {
    void *return_address = __builtin_return_address(0);
    vkcomm_ggml_backend_buffer_free_fn real = (vkcomm_ggml_backend_buffer_free_fn) vkcomm_real(
        "ggml_backend_buffer_free", return_address);
    if (buffer && !vkcomm_inert()) {
        vkcomm_registry_unbind(buffer); /* before: the address may be reused at once */
    }
    if (real) {
        real(buffer);
    }
}

EXPORT void ggml_backend_synchronize(struct ggml_backend *backend) {
    void *return_address = __builtin_return_address(0);
    vkcomm_ggml_backend_synchronize_fn real = (vkcomm_ggml_backend_synchronize_fn) vkcomm_real(
        "ggml_backend_synchronize", return_address);
    if (!real) {
        return;
    }
    vkcomm_team_synchronizes(backend);
    uint64_t fences = vkcomm_registry_fence_count();
    real(backend);
    if (!vkcomm_inert()) {
        vkcomm_sync_done(backend, vkcomm_registry_fence_count() != fences);
    }
}

EXPORT int ggml_backend_graph_compute_async(struct ggml_backend *backend, struct ggml_cgraph *graph) {
    void             *return_address = __builtin_return_address(0);
    vkcomm_ggml_backend_graph_compute_async_fn real = (vkcomm_ggml_backend_graph_compute_async_fn) vkcomm_real("ggml_backend_graph_compute_async", return_address);
    if (!real) {
        return VKCOMM_GGML_STATUS_FAILED;
    }
    return vkcomm_inert() ? real(backend, graph) : vkcomm_team_compute(backend, graph, real);
}

/* ---- Vulkan's two doors ------------------------------------------------------------ */

/* Wrappers go to ggml's Vulkan backend alone; the loader, its layers and
 * whoever else uses Vulkan in this process keep the real functions. */
static bool called_by_ggml_vulkan(void *return_address) {
    return vkcomm_own_symbol(return_address, "ggml_backend_vk_reg") != NULL;
}

EXPORT PFN_vkVoidFunction vkGetInstanceProcAddr(VkInstance instance, const char *name) {
    void                     *return_address = __builtin_return_address(0);
    PFN_vkGetInstanceProcAddr real           = (PFN_vkGetInstanceProcAddr) vkcomm_real(
        "vkGetInstanceProcAddr", return_address);
    PFN_vkVoidFunction function = real ? real(instance, name) : NULL;
    if (!function || vkcomm_inert() || !called_by_ggml_vulkan(return_address)) {
        return function;
    }
    return vkcomm_wrap_instance_proc(instance, name, function, real);
}

EXPORT PFN_vkVoidFunction vkGetDeviceProcAddr(VkDevice device, const char *name) {
    void                   *return_address = __builtin_return_address(0);
    PFN_vkGetDeviceProcAddr real           = (PFN_vkGetDeviceProcAddr) vkcomm_real(
        "vkGetDeviceProcAddr", return_address);
    PFN_vkVoidFunction function = real ? real(device, name) : NULL;
    if (!function || vkcomm_inert() || !called_by_ggml_vulkan(return_address)) {
        return function;
    }
    return vkcomm_wrap_device_proc(name, function);
}
