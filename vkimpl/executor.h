/*
 * The hot path: submits a schedule whose command buffers are recorded. A
 * program holds ready-made VkSubmitInfos; a submission fills in the timeline
 * values and calls vkQueueSubmit, nothing else. It allocates nothing, waits for
 * nothing, and is one call from Go.
 */
#ifndef VKCOMM_EXECUTOR_H
#define VKCOMM_EXECUTOR_H

#include "dispatch.h"
#include "proxy.h"
#include "relay.h"
#include "watch.h"

enum { VKCOMM_MAX_WORLD = 16, VKCOMM_QUEUES = 2 };

typedef VkResult (*vkcomm_submit_fn)(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence);
typedef void (*vkcomm_log_fn)(int level, const char *line);
/* Lets commands go out with the host's next submission to the queue, and all such
 * at once. failed(context, result) is called should that fail. */
typedef void (*vkcomm_hold_fn)(VkQueue queue, VkCommandBuffer commands, void (*failed)(void *context, VkResult result),
                                void *context);
typedef void (*vkcomm_flush_fn)(void);

struct vkcomm_executor;

/* Argument of vkcomm_executor_synchronized. */
struct vkcomm_drain {
    struct vkcomm_executor *executor;
    uint32_t                rank;
};

/* State of one communicator's queues. timeline[r][q] is signalled by queue q of
 * rank r and was last submitted to reach base[r][q]. */
struct vkcomm_executor {
    uint32_t             world;
    struct vkcomm_vk     ranks[VKCOMM_MAX_WORLD];
    VkSemaphore          timeline[VKCOMM_MAX_WORLD][VKCOMM_QUEUES];
    uint64_t             base[VKCOMM_MAX_WORLD][VKCOMM_QUEUES];
    struct vkcomm_proxy *proxy[VKCOMM_MAX_WORLD][VKCOMM_QUEUES]; /* NULL: native */
    struct vkcomm_relay *relay; /* NULL: none */
    struct vkcomm_watch *watch; /* NULL: not in use, or no thread was to be had */
    vkcomm_submit_fn     submit;
    vkcomm_hold_fn       hold; /* NULL, and flush with it: everything is submitted at once */
    vkcomm_flush_fn      flush;
    vkcomm_log_fn        log;
    struct vkcomm_drain  drains[VKCOMM_MAX_WORLD];
    /* Until the host's tensors are reduced, nothing is lost by giving up: what
     * fails is noted here, by whichever thread, and the communicator is not used. */
    bool                 in_use, released;
    const char          *failed_what;
    int32_t              failed; /* VkResult */
};

/* One point of a timeline: value relative to the base at submission. */
struct vkcomm_point {
    VkSemaphore semaphore; /* as the waiting or signalling device knows it */
    uint32_t    rank, queue;
    int64_t     value;
};

struct vkcomm_program;

/* Room for batch_count batches with wait_count waits between them all, to be
 * added in submission order. NULL when out of memory. */
struct vkcomm_program *vkcomm_program_new(uint32_t batch_count, uint32_t wait_count);
void vkcomm_program_free(struct vkcomm_program *program);

/* signal.value 0: the batch signals nothing. */
void vkcomm_program_add(struct vkcomm_program *program, uint32_t rank, uint32_t queue, VkCommandBuffer commands,
                        uint32_t wait_count, const struct vkcomm_point *waits, struct vkcomm_point signal);

/* The program moves timeline (rank, queue) by this much in all. */
void vkcomm_program_advance(struct vkcomm_program *program, uint32_t rank, uint32_t queue, uint64_t values);

/* The program is a relayed reduction of so many elements. */
void vkcomm_program_relay(struct vkcomm_program *program, uint32_t elements);

/* A new trial: forgets what failed in the one before, whose semaphores are gone. */
void vkcomm_executor_begin_trial(struct vkcomm_executor *executor);

/* VK_SUCCESS, or what has failed in the trial; *what then says where. */
VkResult vkcomm_executor_trial(const struct vkcomm_executor *executor, const char **what);

/* Ends the trial: from now on failures are fatal. */
void vkcomm_executor_use(struct vkcomm_executor *executor);

/* Submits all batches. VK_SUCCESS, or the error of the very first submission,
 * after which nothing has happened; VK_NOT_READY, likewise, when too many relayed
 * reductions are in flight. A later failure does not return, unless in the trial:
 * queues that wait are released, one line is logged, and the process aborts, as
 * ggml does on a lost device. */
VkResult vkcomm_executor_submit(struct vkcomm_executor *executor, struct vkcomm_program *program);

/* Waits until everything submitted to a rank's compute queue is complete, and
 * with it the rank's part of every reduction: a schedule ends there. In a trial
 * it ends as soon as something has failed, until the queues are released. */
VkResult vkcomm_executor_drain(struct vkcomm_executor *executor, uint32_t rank, uint64_t timeout_ns);

/* For a host that synchronised the rank. Waits without a limit where the host's
 * own wait did not cover our work, and lets no failed relay pass: either failure
 * is fatal. */
void vkcomm_executor_synchronized(void *drain, bool covered);

/* false: everything that was submitted to move a timeline is done. Else how much
 * is, which grows, and a rank that has more to do. A lost device is fatal. */
bool vkcomm_executor_in_flight(struct vkcomm_executor *executor, uint64_t *done, uint32_t *behind);

/* Lets every queue go that waits for this communicator, whatever it waits for.
 * views: all semaphores that ranks wait on, [rank][peer][queue]. For a
 * communicator that turned out not to work and is not used again. */
void vkcomm_executor_release(struct vkcomm_executor *executor, const VkSemaphore *views);

/* Logs an ERROR line and aborts, with every timeline that will no longer be
 * signalled released. */
void vkcomm_executor_fatal(struct vkcomm_executor *executor, const char *what, VkResult result)
    __attribute__((noreturn));

/* The same with the signatures of the threads' failure callbacks. */
void vkcomm_executor_proxy_failed(void *executor, const char *what, VkResult result);
void vkcomm_executor_relay_failed(void *executor);
void vkcomm_executor_hold_failed(void *executor, VkResult result);

/* Submits what is held back for whichever queue. */
void vkcomm_executor_flush(void *executor);

#endif
