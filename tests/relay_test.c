/*
 * The host side of the relay (vkimpl/relay.c) against kernels played by threads:
 * each rank publishes, waits for its peers' words and sums, as relay_f32.comp
 * does, one reduction after the other without any other synchronisation.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../vkimpl/relay.h"
#include "held.h"

enum { MAX_RANKS = 5, MAX_REDUCTIONS = 1200 };

static uint32_t reductions = MAX_REDUCTIONS; /* of a check; the first argument */

static unsigned             world;
static uint64_t            *slots[16], *inboxes[16];
static uint32_t             sizes[MAX_REDUCTIONS + 1];
static _Atomic uint32_t     allowed; /* reductions that kernels may run: those submitted */
static atomic_int           wrong;
static struct vkcomm_relay *relay;

static uint32_t operand(unsigned rank, uint32_t seq, uint32_t i) {
    return (rank + 1) * 1000003u ^ seq * 7919u ^ i * 31u;
}

/* Words are written and read whole, and nothing orders them: so it is on a GPU. */
static void store(uint64_t *word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELAXED); }
static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }

static void publish(unsigned rank, uint32_t seq) {
    uint64_t *slot = slots[rank] + (seq & 1u) * (size_t) VKCOMM_RELAY_ELEMENTS;
    for (uint32_t i = 0; i < sizes[seq]; i++) {
        uint32_t at = seq % 3 ? i : sizes[seq] - 1 - i; /* in whatever order */
        store(&slot[at], (uint64_t) seq << 32 | operand(rank, seq, at));
    }
}

static void receive(unsigned rank, uint32_t seq) {
    for (unsigned peer = 0; peer < world; peer++) {
        const uint64_t *inbox = inboxes[rank] + (2u * (peer < rank ? peer : peer - 1) + (seq & 1u)) * (size_t) VKCOMM_RELAY_ELEMENTS;
        for (uint32_t i = 0; peer != rank && i < sizes[seq]; i++) {
            uint64_t word;
            while ((uint32_t) ((word = load(&inbox[i])) >> 32) != seq) {
                if ((uint32_t) (word >> 32) > seq) { /* overwritten before it was read */
                    atomic_fetch_add(&wrong, 1);
                    return;
                }
                sched_yield();
            }
            if ((uint32_t) word != operand(peer, seq, i)) {
                atomic_fetch_add(&wrong, 1);
            }
        }
    }
}

static void *kernel(void *argument) {
    unsigned rank = (unsigned) (uintptr_t) argument;
    for (uint32_t seq = 1; seq <= reductions; seq++) {
        while (atomic_load(&allowed) < seq) {
            sched_yield();
        }
        publish(rank, seq);
        receive(rank, seq);
    }
    return NULL;
}

static void failed(void *context) {
    (void) context;
    fprintf(stderr, "a kernel is said to have given up\n");
    abort();
}

static void late(void *context) { (void) context; }

static const struct vkcomm_relay_host host = { .failed = failed, .late = late, .linger_ns = 100000 };

static bool allocate(void) {
    for (unsigned r = 0; r < world; r++) {
        slots[r]   = aligned_alloc(4096, VKCOMM_RELAY_SLOT_BYTES);
        inboxes[r] = aligned_alloc(4096, VKCOMM_RELAY_INBOX_BYTES(world) + 4096);
        if (!slots[r] || !inboxes[r]) {
            return false;
        }
        memset(slots[r], 0, VKCOMM_RELAY_SLOT_BYTES);
        memset(inboxes[r], 0, VKCOMM_RELAY_INBOX_BYTES(world));
    }
    return true;
}

