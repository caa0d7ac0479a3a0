/* Who answers for which registry, which worlds are declined, and whether a
 * communicator leaves anything behind. */
#include "footprint.h"
#include "harness.h"

/* ---- look-up --------------------------------------------------------------- */

static void check(const char * name, bool ok) {
    report_start("%s", name);
    report_result(ok);
}

void case_lookup(void) {
    ggml_backend_reg_t cpu = ggml_backend_reg_by_name("CPU");
    check("lookup/the Vulkan registry has all three", trio.init && trio.free && trio.allreduce);
    check("lookup/the Vulkan registry has no other name",
          ggml_backend_reg_get_proc_address(vulkan_reg, "ggml_backend_comm_no_such_name") == NULL &&
          ggml_backend_reg_get_proc_address(vulkan_reg, "") == NULL);
    if (cpu == NULL) {
        report_skip("lookup/other registries", "no CPU backend in the directory");
        return;
    }
    check("lookup/the CPU registry has none of the three",
          ggml_backend_reg_get_proc_address(cpu, "ggml_backend_comm_init") == NULL &&
          ggml_backend_reg_get_proc_address(cpu, "ggml_backend_comm_free") == NULL &&
          ggml_backend_reg_get_proc_address(cpu, "ggml_backend_comm_allreduce_tensor") == NULL);
    check("lookup/the CPU registry keeps its own names",
          ggml_backend_reg_get_proc_address(cpu, "ggml_backend_set_n_threads") != NULL);
}

/* ---- declined worlds -------------------------------------------------------- */

static void declines(const char * name, ggml_backend_t * backends, size_t n) {
    report_start("init/declines %s", name);
    void * comm = trio.init(backends, n);
    report_result(comm == NULL);
    if (comm != NULL) {
        trio.free(comm);
    }
}

static void declines_shared_device(void) {
    ggml_backend_t second  = ggml_backend_dev_init(ggml_backend_reg_dev_get(vulkan_reg, 0), NULL);
    ggml_backend_t pair[2] = { world.backend[0], second };
    declines("two backends of one device", pair, 2);
    if (world.n >= 3) {
        ggml_backend_t three[3] = { world.backend[0], world.backend[1], second };
        declines("a device that comes back as the last rank", three, 3);
    }
    ggml_backend_free(second);
}

static void declines_cpu(void) {
    ggml_backend_t cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, NULL);
    if (cpu == NULL) {
        report_skip("init/declines a CPU backend", "no CPU backend in the directory");
        return;
    }
    ggml_backend_t last[2]  = { world.backend[0], cpu };
    ggml_backend_t first[2] = { cpu, world.backend[0] };
    declines("a CPU backend as the last rank", last, 2);
    declines("a CPU backend as the first rank", first, 2);
    ggml_backend_free(cpu);
}

void case_init(void) {
    ggml_backend_t twice[2] = { world.backend[0], world.backend[0] };
    declines("one rank", world.backend, 1);
    declines("no rank", world.backend, 0);
    declines("the same backend twice", twice, 2);
    declines_shared_device();
    declines_cpu();
    for (int k = 0; k < options.n_ranks; k++) {
        void * comm = open_comm("init", options.ranks[k]);
        report_start("init/accepts n%d", options.ranks[k]);
        report_result(comm != NULL);
        if (comm != NULL) {
            trio.free(comm);
        }
    }
}

/* ---- what stays behind ------------------------------------------------------ */

/* One communicator's life, with one reduction in it. */
static bool live_once(struct set * set) {
    void * comm = trio.init(world.backend, set->n);
    if (comm == NULL) {
        report_note("comm_init returned NULL");
        return false;
    }
    const bool ok = set_roundtrip(set, &world, comm, usual_kind(), (1u << set->n) - 1, options.accuracy, next_seed());
    trio.free(comm);
    return ok;
}

static bool live_often(struct set * set, int times) {
    bool ok = true;
    for (int i = 0; i < times && ok; i++) {
        report_start("life/n%d/%d communicators, number %d", set->n, options.life, i + 1);
        ok = live_once(set);
    }
    return ok;
}

/* A runtime or driver may open a file or start a thread of its own at any time,
 * once; allocators keep a little. A leak grows with every communicator. */
enum { ONCE = 4 };

static void run_life(int n) {
    const int        warm_up = options.life / 10 + 2;
    struct set       set;
    struct footprint before = { 0, 0, 0 }, after = { 0, 0, 0 };
    report_start("life/n%d/alloc", n);
    if (!set_alloc(&set, &world, n, 4096, BINDING_PLAIN)) {
        report_result(false);
        return;
    }
    bool ok = live_often(&set, warm_up);
    before  = footprint_now();
    ok      = ok && live_often(&set, options.life);
    after   = footprint_settled(&before);
    set_free(&set);
    report_note("%d communicators: fds %ld -> %ld, threads %ld -> %ld, resident %ld -> %ld KiB", options.life, before.fds,
                after.fds, before.threads, after.threads, before.rss_kib, after.rss_kib);
    report_start("life/n%d/%d communicators each reduce right", n, options.life);
    report_result(ok);
    report_start("life/n%d/no file descriptors pile up", n);
    report_result(ok && after.fds <= before.fds + ONCE);
    report_start("life/n%d/no threads pile up", n);
    report_result(ok && after.threads <= before.threads + ONCE);
    report_start("life/n%d/no memory piles up", n);
    report_result(ok && after.rss_kib - before.rss_kib <= 4096 + 20 * options.life);
}

void case_life(void) {
    run_life(options.ranks[0]);
    if (options.full && options.n_ranks > 1) {
        run_life(options.ranks[options.n_ranks - 1]);
    }
}
