/*
 * The Vulkan commands of ggml that are wrapped. vkCreateDevice asks for a few
 * more extensions; the others pass on and tell the registry what they saw, and
 * everything that submits takes the device's lock.
 */
#define _GNU_SOURCE
#include "interpose.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "registry.h"
#include "submit.h"

/* The loader's entry points, good for every device: used for a device that the
 * registry does not know, and before there is one. */
static struct {
    _Atomic(VkInstance)                instance;
    _Atomic(PFN_vkGetInstanceProcAddr) get_instance_proc_addr;
    _Atomic(PFN_vkCreateDevice)        create_device;
    struct vkcomm_device_calls         calls; /* same values from whoever asks */
} loader;

/* ---- vkCreateDevice ----------------------------------------------------------------- */

static const struct {
    const char *name;
    uint32_t    flag;
} wanted[] = {
    { VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME, VKCOMM_HAS_EXTERNAL_MEMORY_HOST },
    { VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME, VKCOMM_HAS_EXTERNAL_MEMORY_FD },
    { VK_EXT_EXTERNAL_MEMORY_DMA_BUF_EXTENSION_NAME, VKCOMM_HAS_EXTERNAL_DMA_BUF },
    { VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME, VKCOMM_HAS_EXTERNAL_SEMAPHORE_FD },
    { VK_EXT_QUEUE_FAMILY_FOREIGN_EXTENSION_NAME, VKCOMM_HAS_QUEUE_FAMILY_FOREIGN },
};
enum { WANTED = sizeof(wanted) / sizeof(wanted[0]) };

