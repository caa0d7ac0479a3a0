/* Very many reductions: communicators of all algorithms and wires take turns,
 * each over tensors that come and go. Every sum is right, and what the process
 * holds of memory and descriptors stays as it was after the first round of turns. */
#define _POSIX_C_SOURCE 200809L
#include "../preload/lines.h"
#include "footprint.h"
#include "harness.h"
#include "pool.h"

#include <stdlib.h>
#include <string.h>

static const char * const algorithms[] = {
    "singleshot:0-max", "pipeline:0-max", "twoshot:0-max", "ring:0-max",
    "singleshot:0-8K,pipeline:8K-64K,twoshot:64K-256K,ring:256K-max",
};
static const char * const wires[] = { "f32", "f16", "bf16" };
enum { ALGORITHMS = 5, WIRES = 3 };

/* What a descriptor or a page more is worth: a driver or runtime may open a file
 * of its own at any time, once, and allocators and the Go heap breathe. A leak of
 * 64 bytes a reduction, or of one descriptor a communicator, is far beyond. */
#ifdef __SANITIZE_THREAD__
enum { RSS_ONCE_KIB = 192 * 1024 }; /* ThreadSanitizer keeps 1 MiB of every thread that has ended: 4 a communicator */
#else
enum { RSS_ONCE_KIB = 48 * 1024 };
#endif
enum { FDS_ONCE = 4, THREADS_ONCE = 4 };

struct turn {
    int          n;
    const char * algorithm;
    const char * wire;
    const char * p2p;
};

static int turns_a_round(void) {
    return ALGORITHMS * WIRES * options.n_ranks;
}

static struct turn turn_of(int index) {
    const int i = index % turns_a_round();
    return (struct turn) {
        .n         = options.ranks[i / (ALGORITHMS * WIRES)],
        .algorithm = algorithms[i % ALGORITHMS],
        .wire      = wires[i / ALGORITHMS % WIRES],
        .p2p       = i % 2 ? "1" : "0",
    };
}

/* Communicators read the environment when they are made; other cases have their
 * own idea of it. */
static const char * const names[] = { "GGML_VK_COMM_ALGO", "GGML_VK_COMM_WIRE", "GGML_VK_COMM_P2P", "GGML_VK_COMM_STAGING_MB" };
enum { NAMES = 4 };

static void save(char * values[NAMES]) {
    for (int i = 0; i < NAMES; i++) {
        const char * value = getenv(names[i]);
        values[i]          = value != NULL ? strdup(value) : NULL;
    }
}

static void restore(char * values[NAMES]) {
    for (int i = 0; i < NAMES; i++) {
        if (values[i] != NULL) {
            setenv(names[i], values[i], 1);
        } else {
            unsetenv(names[i]);
        }
        free(values[i]);
    }
}

static int peers; /* communicators whose ranks read each other's memory */

/* A communicator as the turn asks, and proof of it from its log line. */
static void * turn_open(const struct turn * turn, struct world * w) {
    const char * const values[NAMES] = { turn->algorithm, turn->wire, turn->p2p, "1" };
    for (int i = 0; i < NAMES; i++) {
        setenv(names[i], values[i], 1);
    }
    lines_forget();
    void *       comm = trio.init(w->backend, turn->n);
    const char * line = lines_find(GGML_LOG_LEVEL_INFO, "AllReduce active");
    const char * wire = strcmp(turn->wire, "f32") == 0 ? "wire f32" : turn->wire;
    if (comm == NULL || line == NULL) {
        report_note("no communicator of %d ranks with %s, wire %s, P2P %s", turn->n, turn->algorithm, turn->wire, turn->p2p);
    } else if (strstr(line, turn->algorithm) == NULL || strstr(line, wire) == NULL) {
        report_note("asked for %s and wire %s, got: %s", turn->algorithm, turn->wire, line);
        trio.free(comm);
        comm = NULL;
    } else {
        peers += strstr(line, "(p2p ") != NULL;
    }
    return comm;
}

static bool take_turn(int index, struct world * w, int wanted, int * done) {
    enum { LARGEST = 600000 }; /* elements; beyond 1 MiB it is that 16-bit wires begin */
    const struct turn turn = turn_of(index);
    struct pool       pool = { .world = w, .n = turn.n, .kind = KIND_WHOLE, .accuracy = ACCURACY_EXACT,
                               .largest = LARGEST, .one_in = 100 };
    void *            comm = turn_open(&turn, w);
    bool              ok   = comm != NULL && pool_open(&pool, next_seed());
    for (const int end = *done + wanted; ok && *done < end;) {
        report_start("turns/%s, wire %s, P2P %s, after %d reductions", turn.algorithm, turn.wire, turn.p2p, *done);
        ok = pool_step(&pool, comm, done);
    }
    if (comm != NULL) {
        trio.free(comm);
        pool_close(&pool);
    }
    return ok;
}

/* One communicator of each kind, on backends of its own. */
static bool take_round(int round, int wanted, int * done) {
    struct world own;
    const int    most = options.ranks[options.n_ranks - 1];
    bool         ok   = world_open(&own, most);
    for (int i = 0; i < turns_a_round() && ok; i++) {
        ok = take_turn(round * turns_a_round() + i, &own, wanted, done);
    }
    world_close(&own);
    return ok;
}

static void judge(const struct footprint * before, const struct footprint * after) {
    report_start("turns/no file descriptors pile up");
    report_result(after->fds <= before->fds + FDS_ONCE);
    report_start("turns/no threads pile up");
    report_result(after->threads <= before->threads + THREADS_ONCE);
    report_start("turns/no memory piles up");
    report_result(after->rss_kib <= before->rss_kib + RSS_ONCE_KIB);
}

void case_turns(void) {
    enum { FEW = 100000 }; /* below, two rounds are enough */
    const int        rounds = options.turns < FEW ? 2 : 7;
    const int        each   = (options.turns + rounds * turns_a_round() - 1) / (rounds * turns_a_round());
    struct footprint first = { 0, 0, 0 }, now = { 0, 0, 0 };
    int              done = 0;
    bool             ok   = true;
    char *           environment[NAMES];
    save(environment);
    lines_start();
    for (int round = 0; round < rounds && ok; round++) {
        ok    = take_round(round, each, &done);
        now   = round == 0 ? footprint_now() : footprint_settled(&first);
        first = round == 0 ? now : first;
        report_note("%d reductions by %d communicators, %d of them with P2P: fds %ld, threads %ld, resident %ld KiB", done,
                    (round + 1) * turns_a_round(), peers, now.fds, now.threads, now.rss_kib);
    }
    report_start("turns/all %d sums are right", options.turns);
    if (report_result(ok && done >= options.turns)) {
        judge(&first, &now);
    }
    ggml_log_set(NULL, NULL);
    restore(environment);
}
