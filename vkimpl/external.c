#include "external.h"

/* Core commands of 1.1, the least that ggml accepts: every device has them. */
#define COMMAND(name) ((PFN_##name) get(device, #name))

struct vkcomm_external_offer vkcomm_external_query(VkInstance instance, VkPhysicalDevice physical_device,
                                                   PFN_vkGetInstanceProcAddr get, VkBufferUsageFlags usage,
                                                   VkExternalMemoryHandleTypeFlagBits handle_type) {
    PFN_vkGetPhysicalDeviceExternalBufferProperties query = (PFN_vkGetPhysicalDeviceExternalBufferProperties) get(
        instance, "vkGetPhysicalDeviceExternalBufferProperties");
    VkPhysicalDeviceExternalBufferInfo info   = { .sType      = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO,
                                                  .usage      = usage,
                                                  .handleType = handle_type };
    VkExternalBufferProperties         answer = { .sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES };
    if (query) {
        query(physical_device, &info, &answer);
    }
    VkExternalMemoryFeatureFlags features = answer.externalMemoryProperties.externalMemoryFeatures;
    return (struct vkcomm_external_offer){ .exportable     = features & VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT,
                                           .importable     = features & VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT,
                                           .dedicated_only = features & VK_EXTERNAL_MEMORY_FEATURE_DEDICATED_ONLY_BIT };
}

VkResult vkcomm_external_create(VkDevice device, PFN_vkGetDeviceProcAddr get, VkDeviceSize size,
                                VkBufferUsageFlags usage, VkExternalMemoryHandleTypeFlagBits handle_type,
                                struct vkcomm_external *made) {
    VkExternalMemoryBufferCreateInfo external = { .sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
                                                  .handleTypes = handle_type };
    VkBufferCreateInfo               info     = { .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                                                  .pNext = &external,
                                                  .size  = size,
                                                  .usage = usage };
    *made           = (struct vkcomm_external){ .handle_type = handle_type };
    VkResult result = COMMAND(vkCreateBuffer)(device, &info, NULL, &made->buffer);
    if (result != VK_SUCCESS) {
        made->buffer = VK_NULL_HANDLE;
        return result;
    }
    VkBufferMemoryRequirementsInfo2 question  = { .sType  = VK_STRUCTURE_TYPE_BUFFER_MEMORY_REQUIREMENTS_INFO_2,
                                                  .buffer = made->buffer };
    VkMemoryDedicatedRequirements   dedicated = { .sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_REQUIREMENTS };
    VkMemoryRequirements2           need      = { .sType = VK_STRUCTURE_TYPE_MEMORY_REQUIREMENTS_2, .pNext = &dedicated };
    COMMAND(vkGetBufferMemoryRequirements2)(device, &question, &need);
    made->bytes     = need.memoryRequirements.size;
    made->type_bits = need.memoryRequirements.memoryTypeBits;
    made->dedicated = dedicated.requiresDedicatedAllocation;
    return VK_SUCCESS;
}

VkResult vkcomm_external_allocate(VkDevice device, PFN_vkGetDeviceProcAddr get, int *fd,
                                  struct vkcomm_external *external) {
    VkExportMemoryAllocateInfo    leaving   = { .sType       = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
                                                .handleTypes = external->handle_type };
    VkImportMemoryFdInfoKHR       entering  = { .sType      = VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR,
                                                .handleType = external->handle_type,
                                                .fd         = fd ? *fd : -1 };
    VkMemoryDedicatedAllocateInfo dedicated = { .sType  = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO,
                                                .pNext  = fd ? (const void *) &entering : &leaving,
                                                .buffer = external->buffer };
    VkMemoryAllocateInfo          info      = { .sType           = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                                .pNext           = external->dedicated ? &dedicated : dedicated.pNext,
                                                .allocationSize  = external->bytes,
                                                .memoryTypeIndex = external->type };
    VkResult result = COMMAND(vkAllocateMemory)(device, &info, NULL, &external->memory);
    if (result != VK_SUCCESS) {
        external->memory = VK_NULL_HANDLE;
        return result;
    }
    if (fd) {
        *fd = -1;
    }
    return COMMAND(vkBindBufferMemory)(device, external->buffer, external->memory, 0);
}

VkResult vkcomm_external_export(const struct vkcomm_vk *vk, const struct vkcomm_external *external, int *fd) {
    VkMemoryGetFdInfoKHR info = { .sType      = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
                                  .memory     = external->memory,
                                  .handleType = external->handle_type };
    *fd = -1;
    VkResult result = vk->GetMemoryFdKHR ? vk->GetMemoryFdKHR(vk->device, &info, fd) : VK_ERROR_EXTENSION_NOT_PRESENT;
    if (result != VK_SUCCESS) {
        *fd = -1; /* of a failed call it means nothing */
    }
    return result;
}

VkResult vkcomm_external_fd_types(const struct vkcomm_vk *vk, VkExternalMemoryHandleTypeFlagBits handle_type, int fd,
                                  uint32_t *type_bits) {
    VkMemoryFdPropertiesKHR answer = { .sType = VK_STRUCTURE_TYPE_MEMORY_FD_PROPERTIES_KHR };
    VkResult result = vk->GetMemoryFdPropertiesKHR ? vk->GetMemoryFdPropertiesKHR(vk->device, handle_type, fd, &answer)
                                                   : VK_ERROR_EXTENSION_NOT_PRESENT;
    *type_bits = result == VK_SUCCESS ? answer.memoryTypeBits : 0;
    return result;
}
