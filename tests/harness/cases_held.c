/* SIGSTOP, a debugger, a machine that is out of cores: a proxy thread, or all of
 * the process, does not run for a second while reductions are in flight. They
 * wait, and come out right. */
#include "../held.h"
#include "harness.h"

#include <stdio.h>

enum { SETS = 24, HOLD_MS = 1200 };

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
static bool reduce_held(void * comm, int n, const char * thread, enum held * held) {
    const pid_t tid = thread != NULL ? held_find(thread) : 0;
    bool        ok  = open_sets(n);
    *held           = HELD_FAILED;
    if (thread == NULL || tid != 0) {
        const pid_t holder = held_start(tid, HOLD_MS);
        for (int i = 0; i < SETS && ok; i++) {
            ok = set_allreduce(&sets[i], comm);
        }
        world_synchronize(&world, n);
        *held = held_end(holder);
    }
    for (int i = 0; i < SETS; i++) {
        ok = ok && set_check(&sets[i], options.accuracy);
        set_free(&sets[i]);
    }
    return ok;
}

static void check_held(void * comm, int n, const char * thread) {
    char      name[96];
    enum held held;
    snprintf(name, sizeof(name), "held/n%d/%s for more than a second", n, thread != NULL ? thread : "the process");
    report_start("%s", name);
    const bool right = reduce_held(comm, n, thread, &held);
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
    for (int r = 0; r < n; r++) {
        char thread[32];
        snprintf(thread, sizeof(thread), "vkcomm-proxy%d", r);
        check_held(comm, n, thread);
    }
    check_held(comm, n, NULL);
    trio.free(comm);
}
