/* What llama-run is told to do. */
#ifndef LLAMA_RUN_OPTIONS_H
#define LLAMA_RUN_OPTIONS_H

#include "llama.h"

#include <stdbool.h>
#include <stdint.h>

enum { MAX_RANKS = 16 }; /* llama.cpp's GGML_CUDA_MAX_DEVICES; it reads as many shares */

struct run_options {
    const char *               model, * libdir, * logits;
    enum llama_split_mode      split;
    enum llama_flash_attn_type flash;
    enum llama_pooling_type    pooling;
    float                      tensor_split[MAX_RANKS]; /* all 0: equal shares */
    int64_t                    gpu_layers, prompt, gen, batch, ubatch, ctx, threads, repeat, seed;
    bool                       json, all_logits, embeddings;
};

/* Ends the process with a line and the usage for what it does not understand. */
void parse_options(struct run_options * o, int argc, char ** argv);

#endif
