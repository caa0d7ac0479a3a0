#define _GNU_SOURCE
#include "proc.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct tasks tasks_now(void) {
    struct tasks    tasks = { .n = 0 };
    DIR *           dir   = opendir("/proc/self/task");
    struct dirent * entry;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (isdigit((unsigned char) entry->d_name[0]) && tasks.n < MAX_TASKS) {
            tasks.tid[tasks.n++] = (pid_t) atol(entry->d_name);
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return tasks;
}

struct tasks tasks_settled(void) {
    const struct timespec pause = { 0, 20 * 1000 * 1000 };
    struct tasks          tasks = tasks_now();
    for (int same = 0; same < 10; same++) {
        nanosleep(&pause, NULL);
        const struct tasks next = tasks_now();
        same  = next.n == tasks.n ? same : -1;
        tasks = next;
    }
    return tasks;
}

bool tasks_include(const struct tasks * tasks, pid_t tid) {
    for (int i = 0; i < tasks->n; i++) {
        if (tasks->tid[i] == tid) {
            return true;
        }
    }
    return false;
}

uint64_t task_blocked(pid_t tid) {
    char     path[64], line[256];
    uint64_t mask = 0;
    snprintf(path, sizeof(path), "/proc/self/task/%d/status", (int) tid);
    FILE * f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (sscanf(line, "SigBlk: %" SCNx64, &mask) == 1) {
            break;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return mask;
}

void task_name(pid_t tid, char name[32]) {
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/task/%d/comm", (int) tid);
    FILE * f = fopen(path, "r");
    snprintf(name, 32, "?");
    if (f != NULL) {
        if (fgets(name, 32, f) != NULL) {
            name[strcspn(name, "\n")] = '\0';
        }
        fclose(f);
    }
}

static bool ends_with(const char * text, const char * end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

bool proc_maps(const char * file) {
    char   line[4096];
    bool   found = false;
    FILE * f     = fopen("/proc/self/maps", "r");
    while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        found = ends_with(line, file);
    }
    if (f != NULL) {
        fclose(f);
    }
    return found;
}

uint64_t proc_address_space(void) {
    unsigned long pages = 0;
    FILE *        f     = fopen("/proc/self/statm", "r");
    if (f != NULL) {
        if (fscanf(f, "%lu", &pages) != 1) {
            pages = 0;
        }
        fclose(f);
    }
    return (uint64_t) pages * (uint64_t) sysconf(_SC_PAGESIZE);
}
