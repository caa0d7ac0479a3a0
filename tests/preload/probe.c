/*
 * preload-probe - what the preloaded objects do to a process, one case a run:
 * much of it is decided once for the life of a process.
 */
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct live live;

static const struct {
    const char * name;
    int (*run)(int argc, char ** argv);
    const char * what;
} cases[] = {
    { "absent", case_absent, "[TEXT...]: no trio; one WARN line with these texts, or no line; stock goes on" },
    { "caller", case_caller, "what a caller of a hooked function must not notice" },
    { "census", case_census, "prints what an unchanged process and a changed one differ in" },
    { "config", case_config, "NAME...: wrong and right values of these variables" },
    { "declined", case_declined, "TEXT...: no communicator, one WARN line with these texts" },
    { "end", case_end, "[NAME]: the process ends so, with work in flight; names without one" },
    { "exec", case_exec, "children of a process with a live communicator" },
    { "exec-child", case_exec_child, "run by exec" },
    { "exit", case_exit, "the process ends with a live communicator" },
    { "fork", case_fork, "a child without exec, with a live communicator" },
    { "fork-early", case_fork_early, "works|inert: a child from before ggml was touched" },
    { "fork-locks", case_fork_locks, "children of a parent whose threads are in the hooks" },
    { "go-library", case_go_library, "FILE: the host has loaded a Go library" },
    { "life", case_life, "a communicator's life, if there is a trio; silent" },
    { "limit", case_limit, "below|used|enough: RLIMIT_AS" },
    { "no-proxy", case_no_proxy, "GGML_VK_COMM_PROXY=0 where there is no other ordering" },
    { "signals", case_signals, "signal masks of all threads" },
    { "storm", case_storm, "SIGINT while reductions run" },
    { "unknown", case_unknown, "NAME: an unknown variable gives one line; prints the known ones" },
};

enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

void probe_load(void) {
    const char * libdir = getenv("VKCOMM_TEST_LIBDIR");
    lines_start();
    if (libdir == NULL || !ranks_load(libdir)) {
        fprintf(stderr, "preload-probe: no Vulkan backend in VKCOMM_TEST_LIBDIR=%s\n", libdir ? libdir : "");
        exit(1);
    }
    if (ranks_available() < RANKS) {
        fprintf(stderr, "preload-probe: %d Vulkan devices visible, %d are needed\n", ranks_available(), RANKS);
        exit(1);
    }
}

void probe_ask(void) {
    ranks_find_trio();
}

bool trio_complete(void) {
    return trio.init != NULL && trio.allreduce != NULL && trio.free != NULL;
}

bool trio_absent(void) {
    return trio.init == NULL && trio.allreduce == NULL && trio.free == NULL;
}

bool live_open(void) {
    enum { ELEMENTS = 5000 };
    if (!world_open(&live.world, RANKS)) {
        return report_result(false);
    }
    probe_ask();
    if (!trio_complete()) {
        report_note("no trio");
        return report_result(false);
    }
    live.comm = trio.init(live.world.backend, RANKS);
    if (live.comm == NULL) {
        report_note("comm_init declined");
        return report_result(false);
    }
    return set_alloc(&live.set, &live.world, RANKS, ELEMENTS, BINDING_PLAIN) || report_result(false);
}

bool live_reduce(enum accuracy accuracy) {
    static uint64_t seed;
    const enum kind kind = accuracy == ACCURACY_EXACT ? KIND_WIDE : KIND_NARROW;
    return set_roundtrip(&live.set, &live.world, live.comm, kind, (1u << RANKS) - 1, accuracy, ++seed);
}

void live_close(void) {
    set_free(&live.set);
    trio.free(live.comm);
    world_close(&live.world);
}

static bool rank_remembers(ggml_backend_t backend, int rank) {
    enum { ELEMENTS = 1000 };
    struct operand op;
    float          wrote[ELEMENTS], read[ELEMENTS];
    if (!operand_alloc(&op, backend, ELEMENTS, BINDING_PLAIN, rank)) {
        return false;
    }
    for (int i = 0; i < ELEMENTS; i++) {
        wrote[i] = (float) (i * (rank + 1));
    }
    operand_write(&op, wrote);
    operand_read(&op, read);
    operand_free(&op);
    return memcmp(wrote, read, sizeof(wrote)) == 0;
}

bool stock_works(void) {
    struct world world;
    if (!world_open(&world, RANKS)) {
        return false;
    }
    bool ok = true;
    for (int r = 0; r < RANKS; r++) {
        ok = rank_remembers(world.backend[r], r) && ok;
    }
    world_close(&world);
    return ok;
}

_Noreturn void probe_skip(const char * name, const char * why) {
    report_skip(name, "%s", why);
    exit(SKIPPED);
}

int main(int argc, char ** argv) {
    enum { WATCHDOG_SECONDS = 60 };
    for (int i = 0; argc > 1 && i < N_CASES; i++) {
        if (strcmp(argv[1], cases[i].name) == 0) {
            report_watchdog(WATCHDOG_SECONDS);
            return cases[i].run(argc - 2, argv + 2);
        }
    }
    fprintf(stderr, "usage: preload-probe CASE [ARGUMENT...]\n");
    for (int i = 0; i < N_CASES; i++) {
        fprintf(stderr, "  %-12s %s\n", cases[i].name, cases[i].what);
    }
    return 2;
}
