/*
 * team-test - plugin/team.c by itself: which thread computes a rank's part of the
 * graph, and what is known when the call for the last rank returns. Graphs are
 * numbers here; "computing" notes them.
 */
#define _GNU_SOURCE
#include "../../plugin/team.h"
#include "../harness/report.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { WORLD = 4 };

static struct ggml_backend * backend_of(unsigned rank) { return (struct ggml_backend *) (uintptr_t) (0x100 + rank); }
static struct ggml_cgraph *  graph_of(unsigned rank) { return (struct ggml_cgraph *) (uintptr_t) (0x200 + rank); }
static struct ggml_backend * const backends[WORLD] = { (struct ggml_backend *) 0x100, (struct ggml_backend *) 0x101,
                                                       (struct ggml_backend *) 0x102, (struct ggml_backend *) 0x103 };
static const int comm = 0; /* its address is the handle */

static void check(const char * name, bool ok) {
    report_start("team/%s", name);
    report_result(ok);
}

/* ---- what computes ---------------------------------------------------------------------- */

static pthread_t     caller;
static atomic_int    computed[WORLD], elsewhere[WORLD]; /* parts; of these on another thread */
static int           statuses[WORLD];
static unsigned      slow;     /* microseconds that a part takes */
static bool          together; /* a part ends when all ranks have begun theirs */
static atomic_int    begun;
static struct vkcomm_team * team;

static int compute(struct ggml_backend * backend, struct ggml_cgraph * graph) {
    const unsigned rank = (unsigned) ((uintptr_t) backend - 0x100);
    if (graph != graph_of(rank)) {
        return VKCOMM_GGML_STATUS_ABORTED;
    }
    if (together) {
        for (atomic_fetch_add(&begun, 1); atomic_load(&begun) % WORLD != 0;) {
            usleep(10);
        }
    }
    usleep(slow);
    atomic_fetch_add(&elsewhere[rank], !pthread_equal(pthread_self(), caller));
    atomic_fetch_add(&computed[rank], 1);
    return statuses[rank];
}

static int call(unsigned rank) { return vkcomm_team_compute(backend_of(rank), graph_of(rank), compute); }

static int call_all(void) {
    int status = VKCOMM_GGML_STATUS_SUCCESS;
    for (unsigned r = 0; r < WORLD && status == VKCOMM_GGML_STATUS_SUCCESS; r++) {
        status = call(r);
    }
    return status;
}

/* Parts computed since the last call of this, on every rank, and how many of them
 * on other threads, in all. */
static bool since(int parts, int others) {
    bool same = true;
    int  sum  = 0;
    for (unsigned r = 0; r < WORLD; r++) {
        same = atomic_exchange(&computed[r], 0) == parts && same;
        sum += atomic_exchange(&elsewhere[r], 0);
    }
    return same && sum == others;
}

/* ---- cases ---------------------------------------------------------------------------------- */

static void alone(void) {
    check("a backend of no team", call_all() == VKCOMM_GGML_STATUS_SUCCESS && since(1, 0));
    struct vkcomm_team_stats stats;
    team = vkcomm_team_start(&comm, backends, WORLD, false);
    vkcomm_team_reduced(&comm, true);
    check("without threads", call_all() == VKCOMM_GGML_STATUS_SUCCESS && since(1, 0));
    vkcomm_team_stop(team, &stats);
    check("which takes the time all the same", stats.parts == 1 && stats.ns > 0);
}

static void in_turn(void) {
    team = vkcomm_team_start(&comm, backends, WORLD, true);
    check("before a reduction is ours, on the caller's thread", call_all() == VKCOMM_GGML_STATUS_SUCCESS && since(1, 0));
    vkcomm_team_reduced(&comm, true);
    together = true; /* hangs when they take turns */
    check("side by side", call_all() == VKCOMM_GGML_STATUS_SUCCESS && since(1, WORLD - 1));
    together = false;
    slow     = 2000;
    check("all are done with the last call", call_all() == VKCOMM_GGML_STATUS_SUCCESS && since(1, WORLD - 1));
    slow = 0;
    usleep(20000); /* they sleep by now */
    check("after a while", call_all() == VKCOMM_GGML_STATUS_SUCCESS && since(1, WORLD - 1));
    for (int i = 0; i < 3000; i++) {
        call_all();
    }
    check("3000 parts", since(3000, 3000 * (WORLD - 1)));
}

