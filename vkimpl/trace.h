/*
 * When a program's batches ran: the device's clock at the beginning and end of
 * each, read by the batch itself, and how that clock relates to CLOCK_MONOTONIC.
 * For measurements; costs nothing where it is not asked for.
 */
#ifndef VKCOMM_TRACE_H
#define VKCOMM_TRACE_H

#include "dispatch.h"

/* Two queries of a pool, for one batch. A pool of VK_NULL_HANDLE: none. */
struct vkcomm_stamps {
    VkQueryPool pool;
    uint32_t    first;
};

/* Of a batch that is begun, before its first barrier, and before its end. */
void vkcomm_stamp_begin(const struct vkcomm_vk *vk, VkCommandBuffer commands, struct vkcomm_stamps stamps);
void vkcomm_stamp_end(const struct vkcomm_vk *vk, VkCommandBuffer commands, struct vkcomm_stamps stamps);

VkResult vkcomm_trace_pool(const struct vkcomm_vk *vk, uint32_t queries, VkQueryPool *pool);

/* The latest run's stamps. VK_NOT_READY: it has not ended. */
VkResult vkcomm_trace_read(const struct vkcomm_vk *vk, VkQueryPool pool, uint32_t queries, uint64_t *stamps);

/* The same moment on both clocks, host in ns. */
VkResult vkcomm_trace_clocks(const struct vkcomm_vk *vk, uint64_t *device, uint64_t *host);

#endif