/* Half-way, disturb is called while reductions are in flight. */
static bool all_words_arrive(void (*disturb)(void)) {
    pthread_t threads[MAX_RANKS];
    atomic_store(&allowed, 0);
    for (unsigned r = 0; r < world; r++) {
        pthread_create(&threads[r], NULL, kernel, (void *) (uintptr_t) r);
    }
    for (uint32_t seq = 1; seq <= reductions; seq++) {
        sizes[seq] = seq % 500 ? (seq * 2654435761u >> 7) % 40 + 1 : 9000;
        while (!vkcomm_relay_ready(relay)) {
            sched_yield();
        }
        vkcomm_relay_expect(relay, sizes[seq]);
        atomic_store(&allowed, seq);
        if (disturb && seq == reductions / 2) {
            disturb();
        }
        if (seq % 400 == 0) {
            usleep(20000); /* the threads fall asleep and are woken again */
        }
    }
    for (unsigned r = 0; r < world; r++) {
        pthread_join(threads[r], NULL);
    }
    return atomic_load(&wrong) == 0;
}

/* Less than 10 ms of CPU time in a second without reductions. */
static bool sleeps_when_idle(void) {
    double before = vkcomm_relay_cpu_seconds(relay);
    sleep(1);
    return vkcomm_relay_cpu_seconds(relay) - before < 0.01;
}

static bool sees_a_failure(void) {
    bool before = vkcomm_relay_has_failed(relay);
    store(&slots[world - 1][2u * VKCOMM_RELAY_ELEMENTS], 1); /* FAILED in the kernel */
    bool after = vkcomm_relay_has_failed(relay);
    store(&slots[world - 1][2u * VKCOMM_RELAY_ELEMENTS], 0);
    return !before && after;
}

static int passed, failures;

static void check(const char *name, bool ok) {
    printf("%s n%u/%s\n", ok ? "ok" : "not ok", world, name);
    passed += ok;
    failures += !ok;
}

/* ---- held ----------------------------------------------------------------------- */

/* Longer than the SPIN_NS and the naps of the relay's threads by far. */
enum { HOLD_MS = 1200 };

static pid_t holder;

static void hold_process(void) { holder = held_start(0, HOLD_MS); }
static void hold_thread(void) {
    struct held_thread thread;
    holder = held_threads("vkcomm-relay", &thread, 1) == 1 ? held_start(thread.tid, HOLD_MS) : -1;
}

/* A relay counts from 1 and its inboxes hold the words of before. */
static bool start(void) {
    return allocate() && (relay = vkcomm_relay_start(world, world % 2 ? 1 : 2, slots, inboxes, &host)) != NULL;
}

static void stop(void) {
    vkcomm_relay_stop(relay);
    for (unsigned r = 0; r < world; r++) {
        free(slots[r]);
        free(inboxes[r]);
    }
}

static void check_held(const char *name, void (*hold)(void)) {
    if (!start()) {
        check(name, false);
        return;
    }
    vkcomm_relay_arm(relay);
    const uint32_t usual = reductions;
    reductions           = usual / 4 + 2; /* the others wait meanwhile */
    const bool arrived   = all_words_arrive(hold);
    reductions           = usual;
    switch (held_end(holder)) {
    case HELD: check(name, arrived); break;
    case HELD_NOT_PERMITTED: printf("SKIP n%u/%s (no ptrace or signals here)\n", world, name); break;
    default:
        printf("# it was not held\n");
        check(name, false);
    }
    stop();
}

int main(int argc, char **argv) {
    reductions = argc > 1 ? (uint32_t) atoi(argv[1]) : MAX_REDUCTIONS;
    if (reductions < 1 || reductions > MAX_REDUCTIONS) {
        fprintf(stderr, "relay-test: reductions are '%s', accepted: 1 to %d\n", argv[1], MAX_REDUCTIONS);
        return 2;
    }
    alarm(240); /* a word that never arrives */
    for (world = 2; world <= MAX_RANKS; world++) {
        if (!start()) {
            fprintf(stderr, "out of memory\n");
            return 1;
        }
        vkcomm_relay_arm(relay);
        check("all words arrive, none is overwritten unread", all_words_arrive(NULL));
        check("sleeps when idle", sleeps_when_idle());
        check("sees a failure", sees_a_failure());
        stop();
        if (world % 2) {
            check_held("all words arrive though a relay thread is held for a second", hold_thread);
            check_held("all words arrive though the process is stopped for a second", hold_process);
        }
    }
    printf("%d passed, %d failed\n", passed, failures);
    return failures != 0;
}
