#include "record.h"

/* Memory that another device wrote reaches this one through the host domain,
 * so HOST takes part in the barriers at both ends of a batch. */
static void barrier(const struct vkcomm_vk *vk, VkCommandBuffer commands, bool host_before, bool host_after) {
    VkMemoryBarrier all = { .sType         = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                            .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT | (host_before ? VK_ACCESS_HOST_WRITE_BIT : 0),
                            .dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT |
                                             (host_after ? VK_ACCESS_HOST_READ_BIT : 0) };
    vk->CmdPipelineBarrier(commands,
                           VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | (host_before ? VK_PIPELINE_STAGE_HOST_BIT : 0),
                           VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | (host_after ? VK_PIPELINE_STAGE_HOST_BIT : 0),
                           0, 1, &all, 0, NULL, 0, NULL);
}

VkResult vkcomm_record(const struct vkcomm_vk *vk, VkCommandBuffer commands, VkPipelineLayout layout,
                       uint32_t count, const struct vkcomm_step *steps) {
    /* Submitted again while an earlier submission is pending: decode repeats
     * the same bindings every other layer. */
    VkCommandBufferBeginInfo begin = { .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                       .flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT };
    VkResult result = vk->BeginCommandBuffer(commands, &begin);
    if (result != VK_SUCCESS) {
        return result;
    }
    barrier(vk, commands, true, false);
    for (uint32_t i = 0; i < count; i++) {
        const struct vkcomm_step *s = &steps[i];
        if (i > 0) {
            barrier(vk, commands, false, false);
        }
        if (!s->pipeline) {
            vk->CmdCopyBuffer(commands, s->copy_src, s->copy_dst, 1, &s->copy);
            continue;
        }
        vk->CmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, s->pipeline);
        vk->CmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &s->set, 0, NULL);
        vk->CmdPushConstants(commands, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(s->push), &s->push);
        vk->CmdDispatch(commands, s->groups, 1, 1);
    }
    barrier(vk, commands, false, true);
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
