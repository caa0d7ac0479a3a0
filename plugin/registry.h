/*
 * The preloaded side's memory of what ggml did: its VkDevices, their queues,
 * and the VkBuffer behind each of its buffers. Written by the interposed calls
 * (interpose.c), read by the Go side through struct vkcomm_host_api.
 *
 * Thread safe. Nothing here calls ggml or Vulkan, apart from the drain callback,
 * which runs outside the registry's lock.
 */
#ifndef VKCOMM_REGISTRY_H
#define VKCOMM_REGISTRY_H

#include <pthread.h>

#include "host_api.h"

/* The device-level calls that are wrapped, resolved per VkDevice. */
struct vkcomm_device_calls {
    PFN_vkDestroyDevice   destroy_device;
    PFN_vkGetDeviceQueue  get_device_queue;
    PFN_vkGetDeviceQueue2 get_device_queue2;
    PFN_vkCreateBuffer    create_buffer;
    PFN_vkDestroyBuffer   destroy_buffer;
    PFN_vkQueueSubmit     queue_submit;
    PFN_vkQueueSubmit2    queue_submit2;
    PFN_vkQueueSubmit2    queue_submit2_khr;
    PFN_vkQueueWaitIdle   queue_wait_idle;
    PFN_vkDeviceWaitIdle  device_wait_idle;
};

enum { VKCOMM_MOST_HELD = 8 };

/* Command buffers that go out with the device's next submission; submit.h. */
struct vkcomm_held {
    VkQueue         queue;
    uint32_t        count; /* read without the lock as well */
    VkCommandBuffer commands[VKCOMM_MOST_HELD];
    void          (*failed)(void *context, VkResult result);
    void           *context;
};

struct vkcomm_device {
    struct vkcomm_device_info  info;
    struct vkcomm_device_calls calls;
    /* All submissions to the device, ggml's and ours. One lock for all of a
     * device's queues: an NVIDIA driver bug makes two queues of one device
     * unsafe to submit to at the same time (ggml holds a lock of its own for
     * it, which we cannot take). */
    pthread_mutex_t            submit_lock;
    struct vkcomm_held         held; /* under submit_lock */
};

/* In a forked child: the thread that held the lock is not there to let go. */
void vkcomm_registry_forked(void);

/* Devices live until vkDestroyDevice; the pointers stay valid until then. */
struct vkcomm_device *vkcomm_registry_add_device(const struct vkcomm_device_info *info,
                                                 const struct vkcomm_device_calls *calls);
struct vkcomm_device *vkcomm_registry_device(VkDevice device);
void vkcomm_registry_remove_device(VkDevice device);

void vkcomm_registry_add_queue(struct vkcomm_device *device, VkQueue queue, uint32_t family);
struct vkcomm_device *vkcomm_registry_queue_device(VkQueue queue);
bool vkcomm_registry_queue_info(VkQueue queue, struct vkcomm_queue_info *out);
/* Another queue of queue's device, rather of another family than of its own. */
bool vkcomm_registry_second_queue(VkQueue queue, struct vkcomm_queue_info *out);

/* Capture: between begin and end, the VkBuffers that this thread creates and
 * does not destroy again are counted. Captures nest; a buffer counts for the
 * innermost one. */
struct vkcomm_capture {
    struct vkcomm_buffer_info created; /* the latest that is still alive */
    unsigned                  alive;
    struct vkcomm_capture    *outer;
};
void vkcomm_capture_begin(struct vkcomm_capture *capture);
void vkcomm_capture_end(struct vkcomm_capture *capture);
void vkcomm_registry_buffer_created(VkDevice device, VkBuffer buffer, uint64_t size);
void vkcomm_registry_buffer_destroyed(VkDevice device, VkBuffer buffer);

/* ggml buffer -> VkBuffer. */
void vkcomm_registry_bind(struct ggml_backend_buffer *buffer, const struct vkcomm_buffer_info *info);
void vkcomm_registry_unbind(struct ggml_backend_buffer *buffer);
bool vkcomm_registry_buffer(struct ggml_backend_buffer *buffer, struct vkcomm_buffer_info *out);

/* What this thread submitted: the latest queue with work, and how many
 * submissions carried a fence. */
void     vkcomm_registry_submitted(VkQueue queue, bool work, bool fence);
VkQueue  vkcomm_registry_last_submit(void);
uint64_t vkcomm_registry_fence_count(void);

void vkcomm_sync_add(struct vkcomm_sync *entry);
void vkcomm_sync_remove(struct vkcomm_sync *entry);
/* After the host synchronised backend; covered: it waited for a fence, which
 * it submitted behind everything that we had submitted before. */
void vkcomm_sync_done(struct ggml_backend *backend, bool covered);

#endif
