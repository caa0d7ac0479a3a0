/* Several physical devices in the place of one: each is a handle of ours with
 * the traits that VKCOMM_LAYER_DEVICES gives it. */
#include "layer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PHYSICAL = 16 };

static struct physical {
    void *           loader; /* what the loader finds in every handle that can dispatch */
    VkPhysicalDevice real;
} physical[MAX_PHYSICAL];

#define INSTANCE_COMMANDS(X)                      \
    X(EnumeratePhysicalDevices)                   \
    X(EnumeratePhysicalDeviceGroups)              \
    X(EnumerateDeviceExtensionProperties)         \
    X(EnumerateDeviceLayerProperties)             \
    X(GetPhysicalDeviceProperties)                \
    X(GetPhysicalDeviceProperties2)               \
    X(GetPhysicalDeviceFeatures)                  \
    X(GetPhysicalDeviceFeatures2)                 \
    X(GetPhysicalDeviceMemoryProperties)          \
    X(GetPhysicalDeviceMemoryProperties2)         \
    X(GetPhysicalDeviceQueueFamilyProperties)     \
    X(GetPhysicalDeviceQueueFamilyProperties2)    \
    X(GetPhysicalDeviceFormatProperties)          \
    X(GetPhysicalDeviceFormatProperties2)         \
    X(GetPhysicalDeviceExternalBufferProperties)  \
    X(GetPhysicalDeviceExternalFenceProperties)   \
    X(GetPhysicalDeviceExternalSemaphoreProperties) \
    X(GetPhysicalDeviceToolProperties)

static struct {
#define MEMBER(name) PFN_vk##name name;
    INSTANCE_COMMANDS(MEMBER)
#undef MEMBER
} below;

void devices_resolve(VkInstance instance, PFN_vkGetInstanceProcAddr next) {
#define RESOLVE(name) below.name = (PFN_vk##name) next(instance, "vk" #name);
    INSTANCE_COMMANDS(RESOLVE)
#undef RESOLVE
}

VkPhysicalDevice devices_real(VkPhysicalDevice device, unsigned * index) {
    const struct physical * p = (const struct physical *) (void *) device;
    const bool ours           = p >= physical && p < physical + MAX_PHYSICAL;
    *index                    = ours ? (unsigned) (p - physical) : 0;
    return ours ? p->real : device;
}

/* Opens a command: device becomes the real one. */
#define UNWRAP(device) \
    unsigned index;    \
    device = devices_real(device, &index)

/* ---- which there are ------------------------------------------------------------------ */

static VKAPI_ATTR VkResult VKAPI_CALL enumerate(VkInstance instance, uint32_t * count, VkPhysicalDevice * out) {
    uint32_t         have = 1;
    const uint32_t   want = traits_devices();
    VkPhysicalDevice real;
    if (want == 0) {
        return below.EnumeratePhysicalDevices(instance, count, out);
    }
    VkResult result = below.EnumeratePhysicalDevices(instance, &have, &real);
    if (result < VK_SUCCESS || have == 0) {
        return result;
    }
    if (want > MAX_PHYSICAL) {
        layer_fail("VKCOMM_LAYER_DEVICES names %u devices, at most %d", want, MAX_PHYSICAL);
    }
    const uint32_t given = out == NULL || *count > want ? want : *count;
    for (uint32_t i = 0; out != NULL && i < given; i++) {
        physical[i] = (struct physical) { .loader = KEY(real), .real = real };
        out[i]      = (VkPhysicalDevice) (void *) &physical[i];
    }
    *count = given;
    return given < want ? VK_INCOMPLETE : VK_SUCCESS;
}

/* Groups would need handles of ours too, and ggml does not ask for them. */
static VKAPI_ATTR VkResult VKAPI_CALL groups(VkInstance instance, uint32_t * count, VkPhysicalDeviceGroupProperties * out) {
    if (traits_devices() > 0) {
        layer_fail("vkEnumeratePhysicalDeviceGroups is not emulated");
    }
    return below.EnumeratePhysicalDeviceGroups(instance, count, out);
}

