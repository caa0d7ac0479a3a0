/*
 * The Vulkan commands that goki/vulkan does not have (timeline waits, external
 * handles, host pointers, Properties2) and those of the hot path, resolved per
 * VkDevice so that a call reaches the driver without the loader's trampoline.
 */
#ifndef VKCOMM_DISPATCH_H
#define VKCOMM_DISPATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <vulkan/vulkan.h>

#define VKCOMM_DEVICE_COMMANDS_REQUIRED(X) \
    X(WaitSemaphores)                      \
    X(SignalSemaphore)                     \
    X(GetSemaphoreCounterValue)            \
    X(BeginCommandBuffer)                  \
    X(EndCommandBuffer)                    \
    X(CmdBindPipeline)                     \
    X(CmdBindDescriptorSets)               \
    X(CmdPushConstants)                    \
    X(CmdDispatchBase)                     \
    X(CmdPipelineBarrier)                  \
    X(CmdCopyBuffer)                       \
    X(UpdateDescriptorSets)                \
    X(CreateQueryPool)                     \
    X(CmdResetQueryPool)                   \
    X(CmdWriteTimestamp)                   \
    X(GetQueryPoolResults)

#define VKCOMM_DEVICE_COMMANDS_OPTIONAL(X) \
    X(GetMemoryHostPointerPropertiesEXT)   \
    X(GetSemaphoreFdKHR)                   \
    X(ImportSemaphoreFdKHR)                \
    X(GetMemoryFdKHR)                      \
    X(GetMemoryFdPropertiesKHR)            \
    X(GetCalibratedTimestampsEXT)

/* One rank's device and the queues that its work goes to. */
struct vkcomm_vk {
    VkPhysicalDevice physical_device;
    VkDevice         device;
    VkQueue          queue[2]; /* compute, transfer; as allreduce.Queue */
#define MEMBER(command) PFN_vk##command command;
    VKCOMM_DEVICE_COMMANDS_REQUIRED(MEMBER)
    VKCOMM_DEVICE_COMMANDS_OPTIONAL(MEMBER)
#undef MEMBER
};

/* What decides whether and how a device takes part. Sizes in bytes. */
struct vkcomm_properties {
    char     name[VK_MAX_PHYSICAL_DEVICE_NAME_SIZE];
    char     driver[VK_MAX_DRIVER_NAME_SIZE];
    uint32_t vendor_id;
    bool     on_cpu; /* a software implementation */
    uint8_t  device_uuid[VK_UUID_SIZE];
    uint8_t  driver_uuid[VK_UUID_SIZE];
    uint64_t host_import_alignment; /* minImportedHostPointerAlignment, 0: no import */
    uint64_t buffer_offset_alignment;
    uint64_t max_storage_range;
    uint32_t max_storage_buffers; /* per stage */
    bool     round_to_even_16, denorm_preserve_16, denorm_preserve_32; /* float controls */
    bool     timeline_shareable;  /* OPAQUE_FD timelines: exportable and importable */
};

/* Fills the function pointers of vk->device. NULL, or the first required
 * command that the device does not have. */
const char *vkcomm_vk_load(struct vkcomm_vk *vk, PFN_vkGetDeviceProcAddr get);

/* NULL, or the first command that the instance does not have. */
const char *vkcomm_vk_properties(VkInstance instance, VkPhysicalDevice physical_device, PFN_vkGetInstanceProcAddr get,
                                 bool host_import, struct vkcomm_properties *out);

/* Memory type bits that can import the host allocation at pointer. */
VkResult vkcomm_vk_host_memory_types(const struct vkcomm_vk *vk, void *pointer, uint32_t *bits);

/* OPAQUE_FD export and import of a timeline semaphore. An import that succeeds
 * takes the descriptor over, one that fails leaves it with the caller. */
VkResult vkcomm_vk_export_timeline(const struct vkcomm_vk *vk, VkSemaphore semaphore, int *fd);
VkResult vkcomm_vk_import_timeline(const struct vkcomm_vk *vk, VkSemaphore semaphore, int fd);

VkResult vkcomm_vk_wait(const struct vkcomm_vk *vk, VkSemaphore timeline, uint64_t value, uint64_t timeout_ns);
VkResult vkcomm_vk_signal(const struct vkcomm_vk *vk, VkSemaphore timeline, uint64_t value);
VkResult vkcomm_vk_value(const struct vkcomm_vk *vk, VkSemaphore timeline, uint64_t *value);

#endif
