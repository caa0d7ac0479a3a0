#include "survey.h"

#include <stdlib.h>
#include <string.h>

#define COMMAND(name) ((PFN_##name) get(instance, #name))

const char *const vkcomm_survey_extensions[VKCOMM_SURVEY_EXTENSIONS] = {
    VK_KHR_TIMELINE_SEMAPHORE_EXTENSION_NAME,       VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME,
    VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME,    VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME,
    VK_EXT_EXTERNAL_MEMORY_DMA_BUF_EXTENSION_NAME,  VK_EXT_PCI_BUS_INFO_EXTENSION_NAME,
    VK_KHR_SHADER_FLOAT_CONTROLS_EXTENSION_NAME,    VK_KHR_16BIT_STORAGE_EXTENSION_NAME,
};

static void survey_extensions(VkInstance instance, VkPhysicalDevice physical_device, PFN_vkGetInstanceProcAddr get,
                              struct vkcomm_survey *out) {
    PFN_vkEnumerateDeviceExtensionProperties enumerate = COMMAND(vkEnumerateDeviceExtensionProperties);
    uint32_t                                 count     = 0;
    if (!enumerate || enumerate(physical_device, NULL, &count, NULL) != VK_SUCCESS) {
        return;
    }
    VkExtensionProperties *all = calloc(count + 1, sizeof(*all));
    if (!all || enumerate(physical_device, NULL, &count, all) != VK_SUCCESS) {
        count = 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        for (int e = 0; e < VKCOMM_SURVEY_EXTENSIONS; e++) {
            out->extensions[e] = out->extensions[e] || strcmp(all[i].extensionName, vkcomm_survey_extensions[e]) == 0;
        }
        out->has_pci = out->has_pci || strcmp(all[i].extensionName, VK_EXT_PCI_BUS_INFO_EXTENSION_NAME) == 0;
    }
    free(all);
}

static void survey_memory(VkInstance instance, VkPhysicalDevice physical_device, PFN_vkGetInstanceProcAddr get,
                          struct vkcomm_survey *out) {
    VkPhysicalDeviceMemoryProperties memory;
    COMMAND(vkGetPhysicalDeviceMemoryProperties)(physical_device, &memory);
    const VkMemoryPropertyFlags window = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                         VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    out->heaps = memory.memoryHeapCount;
    for (uint32_t i = 0; i < memory.memoryHeapCount; i++) {
        out->heap_bytes[i] = memory.memoryHeaps[i].size;
        out->heap_local[i] = memory.memoryHeaps[i].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT;
    }
    for (uint32_t i = 0; i < memory.memoryTypeCount; i++) {
        if ((memory.memoryTypes[i].propertyFlags & window) == window) {
            out->heap_window[memory.memoryTypes[i].heapIndex] = true;
        }
    }
}

void vkcomm_survey(VkInstance instance, VkPhysicalDevice physical_device, PFN_vkGetInstanceProcAddr get,
                   struct vkcomm_survey *out) {
    *out = (struct vkcomm_survey){ 0 };
    survey_extensions(instance, physical_device, get, out);
    survey_memory(instance, physical_device, get, out);

    VkQueueFamilyProperties families[VKCOMM_SURVEY_FAMILIES];
    out->families = VKCOMM_SURVEY_FAMILIES;
    COMMAND(vkGetPhysicalDeviceQueueFamilyProperties)(physical_device, &out->families, families);
    for (uint32_t i = 0; i < out->families; i++) {
        out->family_flags[i]  = families[i].queueFlags;
        out->family_queues[i] = families[i].queueCount;
    }

    PFN_vkGetPhysicalDeviceProperties2 properties2 = COMMAND(vkGetPhysicalDeviceProperties2);
    out->has_pci = out->has_pci && properties2;
    if (out->has_pci) {
        VkPhysicalDevicePCIBusInfoPropertiesEXT pci = {
            .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PCI_BUS_INFO_PROPERTIES_EXT };
        VkPhysicalDeviceProperties2 all = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &pci };
        properties2(physical_device, &all);
        memcpy(out->pci, (uint32_t[4]){ pci.pciDomain, pci.pciBus, pci.pciDevice, pci.pciFunction }, sizeof(out->pci));
    }
}
