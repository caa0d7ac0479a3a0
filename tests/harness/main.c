/*
 * harness - drives the communicator trio through the real ggml, as llama.cpp's
 * meta backend does, and checks every bit of what comes back.
 *
 * It knows nothing of the plugin: it asks the Vulkan registry for the trio.
 */
#include "harness.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct options options;
struct world   world;

struct test_case {
    const char * name;
    void (*run)(void);
    bool         on_request; /* only if named, or with --full */
    const char * what;
};

static const struct test_case cases[] = {
    { "data", case_data, false, "the test values can tell one order of additions from another" },
    { "lookup", case_lookup, false, "which registry answers for the trio" },
    { "init", case_init, false, "worlds that comm_init declines and accepts" },
    { "sizes", case_sizes, false, "small sizes x ranks x who computed x plain or view" },
    { "signed-zero", case_signed_zero, false, "sums of -0" },
    { "denormal", case_denormal, false, "denormals, against the device's own additions" },
    { "nan", case_nan, false, "NaN where the device's own additions give NaN" },
    { "refusals", case_refusals, false, "what must be handed back untouched" },
    { "order", case_order, false, "graphs before and after, without synchronisation" },
    { "large", case_large, false, "round the staging slot, and 64 MiB" },
    { "life", case_life, false, "many communicators leave nothing behind" },
    { "two-comms", case_two_comms, false, "two communicators on two threads" },
    { "soak", case_soak, false, "random reductions over tensors that come and go" },
    { "turns", case_turns, true, "random reductions, all algorithms and wires by turns; nothing piles up" },
    { "held", case_held, true, "a thread of the plugin, or all of the process, at a stop for a second with work in flight" },
    { "proxy-idle", case_proxy_idle, true, "an idle proxy uses no CPU (10 s)" },
};

enum { N_CASES = sizeof(cases) / sizeof(cases[0]) };

static const char usage[] =
    "usage: harness [options]\n"
    "  --lib-dir DIR      directory of ggml's backends (default: $VKCOMM_TEST_LIBDIR)\n"
    "  --case NAME        run the cases whose name starts so; repeatable\n"
    "  --list             list the cases\n"
    "  --ranks LIST       world sizes, e.g. 2,3 (default: 2,3,4,5 as far as devices go)\n"
    "  --sizes LIST       elements, for the case \"sizes\" (default: a preset, plus \"large\")\n"
    "  --slot-bytes N     half of a rank's staging (default: 8388608)\n"
    "  --accuracy A       exact | f32 (any order of additions) | f16 | bf16 (16-bit wire)\n"
    "  --seed N           seed of the test values (default: 1)\n"
    "  --repeat N         run everything N times, with other values\n"
    "  --soak N --life N --two-comms N --order N --turns N   iterations of these cases\n"
    "  --quick, --full    fewer or all combinations\n"
    "  --timeout S        abort when one check takes longer (default: 120; 0: never)\n"
    "  --expect-stock     pass only if the trio is absent\n"
    "exit status: 0 all passed, 1 something failed or nothing ran, 2 wrong usage\n";

/* ---- shared by the cases --------------------------------------------------- */

enum kind usual_kind(void) {
    return options.accuracy == ACCURACY_EXACT || options.accuracy == ACCURACY_F32 ? KIND_WIDE : KIND_NARROW;
}

void * open_comm(const char * name, int n) {
    report_start("%s/n%d/init", name, n);
    void * comm = trio.init(world.backend, n);
    if (comm == NULL) {
        report_note("comm_init declined %d ranks; its log line says why", n);
        report_result(false);
    }
    return comm;
}

uint64_t next_seed(void) {
    static uint64_t calls;
    uint64_t        state = options.seed * 1000003 + calls++;
    return random_next(&state);
}

/* ---- options ----------------------------------------------------------------- */

static void fail_usage(const char * what, const char * value) {
    fprintf(stderr, "harness: %s: %s\n%s", what, value, usage);
    exit(2);
}

