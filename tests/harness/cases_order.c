/*
 * Order without a synchronisation, as the host's meta backend relies on: graphs
 * that write the operands, the reduction, graphs that read the sums, and again,
 * with two operand addresses that alternate as layers' do.
 *
 * Step k on every rank r:  y[k % 2] = x_r * s_k   (a slow rank goes through a
 * chain of scalings first), allreduce of y[k % 2], out[k] = 2 * y[k % 2].
 * All factors are powers of two, so out[k] = sum(x) * 2 * s_k exactly.
 */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 20, SLOW_CHAIN = 24 };

struct lane {
    struct ggml_context * ctx;
    ggml_backend_buffer_t buffer;
    char *                next; /* next free address in buffer */
    struct ggml_tensor *  x;
    struct ggml_tensor *  leaf[2];    /* y's two addresses as plain tensors */
    struct ggml_tensor *  y[STEPS];   /* the node that writes y in step k */
    struct ggml_tensor *  out[STEPS];
    struct ggml_cgraph *  write[STEPS];
    struct ggml_cgraph *  read[STEPS];
};

struct lanes {
    int           n;
    int64_t       elements;
    struct lane   lane[MAX_RANKS];
    struct values x;
};

/* Powers of two, both signs, of a period that is no multiple of two. */
static float factor(int step) {
    return ldexpf(step % 3 == 2 ? -1.0f : 1.0f, step % 5 - 2);
}

static bool slow(int step, int rank, int n) {
    return step % n == rank;
}

/* Every fifth step one rank has no graph at all: a zero-sized slice. */
static bool absent(int step, int rank, int n) {
    return step % 5 == 4 && step / 5 % n == rank;
}

static size_t padded(int64_t elements) {
    return (elements * sizeof(float) + 255) / 256 * 256;
}

static struct ggml_tensor * put(struct lane * lane, struct ggml_tensor * t, char * address) {
    ggml_backend_tensor_alloc(lane->buffer, t, address);
    return t;
}

static char * take(struct lane * lane, int64_t elements) {
    char * address = lane->next;
    lane->next += padded(elements);
    return address;
}

static struct ggml_tensor * leaf(struct lane * lane, int64_t elements) {
    return put(lane, ggml_new_tensor_1d(lane->ctx, GGML_TYPE_F32, elements), take(lane, elements));
}

static struct ggml_cgraph * graph_of(struct lane * lane, struct ggml_tensor * last) {
    struct ggml_cgraph * graph = ggml_new_graph(lane->ctx);
    ggml_build_forward_expand(graph, last);
    return graph;
}

static void build_write(struct lane * lane, int step, bool is_slow, char * const scratch[2]) {
    struct ggml_tensor * t = lane->x;
    for (int i = 0; is_slow && i < SLOW_CHAIN; i++) {
        t = put(lane, ggml_scale(lane->ctx, t, i % 2 ? 0.5f : 2.0f), scratch[i % 2]);
    }
    lane->y[step]     = put(lane, ggml_scale(lane->ctx, t, factor(step)), lane->leaf[step % 2]->data);
    lane->write[step] = graph_of(lane, lane->y[step]);
}

static void build_read(struct lane * lane, int step, int64_t elements) {
    lane->out[step]  = put(lane, ggml_scale(lane->ctx, lane->leaf[step % 2], 2.0f), take(lane, elements));
    lane->read[step] = graph_of(lane, lane->out[step]);
}

static bool lane_build(struct lane * lane, int rank, int n, int64_t elements) {
    lane->ctx    = meta_context(STEPS * (SLOW_CHAIN + 4), 2 * STEPS);
    lane->buffer = rank_arena(&world, rank);
    if (padded(elements) * (STEPS + 5) > ARENA_BYTES) {
        report_note("%lld elements do not fit into the arena", (long long) elements);
        return false;
    }
    lane->next    = ggml_backend_buffer_get_base(lane->buffer);
    lane->x       = leaf(lane, elements);
    lane->leaf[0] = leaf(lane, elements);
    lane->leaf[1] = leaf(lane, elements);
    char * const scratch[2] = { take(lane, elements), take(lane, elements) };
    for (int step = 0; step < STEPS; step++) {
        build_write(lane, step, slow(step, rank, n), scratch);
        build_read(lane, step, elements);
    }
    return true;
}

static void lanes_free(struct lanes * l) {
    for (int r = 0; r < l->n; r++) {
        if (l->lane[r].ctx != NULL) {
            ggml_free(l->lane[r].ctx);
        }
    }
    values_free(&l->x);
}

static bool lanes_build(struct lanes * l, int n, int64_t elements) {
    memset(l, 0, sizeof(*l));
    l->n        = n;
    l->elements = elements;
    values_alloc(&l->x, n, elements);
    bool ok = true;
    for (int r = 0; r < n; r++) {
        ok = lane_build(&l->lane[r], r, n, elements) && ok;
    }
    return ok;
}

