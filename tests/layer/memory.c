/* Memory that leaves and enters as DMA_BUF, on top of the driver's OPAQUE_FD;
 * imports that are other memory than they should; and memory that the host sees
 * only as far as it flushes and invalidates. */
#include "layer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The types of a device that is not coherent; the driver has one, for all. */
enum { TYPE_DEVICE, TYPE_CACHED, TYPE_COHERENT, TYPE_WINDOW, TYPES };

#define DMA_BUF_BIT VK_EXTERNAL_MEMORY_HANDLE_TYPE_DMA_BUF_BIT_EXT
#define OPAQUE_BIT  VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT

static bool has(const struct device * device, unsigned traits) {
    return traits_of(device->index) & traits;
}

/* ---- what devices.c says ---------------------------------------------------------------------------- */

void memory_types(unsigned index, VkPhysicalDeviceMemoryProperties * memory) {
    if (traits_of(index) & NON_COHERENT) {
        memory->memoryTypeCount            = TYPES;
        memory->memoryTypes[TYPE_DEVICE]   = (VkMemoryType) { VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0 };
        memory->memoryTypes[TYPE_CACHED]   = (VkMemoryType) {
            VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, 0 };
        memory->memoryTypes[TYPE_COHERENT] = (VkMemoryType) {
            VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT, 0 };
        memory->memoryTypes[TYPE_WINDOW]   = (VkMemoryType) { /* of ReBAR */
            VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT | memory->memoryTypes[TYPE_COHERENT].propertyFlags, 0 };
    }
}

void memory_external(unsigned index, const VkPhysicalDeviceExternalBufferInfo * info, VkExternalBufferProperties * out,
                     VkPhysicalDevice real, PFN_vkGetPhysicalDeviceExternalBufferProperties next) {
    VkPhysicalDeviceExternalBufferInfo asked = *info;
    if (info->handleType == DMA_BUF_BIT && (traits_of(index) & DMA_BUF)) {
        asked.handleType = OPAQUE_BIT;
    }
    next(real, &asked, out);
    if (asked.handleType != info->handleType) {
        out->externalMemoryProperties.exportFromImportedHandleTypes = DMA_BUF_BIT;
        out->externalMemoryProperties.compatibleHandleTypes         = DMA_BUF_BIT;
    }
}

/* ---- export and import --------------------------------------------------------------------------------- */

/* Handle types of a caller's structure, as the driver is to see them for the
 * length of a call. */
