#define _GNU_SOURCE
#include "submit.h"

#include <stdatomic.h>
#include <string.h>

/* Submissions of ggml have one or two VkSubmitInfo with a few command buffers;
 * what is larger than this goes out behind ours instead of with it. */
enum { MOST_INFOS = 8, MOST_COMMANDS = 16, MAX_HOLDERS = 64 };

/* Devices that ever held something back. */
static _Atomic(struct vkcomm_device *) holders[MAX_HOLDERS];
static pthread_rwlock_t                holders_lock = PTHREAD_RWLOCK_INITIALIZER; /* written to when a device goes */
static atomic_uint                     holding;                                   /* devices that hold something now */

void vkcomm_submit_forked(void) {
    holders_lock = (pthread_rwlock_t) PTHREAD_RWLOCK_INITIALIZER;
}

/* ---- under the device's lock -------------------------------------------------------- */

/* What was held back is out, or the process ends. */
static void settle(struct vkcomm_device *device, VkResult result) {
    __atomic_store_n(&device->held.count, 0, __ATOMIC_RELAXED);
    atomic_fetch_sub(&holding, 1);
    if (result != VK_SUCCESS) {
        device->held.failed(device->held.context, result);
    }
}

static void flush_locked(struct vkcomm_device *device) {
    if (device->held.count > 0) {
        VkSubmitInfo info = { .sType              = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                              .commandBufferCount = device->held.count,
                              .pCommandBuffers    = device->held.commands };
        settle(device, device->calls.queue_submit(device->held.queue, 1, &info, VK_NULL_HANDLE));
    }
}

/* Structures that a VkSubmitInfo may refer to and that say nothing of its command
 * buffers. */
static bool only_timelines(const void *chain) {
    for (const VkBaseInStructure *s = chain; s; s = s->pNext) {
        if (s->sType != VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO) {
            return false;
        }
    }
    return true;
}

/* Into ggml's first VkSubmitInfo where that waits for nothing, else before it. */
static VkResult submit_together(struct vkcomm_device *device, uint32_t count, const VkSubmitInfo *infos, VkFence fence) {
    VkSubmitInfo    all[MOST_INFOS + 1];
    VkCommandBuffer commands[VKCOMM_MOST_HELD + MOST_COMMANDS];
    const uint32_t  held = device->held.count, theirs = count > 0 ? infos[0].commandBufferCount : 0;
    const bool      same = count > 0 && infos[0].waitSemaphoreCount == 0 && theirs <= MOST_COMMANDS && only_timelines(infos[0].pNext);
    memcpy(commands, device->held.commands, held * sizeof(*commands));
    if (same) {
        memcpy(commands + held, infos[0].pCommandBuffers, theirs * sizeof(*commands));
        all[0] = infos[0];
    } else {
        all[0] = (VkSubmitInfo){ .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO };
    }
    all[0].commandBufferCount = held + (same ? theirs : 0);
    all[0].pCommandBuffers    = commands;
    if (count > same) {
        memcpy(all + 1, infos + same, (count - same) * sizeof(*all));
    }
    return device->calls.queue_submit(device->held.queue, 1 + count - same, all, fence);
}

static VkResult submit_locked(struct vkcomm_device *device, VkQueue queue, uint32_t count, const VkSubmitInfo *infos,
                              VkFence fence) {
    if (device->held.count > 0 && device->held.queue == queue && count <= MOST_INFOS) {
        VkResult result = submit_together(device, count, infos, fence);
        settle(device, result);
        return result;
    }
    flush_locked(device); /* another queue may be made to wait for this one */
    return device->calls.queue_submit(queue, count, infos, fence);
}

/* ---- from outside -------------------------------------------------------------------- */

static void flush_all_but(const struct vkcomm_device *device) {
    if (atomic_load(&holding) == 0) {
        return;
    }
    pthread_rwlock_rdlock(&holders_lock);
    for (unsigned i = 0; i < MAX_HOLDERS; i++) {
        struct vkcomm_device *holder = atomic_load(&holders[i]);
        /* Unlocked: what is held back meanwhile is nobody's that waits already. */
        if (holder && holder != device && __atomic_load_n(&holder->held.count, __ATOMIC_ACQUIRE) > 0) {
            pthread_mutex_lock(&holder->submit_lock);
            flush_locked(holder);
            pthread_mutex_unlock(&holder->submit_lock);
        }
    }
    pthread_rwlock_unlock(&holders_lock);
}

void vkcomm_flush_held(void) {
    flush_all_but(NULL);
}

VkResult vkcomm_submit_host(struct vkcomm_device *device, VkQueue queue, uint32_t count, const VkSubmitInfo *infos,
                            VkFence fence) {
    if (fence != VK_NULL_HANDLE) {
        flush_all_but(device);
    }
    pthread_mutex_lock(&device->submit_lock);
    VkResult result = submit_locked(device, queue, count, infos, fence);
    pthread_mutex_unlock(&device->submit_lock);
    return result;
}

VkResult vkcomm_submit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence) {
    struct vkcomm_device *device = vkcomm_registry_queue_device(queue);
    if (!device) {
        return VK_ERROR_DEVICE_LOST; /* destroyed under a live communicator */
    }
    return vkcomm_submit_host(device, queue, count, infos, fence);
}

static bool enlist(struct vkcomm_device *device) {
    for (unsigned i = 0; i < MAX_HOLDERS; i++) {
        struct vkcomm_device *none = NULL;
        if (atomic_load(&holders[i]) == device || atomic_compare_exchange_strong(&holders[i], &none, device)) {
            return true;
        }
    }
    return false;
}

void vkcomm_hold(VkQueue queue, VkCommandBuffer commands, void (*failed)(void *context, VkResult result), void *context) {
    struct vkcomm_device *device = vkcomm_registry_queue_device(queue);
    if (!device || !enlist(device)) {
        const VkSubmitInfo info = { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &commands };
        VkResult           result = vkcomm_submit(queue, 1, &info, VK_NULL_HANDLE);
        if (result != VK_SUCCESS) {
            failed(context, result);
        }
        return;
    }
    pthread_mutex_lock(&device->submit_lock);
    if (device->held.count == VKCOMM_MOST_HELD || (device->held.count > 0 && device->held.queue != queue)) {
        flush_locked(device);
    }
    if (device->held.count == 0) {
        atomic_fetch_add(&holding, 1);
    }
    device->held.queue                        = queue;
    device->held.commands[device->held.count] = commands;
    device->held.failed                       = failed;
    device->held.context                      = context;
    __atomic_store_n(&device->held.count, device->held.count + 1, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&device->submit_lock);
}

void vkcomm_submit_lock(struct vkcomm_device *device) {
    flush_all_but(device);
    pthread_mutex_lock(&device->submit_lock);
    flush_locked(device);
}

void vkcomm_submit_unlock(struct vkcomm_device *device) {
    pthread_mutex_unlock(&device->submit_lock);
}

void vkcomm_submit_forget(struct vkcomm_device *device) {
    pthread_rwlock_wrlock(&holders_lock);
    for (unsigned i = 0; i < MAX_HOLDERS; i++) {
        struct vkcomm_device *same = device;
        atomic_compare_exchange_strong(&holders[i], &same, NULL);
    }
    pthread_rwlock_unlock(&holders_lock);
}
