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

#include "spin.h"
#include "words.h"

/* How long a thread polls without progress before it yields the CPU between
 * polls: a peer's kernel that is late by more has other work queued before it,
 * a prompt perhaps, and then 50 us more do not matter. */
#define SPIN_NS 300000
#define NAP_NS 50000

/* From so many words on a reduction is shared by two threads: 32 KiB, which take
 * 13.7 us then and 16.5 with one (two H200). Below, two threads gain 1.4 us at
 * most. Most models' tokens are smaller, and keep one thread a rank awake. */
#define SPLIT 8192u

#define FAILED_WORD (2u * VKCOMM_RELAY_ELEMENTS)

enum { MAX_WORLD = 16 };

/* A lane's part of one reduction: count words from first on. */
struct share {
    uint32_t seq, first, count;
};

/* Work of the same kind for one thread of each rank. Only lane 0 gets a share of
 * every reduction, so that the threads of lane 1 sleep while all are small. */
struct lane {
    _Atomic uint32_t expected; /* shares handed out so far */
    atomic_uint      asleep;   /* threads that wait for another */
    pthread_cond_t   wake;
    struct share     shares[VKCOMM_RELAY_PENDING];
};

struct carrier {
    struct vkcomm_relay *relay;
    unsigned             rank, lane;
    pthread_t            thread;
    _Atomic uint32_t     carried; /* shares passed on */
};

struct vkcomm_relay {
    unsigned                     world, lane_count, carrier_count;
    struct vkcomm_relay_host     host;
    const struct vkcomm_words   *words;
    uint32_t                     seq; /* of the latest reduction submitted */
    atomic_bool                  stop, armed;
    pthread_mutex_t              lock;
    uint64_t                    *slots[MAX_WORLD], *inboxes[MAX_WORLD];
    struct lane                  lanes[VKCOMM_RELAY_LANES];
    struct carrier               carriers[MAX_WORLD * VKCOMM_RELAY_LANES];
};

/* Where rank from's words go in rank to's inbox, for a half. */
static uint64_t *inbox_of(const struct vkcomm_relay *relay, unsigned to, unsigned from, uint32_t half) {
    unsigned peer = from < to ? from : from - 1;
    return relay->inboxes[to] + (2u * peer + half) * (size_t) VKCOMM_RELAY_ELEMENTS;
}

/* ---- passing on ----------------------------------------------------------------- */

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

/* What a thread does when no word is ready; false: told to stop, or of no use. */
static bool keep_waiting(struct vkcomm_relay *relay, unsigned rank, uint64_t *idle_since) {
    if (atomic_load_explicit(&relay->stop, memory_order_relaxed)) {
        return false;
    }
    if (gave_up(relay, rank)) {
        if (!atomic_load(&relay->armed)) {
            return false;
        }
        relay->host.failed(relay->host.context);
    }
    uint64_t now = now_ns();
    if (*idle_since == 0) {
        *idle_since = now;
        flush_stores(); /* what is not a whole line stays in its buffer otherwise */
    }
    if (now - *idle_since < SPIN_NS) {
        pause_cpu();
        return true;
    }
    const struct timespec nap = { 0, NAP_NS };
    relay->host.late(relay->host.context);
    nanosleep(&nap, NULL);
    return true;
}

/* Passes a share of a rank's reduction on; false: told to stop, or of no use. */
static bool carry(struct vkcomm_relay *relay, unsigned rank, const struct share *share) {
    const uint32_t  half = share->seq & 1u;
    const uint64_t *slot = relay->slots[rank] + half * (size_t) VKCOMM_RELAY_ELEMENTS + share->first;
    uint64_t       *targets[MAX_WORLD];
    unsigned        n = 0;
    uint64_t        idle_since = 0;
    for (unsigned to = 0; to < relay->world; to++) {
        if (to != rank) {
            targets[n++] = inbox_of(relay, to, rank, half) + share->first;
        }
    }
    for (uint32_t done = 0; done < share->count;) {
        uint32_t went = relay->words->pass(slot + done, targets, done, n, share->seq, share->count - done);
        done += went;
        if (went > 0) {
            idle_since = 0;
        } else if (!keep_waiting(relay, rank, &idle_since)) {
            return false;
        }
    }
    flush_stores();
    return true;
}

/* ---- the threads -------------------------------------------------------------------- */

static bool due(struct vkcomm_relay *relay, const struct lane *lane, uint32_t carried) {
    return atomic_load(&lane->expected) != carried || atomic_load(&relay->stop);
}

/* Until another share is handed out: polls for a while, then sleeps; false: stop.
 * asleep is raised before expected is read, and expected stored before asleep is
 * read. */
static bool wait_for_share(struct vkcomm_relay *relay, struct lane *lane, uint32_t carried) {
    for (uint64_t since = now_ns(); !due(relay, lane, carried) && now_ns() - since < relay->host.linger_ns;) {
        pause_cpu();
    }
    if (!due(relay, lane, carried)) {
        pthread_mutex_lock(&relay->lock);
        atomic_fetch_add(&lane->asleep, 1);
        while (!due(relay, lane, carried)) {
            pthread_cond_wait(&lane->wake, &relay->lock);
        }
        atomic_fetch_sub(&lane->asleep, 1);
        pthread_mutex_unlock(&relay->lock);
    }
    return !atomic_load(&relay->stop);
}

