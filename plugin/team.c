#define _GNU_SOURCE
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../vkimpl/spin.h"

enum { MAX_TEAM = 16 };

/* How long a thread polls for its next part, or for the others' end, before it
 * sleeps: the parts of a token follow each other within 200 us. Where there are
 * fewer than two CPUs a rank it would only keep the others from their work. */
#define SPIN_NS 300000

struct member {
    struct vkcomm_team *team;
    pthread_t           thread;
    _Atomic uint32_t    given, done; /* parts */
    atomic_bool         asleep;
    struct ggml_backend *backend;
    /* of the latest part given; written while done equals given */
    struct ggml_cgraph *graph;
    vkcomm_ggml_backend_graph_compute_async_fn   compute;
    int                 status;
};

struct vkcomm_team {
    const void              *comm;
    unsigned                 world, started;
    bool                     threads;
    uint64_t                 spin_ns;
    unsigned                 turn;    /* the rank whose call is due */
    bool                     allowed; /* the latest reduction was ours */
    bool                     clean;   /* nothing has come in between in this round */
    bool                     proven;  /* nor in the one before */
    uint64_t                 began;   /* ns, of rank 0's call */
    struct vkcomm_team_stats stats;
    atomic_bool              stop;
    pthread_mutex_t          lock;
    pthread_cond_t           wake, done;
    atomic_bool              gathering; /* the caller sleeps until somebody is done */
    struct member            members[MAX_TEAM];
    struct vkcomm_team      *next;
};

static struct vkcomm_team *teams;
static atomic_uint         team_count;
static pthread_mutex_t     teams_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- a member's thread ---------------------------------------------------------------- */

static bool idle(const struct member *m) {
    return atomic_load(&m->given) == atomic_load(&m->done);
}

/* asleep is raised before given is read, and given stored before asleep is read. */
static bool wait_for_part(struct member *m) {
    struct vkcomm_team *team = m->team;
    for (uint64_t since = now_ns(); idle(m) && !atomic_load(&team->stop) && now_ns() - since < team->spin_ns;) {
        pause_cpu();
    }
    if (idle(m)) {
        pthread_mutex_lock(&team->lock);
        atomic_store(&m->asleep, true);
        while (idle(m) && !atomic_load(&team->stop)) {
            pthread_cond_wait(&team->wake, &team->lock);
        }
        atomic_store(&m->asleep, false);
        pthread_mutex_unlock(&team->lock);
    }
    return !idle(m);
}

static void *run(void *argument) {
    struct member      *m    = argument;
    struct vkcomm_team *team = m->team;
    while (wait_for_part(m)) {
        m->status = m->compute(m->backend, m->graph);
        atomic_fetch_add(&m->done, 1);
        if (atomic_load(&team->gathering)) {
            pthread_mutex_lock(&team->lock);
            pthread_cond_signal(&team->done);
            pthread_mutex_unlock(&team->lock);
        }
    }
    return NULL;
}

static void give(struct member *m, struct ggml_cgraph *graph, vkcomm_ggml_backend_graph_compute_async_fn compute) {
    m->graph   = graph;
    m->compute = compute;
    atomic_fetch_add(&m->given, 1);
    if (atomic_load(&m->asleep)) {
        pthread_mutex_lock(&m->team->lock);
        pthread_cond_broadcast(&m->team->wake);
        pthread_mutex_unlock(&m->team->lock);
    }
}

static void wait_until_idle(struct vkcomm_team *team, const struct member *m) {
    for (uint64_t since = now_ns(); !idle(m) && now_ns() - since < team->spin_ns;) {
        pause_cpu();
    }
    if (!idle(m)) {
        pthread_mutex_lock(&team->lock);
        atomic_store(&team->gathering, true);
        while (!idle(m)) {
            pthread_cond_wait(&team->done, &team->lock);
        }
        atomic_store(&team->gathering, false);
        pthread_mutex_unlock(&team->lock);
    }
}

/* Until all that was given has been computed. */
static void settle(struct vkcomm_team *team) {
    for (unsigned r = 0; r < team->turn; r++) {
        wait_until_idle(team, &team->members[r]);
    }
}

/* Ends a round: the first rank's status that is not success, or status. */
static int gather(struct vkcomm_team *team, int status) {
    settle(team);
    for (unsigned r = team->turn; r-- > 0;) {
        struct member *m = &team->members[r];
        status    = m->status != VKCOMM_GGML_STATUS_SUCCESS ? m->status : status;
        m->status = VKCOMM_GGML_STATUS_SUCCESS; /* told once */
    }
    team->turn = 0;
    return status;
}

static unsigned cpus(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) == 0 ? (unsigned) CPU_COUNT(&set) : 1;
}

/* ---- the caller's side ------------------------------------------------------------------ */

/* A backend belongs to one llama_context, whose one thread makes all these calls. */
static struct vkcomm_team *find(const struct ggml_backend *backend, unsigned *rank) {
    struct vkcomm_team *found = NULL;
    if (atomic_load_explicit(&team_count, memory_order_acquire) == 0) {
        return NULL;
    }
    pthread_mutex_lock(&teams_lock);
    for (struct vkcomm_team *t = teams; t && !found; t = t->next) {
        for (unsigned r = 0; r < t->world; r++) {
            if (t->members[r].backend == backend) {
                found = t;
                *rank = r;
            }
        }
    }
    pthread_mutex_unlock(&teams_lock);
    return found;
}

