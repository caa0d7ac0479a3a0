#include "standalone.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

PFN_vkGetInstanceProcAddr vkcomm_standalone_loader(void) {
    void *library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL); /* never closed: addresses in it are kept */
    return library ? (PFN_vkGetInstanceProcAddr) dlsym(library, "vkGetInstanceProcAddr") : NULL;
}

PFN_vkGetDeviceProcAddr vkcomm_standalone_device_proc_addr(VkInstance instance, PFN_vkGetInstanceProcAddr get) {
    return (PFN_vkGetDeviceProcAddr) get(instance, "vkGetDeviceProcAddr");
}

struct vkcomm_standalone_features vkcomm_standalone_query(VkInstance instance, VkPhysicalDevice physical_device,
                                                          PFN_vkGetInstanceProcAddr get) {
    PFN_vkGetPhysicalDeviceFeatures2 features2 =
        (PFN_vkGetPhysicalDeviceFeatures2) get(instance, "vkGetPhysicalDeviceFeatures2");
    if (!features2) {
        return (struct vkcomm_standalone_features){ 0 };
    }
    VkPhysicalDeviceTimelineSemaphoreFeatures timeline = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES };
    VkPhysicalDeviceFeatures2 all = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, .pNext = &timeline };
    features2(physical_device, &all);
    return (struct vkcomm_standalone_features){
        .timeline         = timeline.timelineSemaphore,
        .dynamic_indexing = all.features.shaderStorageBufferArrayDynamicIndexing,
    };
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
    fprintf(stderr, "%s\n", line);
}
