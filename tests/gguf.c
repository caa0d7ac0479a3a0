/*
 * make-gguf - writes a model of the llama architecture with random weights, so
 * that tests and measurements need no download. It has experts on request, and
 * a vocabulary on request, for programs that take text.
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
    "  --n-ctx N      (4096)  --type f32|f16 (f32) --seed N    (1)\n"
    "  --n-expert N   (none: no mixture of experts)  --n-expert-used N (2)\n"
    "  --vocab none|text (none)  text: single bytes, ASCII and made-up words, 355 tokens at least\n";

struct model {
    const char *   out;
    int64_t        n_embd, n_layer, n_head, n_head_kv, n_ff, n_vocab, n_ctx, n_expert, n_expert_used, seed;
    bool           text; /* has a vocabulary */
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

/* A vocabulary as SentencePiece makes them: three special tokens, all bytes, then
 * single characters, and words of letters up to n tokens. */
enum { BYTES_FIRST = 3, CHARS_FIRST = BYTES_FIRST + 256, WORDS_FIRST = CHARS_FIRST + 96 };

enum { TOKEN_BYTES = 8 };

static void name_token(char * name, int64_t i) {
    static const char * const special[] = { "<unk>", "<s>", "</s>" };
    if (i < BYTES_FIRST) {
        strcpy(name, special[i]);
    } else if (i < CHARS_FIRST) {
        snprintf(name, TOKEN_BYTES, "<0x%02X>", (unsigned) (i - BYTES_FIRST) & 0xff);
    } else if (i == CHARS_FIRST) {
        strcpy(name, "\xe2\x96\x81"); /* U+2581, their space */
    } else if (i < WORDS_FIRST) {
        snprintf(name, TOKEN_BYTES, "%c", (char) (' ' + i - CHARS_FIRST - 1));
    } else {
        int64_t rest = i - WORDS_FIRST; /* of two letters, or more where these are used up */
        int     length = 0;
        do {
            name[length++] = (char) ('a' + rest % 26);
            rest /= 26;
        } while (rest > 0 || length < 2);
        name[length] = '\0';
    }
}

static void describe_vocab(struct gguf_context * gguf, int64_t n) {
    enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, BYTE = 6 };
    char (* names)[TOKEN_BYTES] = calloc(n, TOKEN_BYTES);
    const char ** tokens = calloc(n, sizeof(*tokens));
    float *       scores = calloc(n, sizeof(*scores));
    int32_t *     types  = calloc(n, sizeof(*types));
    for (int64_t i = 0; i < n; i++) {
        name_token(names[i], i);
        tokens[i] = names[i];
        scores[i] = (float) -i;
        types[i]  = i == 0 ? UNKNOWN : i < BYTES_FIRST ? CONTROL : i < CHARS_FIRST ? BYTE : NORMAL;
    }
    gguf_set_val_str(gguf, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(gguf, "tokenizer.ggml.tokens", tokens, n);
    gguf_set_arr_data(gguf, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores, n);
    gguf_set_arr_data(gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, n);
    set_u32(gguf, "tokenizer.ggml.unknown_token_id", 0);
    set_u32(gguf, "tokenizer.ggml.bos_token_id", 1);
    set_u32(gguf, "tokenizer.ggml.eos_token_id", 2);
    free(types);
    free(scores);
    free(tokens);
    free(names);
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
    if (m->n_expert > 0) {
        set_u32(gguf, "llama.expert_count", m->n_expert);
        set_u32(gguf, "llama.expert_used_count", m->n_expert_used);
    }
    if (m->text) {
        describe_vocab(gguf, m->n_vocab);
    } else {
        gguf_set_val_str(gguf, "tokenizer.ggml.model", "no_vocab");
    }
}

/* ne: dimensions, the last of which may be 0 for "none". */
static void add(struct gguf_context * gguf, struct ggml_context * ctx, const char * name, enum ggml_type type,
                const int64_t ne[3]) {
    struct ggml_tensor * t = ggml_new_tensor(ctx, type, ne[1] == 0 ? 1 : ne[2] == 0 ? 2 : 3, ne);
    ggml_set_name(t, name);
    gguf_add_tensor(gguf, t);
}

static void add_layer(struct gguf_context * gguf, struct ggml_context * ctx, const struct model * m, int64_t layer) {
    const int64_t n_kv = m->n_embd / m->n_head * m->n_head_kv;
    const bool    moe  = m->n_expert > 0;
    const struct { const char * name; int64_t ne[3]; } parts[] = {
        { "attn_norm", { m->n_embd } },
        { "attn_q", { m->n_embd, m->n_embd } },
        { "attn_k", { m->n_embd, n_kv } },
        { "attn_v", { m->n_embd, n_kv } },
        { "attn_output", { m->n_embd, m->n_embd } },
        { "ffn_norm", { m->n_embd } },
        { moe ? "ffn_gate_inp" : NULL, { m->n_embd, m->n_expert } },
        { moe ? "ffn_gate_exps" : "ffn_gate", { m->n_embd, m->n_ff, m->n_expert } },
        { moe ? "ffn_up_exps" : "ffn_up", { m->n_embd, m->n_ff, m->n_expert } },
        { moe ? "ffn_down_exps" : "ffn_down", { m->n_ff, m->n_embd, m->n_expert } },
    };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        char name[64];
        if (parts[i].name == NULL) {
            continue;
        }
        snprintf(name, sizeof(name), "blk.%lld.%s.weight", (long long) layer, parts[i].name);
        add(gguf, ctx, name, parts[i].ne[1] == 0 ? GGML_TYPE_F32 : m->type, parts[i].ne);
    }
}

static void add_tensors(struct gguf_context * gguf, struct ggml_context * ctx, const struct model * m) {
    const int64_t rows[3] = { m->n_embd, m->n_vocab, 0 }, norm[3] = { m->n_embd, 0, 0 };
    add(gguf, ctx, "token_embd.weight", m->type, rows);
    for (int64_t layer = 0; layer < m->n_layer; layer++) {
        add_layer(gguf, ctx, m, layer);
    }
    add(gguf, ctx, "output_norm.weight", GGML_TYPE_F32, norm);
    add(gguf, ctx, "output.weight", m->type, rows);
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
    const struct ggml_init_params params = { (10 * m->n_layer + 3) * ggml_tensor_overhead(), NULL, true };
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
        { "--n-ctx", &m->n_ctx }, { "--n-expert", &m->n_expert }, { "--n-expert-used", &m->n_expert_used },
        { "--seed", &m->seed },
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
        } else if (strcmp(argv[i], "--vocab") == 0 && (strcmp(value, "none") == 0 || strcmp(value, "text") == 0)) {
            m->text = strcmp(value, "text") == 0;
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
    if (m->n_expert > 0 && m->n_expert_used > m->n_expert) {
        fail_usage("--n-expert must be at least", "--n-expert-used");
    }
    if (m->text && m->n_vocab < WORDS_FIRST) {
        fail_usage("--vocab text needs more tokens in", "--n-vocab");
    }
}

int main(int argc, char ** argv) {
    struct model m = { .n_embd = 512, .n_layer = 4, .n_head = 8, .n_vocab = 1024, .n_ctx = 4096,
                       .n_expert_used = 2, .seed = 1, .type = GGML_TYPE_F32 };
    parse(&m, argc, argv);
    check(&m);
    if (!write_model(&m)) {
        perror(m.out);
        remove(m.out);
        return 1;
    }
    return 0;
}
