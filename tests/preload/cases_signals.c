/*
 * Signals. A host's handler without SA_ONSTACK must never run on a goroutine's
 * stack, which is a few KiB: llama.cpp installs such handlers for SIGINT and
 * SIGTERM.
 */
#define _GNU_SOURCE
#include "probe.h"
#include "proc.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t bit(int signal_number) {
    return (uint64_t) 1 << (signal_number - 1);
}

/* ---- masks ---------------------------------------------------------------------- */

static bool all_block(const struct tasks * others, const struct tasks * after, int * ours) {
    const uint64_t wanted = bit(SIGINT) | bit(SIGTERM);
    bool           ok     = true;
    *ours                 = 0;
    for (int i = 0; i < after->n; i++) {
        const pid_t    tid     = after->tid[i];
        const uint64_t blocked = task_blocked(tid);
        if (tasks_include(others, tid)) {
            continue;
        }
        (*ours)++;
        if ((blocked & wanted) != wanted) {
            char name[32];
            task_name(tid, name);
            report_note("thread %d (%s) blocks %#llx only", (int) tid, name, (unsigned long long) blocked);
            ok = false;
        }
    }
    return ok;
}

static bool reduce_often(int times) {
    bool ok = true;
    for (int i = 0; i < times && ok; i++) {
        ok = live_reduce(ACCURACY_EXACT);
    }
    return ok;
}

/* Threads that come with the Vulkan driver, not with us; a Go object that was
 * preloaded itself has its threads already. */
static struct tasks driver_tasks(void) {
    const struct tasks first = tasks_settled();
    struct tasks       found = { .n = 0 };
    probe_load();
    if (world_open(&live.world, RANKS)) {
        const struct tasks all = tasks_settled();
        for (int i = 0; i < all.n; i++) {
            if (!tasks_include(&first, all.tid[i]) || all.tid[i] == getpid()) {
                found.tid[found.n++] = all.tid[i];
            }
        }
        world_close(&live.world); /* the driver keeps its threads */
    }
    return found;
}

int case_signals(int argc, char ** argv) {
    (void) argc, (void) argv;
    sigset_t odd; /* a mask of the host's own, to be found again */
    sigemptyset(&odd);
    sigaddset(&odd, SIGUSR2);
    sigaddset(&odd, SIGWINCH);
    pthread_sigmask(SIG_BLOCK, &odd, NULL);

    report_start("signals/open");
    const struct tasks driver = driver_tasks();
    const uint64_t     mask   = task_blocked(getpid());
    if (!live_open() || !reduce_often(20)) {
        return 1;
    }
    const struct tasks after = tasks_now();
    int                ours;
    const bool         block = all_block(&driver, &after, &ours);
    report_note("%d threads of the host and the driver, %d of ours", driver.n, ours);
    report_start("signals/there are threads of the Go runtime to look at");
    report_result(ours >= 4 && proc_maps(GO_OBJECT));
    report_start("signals/all our threads block SIGINT and SIGTERM");
    report_result(block);
    report_start("signals/the host's thread keeps its mask");
    report_result(mask == task_blocked(getpid()) && mask == (bit(SIGUSR2) | bit(SIGWINCH)));
    live_close();
    report_start("signals/and after comm_free");
    report_result(mask == task_blocked(getpid()));
    return report_finish();
}

/* ---- a storm ----------------------------------------------------------------------- */

static pthread_t    host;
static struct tasks driver; /* some of its threads take signals, with or without us */
static uintptr_t    stack_low, stack_high;
static atomic_long  handled, elsewhere, off_stack;
static atomic_int   taker; /* the last other thread that took one */
static atomic_bool  stop;

static void on_interrupt(int signal_number) {
    (void) signal_number;
    const uintptr_t here = (uintptr_t) __builtin_frame_address(0);
    atomic_fetch_add(&handled, 1);
    if (!pthread_equal(pthread_self(), host)) {
        if (!tasks_include(&driver, gettid())) {
            atomic_fetch_add(&elsewhere, 1);
            atomic_store(&taker, gettid());
        }
    } else if (here < stack_low || here >= stack_high) {
        atomic_fetch_add(&off_stack, 1);
    }
}

static void find_stack(void) {
    pthread_attr_t attributes;
    void *         low;
    size_t         size;
    host = pthread_self();
    pthread_getattr_np(host, &attributes);
    pthread_attr_getstack(&attributes, &low, &size);
    pthread_attr_destroy(&attributes);
    stack_low  = (uintptr_t) low;
    stack_high = stack_low + size;
}

/* One at a time: a pending signal would swallow the next. */
static void * interrupt(void * unused) {
    (void) unused;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    for (long sent = 1; !atomic_load(&stop); sent++) {
        if (sent % 8 == 0) {
            kill(getpid(), SIGINT); /* to whichever thread takes it */
        } else {
            pthread_kill(host, SIGINT);
        }
        while (atomic_load(&handled) < sent && !atomic_load(&stop)) {
        }
    }
    return NULL;
}

static void reduce_for(double seconds) {
    struct timespec start, now;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        for (int i = 0; i < 8; i++) {
            set_allreduce(&live.set, live.comm);
        }
        world_synchronize(&live.world, RANKS);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - start.tv_sec) + 1e-9 * (now.tv_nsec - start.tv_nsec) < seconds);
}

int case_storm(int argc, char ** argv) {
    (void) argc, (void) argv;
    report_start("storm/open");
    driver = driver_tasks();
    if (!live_open()) {
        return 1;
    }
    find_stack();
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_interrupt; /* sa_flags 0, as llama.cpp's */
    sigaction(SIGINT, &action, NULL);

    pthread_t sender;
    set_fill(&live.set, KIND_FINITE, (1u << RANKS) - 1, 1);
    pthread_create(&sender, NULL, interrupt, NULL);
    reduce_for(3);
    for (int i = 0; i < 5; i++) {
        void * second = trio.init(live.world.backend, RANKS);
        if (second != NULL) {
            trio.free(second);
        }
    }
    atomic_store(&stop, true);
    pthread_join(sender, NULL);

    report_note("%ld handled", handled);
    report_start("storm/the storm was one");
    report_result(handled > 1000);
    report_start("storm/no handler ran on a stack that is not the thread's own");
    if (off_stack > 0) {
        report_note("%ld handlers ran elsewhere", off_stack);
    }
    report_result(off_stack == 0);
    report_start("storm/no handler ran on a thread of ours");
    if (elsewhere > 0) {
        char name[32];
        task_name(taker, name);
        report_note("%ld handlers did, the last on %d (%s)", elsewhere, taker, name);
    }
    report_result(elsewhere == 0);
    report_start("storm/sums are right afterwards");
    report_result(live_reduce(ACCURACY_EXACT));
    live_close();
    return report_finish();
}
