#include "words.h"

#include <stdbool.h>
#include <stddef.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#define LINE VKCOMM_WORDS_LINE

static uint32_t pass_single(const uint64_t *slot, uint64_t *const *targets, uint32_t at, unsigned target_count, uint32_t seq,
                            uint32_t count) {
    for (uint32_t done = 0; done < count; done++) {
        uint64_t word = __atomic_load_n(&slot[done], __ATOMIC_ACQUIRE);
        if ((uint32_t) (word >> 32) != seq) {
            return done;
        }
        for (unsigned t = 0; t < target_count; t++) {
            __atomic_store_n(&targets[t][at + done], word, __ATOMIC_RELEASE);
        }
    }
    return count;
}

static bool always(void) { return true; }

/* ThreadSanitizer takes a load of several whole words for a race. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)

/* The words behind the last whole line. */
static uint32_t pass_rest(const uint64_t *slot, uint64_t *const *targets, uint32_t at, unsigned target_count, uint32_t seq,
                          uint32_t count, uint32_t done) {
    return done + pass_single(slot + done, targets, at + done, target_count, seq, count - done);
}

/* Non-temporal stores fill a write-combining buffer without reading the target,
 * which is device memory. The masks have a bit, or four, for each upper half. */

__attribute__((target("avx512f"))) static uint32_t pass_avx512(const uint64_t *slot, uint64_t *const *targets, uint32_t at,
                                                               unsigned target_count, uint32_t seq, uint32_t count) {
    const __m512i want = _mm512_set1_epi32((int) seq);
    uint32_t      done = 0;
    for (; done + LINE <= count; done += LINE) {
        __m512i line = _mm512_load_si512(slot + done);
        if ((_mm512_cmpeq_epi32_mask(line, want) & 0xaaaa) != 0xaaaa) {
            return done;
        }
        for (unsigned t = 0; t < target_count; t++) {
            _mm512_stream_si512((__m512i *) (targets[t] + at + done), line);
        }
    }
    return pass_rest(slot, targets, at, target_count, seq, count, done);
}

__attribute__((target("avx2"))) static uint32_t pass_avx2(const uint64_t *slot, uint64_t *const *targets, uint32_t at,
                                                          unsigned target_count, uint32_t seq, uint32_t count) {
    const __m256i want = _mm256_set1_epi32((int) seq);
    uint32_t      done = 0;
    for (; done + LINE <= count; done += LINE) {
        const __m256i *from = (const __m256i *) (slot + done);
        __m256i        low  = _mm256_load_si256(from), high = _mm256_load_si256(from + 1);
        __m256i        same = _mm256_and_si256(_mm256_cmpeq_epi32(low, want), _mm256_cmpeq_epi32(high, want));
        if (((uint32_t) _mm256_movemask_epi8(same) & 0xf0f0f0f0) != 0xf0f0f0f0) {
            return done;
        }
        for (unsigned t = 0; t < target_count; t++) {
            __m256i *to = (__m256i *) (targets[t] + at + done);
            _mm256_stream_si256(to, low);
            _mm256_stream_si256(to + 1, high);
        }
    }
    return pass_rest(slot, targets, at, target_count, seq, count, done);
}

static uint32_t pass_sse2(const uint64_t *slot, uint64_t *const *targets, uint32_t at, unsigned target_count, uint32_t seq,
                          uint32_t count) {
    const __m128i want = _mm_set1_epi32((int) seq);
    uint32_t      done = 0;
    for (; done + LINE <= count; done += LINE) {
        __m128i line[4], same = _mm_set1_epi32(-1);
        for (int i = 0; i < 4; i++) {
            line[i] = _mm_load_si128((const __m128i *) (slot + done) + i);
            same    = _mm_and_si128(same, _mm_cmpeq_epi32(line[i], want));
        }
        if ((_mm_movemask_epi8(same) & 0xf0f0) != 0xf0f0) {
            return done;
        }
        for (unsigned t = 0; t < target_count; t++) {
            for (int i = 0; i < 4; i++) {
                _mm_stream_si128((__m128i *) (targets[t] + at + done) + i, line[i]);
            }
        }
    }
    return pass_rest(slot, targets, at, target_count, seq, count, done);
}

static bool has_avx512(void) { return __builtin_cpu_supports("avx512f"); }
static bool has_avx2(void) { return __builtin_cpu_supports("avx2"); }

#endif

static const struct {
    struct vkcomm_words words;
    bool (*can)(void);
} known[] = {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
    { { "avx512", pass_avx512 }, has_avx512 },
    { { "avx2", pass_avx2 }, has_avx2 },
    { { "sse2", pass_sse2 }, always },
#endif
    { { "single", pass_single }, always },
};

const struct vkcomm_words *vkcomm_words(unsigned i) {
    for (size_t k = 0; k < sizeof(known) / sizeof(known[0]); k++) {
        if (known[k].can() && i-- == 0) {
            return &known[k].words;
        }
    }
    return NULL;
}
