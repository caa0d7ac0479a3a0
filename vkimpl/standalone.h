/*
 * The little of a host that benchmarks and tests need: the Vulkan loader,
 * devices as ggml would have them, and a vkQueueSubmit with the lock that a
 * host would take.
 */
#ifndef VKCOMM_STANDALONE_H
#define VKCOMM_STANDALONE_H

#include <stdbool.h>
#include <vulkan/vulkan.h>

/* vkGetInstanceProcAddr of libvulkan.so.1, which then stays loaded; NULL where
 * there is none. (libvulkan.so without a number comes with the development
 * package only.) */
PFN_vkGetInstanceProcAddr vkcomm_standalone_loader(void);

PFN_vkGetDeviceProcAddr vkcomm_standalone_device_proc_addr(VkInstance instance, PFN_vkGetInstanceProcAddr get);

enum { VKCOMM_NO_FAMILY = 0x7fffffff };

/* What a physical device has of that which a communicator uses. */
struct vkcomm_standalone_offer {
    /* Chosen as ggml does: for compute a queue family without graphics where
     * there is one, for transfers one that does neither. VKCOMM_NO_FAMILY: none. */
    uint32_t compute_family, transfer_family;
    /* Features. */
    bool timeline, dynamic_indexing;
    /* Extensions: those that plugin/vkhooks.c adds to ggml's devices. */
    bool external_memory_host, external_memory_fd, external_dma_buf, external_semaphore_fd, queue_family_foreign;
    /* And for measurements. */
    bool calibrated_timestamps;
};

/* Features are false where the instance has no vkGetPhysicalDeviceFeatures2. */
void vkcomm_standalone_query(VkInstance instance, VkPhysicalDevice physical_device, PFN_vkGetInstanceProcAddr get,
                             struct vkcomm_standalone_offer *offer);

/* A device with one queue of each family and all that is offered. */
VkResult vkcomm_standalone_create(VkInstance instance, VkPhysicalDevice physical_device, PFN_vkGetInstanceProcAddr get,
                                  const struct vkcomm_standalone_offer *offer, VkDevice *device);

struct vkcomm_standalone_device;

/* Lets vkcomm_standalone_submit know a device's queues; transfer may be NULL or
 * compute again. NULL when out of memory or without a vkQueueSubmit. */
struct vkcomm_standalone_device *vkcomm_standalone_add(VkDevice device, PFN_vkGetDeviceProcAddr get, VkQueue compute,
                                                       VkQueue transfer);
void vkcomm_standalone_remove(struct vkcomm_standalone_device *device);

/* vkQueueSubmit on a queue of a known device, one thread a device at a time. */
VkResult vkcomm_standalone_submit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence);

/* Writes a line to standard error. */
void vkcomm_standalone_log(int level, const char *line);

#endif
