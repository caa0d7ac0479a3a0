/*
 * make-gguf - writes a model of the llama architecture with random weights and
 * no vocabulary, so that tests and measurements need no download.
 *
 * Same options and seed: same bytes. Weights are normal with a deviation of
 * 0.02, which keeps every logit finite. They come from one block of random
 * values that is read over and over from changing places, so that 16 GB take
 * as long as the disk needs.
 */
#define _FILE_OFFSET_BITS 64
#include "ggml.h"
#include "gguf.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: make-gguf --out FILE [options]\n"
    "  --n-embd N     (512)   --n-layer N  (4)     --n-head N  (8)  --n-head-kv N (n-head)\n"
    "  --n-ff N       (2.75 x n-embd)              --n-vocab N (1024)\n"
    "  --n-ctx N      (4096)  --type f32|f16 (f32) --seed N    (1)\n";

struct model {
    const char *   out;
    int64_t        n_embd, n_layer, n_head, n_head_kv, n_ff, n_vocab, n_ctx, seed;
    enum ggml_type type; /* of matrices; norms are always F32 */
};

/* ---- random values --------------------------------------------------------- */

/* A prime, so that no row length divides it and equal rows do not recur. */
enum { BLOCK = 1048573 };

struct block {
    float       f32[BLOCK];
    ggml_fp16_t f16[BLOCK];
};

static uint64_t random_next(uint64_t * state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Four uniform numbers added up are normal enough; their deviation is
 * sqrt(4/12) of one number's range. */
static float random_weight(uint64_t * state) {
    const uint64_t r   = random_next(state);
    int32_t        sum = 0;
    for (int i = 0; i < 4; i++) {
        sum += (int32_t) (r >> (16 * i) & 0xffff);
    }
    return ((float) sum / 65536.0f - 2.0f) * (0.02f / 0.57735f);
}

static struct block * make_block(uint64_t * state) {
    struct block * b = malloc(sizeof(*b));
    if (b != NULL) {
        for (int i = 0; i < BLOCK; i++) {
            b->f32[i] = random_weight(state);
        }
        ggml_fp32_to_fp16_row(b->f32, b->f16, BLOCK);
    }
    return b;
}

/* ---- meta data -------------------------------------------------------------- */

static void set_u32(struct gguf_context * gguf, const char * key, int64_t value) {
    gguf_set_val_u32(gguf, key, (uint32_t) value);
}

static void describe(struct gguf_context * gguf, const struct model * m) {
    gguf_set_val_str(gguf, "general.architecture", "llama");
    gguf_set_val_str(gguf, "general.name", "random weights");
    set_u32(gguf, "general.file_type", m->type == GGML_TYPE_F16 ? 1 : 0);
    set_u32(gguf, "llama.context_length", m->n_ctx);
    set_u32(gguf, "llama.embedding_length", m->n_embd);
    set_u32(gguf, "llama.block_count", m->n_layer);
    set_u32(gguf, "llama.feed_forward_length", m->n_ff);
    set_u32(gguf, "llama.attention.head_count", m->n_head);
    set_u32(gguf, "llama.attention.head_count_kv", m->n_head_kv);
    set_u32(gguf, "llama.rope.dimension_count", m->n_embd / m->n_head);
    set_u32(gguf, "llama.vocab_size", m->n_vocab);
    gguf_set_val_f32(gguf, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_set_val_f32(gguf, "llama.rope.freq_base", 10000.0f);
    gguf_set_val_str(gguf, "tokenizer.ggml.model", "no_vocab");
}

static void add(struct gguf_context * gguf, struct ggml_context * ctx, const char * name, enum ggml_type type, int64_t ne0,
                int64_t ne1) {
    struct ggml_tensor * t = ne1 > 0 ? ggml_new_tensor_2d(ctx, type, ne0, ne1) : ggml_new_tensor_1d(ctx, type, ne0);
    ggml_set_name(t, name);
    gguf_add_tensor(gguf, t);
}

static void add_layer(struct gguf_context * gguf, struct ggml_context * ctx, const struct model * m, int64_t layer) {
    const int64_t n_kv = m->n_embd / m->n_head * m->n_head_kv;
    const struct { const char * name; int64_t ne0, ne1; } parts[] = {
        { "attn_norm", m->n_embd, 0 },
        { "attn_q", m->n_embd, m->n_embd },
        { "attn_k", m->n_embd, n_kv },
        { "attn_v", m->n_embd, n_kv },
        { "attn_output", m->n_embd, m->n_embd },
        { "ffn_norm", m->n_embd, 0 },
        { "ffn_gate", m->n_embd, m->n_ff },
        { "ffn_up", m->n_embd, m->n_ff },
        { "ffn_down", m->n_ff, m->n_embd },
    };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        char name[64];
        snprintf(name, sizeof(name), "blk.%lld.%s.weight", (long long) layer, parts[i].name);
        add(gguf, ctx, name, parts[i].ne1 == 0 ? GGML_TYPE_F32 : m->type, parts[i].ne0, parts[i].ne1);
    }
}

static void add_tensors(struct gguf_context * gguf, struct ggml_context * ctx, const struct model * m) {
    add(gguf, ctx, "token_embd.weight", m->type, m->n_embd, m->n_vocab);
    for (int64_t layer = 0; layer < m->n_layer; layer++) {
        add_layer(gguf, ctx, m, layer);
    }
    add(gguf, ctx, "output_norm.weight", GGML_TYPE_F32, m->n_embd, 0);
    add(gguf, ctx, "output.weight", m->type, m->n_embd, m->n_vocab);
}

/* ---- data --------------------------------------------------------------------- */

/* count weights from a place in the block on, round and round. */
static bool write_weights(FILE * f, const struct block * b, enum ggml_type type, int64_t count, uint64_t * state) {
    const size_t size  = ggml_type_size(type);
    const char * base  = type == GGML_TYPE_F16 ? (const char *) b->f16 : (const char *) b->f32;
    int64_t      start = (int64_t) (random_next(state) % BLOCK);
    while (count > 0) {
        const int64_t n = count < BLOCK - start ? count : BLOCK - start;
        if (fwrite(base + start * size, size, n, f) != (size_t) n) {
            return false;
        }
        count -= n;
        start = 0;
    }
    return true;
}

/* Norms scale by about one. */
static bool write_norm(FILE * f, const struct block * b, int64_t count, uint64_t * state) {
    for (int64_t i = 0; i < count; i++) {
        const float v = 1.0f + b->f32[random_next(state) % BLOCK];
        if (fwrite(&v, sizeof(v), 1, f) != 1) {
            return false;
        }
    }
    return true;
}

static bool write_padding(FILE * f, size_t bytes, size_t alignment) {
    static const char zeros[256];
    const size_t      rest = bytes % alignment;
    return rest == 0 || fwrite(zeros, 1, alignment - rest, f) == alignment - rest;
}

static bool write_data(FILE * f, const struct gguf_context * gguf, const struct block * b, uint64_t * state) {
    const size_t alignment = gguf_get_alignment(gguf);
    for (int64_t i = 0; i < gguf_get_n_tensors(gguf); i++) {
        const enum ggml_type type  = gguf_get_tensor_type(gguf, i);
        const size_t         bytes = gguf_get_tensor_size(gguf, i);
        const int64_t        count = (int64_t) (bytes / ggml_type_size(type));
        const bool           norm  = strstr(gguf_get_tensor_name(gguf, i), "_norm.") != NULL;
        const bool ok = norm ? write_norm(f, b, count, state) : write_weights(f, b, type, count, state);
        if (!ok || !write_padding(f, bytes, alignment)) {
            return false;
        }
    }
    return true;
}

static bool write_model(const struct model * m) {
    const struct ggml_init_params params = { (9 * m->n_layer + 3) * ggml_tensor_overhead(), NULL, true };
    struct ggml_context * ctx   = ggml_init(params);
    struct gguf_context * gguf  = gguf_init_empty();
    uint64_t              state = (uint64_t) m->seed;
    struct block *        block = make_block(&state);
    FILE *                f     = fopen(m->out, "wb");
    describe(gguf, m);
    add_tensors(gguf, ctx, m);
    bool ok = block != NULL && f != NULL && gguf_write_to_file_ptr(gguf, f, true) && write_data(f, gguf, block, &state);
    if (f != NULL) {
        ok = fclose(f) == 0 && ok;
    }
    free(block);
    gguf_free(gguf);
    ggml_free(ctx);
    return ok;
}

/* ---- options -------------------------------------------------------------------- */

static void fail_usage(const char * what, const char * value) {
    fprintf(stderr, "make-gguf: %s: %s\n%s", what, value, usage);
    exit(2);
}

static int64_t parse_number(const char * name, const char * text) {
    char *          end;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || value < 1) {
        fail_usage(name, text);
    }
    return value;
}

