/* A set: one operand per rank, with the values that were written to it. */
#ifndef HARNESS_SET_H
#define HARNESS_SET_H

#include "data.h"
#include "ranks.h"

struct set {
    int            n;
    struct operand op[MAX_RANKS];
    struct values  values;
};

bool set_alloc(struct set * set, const struct world * world, int n, int64_t elements, enum binding binding);
void set_free(struct set * set);

/* Fills the ranks in mask with values of a kind, the others with NaN. */
void set_fill(struct set * set, enum kind kind, uint32_t mask, uint64_t seed);

/* Calls the plugin; does not wait. */
bool set_allreduce(struct set * set, void * comm);

/* Compares every rank's memory with the sum, with each other, and the guards.
 * The caller has synchronised. */
bool set_check(const struct set * set, enum accuracy accuracy);

/* set_fill, set_allreduce, synchronise, set_check. */
bool set_roundtrip(struct set * set, const struct world * world, void * comm, enum kind kind, uint32_t mask,
                   enum accuracy accuracy, uint64_t seed);

#endif
