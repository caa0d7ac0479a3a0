#define _GNU_SOURCE
#include "relay.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* How long a thread polls without progress before it yields the CPU between
 * polls: a peer's kernel that is late by more has other work queued before it,
 * a prompt perhaps, and then 50 us more do not matter. */
#define SPIN_NS 300000
#define NAP_NS 50000

#define FAILED_WORD (2u * VKCOMM_RELAY_ELEMENTS)
#define LINE 8u /* words of 8 bytes in a cache line, and in a write-combining buffer */

struct rank {
    struct vkcomm_relay *relay;
    unsigned             index;
    pthread_t            thread;
    _Atomic uint32_t     carried; /* the latest reduction passed on */
};

struct vkcomm_relay {
    unsigned            world;
    vkcomm_relay_failed failed;
    void               *context;
    _Atomic uint32_t    expected; /* the latest reduction submitted */
    atomic_bool         stop, armed;
    atomic_uint         asleep;
    pthread_mutex_t     lock;
    pthread_cond_t      wake;
    uint32_t            elements[VKCOMM_RELAY_PENDING];
    uint64_t           *slots[16], *inboxes[16];
    struct rank         ranks[16];
};

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000000u + (uint64_t) t.tv_nsec;
}

static void pause_cpu(void) {
#ifdef __SSE2__
    _mm_pause();
#endif
}

/* Where rank from's words go in rank to's inbox, for a half. */
static uint64_t *inbox_of(const struct vkcomm_relay *relay, unsigned to, unsigned from, uint32_t half) {
    unsigned peer = from < to ? from : from - 1;
    return relay->inboxes[to] + (2u * peer + half) * (size_t) VKCOMM_RELAY_ELEMENTS;
}

/* ---- copying -------------------------------------------------------------------- */

/* Passes whole lines on, from the first of count words, as far as all words of
 * a line carry seq; returns how many words went. Non-temporal stores fill a
 * write-combining buffer without reading the target, which is device memory. */
static uint32_t copy_ready(const uint64_t *slot, uint64_t *const *targets, unsigned target_count, uint32_t seq,
                           uint32_t count) {
    uint32_t done = 0;
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__) /* which takes two whole words in one load for a race */
    const __m128i want = _mm_set1_epi32((int) seq);
    for (; done + LINE <= count; done += LINE) {
        __m128i line[4], same = _mm_set1_epi32(-1);
        for (int i = 0; i < 4; i++) {
            line[i] = _mm_load_si128((const __m128i *) (slot + done) + i);
            same    = _mm_and_si128(same, _mm_cmpeq_epi32(line[i], want));
        }
        if ((_mm_movemask_epi8(same) & 0xf0f0) != 0xf0f0) { /* the upper half of both words */
            return done;
        }
        for (unsigned t = 0; t < target_count; t++) {
            for (int i = 0; i < 4; i++) {
                _mm_stream_si128((__m128i *) (targets[t] + done) + i, line[i]);
            }
        }
    }
#endif
    for (; done < count; done++) {
        uint64_t word = __atomic_load_n(&slot[done], __ATOMIC_ACQUIRE);
        if ((uint32_t) (word >> 32) != seq) {
            return done;
        }
        for (unsigned t = 0; t < target_count; t++) {
            __atomic_store_n(&targets[t][done], word, __ATOMIC_RELEASE);
        }
    }
    return done;
}

/* What lies in write-combining buffers leaves for the device. Words validate
 * themselves, so that this is for their speed and not for their order. */
static void flush_stores(void) {
#ifdef __SSE2__
    _mm_sfence();
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}

static bool gave_up(const struct vkcomm_relay *relay, unsigned rank) {
    return __atomic_load_n(&relay->slots[rank][FAILED_WORD], __ATOMIC_ACQUIRE) != 0;
}

/* Passes one reduction of a rank on; false: told to stop, or of no use. */
static bool carry(struct vkcomm_relay *relay, unsigned rank, uint32_t seq) {
    const uint32_t  half  = seq & 1u, count = relay->elements[seq % VKCOMM_RELAY_PENDING];
    const uint64_t *slot  = relay->slots[rank] + half * (size_t) VKCOMM_RELAY_ELEMENTS;
    uint64_t       *targets[16];
    unsigned        n = 0;
    uint32_t        done = 0;
    uint64_t        idle_since = 0;
    for (unsigned to = 0; to < relay->world; to++) {
        if (to != rank) {
            targets[n++] = inbox_of(relay, to, rank, half);
        }
    }
    while (done < count) {
        uint64_t *rest[16];
        for (unsigned t = 0; t < n; t++) {
            rest[t] = targets[t] + done;
        }
        uint32_t went = copy_ready(slot + done, rest, n, seq, count - done);
        if (went > 0) {
            flush_stores();
            done += went;
            idle_since = 0;
            continue;
        }
        if (atomic_load_explicit(&relay->stop, memory_order_relaxed)) {
            return false;
        }
        if (gave_up(relay, rank)) {
            if (!atomic_load(&relay->armed)) {
                return false;
            }
            relay->failed(relay->context);
        }
        uint64_t now = now_ns();
        idle_since   = idle_since ? idle_since : now;
        if (now - idle_since < SPIN_NS) {
            pause_cpu();
        } else {
            const struct timespec nap = { 0, NAP_NS };
            nanosleep(&nap, NULL);
        }
    }
    return true;
}

