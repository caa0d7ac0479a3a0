/*
 * Every submission to ggml's queues, ggml's own and ours, under one lock per
 * device; and command buffers of ours that wait to go out with one of ggml's.
 *
 * A reduction whose ranks' parts wait for each other inside their kernels needs
 * no vkQueueSubmit of its own: its command buffer goes in front of what ggml
 * submits to the queue next, in the same call, which spares the calling thread
 * half of the reduction's cost. Nothing may then wait for a queue on which, or on
 * whose peers, something is held back. These let all of it go:
 *   - a submission with a fence, which somebody is going to wait for,
 *   - vkQueueWaitIdle, vkDeviceWaitIdle, and our own waits,
 *   - a relay thread that misses a peer's words for longer than a kernel takes,
 *     which covers every wait that is not known here, and a rank whose next
 *     part of the graph is empty.
 * The order of a queue is that in which reductions were held back or submitted.
 */
#ifndef VKCOMM_SUBMIT_H
#define VKCOMM_SUBMIT_H

#include "registry.h"

/* vkQueueSubmit behind what is held back for the queue's device. */
VkResult vkcomm_submit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence);

/* The same for one of ggml's, of a device that is known. */
VkResult vkcomm_submit_host(struct vkcomm_device *device, VkQueue queue, uint32_t count, const VkSubmitInfo *infos,
                            VkFence fence);

/* Holds a command buffer back. Should it fail to be submitted, failed(context,
 * result) is called, which must not return. */
void vkcomm_hold(VkQueue queue, VkCommandBuffer commands, void (*failed)(void *context, VkResult result), void *context);

/* Submits what is held back, on all devices. */
void vkcomm_flush_held(void);

/* Takes the device's lock with nothing held back on it, or on its peers. */
void vkcomm_submit_lock(struct vkcomm_device *device);
void vkcomm_submit_unlock(struct vkcomm_device *device);

/* The device is about to be destroyed. */
void vkcomm_submit_forget(struct vkcomm_device *device);

/* In a forked child: threads that held locks are not there to let go. */
void vkcomm_submit_forked(void);

#endif
