/* The environment. A communicator reads it when it is made, so that one process
 * can try many values. */
#define _GNU_SOURCE
#include "probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The line that says that a communicator is active, less what differs from one
 * to the next; empty if there was none. */
static void active_line(char * out, size_t size) {
    const char * line = lines_find(GGML_LOG_LEVEL_INFO, "AllReduce active");
    snprintf(out, size, "%s", line ? line : "");
    char * end = strstr(out, "; self-tested");
    if (end != NULL) {
        *end = '\0';
    }
}

/* Makes a communicator under NAME=value, reduces with it and frees it. False if
 * comm_init declined. */
static bool try_value(const char * name, const char * value, bool * right) {
    setenv(name, value, 1);
    lines_forget();
    live.comm = trio.init(live.world.backend, RANKS);
    unsetenv(name);
    *right = live.comm == NULL || live_reduce(ACCURACY_BF16);
    if (live.comm != NULL) {
        trio.free(live.comm);
    }
    return live.comm != NULL;
}

/* ---- wrong values ------------------------------------------------------------------ */

static char usual_line[2048]; /* with nothing set */

static void check_wrong(const char * name, const char * value) {
    char quoted[64], line[2048];
    bool right;
    snprintf(quoted, sizeof(quoted), "=\"%s\"", value);
    report_start("config/%s%s: a communicator, and right sums", name, quoted);
    report_result(try_value(name, value, &right) && right);
    report_start("config/%s%s: one ERROR line with name, value and what is accepted", name, quoted);
    report_result(lines_one(GGML_LOG_LEVEL_ERROR, (const char * const[]) { name, quoted, "(accepted: ", NULL }));
    report_start("config/%s%s: as if it were not set", name, quoted);
    active_line(line, sizeof(line));
    const bool same = strcmp(line, usual_line) == 0 && lines_find(GGML_LOG_LEVEL_INFO, "set by environment") == NULL;
    if (!same) {
        report_note("unset: %s", usual_line);
        report_note("here:  %s", line);
    }
    report_result(same);
}

/* ---- right values -------------------------------------------------------------------- */

/* Any case of letters; what was set is echoed, as it was written, in the line
 * that says that the communicator is active. */
static bool check_right(const char * name, const char * value, bool told) {
    char set[128];
    bool right;
    snprintf(set, sizeof(set), "set by environment: %s=%s", name, value);
    report_start("config/%s=%s is accepted", name, value);
    const bool made = try_value(name, value, &right);
    if (made && told && lines_find(GGML_LOG_LEVEL_INFO, set) == NULL) {
        report_note("no INFO line says '%s'", set);
        right = false;
    }
    report_result(right && lines_count(GGML_LOG_LEVEL_ERROR) == 0);
    return made;
}

static void check_switch(const char * name) {
    const bool one = check_right(name, "1", true), on = check_right(name, "oN", true);
    const bool zero = check_right(name, "0", true), off = check_right(name, "OfF", true);
    report_start("config/%s: on is 1 and off is 0", name);
    report_result(one == on && zero == off);
}

static void check_levels(const char * name) {
    static const char * const names[] = { "debug", "INFO", "Warn", "error", "NONE" };
    for (int i = 0; i < 5; i++) {
        const bool informs = i <= 1;
        check_right(name, names[i], informs);
        report_start("config/%s=%s writes %s", name, names[i], informs ? "what is active" : "nothing when all is well");
        report_result(informs ? lines_find(GGML_LOG_LEVEL_INFO, "AllReduce active") != NULL
                              : lines_count(GGML_LOG_LEVEL_NONE) == 0);
    }
}

static void check_variable(const char * name) {
    check_wrong(name, "bogus value");
    const char * line      = lines_find(GGML_LOG_LEVEL_ERROR, "(accepted: ");
    const bool   is_switch = line != NULL && strstr(line, "on, off") != NULL;
    check_wrong(name, "");
    if (is_switch) {
        check_switch(name);
    } else if (strcmp(name, "GGML_VK_COMM_LOG") == 0) {
        check_levels(name);
    }
}

static bool open_without_comm(void) {
    probe_load();
    report_start("config/open");
    if (!live_open()) {
        return false;
    }
    trio.free(live.comm);
    live.comm = NULL;
    return true;
}

/* config NAME... */
int case_config(int argc, char ** argv) {
    if (!open_without_comm()) {
        return 1;
    }
    active_line(usual_line, sizeof(usual_line));
    report_start("config/nothing set: one line, and no complaint");
    report_result(usual_line[0] != '\0' && lines_count(GGML_LOG_LEVEL_NONE) == 1);
    for (int i = 0; i < argc; i++) {
        check_variable(argv[i]);
    }
    set_free(&live.set);
    world_close(&live.world);
    return report_finish();
}

/* Devices that cannot share timelines, and no proxy: nothing is left. */
int case_no_proxy(int argc, char ** argv) {
    (void) argc, (void) argv;
    setenv("GGML_VK_COMM_PROXY", "0", 1);
    probe_load();
    probe_ask();
    report_start("config/the proxy is forbidden where it is needed");
    if (!trio_complete() || !world_open(&live.world, RANKS)) {
        return 1;
    }
    void * comm = trio.init(live.world.backend, RANKS);
    if (comm != NULL && lines_find(GGML_LOG_LEVEL_INFO, "native ordering") != NULL) {
        probe_skip("config/the proxy is forbidden where it is needed", "these devices can share timelines");
    }
    report_result(comm == NULL && lines_count(GGML_LOG_LEVEL_NONE) == 1 &&
                  lines_one(GGML_LOG_LEVEL_WARN,
                            (const char * const[]) { "proxy is forbidden", "rank 0", "cannot share timeline", NULL }));
    world_close(&live.world);
    return report_finish();
}

/* unknown NAME: it is in the environment already. */
int case_unknown(int argc, char ** argv) {
    if (argc != 1 || getenv(argv[0]) == NULL) {
        fprintf(stderr, "preload-probe: unknown takes the name of a variable that is set\n");
        return 2;
    }
    probe_load();
    report_start("config/open with an unknown variable");
    if (!live_open()) {
        return 1;
    }
    report_start("config/an unknown variable gives one ERROR line");
    report_result(lines_one(GGML_LOG_LEVEL_ERROR, (const char * const[]) { argv[0], "not a variable", NULL }));
    const char * line  = lines_find(GGML_LOG_LEVEL_ERROR, "(there are ");
    const char * names = line ? strstr(line, "(there are ") + strlen("(there are ") : "";
    printf("known: %.*s\n", (int) strcspn(names, ")"), names);
    report_start("config/and a communicator");
    report_result(live_reduce(ACCURACY_BF16));
    live_close();
    return report_finish();
}
