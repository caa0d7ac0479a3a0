/* What a caller of a hooked function must not notice. It passes without any
 * preload, too. */
#define _GNU_SOURCE
#include "probe.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <vulkan/vulkan.h>

enum { ODD_ERRNO = 4321 };
#define MISSING "/nonexistent/libmissing.so"

static ggml_backend_reg_t    cpu;
static ggml_backend_t        backend;
static ggml_backend_buffer_t buffer;

static void ask_cpu(void) { ggml_backend_reg_get_proc_address(cpu, "ggml_backend_set_n_threads"); }
static void ask_comm(void) { ggml_backend_reg_get_proc_address(vulkan_reg, "ggml_backend_comm_init"); }
static void alloc_host(void) { buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), 64); }
static void alloc_device(void) { buffer = ggml_backend_alloc_buffer(backend, 4096); }
static void free_buffer(void) { ggml_backend_buffer_free(buffer); }
static void synchronize(void) { ggml_backend_synchronize(backend); }

static void ask_vulkan(void) {
    static PFN_vkGetInstanceProcAddr ask;
    if (ask == NULL) {
        ask = (PFN_vkGetInstanceProcAddr) dlsym(RTLD_DEFAULT, "vkGetInstanceProcAddr");
        dlopen(MISSING, RTLD_NOW);
        errno = ODD_ERRNO;
    }
    ask(NULL, "vkCreateInstance");
}

/* Each in this order, twice: the first call from a place looks the real
 * function up, later ones need not. */
static const struct {
    const char * name;
    void (*run)(void);
} calls[] = {
    { "get_proc_address of the CPU registry", ask_cpu },
    { "get_proc_address for the trio", ask_comm },
    { "buft_alloc_buffer in host memory", alloc_host },
    { "buffer_free in host memory", free_buffer },
    { "buft_alloc_buffer in device memory", alloc_device },
    { "buffer_free in device memory", free_buffer },
    { "synchronize", synchronize },
    { "vkGetInstanceProcAddr", ask_vulkan },
};

static void check_call(int i, const char * time) {
    dlerror();
    dlopen(MISSING, RTLD_NOW); /* leaves a message pending */
    errno = ODD_ERRNO;
    calls[i].run();
    const int    number  = errno;
    const char * message = dlerror();
    report_start("caller/errno is kept by %s, %s call", calls[i].name, time);
    if (!report_result(number == ODD_ERRNO)) {
        report_note("errno became %d", number);
    }
    /* Looking a function up may take the caller's message away; it must not
     * leave one that the caller would take for its own. */
    report_start("caller/dlerror() gets no new message from %s, %s call", calls[i].name, time);
    if (!report_result(message == NULL || strstr(message, MISSING) != NULL)) {
        report_note("dlerror() is %s", message);
    }
}

static void check_registries(void) {
    report_start("caller/the CPU registry keeps its own names and gets none of the trio");
    report_result(ggml_backend_reg_get_proc_address(cpu, "ggml_backend_set_n_threads") != NULL &&
                  ggml_backend_reg_get_proc_address(cpu, "ggml_backend_comm_init") == NULL &&
                  ggml_backend_reg_get_proc_address(cpu, "ggml_backend_comm_allreduce_tensor") == NULL &&
                  ggml_backend_reg_get_proc_address(cpu, "ggml_backend_comm_free") == NULL);
}

/* Two hooked functions that are called from one place, as through libffi or a
 * table of pointers: each must still reach its own real function. */
static void check_one_place(void) {
    void (*const functions[])(void *) = { (void (*)(void *)) ggml_backend_synchronize,
                                          (void (*)(void *)) ggml_backend_buffer_free };
    report_start("caller/two hooked functions called from one place");
    for (int i = 0; i < 4; i++) {
        void * const arguments[] = { backend, ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), 64) };
        for (volatile int f = 0; f < 2; f++) { /* volatile: one call instruction for both */
            functions[f](arguments[f]);
        }
    }
    report_result(true);
}

int case_caller(int argc, char ** argv) {
    (void) argc, (void) argv;
    dlopen("libvulkan.so.1", RTLD_NOW | RTLD_GLOBAL);
    probe_load();
    cpu = ggml_backend_reg_by_name("CPU");
    if (cpu == NULL) {
        probe_skip("caller", "no CPU backend in the directory");
    }
    backend = ggml_backend_dev_init(ggml_backend_reg_dev_get(vulkan_reg, 0), NULL);
    for (int time = 0; time < 2; time++) {
        for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
            check_call((int) i, time == 0 ? "first" : "later");
        }
    }
    check_registries();
    check_one_place();
    ggml_backend_free(backend);
    return report_finish();
}
