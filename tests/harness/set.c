#include "set.h"

#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool set_alloc(struct set * set, const struct world * world, int n, int64_t elements, enum binding binding) {
    memset(set, 0, sizeof(*set));
    values_alloc(&set->values, n, elements);
    for (int r = 0; r < n; r++) {
        set->n = r + 1;
        if (!operand_alloc(&set->op[r], world->backend[r], elements, binding, r)) {
            set_free(set);
            return false;
        }
    }
    return true;
}

void set_free(struct set * set) {
    for (int r = 0; r < set->n; r++) {
        operand_free(&set->op[r]);
    }
    values_free(&set->values);
    memset(set, 0, sizeof(*set));
}

/* What a rank that computed nothing may hold: anything, at worst NaN. */
static void write_stale(struct operand * op) {
    float * stale = malloc((op->elements + 1) * sizeof(float));
    for (int64_t i = 0; i < op->elements; i++) {
        stale[i] = i % 3 == 2 ? 1234.5f : NAN;
    }
    operand_write(op, stale);
    free(stale);
}

void set_fill(struct set * set, enum kind kind, uint32_t mask, uint64_t seed) {
    values_fill(&set->values, kind, seed);
    set->values.mask = mask;
    for (int r = 0; r < set->n; r++) {
        const bool compute = mask >> r & 1;
        operand_set_compute(&set->op[r], compute);
        if (compute) {
            operand_write(&set->op[r], set->values.v[r]);
        } else {
            write_stale(&set->op[r]);
        }
    }
}

bool set_allreduce(struct set * set, void * comm) {
    struct ggml_tensor * tensors[MAX_RANKS];
    for (int r = 0; r < set->n; r++) {
        tensors[r] = set->op[r].tensor;
    }
    return trio.allreduce(comm, tensors);
}

/* Bit for bit, except that NaN payloads are each device's own affair. */
static bool same_bits(const float * a, const float * b, int64_t n) {
    if (memcmp(a, b, n * sizeof(float)) == 0) {
        return true;
    }
    for (int64_t i = 0; i < n; i++) {
        if (float_bits(a[i]) != float_bits(b[i]) && !(isnan(a[i]) && isnan(b[i]))) {
            return false;
        }
    }
    return true;
}

static bool check_rank(const struct set * set, int r, const float * first, float * result, enum accuracy accuracy) {
    operand_read(&set->op[r], result);
    bool ok = true;
    if (r == 0 || !same_bits(first, result, set->values.elements)) {
        ok = values_check(&set->values, result, accuracy, r);
        if (ok && r > 0) {
            report_note("rank %d: its bits differ from rank 0's", r);
            ok = false;
        }
    }
    if (!operand_guards_intact(&set->op[r])) {
        report_note("rank %d: memory beside the tensor was written", r);
        ok = false;
    }
    return ok;
}

bool set_check(const struct set * set, enum accuracy accuracy) {
    const size_t bytes  = (set->values.elements + 1) * sizeof(float);
    float *      first  = malloc(bytes);
    float *      result = malloc(bytes);
    bool         ok     = check_rank(set, 0, NULL, first, accuracy);
    for (int r = 1; r < set->n; r++) {
        ok = check_rank(set, r, first, result, accuracy) && ok;
    }
    free(first);
    free(result);
    return ok;
}

bool set_roundtrip(struct set * set, const struct world * world, void * comm, enum kind kind, uint32_t mask,
                   enum accuracy accuracy, uint64_t seed) {
    set_fill(set, kind, mask, seed);
    if (!set_allreduce(set, comm)) {
        report_note("refused: allreduce returned false");
        return false;
    }
    world_synchronize(world, set->n);
    return set_check(set, accuracy);
}
