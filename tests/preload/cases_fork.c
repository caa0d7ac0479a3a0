/* Children: a fork has the parent's memory and none of its threads, an exec
 * has the environment, LD_PRELOAD included, and nothing else. */
#define _GNU_SOURCE
#include "probe.h"
#include "proc.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static pid_t fork_child(void) {
    fflush(NULL); /* or both would write what is buffered */
    return fork();
}

/* Exit status of a child, which is killed when it hangs: an alarm of its own
 * might be blocked. Says how it ended if it did not exit. */
static int end_of(pid_t pid) {
    enum { SECONDS = 20, STEPS_PER_SECOND = 500 };
    const struct timespec step   = { 0, 1000000000 / STEPS_PER_SECOND };
    int                   status = 0;
    pid_t                 ended  = pid < 0 ? -1 : 0;
    for (int i = 0; ended == 0 && i < SECONDS * STEPS_PER_SECOND; i++) {
        ended = waitpid(pid, &status, WNOHANG);
        nanosleep(&step, NULL);
    }
    if (ended == 0) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        report_note("the child hung for %d s", SECONDS);
        return -1;
    }
    if (ended != pid || !WIFEXITED(status)) {
        report_note("the child ended by signal %d", ended == pid ? WTERMSIG(status) : 0);
        return -1;
    }
    return WEXITSTATUS(status);
}

/* ---- fork without exec ------------------------------------------------------- */

enum { ANSWERED = 1, MADE = 2, REDUCED = 4, SPOKE = 8 };

static int use_inherited(void) {
    struct trio inherited = trio;
    int         wrong     = 0;
    lines_forget();
    probe_ask();
    wrong |= trio_absent() ? 0 : ANSWERED;
    wrong |= inherited.init(live.world.backend, RANKS) == NULL ? 0 : MADE;
    trio = inherited;
    wrong |= set_allreduce(&live.set, live.comm) ? REDUCED : 0;
    trio.free(live.comm);
    return wrong | (lines_count(GGML_LOG_LEVEL_NONE) > 0 ? SPOKE : 0);
}

static void check_child(const char * when) {
    report_start("fork/child %s", when);
    const pid_t pid = fork_child();
    if (pid == 0) {
        _exit(use_inherited());
    }
    const int wrong = end_of(pid);
    if (wrong > 0) {
        report_note("in the child:%s%s%s%s", wrong & ANSWERED ? " the registry answers," : "",
                    wrong & MADE ? " comm_init returns a communicator," : "",
                    wrong & REDUCED ? " allreduce returns true," : "", wrong & SPOKE ? " lines are logged" : "");
    }
    report_result(wrong == 0);
}

int case_fork(int argc, char ** argv) {
    (void) argc, (void) argv;
    probe_load();
    report_start("fork/open");
    if (!live_open()) {
        return 1;
    }
    check_child("before the first reduction");
    for (int i = 0; i < 3; i++) {
        report_start("fork/the parent reduces right, round %d", i);
        report_result(live_reduce(ACCURACY_EXACT));
        set_fill(&live.set, KIND_WIDE, (1u << RANKS) - 1, 77 + i);
        const bool done = set_allreduce(&live.set, live.comm);
        check_child("while a reduction is in flight");
        world_synchronize(&live.world, RANKS);
        report_start("fork/the parent's reduction in flight is right, round %d", i);
        report_result(done && set_check(&live.set, ACCURACY_EXACT));
    }
    live_close();
    return report_finish();
}

/* ---- fork before ggml is touched ------------------------------------------------ */

/* A preforking host: the child is the one that uses ggml. The shim works there
 * like anywhere else; a Go object that was preloaded itself has started its
 * runtime in the parent, so that the child must stay with stock behaviour. */
