#include "executor.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All ranks' submissions of one collective are made without another
 * collective's in between. Two communicators on the same queues would else be
 * able to interleave into a cycle: rank 0's queue waits for A behind B, rank
 * 1's for B behind A. */
static pthread_mutex_t collective = PTHREAD_MUTEX_INITIALIZER;

/* A value to fill in before a submission. */
struct relocation {
    uint64_t *slot;
    uint32_t  rank, queue;
    int64_t   value;
};

/* Neighbouring batches on one queue: one vkQueueSubmit. */
struct group {
    uint32_t rank, queue, first, count;
    int64_t  reached; /* timeline value after it, 0: none */
};

struct vkcomm_program {
    uint32_t                       batch_count, wait_count, relocation_count, group_count;
    VkSubmitInfo                  *infos;
    VkTimelineSemaphoreSubmitInfo *timelines;
    VkCommandBuffer               *commands;
    VkSemaphore                   *signals;
    uint64_t                      *signal_values;
    VkSemaphore                   *waits;
    uint64_t                      *wait_values;
    VkPipelineStageFlags          *wait_stages;
    struct relocation             *relocations;
    struct group                  *groups;
    uint64_t                       advance[VKCOMM_MAX_WORLD][VKCOMM_QUEUES];
    uint32_t                       relay_elements; /* 0: not relayed */
};

struct vkcomm_program *vkcomm_program_new(uint32_t batch_count, uint32_t wait_count) {
    struct vkcomm_program *p = calloc(1, sizeof(*p));
    if (!p) {
        return NULL;
    }
    size_t batches = batch_count, waits = wait_count + 1u; /* calloc(0) may be NULL */
    p->infos         = calloc(batches, sizeof(*p->infos));
    p->timelines     = calloc(batches, sizeof(*p->timelines));
    p->commands      = calloc(batches, sizeof(*p->commands));
    p->signals       = calloc(batches, sizeof(*p->signals));
    p->signal_values = calloc(batches, sizeof(*p->signal_values));
    p->groups        = calloc(batches, sizeof(*p->groups));
    p->waits         = calloc(waits, sizeof(*p->waits));
    p->wait_values   = calloc(waits, sizeof(*p->wait_values));
    p->wait_stages   = calloc(waits, sizeof(*p->wait_stages));
    p->relocations   = calloc(batches + waits, sizeof(*p->relocations));
    if (!p->infos || !p->timelines || !p->commands || !p->signals || !p->signal_values || !p->groups || !p->waits ||
        !p->wait_values || !p->wait_stages || !p->relocations) {
        vkcomm_program_free(p);
        return NULL;
    }
    return p;
}

void vkcomm_program_free(struct vkcomm_program *p) {
    if (p) {
        free(p->infos);
        free(p->timelines);
        free(p->commands);
        free(p->signals);
        free(p->signal_values);
        free(p->groups);
        free(p->waits);
        free(p->wait_values);
        free(p->wait_stages);
        free(p->relocations);
        free(p);
    }
}

static void relocate(struct vkcomm_program *p, uint64_t *slot, const struct vkcomm_point *point) {
    p->relocations[p->relocation_count++] =
        (struct relocation){ .slot = slot, .rank = point->rank, .queue = point->queue, .value = point->value };
}

