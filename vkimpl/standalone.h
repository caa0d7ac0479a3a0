/*
 * The little of a host that benchmarks and tests need: the Vulkan loader, what
 * a device offers, and a vkQueueSubmit with the lock that a host would take.
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

/* Features that a communicator asks of a device. */
struct vkcomm_standalone_features {
    bool timeline, dynamic_indexing;
};

/* All false where the instance does not have vkGetPhysicalDeviceFeatures2. */
struct vkcomm_standalone_features vkcomm_standalone_query(VkInstance instance, VkPhysicalDevice physical_device,
                                                          PFN_vkGetInstanceProcAddr get);

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
