/* What threads need that poll for a while before they sleep. */
#ifndef VKCOMM_SPIN_H
#define VKCOMM_SPIN_H

#include <stdint.h>
#include <time.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

static inline uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000000u + (uint64_t) t.tv_nsec;
}

static inline void pause_cpu(void) {
#ifdef __SSE2__
    _mm_pause();
#endif
}

#endif
