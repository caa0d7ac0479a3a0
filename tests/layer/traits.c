/* What devices are made to look like, and whether the plugin keeps to it. */
#include "layer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 64 KiB as a large-page kernel has it; the largest alignment and a range far
 * below the least that the specification allows. */
enum { IMPORT_ALIGNMENT = 65536, OFFSET_ALIGNMENT = 256, STORAGE_RANGE = 1 << 20 };

static const struct {
    const char * name;
    unsigned     traits;
} known[] = {
    { "lavapipe", 0 },
    { "nvidia", NVIDIA | TIMELINE_FD | TRANSFER_QUEUE | DMA_BUF | DMA_BUF_NO_TYPES },
    { "radv", AMD | TRANSFER_QUEUE | DMA_BUF },
    { "no-external-memory-host", NO_HOST_IMPORT },
    { "import-alignment-64k", IMPORT_64K },
    { "offset-alignment-256", OFFSET_256 },
    { "small-storage-range", SMALL_RANGE },
    { "few-storage-buffers", FEW_BUFFERS },
    { "no-timeline", NO_TIMELINE },
    { "timeline-fd", TIMELINE_FD },
    { "transfer-queue", TRANSFER_QUEUE },
    { "dma-buf", DMA_BUF },
    { "dma-buf-no-types", DMA_BUF | DMA_BUF_NO_TYPES },
    { "dma-buf-no-export", DMA_BUF | DMA_BUF_NO_EXPORT },
    { "non-coherent", NON_COHERENT },
    { "discrete", DISCRETE },
    { "wrong-host-import", WRONG_HOST_IMPORT },
    { "wrong-fd-import", WRONG_FD_IMPORT },
    { "wrong-timeline-import", WRONG_TIMELINE | TIMELINE_FD },
    { "no-copies", NO_COPIES | TRANSFER_QUEUE },
    { "no-copy-signals", NO_COPY_SIGNALS | TRANSFER_QUEUE },
    { "jitter", JITTER | TRANSFER_QUEUE },
    { "stalls", STALLS | TRANSFER_QUEUE },
    { "dies", STALLS | DIES | TRANSFER_QUEUE },
};

static unsigned named[MAX_NAMED], named_count;

static unsigned parse_one(const char * text, size_t length) {
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strlen(known[i].name) == length && memcmp(known[i].name, text, length) == 0) {
            return known[i].traits;
        }
    }
    layer_fail("VKCOMM_LAYER_DEVICES: '%.*s' is not known", (int) length, text);
}

/* DEVICE,DEVICE... where a device is TRAIT+TRAIT... */
static void parse(void) {
    static bool done;
    const char * at = done ? NULL : getenv("VKCOMM_LAYER_DEVICES");
    done            = true;
    for (; at != NULL; at = *at == 0 ? NULL : at + 1) {
        const size_t length = strcspn(at, ",+");
        if (named_count == 0) {
            named_count = 1;
        }
        named[named_count - 1] |= parse_one(at, length);
        at += length;
        if (*at == ',' && ++named_count == MAX_NAMED) {
            layer_fail("VKCOMM_LAYER_DEVICES has too many devices");
        }
    }
}

unsigned traits_devices(void) {
    parse();
    return named_count;
}

unsigned traits_of(unsigned index) {
    return index < traits_devices() ? named[index] : 0;
}

/* ---- extensions ----------------------------------------------------------------------------- */

bool traits_hide(unsigned index, const char * extension) {
    return (traits_of(index) & NO_HOST_IMPORT) && strcmp(extension, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME) == 0;
}

const char * traits_add(unsigned index, unsigned i) {
    static const struct {
        unsigned     traits;
        const char * name;
    } added[] = {
        { TIMELINE_FD, VK_KHR_EXTERNAL_SEMAPHORE_FD_EXTENSION_NAME },
        { DMA_BUF, VK_EXT_EXTERNAL_MEMORY_DMA_BUF_EXTENSION_NAME },
        { AMD, VK_EXT_QUEUE_FAMILY_FOREIGN_EXTENSION_NAME },
        { VENDORS, VK_EXT_PCI_BUS_INFO_EXTENSION_NAME },
    };
    for (size_t k = 0; k < sizeof(added) / sizeof(added[0]); k++) {
        if ((traits_of(index) & added[k].traits) && i-- == 0) {
            return added[k].name;
        }
    }
    return NULL;
}

/* ---- properties and features -------------------------------------------------------------------- */

static const char * vendor(unsigned traits) {
    return traits & NVIDIA ? "NVIDIA" : traits & AMD ? "RADV" : "lavapipe";
}

