#include "standalone.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMAND(name) ((PFN_##name) get(instance, #name))

PFN_vkGetInstanceProcAddr vkcomm_standalone_loader(void) {
    void *library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL); /* never closed: addresses in it are kept */
    return library ? (PFN_vkGetInstanceProcAddr) dlsym(library, "vkGetInstanceProcAddr") : NULL;
}

PFN_vkGetDeviceProcAddr vkcomm_standalone_device_proc_addr(VkInstance instance, PFN_vkGetInstanceProcAddr get) {
    return COMMAND(vkGetDeviceProcAddr);
}

static void query_families(VkInstance instance, VkPhysicalDevice physical_device, PFN_vkGetInstanceProcAddr get,
                           struct vkcomm_standalone_offer *offer) {
    VkQueueFamilyProperties families[32];
    uint32_t                count = 32;
    VkQueueFlags            compute = 0, transfer = 0;
    COMMAND(vkGetPhysicalDeviceQueueFamilyProperties)(physical_device, &count, families);
    offer->compute_family = offer->transfer_family = VKCOMM_NO_FAMILY;
    for (uint32_t i = 0; i < count; i++) {
        VkQueueFlags flags = families[i].queueFlags;
        if (flags & VK_QUEUE_COMPUTE_BIT) {
            if (!compute || ((compute & VK_QUEUE_GRAPHICS_BIT) && !(flags & VK_QUEUE_GRAPHICS_BIT))) {
                offer->compute_family = i;
                compute               = flags;
            }
        } else if ((flags & VK_QUEUE_TRANSFER_BIT) && !(flags & VK_QUEUE_GRAPHICS_BIT)) {
            if (!transfer || flags < transfer) { /* a copy engine rather than a video engine */
                offer->transfer_family = i;
                transfer               = flags;
            }
        }
    }
}

static void query_features(VkInstance instance, VkPhysicalDevice physical_device, PFN_vkGetInstanceProcAddr get,
                           struct vkcomm_standalone_offer *offer) {
    PFN_vkGetPhysicalDeviceFeatures2          features2 = COMMAND(vkGetPhysicalDeviceFeatures2);
    VkPhysicalDeviceTimelineSemaphoreFeatures timeline  = {
         .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES };
    VkPhysicalDeviceFeatures2 all = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &timeline };
    if (features2) {
        features2(physical_device, &all);
    }
    offer->timeline         = timeline.timelineSemaphore;
    offer->dynamic_indexing = all.features.shaderStorageBufferArrayDynamicIndexing;
}

static const struct {
    const char *name;
    size_t      offered; /* offset of its bool */
} extensions[] = {
    { VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME, offsetof(struct vkcomm_standalone_offer, external_memory_host) },
    { VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME, offsetof(struct vkcomm_standalone_offer, external_memory_fd) },
    { VK_EXT_EXTERNAL_MEMORY_DMA_BUF_EXTENSION_NAME, offsetof(struct vkcomm_standalone_offer, external_dma_buf) },
    { VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME, offsetof(struct vkcomm_standalone_offer, external_semaphore_fd) },
    { VK_EXT_QUEUE_FAMILY_FOREIGN_EXTENSION_NAME, offsetof(struct vkcomm_standalone_offer, queue_family_foreign) },
    { VK_EXT_CALIBRATED_TIMESTAMPS_EXTENSION_NAME, offsetof(struct vkcomm_standalone_offer, calibrated_timestamps) },
};
enum { EXTENSIONS = sizeof(extensions) / sizeof(extensions[0]) };

static void query_extensions(VkInstance instance, VkPhysicalDevice physical_device, PFN_vkGetInstanceProcAddr get,
                             struct vkcomm_standalone_offer *offer) {
    PFN_vkEnumerateDeviceExtensionProperties enumerate = COMMAND(vkEnumerateDeviceExtensionProperties);
    uint32_t                                 count     = 0;
    if (enumerate(physical_device, NULL, &count, NULL) != VK_SUCCESS) {
        return;
    }
    VkExtensionProperties *all = calloc(count + 1, sizeof(*all));
    if (!all || enumerate(physical_device, NULL, &count, all) != VK_SUCCESS) {
        count = 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        for (unsigned e = 0; e < EXTENSIONS; e++) {
            if (strcmp(all[i].extensionName, extensions[e].name) == 0) {
                *(bool *) ((char *) offer + extensions[e].offered) = true;
            }
        }
    }
    free(all);
}

