/* Two queues where the driver has one. Each is a lane: a list of batches and a
 * thread that takes them in order, waits on the host for what a batch waits for,
 * and only then gives it to the driver's queue, on which therefore nothing ever
 * waits for what comes behind it. Lanes do not wait for each other. */
#define _GNU_SOURCE
#include "layer.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct batch {
    struct batch *       next;
    VkFence              fence;
    uint32_t             waits, commands, signals; /* commands 0 and no signals: a fence alone */
    bool                 work;
    VkSemaphore *        wait, *signal;
    uint64_t *           wait_value, *signal_value;
    VkCommandBuffer *    command;
};

struct lane {
    struct queues * queues;
    struct batch *  first, **last;
    bool            busy;
    unsigned        seed;
    pthread_t       thread;
};

/* A binary semaphore: it is signalled once its signal operation is on the
 * driver's queue, where a wait for it is then in order. */
struct binary {
    VkSemaphore     handle;
    bool            signalled;
    struct binary * next;
};

struct queues {
    void *          loader; /* first: a pointer to this is the handle of the second queue */
    struct device * device;
    VkQueue         real;
    struct lane     lanes[2];
    struct binary * binaries;
    bool            stop;
    pthread_mutex_t lock, real_lock; /* the second: of the driver's queue */
    pthread_cond_t  changed;
};

/* ---- batches ----------------------------------------------------------------------------------- */

static void * copy(const void * from, size_t count, size_t size) {
    void * to = calloc(count + 1, size);
    if (to == NULL) {
        layer_fail("out of memory");
    }
    return from != NULL && count > 0 ? memcpy(to, from, count * size) : to;
}

static struct batch * make_batch(const VkSubmitInfo * info, VkFence fence) {
    static const VkSubmitInfo           nothing;
    const VkTimelineSemaphoreSubmitInfo none = { .waitSemaphoreValueCount = 0 }, *t = &none;
    struct batch *                      b    = copy(NULL, 0, sizeof(*b));
    for (const VkBaseInStructure * s = info != NULL ? info->pNext : NULL; s != NULL; s = s->pNext) {
        if (s->sType != VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO) {
            layer_fail("a submission extended by structure %d is not emulated", (int) s->sType);
        }
        t = (const VkTimelineSemaphoreSubmitInfo *) s;
    }
    b->work         = info != NULL;
    info            = info != NULL ? info : &nothing;
    b->fence        = fence;
    b->waits        = info->waitSemaphoreCount;
    b->commands     = info->commandBufferCount;
    b->signals      = info->signalSemaphoreCount;
    b->wait         = copy(info->pWaitSemaphores, b->waits, sizeof(*b->wait));
    b->signal       = copy(info->pSignalSemaphores, b->signals, sizeof(*b->signal));
    b->command      = copy(info->pCommandBuffers, b->commands, sizeof(*b->command));
    b->wait_value   = copy(NULL, b->waits, sizeof(*b->wait_value));
    b->signal_value = copy(NULL, b->signals, sizeof(*b->signal_value));
    for (uint32_t i = 0; i < b->waits && i < t->waitSemaphoreValueCount; i++) {
        b->wait_value[i] = t->pWaitSemaphoreValues[i];
    }
    for (uint32_t i = 0; i < b->signals && i < t->signalSemaphoreValueCount; i++) {
        b->signal_value[i] = t->pSignalSemaphoreValues[i];
    }
    return b;
}

static void free_batch(struct batch * b) {
    free(b->wait);
    free(b->signal);
    free(b->command);
    free(b->wait_value);
    free(b->signal_value);
    free(b);
}

/* ---- lanes --------------------------------------------------------------------------------------- */

static struct binary * find_binary(struct queues * q, VkSemaphore handle) {
    struct binary * b = q->binaries;
    while (b != NULL && b->handle != handle) {
        b = b->next;
    }
    return b;
}

/* Waits until the driver's queue could run the batch at once. What is left in
 * wait are binary semaphores that were signalled before it. */
static void wait_for(struct queues * q, struct batch * b) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < b->waits; i++) {
        const VkSemaphoreWaitInfo info = { .sType          = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                           .semaphoreCount = 1,
                                           .pSemaphores    = &b->wait[i],
                                           .pValues        = &b->wait_value[i] };
        pthread_mutex_lock(&q->lock);
        struct binary * binary = find_binary(q, b->wait[i]);
        while (binary != NULL && !binary->signalled) {
            pthread_cond_wait(&q->changed, &q->lock);
        }
        if (binary != NULL) {
            binary->signalled = false;
            b->wait[kept++]   = b->wait[i];
        }
        pthread_mutex_unlock(&q->lock);
        if (binary == NULL && q->device->driver.WaitSemaphores(q->device->handle, &info, UINT64_MAX) != VK_SUCCESS) {
            layer_fail("a wait on behalf of a queue failed");
        }
    }
    b->waits = kept;
}

