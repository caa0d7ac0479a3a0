/* How a Vulkan layer finds who is next. */
#ifndef VKCOMM_TEST_LAYER_LINK_H
#define VKCOMM_TEST_LAYER_LINK_H

#include <stdint.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

/* The element of the loader's chain that says so, NULL: none. Both kinds of
 * link have function after sType and pNext. */
static inline void * link_of(const void * chain, VkStructureType type) {
    for (const VkBaseInStructure * s = chain; s; s = s->pNext) {
        if (s->sType == type && ((const VkLayerInstanceCreateInfo *) s)->function == VK_LAYER_LINK_INFO) {
            return (void *) (uintptr_t) s;
        }
    }
    return 0;
}

#endif
