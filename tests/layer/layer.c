/* The links to the loader and to the driver. */
#include "layer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vk_layer.h>

enum { MAX_DEVICES = 64 };

#define KEY(handle) (*(void **) (handle)) /* all handles of a device start with the same pointer */

static struct next {
    void *                  key;
    PFN_vkGetDeviceProcAddr get;
#define MEMBER(name, parameters, arguments) PFN_vk##name name;
    COMMANDS(MEMBER)
#undef MEMBER
    PFN_vkUpdateDescriptorSets UpdateDescriptorSets;
} devices[MAX_DEVICES];
static unsigned                  device_count;
static pthread_mutex_t           lock = PTHREAD_MUTEX_INITIALIZER;
static VkInstance                the_instance; /* ggml makes one */
static PFN_vkGetInstanceProcAddr next_instance_proc;

static struct next * next_of(void * key) {
    for (unsigned i = __atomic_load_n(&device_count, __ATOMIC_ACQUIRE); i > 0; i--) { /* a key may come back */
        if (devices[i - 1].key == key) {
            return &devices[i - 1];
        }
    }
    abort();
}

/* ---- commands of a device ------------------------------------------------------------ */

#define DEFINE(name, parameters, arguments)                                        \
    static VKAPI_ATTR VkResult VKAPI_CALL layer_##name parameters {                \
        struct next * next = next_of(KEY(h));                                      \
        VkResult      forced;                                                      \
        if (fault_injected(COMMAND_##name, (unsigned) (next - devices), &forced)) { \
            return forced;                                                         \
        }                                                                          \
        return next->name arguments;                                               \
    }
COMMANDS(DEFINE)
#undef DEFINE

static VKAPI_ATTR VkResult VKAPI_CALL checked_AllocateMemory(VkDevice device, const VkMemoryAllocateInfo * info,
                                                             const VkAllocationCallbacks * allocator,
                                                             VkDeviceMemory *              out) {
    profile_check_import(info);
    return layer_AllocateMemory(device, info, allocator, out);
}

