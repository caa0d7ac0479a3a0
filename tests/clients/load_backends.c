/*
 * Preloaded into a llama.cpp program whose backends are libraries to be loaded,
 * and which never loads them (test-llama-archs): does so before main. Its table
 * is written by a thread, which the program does not wait for: this does. And
 * it asks for four CPU threads, which spin for each other: half of the time
 * where there are fewer cores. It gets one.
 */
#define _GNU_SOURCE
#include "llama.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void load_backends(void) {
    void (* load)(const char *) = (void (*)(const char *)) dlsym(RTLD_DEFAULT, "ggml_backend_load_all_from_path");
    const char * directory = getenv("VKCOMM_BACKENDS");
    if (load == NULL) {
        return; /* some other program of the command line, such as timeout */
    }
    if (directory == NULL) {
        fprintf(stderr, "load_backends: VKCOMM_BACKENDS is not set\n");
        abort();
    }
    load(directory);
}

struct llama_context * llama_init_from_model(struct llama_model * model, struct llama_context_params params) {
    struct llama_context * (* init)(struct llama_model *, struct llama_context_params) =
        (struct llama_context * (*)(struct llama_model *, struct llama_context_params))
            dlsym(RTLD_NEXT, "llama_init_from_model");
    params.n_threads       = 1;
    params.n_threads_batch = 1;
    return init(model, params);
}

__attribute__((destructor)) static void flush_log(void) {
    void * (* get)(void)     = (void * (*)(void)) dlsym(RTLD_DEFAULT, "_Z15common_log_mainv");
    void (*  flush)(void *) = (void (*)(void *)) dlsym(RTLD_DEFAULT, "_Z16common_log_flushP10common_log");
    if (get != NULL && flush != NULL) {
        flush(get());
    }
}
