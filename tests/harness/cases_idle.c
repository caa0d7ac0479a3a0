/* A communicator that has nothing to do must not use a CPU: a proxy thread
 * sleeps between reductions. */
#define _POSIX_C_SOURCE 200809L
#include "harness.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PROXY_NAME "vkcomm-proxy"

static bool read_line(const char * thread, const char * file, char * line, size_t size) {
    char path[300];
    snprintf(path, sizeof(path), "/proc/self/task/%s/%s", thread, file);
    FILE * f = fopen(path, "r");
    if (f == NULL) {
        return false;
    }
    const bool ok = fgets(line, (int) size, f) != NULL;
    fclose(f);
    return ok;
}

/* CPU time of a thread in nanoseconds: schedstat counts them, stat counts
 * clock ticks of some 10 ms. */
static long long thread_cpu_ns(const char * thread) {
    char               line[1024];
    unsigned long long ns = 0, user = 0, system = 0;
    if (read_line(thread, "schedstat", line, sizeof(line)) && sscanf(line, "%llu", &ns) == 1) {
        return (long long) ns;
    }
    if (!read_line(thread, "stat", line, sizeof(line))) {
        return 0;
    }
    const char * after_name = strrchr(line, ')');
    if (after_name == NULL ||
        sscanf(after_name + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) != 2) {
        return 0;
    }
    return (long long) ((user + system) * 1000000000ull / (unsigned long long) sysconf(_SC_CLK_TCK));
}

/* CPU time of all proxy threads together, and how many there are. */
static long long proxies_cpu_ns(int * count) {
    long long       sum = 0;
    struct dirent * entry;
    DIR *           dir = opendir("/proc/self/task");
    *count = 0;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        char comm[64];
        if (entry->d_name[0] != '.' && read_line(entry->d_name, "comm", comm, sizeof(comm)) &&
            strncmp(comm, PROXY_NAME, strlen(PROXY_NAME)) == 0) {
            sum += thread_cpu_ns(entry->d_name);
            (*count)++;
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return sum;
}

static void pause_ms(long ms) {
    const struct timespec pause = { ms / 1000, ms % 1000 * 1000000 };
    nanosleep(&pause, NULL);
}

static bool warm_up(void * comm, int n) {
    struct set set;
    bool       ok = set_alloc(&set, &world, n, 4096, BINDING_PLAIN);
    for (int i = 0; ok && i < 20; i++) {
        ok = set_roundtrip(&set, &world, comm, usual_kind(), (1u << n) - 1, options.accuracy, next_seed());
    }
    set_free(&set);
    return ok;
}

static void measure(int n) {
    int             count = 0;
    const long long before = proxies_cpu_ns(&count);
    if (count == 0) {
        report_skip("proxy-idle", "no thread named %s*: ordering is not by proxy", PROXY_NAME);
        return;
    }
    pause_ms(10000);
    const long long used = proxies_cpu_ns(&count) - before;
    report_note("%d proxy threads used %lld us of CPU in 10 s", count, used / 1000);
    report_start("proxy-idle/n%d/under 10 ms of CPU in 10 s", n);
    report_result(used < 10 * 1000 * 1000);
}

void case_proxy_idle(void) {
    const int n    = options.ranks[options.n_ranks - 1];
    void *    comm = open_comm("proxy-idle", n);
    if (comm == NULL) {
        return;
    }
    report_start("proxy-idle/n%d/reductions before", n);
    if (report_result(warm_up(comm, n))) {
        pause_ms(500); /* whatever spins a little after work has ended */
        measure(n);
    }
    trio.free(comm);
}
