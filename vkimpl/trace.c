#include "trace.h"

enum { PER_BATCH = 2 };

void vkcomm_stamp_begin(const struct vkcomm_vk *vk, VkCommandBuffer commands, struct vkcomm_stamps stamps) {
    if (stamps.pool) {
        vk->CmdResetQueryPool(commands, stamps.pool, stamps.first, PER_BATCH);
        vk->CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, stamps.pool, stamps.first);
    }
}

void vkcomm_stamp_end(const struct vkcomm_vk *vk, VkCommandBuffer commands, struct vkcomm_stamps stamps) {
    if (stamps.pool) {
        vk->CmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, stamps.pool, stamps.first + 1);
    }
}

VkResult vkcomm_trace_pool(const struct vkcomm_vk *vk, uint32_t queries, VkQueryPool *pool) {
    VkQueryPoolCreateInfo info = { .sType      = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                   .queryType  = VK_QUERY_TYPE_TIMESTAMP,
                                   .queryCount = queries };
    return vk->GetCalibratedTimestampsEXT ? vk->CreateQueryPool(vk->device, &info, NULL, pool) : VK_ERROR_EXTENSION_NOT_PRESENT;
}

VkResult vkcomm_trace_read(const struct vkcomm_vk *vk, VkQueryPool pool, uint32_t queries, uint64_t *stamps) {
    return vk->GetQueryPoolResults(vk->device, pool, 0, queries, queries * sizeof(*stamps), stamps, sizeof(*stamps),
                                   VK_QUERY_RESULT_64_BIT);
}

VkResult vkcomm_trace_clocks(const struct vkcomm_vk *vk, uint64_t *device, uint64_t *host) {
    const VkCalibratedTimestampInfoEXT domains[2] = {
        { .sType = VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT, .timeDomain = VK_TIME_DOMAIN_DEVICE_EXT },
        { .sType = VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT, .timeDomain = VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT },
    };
    uint64_t both[2], deviation;
    VkResult result = vk->GetCalibratedTimestampsEXT(vk->device, 2, domains, both, &deviation);
    *device = both[0];
    *host   = both[1];
    return result;
}