void traits_core(unsigned index, VkPhysicalDeviceProperties * core) {
    const unsigned           traits = traits_of(index);
    VkPhysicalDeviceLimits * limits = &core->limits;
    if (traits & OFFSET_256) {
        limits->minStorageBufferOffsetAlignment = OFFSET_ALIGNMENT;
    }
    if (traits & SMALL_RANGE) {
        limits->maxStorageBufferRange = STORAGE_RANGE;
    }
    if (traits & NON_COHERENT) {
        limits->nonCoherentAtomSize = NON_COHERENT_ATOM;
    }
    if ((traits & FEW_BUFFERS) && fault_called_by_plugin()) { /* ggml's own kernels take more */
        limits->maxPerStageDescriptorStorageBuffers = 3;
    }
    if ((traits & VENDORS) && !fault_called_by_ggml()) { /* whose kernels would want that vendor's subgroups */
        core->vendorID = traits & NVIDIA ? 0x10de : 0x1002;
    }
    if (traits & DISCRETE) {
        core->deviceType = VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
    }
    if (traits_devices() > 0) {
        snprintf(core->deviceName, sizeof(core->deviceName), "Emulated %s %u", vendor(traits), index);
    }
}

static void identify(unsigned index, VkPhysicalDeviceIDProperties * id) {
    const char * name = vendor(traits_of(index));
    id->deviceUUID[VK_UUID_SIZE - 1] ^= (uint8_t) (index + 1);
    for (size_t i = 0; i < strlen(name); i++) {
        id->driverUUID[i] ^= (uint8_t) name[i];
    }
}

void traits_properties(unsigned index, void * chain) {
    const unsigned traits = traits_of(index);
    for (VkBaseOutStructure * s = chain; s != NULL && traits_devices() > 0; s = s->pNext) {
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT && (traits & IMPORT_64K)) {
            ((VkPhysicalDeviceExternalMemoryHostPropertiesEXT *) s)->minImportedHostPointerAlignment = IMPORT_ALIGNMENT;
        } else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES) {
            identify(index, (VkPhysicalDeviceIDProperties *) s);
        } else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES) {
            VkPhysicalDeviceDriverProperties * driver = (VkPhysicalDeviceDriverProperties *) s;
            snprintf(driver->driverName, sizeof(driver->driverName), "emulated %s", vendor(traits));
        } else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PCI_BUS_INFO_PROPERTIES_EXT && (traits & VENDORS)) {
            VkPhysicalDevicePCIBusInfoPropertiesEXT * pci = (VkPhysicalDevicePCIBusInfoPropertiesEXT *) s;
            pci->pciDomain = pci->pciDevice = pci->pciFunction = 0;
            pci->pciBus = index + 1;
        }
    }
}

void traits_features(unsigned index, void * chain) {
    for (VkBaseOutStructure * s = chain; s != NULL && (traits_of(index) & NO_TIMELINE); s = s->pNext) {
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES) {
            ((VkPhysicalDeviceVulkan12Features *) s)->timelineSemaphore = VK_FALSE;
        } else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES) {
            ((VkPhysicalDeviceTimelineSemaphoreFeatures *) s)->timelineSemaphore = VK_FALSE;
        }
    }
}

/* ---- what the plugin makes of it -----------------------------------------------------------------
 * lavapipe takes what a driver with these limits would not. */

static void require(bool kept, const char * what, uint64_t value) {
    static bool said;
    if (!kept) {
        layer_fail("%s is %llu, against the device's limit", what, (unsigned long long) value);
    }
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED)) {
        fprintf(stderr, "vkcomm_layer: the plugin is held to the device's limits\n");
    }
}

void traits_check_import(unsigned index, const VkMemoryAllocateInfo * info) {
    const VkImportMemoryHostPointerInfoEXT * host =
        chain_find(info->pNext, VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT);
    if (host != NULL && (traits_of(index) & IMPORT_64K) && fault_called_by_plugin()) {
        const uintptr_t at = (uintptr_t) host->pHostPointer;
        require(at % IMPORT_ALIGNMENT == 0, "address of imported memory", at);
        require(info->allocationSize % IMPORT_ALIGNMENT == 0, "size of imported memory", info->allocationSize);
    }
}

static VKAPI_ATTR void VKAPI_CALL update_sets(VkDevice handle, uint32_t count, const VkWriteDescriptorSet * writes,
                                              uint32_t copies, const VkCopyDescriptorSet * copy) {
    const struct device * device = device_of(KEY(handle));
    const bool offsets = traits_of(device->index) & OFFSET_256, ranges = traits_of(device->index) & SMALL_RANGE;
    for (uint32_t i = 0; i < count && fault_called_by_plugin(); i++) {
        for (uint32_t j = 0; j < writes[i].descriptorCount; j++) {
            const VkDescriptorBufferInfo * b = &writes[i].pBufferInfo[j];
            require(!offsets || b->offset % OFFSET_ALIGNMENT == 0, "offset of a storage buffer", b->offset);
            require(!ranges || b->range <= STORAGE_RANGE, "range of a storage buffer", b->range);
        }
    }
    device->driver.UpdateDescriptorSets(handle, count, writes, copies, copy);
}

void traits_take(struct device * device) {
    if (traits_of(device->index) & (OFFSET_256 | SMALL_RANGE)) {
        device->below.UpdateDescriptorSets = update_sets;
    }
}
