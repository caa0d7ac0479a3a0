/* The links to the loader and to the driver. */
#include "layer.h"
#include "link.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 1024 }; /* in the life of a process */

static struct device             devices[MAX_DEVICES];
static unsigned                  device_count;
static pthread_mutex_t           lock = PTHREAD_MUTEX_INITIALIZER;
static VkInstance                the_instance; /* ggml makes one */
static PFN_vkGetInstanceProcAddr next_instance_proc;

void layer_fail(const char * format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("vkcomm_layer: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

struct device * device_of(void * key) {
    for (unsigned i = __atomic_load_n(&device_count, __ATOMIC_ACQUIRE); i > 0; i--) { /* a key may come back */
        if (devices[i - 1].key == key) {
            return &devices[i - 1];
        }
    }
    abort();
}

void * chain_find(const void * chain, VkStructureType type) {
    const VkBaseInStructure * s = chain;
    while (s != NULL && s->sType != type) {
        s = s->pNext;
    }
    return (void *) (uintptr_t) s;
}

/* ---- commands of a device ------------------------------------------------------------ */

#define DEFINE(name, parameters, arguments)                        \
    static VKAPI_ATTR VkResult VKAPI_CALL layer_##name parameters { \
        struct device * device = device_of(KEY(h));                \
        VkResult        forced;                                    \
        if (fault_injected(COMMAND_##name, device->number, &forced)) { \
            return forced;                                         \
        }                                                          \
        return device->below.name arguments;                       \
    }
COMMANDS(DEFINE)
#undef DEFINE

/* Whether a name is that of a command, or the one it had as an extension. */
static bool is(const char * name, const char * command) {
    const size_t n = strlen(command);
    return strncmp(name, command, n) == 0 && (name[n] == 0 || strcmp(name + n, "KHR") == 0);
}

static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_proc(VkDevice handle, const char * name) {
    const struct device * device = device_of(KEY(handle));
#define WRAP(command, parameters, arguments)                                                \
    if (is(name, "vk" #command)) {                                                          \
        return device->below.command != NULL ? (PFN_vkVoidFunction) layer_##command : NULL; \
    }
    COMMANDS(WRAP)
#undef WRAP
#define WRAP(command)                                      \
    if (is(name, "vk" #command)) {                         \
        return (PFN_vkVoidFunction) device->below.command; \
    }
    OTHER_COMMANDS(WRAP)
#undef WRAP
    return strcmp(name, "vkGetDeviceProcAddr") == 0 ? (PFN_vkVoidFunction) device_proc : device->get(handle, name);
}

/* ---- creation ------------------------------------------------------------------------- */

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo * info,
                                                      const VkAllocationCallbacks * allocator, VkInstance * out) {
    VkLayerInstanceCreateInfo * link = link_of(info->pNext, VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO);
    next_instance_proc               = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo               = link->u.pLayerInfo->pNext;
    PFN_vkCreateInstance create      = (PFN_vkCreateInstance) next_instance_proc(NULL, "vkCreateInstance");
    const VkResult       result      = create(info, allocator, out);
    if (result == VK_SUCCESS) {
        the_instance = *out;
        devices_resolve(*out, next_instance_proc);
    }
    return result;
}

/* Creates the device without what only we have: extensions and a queue family. */
static VkResult create_real(PFN_vkCreateDevice create, VkPhysicalDevice real, unsigned index, const VkDeviceCreateInfo * info,
                            const VkAllocationCallbacks * allocator, VkDevice * out) {
    VkDeviceCreateInfo        less   = *info;
    const char **             names  = calloc(info->enabledExtensionCount + 1, sizeof(*names));
    VkDeviceQueueCreateInfo * queues = calloc(info->queueCreateInfoCount + 1, sizeof(*queues));
    if (names == NULL || queues == NULL) {
        layer_fail("out of memory");
    }
    less.enabledExtensionCount = less.queueCreateInfoCount = 0;
    for (uint32_t i = 0; i < info->enabledExtensionCount; i++) {
        bool ours = false;
        for (unsigned k = 0; traits_add(index, k) != NULL; k++) {
            ours = ours || strcmp(traits_add(index, k), info->ppEnabledExtensionNames[i]) == 0;
        }
        if (!ours) {
            names[less.enabledExtensionCount++] = info->ppEnabledExtensionNames[i];
        }
    }
    for (uint32_t i = 0; i < info->queueCreateInfoCount; i++) {
        if (info->pQueueCreateInfos[i].queueFamilyIndex == 0 || !(traits_of(index) & TRANSFER_QUEUE)) {
            queues[less.queueCreateInfoCount++] = info->pQueueCreateInfos[i];
        }
    }
    less.ppEnabledExtensionNames = names;
    less.pQueueCreateInfos       = queues;
    const VkResult result        = create(real, &less, allocator, out);
    free(names);
    free(queues);
    return result;
}

static void adopt(struct device * device, VkDevice handle, unsigned index, PFN_vkGetDeviceProcAddr get) {
    device->key = KEY(handle);
    device->handle = handle;
    device->index = index;
    device->get = get;
#define RESOLVE(name, parameters, arguments) device->driver.name = (PFN_vk##name) get(handle, "vk" #name);
    COMMANDS(RESOLVE)
#undef RESOLVE
#define RESOLVE(name) device->driver.name = (PFN_vk##name) get(handle, "vk" #name);
    OTHER_COMMANDS(RESOLVE)
#undef RESOLVE
    device->below = device->driver;
    traits_take(device);
    memory_take(device);
    semaphores_take(device);
    queues_take(device);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice physical_device, const VkDeviceCreateInfo * info,
                                                    const VkAllocationCallbacks * allocator, VkDevice * out) {
    VkLayerDeviceCreateInfo * link = link_of(info->pNext, VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO);
    PFN_vkGetDeviceProcAddr   get  = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    PFN_vkCreateDevice create =
        (PFN_vkCreateDevice) link->u.pLayerInfo->pfnNextGetInstanceProcAddr(the_instance, "vkCreateDevice");
    link->u.pLayerInfo     = link->u.pLayerInfo->pNext;
    unsigned       index   = 0;
    const VkPhysicalDevice real = devices_real(physical_device, &index);
    const VkResult result  = create_real(create, real, index, info, allocator, out);
    pthread_mutex_lock(&lock);
    if (result == VK_SUCCESS && device_count == MAX_DEVICES) {
        layer_fail("more than %d devices", MAX_DEVICES);
    }
    if (result == VK_SUCCESS) {
        devices[device_count].number = device_count;
        adopt(&devices[device_count], *out, index, get);
        __atomic_store_n(&device_count, device_count + 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- what the loader asks for ----------------------------------------------------------- */

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
    PFN_vkVoidFunction emulated = devices_command(name);
    if (emulated != NULL) {
        return emulated;
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
