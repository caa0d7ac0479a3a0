#define _POSIX_C_SOURCE 200809L
#include "footprint.h"

#include <dirent.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

static long count_entries(const char * path) {
    DIR * dir   = opendir(path);
    long  count = 0;
    while (dir != NULL && readdir(dir) != NULL) {
        count++;
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return count;
}

static long resident_kib(void) {
    long   total = 0, resident = 0;
    FILE * f = fopen("/proc/self/statm", "r");
    if (f != NULL) {
        if (fscanf(f, "%ld %ld", &total, &resident) != 2) {
            resident = 0;
        }
        fclose(f);
    }
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

struct footprint footprint_now(void) {
    return (struct footprint) { count_entries("/proc/self/fd"), count_entries("/proc/self/task"), resident_kib() };
}

struct footprint footprint_settled(const struct footprint * before) {
    struct footprint now = footprint_now();
    for (int i = 0; i < 100 && now.threads > before->threads; i++) {
        const struct timespec pause = { 0, 20 * 1000 * 1000 };
        nanosleep(&pause, NULL);
        now = footprint_now();
    }
    return now;
}