static void hand_over(struct queues * q, struct batch * b) {
    VkPipelineStageFlags * stages = copy(NULL, b->waits, sizeof(*stages));
    for (uint32_t i = 0; i < b->waits; i++) {
        stages[i] = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    }
    const VkTimelineSemaphoreSubmitInfo values = { .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                                   .signalSemaphoreValueCount = b->signals,
                                                   .pSignalSemaphoreValues    = b->signal_value };
    const VkSubmitInfo info = { .sType                = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                .pNext                = &values,
                                .waitSemaphoreCount   = b->waits,
                                .pWaitSemaphores      = b->wait,
                                .pWaitDstStageMask    = stages,
                                .commandBufferCount   = b->commands,
                                .pCommandBuffers      = b->command,
                                .signalSemaphoreCount = b->signals,
                                .pSignalSemaphores    = b->signal };
    pthread_mutex_lock(&q->real_lock);
    const VkResult result = q->device->driver.QueueSubmit(q->real, b->work, &info, b->fence);
    pthread_mutex_unlock(&q->real_lock);
    if (result != VK_SUCCESS) {
        layer_fail("the driver refuses a submission: VkResult %d", result);
    }
    free(stages);
}

/* Between two queues of a GPU anything may come first. Here the driver's queue
 * would mostly keep the order of submission, and hide a wait that is missing. */
static void be_late(struct lane * lane) {
    enum { MOST_NS = 500000 };
    if (traits_of(lane->queues->device->index) & JITTER) {
        nanosleep(&(struct timespec) { 0, rand_r(&lane->seed) % MOST_NS }, NULL);
    }
}

