/*
 * A Vulkan layer that lets one thread at a time into the calls on which
 * synchronization validation keeps its books. Vulkan allows vkSignalSemaphore
 * and vkWaitSemaphores beside a vkQueueSubmit, and the proxy threads do just
 * that; the books of the Khronos layer (seen: 1.4.309) are not made for it: it
 * corrupts the heap, or reports SYNC-HAZARD-*-RACING-* inside one queue.
 *
 * Goes between the program and the Khronos layer; build/validate sets it up.
 */
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <vulkan/vulkan.h>

#include "layer/link.h"

#define EXPORT __attribute__((visibility("default")))

enum { MAX_DEVICES = 64 };

static pthread_mutex_t           books = PTHREAD_MUTEX_INITIALIZER;
static PFN_vkGetInstanceProcAddr next_instance_proc;
static VkInstance                instance;

/* Loader and layers below have other addresses per device; the key that all
 * handles of a device share is the dispatch pointer at their start. */
static struct next {
    void                  *key;
    PFN_vkGetDeviceProcAddr get;
    PFN_vkQueueSubmit       QueueSubmit;
    PFN_vkQueueSubmit2      QueueSubmit2, QueueSubmit2KHR;
    PFN_vkWaitForFences     WaitForFences;
    PFN_vkGetFenceStatus    GetFenceStatus;
    PFN_vkDestroyBuffer     DestroyBuffer;
    PFN_vkDestroySemaphore  DestroySemaphore;
    PFN_vkWaitSemaphores    WaitSemaphores, WaitSemaphoresKHR;
    PFN_vkSignalSemaphore   SignalSemaphore, SignalSemaphoreKHR;
    PFN_vkGetSemaphoreCounterValue GetSemaphoreCounterValue, GetSemaphoreCounterValueKHR;
} devices[MAX_DEVICES];
static unsigned device_count;

#define KEY(handle) (*(void **) (handle))

static struct next *next_of(void *key) {
    unsigned n = __atomic_load_n(&device_count, __ATOMIC_ACQUIRE);
    for (unsigned i = n; i > 0; i--) { /* the newest first: a key may come back */
        if (devices[i - 1].key == key) {
            return &devices[i - 1];
        }
    }
    return NULL;
}

/* One call of a wait that may block: never with the lock held, since what it
 * waits for may need the lock. */
#define POLL(timeout, call)                                                    \
    struct timespec start, now, pause = { 0, 20000 };                          \
    clock_gettime(CLOCK_MONOTONIC, &start);                                    \
    for (;;) {                                                                 \
        pthread_mutex_lock(&books);                                            \
        VkResult result = (call);                                              \
        pthread_mutex_unlock(&books);                                          \
        clock_gettime(CLOCK_MONOTONIC, &now);                                  \
        uint64_t waited = (uint64_t) (now.tv_sec - start.tv_sec) * 1000000000u \
                          + (uint64_t) now.tv_nsec - (uint64_t) start.tv_nsec; \
        if (result != VK_TIMEOUT || waited >= (timeout)) {                     \
            return result;                                                     \
        }                                                                      \
        nanosleep(&pause, NULL);                                               \
    }

#define LOCKED(call)                    \
    pthread_mutex_lock(&books);         \
    VkResult result = (call);           \
    pthread_mutex_unlock(&books);       \
    return result;

