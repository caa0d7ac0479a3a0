/* How llama-run reads its command line. */
#include "options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: llama-run --model FILE --lib-dir DIR [options]\n"
    "       llama-run --compare FILE FILE     compare two --logits files bit by bit\n"
    "  --split-mode none|layer|tensor (tensor)   --n-gpu-layers N|all (all)\n"
    "  --tensor-split A,B,...  share of each rank (equal)\n"
    "  --prompt-tokens N (64)    --gen N (16)    --seed N (1)      --repeat N (1)\n"
    "  --batch N (prompt)        --ubatch N (512)  --ctx N (prompt + gen)  --threads N (1)\n"
    "  --flash-attn on|off|auto (on; tensor mode needs it)\n"
    "  --embeddings none|mean|last  embeddings in the place of logits, pooled in this way; needs --gen 0\n"
    "  --logits FILE   write the logits of every position and step as float32\n"
    "  --all-logits    compute and hash every position's logits even without --logits\n"
    "  --json          one JSON object a line instead of text\n"
    "DIR defaults to $VKCOMM_TEST_LIBDIR.\n";

static void fail_usage(const char * what, const char * value) {
    fprintf(stderr, "llama-run: %s: %s\n%s", what, value, usage);
    exit(2);
}

static int choose(const char * name, const char * value, const char * const choices[]) {
    for (int i = 0; choices[i] != NULL; i++) {
        if (strcmp(value, choices[i]) == 0) {
            return i;
        }
    }
    fail_usage(name, value);
    return 0;
}

static int64_t parse_number(const char * name, const char * text, int64_t least) {
    char *          end;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || value < least) {
        fail_usage(name, text);
    }
    return value;
}

/* Shares as llama.cpp's --tensor-split takes them; a rank may get none. */
static void parse_shares(struct run_options * o, const char * name, const char * text) {
    const char * rest = text;
    float        sum  = 0;
    for (size_t i = 0; i < MAX_RANKS; i++) {
        char * end;
        o->tensor_split[i] = strtof(rest, &end);
        sum += o->tensor_split[i];
        if (end == rest || !(o->tensor_split[i] >= 0) || (*end != ',' && *end != '\0')) {
            fail_usage(name, text);
        }
        if (*end == '\0') {
            if (!(sum > 0)) {
                fail_usage(name, text);
            }
            return;
        }
        rest = end + 1;
    }
    fail_usage("more than 16 shares in --tensor-split", text);
}

static bool parse_switch(struct run_options * o, const char * arg) {
    o->json       = o->json || strcmp(arg, "--json") == 0;
    o->all_logits = o->all_logits || strcmp(arg, "--all-logits") == 0;
    return strcmp(arg, "--json") == 0 || strcmp(arg, "--all-logits") == 0;
}

static void parse_choice(struct run_options * o, const char * arg, const char * value) {
    static const char * const splits[]  = { "none", "layer", "tensor", NULL };
    static const char * const flashes[] = { "auto", "off", "on", NULL };
    static const char * const poolings[] = { "none", "mean", "last", NULL };
    static const enum llama_pooling_type pooling_of[] = {
        LLAMA_POOLING_TYPE_NONE, LLAMA_POOLING_TYPE_MEAN, LLAMA_POOLING_TYPE_LAST,
    };
    static const enum llama_split_mode split_of[] = { LLAMA_SPLIT_MODE_NONE, LLAMA_SPLIT_MODE_LAYER, LLAMA_SPLIT_MODE_TENSOR };
    static const enum llama_flash_attn_type flash_of[] = {
        LLAMA_FLASH_ATTN_TYPE_AUTO, LLAMA_FLASH_ATTN_TYPE_DISABLED, LLAMA_FLASH_ATTN_TYPE_ENABLED,
    };
    if (strcmp(arg, "--model") == 0) {
        o->model = value;
    } else if (strcmp(arg, "--lib-dir") == 0) {
        o->libdir = value;
    } else if (strcmp(arg, "--logits") == 0) {
        o->logits = value;
    } else if (strcmp(arg, "--split-mode") == 0) {
        o->split = split_of[choose(arg, value, splits)];
    } else if (strcmp(arg, "--flash-attn") == 0) {
        o->flash = flash_of[choose(arg, value, flashes)];
    } else if (strcmp(arg, "--tensor-split") == 0) {
        parse_shares(o, arg, value);
    } else if (strcmp(arg, "--embeddings") == 0) {
        o->embeddings = true;
        o->pooling    = pooling_of[choose(arg, value, poolings)];
    } else if (strcmp(arg, "--n-gpu-layers") == 0) {
        o->gpu_layers = strcmp(value, "all") == 0 ? -1 : parse_number(arg, value, 0);
    } else {
        fail_usage("unknown option", arg);
    }
}

static void parse_value(struct run_options * o, const char * arg, const char * value) {
    const struct { const char * name; int64_t * to, least; } numbers[] = {
        { "--prompt-tokens", &o->prompt, 1 }, { "--gen", &o->gen, 0 }, { "--batch", &o->batch, 1 }, { "--ubatch", &o->ubatch, 1 },
        { "--ctx", &o->ctx, 1 }, { "--threads", &o->threads, 1 }, { "--repeat", &o->repeat, 1 }, { "--seed", &o->seed, 0 },
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (strcmp(arg, numbers[i].name) == 0) {
            *numbers[i].to = parse_number(arg, value, numbers[i].least);
            return;
        }
    }
    parse_choice(o, arg, value);
}

void parse_options(struct run_options * o, int argc, char ** argv) {
    *o = (struct run_options) {
        .libdir = getenv("VKCOMM_TEST_LIBDIR"), .split = LLAMA_SPLIT_MODE_TENSOR, .flash = LLAMA_FLASH_ATTN_TYPE_ENABLED,
        .gpu_layers = -1, .prompt = 64, .gen = 16, .ubatch = 512, .threads = 1, .repeat = 1, .seed = 1,
    };
    for (int i = 1; i < argc; i++) {
        if (parse_switch(o, argv[i])) {
            continue;
        }
        if (i + 1 == argc) {
            fail_usage("unknown option, or its value is missing", argv[i]);
        }
        parse_value(o, argv[i], argv[i + 1]);
        i++;
    }
    if (o->model == NULL || o->libdir == NULL) {
        fail_usage("missing", "--model or --lib-dir");
    }
    if (o->embeddings && o->gen > 0) {
        fail_usage("--embeddings", "needs --gen 0");
    }
    o->batch      = o->batch > 0 ? o->batch : o->prompt;
    o->ubatch     = o->ubatch < o->batch ? o->ubatch : o->batch;
    o->ctx        = o->ctx > 0 ? o->ctx : o->prompt + o->gen;
    o->all_logits = (o->all_logits || o->logits != NULL) && !o->embeddings;
}
