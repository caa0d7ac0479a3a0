/* Processes that cannot hold the Go runtime: it would end them. */
#define _GNU_SOURCE
#include "probe.h"
#include "proc.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define MIB ((rlim_t) 1 << 20)

static void set_limit(rlim_t bytes) {
    struct rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_AS, &limit);
}

/* The Vulkan driver is loaded before: it needs more than some limits leave. */
static void ask_under(rlim_t limit) {
    set_limit(limit);
    probe_ask();
    set_limit(RLIM_INFINITY);
}

static void check_refusal(const char * text) {
    report_start("limit/NULL for all three");
    report_result(trio_absent());
    report_start("limit/one WARN line names the limit");
    report_result(lines_one(GGML_LOG_LEVEL_WARN, (const char * const[]) { "RLIMIT_AS", text, NULL }));
    probe_ask();
    report_start("limit/decided once");
    report_result(trio_absent() && lines_count(GGML_LOG_LEVEL_NONE) == 1);
    report_start("limit/ggml goes on");
    report_result(stock_works());
}

/* limit below: the limit itself is too low.
 * limit used: it is not, but most of it is taken, as by a mapped model.
 * limit enough: 2 GiB are left. */
int case_limit(int argc, char ** argv) {
    const char * which = argc == 1 ? argv[0] : "";
    struct rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    if (limit.rlim_max != RLIM_INFINITY) {
        probe_skip("limit", "RLIMIT_AS has a hard limit here");
    }
    probe_load();
    if (strcmp(which, "below") == 0) {
        ask_under(2048 * MIB - 4096);
        check_refusal("2047 MiB");
    } else if (strcmp(which, "used") == 0) {
        const rlim_t bytes = 6144 * MIB;
        const size_t taken = bytes - proc_address_space() - 256 * MIB;
        if (mmap(NULL, taken, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED) {
            probe_skip("limit", "6 GiB of address space cannot be reserved");
        }
        ask_under(bytes);
        check_refusal("6144 MiB");
    } else if (strcmp(which, "enough") == 0) {
        if (!world_open(&live.world, RANKS)) {
            return 1;
        }
        world_close(&live.world); /* the driver keeps what it needed */
        set_limit(proc_address_space() + 2048 * MIB);
        report_start("limit/a communicator with 2 GiB left");
        if (live_open()) {
            report_result(live_reduce(ACCURACY_EXACT));
            live_close();
        }
    } else {
        fprintf(stderr, "preload-probe: limit is '%s', accepted: below, used, enough\n", which);
        return 2;
    }
    return report_finish();
}

/* go-library FILE: the program is none of Go's, but something that it loaded
 * is. */
int case_go_library(int argc, char ** argv) {
    if (argc != 1 || dlopen(argv[0], RTLD_NOW) == NULL) {
        fprintf(stderr, "preload-probe: go-library: %s\n", argc == 1 ? dlerror() : "one file is needed");
        return 2;
    }
    return case_absent(3, (char *[]) { "Go runtime", argv[0], "one a process", NULL });
}
