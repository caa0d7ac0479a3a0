/*
 * layer-probe - a communicator's life in which anything may fail: what it comes
 * to is the exit status, so that tests/layer/sweep can tell the outcomes apart.
 *
 *   layer-probe [LAYER]      LAYER: the layer's library, told where phases end
 */
#include "../harness/report.h"
#include "../harness/set.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 2 };

/* Exit statuses. */
enum { RIGHT = 0, UNUSABLE = 2, DECLINED = 10, HANDED_BACK = 11, WRONG = 20, STOCK_BROKEN = 21 };

static void (*mark_phase)(const char * phase);

static void mark(const char * phase) {
    if (mark_phase != NULL) {
        mark_phase(phase);
    }
}

static void find_layer(const char * path) {
    void * layer = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    void * f     = layer != NULL ? dlsym(layer, "vkcomm_layer_mark") : NULL;
    if (f == NULL) {
        fprintf(stderr, "layer-probe: %s is not active in this process\n", path);
        exit(UNUSABLE);
    }
    memcpy(&mark_phase, &f, sizeof(f));
}

/* All that the host's own AllReduce needs of a backend: memory and graphs. */
static bool stock_goes_on(const struct world * world) {
    enum { ELEMENTS = 1000 };
    bool ok = true;
    for (int r = 0; r < RANKS; r++) {
        struct ggml_context * ctx    = meta_context(4, 1);
        struct ggml_tensor *  a      = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, ELEMENTS);
        struct ggml_tensor *  sum    = ggml_add(ctx, a, a);
        struct ggml_cgraph *  graph  = ggml_new_graph(ctx);
        ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(ctx, world->backend[r]);
        float                 values[ELEMENTS];
        for (int i = 0; i < ELEMENTS; i++) {
            values[i] = (float) (i + r);
        }
        ggml_build_forward_expand(graph, sum);
        ggml_backend_tensor_set(a, values, 0, sizeof(values));
        ok = ggml_backend_graph_compute(world->backend[r], graph) == GGML_STATUS_SUCCESS && ok;
        ggml_backend_tensor_get(sum, values, 0, sizeof(values));
        for (int i = 0; i < ELEMENTS; i++) {
            ok = ok && values[i] == (float) (2 * (i + r));
        }
        ggml_backend_buffer_free(buffer);
        ggml_free(ctx);
    }
    return ok;
}

/* What was handed back must be as it was. */
static bool untouched(const struct set * set) {
    bool    ok   = true;
    float * read = malloc((size_t) set->values.elements * sizeof(float));
    for (int r = 0; r < RANKS; r++) {
        operand_read(&set->op[r], read);
        ok = memcmp(read, set->values.v[r], (size_t) set->values.elements * sizeof(float)) == 0 &&
             operand_guards_intact(&set->op[r]) && ok;
    }
    free(read);
    return ok;
}

static int reduce(const struct world * world, void * comm, struct set * set, uint64_t seed) {
    set_fill(set, KIND_WIDE, (1u << RANKS) - 1, seed);
    if (!set_allreduce(set, comm)) {
        return untouched(set) ? HANDED_BACK : WRONG;
    }
    world_synchronize(world, RANKS);
    return set_check(set, ACCURACY_EXACT) ? RIGHT : WRONG;
}

/* Decode sizes, each twice over the same memory, and one of several rounds. */
static int reduce_all(const struct world * world, void * comm) {
    static const int64_t sizes[] = { 5, 4097, 4096, 300001 };
    uint64_t             seed    = 0;
    int                  outcome = RIGHT;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct set set;
        if (!set_alloc(&set, world, RANKS, sizes[i], i % 2 ? BINDING_VIEW : BINDING_PLAIN)) {
            exit(UNUSABLE);
        }
        for (int again = 0; again < 3; again++) {
            const int one = reduce(world, comm, &set, ++seed);
            outcome       = one > outcome ? one : outcome;
        }
        set_free(&set);
    }
    return outcome;
}

static void drop_line(enum ggml_log_level level, const char * text, void * context) {
    (void) level, (void) text, (void) context;
}

int main(int argc, char ** argv) {
    enum { WATCHDOG_SECONDS = 60 };
    const char * libdir = getenv("VKCOMM_TEST_LIBDIR");
    struct world world;
    report_watchdog(WATCHDOG_SECONDS);
    if (libdir == NULL || !ranks_load(libdir) || !world_open(&world, RANKS)) {
        fprintf(stderr, "layer-probe: no %d Vulkan devices, or no backends in VKCOMM_TEST_LIBDIR\n", RANKS);
        return UNUSABLE;
    }
    if (argc > 1) {
        find_layer(argv[1]);
    }
    if (getenv("LAYER_PROBE_QUIET") != NULL) {
        ggml_log_set(drop_line, NULL);
    }
    ranks_find_trio();
    if (trio.init == NULL) {
        fprintf(stderr, "layer-probe: no trio: is the plugin preloaded?\n");
        return UNUSABLE;
    }
    mark("start");
    int    outcome = DECLINED;
    void * comm    = trio.init(world.backend, RANKS);
    mark("init");
    if (comm != NULL) {
        outcome = reduce_all(&world, comm);
        mark("reductions");
        trio.free(comm);
        mark("free");
    }
    if (!stock_goes_on(&world)) {
        outcome = STOCK_BROKEN;
    }
    world_close(&world);
    return outcome;
}
