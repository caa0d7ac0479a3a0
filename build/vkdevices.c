/*
 * Lists what the Vulkan loader offers, one device a line: index, gpu|cpu|other, UUID, name, separated by tabs. The scripts
 * of build/ ask it which ranks this machine can have; the index is the one GGML_VK_VISIBLE_DEVICES means.
 */
#include <stdio.h>
#include <stdlib.h>
#include <vulkan/vulkan.h>

static const char * kind(VkPhysicalDeviceType type) {
    switch (type) {
        case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
        case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
        case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: return "gpu";
        case VK_PHYSICAL_DEVICE_TYPE_CPU:         return "cpu";
        default:                                  return "other";
    }
}

int main(void) {
    VkApplicationInfo app = {
        .sType      = VK_STRUCTURE_TYPE_APPLICATION_INFO,
        .apiVersion = VK_API_VERSION_1_2, /* as ggml */
    };
    VkInstanceCreateInfo info = {
        .sType            = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
        .pApplicationInfo = &app,
    };
    VkInstance instance;
    VkResult   result = vkCreateInstance(&info, NULL, &instance);
    if (result != VK_SUCCESS) {
        fprintf(stderr, "vkdevices: vkCreateInstance: VkResult %d\n", result);
        return 1;
    }
    uint32_t n = 0;
    vkEnumeratePhysicalDevices(instance, &n, NULL);
    VkPhysicalDevice * devices = calloc(n + 1, sizeof(*devices));
    if (devices == NULL || (result = vkEnumeratePhysicalDevices(instance, &n, devices)) < 0) {
        fprintf(stderr, "vkdevices: vkEnumeratePhysicalDevices: VkResult %d\n", result);
        return 1;
    }
    for (uint32_t i = 0; i < n; i++) {
        VkPhysicalDeviceIDProperties id = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES };
        VkPhysicalDeviceProperties2  p  = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &id };
        vkGetPhysicalDeviceProperties2(devices[i], &p);
        printf("%u\t%s\t", i, kind(p.properties.deviceType));
        for (int b = 0; b < VK_UUID_SIZE; b++) {
            printf("%02x", id.deviceUUID[b]);
        }
        printf("\t%s\n", p.properties.deviceName);
    }
    free(devices);
    vkDestroyInstance(instance, NULL);
    return 0;
}
