/* The matrix: sizes x ranks x who computed x how the tensor lies in memory. */
#include "harness.h"

#include <stdio.h>

static const char * mask_name(char * text, size_t size, uint32_t mask, int n) {
    const uint32_t all = (1u << n) - 1;
    if (mask == all) {
        return "all";
    }
    if (mask == 0) {
        return "none";
    }
    int used = 0;
    for (int r = 0; r < n; r++) {
        if (!(mask >> r & 1)) {
            used += snprintf(text + used, size - used, "%s%d", used ? "," : "off", r);
        }
    }
    return text;
}

static void run_one(void * comm, struct set * set, const char * group, enum binding binding, uint32_t mask) {
    char name[64];
    report_start("%s/n%d/%lld/%s/%s", group, set->n, (long long) set->values.elements,
                 mask_name(name, sizeof(name), mask, set->n), binding == BINDING_VIEW ? "view" : "plain");
    report_result(set_roundtrip(set, &world, comm, usual_kind(), mask, options.accuracy, next_seed()));
}

/* Everybody, nobody, and each rank alone missing. */
static void run_all_masks(void * comm, struct set * set, const char * group, enum binding binding) {
    const uint32_t all = (1u << set->n) - 1;
    run_one(comm, set, group, binding, all);
    run_one(comm, set, group, binding, 0);
    const int off = options.quick ? 1 : set->n;
    for (int r = 0; r < off; r++) {
        run_one(comm, set, group, binding, all & ~(1u << r));
    }
}

static bool alloc_for(struct set * set, const char * group, int n, int64_t elements, enum binding binding) {
    report_start("%s/n%d/%lld/alloc", group, n, (long long) elements);
    return set_alloc(set, &world, n, elements, binding) || report_result(false);
}

static void run_size(void * comm, const char * group, int n, int64_t elements) {
    for (int b = BINDING_PLAIN; b <= BINDING_VIEW; b++) {
        struct set set;
        if (alloc_for(&set, group, n, elements, (enum binding) b)) {
            run_all_masks(comm, &set, group, (enum binding) b);
            set_free(&set);
        }
    }
}

/* Large sizes take turns instead of crossing everything with everything. */
static void run_size_briefly(void * comm, const char * group, int n, int64_t elements, int turn) {
    struct set         set;
    const enum binding binding = turn % 2 ? BINDING_VIEW : BINDING_PLAIN;
    const uint32_t     all     = (1u << n) - 1;
    if (alloc_for(&set, group, n, elements, binding)) {
        run_one(comm, &set, group, binding, all);
        run_one(comm, &set, group, binding, all & ~(1u << turn % n));
        set_free(&set);
    }
}

void case_sizes(void) {
    static const int64_t preset[] = { 0, 1, 3, 4, 5, 7, 255, 1023, 4096, 4097 };
    const int            n_preset = sizeof(preset) / sizeof(preset[0]);
    for (int k = 0; k < options.n_ranks; k++) {
        const int n    = options.ranks[k];
        void *    comm = open_comm("sizes", n);
        if (comm == NULL) {
            continue;
        }
        const int count = options.n_sizes > 0 ? options.n_sizes : n_preset;
        for (int i = 0; i < count; i++) {
            run_size(comm, "sizes", n, options.n_sizes > 0 ? options.sizes[i] : preset[i]);
        }
        trio.free(comm);
    }
}

/* Round the staging slot, where one piece becomes two, and far beyond it. */
void case_large(void) {
    const int64_t slot     = options.slot_bytes / (int64_t) sizeof(float);
    const int64_t preset[] = { slot - 1, slot, slot + 1, 3 * slot + 5, 262145, 16777216 };
    const int     n_preset = options.quick ? 3 : sizeof(preset) / sizeof(preset[0]);
    if (options.n_sizes > 0) {
        return; /* the sizes asked for are in "sizes" */
    }
    for (int k = 0; k < options.n_ranks; k++) {
        const int n    = options.ranks[k];
        void *    comm = open_comm("large", n);
        if (comm == NULL) {
            continue;
        }
        for (int i = 0; i < n_preset; i++) {
            if (options.full) {
                run_size(comm, "large", n, preset[i]);
            } else {
                run_size_briefly(comm, "large", n, preset[i], i + k);
            }
        }
        trio.free(comm);
    }
}
