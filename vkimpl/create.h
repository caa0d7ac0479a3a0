/*
 * Creation calls whose arguments hold arrays of structures. goki/vulkan copies
 * such an array into C memory and lets a finalizer free the copy, which the
 * garbage collector may run while the driver still reads it (v1.0.8:
 * unpackS*, unpackArgS* in cgo_helpers.go). These are made here instead.
 */
#ifndef VKCOMM_CREATE_H
#define VKCOMM_CREATE_H

#include <vulkan/vulkan.h>

/* A set of storage buffers for compute: counts[i] of them at binding i. At most
 * 4 bindings. */
VkResult vkcomm_create_set_layout(VkDevice device, PFN_vkGetDeviceProcAddr get, uint32_t binding_count,
                                  const uint32_t *counts, VkDescriptorSetLayout *made);

/* One set, and push constants of so many bytes for compute. */
VkResult vkcomm_create_pipeline_layout(VkDevice device, PFN_vkGetDeviceProcAddr get, VkDescriptorSetLayout set,
                                       uint32_t push_bytes, VkPipelineLayout *made);

/* A pool for so many sets that hold so many storage buffers in all. */
VkResult vkcomm_create_set_pool(VkDevice device, PFN_vkGetDeviceProcAddr get, uint32_t sets, uint32_t buffers,
                                VkDescriptorPool *made);

/* A compute pipeline; constants[i] specializes constant i. At most 8 constants. */
VkResult vkcomm_create_pipeline(VkDevice device, PFN_vkGetDeviceProcAddr get, VkPipelineLayout layout,
                                VkShaderModule module, uint32_t constant_count, const uint32_t *constants,
                                VkPipeline *made);

#endif
