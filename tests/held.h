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

/* The thread whose name starts so, 0 if there is none. */
pid_t held_find(const char * name);

#endif
