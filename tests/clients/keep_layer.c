/*
 * VK_LAYER_VKCOMM_keep - keeps buffers and memory that ggml frees.
 *
 * ggml leaves unused bindings of a descriptor set as they were, and lavapipe
 * follows them into freed memory: stock llama.cpp then crashes, most often
 * with experts. Under this layer nothing is freed before the process ends, and
 * what is left to compare is llama.cpp without and with the plugin.
 */
#include <string.h>
#include <vulkan/vulkan.h>

#include "../layer/link.h"

/* One driver below, so one of each is enough. */
static VkInstance                the_instance;
static PFN_vkGetInstanceProcAddr next_instance_proc;
static PFN_vkGetDeviceProcAddr   next_device_proc;

static VKAPI_ATTR void VKAPI_CALL keep_buffer(VkDevice device, VkBuffer buffer, const VkAllocationCallbacks * allocator) {
    (void) device, (void) buffer, (void) allocator;
}

static VKAPI_ATTR void VKAPI_CALL keep_memory(VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks * allocator) {
    (void) device, (void) memory, (void) allocator;
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice device, const char * name) {
    if (strcmp(name, "vkDestroyBuffer") == 0) {
        return (PFN_vkVoidFunction) keep_buffer;
    }
    if (strcmp(name, "vkFreeMemory") == 0) {
        return (PFN_vkVoidFunction) keep_memory;
    }
    return strcmp(name, "vkGetDeviceProcAddr") == 0 ? (PFN_vkVoidFunction) device_proc : next_device_proc(device, name);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo * info,
                                                      const VkAllocationCallbacks * allocator, VkInstance * out) {
    VkLayerInstanceCreateInfo * link = link_of(info->pNext, VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO);
    next_instance_proc          = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo          = link->u.pLayerInfo->pNext;
    PFN_vkCreateInstance create = (PFN_vkCreateInstance) next_instance_proc(NULL, "vkCreateInstance");
    const VkResult       result = create(info, allocator, out);
    the_instance                = *out;
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical_device, const VkDeviceCreateInfo * info,
                                                    const VkAllocationCallbacks * allocator, VkDevice * out) {
    VkLayerDeviceCreateInfo * link = link_of(info->pNext, VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO);
    next_device_proc               = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    PFN_vkCreateDevice create =
        (PFN_vkCreateDevice) link->u.pLayerInfo->pfnNextGetInstanceProcAddr(the_instance, "vkCreateDevice");
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    return create(physical_device, info, allocator, out);
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
    offer->loaderLayerInterfaceVersion  = 2;
    offer->pfnGetInstanceProcAddr       = instance_proc;
    offer->pfnGetDeviceProcAddr         = device_proc;
    offer->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