void vkcomm_program_add(struct vkcomm_program *p, uint32_t rank, uint32_t queue, VkCommandBuffer commands,
                        uint32_t wait_count, const struct vkcomm_point *waits, struct vkcomm_point signal) {
    uint32_t b = p->batch_count++, w = p->wait_count;
    p->wait_count += wait_count;
    p->commands[b] = commands;
    p->signals[b]  = signal.semaphore;
    for (uint32_t i = 0; i < wait_count; i++) {
        p->waits[w + i]       = waits[i].semaphore;
        p->wait_stages[w + i] = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
        relocate(p, &p->wait_values[w + i], &waits[i]);
    }
    if (signal.value) {
        relocate(p, &p->signal_values[b], &signal);
    }
    p->timelines[b] = (VkTimelineSemaphoreSubmitInfo){
        .sType                     = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .waitSemaphoreValueCount   = wait_count,
        .pWaitSemaphoreValues      = &p->wait_values[w],
        .signalSemaphoreValueCount = signal.value ? 1 : 0,
        .pSignalSemaphoreValues    = &p->signal_values[b],
    };
    p->infos[b] = (VkSubmitInfo){
        .sType                = VK_STRUCTURE_TYPE_SUBMIT_INFO,
        .pNext                = &p->timelines[b],
        .waitSemaphoreCount   = wait_count,
        .pWaitSemaphores      = &p->waits[w],
        .pWaitDstStageMask    = &p->wait_stages[w],
        .commandBufferCount   = commands ? 1 : 0,
        .pCommandBuffers      = &p->commands[b],
        .signalSemaphoreCount = signal.value ? 1 : 0,
        .pSignalSemaphores    = &p->signals[b],
    };
    struct group *last = p->group_count ? &p->groups[p->group_count - 1] : NULL;
    if (!last || last->rank != rank || last->queue != queue) {
        last  = &p->groups[p->group_count++];
        *last = (struct group){ .rank = rank, .queue = queue, .first = b };
    }
    last->count++;
    if (signal.value) {
        last->reached = signal.value;
    }
}

void vkcomm_program_advance(struct vkcomm_program *p, uint32_t rank, uint32_t queue, uint64_t values) {
    p->advance[rank][queue] = values;
}

void vkcomm_program_relay(struct vkcomm_program *p, uint32_t elements) {
    p->relay_elements = elements;
}

/* Further than any reduction in flight will signal. */
#define BEYOND (1u << 20)

/* Lets every queue go that waits for a signal which will not come. The values
 * overtake what is pending; that is against the rules of vkSignalSemaphore, and
 * nothing comes after it but the end of the process. */
static void release_all(struct vkcomm_executor *x) {
    for (uint32_t r = 0; r < x->world; r++) {
        for (uint32_t q = 0; q < VKCOMM_QUEUES; q++) {
            if (x->timeline[r][q]) {
                vkcomm_vk_signal(&x->ranks[r], x->timeline[r][q], x->base[r][q] + BEYOND);
            }
            if (x->proxy[r][q]) {
                vkcomm_proxy_expect(x->proxy[r][q], x->base[r][q] + BEYOND);
            }
        }
    }
}

void vkcomm_executor_release(struct vkcomm_executor *x, const VkSemaphore *views) {
    for (uint32_t rank = 0; rank < x->world; rank++) {
        for (uint32_t i = 0; i < x->world * VKCOMM_QUEUES; i++, views++) {
            if (*views) {
                vkcomm_vk_signal(&x->ranks[rank], *views, x->base[i / VKCOMM_QUEUES][i % VKCOMM_QUEUES] + BEYOND);
            }
        }
    }
    release_all(x);
    x->released = true;
    /* A drain that follows waits for a value of its own beyond, not for one
     * that the timeline has by now. */
    for (uint32_t rank = 0; rank < x->world; rank++) {
        for (uint32_t queue = 0; queue < VKCOMM_QUEUES; queue++) {
            x->base[rank][queue] += BEYOND;
        }
    }
}

void vkcomm_executor_fatal(struct vkcomm_executor *x, const char *what, VkResult result) {
    static bool ending;
    while (__atomic_exchange_n(&ending, true, __ATOMIC_ACQ_REL)) {
        pause(); /* another thread has met the same end, and says so */
    }
    char line[256];
    snprintf(line, sizeof(line),
             "%s failed (VkResult %d) after part of an AllReduce was submitted; its result would be wrong, aborting",
             what, result);
    /* Not through the host's logger: llama.cpp's writes from a thread, which
     * has not done so when the process ends here, and llama-bench's drops it. */
    fprintf(stderr, "ggml_vk_comm: %s\n", line);
    release_all(x);
    abort();
}

/* ---- the trial ------------------------------------------------------------------ */

static bool in_trial(const struct vkcomm_executor *x) {
    return !__atomic_load_n(&x->in_use, __ATOMIC_ACQUIRE);
}

static void note(struct vkcomm_executor *x, const char *what, VkResult result) {
    __atomic_store_n(&x->failed_what, what, __ATOMIC_RELAXED);
    __atomic_store_n(&x->failed, (int32_t) result, __ATOMIC_RELEASE);
}