static int64_t parse_number(const char * text) {
    char * end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < 0) {
        fail_usage("not a number", text);
    }
    return value;
}

static int parse_list(const char * text, int64_t * list, int max) {
    char copy[1024];
    int  count = 0;
    snprintf(copy, sizeof(copy), "%s", text);
    for (char * item = strtok(copy, ","); item != NULL; item = strtok(NULL, ",")) {
        if (count == max) {
            fail_usage("list too long", text);
        }
        list[count++] = parse_number(item);
    }
    return count;
}

static void parse_ranks(const char * text) {
    int64_t list[MAX_RANKS];
    options.n_ranks = parse_list(text, list, MAX_RANKS);
    for (int i = 0; i < options.n_ranks; i++) {
        if (list[i] < 2 || list[i] > MAX_RANKS) {
            fail_usage("ranks must be 2 to 8", text);
        }
        options.ranks[i] = (int) list[i];
    }
}

static enum accuracy parse_accuracy(const char * text) {
    static const char * const names[] = { "exact", "f32", "f16", "bf16" };
    for (int i = 0; i < 4; i++) {
        if (strcmp(names[i], text) == 0) {
            return (enum accuracy) i;
        }
    }
    fail_usage("unknown accuracy", text);
    return ACCURACY_EXACT;
}

static void list_cases(void) {
    for (int i = 0; i < N_CASES; i++) {
        printf("%-12s %s%s\n", cases[i].name, cases[i].what, cases[i].on_request ? " [on request]" : "");
    }
}

/* Options without a value; false when it is none of them. */
static bool parse_switch(const char * arg) {
    if (strcmp(arg, "--quick") == 0) {
        options.quick = true;
    } else if (strcmp(arg, "--full") == 0) {
        options.full = true;
    } else if (strcmp(arg, "--expect-stock") == 0) {
        options.expect_stock = true;
    } else if (strcmp(arg, "--list") == 0) {
        list_cases();
        exit(0);
    } else if (strcmp(arg, "--help") == 0) {
        fputs(usage, stdout);
        exit(0);
    } else {
        return false;
    }
    return true;
}

static void parse_value(const char * arg, const char * value) {
    const struct { const char * name; int * to; } numbers[] = {
        { "--repeat", &options.repeat }, { "--soak", &options.soak }, { "--life", &options.life },
        { "--two-comms", &options.two_comms }, { "--order", &options.order }, { "--turns", &options.turns },
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (strcmp(arg, numbers[i].name) == 0) {
            *numbers[i].to = (int) parse_number(value);
            return;
        }
    }
    if (strcmp(arg, "--lib-dir") == 0) {
        options.libdir = value;
    } else if (strcmp(arg, "--case") == 0 && options.n_filters < MAX_FILTERS) {
        options.filters[options.n_filters++] = value;
    } else if (strcmp(arg, "--ranks") == 0) {
        parse_ranks(value);
    } else if (strcmp(arg, "--sizes") == 0) {
        options.n_sizes = parse_list(value, options.sizes, MAX_SIZES);
    } else if (strcmp(arg, "--slot-bytes") == 0) {
        options.slot_bytes = parse_number(value);
    } else if (strcmp(arg, "--accuracy") == 0) {
        options.accuracy = parse_accuracy(value);
    } else if (strcmp(arg, "--seed") == 0) {
        options.seed = (uint64_t) parse_number(value);
    } else if (strcmp(arg, "--timeout") == 0) {
        options.timeout = (unsigned) parse_number(value);
    } else {
        fail_usage("unknown option", arg);
    }
}

static void set_default(int * option, int quick, int usual) {
    if (*option < 0) {
        *option = options.quick ? quick : usual;
    }
}

