/*
 * Preloaded beside the plugin into hosts that have no setting for it: whoever
 * asks llama.cpp for a model's default parameters gets `-sm tensor` among them.
 */
#define _GNU_SOURCE
#include "llama.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((visibility("default"))) struct llama_model_params llama_model_default_params(void) {
    struct llama_model_params (*real)(void) = NULL;

    /* libllama is RTLD_LOCAL, so it is looked for where the caller would find it. */
    Dl_info           info;
    struct link_map * caller = NULL;
    if (dladdr1(__builtin_return_address(0), &info, (void **) &caller, RTLD_DL_LINKMAP) != 0 && caller != NULL) {
        void * handle = dlopen(caller->l_name, RTLD_LAZY | RTLD_NOLOAD);
        *(void **) &real = handle != NULL ? dlsym(handle, "llama_model_default_params") : NULL;
    }
    if (real == NULL || real == llama_model_default_params) {
        fprintf(stderr, "split_tensor: no llama_model_default_params behind the caller\n");
        abort();
    }
    struct llama_model_params params = real();
    params.split_mode = LLAMA_SPLIT_MODE_TENSOR;
    return params;
}
