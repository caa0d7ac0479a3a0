/* A pool: sets of random size that come and go while they are reduced. */
#ifndef HARNESS_POOL_H
#define HARNESS_POOL_H

#include "set.h"

enum { POOL = 6, IN_FLIGHT = 4 };

/* Freed and allocated again, so that buffer handles and addresses come back
 * with other contents and sizes. What stands before random is the caller's. */
struct pool {
    const struct world * world;
    int                  n;
    enum kind            kind;
    enum accuracy        accuracy;
    int64_t              largest; /* elements, of the sets that are not of decode size: */
    unsigned             one_in;  /* so many */
    uint64_t             random;
    struct set           set[POOL];
};

bool pool_open(struct pool * p, uint64_t seed);
void pool_close(struct pool * p);

/* One to a few reductions without waiting in between, then a look at all of
 * their sums; now and then a set is replaced before. done grows by their number. */
bool pool_step(struct pool * p, void * comm, int * done);

#endif