/* New operands; outputs become NaN so that a result left over cannot pass. */
static void lanes_fill(struct lanes * l) {
    const size_t bytes = l->elements * sizeof(float);
    values_fill(&l->x, KIND_FINITE, next_seed());
    for (int r = 0; r < l->n; r++) {
        ggml_backend_tensor_set(l->lane[r].x, l->x.v[r], 0, bytes);
        for (int step = 0; step < STEPS; step++) {
            ggml_backend_tensor_memset(l->lane[r].out[step], 0xff, 0, bytes);
        }
    }
}

static bool submit(ggml_backend_t backend, struct ggml_cgraph * graph) {
    return ggml_backend_graph_compute_async(backend, graph) == GGML_STATUS_SUCCESS;
}

static bool run_step(struct lanes * l, void * comm, int step) {
    struct ggml_tensor * tensors[MAX_RANKS];
    bool                 ok = true;
    for (int r = 0; r < l->n; r++) {
        struct lane * lane = &l->lane[r];
        if (absent(step, r, l->n)) {
            tensors[r] = lane->leaf[step % 2]; /* holds an older sum; not COMPUTE */
            continue;
        }
        tensors[r] = lane->y[step];
        ok = submit(world.backend[r], lane->write[step]) && ok;
    }
    if (!trio.allreduce(comm, tensors)) {
        report_note("step %d: refused", step);
        ok = false;
    }
    for (int r = 0; r < l->n; r++) {
        ok = submit(world.backend[r], l->lane[r].read[step]) && ok;
    }
    return ok;
}

/* The operands of a step, scaled so that their sum is what out must hold. */
static void step_values(const struct lanes * l, int step, struct values * w) {
    w->mask = (1u << l->n) - 1;
    for (int r = 0; r < l->n; r++) {
        if (absent(step, r, l->n)) {
            w->mask &= ~(1u << r);
        }
        for (int64_t i = 0; i < l->elements; i++) {
            w->v[r][i] = l->x.v[r][i] * factor(step) * 2.0f;
        }
    }
}

static bool check_steps(const struct lanes * l) {
    struct values w;
    float *       found = malloc(l->elements * sizeof(float));
    bool          ok    = true;
    values_alloc(&w, l->n, l->elements);
    for (int step = 0; step < STEPS && ok; step++) {
        step_values(l, step, &w);
        for (int r = 0; r < l->n && ok; r++) {
            ggml_backend_tensor_get(l->lane[r].out[step], found, 0, l->elements * sizeof(float));
            ok = values_check(&w, found, options.accuracy, r);
        }
        if (!ok) {
            report_note("that was step %d of %d", step, STEPS);
        }
    }
    values_free(&w);
    free(found);
    return ok;
}

static bool run_round(struct lanes * l, void * comm) {
    lanes_fill(l);
    bool ok = true;
    for (int step = 0; step < STEPS && ok; step++) {
        ok = run_step(l, comm, step);
    }
    world_synchronize(&world, l->n);
    return ok && check_steps(l);
}

static void run_rounds(void * comm, int n, int64_t elements, int rounds) {
    struct lanes l;
    report_start("order/n%d/%lld/%d reductions between graphs", n, (long long) elements, rounds * STEPS);
    bool ok = lanes_build(&l, n, elements);
    for (int i = 0; i < rounds && ok; i++) {
        ok = run_round(&l, comm);
    }
    lanes_free(&l);
    report_result(ok);
}

/* The shortest form of it: values written by the host, one reader each. */
static void run_reader(void * comm, int n) {
    struct lanes l;
    report_start("order/n%d/a graph that reads the sum at once", n);
    bool ok = lanes_build(&l, n, 4096);
    if (ok) {
        struct ggml_tensor * tensors[MAX_RANKS];
        float                found[4096];
        struct values        w;
        lanes_fill(&l);
        for (int r = 0; r < n; r++) {
            ggml_backend_tensor_set(l.lane[r].leaf[0], l.x.v[r], 0, sizeof(found));
            tensors[r] = l.lane[r].leaf[0];
            tensors[r]->flags |= GGML_TENSOR_FLAG_COMPUTE;
        }
        ok = trio.allreduce(comm, tensors);
        for (int r = 0; r < n; r++) {
            ok = submit(world.backend[r], l.lane[r].read[0]) && ok;
        }
        world_synchronize(&world, n);
        values_alloc(&w, n, 4096);
        for (int r = 0; r < n; r++) {
            for (int i = 0; i < 4096; i++) {
                w.v[r][i] = l.x.v[r][i] * 2.0f;
            }
        }
        for (int r = 0; r < n && ok; r++) {
            ggml_backend_tensor_get(l.lane[r].out[0], found, 0, sizeof(found));
            ok = values_check(&w, found, options.accuracy, r);
        }
        values_free(&w);
    }
    lanes_free(&l);
    report_result(ok);
}

void case_order(void) {
    for (int k = 0; k < options.n_ranks; k++) {
        const int n    = options.ranks[k];
        void *    comm = open_comm("order", n);
        if (comm == NULL) {
            continue;
        }
        run_reader(comm, n);
        run_rounds(comm, n, 4096, (options.order + STEPS - 1) / STEPS);
        run_rounds(comm, n, 100003, (options.order / 10 + STEPS - 1) / STEPS);
        trio.free(comm);
    }
}
