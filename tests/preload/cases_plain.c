/* Whether there is a trio, a communicator, or neither: the ends that the
 * scripts look for. */
#include "probe.h"
#include "proc.h"

#include <stdio.h>
#include <stdlib.h>

static const char * yes(bool b) {
    return b ? "yes" : "no";
}

/* absent [TEXT...] */
int case_absent(int argc, char ** argv) {
    (void) argc;
    probe_load();
    probe_ask();
    report_start("absent/no registry answers for the trio");
    report_result(trio_absent());
    report_start("absent/%s", argv[0] ? "one WARN line says why" : "no line");
    report_result(argv[0] ? lines_one(GGML_LOG_LEVEL_WARN, (const char * const *) argv)
                          : lines_count(GGML_LOG_LEVEL_NONE) == 0);
    probe_ask();
    report_start("absent/asked again, the answer is the same and nothing more is said");
    report_result(trio_absent() && lines_count(GGML_LOG_LEVEL_NONE) == (argv[0] != NULL));
    report_start("absent/ggml goes on");
    report_result(stock_works());
    return report_finish();
}

/* declined TEXT... */
int case_declined(int argc, char ** argv) {
    (void) argc;
    probe_load();
    probe_ask();
    report_start("declined/the trio is there");
    if (!report_result(trio_complete()) || !world_open(&live.world, RANKS)) {
        return 1;
    }
    void * comm = trio.init(live.world.backend, RANKS);
    report_start("declined/comm_init returns NULL");
    report_result(comm == NULL);
    report_start("declined/one WARN line says why");
    report_result(lines_one(GGML_LOG_LEVEL_WARN, (const char * const *) argv));
    report_start("declined/nothing worse is said");
    report_result(lines_count(GGML_LOG_LEVEL_ERROR) == 0 && lines_count(GGML_LOG_LEVEL_INFO) == 0);
    if (comm != NULL) {
        trio.free(comm);
    }
    world_close(&live.world);
    report_start("declined/ggml goes on");
    report_result(stock_works());
    return report_finish();
}

/* Two runs whose output is equal are the same to a user of the process. */
int case_census(int argc, char ** argv) {
    (void) argc, (void) argv;
    probe_load();
    probe_ask();
    if (!world_open(&live.world, RANKS)) {
        return 1;
    }
    if (trio_complete()) {
        trio.free(trio.init(live.world.backend, RANKS));
    }
    printf("trio %s %s %s\n", yes(trio.init), yes(trio.allreduce), yes(trio.free));
    printf("threads %d\n", tasks_settled().n);
    printf("go object %s\n", yes(proc_maps(GO_OBJECT)));
    world_close(&live.world);
    return 0;
}

/* Writes nothing itself, so that what is written is somebody else's. */
int case_life(int argc, char ** argv) {
    (void) argc, (void) argv;
    probe_load();
    probe_ask();
    if (trio_absent()) {
        return stock_works() ? 0 : 1;
    }
    if (!live_open() || !live_reduce(ACCURACY_BF16)) {
        return 1;
    }
    live_close();
    return 0;
}

/* A host that calls exit() frees no communicator first. */
int case_exit(int argc, char ** argv) {
    (void) argc, (void) argv;
    probe_load();
    report_start("exit/open");
    if (!live_open()) {
        return 1;
    }
    for (int i = 0; i < 8; i++) {
        set_allreduce(&live.set, live.comm);
    }
    exit(0);
}
