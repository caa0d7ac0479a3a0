/* Long runs: random reductions over tensors that come and go, and two
 * communicators on the same devices driven by two threads. */
#include "harness.h"

#include <pthread.h>
#include <string.h>

enum { POOL = 6, IN_FLIGHT = 4 };

/* Sets of random size; freed and allocated again, so that buffer handles and
 * addresses come back with other contents and sizes. */
struct pool {
    const struct world * world;
    int                  n;
    int64_t              largest;
    uint64_t             random;
    struct set           set[POOL];
};

static int64_t random_elements(struct pool * p) {
    const uint64_t r = random_next(&p->random);
    if (r % 16 == 0) {
        return (int64_t) ((r >> 8) % (uint64_t) p->largest) + 1;
    }
    return (int64_t) ((r >> 8) % 5000) + 1;
}

static bool renew(struct pool * p, int which) {
    struct set * set = &p->set[which];
    if (set->n > 0) {
        set_free(set);
    }
    return set_alloc(set, p->world, p->n, random_elements(p), random_next(&p->random) % 2 ? BINDING_VIEW : BINDING_PLAIN);
}

static bool pool_open(struct pool * p, const struct world * w, int n, int64_t largest, uint64_t seed) {
    memset(p, 0, sizeof(*p));
    p->world   = w;
    p->n       = n;
    p->largest = largest;
    p->random  = seed;
    bool ok = true;
    for (int i = 0; i < POOL; i++) {
        ok = renew(p, i) && ok;
    }
    return ok;
}

static void pool_close(struct pool * p) {
    for (int i = 0; i < POOL; i++) {
        if (p->set[i].n > 0) {
            set_free(&p->set[i]);
        }
    }
}

static uint32_t random_mask(struct pool * p) {
    const uint32_t all = (1u << p->n) - 1;
    const uint64_t r   = random_next(&p->random);
    return r % 2 ? all : (uint32_t) (r >> 8) & all;
}

/* Up to IN_FLIGHT reductions over different sets, now and then twice over the
 * same one, before anybody waits; then all are checked. */
static bool burst(struct pool * p, void * comm, int * done) {
    const int count = (int) (random_next(&p->random) % IN_FLIGHT) + 1;
    const int first = (int) (random_next(&p->random) % POOL);
    bool      ok    = true;
    for (int i = 0; i < count; i++) {
        set_fill(&p->set[(first + i) % POOL], usual_kind(), random_mask(p), random_next(&p->random));
    }
    for (int i = 0; i < count && ok; i++) {
        struct set * set = &p->set[(first + i) % POOL];
        ok = set_allreduce(set, comm);
        (*done)++;
        if (ok && options.accuracy == ACCURACY_EXACT && random_next(&p->random) % 4 == 0) {
            values_reduce(&set->values); /* what the second one starts from */
            for (int r = 0; r < set->n; r++) {
                operand_set_compute(&set->op[r], true);
            }
            ok = set_allreduce(set, comm);
            (*done)++;
        }
    }
    if (!ok) {
        report_note("refused: allreduce returned false");
    }
    world_synchronize(p->world, p->n);
    for (int i = 0; i < count && ok; i++) {
        ok = set_check(&p->set[(first + i) % POOL], options.accuracy);
    }
    return ok;
}

static bool step(struct pool * p, void * comm, int * done) {
    if (random_next(&p->random) % 6 == 0 && !renew(p, (int) (random_next(&p->random) % POOL))) {
        return false;
    }
    return burst(p, comm, done);
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
        ok = step(&parties[i % count].pool, parties[i % count].comm, &done);
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
        ok = party->comm != NULL && pool_open(&party->pool, &world, options.ranks[k], options.slot_bytes / 64, next_seed());
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
    bool ok = pool_open(p, own, w->n, 4096, w->seed);
    while (ok && w->done < w->wanted) {
        ok = step(p, comm, &w->done);
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