static VkExternalMemoryHandleTypeFlags swap(VkExternalMemoryHandleTypeFlags * types) {
    const VkExternalMemoryHandleTypeFlags before = types != NULL ? *types : 0;
    if (before == DMA_BUF_BIT) {
        *types = OPAQUE_BIT;
    }
    return before;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_buffer(VkDevice handle, const VkBufferCreateInfo * info,
                                                    const VkAllocationCallbacks * allocator, VkBuffer * out) {
    VkExternalMemoryBufferCreateInfo * external =
        chain_find(info->pNext, VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO);
    const VkExternalMemoryHandleTypeFlags before = swap(external != NULL ? &external->handleTypes : NULL);
    const VkResult result = device_of(KEY(handle))->driver.CreateBuffer(handle, info, allocator, out);
    if (external != NULL) {
        external->handleTypes = before;
    }
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL get_fd(VkDevice handle, const VkMemoryGetFdInfoKHR * info, int * fd) {
    const struct device * device = device_of(KEY(handle));
    VkMemoryGetFdInfoKHR  real   = *info;
    if (info->handleType == DMA_BUF_BIT) {
        if (has(device, DMA_BUF_NO_EXPORT)) {
            return VK_ERROR_OUT_OF_DEVICE_MEMORY; /* as seen of NVIDIA's */
        }
        real.handleType = OPAQUE_BIT;
    }
    return device->driver.GetMemoryFdKHR(handle, &real, fd);
}

static VKAPI_ATTR VkResult VKAPI_CALL fd_properties(VkDevice handle, VkExternalMemoryHandleTypeFlagBits type, int fd,
                                                    VkMemoryFdPropertiesKHR * out) {
    const struct device * device = device_of(KEY(handle));
    if (type != DMA_BUF_BIT) {
        layer_fail("vkGetMemoryFdPropertiesKHR of handle type %d, which is for others only", (int) type);
    }
    (void) fd;
    out->memoryTypeBits = has(device, DMA_BUF_NO_TYPES) ? 0 : 1u << TYPE_DEVICE;
    return VK_SUCCESS;
}

/* Takes an element out of a chain for the length of a call; put_back undoes it. */
static VkBaseInStructure * take_out(const void * head, const void * element) {
    VkBaseInStructure * s = (VkBaseInStructure *) (uintptr_t) head;
    while ((const void *) s->pNext != element) {
        s = (VkBaseInStructure *) (uintptr_t) s->pNext;
    }
    s->pNext = s->pNext->pNext;
    return s;
}

static void put_back(VkBaseInStructure * before, const void * element) {
    before->pNext = element;
}

/* ---- allocations that are not coherent ------------------------------------------------------------------- */

/* The host works on a copy, which only its flushes and invalidations connect
 * with the memory. */
struct allocation {
    VkDeviceMemory      memory;
    VkDeviceSize        size;
    char *              real, *copy;
    struct allocation * next;
};
static struct allocation * allocations;
static pthread_mutex_t     lock = PTHREAD_MUTEX_INITIALIZER;

static struct allocation ** find(VkDeviceMemory memory) {
    struct allocation ** at = &allocations;
    while (*at != NULL && (*at)->memory != memory) {
        at = &(*at)->next;
    }
    return at;
}

static VKAPI_ATTR VkResult VKAPI_CALL allocate(VkDevice handle, const VkMemoryAllocateInfo * info,
                                               const VkAllocationCallbacks * allocator, VkDeviceMemory * out) {
    const struct device *             device  = device_of(KEY(handle));
    VkMemoryAllocateInfo              real    = *info;
    VkExportMemoryAllocateInfo *      leaving = chain_find(info->pNext, VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO);
    VkImportMemoryFdInfoKHR *         entering = chain_find(info->pNext, VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR);
    VkImportMemoryHostPointerInfoEXT * host = chain_find(info->pNext, VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT);
    const bool          typed = has(device, NON_COHERENT), ours = fault_called_by_plugin();
    VkBaseInStructure * before  = NULL;
    const void *        without = NULL;
    traits_check_import(device->index, info);
    if (typed) {
        real.memoryTypeIndex = 0;
    }
    if (ours && ((host != NULL && has(device, WRONG_HOST_IMPORT)) || (entering != NULL && has(device, WRONG_FD_IMPORT)))) {
        without = host != NULL ? (const void *) host : (const void *) entering;
        before  = take_out(&real, without);
    }
    const VkExternalMemoryHandleTypeFlags left = swap(leaving != NULL ? &leaving->handleTypes : NULL);
    VkExternalMemoryHandleTypeFlags entered = entering != NULL ? entering->handleType : 0, entered_before = swap(&entered);
    if (entering != NULL) {
        entering->handleType = (VkExternalMemoryHandleTypeFlagBits) entered;
    }
    const VkResult result = device->driver.AllocateMemory(handle, &real, allocator, out);
    if (leaving != NULL) {
        leaving->handleTypes = left;
    }
    if (entering != NULL) {
        entering->handleType = (VkExternalMemoryHandleTypeFlagBits) entered_before;
    }
    if (without != NULL) {
        put_back(before, without);
        if (result == VK_SUCCESS && without == entering) {
            close(entering->fd);
        }
    }
    if (result == VK_SUCCESS && typed && info->memoryTypeIndex == TYPE_CACHED) {
        struct allocation * a = calloc(1, sizeof(*a));
        if (a == NULL) {
            layer_fail("out of memory");
        }
        pthread_mutex_lock(&lock);
        *a          = (struct allocation) { .memory = *out, .size = info->allocationSize, .next = allocations };
        allocations = a;
        pthread_mutex_unlock(&lock);
    }
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL map(VkDevice handle, VkDeviceMemory memory, VkDeviceSize offset, VkDeviceSize size,
                                          VkMemoryMapFlags flags, void ** out) {
    pthread_mutex_lock(&lock);
    struct allocation * a = *find(memory);
    pthread_mutex_unlock(&lock);
    if (a == NULL) {
        return device_of(KEY(handle))->driver.MapMemory(handle, memory, offset, size, flags, out);
    }
    void *         real;
    const VkResult result = device_of(KEY(handle))->driver.MapMemory(handle, memory, 0, VK_WHOLE_SIZE, flags, &real);
    if (result == VK_SUCCESS) {
        a->real = real;
        a->copy = malloc(a->size);
        if (a->copy == NULL) {
            layer_fail("out of memory");
        }
        memset(a->copy, 0xa5, a->size); /* not what the memory holds */
        *out = a->copy + offset;
    }
    return result;
}

static void forget_copy(struct allocation * a) {
    free(a->copy);
    a->copy = a->real = NULL;
}

static VKAPI_ATTR void VKAPI_CALL unmap(VkDevice handle, VkDeviceMemory memory) {
    pthread_mutex_lock(&lock);
    struct allocation * a = *find(memory);
    pthread_mutex_unlock(&lock);
    if (a != NULL) {
        forget_copy(a);
    }
    device_of(KEY(handle))->driver.UnmapMemory(handle, memory);
}

static VKAPI_ATTR void VKAPI_CALL free_memory(VkDevice handle, VkDeviceMemory memory, const VkAllocationCallbacks * allocator) {
    pthread_mutex_lock(&lock);
    struct allocation ** at = find(memory), *a = *at;
    if (a != NULL) {
        *at = a->next;
        forget_copy(a);
        free(a);
    }
    pthread_mutex_unlock(&lock);
    device_of(KEY(handle))->driver.FreeMemory(handle, memory, allocator);
}

static void move(uint32_t count, const VkMappedMemoryRange * ranges, bool to_host) {
    for (uint32_t i = 0; i < count; i++) {
        pthread_mutex_lock(&lock);
        struct allocation * a = *find(ranges[i].memory);
        pthread_mutex_unlock(&lock);
        if (a == NULL) {
            continue; /* coherent */
        }
        const VkDeviceSize end = ranges[i].size == VK_WHOLE_SIZE ? a->size : ranges[i].offset + ranges[i].size;
        if (a->copy == NULL || end > a->size || ranges[i].offset % NON_COHERENT_ATOM ||
            (end % NON_COHERENT_ATOM && end != a->size)) {
            layer_fail("a range of memory that is flushed or invalidated is not mapped, or not in units of %d bytes",
                       NON_COHERENT_ATOM);
        }
        char * const from = to_host ? a->real : a->copy, * const to = to_host ? a->copy : a->real;
        memcpy(to + ranges[i].offset, from + ranges[i].offset, end - ranges[i].offset);
    }
}

static VKAPI_ATTR VkResult VKAPI_CALL flush(VkDevice handle, uint32_t count, const VkMappedMemoryRange * ranges) {
    (void) handle;
    move(count, ranges, false);
    return VK_SUCCESS;
}

static VKAPI_ATTR VkResult VKAPI_CALL invalidate(VkDevice handle, uint32_t count, const VkMappedMemoryRange * ranges) {
    (void) handle;
    move(count, ranges, true);
    return VK_SUCCESS;
}

/* ---- which type for what ------------------------------------------------------------------------------------ */

static VKAPI_ATTR VkResult VKAPI_CALL host_pointer(VkDevice handle, VkExternalMemoryHandleTypeFlagBits type,
                                                   const void * pointer, VkMemoryHostPointerPropertiesEXT * out) {
    const VkResult result = device_of(KEY(handle))->driver.GetMemoryHostPointerPropertiesEXT(handle, type, pointer, out);
    out->memoryTypeBits   = out->memoryTypeBits != 0 ? 1u << TYPE_CACHED : 0;
    return result;
}

static VKAPI_ATTR void VKAPI_CALL requirements(VkDevice handle, VkBuffer buffer, VkMemoryRequirements * out) {
    device_of(KEY(handle))->driver.GetBufferMemoryRequirements(handle, buffer, out);
    out->memoryTypeBits = (1u << TYPES) - 1;
}

static VKAPI_ATTR void VKAPI_CALL requirements2(VkDevice handle, const VkBufferMemoryRequirementsInfo2 * info,
                                                VkMemoryRequirements2 * out) {
    device_of(KEY(handle))->driver.GetBufferMemoryRequirements2(handle, info, out);
    out->memoryRequirements.memoryTypeBits = (1u << TYPES) - 1;
}

void memory_take(struct device * device) {
    if (has(device, DMA_BUF)) {
        device->below.CreateBuffer             = create_buffer;
        device->below.GetMemoryFdKHR           = get_fd;
        device->below.GetMemoryFdPropertiesKHR = fd_properties;
    }
    if (has(device, DMA_BUF | NON_COHERENT | IMPORT_64K | WRONG_HOST_IMPORT | WRONG_FD_IMPORT)) {
        device->below.AllocateMemory = allocate;
    }
    if (has(device, NON_COHERENT)) {
        device->below.MapMemory                         = map;
        device->below.UnmapMemory                       = unmap;
        device->below.FreeMemory                        = free_memory;
        device->below.FlushMappedMemoryRanges           = flush;
        device->below.InvalidateMappedMemoryRanges      = invalidate;
        device->below.GetMemoryHostPointerPropertiesEXT = host_pointer;
        device->below.GetBufferMemoryRequirements       = requirements;
        device->below.GetBufferMemoryRequirements2      = requirements2;
    }
}
