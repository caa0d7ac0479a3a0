/* Long runs: random reductions over tensors that come and go, and two
 * communicators on the same devices driven by two threads. */
#include "harness.h"
#include "pool.h"

#include <pthread.h>
#include <string.h>

static bool usual_pool(struct pool * p, const struct world * w, int n, int64_t largest, uint64_t seed) {
    *p = (struct pool) { .world = w, .n = n, .kind = usual_kind(), .accuracy = options.accuracy,
                         .largest = largest, .one_in = 16 };
    return pool_open(p, seed);
}

/* ---- soak -------------------------------------------------------------------- */

struct party {
    void *      comm;
    struct pool pool;
};

static void soak(struct party * parties, int count) {
    bool ok   = true;
    int  done = 0, noted = 0;
    for (int i = 0; done < options.soak && ok; i++) {
        if (done >= noted) {
            report_start("soak/%d random reductions, after %d", options.soak, done); /* feeds the watchdog */
            noted = done + 20;
        }
        ok = pool_step(&parties[i % count].pool, parties[i % count].comm, &done);
    }
    report_start("soak/%d random reductions over %d communicators", options.soak, count);
    report_result(ok);
}

/* One communicator per world size, all alive at once, in turns. */
void case_soak(void) {
    static struct party parties[MAX_RANKS];
    int                 count = 0;
    bool                ok    = true;
    memset(parties, 0, sizeof(parties));
    for (int k = 0; k < options.n_ranks && ok; k++) {
        struct party * party = &parties[count++];
        party->comm = open_comm("soak", options.ranks[k]);
        ok = party->comm != NULL && usual_pool(&party->pool, &world, options.ranks[k], options.slot_bytes / 64, next_seed());
    }
    if (ok) {
        soak(parties, count);
    } else {
        report_start("soak/open");
        report_result(false);
    }
    for (int i = 0; i < count; i++) {
        pool_close(&parties[i].pool);
        if (parties[i].comm != NULL) {
            trio.free(parties[i].comm);
        }
    }
}

/* ---- two communicators, two threads -------------------------------------------- */

/* Each thread has backends of its own on the same devices, as a target and a
 * draft model in one process have. */
struct worker {
    pthread_t   thread;
    int         n, wanted, done;
    uint64_t    seed;
    bool        ok;
};

static bool work(struct worker * w, struct pool * p, struct world * own) {
    if (!world_open(own, w->n)) {
        return false;
    }
    void * comm = trio.init(own->backend, w->n);
    if (comm == NULL) {
        report_note("comm_init returned NULL");
        return false;
    }
    bool ok = usual_pool(p, own, w->n, 4096, w->seed);
    while (ok && w->done < w->wanted) {
        ok = pool_step(p, comm, &w->done);
    }
    pool_close(p);
    trio.free(comm);
    return ok;
}

static void * worker_main(void * argument) {
    struct worker * w   = argument;
    struct world    own = { 0 };
    struct pool     pool;
    w->ok = work(w, &pool, &own);
    world_close(&own);
    return NULL;
}

static void run_two(int n) {
    struct worker workers[2];
    report_start("two-comms/n%d/%d reductions on each of two threads", n, options.two_comms);
    memset(workers, 0, sizeof(workers));
    for (int i = 0; i < 2; i++) {
        workers[i].n      = n;
        workers[i].wanted = options.two_comms;
        workers[i].seed   = next_seed();
        if (pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]) != 0) {
            workers[i].n = 0;
        }
    }
    bool ok = true;
    for (int i = 0; i < 2; i++) {
        ok = workers[i].n > 0 && pthread_join(workers[i].thread, NULL) == 0 && workers[i].ok && ok;
    }
    report_result(ok);
}

void case_two_comms(void) {
    for (int k = 0; k < options.n_ranks && (k < 2 || options.full); k++) {
        run_two(options.ranks[k]);
    }
}
