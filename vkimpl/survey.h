/*
 * What a diagnosis shows of a physical device and a communicator does not need.
 */
#ifndef VKCOMM_SURVEY_H
#define VKCOMM_SURVEY_H

#include <stdbool.h>
#include <vulkan/vulkan.h>

enum { VKCOMM_SURVEY_FAMILIES = 16, VKCOMM_SURVEY_EXTENSIONS = 8 };

/* The extensions that matter here, in the order of vkcomm_survey.extensions. */
extern const char *const vkcomm_survey_extensions[VKCOMM_SURVEY_EXTENSIONS];

struct vkcomm_survey {
    bool     has_pci; /* VK_EXT_pci_bus_info */
    uint32_t pci[4];  /* domain, bus, device, function */

    uint32_t heaps;
    uint64_t heap_bytes[VK_MAX_MEMORY_HEAPS];
    bool     heap_local[VK_MAX_MEMORY_HEAPS];  /* device-local */
    bool     heap_window[VK_MAX_MEMORY_HEAPS]; /* device-local memory that the host can write */

    uint32_t     families;
    VkQueueFlags family_flags[VKCOMM_SURVEY_FAMILIES];
    uint32_t     family_queues[VKCOMM_SURVEY_FAMILIES];

    bool extensions[VKCOMM_SURVEY_EXTENSIONS];
};

void vkcomm_survey(VkInstance instance, VkPhysicalDevice physical_device, PFN_vkGetInstanceProcAddr get,
                   struct vkcomm_survey *out);

#endif