static void parse(struct model * m, int argc, char ** argv) {
    const struct { const char * name; int64_t * to; } numbers[] = {
        { "--n-embd", &m->n_embd }, { "--n-layer", &m->n_layer }, { "--n-head", &m->n_head },
        { "--n-head-kv", &m->n_head_kv }, { "--n-ff", &m->n_ff }, { "--n-vocab", &m->n_vocab },
        { "--n-ctx", &m->n_ctx }, { "--seed", &m->seed },
    };
    for (int i = 1; i < argc; i += 2) {
        const char * value = i + 1 < argc ? argv[i + 1] : "";
        bool         found = false;
        for (size_t k = 0; k < sizeof(numbers) / sizeof(numbers[0]) && !found; k++) {
            if (strcmp(argv[i], numbers[k].name) == 0) {
                *numbers[k].to = parse_number(argv[i], value);
                found = true;
            }
        }
        if (found) {
            continue;
        }
        if (strcmp(argv[i], "--out") == 0) {
            m->out = value;
        } else if (strcmp(argv[i], "--type") == 0 && strcmp(value, "f32") == 0) {
            m->type = GGML_TYPE_F32;
        } else if (strcmp(argv[i], "--type") == 0 && strcmp(value, "f16") == 0) {
            m->type = GGML_TYPE_F16;
        } else {
            fail_usage("unknown option or value", argv[i]);
        }
    }
}

static void check(struct model * m) {
    if (m->n_head_kv == 0) {
        m->n_head_kv = m->n_head;
    }
    if (m->n_ff == 0) {
        m->n_ff = (m->n_embd * 11 / 4 + 63) / 64 * 64;
    }
    if (m->out == NULL || *m->out == '\0') {
        fail_usage("missing", "--out");
    }
    if (m->n_embd % m->n_head != 0 || m->n_embd / m->n_head % 2 != 0) {
        fail_usage("--n-embd must be an even multiple of", "--n-head");
    }
    if (m->n_head % m->n_head_kv != 0) {
        fail_usage("--n-head must be a multiple of", "--n-head-kv");
    }
}

int main(int argc, char ** argv) {
    struct model m = { .n_embd = 512, .n_layer = 4, .n_head = 8, .n_vocab = 1024, .n_ctx = 4096, .seed = 1, .type = GGML_TYPE_F32 };
    parse(&m, argc, argv);
    check(&m);
    if (!write_model(&m)) {
        perror(m.out);
        remove(m.out);
        return 1;
    }
    return 0;
}
