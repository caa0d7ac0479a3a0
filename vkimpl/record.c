#include "record.h"

/* What a queue runs that is ours or ggml's, which uses no other stages. Naming
 * these spares an H200 5 us a batch against VK_PIPELINE_STAGE_ALL_COMMANDS_BIT. */
struct scope {
    VkPipelineStageFlags stages;
    VkAccessFlags        reads, writes;
};

static struct scope scope_of(bool copies_only) {
    struct scope s = { VK_PIPELINE_STAGE_TRANSFER_BIT, VK_ACCESS_TRANSFER_READ_BIT, VK_ACCESS_TRANSFER_WRITE_BIT };
    if (!copies_only) {
        s.stages |= VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
        s.reads |= VK_ACCESS_SHADER_READ_BIT;
        s.writes |= VK_ACCESS_SHADER_WRITE_BIT;
    }
    return s;
}

/* Memory that another device wrote, or is to read, passes through the host
 * domain: HOST takes part before a batch that reads such memory, and after one
 * that writes it. */
static void barrier(const struct vkcomm_vk *vk, VkCommandBuffer commands, struct scope scope, bool host_before, bool host_after) {
    VkMemoryBarrier all = { .sType         = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                            .srcAccessMask = scope.writes | (host_before ? VK_ACCESS_HOST_WRITE_BIT : 0),
                            .dstAccessMask = scope.reads | scope.writes | (host_after ? VK_ACCESS_HOST_READ_BIT : 0) };
    vk->CmdPipelineBarrier(commands, scope.stages | (host_before ? VK_PIPELINE_STAGE_HOST_BIT : 0),
                           scope.stages | (host_after ? VK_PIPELINE_STAGE_HOST_BIT : 0), 0, 1, &all, 0, NULL, 0, NULL);
}

enum { TRANSFERS = 32 }; /* queue family ownership transfers of one command */

static void transfer(const struct vkcomm_vk *vk, VkCommandBuffer commands, uint32_t count,
                     const VkBufferMemoryBarrier *barriers) {
    if (count > 0) {
        vk->CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, 0, 0,
                               NULL, count, barriers, 0, NULL);
    }
}

/* Acquires what is read from outside, or releases what was written to it. */
static void change_owner(const struct vkcomm_vk *vk, VkCommandBuffer commands, uint32_t family, uint32_t count,
                         const struct vkcomm_shared *shared, bool release) {
    VkBufferMemoryBarrier barriers[TRANSFERS];
    uint32_t              n = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct vkcomm_shared *s = &shared[i];
        if (s->written != release) {
            continue;
        }
        barriers[n++] = (VkBufferMemoryBarrier){ .sType               = VK_STRUCTURE_TYPE_BUFFER_MEMORY_BARRIER,
                                                 .srcAccessMask       = release ? VK_ACCESS_MEMORY_WRITE_BIT : 0,
                                                 .dstAccessMask       = release ? 0 : VK_ACCESS_MEMORY_READ_BIT,
                                                 .srcQueueFamilyIndex = release ? family : s->outside,
                                                 .dstQueueFamilyIndex = release ? s->outside : family,
                                                 .buffer              = s->buffer,
                                                 .offset              = s->offset,
                                                 .size                = s->bytes };
        if (n == TRANSFERS) {
            transfer(vk, commands, n, barriers);
            n = 0;
        }
    }
    transfer(vk, commands, n, barriers);
}

/* Workgroups of a slice: small enough that a device runs several at once. */
#define SLICE 128u

/* Part of a step from workgroup first on; false: there is none. */
static bool record_slice(const struct vkcomm_vk *vk, VkCommandBuffer commands, VkPipelineLayout layout,
                         const struct vkcomm_step *s, uint32_t first, uint32_t most) {
    if (!s->pipeline && first == 0) {
        vk->CmdCopyBuffer(commands, s->copy_src, s->copy_dst, 1, &s->copy);
    }
    if (!s->pipeline || first >= s->groups) {
        return false;
    }
    uint32_t groups = s->groups - first < most ? s->groups - first : most;
    vk->CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, s->pipeline);
    vk->CmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &s->set, 0, NULL);
    vk->CmdPushConstants(commands, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(s->push), &s->push);
    vk->CmdDispatchBase(commands, first, 0, 0, groups, 1, 1);
    return first + groups < s->groups;
}

/* One step in one dispatch. Several in slices by turns, since a device starts
 * dispatches in order, and a large one that only writes would keep the one that
 * only reads from starting. */
static void record_steps(const struct vkcomm_vk *vk, VkCommandBuffer commands, VkPipelineLayout layout,
                         uint32_t count, const struct vkcomm_step *steps) {
    uint32_t most = count > 1 ? SLICE : UINT32_MAX;
    bool     more = true;
    for (uint32_t first = 0; more; first += most) {
        more = false;
        for (uint32_t i = 0; i < count; i++) {
            more |= record_slice(vk, commands, layout, &steps[i], first, most);
        }
    }
}

VkResult vkcomm_record(const struct vkcomm_vk *vk, VkCommandBuffer commands, VkPipelineLayout layout,
                       const struct vkcomm_batch *batch, uint32_t count, const struct vkcomm_step *steps, uint32_t family, uint32_t shared_count,
                       const struct vkcomm_shared *shared, struct vkcomm_stamps stamps) {
    /* Submitted again while an earlier submission is pending: decode repeats
     * the same bindings every other layer. */
    VkCommandBufferBeginInfo begin = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                       .flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT };
    VkResult result = vk->BeginCommandBuffer(commands, &begin);
    if (result != VK_SUCCESS) {
        return result;
    }
    vkcomm_stamp_begin(vk, commands, stamps);
    const struct scope scope = scope_of(batch->copies_only);
    barrier(vk, commands, scope, batch->reads_shared, false);
    change_owner(vk, commands, family, shared_count, shared, false);
    record_steps(vk, commands, layout, count, steps);
    change_owner(vk, commands, family, shared_count, shared, true);
    barrier(vk, commands, scope, false, batch->writes_shared);
    vkcomm_stamp_end(vk, commands, stamps);
    return vk->EndCommandBuffer(commands);
}

void vkcomm_write_set(const struct vkcomm_vk *vk, VkDescriptorSet set, const VkDescriptorBufferInfo *tensor,
                      uint32_t source_count, const VkDescriptorBufferInfo *sources,
                      const VkDescriptorBufferInfo *destination) {
    const VkDescriptorBufferInfo *infos[]  = { tensor, sources, destination };
    const uint32_t                counts[] = { 1, source_count, 1 };
    VkWriteDescriptorSet          writes[3];
    uint32_t                      n = 0;
    for (uint32_t binding = 0; binding < 3; binding++) {
        if (counts[binding] && infos[binding] && infos[binding]->buffer) {
            writes[n++] = (VkWriteDescriptorSet){ .sType           = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                                  .dstSet          = set,
                                                  .dstBinding      = binding,
                                                  .descriptorCount = counts[binding],
                                                  .descriptorType  = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                                  .pBufferInfo     = infos[binding] };
        }
    }
    vk->UpdateDescriptorSets(vk->device, n, writes, 0, NULL);
}
