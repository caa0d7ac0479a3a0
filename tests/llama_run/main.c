/*
 * llama-run - decodes a deterministic prompt and greedy tokens with an
 * unmodified llama.cpp, and says how fast and with which bits.
 *
 * Two runs that print the same hashes computed the same logits: run it once
 * with the plugin preloaded and once without. stdout carries results only.
 */
#define _POSIX_C_SOURCE 200809L
#include "options.h"

#include "ggml-backend.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t fnv64(uint64_t hash, const void * data, size_t bytes) {
    const unsigned char * p = data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ p[i]) * 0x100000001b3u;
    }
    return hash;
}

#define FNV_START 0xcbf29ce484222325u

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static uint64_t random_next(uint64_t * state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void die(const char * what, const char * detail) {
    fprintf(stderr, "llama-run: %s: %s\n", what, detail);
    exit(1);
}

static FILE * open_file(const char * path, const char * mode) {
    FILE * f = fopen(path, mode);
    if (f == NULL) {
        die(path, strerror(errno));
    }
    return f;
}

/* ---- decoding ------------------------------------------------------------------ */

struct result {
    double   prompt_seconds, gen_seconds;
    uint64_t logits_hash, tokens_hash;
    bool     finite;
};

struct session {
    const struct run_options * opt;
    struct llama_context *     ctx;
    int                        n_vocab;
    llama_token *              prompt;
    FILE *                     file; /* where logits go, or NULL */
    struct result              result;
};

/* Takes n values of the last decode into the hash and the file. */
static const float * take(struct session * s, const float * row, int n) {
    if (row == NULL) {
        die("an output is missing", s->opt->model);
    }
    s->result.logits_hash = fnv64(s->result.logits_hash, row, n * sizeof(float));
    for (int v = 0; v < n; v++) {
        s->result.finite = s->result.finite && isfinite(row[v]);
    }
    if (s->file != NULL && fwrite(row, sizeof(float), n, s->file) != (size_t) n) {
        die(s->opt->logits, strerror(errno));
    }
    return row;
}

static const float * take_logits(struct session * s, int i) {
    return take(s, llama_get_logits_ith(s->ctx, i), s->n_vocab);
}

/* What an embedding model gives for the batch just decoded: one row, or one a token without pooling. */
static void take_embeddings(struct session * s, int64_t count) {
    const int n_embd = llama_model_n_embd(llama_get_model(s->ctx));
    if (s->opt->pooling != LLAMA_POOLING_TYPE_NONE) {
        take(s, llama_get_embeddings_seq(s->ctx, 0), n_embd);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        take(s, llama_get_embeddings_ith(s->ctx, (int32_t) i), n_embd);
    }
}

static llama_token best_token(const struct session * s, const float * row) {
    llama_token best = 0;
    for (int v = 1; v < s->n_vocab; v++) {
        best = row[v] > row[best] ? v : best;
    }
    return best;
}

static void decode(struct session * s, struct llama_batch batch) {
    if (llama_decode(s->ctx, batch) != 0) {
        die("llama_decode failed", s->opt->model);
    }
    llama_synchronize(s->ctx);
}

static void fill_batch(struct llama_batch * b, const llama_token * tokens, int64_t first, int64_t count, bool all, bool last) {
    b->n_tokens = (int32_t) count;
    for (int64_t i = 0; i < count; i++) {
        b->token[i]     = tokens[first + i];
        b->pos[i]       = (llama_pos) (first + i);
        b->n_seq_id[i]  = 1;
        b->seq_id[i][0] = 0;
        b->logits[i]    = all || (last && i == count - 1);
    }
}

/* The prompt in pieces of --batch; returns the token that follows it. Only
 * decoding is timed, not the copying of logits. */
static llama_token run_prompt(struct session * s, struct llama_batch batch) {
    llama_token next = 0;
    for (int64_t first = 0; first < s->opt->prompt; first += s->opt->batch) {
        const int64_t rest  = s->opt->prompt - first;
        const int64_t count = rest < s->opt->batch ? rest : s->opt->batch;
        const bool    last  = count == rest;
        fill_batch(&batch, s->prompt, first, count, s->opt->all_logits || s->opt->embeddings, last);
        const double start = now();
        decode(s, batch);
        s->result.prompt_seconds += now() - start;
        if (s->opt->embeddings) {
            take_embeddings(s, count);
            continue;
        }
        for (int64_t i = 0; i < count; i++) {
            if (batch.logits[i]) {
                next = best_token(s, take_logits(s, (int) i));
            }
        }
    }
    return next;
}

static void run_gen(struct session * s, struct llama_batch batch, llama_token next) {
    for (int64_t step = 0; step < s->opt->gen; step++) {
        s->result.tokens_hash = fnv64(s->result.tokens_hash, &next, sizeof(next));
        fill_batch(&batch, &next, 0, 1, true, true);
        batch.pos[0] = (llama_pos) (s->opt->prompt + step);
        const double start = now();
        decode(s, batch);
        s->result.gen_seconds += now() - start;
        next = best_token(s, take_logits(s, 0));
    }
}

static void run_once(struct session * s) {
    s->result = (struct result) { .logits_hash = FNV_START, .tokens_hash = FNV_START, .finite = true };
    llama_memory_clear(llama_get_memory(s->ctx), true);
    struct llama_batch batch = llama_batch_init((int32_t) s->opt->batch, 0, 1);
    run_gen(s, batch, run_prompt(s, batch));
    llama_batch_free(batch);
}

/* ---- set-up and output ------------------------------------------------------------ */

static struct llama_model * load_model(const struct run_options * o) {
    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = (int32_t) o->gpu_layers;
    params.split_mode   = o->split;
    params.tensor_split = o->tensor_split;
    struct llama_model * model = llama_model_load_from_file(o->model, params);
    if (model == NULL) {
        die("cannot load", o->model);
    }
    return model;
}

static struct llama_context * make_context(const struct run_options * o, struct llama_model * model) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx           = (uint32_t) o->ctx;
    params.n_batch         = (uint32_t) o->batch;
    params.n_ubatch        = (uint32_t) o->ubatch;
    params.n_threads       = (int32_t) o->threads;
    params.n_threads_batch = (int32_t) o->threads;
    params.flash_attn_type = o->flash;
    params.embeddings      = o->embeddings;
    params.pooling_type    = o->embeddings ? o->pooling : LLAMA_POOLING_TYPE_UNSPECIFIED;
    params.no_perf         = true;
    struct llama_context * ctx = llama_init_from_model(model, params);
    if (ctx == NULL) {
        die("no context for", o->model);
    }
    return ctx;
}