void vkcomm_executor_begin_trial(struct vkcomm_executor *x) {
    x->released = false;
    note(x, NULL, VK_SUCCESS);
}

VkResult vkcomm_executor_trial(const struct vkcomm_executor *x, const char **what) {
    VkResult failed = (VkResult) __atomic_load_n(&x->failed, __ATOMIC_ACQUIRE);
    *what           = __atomic_load_n(&x->failed_what, __ATOMIC_RELAXED);
    return failed;
}

void vkcomm_executor_use(struct vkcomm_executor *x) {
    __atomic_store_n(&x->in_use, true, __ATOMIC_RELEASE);
}

/* The proxy goes on in a trial: it is stopped once the failure is seen. */
void vkcomm_executor_proxy_failed(void *executor, const char *what, VkResult result) {
    if (in_trial(executor)) {
        note(executor, what, result);
        return;
    }
    vkcomm_executor_fatal(executor, what, result);
}

void vkcomm_executor_relay_failed(void *executor) {
    vkcomm_executor_fatal(executor, "waiting for a peer's relayed operand", VK_TIMEOUT);
}

void vkcomm_executor_hold_failed(void *executor, VkResult result) {
    vkcomm_executor_fatal(executor, "vkQueueSubmit", result);
}

void vkcomm_executor_flush(void *executor) {
    struct vkcomm_executor *x = executor;
    if (x->flush) {
        x->flush();
    }
}

/* A relayed reduction has no semaphores, and each rank's part is one command
 * buffer: the host may submit it along with its own work. */
static void hold(struct vkcomm_executor *x, const struct vkcomm_program *p) {
    for (uint32_t i = 0; i < p->batch_count; i++) {
        x->hold(x->ranks[p->groups[i].rank].queue[0], p->commands[i], vkcomm_executor_hold_failed, x);
    }
    vkcomm_relay_expect(x->relay, p->relay_elements);
}

VkResult vkcomm_executor_submit(struct vkcomm_executor *x, struct vkcomm_program *p) {
    pthread_mutex_lock(&collective);
    if (p->relay_elements && x->relay && !vkcomm_relay_ready(x->relay)) {
        pthread_mutex_unlock(&collective);
        return VK_NOT_READY;
    }
    if (p->relay_elements && x->relay && x->hold && !in_trial(x)) {
        hold(x, p);
        pthread_mutex_unlock(&collective);
        return VK_SUCCESS;
    }
    for (uint32_t i = 0; i < p->relocation_count; i++) {
        const struct relocation *r = &p->relocations[i];
        *r->slot = x->base[r->rank][r->queue] + (uint64_t) r->value;
    }
    for (uint32_t i = 0; i < p->group_count; i++) {
        const struct group *g = &p->groups[i];
        VkResult result = x->submit(x->ranks[g->rank].queue[g->queue], g->count, &p->infos[g->first], VK_NULL_HANDLE);
        if (result != VK_SUCCESS && i == 0) {
            pthread_mutex_unlock(&collective);
            return result;
        }
        if (result != VK_SUCCESS && in_trial(x)) {
            note(x, "vkQueueSubmit", result);
            pthread_mutex_unlock(&collective);
            return result;
        }
        if (result != VK_SUCCESS) {
            vkcomm_executor_fatal(x, "vkQueueSubmit", result);
        }
        if (i == 0 && p->relay_elements && x->relay) {
            vkcomm_relay_expect(x->relay, p->relay_elements); /* its number is taken by the kernel just submitted */
        }
        if (g->reached && x->proxy[g->rank][g->queue]) {
            vkcomm_proxy_expect(x->proxy[g->rank][g->queue], x->base[g->rank][g->queue] + (uint64_t) g->reached);
        }
    }
    for (uint32_t r = 0; r < x->world; r++) {
        for (uint32_t q = 0; q < VKCOMM_QUEUES; q++) {
            x->base[r][q] += p->advance[r][q];
        }
    }
    pthread_mutex_unlock(&collective);
    if (x->watch) {
        vkcomm_watch_expect(x->watch);
    }
    return VK_SUCCESS;
}

