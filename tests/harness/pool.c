#include "pool.h"

#include "report.h"

#include <string.h>

static int64_t random_elements(struct pool * p) {
    const uint64_t r = random_next(&p->random);
    if (r % p->one_in == 0) {
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

bool pool_open(struct pool * p, uint64_t seed) {
    memset(p->set, 0, sizeof(p->set));
    p->random = seed;
    bool ok   = true;
    for (int i = 0; i < POOL; i++) {
        ok = renew(p, i) && ok;
    }
    return ok;
}

void pool_close(struct pool * p) {
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
        set_fill(&p->set[(first + i) % POOL], p->kind, random_mask(p), random_next(&p->random));
    }
    for (int i = 0; i < count && ok; i++) {
        struct set * set = &p->set[(first + i) % POOL];
        ok = set_allreduce(set, comm);
        (*done)++;
        if (ok && p->accuracy == ACCURACY_EXACT && random_next(&p->random) % 4 == 0) {
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
        ok = set_check(&p->set[(first + i) % POOL], p->accuracy);
    }
    return ok;
}

bool pool_step(struct pool * p, void * comm, int * done) {
    if (random_next(&p->random) % 6 == 0 && !renew(p, (int) (random_next(&p->random) % POOL))) {
        return false;
    }
    return burst(p, comm, done);
}