void vkcomm_standalone_query(VkInstance instance, VkPhysicalDevice physical_device, PFN_vkGetInstanceProcAddr get,
                             struct vkcomm_standalone_offer *offer) {
    *offer = (struct vkcomm_standalone_offer){ 0 };
    query_families(instance, physical_device, get, offer);
    query_features(instance, physical_device, get, offer);
    query_extensions(instance, physical_device, get, offer);
}

VkResult vkcomm_standalone_create(VkInstance instance, VkPhysicalDevice physical_device, PFN_vkGetInstanceProcAddr get,
                                  const struct vkcomm_standalone_offer *offer, VkDevice *device) {
    float                   priority  = 1;
    VkDeviceQueueCreateInfo queues[2] = { { .sType            = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                            .queueFamilyIndex = offer->compute_family,
                                            .queueCount       = 1,
                                            .pQueuePriorities = &priority } };
    queues[1]                  = queues[0];
    queues[1].queueFamilyIndex = offer->transfer_family;
    const char *names[EXTENSIONS];
    uint32_t    count = 0;
    for (unsigned e = 0; e < EXTENSIONS; e++) {
        if (*(const bool *) ((const char *) offer + extensions[e].offered)) {
            names[count++] = extensions[e].name;
        }
    }
    VkPhysicalDeviceTimelineSemaphoreFeatures timeline = {
        .sType             = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES,
        .timelineSemaphore = offer->timeline };
    VkPhysicalDeviceFeatures core = { .shaderStorageBufferArrayDynamicIndexing = offer->dynamic_indexing };
    VkDeviceCreateInfo       info = { .sType                   = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                      .pNext                   = offer->timeline ? &timeline : NULL,
                                      .queueCreateInfoCount    = offer->transfer_family == VKCOMM_NO_FAMILY ? 1 : 2,
                                      .pQueueCreateInfos       = queues,
                                      .enabledExtensionCount   = count,
                                      .ppEnabledExtensionNames = names,
                                      .pEnabledFeatures        = &core };
    return COMMAND(vkCreateDevice)(physical_device, &info, NULL, device);
}

struct vkcomm_standalone_device {
    struct vkcomm_standalone_device *next;
    VkQueue                          queues[2];
    PFN_vkQueueSubmit                submit;
    pthread_mutex_t                  lock; /* for all queues of the device, as the preloaded side has it */
};

static struct vkcomm_standalone_device *known;
static pthread_rwlock_t                 known_lock = PTHREAD_RWLOCK_INITIALIZER;

struct vkcomm_standalone_device *vkcomm_standalone_add(VkDevice device, PFN_vkGetDeviceProcAddr get, VkQueue compute,
                                                       VkQueue transfer) {
    PFN_vkQueueSubmit                submit = (PFN_vkQueueSubmit) get(device, "vkQueueSubmit");
    struct vkcomm_standalone_device *d      = submit ? calloc(1, sizeof(*d)) : NULL;
    if (!d) {
        return NULL;
    }
    d->queues[0] = compute;
    d->queues[1] = transfer;
    d->submit    = submit;
    pthread_mutex_init(&d->lock, NULL);
    pthread_rwlock_wrlock(&known_lock);
    d->next = known;
    known   = d;
    pthread_rwlock_unlock(&known_lock);
    return d;
}

void vkcomm_standalone_remove(struct vkcomm_standalone_device *device) {
    pthread_rwlock_wrlock(&known_lock);
    struct vkcomm_standalone_device **at = &known;
    while (*at != device) {
        at = &(*at)->next;
    }
    *at = device->next;
    pthread_rwlock_unlock(&known_lock);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

VkResult vkcomm_standalone_submit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence) {
    pthread_rwlock_rdlock(&known_lock);
    struct vkcomm_standalone_device *d = known;
    while (d && d->queues[0] != queue && d->queues[1] != queue) {
        d = d->next;
    }
    VkResult result = VK_ERROR_DEVICE_LOST; /* of a queue that nobody made known */
    if (d) {
        pthread_mutex_lock(&d->lock);
        result = d->submit(queue, count, infos, fence);
        pthread_mutex_unlock(&d->lock);
    }
    pthread_rwlock_unlock(&known_lock);
    return result;
}

void vkcomm_standalone_log(int level, const char *line) {
    (void) level;
    fprintf(stderr, "ggml_vk_comm: %s\n", line);
}
