/*
 * VK_LAYER_VKCOMM_fault - lets a driver fail, be slow, get lost, or look like
 * another driver, as VKCOMM_LAYER_* variables say (see README.md). Only calls
 * that the plugin makes are counted and failed; the host's go through, except
 * on a device that was lost.
 */
#ifndef VKCOMM_TEST_LAYER_H
#define VKCOMM_TEST_LAYER_H

#include <stdbool.h>
#include <stdint.h>
#include <vulkan/vulkan.h>

/* X(name, parameters, arguments): commands of a device whose VkResult can be
 * forced. The first parameter is the dispatchable handle h. */
#define COMMANDS(X)                                                                                                     \
    X(AllocateMemory, (VkDevice h, const VkMemoryAllocateInfo * a, const VkAllocationCallbacks * b, VkDeviceMemory * c), \
      (h, a, b, c))                                                                                                     \
    X(CreateBuffer, (VkDevice h, const VkBufferCreateInfo * a, const VkAllocationCallbacks * b, VkBuffer * c),          \
      (h, a, b, c))                                                                                                     \
    X(BindBufferMemory, (VkDevice h, VkBuffer a, VkDeviceMemory b, VkDeviceSize c), (h, a, b, c))                       \
    X(MapMemory, (VkDevice h, VkDeviceMemory a, VkDeviceSize b, VkDeviceSize c, VkMemoryMapFlags d, void ** e),         \
      (h, a, b, c, d, e))                                                                                               \
    X(CreateSemaphore, (VkDevice h, const VkSemaphoreCreateInfo * a, const VkAllocationCallbacks * b, VkSemaphore * c), \
      (h, a, b, c))                                                                                                     \
    X(CreateShaderModule,                                                                                               \
      (VkDevice h, const VkShaderModuleCreateInfo * a, const VkAllocationCallbacks * b, VkShaderModule * c),            \
      (h, a, b, c))                                                                                                     \
    X(CreateComputePipelines,                                                                                           \
      (VkDevice h, VkPipelineCache a, uint32_t b, const VkComputePipelineCreateInfo * c,                                \
       const VkAllocationCallbacks * d, VkPipeline * e),                                                                \
      (h, a, b, c, d, e))                                                                                               \
    X(CreateDescriptorSetLayout,                                                                                        \
      (VkDevice h, const VkDescriptorSetLayoutCreateInfo * a, const VkAllocationCallbacks * b,                          \
       VkDescriptorSetLayout * c),                                                                                      \
      (h, a, b, c))                                                                                                     \
    X(CreateDescriptorPool,                                                                                             \
      (VkDevice h, const VkDescriptorPoolCreateInfo * a, const VkAllocationCallbacks * b, VkDescriptorPool * c),        \
      (h, a, b, c))                                                                                                     \
    X(AllocateDescriptorSets, (VkDevice h, const VkDescriptorSetAllocateInfo * a, VkDescriptorSet * b), (h, a, b))      \
    X(CreatePipelineLayout,                                                                                             \
      (VkDevice h, const VkPipelineLayoutCreateInfo * a, const VkAllocationCallbacks * b, VkPipelineLayout * c),        \
      (h, a, b, c))                                                                                                     \
    X(CreateCommandPool,                                                                                                \
      (VkDevice h, const VkCommandPoolCreateInfo * a, const VkAllocationCallbacks * b, VkCommandPool * c),              \
      (h, a, b, c))                                                                                                     \
    X(AllocateCommandBuffers, (VkDevice h, const VkCommandBufferAllocateInfo * a, VkCommandBuffer * b), (h, a, b))      \
    X(BeginCommandBuffer, (VkCommandBuffer h, const VkCommandBufferBeginInfo * a), (h, a))                              \
    X(EndCommandBuffer, (VkCommandBuffer h), (h))                                                                       \
    X(QueueSubmit, (VkQueue h, uint32_t a, const VkSubmitInfo * b, VkFence c), (h, a, b, c))                            \
    X(WaitSemaphores, (VkDevice h, const VkSemaphoreWaitInfo * a, uint64_t b), (h, a, b))                               \
    X(SignalSemaphore, (VkDevice h, const VkSemaphoreSignalInfo * a), (h, a))                                           \
    X(GetSemaphoreCounterValue, (VkDevice h, VkSemaphore a, uint64_t * b), (h, a, b))                                   \
    X(GetMemoryHostPointerPropertiesEXT,                                                                                \
      (VkDevice h, VkExternalMemoryHandleTypeFlagBits a, const void * b, VkMemoryHostPointerPropertiesEXT * c),         \
      (h, a, b, c))                                                                                                     \
    X(GetMemoryFdKHR, (VkDevice h, const VkMemoryGetFdInfoKHR * a, int * b), (h, a, b))                                 \
    X(GetMemoryFdPropertiesKHR,                                                                                         \
      (VkDevice h, VkExternalMemoryHandleTypeFlagBits a, int b, VkMemoryFdPropertiesKHR * c), (h, a, b, c))

enum command {
#define ENUM(name, parameters, arguments) COMMAND_##name,
    COMMANDS(ENUM)
#undef ENUM
    COMMAND_COUNT
};

/* Reads the environment, once. */
void fault_setup(void);

/* Whether the caller of the layer is the plugin: the nearest object on the
 * stack that is either the plugin's or ggml's decides. */
bool fault_called_by_plugin(void);

/* True: the command is to return *result without reaching the driver. device
 * counts devices in the order of their creation. */
bool fault_injected(enum command command, unsigned device, VkResult * result);

/* ---- profiles: what the driver is made to look like ------------------------------ */

/* Properties and features as queried, changed in place; chain is a pNext. */
void profile_limits(VkPhysicalDeviceLimits * limits);
void profile_properties(void * chain);
void profile_features(void * chain);

/* Whether an extension is to be hidden. */
bool profile_hides(const char * extension);

/* lavapipe takes what a driver with the profile's limits would not: these end
 * the process when the plugin has not kept to what it was told. */
void profile_check_import(const VkMemoryAllocateInfo * info);
void profile_check_writes(uint32_t count, const VkWriteDescriptorSet * writes);

#endif
