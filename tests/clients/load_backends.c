/*
 * Preloaded into a llama.cpp program whose backends are libraries to be loaded,
 * and which never loads them (test-llama-archs): does so before main.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void load_backends(void) {
    void (* load)(const char *) = (void (*)(const char *)) dlsym(RTLD_DEFAULT, "ggml_backend_load_all_from_path");
    const char * directory = getenv("VKCOMM_BACKENDS");
    if (load == NULL) {
        return; /* some other program of the command line, such as env */
    }
    if (directory == NULL) {
        fprintf(stderr, "load_backends: VKCOMM_BACKENDS is not set\n");
        abort();
    }
    load(directory);
}