static bool listed(const char *name, const char *const *names, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* Which of wanted[] the physical device advertises, as VKCOMM_HAS_* bits. */
static uint32_t advertised(VkPhysicalDevice physical_device, VkInstance instance, PFN_vkGetInstanceProcAddr gipa) {
    PFN_vkEnumerateDeviceExtensionProperties enumerate = (PFN_vkEnumerateDeviceExtensionProperties) gipa(
        instance, "vkEnumerateDeviceExtensionProperties");
    uint32_t count = 0, flags = 0;
    if (!enumerate || enumerate(physical_device, NULL, &count, NULL) != VK_SUCCESS || count == 0) {
        return 0;
    }
    VkExtensionProperties *properties = calloc(count, sizeof(*properties));
    if (properties && enumerate(physical_device, NULL, &count, properties) == VK_SUCCESS) {
        for (uint32_t i = 0; i < count; i++) {
            for (unsigned w = 0; w < WANTED; w++) {
                if (strcmp(properties[i].extensionName, wanted[w].name) == 0) {
                    flags |= wanted[w].flag;
                }
            }
        }
    }
    free(properties);
    return flags;
}

static uint32_t enabled_features(const VkDeviceCreateInfo *info) {
    const VkPhysicalDeviceFeatures *core  = info->pEnabledFeatures;
    uint32_t                        flags = 0;
    for (const VkBaseInStructure *s = info->pNext; s; s = s->pNext) {
        VkBool32 timeline = VK_FALSE;
        switch (s->sType) {
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES:
            timeline = ((const VkPhysicalDeviceVulkan12Features *) s)->timelineSemaphore;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES:
            timeline = ((const VkPhysicalDeviceTimelineSemaphoreFeatures *) s)->timelineSemaphore;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2:
            core = &((const VkPhysicalDeviceFeatures2 *) s)->features;
            break;
        default:
            break;
        }
        flags |= timeline ? VKCOMM_HAS_TIMELINE : 0;
    }
    if (core && core->shaderStorageBufferArrayDynamicIndexing) {
        flags |= VKCOMM_HAS_DYNAMIC_INDEXING;
    }
    return flags;
}

/* A queue family that can copy and nothing else, and that the caller does not
 * ask for; -1: none. ggml takes such a family itself where it finds one. */
static int64_t spare_transfer_family(VkPhysicalDevice physical_device, VkInstance instance, PFN_vkGetInstanceProcAddr gipa,
                                     const VkDeviceCreateInfo *info) {
    PFN_vkGetPhysicalDeviceQueueFamilyProperties get = (PFN_vkGetPhysicalDeviceQueueFamilyProperties) gipa(
        instance, "vkGetPhysicalDeviceQueueFamilyProperties");
    VkQueueFamilyProperties families[16];
    uint32_t                count = 16;
    if (!get) {
        return -1;
    }
    get(physical_device, &count, families);
    for (uint32_t f = 0; f < count; f++) {
        const VkQueueFlags copies = VK_QUEUE_TRANSFER_BIT | VK_QUEUE_SPARSE_BINDING_BIT | VK_QUEUE_PROTECTED_BIT;
        bool spare = (families[f].queueFlags & VK_QUEUE_TRANSFER_BIT) && !(families[f].queueFlags & ~copies) &&
                     families[f].queueCount > 0;
        for (uint32_t i = 0; i < info->queueCreateInfoCount; i++) {
            spare = spare && info->pQueueCreateInfos[i].queueFamilyIndex != f;
        }
        if (spare) {
            return f;
        }
    }
    return -1;
}

/* What a device is created with beyond what the caller asks for. */
struct additions {
    uint32_t available; /* in: extensions that the device advertises */
    uint32_t enabled;   /* out: those that it was created with */
    int64_t  family;    /* in and out: one queue of this family, -1: none */
};

/* Creates the device with the additions; if the driver will not have it,
 * exactly as the caller asked. */
static VkResult create_enriched(PFN_vkCreateDevice create, VkPhysicalDevice physical_device,
                                const VkDeviceCreateInfo *info, const VkAllocationCallbacks *allocator,
                                VkDevice *device, struct additions *additions) {
    static const float       priority = 0.5f;
    const char             **names    = calloc(info->enabledExtensionCount + WANTED, sizeof(*names));
    VkDeviceQueueCreateInfo *queues   = calloc(info->queueCreateInfoCount + 1, sizeof(*queues));
    uint32_t                 count = info->enabledExtensionCount, asked_for = 0, added = 0;
    for (unsigned w = 0; w < WANTED; w++) {
        bool asked = listed(wanted[w].name, info->ppEnabledExtensionNames, info->enabledExtensionCount);
        asked_for |= asked ? wanted[w].flag : 0;
        if (names && !asked && (additions->available & wanted[w].flag)) {
            names[count++] = wanted[w].name;
            added |= wanted[w].flag;
        }
    }
    VkResult result = VK_INCOMPLETE;
    if (names && queues && (added || additions->family >= 0)) {
        for (uint32_t i = 0; i < info->enabledExtensionCount; i++) {
            names[i] = info->ppEnabledExtensionNames[i];
        }
        for (uint32_t i = 0; i < info->queueCreateInfoCount; i++) {
            queues[i] = info->pQueueCreateInfos[i];
        }
        queues[info->queueCreateInfoCount] = (VkDeviceQueueCreateInfo){
            .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO, .queueFamilyIndex = (uint32_t) additions->family,
            .queueCount = 1, .pQueuePriorities = &priority };
        VkDeviceCreateInfo enriched      = *info;
        enriched.enabledExtensionCount   = count;
        enriched.ppEnabledExtensionNames = names;
        enriched.queueCreateInfoCount += additions->family >= 0;
        enriched.pQueueCreateInfos = queues;
        result = create(physical_device, &enriched, allocator, device);
        if (result != VK_SUCCESS) {
            vkcomm_logf(VKCOMM_GGML_LOG_LEVEL_WARN,
                        "vkCreateDevice with %u added extensions failed (VkResult %d): repeating the call as ggml made it",
                        count - info->enabledExtensionCount, result);
        }
    }
    free(names);
    free(queues);
    if (result != VK_SUCCESS) {
        added             = 0;
        additions->family = -1;
        result            = create(physical_device, info, allocator, device);
    }
    additions->enabled = asked_for | added;
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical_device, const VkDeviceCreateInfo *info,
                                                    const VkAllocationCallbacks *allocator, VkDevice *device) {
    PFN_vkCreateDevice        create   = atomic_load(&loader.create_device);
    PFN_vkGetInstanceProcAddr gipa     = atomic_load(&loader.get_instance_proc_addr);
    VkInstance                instance = atomic_load(&loader.instance);
    if (vkcomm_inert()) {
        return create(physical_device, info, allocator, device);
    }
    struct vkcomm_device_info known = { .instance = instance, .physical_device = physical_device,
                                        .get_instance_proc_addr = gipa };
    known.get_device_proc_addr = (PFN_vkGetDeviceProcAddr) gipa(instance, "vkGetDeviceProcAddr");

    struct additions additions = { .available = advertised(physical_device, instance, gipa),
                                   .family    = spare_transfer_family(physical_device, instance, gipa, info) };
    VkResult result = create_enriched(create, physical_device, info, allocator, device, &additions);
    if (result != VK_SUCCESS || !known.get_device_proc_addr) {
        return result;
    }
    known.device = *device;
    known.enabled = additions.enabled | enabled_features(info);

    struct vkcomm_device_calls calls = { 0 };
#define RESOLVE(member, command) calls.member = (PFN_##command) known.get_device_proc_addr(*device, #command)
    RESOLVE(destroy_device, vkDestroyDevice);
    RESOLVE(get_device_queue, vkGetDeviceQueue);
    RESOLVE(get_device_queue2, vkGetDeviceQueue2);
    RESOLVE(create_buffer, vkCreateBuffer);
    RESOLVE(destroy_buffer, vkDestroyBuffer);
    RESOLVE(queue_submit, vkQueueSubmit);
    RESOLVE(queue_submit2, vkQueueSubmit2);
    RESOLVE(queue_wait_idle, vkQueueWaitIdle);
    RESOLVE(device_wait_idle, vkDeviceWaitIdle);
#undef RESOLVE
    calls.queue_submit2_khr = (PFN_vkQueueSubmit2) known.get_device_proc_addr(*device, "vkQueueSubmit2KHR");
    struct vkcomm_device *entry = vkcomm_registry_add_device(&known, &calls);
    if (entry && additions.family >= 0) {
        VkQueue queue = VK_NULL_HANDLE;
        calls.get_device_queue(*device, (uint32_t) additions.family, 0, &queue);
        vkcomm_registry_add_queue(entry, queue, (uint32_t) additions.family);
    }
    return result;
}

/* ---- pass and note ------------------------------------------------------------------ */

/* The device's own entry point, or the loader's for a device that was made
 * behind our back. */
#define CALL(device, member) ((device) && (device)->calls.member ? (device)->calls.member : loader.calls.member)

static VKAPI_ATTR void VKAPI_CALL destroy_device(VkDevice handle, const VkAllocationCallbacks *allocator) {
    struct vkcomm_device *device = vkcomm_registry_device(handle);
    PFN_vkDestroyDevice   real   = CALL(device, destroy_device);
    if (device) {
        vkcomm_submit_forget(device);
    }
    vkcomm_registry_remove_device(handle);
    real(handle, allocator);
}

static VKAPI_ATTR void VKAPI_CALL get_device_queue(VkDevice handle, uint32_t family, uint32_t index, VkQueue *queue) {
    struct vkcomm_device *device = vkcomm_registry_device(handle);
    CALL(device, get_device_queue)(handle, family, index, queue);
    if (device && *queue) {
        vkcomm_registry_add_queue(device, *queue, family);
    }
}

static VKAPI_ATTR void VKAPI_CALL get_device_queue2(VkDevice handle, const VkDeviceQueueInfo2 *info, VkQueue *queue) {
    struct vkcomm_device *device = vkcomm_registry_device(handle);
    CALL(device, get_device_queue2)(handle, info, queue);
    if (device && *queue) {
        vkcomm_registry_add_queue(device, *queue, info->queueFamilyIndex);
    }
}

static VKAPI_ATTR VkResult VKAPI_CALL create_buffer(VkDevice handle, const VkBufferCreateInfo *info,
                                                    const VkAllocationCallbacks *allocator, VkBuffer *buffer) {
    struct vkcomm_device *device = vkcomm_registry_device(handle);
    VkResult              result = CALL(device, create_buffer)(handle, info, allocator, buffer);
    if (result == VK_SUCCESS) {
        vkcomm_registry_buffer_created(handle, *buffer, info->size);
    }
    return result;
}

static VKAPI_ATTR void VKAPI_CALL destroy_buffer(VkDevice handle, VkBuffer buffer, const VkAllocationCallbacks *allocator) {
    struct vkcomm_device *device = vkcomm_registry_device(handle);
    if (buffer) {
        vkcomm_registry_buffer_destroyed(handle, buffer);
    }
    CALL(device, destroy_buffer)(handle, buffer, allocator);
}

static VKAPI_ATTR VkResult VKAPI_CALL queue_submit(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence) {
    struct vkcomm_device *device = vkcomm_registry_queue_device(queue);
    VkResult result = device ? vkcomm_submit_host(device, queue, count, infos, fence)
                             : loader.calls.queue_submit(queue, count, infos, fence);
    vkcomm_registry_submitted(queue, count > 0, fence != VK_NULL_HANDLE);
    return result;
}

static void submit_lock(struct vkcomm_device *device) {
    if (device) {
        vkcomm_submit_lock(device);
    }
}

static void submit_unlock(struct vkcomm_device *device) {
    if (device) {
        vkcomm_submit_unlock(device);
    }
}

static VkResult submit2(PFN_vkQueueSubmit2 real, struct vkcomm_device *device, VkQueue queue, uint32_t count,
                        const VkSubmitInfo2 *infos, VkFence fence) {
    submit_lock(device);
    VkResult result = real(queue, count, infos, fence);
    submit_unlock(device);
    vkcomm_registry_submitted(queue, count > 0, fence != VK_NULL_HANDLE);
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL queue_submit2(VkQueue queue, uint32_t count, const VkSubmitInfo2 *infos, VkFence fence) {
    struct vkcomm_device *device = vkcomm_registry_queue_device(queue);
    return submit2(CALL(device, queue_submit2), device, queue, count, infos, fence);
}

static VKAPI_ATTR VkResult VKAPI_CALL queue_submit2_khr(VkQueue queue, uint32_t count, const VkSubmitInfo2 *infos, VkFence fence) {
    struct vkcomm_device *device = vkcomm_registry_queue_device(queue);
    return submit2(CALL(device, queue_submit2_khr), device, queue, count, infos, fence);
}

static VKAPI_ATTR VkResult VKAPI_CALL queue_wait_idle(VkQueue queue) {
    struct vkcomm_device *device = vkcomm_registry_queue_device(queue);
    submit_lock(device);
    VkResult result = CALL(device, queue_wait_idle)(queue);
    submit_unlock(device);
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL device_wait_idle(VkDevice handle) {
    struct vkcomm_device *device = vkcomm_registry_device(handle);
    submit_lock(device);
    VkResult result = CALL(device, device_wait_idle)(handle);
    submit_unlock(device);
    return result;
}

/* ---- the table ------------------------------------------------------------------------ */

/* Each command once: where its real address is kept, and what replaces it. */
#define WRAPPED(X)                                             \
    X("vkDestroyDevice", destroy_device, vkDestroyDevice)      \
    X("vkGetDeviceQueue", get_device_queue, vkGetDeviceQueue)  \
    X("vkGetDeviceQueue2", get_device_queue2, vkGetDeviceQueue2) \
    X("vkCreateBuffer", create_buffer, vkCreateBuffer)         \
    X("vkDestroyBuffer", destroy_buffer, vkDestroyBuffer)      \
    X("vkQueueSubmit", queue_submit, vkQueueSubmit)            \
    X("vkQueueSubmit2", queue_submit2, vkQueueSubmit2)         \
    X("vkQueueSubmit2KHR", queue_submit2_khr, vkQueueSubmit2)  \
    X("vkQueueWaitIdle", queue_wait_idle, vkQueueWaitIdle)     \
    X("vkDeviceWaitIdle", device_wait_idle, vkDeviceWaitIdle)

PFN_vkVoidFunction vkcomm_wrap_device_proc(const char *name, PFN_vkVoidFunction real) {
#define WRAP(text, member, type)                                      \
    if (strcmp(name, text) == 0) {                                    \
        if (!loader.calls.member) {                                   \
            loader.calls.member = (PFN_##type) real;                  \
        }                                                             \
        return (PFN_vkVoidFunction) member;                           \
    }
    WRAPPED(WRAP)
#undef WRAP
    return real;
}

PFN_vkVoidFunction vkcomm_wrap_instance_proc(VkInstance instance, const char *name, PFN_vkVoidFunction real,
                                             PFN_vkGetInstanceProcAddr real_gipa) {
    if (instance) {
        atomic_store(&loader.instance, instance);
    }
    atomic_store(&loader.get_instance_proc_addr, real_gipa);
    if (strcmp(name, "vkCreateDevice") == 0) {
        atomic_store(&loader.create_device, (PFN_vkCreateDevice) real);
        return (PFN_vkVoidFunction) create_device;
    }
    if (strcmp(name, "vkGetInstanceProcAddr") == 0) {
        return (PFN_vkVoidFunction) vkGetInstanceProcAddr; /* ours */
    }
    if (strcmp(name, "vkGetDeviceProcAddr") == 0) {
        return (PFN_vkVoidFunction) vkGetDeviceProcAddr;
    }
    return vkcomm_wrap_device_proc(name, real);
}