static VkResult put(const char * name, uint32_t version, uint32_t room, uint32_t * n, VkExtensionProperties * out) {
    if (out != NULL && *n == room) {
        return VK_INCOMPLETE;
    }
    if (out != NULL) {
        memset(&out[*n], 0, sizeof(out[*n]));
        snprintf(out[*n].extensionName, sizeof(out[*n].extensionName), "%s", name);
        out[*n].specVersion = version;
    }
    ++*n;
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL extensions(VkPhysicalDevice device, const char * layer, uint32_t * count,
                                                 VkExtensionProperties * out) {
    UNWRAP(device);
    uint32_t n = 0, kept = 0;
    VkResult result = below.EnumerateDeviceExtensionProperties(device, layer, &n, NULL);
    if (result != VK_SUCCESS || layer != NULL) {
        return below.EnumerateDeviceExtensionProperties(device, layer, count, out);
    }
    VkExtensionProperties * all = calloc(n + 1, sizeof(*all));
    result = all != NULL ? below.EnumerateDeviceExtensionProperties(device, NULL, &n, all) : VK_ERROR_OUT_OF_HOST_MEMORY;
    for (uint32_t i = 0; result == VK_SUCCESS && i < n; i++) {
        if (!traits_hide(index, all[i].extensionName)) {
            result = put(all[i].extensionName, all[i].specVersion, *count, &kept, out);
        }
    }
    for (unsigned i = 0; result == VK_SUCCESS && traits_add(index, i) != NULL; i++) {
        result = put(traits_add(index, i), 1, *count, &kept, out);
    }
    if (result >= VK_SUCCESS) {
        *count = kept;
    }
    free(all);
    return result;
}

/* ---- what they are like ------------------------------------------------------------------ */

static VKAPI_ATTR void VKAPI_CALL properties(VkPhysicalDevice device, VkPhysicalDeviceProperties * out) {
    UNWRAP(device);
    below.GetPhysicalDeviceProperties(device, out);
    traits_core(index, out);
}

static VKAPI_ATTR void VKAPI_CALL properties2(VkPhysicalDevice device, VkPhysicalDeviceProperties2 * out) {
    UNWRAP(device);
    below.GetPhysicalDeviceProperties2(device, out);
    traits_core(index, &out->properties);
    traits_properties(index, out->pNext);
}

static VKAPI_ATTR void VKAPI_CALL features2(VkPhysicalDevice device, VkPhysicalDeviceFeatures2 * out) {
    UNWRAP(device);
    below.GetPhysicalDeviceFeatures2(device, out);
    traits_features(index, out->pNext);
}

static VKAPI_ATTR void VKAPI_CALL memory(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties * out) {
    UNWRAP(device);
    below.GetPhysicalDeviceMemoryProperties(device, out);
    memory_types(index, out);
}

static VKAPI_ATTR void VKAPI_CALL memory2(VkPhysicalDevice device, VkPhysicalDeviceMemoryProperties2 * out) {
    UNWRAP(device);
    below.GetPhysicalDeviceMemoryProperties2(device, out);
    memory_types(index, &out->memoryProperties);
}

static VKAPI_ATTR void VKAPI_CALL external_buffer(VkPhysicalDevice device, const VkPhysicalDeviceExternalBufferInfo * info,
                                                  VkExternalBufferProperties * out) {
    UNWRAP(device);
    memory_external(index, info, out, device, below.GetPhysicalDeviceExternalBufferProperties);
}

static VKAPI_ATTR void VKAPI_CALL external_semaphore(VkPhysicalDevice device,
                                                     const VkPhysicalDeviceExternalSemaphoreInfo * info,
                                                     VkExternalSemaphoreProperties * out) {
    UNWRAP(device);
    const VkSemaphoreTypeCreateInfo * type = chain_find(info->pNext, VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO);
    below.GetPhysicalDeviceExternalSemaphoreProperties(device, info, out);
    if ((traits_of(index) & TIMELINE_FD) && info->handleType == VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT &&
        type != NULL && type->semaphoreType == VK_SEMAPHORE_TYPE_TIMELINE) {
        out->exportFromImportedHandleTypes = out->compatibleHandleTypes = info->handleType;
        out->externalSemaphoreFeatures =
            VK_EXTERNAL_SEMAPHORE_FEATURE_EXPORTABLE_BIT | VK_EXTERNAL_SEMAPHORE_FEATURE_IMPORTABLE_BIT;
    }
}

/* lavapipe has one family. A second one copies. */
static const VkQueueFamilyProperties transfer = { .queueFlags = VK_QUEUE_TRANSFER_BIT, .queueCount = 1,
                                                  .timestampValidBits = 64,
                                                  .minImageTransferGranularity = { 1, 1, 1 } };

static uint32_t families_of(unsigned index) {
    return traits_of(index) & TRANSFER_QUEUE ? 2 : 1;
}

static VKAPI_ATTR void VKAPI_CALL families(VkPhysicalDevice device, uint32_t * count, VkQueueFamilyProperties * out) {
    UNWRAP(device);
    if (families_of(index) == 1) {
        below.GetPhysicalDeviceQueueFamilyProperties(device, count, out);
        return;
    }
    uint32_t n = 1;
    *count     = out == NULL || *count > 2 ? 2 : *count;
    if (out != NULL && *count > 0) {
        below.GetPhysicalDeviceQueueFamilyProperties(device, &n, out);
    }
    if (out != NULL && *count > 1) {
        out[1] = transfer;
    }
}

static VKAPI_ATTR void VKAPI_CALL families2(VkPhysicalDevice device, uint32_t * count, VkQueueFamilyProperties2 * out) {
    UNWRAP(device);
    if (families_of(index) == 1) {
        below.GetPhysicalDeviceQueueFamilyProperties2(device, count, out);
        return;
    }
    uint32_t n = 1;
    *count     = out == NULL || *count > 2 ? 2 : *count;
    if (out != NULL && *count > 0) {
        below.GetPhysicalDeviceQueueFamilyProperties2(device, &n, out);
    }
    if (out != NULL && *count > 1) {
        out[1].queueFamilyProperties = transfer;
    }
}

/* ---- what is only passed on -------------------------------------------------------------- */

#define PASS(name, parameters, arguments)                          \
    static VKAPI_ATTR void VKAPI_CALL pass_##name parameters {     \
        UNWRAP(device);                                            \
        (void) index;                                              \
        below.name arguments;                                      \
    }
