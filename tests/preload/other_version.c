/* A Go object of another release, as far as the shim can tell. */
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT uint32_t vkcomm_attach(const void * api) {
    (void) api;
    return 99;
}

EXPORT void * ggml_backend_comm_init(void) { return 0; }
EXPORT _Bool  ggml_backend_comm_allreduce_tensor(void) { return 0; }
EXPORT void   ggml_backend_comm_free(void) { }