/* On a lost device the value may read as it was, so that a wait is asked as well. */
static VkResult look_at(const struct vkcomm_vk *rank, VkSemaphore timeline, uint64_t base, uint64_t *value) {
    VkResult result = vkcomm_vk_value(rank, timeline, value);
    return result == VK_SUCCESS && *value < base ? vkcomm_vk_wait(rank, timeline, base, 0) : result;
}

bool vkcomm_executor_in_flight(struct vkcomm_executor *x, uint64_t *done, uint32_t *behind) {
    uint64_t base[VKCOMM_MAX_WORLD][VKCOMM_QUEUES];
    bool     busy = false;
    pthread_mutex_lock(&collective);
    memcpy(base, x->base, sizeof(base));
    pthread_mutex_unlock(&collective);
    *done = 0;
    for (uint32_t r = 0; r < x->world; r++) {
        for (uint32_t q = 0; q < VKCOMM_QUEUES; q++) {
            uint64_t value  = 0;
            VkResult result = x->timeline[r][q] ? look_at(&x->ranks[r], x->timeline[r][q], base[r][q], &value) : VK_SUCCESS;
            if (result == VK_TIMEOUT) {
                busy    = true;
                *behind = r;
            } else if (result != VK_SUCCESS) {
                vkcomm_executor_fatal(x, "looking at a rank's queue", result);
            }
            *done += value;
        }
    }
    return busy;
}

/* A rank may wait for ever once something has failed. */
static VkResult wait_in_trial(struct vkcomm_executor *x, uint32_t rank, VkSemaphore timeline, uint64_t value,
                              uint64_t timeout_ns) {
    const uint64_t look_ns = 20000000;
    const char    *what;
    for (;;) {
        VkResult failed = x->released ? VK_SUCCESS : vkcomm_executor_trial(x, &what);
        if (failed != VK_SUCCESS) {
            return failed;
        }
        uint64_t slice  = timeout_ns < look_ns ? timeout_ns : look_ns;
        VkResult result = vkcomm_vk_wait(&x->ranks[rank], timeline, value, slice);
        timeout_ns -= slice;
        if (result != VK_TIMEOUT || timeout_ns == 0) {
            return result;
        }
    }
}

static VkResult drain_queue(struct vkcomm_executor *x, uint32_t rank, uint32_t queue, uint64_t timeout_ns) {
    vkcomm_executor_flush(x); /* the peers' parts, for which this rank may wait */
    pthread_mutex_lock(&collective);
    VkSemaphore timeline = x->timeline[rank][queue];
    uint64_t    value    = x->base[rank][queue] + 1;

    VkTimelineSemaphoreSubmitInfo values = { .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                             .signalSemaphoreValueCount = 1,
                                             .pSignalSemaphoreValues    = &value };
    VkSubmitInfo info = { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .pNext = &values, .signalSemaphoreCount = 1,
                          .pSignalSemaphores = &timeline };
    VkResult result = x->submit(x->ranks[rank].queue[queue], 1, &info, VK_NULL_HANDLE);
    if (result == VK_SUCCESS) {
        x->base[rank][queue] = value;
    }
    pthread_mutex_unlock(&collective);
    if (result != VK_SUCCESS) {
        return result;
    }
    return in_trial(x) ? wait_in_trial(x, rank, timeline, value, timeout_ns)
                       : vkcomm_vk_wait(&x->ranks[rank], timeline, value, timeout_ns);
}

VkResult vkcomm_executor_drain(struct vkcomm_executor *x, uint32_t rank, uint64_t timeout_ns) {
    VkResult result = drain_queue(x, rank, 0, timeout_ns);
    /* The compute queue waits for all copies, unless it was released from that. */
    if (result == VK_SUCCESS && x->released && x->timeline[rank][1]) {
        result = drain_queue(x, rank, 1, timeout_ns);
    }
    return result;
}

void vkcomm_executor_synchronized(void *argument, bool covered) {
    struct vkcomm_drain    *drain    = argument;
    struct vkcomm_executor *executor = drain->executor;
    VkResult result = covered ? VK_SUCCESS : vkcomm_executor_drain(executor, drain->rank, UINT64_MAX);
    if (result != VK_SUCCESS) {
        vkcomm_executor_fatal(executor, "waiting for a rank's queue", result);
    }
    if (executor->relay && vkcomm_relay_has_failed(executor->relay)) {
        vkcomm_executor_relay_failed(executor);
    }
}