static void *run(void *argument) {
    struct carrier      *carrier = argument;
    struct vkcomm_relay *relay   = carrier->relay;
    struct lane         *lane    = &relay->lanes[carrier->lane];
    uint32_t             carried = 0;
    prctl(PR_SET_TIMERSLACK, 1000ul); /* ns; naps are 50 us longer by default */
    while (wait_for_share(relay, lane, carried) &&
           carry(relay, carrier->rank, &lane->shares[carried % VKCOMM_RELAY_PENDING])) {
        atomic_store_explicit(&carrier->carried, ++carried, memory_order_release);
    }
    return NULL;
}

static bool start_carrier(struct vkcomm_relay *relay, unsigned rank, unsigned lane) {
    struct carrier *carrier = &relay->carriers[relay->carrier_count];
    char            name[16]; /* the kernel's limit */
    *carrier = (struct carrier){ .relay = relay, .rank = rank, .lane = lane };
    if (pthread_create(&carrier->thread, NULL, run, carrier) != 0) {
        return false;
    }
    relay->carrier_count++;
    snprintf(name, sizeof(name), "vkcomm-relay%u%c", rank % MAX_WORLD, 'a' + lane % VKCOMM_RELAY_LANES);
    pthread_setname_np(carrier->thread, name);
    return true;
}

struct vkcomm_relay *vkcomm_relay_start(unsigned world, unsigned lanes, uint64_t *const *slots, uint64_t *const *inboxes,
                                        const struct vkcomm_relay_host *host) {
    struct vkcomm_relay *relay = calloc(1, sizeof(*relay));
    if (!relay) {
        return NULL;
    }
    relay->host       = *host;
    relay->words      = vkcomm_words(0);
    relay->world      = world;
    relay->lane_count = lanes;
    pthread_mutex_init(&relay->lock, NULL);
    for (unsigned r = 0; r < world; r++) {
        relay->slots[r]   = slots[r];
        relay->inboxes[r] = inboxes[r];
    }
    for (unsigned l = 0; l < VKCOMM_RELAY_LANES; l++) {
        pthread_cond_init(&relay->lanes[l].wake, NULL);
    }
    for (unsigned l = 0; l < lanes; l++) {
        for (unsigned r = 0; r < world; r++) {
            if (!start_carrier(relay, r, l)) {
                vkcomm_relay_stop(relay);
                return NULL;
            }
        }
    }
    return relay;
}

void vkcomm_relay_arm(struct vkcomm_relay *relay) {
    atomic_store(&relay->armed, true);
}

bool vkcomm_relay_ready(const struct vkcomm_relay *relay) {
    for (unsigned i = 0; i < relay->carrier_count; i++) {
        const struct carrier *c        = &relay->carriers[i];
        uint32_t              expected = atomic_load_explicit(&relay->lanes[c->lane].expected, memory_order_relaxed);
        if (expected - atomic_load_explicit(&c->carried, memory_order_acquire) >= VKCOMM_RELAY_PENDING - 1) {
            return false;
        }
    }
    return relay->seq < UINT32_MAX - 1; /* a number is never given twice */
}

static void hand_out(struct vkcomm_relay *relay, struct lane *lane, uint32_t first, uint32_t count) {
    uint32_t n = atomic_load_explicit(&lane->expected, memory_order_relaxed);
    lane->shares[n % VKCOMM_RELAY_PENDING] = (struct share){ .seq = relay->seq, .first = first, .count = count };
    atomic_store(&lane->expected, n + 1);
    if (atomic_load(&lane->asleep)) {
        pthread_mutex_lock(&relay->lock);
        pthread_cond_broadcast(&lane->wake);
        pthread_mutex_unlock(&relay->lock);
    }
}

void vkcomm_relay_expect(struct vkcomm_relay *relay, uint32_t elements) {
    uint32_t own = elements;
    relay->seq++;
    if (relay->lane_count > 1 && elements >= SPLIT) {
        own = elements / 2 / VKCOMM_WORDS_LINE * VKCOMM_WORDS_LINE;
        hand_out(relay, &relay->lanes[1], own, elements - own);
    }
    hand_out(relay, &relay->lanes[0], 0, own);
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
    for (unsigned i = 0; i < relay->carrier_count; i++) {
        clockid_t       clock;
        struct timespec t;
        if (pthread_getcpuclockid(relay->carriers[i].thread, &clock) == 0 && clock_gettime(clock, &t) == 0) {
            seconds += (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
        }
    }
    return seconds;
}

void vkcomm_relay_stop(struct vkcomm_relay *relay) {
    pthread_mutex_lock(&relay->lock);
    atomic_store(&relay->stop, true);
    for (unsigned l = 0; l < VKCOMM_RELAY_LANES; l++) {
        pthread_cond_broadcast(&relay->lanes[l].wake);
    }
    pthread_mutex_unlock(&relay->lock);
    for (unsigned i = 0; i < relay->carrier_count; i++) {
        pthread_join(relay->carriers[i].thread, NULL);
    }
    for (unsigned l = 0; l < VKCOMM_RELAY_LANES; l++) {
        pthread_cond_destroy(&relay->lanes[l].wake);
    }
    pthread_mutex_destroy(&relay->lock);
    free(relay);
}