static void * run(void * argument) {
    struct lane *   lane = argument;
    struct queues * q    = lane->queues;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (lane->first == NULL && !q->stop) {
            pthread_cond_wait(&q->changed, &q->lock);
        }
        struct batch * b = lane->first;
        if (b == NULL) {
            break;
        }
        lane->first = b->next;
        lane->last  = b->next != NULL ? lane->last : &lane->first;
        lane->busy  = true;
        pthread_mutex_unlock(&q->lock);
        wait_for(q, b);
        be_late(lane);
        hand_over(q, b);
        pthread_mutex_lock(&q->lock);
        for (uint32_t i = 0; i < b->signals; i++) {
            struct binary * binary = find_binary(q, b->signal[i]);
            if (binary != NULL) {
                binary->signalled = true;
            }
        }
        free_batch(b);
        lane->busy = false;
        pthread_cond_broadcast(&q->changed);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

static struct lane * lane_of(struct queues * q, VkQueue queue) {
    return &q->lanes[(void *) queue == (void *) q];
}

/* Until all that was submitted to a lane is on the driver's queue. */
static void empty(struct queues * q, const struct lane * lane) {
    pthread_mutex_lock(&q->lock);
    while (lane->first != NULL || lane->busy) {
        pthread_cond_wait(&q->changed, &q->lock);
    }
    pthread_mutex_unlock(&q->lock);
}

/* ---- commands ------------------------------------------------------------------------------------- */

/* Which queue a reduction uses is not in the plugin's lines. */
static void tell(struct device * device, const struct lane * lane) {
    static uint64_t said;
    const uint64_t  bit = (uint64_t) 1 << device->index;
    if (lane == &device->queues->lanes[1] && fault_called_by_plugin() && !(__atomic_fetch_or(&said, bit, __ATOMIC_RELAXED) & bit)) {
        fprintf(stderr, "vkcomm_layer: the plugin uses the transfer queue of device %u\n", device->index);
    }
}

static VKAPI_ATTR VkResult VKAPI_CALL submit(VkQueue queue, uint32_t count, const VkSubmitInfo * infos, VkFence fence) {
    struct device * device = device_of(KEY(queue));
    struct queues * q      = device->queues;
    semaphores_submitted(device, count, infos);
    if (q == NULL) {
        return device->driver.QueueSubmit(queue, count, infos, fence);
    }
    struct lane * lane = lane_of(q, queue);
    tell(device, lane);
    pthread_mutex_lock(&q->lock);
    for (uint32_t i = 0; i < count || (i == 0 && fence != VK_NULL_HANDLE); i++) {
        struct batch * b = make_batch(count > 0 ? &infos[i] : NULL, i + 1 >= count ? fence : VK_NULL_HANDLE);
        fault_spoil(device, lane == &q->lanes[1], &b->commands, &b->signals);
        *lane->last      = b;
        lane->last       = &b->next;
    }
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL queue_idle(VkQueue queue) {
    struct device * device = device_of(KEY(queue));
    struct queues * q      = device->queues;
    empty(q, lane_of(q, queue));
    pthread_mutex_lock(&q->real_lock);
    const VkResult result = device->driver.QueueWaitIdle(q->real); /* for the other lane's work too, which is under way */
    pthread_mutex_unlock(&q->real_lock);
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL device_idle(VkDevice handle) {
    struct queues * q = device_of(KEY(handle))->queues;
    empty(q, &q->lanes[1]);
    empty(q, &q->lanes[0]);
    return queue_idle(q->real);
}

static VkQueue second_queue(struct queues * q) {
    q->loader = q->device->key; /* as the loader does with what the driver makes */
    return (VkQueue) (void *) q;
}

static VKAPI_ATTR void VKAPI_CALL get_queue(VkDevice handle, uint32_t family, uint32_t index, VkQueue * out) {
    struct device * device = device_of(KEY(handle));
    if (family == 1) {
        *out = second_queue(device->queues);
    } else {
        device->driver.GetDeviceQueue(handle, family, index, out);
    }
}

static VKAPI_ATTR void VKAPI_CALL get_queue2(VkDevice handle, const VkDeviceQueueInfo2 * info, VkQueue * out) {
    struct device * device = device_of(KEY(handle));
    if (info->queueFamilyIndex == 1) {
        *out = second_queue(device->queues);
    } else {
        device->driver.GetDeviceQueue2(handle, info, out);
    }
}

static VKAPI_ATTR VkResult VKAPI_CALL create_pool(VkDevice handle, const VkCommandPoolCreateInfo * info,
                                                  const VkAllocationCallbacks * allocator, VkCommandPool * out) {
    VkCommandPoolCreateInfo real = *info;
    real.queueFamilyIndex        = 0;
    return device_of(KEY(handle))->driver.CreateCommandPool(handle, &real, allocator, out);
}

static VKAPI_ATTR void VKAPI_CALL destroy_device(VkDevice handle, const VkAllocationCallbacks * allocator) {
    struct device * device = device_of(KEY(handle));
    struct queues * q      = device->queues;
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->lock);
    for (int i = 0; i < 2; i++) {
        pthread_join(q->lanes[i].thread, NULL);
    }
    device->queues = NULL;
    device->driver.DestroyDevice(handle, allocator);
    while (q->binaries != NULL) {
        struct binary * b = q->binaries;
        q->binaries       = b->next;
        free(b);
    }
    free(q);
}

void queues_semaphore_made(struct device * device, VkSemaphore handle) {
    struct queues * q = device->queues;
    if (q != NULL) {
        struct binary * b = copy(NULL, 0, sizeof(*b));
        pthread_mutex_lock(&q->lock);
        *b          = (struct binary) { .handle = handle, .next = q->binaries };
        q->binaries = b;
        pthread_mutex_unlock(&q->lock);
    }
}

void queues_semaphore_gone(struct device * device, VkSemaphore handle) {
    struct queues * q = device->queues;
    if (q != NULL) {
        pthread_mutex_lock(&q->lock);
        struct binary ** at = &q->binaries;
        while (*at != NULL && (*at)->handle != handle) {
            at = &(*at)->next;
        }
        struct binary * b = *at;
        *at               = b != NULL ? b->next : NULL;
        pthread_mutex_unlock(&q->lock);
        free(b);
    }
}

static void open_lanes(struct device * device) {
    struct queues * q = copy(NULL, 0, sizeof(*q));
    q->device         = device;
    device->queues    = q;
    device->driver.GetDeviceQueue(device->handle, 0, 0, &q->real);
    pthread_mutex_init(&q->lock, NULL);
    pthread_mutex_init(&q->real_lock, NULL);
    pthread_cond_init(&q->changed, NULL);
    for (int i = 0; i < 2; i++) {
        q->lanes[i] = (struct lane) { .queues = q, .last = &q->lanes[i].first, .seed = device->number * 2 + i };
        if (pthread_create(&q->lanes[i].thread, NULL, run, &q->lanes[i]) != 0) {
            layer_fail("no thread for a queue");
        }
    }
}

void queues_take(struct device * device) {
    const unsigned traits = traits_of(device->index);
    if (traits & (TRANSFER_QUEUE | TIMELINE_FD)) {
        device->below.QueueSubmit     = submit;
        device->below.QueueSubmit2    = NULL; /* not emulated, and not used */
        device->below.QueueBindSparse = NULL;
    }
    if (traits & TRANSFER_QUEUE) {
        open_lanes(device);
        device->below.QueueWaitIdle     = queue_idle;
        device->below.DeviceWaitIdle    = device_idle;
        device->below.GetDeviceQueue    = get_queue;
        device->below.GetDeviceQueue2   = get_queue2;
        device->below.CreateCommandPool = create_pool;
        device->below.DestroyDevice     = destroy_device;
    }
}
