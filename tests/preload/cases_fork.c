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
#include <unistd.h>

enum { CHILD_SECONDS = 20 };

/* A child ends by itself when it hangs, and leaves no core. */
static pid_t fork_with_alarm(unsigned seconds) {
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        signal(SIGALRM, SIG_DFL);
        alarm(seconds);
    }
    return pid;
}

/* Exit status of a child; says how it ended if it did not exit. */
static int end_of(pid_t pid) {
    int status = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        report_note("no child");
        return -1;
    }
    if (WIFSIGNALED(status)) {
        report_note("the child ended by signal %d%s", WTERMSIG(status), WTERMSIG(status) == SIGALRM ? ", it hung" : "");
        return -1;
    }
    return WEXITSTATUS(status);
}

/* ---- fork without exec ------------------------------------------------------- */

enum { ANSWERED = 1, MADE = 2, REDUCED = 4 };

static int use_inherited(void) {
    struct trio inherited = trio;
    int         wrong     = 0;
    probe_ask();
    wrong |= trio_absent() ? 0 : ANSWERED;
    wrong |= inherited.init(live.world.backend, RANKS) == NULL ? 0 : MADE;
    trio = inherited;
    wrong |= set_allreduce(&live.set, live.comm) ? REDUCED : 0;
    trio.free(live.comm);
    return wrong;
}

static void check_child(const char * when) {
    report_start("fork/child %s", when);
    const pid_t pid = fork_with_alarm(CHILD_SECONDS);
    if (pid == 0) {
        _exit(use_inherited());
    }
    const int wrong = end_of(pid);
    if (wrong > 0) {
        report_note("in the child:%s%s%s", wrong & ANSWERED ? " the registry answers," : "",
                    wrong & MADE ? " comm_init returns a communicator," : "", wrong & REDUCED ? " allreduce returns true" : "");
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
    const pid_t pid = fork_with_alarm(CHILD_SECONDS);
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

static void cycle_buffer(void) {
    ggml_backend_buffer_free(ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), 64));
}

static void * cycle_buffers(void * unused) {
    (void) unused;
    while (!atomic_load(&stop)) {
        cycle_buffer();
    }
    return NULL;
}

/* malloc survives this, so buffers in host memory do in a stock process. */
int case_fork_locks(int argc, char ** argv) {
    enum { THREADS = 3, FORKS = 400 };
    (void) argc, (void) argv;
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, cycle_buffers, NULL);
    }
    bool ok = true;
    for (int i = 0; i < FORKS && ok; i++) {
        report_start("fork/a child allocates and frees while the parent's threads do, number %d", i);
        const pid_t pid = fork_with_alarm(3);
        if (pid == 0) {
            cycle_buffer();
            _exit(0);
        }
        ok = end_of(pid) == 0;
    }
    report_result(ok);
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    return report_finish();
}

/* ---- exec ----------------------------------------------------------------------------- */

static int run_self(char * name) {
    const pid_t pid = fork_with_alarm(CHILD_SECONDS);
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
