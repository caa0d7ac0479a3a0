/* Test values, and what their sum must be. */
#ifndef HARNESS_DATA_H
#define HARNESS_DATA_H

#include "ranks.h"

#include <stdbool.h>
#include <stdint.h>

enum kind {
    KIND_WIDE,      /* exponents spread so that association shows, plus special values */
    KIND_NARROW,    /* ordinary magnitudes, for 16-bit wires, plus special values */
    KIND_FINITE,    /* KIND_WIDE without special values and zeros */
    KIND_MINUS_ZERO,
    KIND_DENORMAL,  /* denormal operands, results, and cancellations into denormals */
    KIND_WHOLE,     /* whole numbers so small that 4 ranks sum them twice exactly, in any order, on any wire */
    KIND_NAN,       /* NaNs with payloads, signalling ones, and inf - inf */
};

/* What the sum is held to. */
enum accuracy {
    ACCURACY_EXACT, /* the bits of the host's own butterfly */
    ACCURACY_F32,   /* any order of float32 additions, as a ring's */
    ACCURACY_F16,   /* operands rounded to 16 bits on their way */
    ACCURACY_BF16,
};

/* All ranks' values for one reduction. */
struct values {
    int      n;
    int64_t  elements;
    uint32_t mask; /* bit r: rank r has COMPUTE; else its values count as +0.0 */
    float *  v[MAX_RANKS];
};

void values_alloc(struct values * w, int n, int64_t elements);
void values_free(struct values * w);
void values_fill(struct values * w, enum kind kind, uint64_t seed);

/* Makes every rank's value the sum, and every rank computed: the state after
 * a reduction, from which a second one starts. */
void values_reduce(struct values * w);

/* Sum of element i in float32, in the host's butterfly order. */
float values_sum(const struct values * w, int64_t i);

/* Elements whose sum differs in bits when added rank by rank: a reduction
 * with another association cannot pass where this is not zero. */
int64_t values_sensitive(const struct values * w);

/* Compares a rank's result; prints the first difference under the given rank. */
bool values_check(const struct values * w, const float * result, enum accuracy accuracy, int rank);

uint64_t random_next(uint64_t * state);
uint32_t float_bits(float f);
float    float_of(uint32_t bits);

#endif
