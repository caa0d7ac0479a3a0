/*
 * Buffers whose memory leaves one VkDevice as a file descriptor and enters
 * another: exported, imported, and what a device says of either beforehand.
 */
#ifndef VKCOMM_EXTERNAL_H
#define VKCOMM_EXTERNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <vulkan/vulkan.h>

#include "dispatch.h"

/* VkExternalMemoryProperties of a buffer, as far as we ask. */
struct vkcomm_external_offer {
    bool exportable, importable, dedicated_only;
};

/* A buffer and what its memory has to be. */
struct vkcomm_external {
    VkExternalMemoryHandleTypeFlagBits handle_type;
    VkBuffer                           buffer;
    VkDeviceMemory                     memory;
    VkDeviceSize                       bytes;      /* of the memory */
    uint32_t                           type_bits;  /* memory types that the buffer can have */
    uint32_t                           type;       /* the one that it is to have */
    bool                               dedicated;  /* the memory is to be the buffer's alone */
};

/* What the device can do with storage buffers of usage through handle_type; all
 * false where the instance cannot tell. */
struct vkcomm_external_offer vkcomm_external_query(VkInstance instance, VkPhysicalDevice physical_device,
                                                   PFN_vkGetInstanceProcAddr get, VkBufferUsageFlags usage,
                                                   VkExternalMemoryHandleTypeFlagBits handle_type);

/* Makes a buffer without memory and fills in what it needs, type excepted. */
VkResult vkcomm_external_create(VkDevice device, PFN_vkGetDeviceProcAddr get, VkDeviceSize size,
                                VkBufferUsageFlags usage, VkExternalMemoryHandleTypeFlagBits handle_type,
                                struct vkcomm_external *made);

/* Gives the buffer memory of external->type: such as can be exported, or, with
 * fd, the memory that *fd stands for. *fd becomes -1 when the driver has taken
 * it over; else it stays the caller's, whatever is returned. */
VkResult vkcomm_external_allocate(VkDevice device, PFN_vkGetDeviceProcAddr get, int *fd,
                                  struct vkcomm_external *external);

/* A descriptor, the caller's, for the memory. *fd is -1 on failure. */
VkResult vkcomm_external_export(const struct vkcomm_vk *vk, const struct vkcomm_external *external, int *fd);

/* Memory type bits with which the device can import fd. Not for OPAQUE_FD, of
 * which the specification forbids the question: exporter's type and size hold. */
VkResult vkcomm_external_fd_types(const struct vkcomm_vk *vk, VkExternalMemoryHandleTypeFlagBits handle_type, int fd,
                                  uint32_t *type_bits);

#endif
