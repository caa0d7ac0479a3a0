/*
 * What the cases of preload-probe share. The harness asks whether sums are
 * right; the probe asks what the preloaded objects do to a process.
 */
#ifndef PROBE_H
#define PROBE_H

#include "../harness/ranks.h"
#include "../harness/report.h"
#include "../harness/set.h"
#include "lines.h"

enum { RANKS = 2, SKIPPED = 77 };

/* Loads ggml's backends from $VKCOMM_TEST_LIBDIR and asks for the trio. */
void probe_load(void);
void probe_ask(void);
bool trio_complete(void); /* all three */
bool trio_absent(void);   /* none */

/* A live communicator over the first RANKS devices, and something to reduce. */
struct live {
    struct world world;
    struct set   set;
    void *       comm;
};

extern struct live live;

bool live_open(void); /* world, tensors, communicator; false is reported */
bool live_reduce(enum accuracy accuracy);
void live_close(void);

/* ggml without a communicator: memory of each device can be written and read. */
bool stock_works(void);

/* Ends the program as skipped, by name. */
_Noreturn void probe_skip(const char * name, const char * why);

/* The cases; arguments follow the case's name. The result is the exit status. */
int case_absent(int argc, char ** argv);
int case_caller(int argc, char ** argv);
int case_census(int argc, char ** argv);
int case_config(int argc, char ** argv);
int case_declined(int argc, char ** argv);
int case_end(int argc, char ** argv);
int case_exec(int argc, char ** argv);
int case_exec_child(int argc, char ** argv);
int case_exit(int argc, char ** argv);
int case_fork(int argc, char ** argv);
int case_fork_early(int argc, char ** argv);
int case_fork_locks(int argc, char ** argv);
int case_go_library(int argc, char ** argv);
int case_life(int argc, char ** argv);
int case_limit(int argc, char ** argv);
int case_no_proxy(int argc, char ** argv);
int case_signals(int argc, char ** argv);
int case_storm(int argc, char ** argv);
int case_unknown(int argc, char ** argv);

#endif
