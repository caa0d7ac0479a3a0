/*
 * Records one batch of a schedule. Off the hot path: a command buffer is
 * recorded when its bindings are first seen, and then submitted again as is.
 */
#ifndef VKCOMM_RECORD_H
#define VKCOMM_RECORD_H

#include "trace.h"

/* Push constants of every kernel; see the shaders for their meaning. */
struct vkcomm_push {
    uint32_t count;         /* elements */
    uint32_t tensor_offset; /* elements from the start of the tensor binding */
    uint32_t zero_sources;  /* bit s: source s is +0.0 and is not read */
    uint32_t spin_bound;    /* relay: polls of one word before it gives up */
};

/* A dispatch, or a copy where pipeline is NULL. */
struct vkcomm_step {
    VkPipeline         pipeline;
    VkDescriptorSet    set;
    struct vkcomm_push push;
    uint32_t           groups;
    VkBuffer           copy_src, copy_dst;
    VkBufferCopy       copy;
};

/* Bytes of a buffer whose memory other devices have imported, or that is such
 * an import: acquired from outside before a batch reads them, released to it
 * after the batch has written them. What is overwritten or was only read needs
 * neither, since nobody relies on its old contents. */
struct vkcomm_shared {
    VkBuffer     buffer;
    VkDeviceSize offset, bytes;
    uint32_t     outside; /* VK_QUEUE_FAMILY_EXTERNAL or _FOREIGN_EXT */
    bool         written; /* else read */
};

/* What a batch needs of the barriers around it. */
struct vkcomm_batch {
    bool copies_only;   /* its queue cannot compute */
    bool reads_shared;  /* memory that another device wrote */
    bool writes_shared; /* memory that another device is to read */
};

/* Begins with a barrier against all that the queue ran before, and ends with one
 * that makes everything visible to what runs after and, where that is wanted, to
 * other devices through host memory. There is none between steps: those of a batch touch
 * different memory, which the schedule checker proves. family is that of the queue
 * and counts only where something is shared. stamps are taken outside of the
 * barriers. */
VkResult vkcomm_record(const struct vkcomm_vk *vk, VkCommandBuffer commands, VkPipelineLayout layout,
                       const struct vkcomm_batch *batch, uint32_t count, const struct vkcomm_step *steps, uint32_t family, uint32_t shared_count,
                       const struct vkcomm_shared *shared, struct vkcomm_stamps stamps);

/* Writes storage buffers into a set: the tensor at binding 0, sources at
 * binding 1, the destination of pack and publish at binding 2. Buffers that are
 * VK_NULL_HANDLE are left out. */
void vkcomm_write_set(const struct vkcomm_vk *vk, VkDescriptorSet set, const VkDescriptorBufferInfo *tensor,
                      uint32_t source_count, const VkDescriptorBufferInfo *sources,
                      const VkDescriptorBufferInfo *destination);

#endif