PASS(GetPhysicalDeviceFeatures, (VkPhysicalDevice device, VkPhysicalDeviceFeatures * a), (device, a))
PASS(GetPhysicalDeviceFormatProperties, (VkPhysicalDevice device, VkFormat a, VkFormatProperties * b), (device, a, b))
PASS(GetPhysicalDeviceFormatProperties2, (VkPhysicalDevice device, VkFormat a, VkFormatProperties2 * b), (device, a, b))
PASS(GetPhysicalDeviceExternalFenceProperties,
     (VkPhysicalDevice device, const VkPhysicalDeviceExternalFenceInfo * a, VkExternalFenceProperties * b), (device, a, b))

static VKAPI_ATTR VkResult VKAPI_CALL layers(VkPhysicalDevice device, uint32_t * count, VkLayerProperties * out) {
    UNWRAP(device);
    (void) index;
    return below.EnumerateDeviceLayerProperties(device, count, out);
}

static VKAPI_ATTR VkResult VKAPI_CALL tools(VkPhysicalDevice device, uint32_t * count,
                                            VkPhysicalDeviceToolProperties * out) {
    UNWRAP(device);
    (void) index;
    return below.GetPhysicalDeviceToolProperties(device, count, out);
}

static const struct {
    const char *       name;
    PFN_vkVoidFunction function;
} ours[] = {
    { "vkEnumeratePhysicalDevices", (PFN_vkVoidFunction) enumerate },
    { "vkEnumeratePhysicalDeviceGroups", (PFN_vkVoidFunction) groups },
    { "vkEnumerateDeviceExtensionProperties", (PFN_vkVoidFunction) extensions },
    { "vkEnumerateDeviceLayerProperties", (PFN_vkVoidFunction) layers },
    { "vkGetPhysicalDeviceProperties", (PFN_vkVoidFunction) properties },
    { "vkGetPhysicalDeviceProperties2", (PFN_vkVoidFunction) properties2 },
    { "vkGetPhysicalDeviceFeatures", (PFN_vkVoidFunction) pass_GetPhysicalDeviceFeatures },
    { "vkGetPhysicalDeviceFeatures2", (PFN_vkVoidFunction) features2 },
    { "vkGetPhysicalDeviceMemoryProperties", (PFN_vkVoidFunction) memory },
    { "vkGetPhysicalDeviceMemoryProperties2", (PFN_vkVoidFunction) memory2 },
    { "vkGetPhysicalDeviceQueueFamilyProperties", (PFN_vkVoidFunction) families },
    { "vkGetPhysicalDeviceQueueFamilyProperties2", (PFN_vkVoidFunction) families2 },
    { "vkGetPhysicalDeviceFormatProperties", (PFN_vkVoidFunction) pass_GetPhysicalDeviceFormatProperties },
    { "vkGetPhysicalDeviceFormatProperties2", (PFN_vkVoidFunction) pass_GetPhysicalDeviceFormatProperties2 },
    { "vkGetPhysicalDeviceExternalBufferProperties", (PFN_vkVoidFunction) external_buffer },
    { "vkGetPhysicalDeviceExternalFenceProperties", (PFN_vkVoidFunction) pass_GetPhysicalDeviceExternalFenceProperties },
    { "vkGetPhysicalDeviceExternalSemaphoreProperties", (PFN_vkVoidFunction) external_semaphore },
    { "vkGetPhysicalDeviceToolProperties", (PFN_vkVoidFunction) tools },
};

/* A command of a physical device that is not emulated would follow our handle
 * into nowhere. */
static VKAPI_ATTR void VKAPI_CALL missing(void) {
    layer_fail("a command of a physical device that is not emulated was called");
}

PFN_vkVoidFunction devices_command(const char * name) {
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
        const size_t n = strlen(ours[i].name);
        if (strncmp(name, ours[i].name, n) == 0 && (name[n] == 0 || strcmp(name + n, "KHR") == 0)) {
            return ours[i].function;
        }
    }
    return traits_devices() > 0 && strncmp(name, "vkGetPhysicalDevice", 19) == 0 ? missing : NULL;
}