static void in_trouble(void) {
    vkcomm_team_reduced(&comm, false);
    check("after a reduction of the host's, on the caller's thread", call_all() == VKCOMM_GGML_STATUS_SUCCESS && since(1, 0));
    vkcomm_team_reduced(&slow, true);
    check("another communicator's reduction changes nothing", call_all() == VKCOMM_GGML_STATUS_SUCCESS && since(1, 0));
    vkcomm_team_reduced(&comm, true);
    for (unsigned r = 0; r < WORLD; r++) {
        statuses[r] = VKCOMM_GGML_STATUS_FAILED;
        check("a rank's failure is told, on whichever thread", call_all() == VKCOMM_GGML_STATUS_FAILED && since(1, WORLD - 1));
        statuses[r] = VKCOMM_GGML_STATUS_SUCCESS;
    }
}

/* After a round that was interrupted, and is completed from a rank on, one whole
 * round is done without threads. */
static void check_recovery(unsigned from) {
    slow = 0;
    for (unsigned r = from; r < WORLD; r++) {
        call(r);
    }
    since(0, 0);
    check("then a round on the caller's thread", call_all() == VKCOMM_GGML_STATUS_SUCCESS && since(1, 0));
    check("and a whole round is one again", call_all() == VKCOMM_GGML_STATUS_SUCCESS && since(1, WORLD - 1));
    slow = 2000;
}

static void interrupted(void) {
    slow = 2000;
    call(0);
    call(1);
    check("a call out of turn waits for those before", call(0) == VKCOMM_GGML_STATUS_SUCCESS &&
              atomic_load(&computed[0]) == 2 && atomic_load(&computed[1]) == 1);
    since(0, 0);
    check("and begins a round without threads", call(1) == VKCOMM_GGML_STATUS_SUCCESS && call(2) == VKCOMM_GGML_STATUS_SUCCESS &&
              call(3) == VKCOMM_GGML_STATUS_SUCCESS && atomic_load(&elsewhere[1]) == 0);
    since(0, 0);
    call(0);
    vkcomm_team_synchronizes(backend_of(0));
    check("a synchronisation waits for those before", atomic_load(&computed[0]) == 1);
    check_recovery(1);
    call(0);
    call(1);
    vkcomm_team_reduces(&comm);
    check("a reduction waits for those before", atomic_load(&computed[0]) == 1 && atomic_load(&computed[1]) == 1);
    check_recovery(WORLD); /* it is not completed */
    call_all();
    since(0, 0);
    slow = 0;
    vkcomm_team_synchronizes(backend_of(1));
    vkcomm_team_reduces(&comm);
    check("between rounds either changes nothing", call_all() == VKCOMM_GGML_STATUS_SUCCESS && since(1, WORLD - 1));
    statuses[0] = VKCOMM_GGML_STATUS_FAILED;
    call(0);
    vkcomm_team_synchronizes(backend_of(0));
    statuses[0] = VKCOMM_GGML_STATUS_SUCCESS;
    check("a failure of an interrupted round is told by the next call", call(0) == VKCOMM_GGML_STATUS_FAILED);
    check("once", call_all() == VKCOMM_GGML_STATUS_SUCCESS);
    call_all();
    since(0, 0);
}

static void at_the_end(void) {
    struct vkcomm_team_stats stats;
    slow = 2000;
    call(0);
    vkcomm_team_stop(team, &stats);
    check("stopping waits for what is under way", atomic_load(&computed[0]) == 1 && stats.parts > 3000);
    since(0, 0);
    slow = 0;
    check("and leaves the backends to the caller", call_all() == VKCOMM_GGML_STATUS_SUCCESS && since(1, 0));
}

int main(void) {
    report_watchdog(60);
    caller = pthread_self();
    alone();
    in_turn();
    in_trouble();
    interrupted();
    at_the_end();
    return report_finish();
}