static VKAPI_ATTR void VKAPI_CALL update_sets(VkDevice device, uint32_t writes, const VkWriteDescriptorSet * write,
                                              uint32_t copies, const VkCopyDescriptorSet * copy) {
    profile_check_writes(writes, write);
    next_of(KEY(device))->UpdateDescriptorSets(device, writes, write, copies, copy);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice device, const char * name) {
    PFN_vkVoidFunction real = next_of(KEY(device))->get(device, name);
    if (strcmp(name, "vkAllocateMemory") == 0) {
        return (PFN_vkVoidFunction) checked_AllocateMemory;
    }
    if (strcmp(name, "vkUpdateDescriptorSets") == 0) {
        return (PFN_vkVoidFunction) update_sets;
    }
#define WRAP(command, parameters, arguments)                 \
    if (real != NULL && strcmp(name, "vk" #command) == 0) { \
        return (PFN_vkVoidFunction) layer_##command;         \
    }
    COMMANDS(WRAP)
#undef WRAP
    return strcmp(name, "vkGetDeviceProcAddr") == 0 ? (PFN_vkVoidFunction) device_proc : real;
}

/* ---- commands of a physical device ------------------------------------------------------ */

/* Asked for as soon as there is an instance: later the loader answers with the
 * first layer of the chain. */
#define INSTANCE_COMMANDS(X)                \
    X(EnumerateDeviceExtensionProperties)   \
    X(GetPhysicalDeviceProperties)          \
    X(GetPhysicalDeviceProperties2)         \
    X(GetPhysicalDeviceFeatures2)
static struct {
#define MEMBER(name) PFN_vk##name name;
    INSTANCE_COMMANDS(MEMBER)
#undef MEMBER
} below;

static VKAPI_ATTR VkResult VKAPI_CALL extensions(VkPhysicalDevice device, const char * layer, uint32_t * count,
                                                 VkExtensionProperties * out) {
    uint32_t                n    = 0;
    VkExtensionProperties * all  = NULL;
    PFN_vkEnumerateDeviceExtensionProperties next = below.EnumerateDeviceExtensionProperties;
    VkResult result = next(device, layer, &n, NULL);
    if (result != VK_SUCCESS || layer != NULL) {
        return next(device, layer, count, out);
    }
    all    = calloc(n + 1, sizeof(*all));
    result = all != NULL ? next(device, NULL, &n, all) : VK_ERROR_OUT_OF_HOST_MEMORY;
    uint32_t kept = 0;
    for (uint32_t i = 0; result == VK_SUCCESS && i < n; i++) {
        if (profile_hides(all[i].extensionName)) {
            continue;
        }
        if (out != NULL && kept == *count) {
            result = VK_INCOMPLETE;
            break;
        }
        if (out != NULL) {
            out[kept] = all[i];
        }
        kept++;
    }
    if (result >= VK_SUCCESS) {
        *count = kept;
    }
    free(all);
    return result;
}

static VKAPI_ATTR void VKAPI_CALL properties(VkPhysicalDevice device, VkPhysicalDeviceProperties * out) {
    below.GetPhysicalDeviceProperties(device, out);
    profile_limits(&out->limits);
}

static VKAPI_ATTR void VKAPI_CALL properties2(VkPhysicalDevice device, VkPhysicalDeviceProperties2 * out) {
    below.GetPhysicalDeviceProperties2(device, out);
    profile_limits(&out->properties.limits);
    profile_properties(out->pNext);
}

static VKAPI_ATTR void VKAPI_CALL features2(VkPhysicalDevice device, VkPhysicalDeviceFeatures2 * out) {
    below.GetPhysicalDeviceFeatures2(device, out);
    profile_features(out->pNext);
}

/* ---- creation ------------------------------------------------------------------------- */

/* The element of the loader's chain that says who is next. */
static void * link_of(const void * chain, VkStructureType type) {
    for (const VkBaseInStructure * s = chain; s != NULL; s = s->pNext) {
        /* Both kinds of link have function after sType and pNext. */
        if (s->sType == type && ((const VkLayerInstanceCreateInfo *) s)->function == VK_LAYER_LINK_INFO) {
            return (void *) (uintptr_t) s;
        }
    }
    return NULL;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo * info,
                                                      const VkAllocationCallbacks * allocator, VkInstance * out) {
    VkLayerInstanceCreateInfo * link = link_of(info->pNext, VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO);
    next_instance_proc               = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo               = link->u.pLayerInfo->pNext;
    PFN_vkCreateInstance create      = (PFN_vkCreateInstance) next_instance_proc(NULL, "vkCreateInstance");
    const VkResult       result      = create(info, allocator, out);
    if (result == VK_SUCCESS) {
        the_instance = *out;
#define RESOLVE(name) below.name = (PFN_vk##name) next_instance_proc(*out, "vk" #name);
        INSTANCE_COMMANDS(RESOLVE)
#undef RESOLVE
    }
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical_device, const VkDeviceCreateInfo * info,
                                                    const VkAllocationCallbacks * allocator, VkDevice * out) {
    VkLayerDeviceCreateInfo * link = link_of(info->pNext, VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO);
    PFN_vkGetDeviceProcAddr   get  = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    PFN_vkCreateDevice create =
        (PFN_vkCreateDevice) link->u.pLayerInfo->pfnNextGetInstanceProcAddr(the_instance, "vkCreateDevice");
    link->u.pLayerInfo    = link->u.pLayerInfo->pNext;
    const VkResult result = create(physical_device, info, allocator, out);
    pthread_mutex_lock(&lock);
    if (result == VK_SUCCESS && device_count < MAX_DEVICES) {
        struct next * next = &devices[device_count];
        *next              = (struct next) { .key = KEY(*out), .get = get };
#define RESOLVE(name, parameters, arguments) next->name = (PFN_vk##name) get(*out, "vk" #name);
        COMMANDS(RESOLVE)
#undef RESOLVE
        next->UpdateDescriptorSets = (PFN_vkUpdateDescriptorSets) get(*out, "vkUpdateDescriptorSets");
        __atomic_store_n(&device_count, device_count + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance instance, const char * name) {
    static const struct {
        const char *       name;
        PFN_vkVoidFunction function;
    } ours[] = {
        { "vkCreateInstance", (PFN_vkVoidFunction) create_instance },
        { "vkCreateDevice", (PFN_vkVoidFunction) create_device },
        { "vkGetDeviceProcAddr", (PFN_vkVoidFunction) device_proc },
        { "vkGetInstanceProcAddr", (PFN_vkVoidFunction) instance_proc },
        { "vkEnumerateDeviceExtensionProperties", (PFN_vkVoidFunction) extensions },
        { "vkGetPhysicalDeviceProperties", (PFN_vkVoidFunction) properties },
        { "vkGetPhysicalDeviceProperties2", (PFN_vkVoidFunction) properties2 },
        { "vkGetPhysicalDeviceProperties2KHR", (PFN_vkVoidFunction) properties2 },
        { "vkGetPhysicalDeviceFeatures2", (PFN_vkVoidFunction) features2 },
        { "vkGetPhysicalDeviceFeatures2KHR", (PFN_vkVoidFunction) features2 },
    };
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
        if (strcmp(name, ours[i].name) == 0) {
            return ours[i].function;
        }
    }
    return next_instance_proc != NULL ? next_instance_proc(instance, name) : NULL;
}

__attribute__((visibility("default"))) VKAPI_ATTR VkResult VKAPI_CALL
vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface * offer) {
    fault_setup();
    offer->loaderLayerInterfaceVersion  = 2;
    offer->pfnGetInstanceProcAddr       = instance_proc;
    offer->pfnGetDeviceProcAddr         = device_proc;
    offer->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
