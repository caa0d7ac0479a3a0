/* Values whose sum is a matter of bits: zeros, denormals, NaN; and the proof
 * that the test data can tell one order of additions from another. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Without this a wrong association could pass unseen. */
void case_data(void) {
    for (int n = 3; n <= 5; n++) {
        struct values w;
        values_alloc(&w, n, 4096);
        values_fill(&w, KIND_WIDE, next_seed());
        report_start("data/n%d/order shows in the bits", n);
        const int64_t sensitive = values_sensitive(&w);
        report_note("%lld of 4096 sums depend on the order", (long long) sensitive);
        report_result(sensitive > 4096 / 10);
        report_start("data/n%d/sums are near the exact ones", n);
        float * sums = malloc(4096 * sizeof(float));
        for (int64_t i = 0; i < 4096; i++) {
            sums[i] = values_sum(&w, i);
        }
        report_result(values_check(&w, sums, ACCURACY_EXACT, 0));
        free(sums);
        values_free(&w);
    }
}

/* -0 everywhere stays -0; one rank without data contributes +0 and makes +0,
 * as the host's zeroed node does. */
static void signed_zero(void * comm, int n, uint32_t mask, const char * what, uint32_t wanted) {
    struct set set;
    report_start("signed-zero/n%d/%s", n, what);
    bool ok = set_alloc(&set, &world, n, 1000, BINDING_PLAIN);
    if (ok) {
        ok = set_roundtrip(&set, &world, comm, KIND_MINUS_ZERO, mask, ACCURACY_EXACT, 0);
        float result[1000];
        operand_read(&set.op[n - 1], result);
        for (int i = 0; i < 1000 && ok; i++) {
            ok = float_bits(result[i]) == wanted;
        }
        set_free(&set);
    }
    report_result(ok);
}

void case_signed_zero(void) {
    for (int k = 0; k < options.n_ranks; k++) {
        const int n    = options.ranks[k];
        void *    comm = open_comm("signed-zero", n);
        if (comm == NULL) {
            continue;
        }
        const uint32_t all = (1u << n) - 1;
        signed_zero(comm, n, all, "all -0", 0x80000000u);
        for (int r = 0; r < n; r++) {
            char what[32] = "-0 but rank X off";
            what[strlen("-0 but rank ")] = (char) ('0' + r);
            signed_zero(comm, n, all & ~(1u << r), what, 0);
        }
        signed_zero(comm, n, 0, "nobody", 0);
        trio.free(comm);
    }
}

/* ---- what the device itself answers --------------------------------------- */

/* The host's butterfly as one ggml graph on one rank's backend. */
static struct ggml_tensor * add_graph(struct ggml_context * ctx, struct ggml_tensor ** in, int n) {
    struct ggml_tensor * s[MAX_RANKS];
    int                  p = 1;
    while (2 * p <= n) {
        p *= 2;
    }
    memcpy(s, in, n * sizeof(s[0]));
    for (int r = p; r < n; r++) {
        s[r - p] = ggml_add(ctx, s[r - p], s[r]);
    }
    for (int d = p / 2; d >= 1; d /= 2) {
        for (int r = 0; r < d; r++) {
            s[r] = ggml_add(ctx, s[r], s[r + d]);
        }
    }
    return s[0];
}

/* Gives every tensor of a context memory of its own in the rank's arena. */
static void place_all(struct ggml_context * ctx, int rank) {
    struct ggml_tallocr talloc = ggml_tallocr_new(rank_arena(&world, rank));
    for (struct ggml_tensor * t = ggml_get_first_tensor(ctx); t != NULL; t = ggml_get_next_tensor(ctx, t)) {
        ggml_tallocr_alloc(&talloc, t);
    }
}

static bool device_sum(const struct values * w, int rank, float * result) {
    const size_t          bytes = w->elements * sizeof(float);
    struct ggml_context * ctx   = meta_context(3 * MAX_RANKS, 1);
    struct ggml_tensor *  in[MAX_RANKS];
    for (int r = 0; r < w->n; r++) {
        in[r] = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, w->elements);
    }
    struct ggml_tensor * sum   = add_graph(ctx, in, w->n);
    struct ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, sum);
    place_all(ctx, rank);
    for (int r = 0; r < w->n; r++) {
        ggml_backend_tensor_set(in[r], w->v[r], 0, bytes);
    }
    const bool ok = ggml_backend_graph_compute(world.backend[rank], graph) == GGML_STATUS_SUCCESS;
    ggml_backend_tensor_get(sum, result, 0, bytes);
    ggml_free(ctx);
    return ok;
}

static bool same_as_device(float wanted, float found) {
    return isnan(wanted) ? isnan(found) : float_bits(wanted) == float_bits(found);
}

/* Compares one rank with its own device's additions. */
static bool check_against_device(const struct set * set, int r) {
    const int64_t count  = set->values.elements;
    float *       wanted = malloc(count * sizeof(float));
    float *       found  = malloc(count * sizeof(float));
    bool          ok     = device_sum(&set->values, r, wanted);
    operand_read(&set->op[r], found);
    for (int64_t i = 0; i < count && ok; i++) {
        if (!same_as_device(wanted[i], found[i])) {
            report_note("rank %d [%lld]: the device's own add gives %08x, found %08x", r, (long long) i,
                        float_bits(wanted[i]), float_bits(found[i]));
            for (int j = 0; j < set->n; j++) {
                report_note("  operand %d: %08x", j, float_bits(set->values.v[j][i]));
            }
            ok = false;
        }
    }
    free(wanted);
    free(found);
    return ok;
}

static bool like_device(struct set * set, void * comm, enum kind kind) {
    set_fill(set, kind, (1u << set->n) - 1, next_seed());
    if (!set_allreduce(set, comm)) {
        report_note("refused: allreduce returned false");
        return false;
    }
    world_synchronize(&world, set->n);
    bool ok = true;
    for (int r = 0; r < set->n; r++) {
        ok = check_against_device(set, r) && ok;
    }
    return ok;
}

static void run_like_device(const char * name, enum kind kind) {
    for (int k = 0; k < options.n_ranks; k++) {
        const int n    = options.ranks[k];
        void *    comm = open_comm(name, n);
        if (comm == NULL) {
            continue;
        }
        static const int64_t sizes[] = { 5, 4096, 70001 };
        for (int i = 0; i < 3; i++) {
            struct set set;
            report_start("%s/n%d/%lld/as the device adds", name, n, (long long) sizes[i]);
            bool ok = set_alloc(&set, &world, n, sizes[i], BINDING_PLAIN);
            if (ok) {
                ok = like_device(&set, comm, kind);
                set_free(&set);
            }
            report_result(ok);
        }
        trio.free(comm);
    }
}

void case_denormal(void) {
    if (options.accuracy != ACCURACY_EXACT) {
        report_skip("denormal", "needs --accuracy exact");
        return;
    }
    run_like_device("denormal", KIND_DENORMAL);
}

void case_nan(void) {
    run_like_device("nan", KIND_NAN);
}
