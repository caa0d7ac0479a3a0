/* SIGSTOP, a debugger, a machine that is out of cores: a thread of the plugin's
 * (proxy, relay), or all of the process, does not run for a second while
 * reductions are in flight. They wait, and come out right. */
#include "../held.h"
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SETS = 24, HOLD_MS = 1200, MAX_THREADS = 32 };

static struct set sets[SETS];

static bool open_sets(int n) {
    static const int64_t sizes[] = { 4096, 1, 5000, 70001 };
    bool                 ok      = true;
    for (int i = 0; i < SETS && ok; i++) {
        ok = set_alloc(&sets[i], &world, n, sizes[i % 4], i % 2 ? BINDING_VIEW : BINDING_PLAIN);
        set_fill(&sets[i], usual_kind(), (1u << n) - 1, next_seed());
    }
    return ok;
}

/* All sets are submitted without a wait; the hold begins before the first, or for
 * the process somewhere between the first and the end of the last. */
static bool reduce_held(void * comm, int n, pid_t tid, enum held * held) {
    bool        ok     = open_sets(n);
    const pid_t holder = held_start(tid, HOLD_MS);
    for (int i = 0; i < SETS && ok; i++) {
        ok = set_allreduce(&sets[i], comm);
    }
    world_synchronize(&world, n);
    *held = held_end(holder);
    for (int i = 0; i < SETS; i++) {
        ok = ok && set_check(&sets[i], options.accuracy);
        set_free(&sets[i]);
    }
    return ok;
}

static void check_held(void * comm, int n, pid_t tid, const char * what) {
    char      name[96];
    enum held held;
    snprintf(name, sizeof(name), "held/n%d/%s for more than a second", n, what);
    report_start("%s", name);
    const bool right = reduce_held(comm, n, tid, &held);
    if (held == HELD_NOT_PERMITTED) {
        report_skip(name, "no ptrace or signals here");
        return;
    }
    if (held == HELD_FAILED) {
        report_note("it was not held");
    }
    report_result(right && held == HELD);
}

void case_held(void) {
    const int n    = options.ranks[options.n_ranks - 1];
    void *    comm = open_comm("held", n);
    if (comm == NULL) {
        return;
    }
    struct held_thread threads[MAX_THREADS];
    const int          found = held_threads("vkcomm-", threads, MAX_THREADS);
    int                proxies = 0;
    for (int i = 0; i < found; i++) {
        proxies += strncmp(threads[i].name, "vkcomm-proxy", strlen("vkcomm-proxy")) == 0;
        check_held(comm, n, threads[i].tid, threads[i].name);
    }
    check_held(comm, n, 0, "the process");
    const char * proxy = getenv("GGML_VK_COMM_PROXY");
    if (proxy != NULL && strcmp(proxy, "1") == 0) {
        report_start("held/n%d/a proxy of every rank was", n);
        report_result(proxies >= n);
    }
    trio.free(comm);
}