static int use_afresh(bool works) {
    probe_load();
    probe_ask();
    if (!trio_complete()) {
        return works ? 1 : 0;
    }
    if (!world_open(&live.world, RANKS)) {
        return 2;
    }
    live.comm = trio.init(live.world.backend, RANKS);
    if (!works || live.comm == NULL) {
        return works || live.comm != NULL ? 3 : 0;
    }
    trio.free(live.comm);
    return live_open() && live_reduce(ACCURACY_EXACT) ? 0 : 4;
}

int case_fork_early(int argc, char ** argv) {
    const bool works = argc == 1 && strcmp(argv[0], "works") == 0;
    if (!works && (argc != 1 || strcmp(argv[0], "inert") != 0)) {
        fprintf(stderr, "preload-probe: fork-early takes one argument, accepted: works, inert\n");
        return 2;
    }
    report_start("fork/a child from before ggml was touched %s", works ? "reduces" : "has stock behaviour");
    const pid_t pid = fork_child();
    if (pid == 0) {
        _exit(use_afresh(works));
    }
    const int step = end_of(pid);
    if (step > 0) {
        report_note("the child failed at step %d: 1 no trio, 2 no backends, 3 comm_init, 4 a wrong sum", step);
    }
    report_result(step == 0);
    return report_finish();
}

/* ---- fork while a lock is held ------------------------------------------------------ */

static atomic_bool stop;

/* Nothing but our hook: what calls malloc is not inside it at the fork, which
 * takes malloc's locks first. */
static void * synchronize_often(void * cpu) {
    while (!atomic_load(&stop)) {
        ggml_backend_synchronize(cpu);
    }
    return NULL;
}

/* Safe in a child of a stock process: malloc looks after itself. */
static void use_host_memory(ggml_backend_t cpu) {
    ggml_backend_buffer_free(ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), 64));
    ggml_backend_synchronize(cpu);
}

int case_fork_locks(int argc, char ** argv) {
    enum { THREADS = 3, FORKS = 60 };
    (void) argc, (void) argv;
    probe_load();
    ggml_backend_t cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
    if (cpu == NULL) {
        probe_skip("fork-locks", "no CPU backend in the directory");
    }
    report_start("fork/open");
    if (!live_open()) { /* the hook has something to look through */
        return 1;
    }
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, synchronize_often, cpu);
    }
    bool ok = true;
    for (int i = 0; i < FORKS && ok; i++) {
        report_start("fork/children of a parent whose threads are in the hooks, number %d", i + 1);
        const pid_t pid = fork_child();
        if (pid == 0) {
            use_host_memory(cpu);
            _exit(0);
        }
        ok = end_of(pid) == 0;
    }
    report_result(ok);
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    live_close();
    ggml_backend_free(cpu);
    return report_finish();
}

/* ---- exec ----------------------------------------------------------------------------- */

static int run_self(char * name) {
    const pid_t pid = fork_child();
    if (pid == 0) {
        execv("/proc/self/exe", (char *[]) { "preload-probe", name, NULL });
        _exit(127);
    }
    return end_of(pid);
}

int case_exec(int argc, char ** argv) {
    (void) argc, (void) argv;
    probe_load();
    report_start("exec/open");
    if (!live_open()) {
        return 1;
    }
    report_start("exec/true, through the shell");
    report_result(system("exec true") == 0);
    report_start("exec/a child that never asks for Vulkan is unchanged");
    report_result(run_self("exec-child") == 0);
    report_start("exec/a child that reduces by itself");
    report_result(run_self("life") == 0);
    report_start("exec/the parent reduces right afterwards");
    report_result(live_reduce(ACCURACY_EXACT));
    live_close();
    return report_finish();
}

int case_exec_child(int argc, char ** argv) {
    (void) argc, (void) argv;
    const struct tasks tasks = tasks_now();
    report_start("exec/one thread");
    report_result(tasks.n == 1);
    report_start("exec/no Go object, though the shim is there");
    report_result(!proc_maps(GO_OBJECT) && proc_maps("libggml-vk-comm-preload.so"));
    report_start("exec/no signal is blocked");
    report_result(task_blocked(getpid()) == 0);
    return report_finish();
}