/* ---- the thread --------------------------------------------------------------------- */

/* Sleeps until a reduction beyond carried is submitted; false: stop. asleep is
 * raised before expected is read, and expected stored before asleep is read. */
static bool sleep_until_expected(struct vkcomm_relay *relay, uint32_t carried) {
    if (atomic_load(&relay->expected) == carried && !atomic_load(&relay->stop)) {
        pthread_mutex_lock(&relay->lock);
        atomic_fetch_add(&relay->asleep, 1);
        while (atomic_load(&relay->expected) == carried && !atomic_load(&relay->stop)) {
            pthread_cond_wait(&relay->wake, &relay->lock);
        }
        atomic_fetch_sub(&relay->asleep, 1);
        pthread_mutex_unlock(&relay->lock);
    }
    return !atomic_load(&relay->stop);
}

static void *run(void *argument) {
    struct rank         *rank    = argument;
    struct vkcomm_relay *relay   = rank->relay;
    uint32_t             carried = 0;
    prctl(PR_SET_TIMERSLACK, 1000ul); /* ns; naps are 50 us longer by default */
    while (sleep_until_expected(relay, carried) && carry(relay, rank->index, carried + 1)) {
        atomic_store_explicit(&rank->carried, ++carried, memory_order_release);
    }
    return NULL;
}

struct vkcomm_relay *vkcomm_relay_start(unsigned world, uint64_t *const *slots, uint64_t *const *inboxes,
                                        vkcomm_relay_failed failed, void *context) {
    struct vkcomm_relay *relay = calloc(1, sizeof(*relay));
    if (!relay) {
        return NULL;
    }
    relay->failed  = failed;
    relay->context = context;
    pthread_mutex_init(&relay->lock, NULL);
    pthread_cond_init(&relay->wake, NULL);
    for (unsigned r = 0; r < world; r++) {
        relay->slots[r]   = slots[r];
        relay->inboxes[r] = inboxes[r];
    }
    for (unsigned r = 0; r < world; r++) {
        relay->ranks[r] = (struct rank){ .relay = relay, .index = r };
        if (pthread_create(&relay->ranks[r].thread, NULL, run, &relay->ranks[r]) != 0) {
            vkcomm_relay_stop(relay); /* those up to world, which counts the ones that run */
            return NULL;
        }
        relay->world = r + 1;
        char name[16]; /* the kernel's limit */
        snprintf(name, sizeof(name), "vkcomm-relay%u", r % 16);
        pthread_setname_np(relay->ranks[r].thread, name);
    }
    return relay;
}

void vkcomm_relay_arm(struct vkcomm_relay *relay) {
    atomic_store(&relay->armed, true);
}

bool vkcomm_relay_ready(const struct vkcomm_relay *relay) {
    uint32_t expected = atomic_load_explicit(&relay->expected, memory_order_relaxed);
    for (unsigned r = 0; r < relay->world; r++) {
        if (expected - atomic_load_explicit(&relay->ranks[r].carried, memory_order_acquire) >= VKCOMM_RELAY_PENDING - 1) {
            return false;
        }
    }
    return expected < UINT32_MAX - 1; /* a number is never given twice */
}

void vkcomm_relay_expect(struct vkcomm_relay *relay, uint32_t elements) {
    uint32_t seq = atomic_load_explicit(&relay->expected, memory_order_relaxed) + 1;
    relay->elements[seq % VKCOMM_RELAY_PENDING] = elements;
    atomic_store(&relay->expected, seq);
    if (atomic_load(&relay->asleep)) {
        pthread_mutex_lock(&relay->lock);
        pthread_cond_broadcast(&relay->wake);
        pthread_mutex_unlock(&relay->lock);
    }
}

bool vkcomm_relay_has_failed(const struct vkcomm_relay *relay) {
    bool failed = false;
    for (unsigned r = 0; r < relay->world; r++) {
        failed = failed || gave_up(relay, r);
    }
    return failed;
}

double vkcomm_relay_cpu_seconds(const struct vkcomm_relay *relay) {
    double seconds = 0;
    for (unsigned r = 0; r < relay->world; r++) {
        clockid_t       clock;
        struct timespec t;
        if (pthread_getcpuclockid(relay->ranks[r].thread, &clock) == 0 && clock_gettime(clock, &t) == 0) {
            seconds += (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
        }
    }
    return seconds;
}

void vkcomm_relay_stop(struct vkcomm_relay *relay) {
    pthread_mutex_lock(&relay->lock);
    atomic_store(&relay->stop, true);
    pthread_cond_broadcast(&relay->wake);
    pthread_mutex_unlock(&relay->lock);
    for (unsigned r = 0; r < relay->world; r++) {
        pthread_join(relay->ranks[r].thread, NULL);
    }
    pthread_mutex_destroy(&relay->lock);
    pthread_cond_destroy(&relay->wake);
    free(relay);
}
