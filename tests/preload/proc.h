/* What /proc says about this process. */
#ifndef PROC_H
#define PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define GO_OBJECT "libggml-vk-comm.so"

enum { MAX_TASKS = 512 };

struct tasks {
    int   n;
    pid_t tid[MAX_TASKS];
};

struct tasks tasks_now(void);
/* The same once the number has not changed for a while: threads that were told
 * to end are listed until they did. */
struct tasks tasks_settled(void);
bool         tasks_include(const struct tasks * tasks, pid_t tid);

/* SigBlk of a thread; bit n-1 is signal n. */
uint64_t task_blocked(pid_t tid);
void     task_name(pid_t tid, char name[32]);

/* Some mapping is of a file whose name ends so. */
bool proc_maps(const char * file);

/* Bytes of address space in use. */
uint64_t proc_address_space(void);

#endif