static void print_result(const struct session * s) {
    const struct run_options * o = s->opt;
    const struct result *      r = &s->result;
    const double               pps = r->prompt_seconds > 0 ? (double) o->prompt / r->prompt_seconds : 0;
    const double               gps = r->gen_seconds > 0 ? (double) o->gen / r->gen_seconds : 0;
    const char * format = o->json
        ? "{\"prompt_tokens\":%lld,\"gen_tokens\":%lld,\"prompt_tps\":%.3f,\"gen_tps\":%.3f,"
          "\"logits_fnv64\":\"%016llx\",\"tokens_fnv64\":\"%016llx\",\"finite\":%s}\n"
        : "prompt %lld, generated %lld tokens; %.3f and %.3f t/s; logits %016llx, tokens %016llx, finite %s\n";
    printf(format, (long long) o->prompt, (long long) o->gen, pps, gps, (unsigned long long) r->logits_hash,
           (unsigned long long) r->tokens_hash, r->finite ? "true" : "false");
    fflush(stdout);
}

static void make_prompt(struct session * s) {
    uint64_t state = (uint64_t) s->opt->seed;
    s->prompt = malloc(s->opt->prompt * sizeof(llama_token));
    for (int64_t i = 0; i < s->opt->prompt; i++) {
        s->prompt[i] = (llama_token) (random_next(&state) % (uint64_t) s->n_vocab);
    }
}

/* The first run warms up: shaders are compiled, buffers grow. The file gets the
 * logits of the last one. */
static bool run_all(struct session * s) {
    bool     finite = true;
    uint64_t hash   = 0;
    for (int64_t i = 0; i <= s->opt->repeat; i++) {
        const bool last = i == s->opt->repeat;
        if (last && s->opt->logits != NULL) {
            s->file = open_file(s->opt->logits, "wb");
        }
        run_once(s);
        if (i > 0) {
            print_result(s);
            if (hash != s->result.logits_hash) {
                fprintf(stderr, "llama-run: run %lld has other logits than the run before\n", (long long) i);
            }
        }
        hash   = s->result.logits_hash;
        finite = finite && s->result.finite;
    }
    if (s->file != NULL && fclose(s->file) != 0) {
        die(s->opt->logits, strerror(errno));
    }
    return finite;
}

static int run(const struct run_options * o) {
    ggml_backend_load_all_from_path(o->libdir);
    llama_backend_init();
    struct session       s     = { .opt = o };
    struct llama_model * model = load_model(o);
    s.n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    s.ctx     = make_context(o, model);
    make_prompt(&s);
    const bool finite = run_all(&s);
    free(s.prompt);
    llama_free(s.ctx);
    llama_model_free(model);
    llama_backend_free();
    if (!finite) {
        die("some logits are not finite, so hashes prove nothing", o->model);
    }
    return 0;
}

/* Compares two files of logits bit by bit. */
static int compare(const char * path_a, const char * path_b) {
    enum { CHUNK = 65536 };
    static float a[CHUNK], b[CHUNK];
    FILE *       fa = open_file(path_a, "rb"), * fb = open_file(path_b, "rb");
    int64_t      count = 0, different = 0;
    double       worst = 0;
    size_t       na, nb;
    do {
        na = fread(a, sizeof(float), CHUNK, fa);
        nb = fread(b, sizeof(float), CHUNK, fb);
        for (size_t i = 0; i < na && i < nb; i++) {
            if (memcmp(&a[i], &b[i], sizeof(float)) != 0) {
                const double d = fabs((double) a[i] - (double) b[i]);
                worst = isnan(d) ? INFINITY : fmax(worst, d);
                different++;
            }
        }
        count += na < nb ? na : nb;
    } while (na == nb && na > 0);
    fclose(fa);
    fclose(fb);
    const bool equal = na == nb && different == 0 && count > 0;
    printf("equal %s: %lld values compared, %lld differ, max abs difference %g%s\n", equal ? "yes" : "no", (long long) count,
           (long long) different, worst, na != nb ? "; the files differ in length" : "");
    return equal ? 0 : 1;
}

int main(int argc, char ** argv) {
    if (argc == 4 && strcmp(argv[1], "--compare") == 0) {
        return compare(argv[2], argv[3]);
    }
    struct run_options o;
    parse_options(&o, argc, argv);
    return run(&o);
}
