#define _GNU_SOURCE
#include "watch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../ggml_comm.h"
#include "executor.h"

/* Looks are counted, not time: a process that was stopped has not been waiting.
 * A part of a prompt may take seconds, hence a line and not the end. */
enum { LOOK_SECONDS = 1, QUIET_LOOKS = 30 };

struct vkcomm_watch {
    struct vkcomm_executor *executor;
    pthread_t               thread;
    unsigned                quiet; /* looks since the timelines moved */
    uint64_t                done;  /* their sum at the latest look */
    bool                    stop;
    atomic_bool             asleep;
    pthread_mutex_t         lock;
    pthread_cond_t          wake;
};

/* false: everything submitted is done. */
static bool look(struct vkcomm_watch *w) {
    uint64_t done;
    uint32_t behind;
    if (!vkcomm_executor_in_flight(w->executor, &done, &behind)) {
        w->quiet = 0;
        return false;
    }
    w->quiet = done == w->done ? w->quiet + 1 : 0;
    w->done  = done;
    if (w->quiet == QUIET_LOOKS && w->executor->log) {
        char line[128];
        snprintf(line, sizeof(line), "rank %u has not got on with an AllReduce for %d s; still waiting", behind,
                 QUIET_LOOKS * LOOK_SECONDS);
        w->executor->log(VKCOMM_GGML_LOG_LEVEL_WARN, line);
    }
    return true;
}

/* false: stop */
static bool pass_time(struct vkcomm_watch *w) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += LOOK_SECONDS;
    pthread_mutex_lock(&w->lock);
    while (!w->stop && pthread_cond_timedwait(&w->wake, &w->lock, &until) == 0) {
    }
    bool go_on = !w->stop;
    pthread_mutex_unlock(&w->lock);
    return go_on;
}

static void sleep_until_expected(struct vkcomm_watch *w) {
    pthread_mutex_lock(&w->lock);
    while (atomic_load(&w->asleep) && !w->stop) {
        pthread_cond_wait(&w->wake, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
}

/* asleep is raised before the last look, and read after a submission was booked:
 * either the look sees it, or the submission wakes the thread. */
static void *run(void *argument) {
    struct vkcomm_watch *w = argument;
    do {
        if (atomic_load(&w->asleep)) {
            sleep_until_expected(w);
        } else if (!look(w)) {
            atomic_store(&w->asleep, true);
            if (look(w)) {
                atomic_store(&w->asleep, false);
            }
        }
    } while (pass_time(w));
    return NULL;
}

struct vkcomm_watch *vkcomm_watch_start(struct vkcomm_executor *executor) {
    struct vkcomm_watch *w = calloc(1, sizeof(*w));
    if (!w) {
        return NULL;
    }
    w->executor = executor;
    atomic_store(&w->asleep, true);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&w->wake, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&w->lock, NULL);
    if (pthread_create(&w->thread, NULL, run, w) != 0) {
        pthread_cond_destroy(&w->wake);
        pthread_mutex_destroy(&w->lock);
        free(w);
        return NULL;
    }
    pthread_setname_np(w->thread, "vkcomm-watch");
    return w;
}

void vkcomm_watch_expect(struct vkcomm_watch *w) {
    if (atomic_load(&w->asleep)) {
        pthread_mutex_lock(&w->lock);
        atomic_store(&w->asleep, false);
        pthread_cond_signal(&w->wake);
        pthread_mutex_unlock(&w->lock);
    }
}

void vkcomm_watch_stop(struct vkcomm_watch *w) {
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_signal(&w->wake);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}
