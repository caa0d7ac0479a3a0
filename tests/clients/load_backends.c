/*
 * Preloaded into a llama.cpp program whose backends are libraries to be loaded,
 * and which never loads them (test-llama-archs): does so before main. Its table
 * is written by a thread, which the program does not wait for: this does.
 */
#define _GNU_SOURCE
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

__attribute__((destructor)) static void flush_log(void) {
    void * (* get)(void)     = (void * (*)(void)) dlsym(RTLD_DEFAULT, "_Z15common_log_mainv");
    void (*  flush)(void *) = (void (*)(void *)) dlsym(RTLD_DEFAULT, "_Z16common_log_flushP10common_log");
    if (get != NULL && flush != NULL) {
        flush(get());
    }
}
