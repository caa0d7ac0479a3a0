/*
 * VK_LAYER_VKCOMM_watch - a Vulkan layer, hence behind everything that is
 * preloaded: writes to stdout what each vkCreateDevice asks of the driver.
 */
#include <stdio.h>
#include <string.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

static VkInstance                the_instance; /* ggml makes one */
static PFN_vkGetInstanceProcAddr next_instance_proc;
static PFN_vkGetDeviceProcAddr   next_device_proc;

static VkLayerInstanceLink * instance_link(const VkInstanceCreateInfo * info, VkLayerInstanceCreateInfo ** holder) {
    for (const VkBaseInStructure * s = info->pNext; s != NULL; s = s->pNext) {
        VkLayerInstanceCreateInfo * link = (VkLayerInstanceCreateInfo *) (uintptr_t) s;
        if (s->sType == VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO && link->function == VK_LAYER_LINK_INFO) {
            *holder = link;
            return link->u.pLayerInfo;
        }
    }
    return NULL;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo * info,
                                                      const VkAllocationCallbacks * allocator, VkInstance * instance) {
    VkLayerInstanceCreateInfo * holder;
    VkLayerInstanceLink *       link = instance_link(info, &holder);
    if (link == NULL) {
        return VK_ERROR_INITIALIZATION_FAILED;
    }
    next_instance_proc   = link->pfnNextGetInstanceProcAddr;
    holder->u.pLayerInfo = link->pNext; /* the next layer finds its own */
    PFN_vkCreateInstance create = (PFN_vkCreateInstance) next_instance_proc(NULL, "vkCreateInstance");
    const VkResult       result = create(info, allocator, instance);
    the_instance                = *instance;
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical_device, const VkDeviceCreateInfo * info,
                                                    const VkAllocationCallbacks * allocator, VkDevice * device) {
    VkLayerDeviceCreateInfo * holder = NULL;
    printf("vkCreateDevice: %u queues, %u extensions:", info->queueCreateInfoCount, info->enabledExtensionCount);
    for (uint32_t i = 0; i < info->enabledExtensionCount; i++) {
        printf(" %s", info->ppEnabledExtensionNames[i]);
    }
    printf("; structures:");
    for (const VkBaseInStructure * s = info->pNext; s != NULL; s = s->pNext) {
        VkLayerDeviceCreateInfo * link = (VkLayerDeviceCreateInfo *) (uintptr_t) s;
        if (s->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO) {
            printf(" %d", s->sType);
        } else if (link->function == VK_LAYER_LINK_INFO) {
            holder = link;
        }
    }
    printf("\n");
    fflush(stdout);
    if (holder == NULL) {
        return VK_ERROR_INITIALIZATION_FAILED;
    }
    PFN_vkGetInstanceProcAddr instance_proc = holder->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    next_device_proc                        = holder->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    holder->u.pLayerInfo                    = holder->u.pLayerInfo->pNext;
    PFN_vkCreateDevice create               = (PFN_vkCreateDevice) instance_proc(the_instance, "vkCreateDevice");
    return create(physical_device, info, allocator, device);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice device, const char * name) {
    return next_device_proc(device, name);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_proc(VkInstance instance, const char * name) {
    if (strcmp(name, "vkCreateInstance") == 0) {
        return (PFN_vkVoidFunction) create_instance;
    }
    if (strcmp(name, "vkCreateDevice") == 0) {
        return (PFN_vkVoidFunction) create_device;
    }
    return next_instance_proc ? next_instance_proc(instance, name) : NULL;
}

__attribute__((visibility("default"))) VKAPI_ATTR VkResult VKAPI_CALL
vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface * interface) {
    interface->loaderLayerInterfaceVersion  = 2;
    interface->pfnGetInstanceProcAddr       = instance_proc;
    interface->pfnGetDeviceProcAddr         = device_proc;
    interface->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
