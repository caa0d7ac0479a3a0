/* Holds this process, or one thread of it, while the rest of the world goes on. */
#ifndef TESTS_HELD_H
#define TESTS_HELD_H

#include <sys/types.h>

enum held { HELD, HELD_NOT_PERMITTED, HELD_FAILED };

/* A child that stops thread tid, or with 0 the whole process, for that long. A
 * thread is at a stop when this returns; the process at any time from now on. */
pid_t held_start(pid_t tid, unsigned milliseconds);

/* Waits for its end. HELD: what it was to hold has really been at a stop. */
enum held held_end(pid_t child);

struct held_thread {
    pid_t tid;
    char  name[16];
};

/* The threads of this process whose names start so; returns how many, max at most. */
int held_threads(const char * prefix, struct held_thread * threads, int max);

#endif