static void parse_options(int argc, char ** argv) {
    options = (struct options) {
        .libdir = getenv("VKCOMM_TEST_LIBDIR"), .slot_bytes = 8 << 20, .seed = 1, .repeat = 1,
        .soak = -1, .life = -1, .two_comms = -1, .order = -1, .turns = -1, .timeout = 120,
    };
    for (int i = 1; i < argc; i++) {
        if (parse_switch(argv[i])) {
            continue;
        }
        if (i + 1 == argc) {
            fail_usage("unknown option, or its value is missing", argv[i]);
        }
        parse_value(argv[i], argv[i + 1]);
        i++;
    }
    set_default(&options.soak, 100, 1000);
    set_default(&options.life, 20, 200);
    set_default(&options.two_comms, 100, 2000);
    set_default(&options.order, 100, 500);
    set_default(&options.turns, 3000, 100000);
    if (options.libdir == NULL) {
        fail_usage("no backend directory", "give --lib-dir or VKCOMM_TEST_LIBDIR");
    }
}

/* ---- running ------------------------------------------------------------------- */

static bool matches(const struct test_case * c, const char * filter) {
    return strncmp(c->name, filter, strlen(filter)) == 0;
}

static bool selected(const struct test_case * c) {
    if (options.n_filters == 0) {
        return !c->on_request || options.full;
    }
    for (int i = 0; i < options.n_filters; i++) {
        if (matches(c, options.filters[i])) {
            return true;
        }
    }
    return false;
}

/* A misspelt --case must not pass by running nothing. */
static void check_filters(void) {
    for (int i = 0; i < options.n_filters; i++) {
        bool known = false;
        for (int k = 0; k < N_CASES; k++) {
            known = known || matches(&cases[k], options.filters[i]);
        }
        if (!known) {
            fail_usage("no such case, see --list", options.filters[i]);
        }
    }
}

/* World sizes asked for must be there; default ones are skipped by name. */
static bool choose_ranks(void) {
    const int available = ranks_available();
    if (options.n_ranks == 0) {
        const int most = options.quick ? 3 : 5;
        for (int n = 2; n <= most; n++) {
            if (n <= available) {
                options.ranks[options.n_ranks++] = n;
            } else {
                char name[32];
                snprintf(name, sizeof(name), "ranks/n%d", n);
                report_skip(name, "%d Vulkan devices visible", available);
            }
        }
    }
    int most = 0;
    for (int i = 0; i < options.n_ranks; i++) {
        most = options.ranks[i] > most ? options.ranks[i] : most;
    }
    report_start("ranks/%d devices", most > 0 ? most : 2);
    if (most == 0 || most > available) {
        report_note("%d Vulkan devices visible; GGML_VK_VISIBLE_DEVICES=0,0,0,0,0 makes five of one", available);
        return report_result(false);
    }
    return world_open(&world, most) || report_result(false);
}

static int expect_stock(void) {
    report_start("stock/the Vulkan registry has no trio");
    report_result(trio.init == NULL && trio.free == NULL && trio.allreduce == NULL);
    return report_finish();
}

static void run_cases(void) {
    for (int round = 0; round < options.repeat; round++) {
        for (int i = 0; i < N_CASES; i++) {
            if (selected(&cases[i])) {
                cases[i].run();
            }
        }
    }
}

int main(int argc, char ** argv) {
    parse_options(argc, argv);
    check_filters();
    report_watchdog(options.timeout);
    report_start("backends/Vulkan");
    if (!ranks_load(options.libdir)) {
        report_note("no Vulkan backend in %s", options.libdir);
        report_result(false);
        return report_finish();
    }
    ranks_find_trio();
    if (options.expect_stock) {
        return expect_stock();
    }
    report_start("trio/present");
    if (trio.init == NULL || trio.free == NULL || trio.allreduce == NULL) {
        report_note("no comm trio: is the plugin preloaded?");
        report_result(false);
        return report_finish();
    }
    report_result(true);
    if (choose_ranks()) {
        run_cases();
        world_close(&world);
    }
    return report_finish();
}
