/*
 * null - a preload that claims to reduce and does not, for measurements only.
 *
 * The Vulkan registry is made to answer for the communicator trio with
 * functions that return at once: no byte moves between the ranks and no rank
 * waits for another. Every result is wrong by design; the speed is the ceiling
 * of any AllReduce. Never installed.
 */
#define _GNU_SOURCE
#include "../../ggml_comm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char warning[] = "null: AllReduce is skipped, ALL RESULTS ARE WRONG; for measuring its ceiling only\n";

static int communicator; /* its address is the handle */

static void * null_init(struct ggml_backend ** backends, size_t n) {
    (void) backends;
    fputs(warning, stderr);
    return n > 1 ? &communicator : NULL;
}

static void null_free(void * comm) {
    (void) comm;
}

static bool null_allreduce(void * comm, struct ggml_tensor ** tensors) {
    (void) comm;
    (void) tensors;
    return true;
}

/* libggml-base is in the global scope of whatever links llama.cpp, which is all
 * that a measurement needs. */
VKCOMM_API void * ggml_backend_reg_get_proc_address(struct ggml_backend_reg * reg, const char * name) {
    void * (*real)(struct ggml_backend_reg *, const char *) = NULL;
    const char * (*reg_name)(struct ggml_backend_reg *)     = NULL;
    *(void **) &real     = dlsym(RTLD_NEXT, "ggml_backend_reg_get_proc_address");
    *(void **) &reg_name = dlsym(RTLD_NEXT, "ggml_backend_reg_name");
    if (real == NULL || reg_name == NULL || strcmp(reg_name(reg), VKCOMM_REG_NAME) != 0) {
        return real != NULL ? real(reg, name) : NULL;
    }
    if (strcmp(name, VKCOMM_NAME_INIT) == 0) {
        return (void *) null_init;
    }
    if (strcmp(name, VKCOMM_NAME_FREE) == 0) {
        return (void *) null_free;
    }
    if (strcmp(name, VKCOMM_NAME_ALLREDUCE) == 0) {
        return (void *) null_allreduce;
    }
    return real(reg, name);
}
