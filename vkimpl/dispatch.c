#include "dispatch.h"

#include <stdio.h>
#include <string.h>

const char *vkcomm_vk_load(struct vkcomm_vk *vk, PFN_vkGetDeviceProcAddr get) {
    /* Timeline commands are core in 1.2 and KHR before. */
#define RESOLVE(command)                                                          \
    vk->command = (PFN_vk##command) get(vk->device, "vk" #command);               \
    if (!vk->command) {                                                           \
        vk->command = (PFN_vk##command) get(vk->device, "vk" #command "KHR");     \
    }
#define REQUIRE(command) RESOLVE(command) if (!vk->command) return "vk" #command;
    VKCOMM_DEVICE_COMMANDS_OPTIONAL(RESOLVE)
    VKCOMM_DEVICE_COMMANDS_REQUIRED(REQUIRE)
#undef REQUIRE
#undef RESOLVE
    return NULL;
}

static bool timeline_shareable(VkPhysicalDevice physical_device, PFN_vkGetPhysicalDeviceExternalSemaphoreProperties get) {
    VkSemaphoreTypeCreateInfo type = { .sType         = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                       .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE };
    VkPhysicalDeviceExternalSemaphoreInfo info = { .sType      = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_SEMAPHORE_INFO,
                                                   .pNext      = &type,
                                                   .handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT };
    VkExternalSemaphoreProperties answer = { .sType = VK_STRUCTURE_TYPE_EXTERNAL_SEMAPHORE_PROPERTIES };
    get(physical_device, &info, &answer);
    VkExternalSemaphoreFeatureFlags both =
        VK_EXTERNAL_SEMAPHORE_FEATURE_EXPORTABLE_BIT | VK_EXTERNAL_SEMAPHORE_FEATURE_IMPORTABLE_BIT;
    return (answer.externalSemaphoreFeatures & both) == both;
}

const char *vkcomm_vk_properties(VkInstance instance, VkPhysicalDevice physical_device, PFN_vkGetInstanceProcAddr get,
                                 bool host_import, struct vkcomm_properties *out) {
    PFN_vkGetPhysicalDeviceProperties2 properties2 =
        (PFN_vkGetPhysicalDeviceProperties2) get(instance, "vkGetPhysicalDeviceProperties2");
    PFN_vkGetPhysicalDeviceExternalSemaphoreProperties semaphores =
        (PFN_vkGetPhysicalDeviceExternalSemaphoreProperties) get(instance, "vkGetPhysicalDeviceExternalSemaphoreProperties");
    if (!properties2 || !semaphores) {
        return properties2 ? "vkGetPhysicalDeviceExternalSemaphoreProperties" : "vkGetPhysicalDeviceProperties2";
    }
    VkPhysicalDeviceExternalMemoryHostPropertiesEXT host = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT };
    VkPhysicalDeviceDriverProperties driver = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES,
                                                .pNext = host_import ? &host : NULL };
    VkPhysicalDeviceFloatControlsProperties floats = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES,
                                                       .pNext = &driver };
    VkPhysicalDeviceIDProperties     id     = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES, .pNext = &floats };
    VkPhysicalDeviceProperties2      all    = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &id };
    properties2(physical_device, &all);

    const VkPhysicalDeviceLimits *limits = &all.properties.limits;
    *out = (struct vkcomm_properties){
        .vendor_id               = all.properties.vendorID,
        .on_cpu                  = all.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU,
        .host_import_alignment   = host.minImportedHostPointerAlignment,
        .buffer_offset_alignment = limits->minStorageBufferOffsetAlignment,
        .max_storage_range       = limits->maxStorageBufferRange,
        .max_storage_buffers     = limits->maxPerStageDescriptorStorageBuffers,
        .round_to_even_16        = floats.shaderRoundingModeRTEFloat16,
        .denorm_preserve_16      = floats.shaderDenormPreserveFloat16,
        .denorm_preserve_32      = floats.shaderDenormPreserveFloat32,
        .timeline_shareable      = timeline_shareable(physical_device, semaphores),
    };
    snprintf(out->name, sizeof(out->name), "%s", all.properties.deviceName);
    snprintf(out->driver, sizeof(out->driver), "%s", driver.driverName);
    memcpy(out->device_uuid, id.deviceUUID, VK_UUID_SIZE);
    memcpy(out->driver_uuid, id.driverUUID, VK_UUID_SIZE);
    return NULL;
}

VkResult vkcomm_vk_host_memory_types(const struct vkcomm_vk *vk, void *pointer, uint32_t *bits) {
    VkMemoryHostPointerPropertiesEXT answer = { .sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT };
    if (!vk->GetMemoryHostPointerPropertiesEXT) {
        return VK_ERROR_EXTENSION_NOT_PRESENT;
    }
    VkResult result = vk->GetMemoryHostPointerPropertiesEXT(
        vk->device, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT, pointer, &answer);
    *bits = answer.memoryTypeBits;
    return result;
}

VkResult vkcomm_vk_export_timeline(const struct vkcomm_vk *vk, VkSemaphore semaphore, int *fd) {
    VkSemaphoreGetFdInfoKHR info = { .sType      = VK_STRUCTURE_TYPE_SEMAPHORE_GET_FD_INFO_KHR,
                                     .semaphore  = semaphore,
                                     .handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT };
    *fd = -1;
    return vk->GetSemaphoreFdKHR ? vk->GetSemaphoreFdKHR(vk->device, &info, fd) : VK_ERROR_EXTENSION_NOT_PRESENT;
}

VkResult vkcomm_vk_import_timeline(const struct vkcomm_vk *vk, VkSemaphore semaphore, int fd) {
    VkImportSemaphoreFdInfoKHR info = { .sType      = VK_STRUCTURE_TYPE_IMPORT_SEMAPHORE_FD_INFO_KHR,
                                        .semaphore  = semaphore,
                                        .handleType = VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT,
                                        .fd         = fd };
    return vk->ImportSemaphoreFdKHR ? vk->ImportSemaphoreFdKHR(vk->device, &info) : VK_ERROR_EXTENSION_NOT_PRESENT;
}

VkResult vkcomm_vk_wait(const struct vkcomm_vk *vk, VkSemaphore timeline, uint64_t value, uint64_t timeout_ns) {
    VkSemaphoreWaitInfo info = { .sType          = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                 .semaphoreCount = 1,
                                 .pSemaphores    = &timeline,
                                 .pValues        = &value };
    return vk->WaitSemaphores(vk->device, &info, timeout_ns);
}

VkResult vkcomm_vk_signal(const struct vkcomm_vk *vk, VkSemaphore timeline, uint64_t value) {
    VkSemaphoreSignalInfo info = { .sType     = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO,
                                   .semaphore = timeline,
                                   .value     = value };
    return vk->SignalSemaphore(vk->device, &info);
}

VkResult vkcomm_vk_value(const struct vkcomm_vk *vk, VkSemaphore timeline, uint64_t *value) {
    return vk->GetSemaphoreCounterValue(vk->device, timeline, value);
}
