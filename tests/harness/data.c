#include "data.h"

#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint32_t float_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

float float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* splitmix64 */
uint64_t random_next(uint64_t * state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void values_alloc(struct values * w, int n, int64_t elements) {
    w->n        = n;
    w->elements = elements;
    w->mask     = (1u << n) - 1;
    for (int r = 0; r < n; r++) {
        w->v[r] = malloc((elements > 0 ? elements : 1) * sizeof(float));
        if (w->v[r] == NULL) {
            report_note("out of memory");
            abort();
        }
    }
}

void values_free(struct values * w) {
    for (int r = 0; r < w->n; r++) {
        free(w->v[r]);
    }
    memset(w, 0, sizeof(*w));
}

/* ---- filling ------------------------------------------------------------- */

/* A float with random sign and fraction and an exponent in [low, high]. */
static float random_float(uint64_t bits, int low, int high) {
    const uint32_t exponent = (uint32_t) (127 + low + (int) ((bits >> 33) % (uint64_t) (high - low + 1)));
    return float_of((uint32_t) (bits & 0x80000000u) | exponent << 23 | ((uint32_t) (bits >> 8) & 0x7fffffu));
}

/* Close exponents round differently in every order; far ones absorb. */
static float random_wide(uint64_t bits) {
    return (bits >> 60) == 0 ? random_float(bits, -40, 40) : random_float(bits, -4, 4);
}

static float ordinary(enum kind kind, uint64_t bits) {
    return kind == KIND_NARROW ? random_float(bits, -6, 6) : random_wide(bits);
}

static float random_denormal(uint64_t bits) {
    return float_of((uint32_t) (bits & 0x80000000u) | ((uint32_t) bits & 0x7fffffu));
}

enum { SPECIALS = 11 };

/* Special values of one element; which says which. h is the element's hash. */
static float special(int which, enum kind kind, int r, int n, uint64_t h, uint64_t bits) {
    const int   chosen = (int) ((h >> 32) % (uint64_t) n);
    const float usual  = ordinary(kind, bits);
    /* A huge value takes the accuracy of its whole f16 block. */
    const bool rare = kind == KIND_NARROW && (h >> 40) % 64 != 0;
    switch (which) {
        case 0: return -0.0f;
        case 1: return r == chosen ? 0.0f : -0.0f;
        case 2: return rare ? usual : r % 2 ? -1e38f : 1e38f; /* every partial sum is finite */
        case 3: return r == chosen ? INFINITY : usual;
        case 4: return r == chosen ? -INFINITY : usual;
        case 5: return r == chosen ? INFINITY : r == (chosen + 1) % n ? -INFINITY : usual;
        case 6: return r == chosen ? NAN : usual;
        case 7: return r == chosen ? random_denormal(bits) : usual; /* lost beside a normal value */
        case 8: return r == 0 ? 1.5f : r == 1 ? -1.5f : 0.0f; /* cancels to +0 */
        case 9: return kind == KIND_NARROW ? usual : 3e38f; /* overflows */
        default: return r == chosen && !rare ? 1e38f : usual;
    }
}

/* Denormals alone, zeros of both signs, and normals that cancel into one. */
static float denormal(int r, uint64_t h, uint64_t bits) {
    switch (h % 4) {
        case 0: return random_denormal(bits);
        case 1: return r == 0 ? random_denormal(bits) : r % 2 ? 0.0f : -0.0f;
        case 2: return r % 2 ? -float_of(0x00800000u | (uint32_t) (h >> 40)) : float_of(0x00800000u | ((uint32_t) bits & 0x7fffffu));
        default: return r == 0 ? random_float(bits, -126, -120) : random_denormal(bits);
    }
}

static float nan_mix(int r, int n, uint64_t h, uint64_t bits) {
    const int chosen = (int) ((h >> 32) % (uint64_t) n);
    switch (h % 4) {
        case 0: return r == chosen ? float_of(0x7fc00000u | ((uint32_t) bits & 0x803fffffu)) : random_wide(bits);
        case 1: return r == chosen ? float_of(0x7f800001u | ((uint32_t) bits & 0x803ffffeu)) : random_wide(bits); /* signalling */
        case 2: return r % 2 ? -INFINITY : INFINITY;
        default: return float_of(0x7fc00000u | ((uint32_t) bits & 0x3fffffu)); /* all ranks NaN */
    }
}

static float value(enum kind kind, int r, int n, uint64_t h, uint64_t bits) {
    switch (kind) {
        case KIND_MINUS_ZERO: return -0.0f;
        case KIND_DENORMAL: return denormal(r, h, bits);
        case KIND_NAN: return nan_mix(r, n, h, bits);
        case KIND_FINITE: return random_wide(bits);
        case KIND_WHOLE: return (float) (int) (bits % 33) - 16.0f; /* 16 ranks' worth is 256, which bf16 holds */
        default: {
            const int which = (int) (h % 64);
            return which < SPECIALS ? special(which, kind, r, n, h, bits) : ordinary(kind, bits);
        }
    }
}

void values_fill(struct values * w, enum kind kind, uint64_t seed) {
    uint64_t state = seed;
    for (int64_t i = 0; i < w->elements; i++) {
        const uint64_t h = random_next(&state);
        uint64_t       s = h;
        for (int r = 0; r < w->n; r++) {
            w->v[r][i] = value(kind, r, w->n, h, random_next(&s));
        }
    }
}

/* ---- references ---------------------------------------------------------- */

static float operand_of(const struct values * w, int r, int64_t i) {
    return w->mask >> r & 1 ? w->v[r][i] : 0.0f;
}

/* allreduce_fallback of ggml-backend-meta.cpp: ranks beyond the largest power
 * of two are folded in, then pairs at halving distance. */
float values_sum(const struct values * w, int64_t i) {
    float s[MAX_RANKS];
    int   p = 1;
    while (2 * p <= w->n) {
        p *= 2;
    }
    for (int r = 0; r < w->n; r++) {
        s[r] = operand_of(w, r, i);
    }
    for (int r = p; r < w->n; r++) {
        s[r - p] += s[r];
    }
    for (int d = p / 2; d >= 1; d /= 2) {
        for (int r = 0; r < d; r++) {
            s[r] += s[r + d];
        }
    }
    return s[0];
}

void values_reduce(struct values * w) {
    for (int64_t i = 0; i < w->elements; i++) {
        const float sum = values_sum(w, i);
        for (int r = 0; r < w->n; r++) {
            w->v[r][i] = sum;
        }
    }
    w->mask = (1u << w->n) - 1;
}

int64_t values_sensitive(const struct values * w) {
    int64_t count = 0;
    for (int64_t i = 0; i < w->elements; i++) {
        float chain = operand_of(w, 0, i);
        for (int r = 1; r < w->n; r++) {
            chain += operand_of(w, r, i);
        }
        const float sum = values_sum(w, i);
        count += !isnan(sum) && float_bits(chain) != float_bits(sum);
    }
    return count;
}

/* ---- comparing ----------------------------------------------------------- */

/*
 * A sum that is denormal may come out as a zero: the device decides, and
 * the case "denormal" compares with the device itself. NaN payloads likewise.
 */
static bool same_f32(float wanted, float found) {
    if (isnan(wanted)) {
        return isnan(found);
    }
    return float_bits(wanted) == float_bits(found) || (fpclassify(wanted) == FP_SUBNORMAL && found == 0.0f);
}

/* Error bound against the exact sum. 16-bit wires: half an ulp of every value
 * on its way, which a ring rounds again at every hop; for f16 also the smallest
 * step of its block, whose scale follows the largest of 256 neighbours. */
static double error_bound(const struct values * w, enum accuracy accuracy, double magnitude, double block_max) {
    const double f32 = ldexp(magnitude, -24) * w->n;
    switch (accuracy) {
        case ACCURACY_F16: return f32 + ldexp(magnitude, -11) * (w->n + 0.25) + ldexp(fmax(1.0, block_max / 16384), -24) * (w->n + 1);
        case ACCURACY_BF16: return f32 + ldexp(magnitude, -8) * (w->n + 0.25);
        default: return f32;
    }
}

static double magnitude_of(const struct values * w, int64_t i) {
    double m = 0;
    for (int r = 0; r < w->n; r++) {
        m += fabs((double) operand_of(w, r, i));
    }
    return m;
}

/* The largest finite magnitude within 256 elements of i, either side. */
static double block_max_of(const struct values * w, int64_t i) {
    const int64_t from = i > 256 ? i - 256 : 0;
    const int64_t to   = i + 256 < w->elements ? i + 256 : w->elements - 1;
    double        max  = 0;
    for (int64_t k = from; k <= to; k++) {
        const double m = magnitude_of(w, k);
        max = isfinite(m) && m > max ? m : max;
    }
    return max;
}

static double exact_sum(const struct values * w, int64_t i) {
    double sum = 0;
    for (int r = 0; r < w->n; r++) {
        sum += (double) operand_of(w, r, i);
    }
    return sum;
}

static bool within_bound(const struct values * w, float found, enum accuracy accuracy, int64_t i) {
    const double exact = exact_sum(w, i);
    if (!isfinite(exact) || fabs(exact) > 3.4e38) {
        return true; /* settled by the comparison with float32 */
    }
    const double magnitude = magnitude_of(w, i);
    const double error     = fabs((double) found - exact);
    const double tiny      = 1.2e-38; /* a flushed denormal is no error */
    if (error <= error_bound(w, accuracy, magnitude, 0) + tiny) {
        return true;
    }
    return accuracy == ACCURACY_F16 && error <= error_bound(w, accuracy, magnitude, block_max_of(w, i)) + tiny;
}

static bool element_ok(const struct values * w, float found, enum accuracy accuracy, int64_t i) {
    const float wanted = values_sum(w, i);
    if (accuracy == ACCURACY_EXACT || !isfinite(wanted)) {
        return same_f32(wanted, found) && within_bound(w, found, accuracy, i);
    }
    return isfinite(found) && within_bound(w, found, accuracy, i);
}

bool values_check(const struct values * w, const float * result, enum accuracy accuracy, int rank) {
    int64_t wrong = 0, first = 0;
    for (int64_t i = 0; i < w->elements; i++) {
        if (!element_ok(w, result[i], accuracy, i)) {
            first = wrong == 0 ? i : first;
            wrong++;
        }
    }
    if (wrong == 0) {
        return true;
    }
    const float wanted = values_sum(w, first);
    report_note("rank %d: %lld of %lld elements wrong; first [%lld]: wanted %08x (%.9g), found %08x (%.9g)", rank,
                (long long) wrong, (long long) w->elements, (long long) first, float_bits(wanted), wanted,
                float_bits(result[first]), result[first]);
    for (int r = 0; r < w->n; r++) {
        report_note("  operand %d%s: %08x (%.9g)", r, w->mask >> r & 1 ? "" : " (off)", float_bits(w->v[r][first]), w->v[r][first]);
    }
    return false;
}
