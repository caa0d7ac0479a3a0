/* What the driver is made to look like: one profile a process. */
#include "layer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 64 KiB as a large-page kernel has it; the largest alignment and a range far
 * below the least that the specification allows. */
enum { IMPORT_ALIGNMENT = 65536, OFFSET_ALIGNMENT = 256, STORAGE_RANGE = 1 << 20 };

static bool is(const char * profile) {
    static const char * const known[] = {
        "no-external-memory-host", "import-alignment-64k", "offset-alignment-256", "small-storage-range",
        "few-storage-buffers", "no-timeline", "mixed-drivers", "distinct-uuids",
    };
    const char * chosen = getenv("VKCOMM_LAYER_PROFILE");
    bool         found  = chosen == NULL;
    for (size_t i = 0; !found && i < sizeof(known) / sizeof(known[0]); i++) {
        found = strcmp(chosen, known[i]) == 0;
    }
    if (!found) {
        fprintf(stderr, "vkcomm_layer: VKCOMM_LAYER_PROFILE=%s is not known\n", chosen);
        abort();
    }
    return chosen != NULL && strcmp(chosen, profile) == 0;
}

bool profile_hides(const char * extension) {
    return is("no-external-memory-host") && strcmp(extension, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME) == 0;
}

void profile_limits(VkPhysicalDeviceLimits * limits) {
    if (is("offset-alignment-256")) {
        limits->minStorageBufferOffsetAlignment = OFFSET_ALIGNMENT;
    } else if (is("small-storage-range")) {
        limits->maxStorageBufferRange = STORAGE_RANGE;
    } else if (is("few-storage-buffers") && fault_called_by_plugin()) { /* ggml's own kernels take more */
        limits->maxPerStageDescriptorStorageBuffers = 3;
    }
}

/* lavapipe is one physical device, of which ggml makes one VkDevice a rank. The
 * plugin asks once a rank, in their order, so that the number of the question
 * is the rank. */
static void tell_ranks_apart(uint8_t device_uuid[VK_UUID_SIZE], uint8_t driver_uuid[VK_UUID_SIZE]) {
    static unsigned questions;
    uint8_t *       uuid = is("mixed-drivers") ? driver_uuid : is("distinct-uuids") ? device_uuid : NULL;
    if (uuid != NULL && fault_called_by_plugin()) {
        uuid[VK_UUID_SIZE - 1] ^= (uint8_t) __atomic_fetch_add(&questions, 1, __ATOMIC_RELAXED);
    }
}

void profile_properties(void * chain) {
    for (VkBaseOutStructure * s = chain; s != NULL; s = s->pNext) {
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT &&
            is("import-alignment-64k")) {
            ((VkPhysicalDeviceExternalMemoryHostPropertiesEXT *) s)->minImportedHostPointerAlignment =
                IMPORT_ALIGNMENT;
        } else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES) {
            VkPhysicalDeviceIDProperties * id = (VkPhysicalDeviceIDProperties *) s;
            tell_ranks_apart(id->deviceUUID, id->driverUUID);
        }
    }
}

void profile_features(void * chain) {
    for (VkBaseOutStructure * s = chain; s != NULL && is("no-timeline"); s = s->pNext) {
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES) {
            ((VkPhysicalDeviceVulkan12Features *) s)->timelineSemaphore = VK_FALSE;
        } else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES) {
            ((VkPhysicalDeviceTimelineSemaphoreFeatures *) s)->timelineSemaphore = VK_FALSE;
        }
    }
}

/* ---- what the plugin makes of it ------------------------------------------------- */

static void require(bool kept, const char * what, uint64_t value) {
    static bool said;
    if (!kept) {
        fprintf(stderr, "vkcomm_layer: %s is %llu, against the profile's limit\n", what, (unsigned long long) value);
        abort();
    }
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED)) {
        fprintf(stderr, "vkcomm_layer: the plugin is held to the profile\n");
    }
}

void profile_check_import(const VkMemoryAllocateInfo * info) {
    for (const VkBaseInStructure * s = info->pNext; s != NULL && is("import-alignment-64k"); s = s->pNext) {
        if (s->sType == VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT && fault_called_by_plugin()) {
            const uintptr_t at = (uintptr_t) ((const VkImportMemoryHostPointerInfoEXT *) s)->pHostPointer;
            require(at % IMPORT_ALIGNMENT == 0, "address of imported memory", at);
            require(info->allocationSize % IMPORT_ALIGNMENT == 0, "size of imported memory", info->allocationSize);
        }
    }
}

void profile_check_writes(uint32_t count, const VkWriteDescriptorSet * writes) {
    const bool offsets = is("offset-alignment-256"), ranges = is("small-storage-range");
    if ((!offsets && !ranges) || !fault_called_by_plugin()) {
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; j < writes[i].descriptorCount; j++) {
            const VkDescriptorBufferInfo * b = &writes[i].pBufferInfo[j];
            require(!offsets || b->offset % OFFSET_ALIGNMENT == 0, "offset of a storage buffer", b->offset);
            require(!ranges || b->range <= STORAGE_RANGE, "range of a storage buffer", b->range);
        }
    }
}
