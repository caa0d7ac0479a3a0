/* What the cases share: options, and the backends that all of them use. */
#ifndef HARNESS_H
#define HARNESS_H

#include "report.h"
#include "set.h"

enum { MAX_SIZES = 64, MAX_FILTERS = 16 };

struct options {
    const char *  libdir;
    const char *  filters[MAX_FILTERS];
    int           n_filters;
    int           ranks[MAX_RANKS]; /* world sizes to run */
    int           n_ranks;
    int64_t       sizes[MAX_SIZES]; /* elements; empty: the preset */
    int           n_sizes;
    int64_t       slot_bytes; /* half of a rank's staging */
    enum accuracy accuracy;
    uint64_t      seed;
    int           repeat;
    int           soak, life, two_comms, order, turns; /* iterations */
    bool          quick, full, expect_stock;
    unsigned      timeout;
};

extern struct options options;
extern struct world   world; /* as many ranks as the largest world size */

/* Values that suit the accuracy asked for. */
enum kind usual_kind(void);

/* comm_init over the first n ranks; a failure is a "not ok NAME/init". */
void * open_comm(const char * name, int n);

/* A number that differs per call and follows --seed. */
uint64_t next_seed(void);

/* The cases; each prints its own result lines. */
void case_data(void);
void case_lookup(void);
void case_sizes(void);
void case_large(void);
void case_signed_zero(void);
void case_denormal(void);
void case_nan(void);
void case_refusals(void);
void case_init(void);
void case_life(void);
void case_order(void);
void case_two_comms(void);
void case_soak(void);
void case_turns(void);
void case_proxy_idle(void);
void case_held(void);

#endif