static VKAPI_ATTR VkResult VKAPI_CALL QueueSubmit(VkQueue q, uint32_t n, const VkSubmitInfo *infos, VkFence fence) {
    LOCKED(next_of(KEY(q))->QueueSubmit(q, n, infos, fence))
}
static VKAPI_ATTR VkResult VKAPI_CALL QueueSubmit2(VkQueue q, uint32_t n, const VkSubmitInfo2 *infos, VkFence fence) {
    LOCKED(next_of(KEY(q))->QueueSubmit2(q, n, infos, fence))
}
static VKAPI_ATTR VkResult VKAPI_CALL QueueSubmit2KHR(VkQueue q, uint32_t n, const VkSubmitInfo2 *infos, VkFence fence) {
    LOCKED(next_of(KEY(q))->QueueSubmit2KHR(q, n, infos, fence))
}
static VKAPI_ATTR VkResult VKAPI_CALL WaitForFences(VkDevice d, uint32_t n, const VkFence *fences, VkBool32 all, uint64_t timeout) {
    struct next *next = next_of(KEY(d));
    POLL(timeout, next->WaitForFences(d, n, fences, all, 0))
}
static VKAPI_ATTR VkResult VKAPI_CALL GetFenceStatus(VkDevice d, VkFence fence) {
    LOCKED(next_of(KEY(d))->GetFenceStatus(d, fence))
}
static VKAPI_ATTR void VKAPI_CALL DestroyBuffer(VkDevice d, VkBuffer buffer, const VkAllocationCallbacks *allocator) {
    pthread_mutex_lock(&books);
    next_of(KEY(d))->DestroyBuffer(d, buffer, allocator);
    pthread_mutex_unlock(&books);
}
static VKAPI_ATTR void VKAPI_CALL DestroySemaphore(VkDevice d, VkSemaphore s, const VkAllocationCallbacks *allocator) {
    pthread_mutex_lock(&books);
    next_of(KEY(d))->DestroySemaphore(d, s, allocator);
    pthread_mutex_unlock(&books);
}
#define TIMELINE(suffix)                                                                                                \
    static VKAPI_ATTR VkResult VKAPI_CALL WaitSemaphores##suffix(VkDevice d, const VkSemaphoreWaitInfo *info,           \
                                                                 uint64_t timeout) {                                    \
        struct next *next = next_of(KEY(d));                                                                            \
        POLL(timeout, next->WaitSemaphores##suffix(d, info, 0))                                                         \
    }                                                                                                                   \
    static VKAPI_ATTR VkResult VKAPI_CALL SignalSemaphore##suffix(VkDevice d, const VkSemaphoreSignalInfo *info) {      \
        LOCKED(next_of(KEY(d))->SignalSemaphore##suffix(d, info))                                                       \
    }                                                                                                                   \
    static VKAPI_ATTR VkResult VKAPI_CALL GetSemaphoreCounterValue##suffix(VkDevice d, VkSemaphore s, uint64_t *value) { \
        LOCKED(next_of(KEY(d))->GetSemaphoreCounterValue##suffix(d, s, value))                                          \
    }
TIMELINE()
TIMELINE(KHR)

#define WRAPPED(X)                                                                                                 \
    X(QueueSubmit) X(QueueSubmit2) X(QueueSubmit2KHR) X(WaitForFences) X(GetFenceStatus) X(DestroyBuffer)          \
    X(DestroySemaphore) X(WaitSemaphores) X(WaitSemaphoresKHR) X(SignalSemaphore) X(SignalSemaphoreKHR)            \
    X(GetSemaphoreCounterValue) X(GetSemaphoreCounterValueKHR)

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_device_proc(VkDevice device, const char *name) {
    struct next       *next = next_of(KEY(device));
    PFN_vkVoidFunction real = next->get(device, name);
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) {
        return (PFN_vkVoidFunction) get_device_proc;
    }
#define WRAP(command) if (real && strcmp(name, "vk" #command) == 0) return (PFN_vkVoidFunction) command;
    WRAPPED(WRAP)
#undef WRAP
    return real;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *info, const VkAllocationCallbacks *allocator,
                                                      VkInstance *out) {
    VkLayerInstanceCreateInfo *link = link_of(info->pNext, VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO);
    next_instance_proc              = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo              = link->u.pLayerInfo->pNext;
    PFN_vkCreateInstance create     = (PFN_vkCreateInstance) next_instance_proc(NULL, "vkCreateInstance");
    VkResult             result     = create(info, allocator, out);
    if (result == VK_SUCCESS) {
        instance = *out;
    }
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical_device, const VkDeviceCreateInfo *info,
                                                    const VkAllocationCallbacks *allocator, VkDevice *out) {
    VkLayerDeviceCreateInfo *link = link_of(info->pNext, VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO);
    PFN_vkGetDeviceProcAddr  get  = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo            = link->u.pLayerInfo->pNext;
    PFN_vkCreateDevice create     = (PFN_vkCreateDevice) next_instance_proc(instance, "vkCreateDevice");
    VkResult           result     = create(physical_device, info, allocator, out);
    pthread_mutex_lock(&books);
    if (result == VK_SUCCESS && device_count < MAX_DEVICES) {
        struct next *next = &devices[device_count];
        *next             = (struct next){ .key = KEY(*out), .get = get };
#define RESOLVE(command) next->command = (PFN_vk##command) get(*out, "vk" #command);
        WRAPPED(RESOLVE)
#undef RESOLVE
        __atomic_store_n(&device_count, device_count + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&books);
    return result;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL get_instance_proc(VkInstance handle, const char *name) {
    if (strcmp(name, "vkCreateInstance") == 0) {
        return (PFN_vkVoidFunction) create_instance;
    }
    if (strcmp(name, "vkCreateDevice") == 0) {
        return (PFN_vkVoidFunction) create_device;
    }
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) {
        return (PFN_vkVoidFunction) get_device_proc;
    }
    if (strcmp(name, "vkGetInstanceProcAddr") == 0) {
        return (PFN_vkVoidFunction) get_instance_proc;
    }
    return next_instance_proc ? next_instance_proc(handle, name) : NULL;
}

EXPORT VKAPI_ATTR VkResult VKAPI_CALL vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *offer) {
    offer->loaderLayerInterfaceVersion = 2;
    offer->pfnGetInstanceProcAddr      = get_instance_proc;
    offer->pfnGetDeviceProcAddr        = get_device_proc;
    offer->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
