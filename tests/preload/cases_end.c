/* How a process may end that has a communicator. Without a plugin each case does
 * the same with ggml alone, so that a script can compare: tests/preload/ends. */
#define _GNU_SOURCE
#include "probe.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STATUS = 7, IN_FLIGHT = 8 };

static bool stock; /* no trio */

/* The communicator, if there is a plugin, and tensors either way. */
static void open_all(void) {
    enum { ELEMENTS = 50000 };
    probe_load();
    probe_ask();
    stock = trio_absent();
    if (!world_open(&live.world, RANKS)) {
        exit(1);
    }
    live.comm = stock ? NULL : trio.init(live.world.backend, RANKS);
    if ((!stock && live.comm == NULL) || !set_alloc(&live.set, &live.world, RANKS, ELEMENTS, BINDING_PLAIN)) {
        fprintf(stderr, "preload-probe: end: no communicator\n");
        exit(1);
    }
    set_fill(&live.set, KIND_FINITE, (1u << RANKS) - 1, 1);
}

/* What the host does all the time: reductions, or writes where it has none. */
static bool work(void) {
    if (!stock) {
        return set_allreduce(&live.set, live.comm);
    }
    set_fill(&live.set, KIND_FINITE, (1u << RANKS) - 1, 1);
    return true;
}

static void work_in_flight(void) {
    for (int i = 0; i < IN_FLIGHT; i++) {
        if (!work()) {
            fprintf(stderr, "preload-probe: end: a reduction was refused\n");
            exit(1);
        }
    }
}

static void free_comm(void) {
    if (!stock) {
        trio.free(live.comm);
    }
}

/* ---- the ends --------------------------------------------------------------------- */

static int end_return(void) { return STATUS; }

static int end_exit(void) { exit(STATUS); }

static int end_quick(void) { _exit(STATUS); }

static int end_abort(void) { abort(); }

static int end_after_free(void) {
    free_comm(); /* waits for what is in flight */
    set_free(&live.set);
    world_close(&live.world);
    return STATUS;
}

static int end_backends_kept(void) {
    free_comm();
    return STATUS;
}

static int end_backends_freed_first(void) {
    world_synchronize(&live.world, RANKS);
    world_close(&live.world);
    free_comm();
    return STATUS;
}

static int end_backends_freed_alone(void) {
    world_synchronize(&live.world, RANKS);
    set_free(&live.set);
    world_close(&live.world);
    return STATUS;
}

/* Another thread ends the process while this one is in a reduction. */
static void * exit_soon(void * how) {
    const struct timespec pause = { 0, 30 * 1000 * 1000 };
    nanosleep(&pause, NULL);
    ((void (*)(int)) how)(STATUS);
    return NULL;
}

static _Noreturn void work_until_ended(void (*how)(int)) {
    pthread_t thread;
    pthread_create(&thread, NULL, exit_soon, (void *) how);
    for (;;) {
        work();
    }
}

static int end_exit_elsewhere(void) { work_until_ended(exit); }

static int end_quick_elsewhere(void) { work_until_ended(_exit); }

/* The other way round: a worker reduces while main returns. */
static void * work_on(void * unused) {
    (void) unused;
    for (;;) {
        work();
    }
    return NULL;
}

static int end_return_under_work(void) {
    const struct timespec pause = { 0, 30 * 1000 * 1000 };
    pthread_t             thread;
    pthread_create(&thread, NULL, work_on, NULL);
    nanosleep(&pause, NULL);
    return STATUS;
}

static int end_signal(void) {
    raise(SIGTERM);
    return 1;
}

/* ---- children without exec --------------------------------------------------------- */

/* The status of a child that does this and then ends so. */
static int child(void (*act)(void), void (*how)(int)) {
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        act();
        how(STATUS);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status)) {
        fprintf(stderr, "preload-probe: end: the child was ended by signal %d\n", WTERMSIG(status));
        return 100 + WTERMSIG(status);
    }
    return WEXITSTATUS(status);
}

static void nothing(void) {}

static void touch_trio(void) {
    const struct trio inherited = trio;
    probe_ask();
    const bool answered = !trio_absent();
    trio                = inherited;
    if (answered || (!stock && set_allreduce(&live.set, live.comm))) {
        _exit(1);
    }
    free_comm();
}

static int end_child_quick(void) { return child(touch_trio, _exit); }

static int end_child_exit(void) { return child(nothing, exit); }

static int end_child_touches_and_exits(void) { return child(touch_trio, exit); }

static const struct {
    const char * name;
    int (*run)(void);
} ends[] = {
    { "return", end_return },
    { "exit", end_exit },
    { "_exit", end_quick },
    { "abort", end_abort },
    { "signal", end_signal },
    { "comm-freed-in-flight", end_after_free },
    { "backends-kept", end_backends_kept },
    { "backends-freed-first", end_backends_freed_first },
    { "backends-freed-alone", end_backends_freed_alone },
    { "exit-on-another-thread", end_exit_elsewhere },
    { "_exit-on-another-thread", end_quick_elsewhere },
    { "return-while-another-works", end_return_under_work },
    { "child-_exit", end_child_quick },
    { "child-exit", end_child_exit },
    { "child-touches-and-exits", end_child_touches_and_exits },
};

/* end NAME: with work in flight. Without a name, lists them. */
int case_end(int argc, char ** argv) {
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        if (argc == 0) {
            puts(ends[i].name);
        } else if (strcmp(argv[0], ends[i].name) == 0) {
            open_all();
            work_in_flight();
            return ends[i].run();
        }
    }
    return argc == 0 ? 0 : 2;
}