static struct vkcomm_team *find_of_comm(const void *comm) {
    if (atomic_load_explicit(&team_count, memory_order_acquire) == 0) {
        return NULL;
    }
    pthread_mutex_lock(&teams_lock);
    struct vkcomm_team *team = teams;
    while (team && team->comm != comm) {
        team = team->next;
    }
    pthread_mutex_unlock(&teams_lock);
    return team;
}

/* The caller has something else to do with the ranks in the midst of a round. */
static void interrupted(struct vkcomm_team *team) {
    if (team->turn > 0) {
        settle(team);
        team->clean = team->proven = false;
    }
}

int vkcomm_team_compute(struct ggml_backend *backend, struct ggml_cgraph *graph, vkcomm_ggml_backend_graph_compute_async_fn compute) {
    unsigned            rank = 0;
    struct vkcomm_team *team = find(backend, &rank);
    if (!team) {
        return compute(backend, graph);
    }
    if (rank != team->turn) {
        interrupted(team);
        int status = gather(team, VKCOMM_GGML_STATUS_SUCCESS);
        if (status != VKCOMM_GGML_STATUS_SUCCESS || rank != 0) {
            team->proven = false;
            return status != VKCOMM_GGML_STATUS_SUCCESS ? status : compute(backend, graph);
        }
    }
    if (rank == 0) {
        team->began = now_ns();
        team->clean = true;
    }
    team->turn++;
    if (rank + 1 < team->world && team->threads && team->allowed && team->proven) {
        give(&team->members[rank], graph, compute);
        return VKCOMM_GGML_STATUS_SUCCESS; /* or what it turns out to be, in gather() */
    }
    int status = compute(backend, graph);
    if (rank + 1 == team->world) {
        status       = gather(team, status);
        team->proven = team->clean;
        team->stats.parts += team->allowed;
        team->stats.ns += team->allowed ? now_ns() - team->began : 0;
    }
    return status;
}

void vkcomm_team_synchronizes(const struct ggml_backend *backend) {
    unsigned            rank = 0;
    struct vkcomm_team *team = find(backend, &rank);
    if (team) {
        interrupted(team);
    }
}

void vkcomm_team_reduces(const void *comm) {
    struct vkcomm_team *team = find_of_comm(comm);
    if (team) {
        interrupted(team);
    }
}

void vkcomm_team_reduced(const void *comm, bool done) {
    struct vkcomm_team *team = find_of_comm(comm);
    if (team) {
        team->allowed = done;
    }
}

/* ---- life --------------------------------------------------------------------------------- */

static void end(struct vkcomm_team *team) {
    pthread_mutex_lock(&team->lock);
    atomic_store(&team->stop, true);
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->lock);
    for (unsigned r = 0; r < team->started; r++) {
        pthread_join(team->members[r].thread, NULL);
    }
    pthread_cond_destroy(&team->wake);
    pthread_cond_destroy(&team->done);
    pthread_mutex_destroy(&team->lock);
    free(team);
}

struct vkcomm_team *vkcomm_team_start(const void *comm, struct ggml_backend *const *backends, unsigned world, bool threads) {
    struct vkcomm_team *team = world <= MAX_TEAM ? calloc(1, sizeof(*team)) : NULL;
    if (!team) {
        return NULL;
    }
    team->comm    = comm;
    team->world   = world;
    team->threads = threads;
    team->spin_ns = cpus() >= 2 * world ? SPIN_NS : 0;
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->wake, NULL);
    pthread_cond_init(&team->done, NULL);
    for (unsigned r = 0; r < world; r++) {
        struct member *m = &team->members[r];
        m->team    = team;
        m->backend = backends[r];
        if (!threads || r + 1 == world) {
            continue;
        }
        if (pthread_create(&m->thread, NULL, run, m) != 0) {
            end(team);
            return NULL;
        }
        team->started++;
        char name[16]; /* the kernel's limit */
        snprintf(name, sizeof(name), "vkcomm-rank%u", r % MAX_TEAM);
        pthread_setname_np(m->thread, name);
    }
    pthread_mutex_lock(&teams_lock);
    team->next = teams;
    teams      = team;
    atomic_fetch_add(&team_count, 1);
    pthread_mutex_unlock(&teams_lock);
    return team;
}

void vkcomm_team_stop(struct vkcomm_team *team, struct vkcomm_team_stats *stats) {
    pthread_mutex_lock(&teams_lock);
    struct vkcomm_team **at = &teams;
    while (*at != team) {
        at = &(*at)->next;
    }
    *at = team->next;
    atomic_fetch_sub(&team_count, 1);
    pthread_mutex_unlock(&teams_lock);
    gather(team, VKCOMM_GGML_STATUS_SUCCESS);
    *stats = team->stats;
    end(team);
}
