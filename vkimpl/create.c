#include "create.h"

/* Core commands: every device has them. */
#define COMMAND(name) ((PFN_##name) get(device, #name))

VkResult vkcomm_create_set_layout(VkDevice device, PFN_vkGetDeviceProcAddr get, uint32_t binding_count,
                                  const uint32_t *counts, VkDescriptorSetLayout *made) {
    VkDescriptorSetLayoutBinding bindings[4];
    for (uint32_t i = 0; i < binding_count; i++) {
        bindings[i] = (VkDescriptorSetLayoutBinding){ .binding         = i,
                                                      .descriptorType  = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                                      .descriptorCount = counts[i],
                                                      .stageFlags      = VK_SHADER_STAGE_COMPUTE_BIT };
    }
    VkDescriptorSetLayoutCreateInfo info = { .sType        = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                             .bindingCount = binding_count,
                                             .pBindings    = bindings };
    return COMMAND(vkCreateDescriptorSetLayout)(device, &info, NULL, made);
}

VkResult vkcomm_create_pipeline_layout(VkDevice device, PFN_vkGetDeviceProcAddr get, VkDescriptorSetLayout set,
                                       uint32_t push_bytes, VkPipelineLayout *made) {
    VkPushConstantRange        push = { .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = push_bytes };
    VkPipelineLayoutCreateInfo info = { .sType                  = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                        .setLayoutCount         = 1,
                                        .pSetLayouts            = &set,
                                        .pushConstantRangeCount = 1,
                                        .pPushConstantRanges    = &push };
    return COMMAND(vkCreatePipelineLayout)(device, &info, NULL, made);
}

VkResult vkcomm_create_set_pool(VkDevice device, PFN_vkGetDeviceProcAddr get, uint32_t sets, uint32_t buffers,
                                VkDescriptorPool *made) {
    VkDescriptorPoolSize       size = { .type = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, .descriptorCount = buffers };
    VkDescriptorPoolCreateInfo info = { .sType         = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                        .maxSets       = sets,
                                        .poolSizeCount = 1,
                                        .pPoolSizes    = &size };
    return COMMAND(vkCreateDescriptorPool)(device, &info, NULL, made);
}

VkResult vkcomm_create_pipeline(VkDevice device, PFN_vkGetDeviceProcAddr get, VkPipelineLayout layout,
                                VkShaderModule module, uint32_t constant_count, const uint32_t *constants,
                                VkPipeline *made) {
    VkSpecializationMapEntry entries[8];
    for (uint32_t i = 0; i < constant_count; i++) {
        entries[i] = (VkSpecializationMapEntry){ .constantID = i, .offset = i * sizeof(*constants), .size = sizeof(*constants) };
    }
    VkSpecializationInfo special = { .mapEntryCount = constant_count,
                                     .pMapEntries   = entries,
                                     .dataSize      = constant_count * sizeof(*constants),
                                     .pData         = constants };
    VkComputePipelineCreateInfo info = {
        .sType  = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .flags  = VK_PIPELINE_CREATE_DISPATCH_BASE_BIT, /* record.c dispatches in slices */
        .layout = layout,
        .stage  = { .sType               = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                    .stage               = VK_SHADER_STAGE_COMPUTE_BIT,
                    .module              = module,
                    .pName               = "main",
                    .pSpecializationInfo = &special },
    };
    return COMMAND(vkCreateComputePipelines)(device, VK_NULL_HANDLE, 1, &info, NULL, made);
}
