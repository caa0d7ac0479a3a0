/*
 * VK_LAYER_VKCOMM_fault - lets a driver fail, be slow, get lost, or be several
 * other devices, as VKCOMM_LAYER_* variables say (see README.md). Only calls
 * that the plugin makes are counted and failed; the host's go through, except
 * on a device that was lost.
 *
 * A call passes fault.c, then whichever of traits.c, memory.c, semaphores.c and
 * queues.c has taken its place in struct device.below, then the driver.
 */
#ifndef VKCOMM_TEST_LAYER_H
#define VKCOMM_TEST_LAYER_H

#include <stdbool.h>
#include <stdint.h>
#include <vulkan/vulkan.h>

/* X(name, parameters, arguments): commands of a device whose VkResult can be
 * forced. The first parameter is the dispatchable handle h. */
#define COMMANDS(X)                                                                                                     \
    X(AllocateMemory, (VkDevice h, const VkMemoryAllocateInfo * a, const VkAllocationCallbacks * b, VkDeviceMemory * c), \
      (h, a, b, c))                                                                                                     \
    X(CreateBuffer, (VkDevice h, const VkBufferCreateInfo * a, const VkAllocationCallbacks * b, VkBuffer * c),          \
      (h, a, b, c))                                                                                                     \
    X(BindBufferMemory, (VkDevice h, VkBuffer a, VkDeviceMemory b, VkDeviceSize c), (h, a, b, c))                       \
    X(MapMemory, (VkDevice h, VkDeviceMemory a, VkDeviceSize b, VkDeviceSize c, VkMemoryMapFlags d, void ** e),         \
      (h, a, b, c, d, e))                                                                                               \
    X(CreateSemaphore, (VkDevice h, const VkSemaphoreCreateInfo * a, const VkAllocationCallbacks * b, VkSemaphore * c), \
      (h, a, b, c))                                                                                                     \
    X(CreateShaderModule,                                                                                               \
      (VkDevice h, const VkShaderModuleCreateInfo * a, const VkAllocationCallbacks * b, VkShaderModule * c),            \
      (h, a, b, c))                                                                                                     \
    X(CreateComputePipelines,                                                                                           \
      (VkDevice h, VkPipelineCache a, uint32_t b, const VkComputePipelineCreateInfo * c,                                \
       const VkAllocationCallbacks * d, VkPipeline * e),                                                                \
      (h, a, b, c, d, e))                                                                                               \
    X(CreateDescriptorSetLayout,                                                                                        \
      (VkDevice h, const VkDescriptorSetLayoutCreateInfo * a, const VkAllocationCallbacks * b,                          \
       VkDescriptorSetLayout * c),                                                                                      \
      (h, a, b, c))                                                                                                     \
    X(CreateDescriptorPool,                                                                                             \
      (VkDevice h, const VkDescriptorPoolCreateInfo * a, const VkAllocationCallbacks * b, VkDescriptorPool * c),        \
      (h, a, b, c))                                                                                                     \
    X(AllocateDescriptorSets, (VkDevice h, const VkDescriptorSetAllocateInfo * a, VkDescriptorSet * b), (h, a, b))      \
    X(CreatePipelineLayout,                                                                                             \
      (VkDevice h, const VkPipelineLayoutCreateInfo * a, const VkAllocationCallbacks * b, VkPipelineLayout * c),        \
      (h, a, b, c))                                                                                                     \
    X(CreateCommandPool,                                                                                                \
      (VkDevice h, const VkCommandPoolCreateInfo * a, const VkAllocationCallbacks * b, VkCommandPool * c),              \
      (h, a, b, c))                                                                                                     \
    X(AllocateCommandBuffers, (VkDevice h, const VkCommandBufferAllocateInfo * a, VkCommandBuffer * b), (h, a, b))      \
    X(BeginCommandBuffer, (VkCommandBuffer h, const VkCommandBufferBeginInfo * a), (h, a))                              \
    X(EndCommandBuffer, (VkCommandBuffer h), (h))                                                                       \
    X(QueueSubmit, (VkQueue h, uint32_t a, const VkSubmitInfo * b, VkFence c), (h, a, b, c))                            \
    X(WaitSemaphores, (VkDevice h, const VkSemaphoreWaitInfo * a, uint64_t b), (h, a, b))                               \
    X(SignalSemaphore, (VkDevice h, const VkSemaphoreSignalInfo * a), (h, a))                                           \
    X(GetSemaphoreCounterValue, (VkDevice h, VkSemaphore a, uint64_t * b), (h, a, b))                                   \
    X(GetMemoryHostPointerPropertiesEXT,                                                                                \
      (VkDevice h, VkExternalMemoryHandleTypeFlagBits a, const void * b, VkMemoryHostPointerPropertiesEXT * c),         \
      (h, a, b, c))                                                                                                     \
    X(GetMemoryFdKHR, (VkDevice h, const VkMemoryGetFdInfoKHR * a, int * b), (h, a, b))                                 \
    X(GetMemoryFdPropertiesKHR,                                                                                         \
      (VkDevice h, VkExternalMemoryHandleTypeFlagBits a, int b, VkMemoryFdPropertiesKHR * c), (h, a, b, c))             \
    X(GetSemaphoreFdKHR, (VkDevice h, const VkSemaphoreGetFdInfoKHR * a, int * b), (h, a, b))                           \
    X(ImportSemaphoreFdKHR, (VkDevice h, const VkImportSemaphoreFdInfoKHR * a), (h, a))

/* Commands of a device that are never failed, but may be emulated. */
#define OTHER_COMMANDS(X)            \
    X(DestroyDevice)                 \
    X(GetDeviceQueue)                \
    X(GetDeviceQueue2)               \
    X(QueueSubmit2)                  \
    X(QueueBindSparse)               \
    X(QueueWaitIdle)                 \
    X(DeviceWaitIdle)                \
    X(DestroySemaphore)              \
    X(UpdateDescriptorSets)          \
    X(FreeMemory)                    \
    X(UnmapMemory)                   \
    X(FlushMappedMemoryRanges)       \
    X(InvalidateMappedMemoryRanges)  \
    X(GetBufferMemoryRequirements)   \
    X(GetBufferMemoryRequirements2)

enum command {
#define ENUM(name, parameters, arguments) COMMAND_##name,
    COMMANDS(ENUM)
#undef ENUM
    COMMAND_COUNT
};

/* Reads the environment, once. */
void fault_setup(void);

/* Whether the caller of the layer is the plugin, or ggml: the nearest object on
 * the stack that is either's decides. */
bool fault_called_by_plugin(void);
bool fault_called_by_ggml(void);

/* True: the command is to return *result without reaching the driver. device
 * counts devices in the order of their creation. */
bool fault_injected(enum command command, unsigned device, VkResult * result);

struct device;

/* Takes from a batch for a queue, the transfer queue if copies is set, what the
 * device's traits want it not to do. */
void fault_spoil(const struct device * device, bool copies, uint32_t * commands, uint32_t * signals);

/* ---- traits.c: what a device is made to look like ----------------------------------- */

enum trait {
    NO_HOST_IMPORT    = 1 << 0,  /* no VK_EXT_external_memory_host */
    IMPORT_64K        = 1 << 1,  /* host memory is imported in units of 64 KiB */
    OFFSET_256        = 1 << 2,  /* minStorageBufferOffsetAlignment */
    SMALL_RANGE       = 1 << 3,  /* maxStorageBufferRange of 1 MiB */
    FEW_BUFFERS       = 1 << 4,  /* 3 storage buffers a kernel */
    NO_TIMELINE       = 1 << 5,  /* no timeline semaphores */
    TIMELINE_FD       = 1 << 6,  /* timelines leave and enter as OPAQUE_FD */
    TRANSFER_QUEUE    = 1 << 7,  /* a second family, with one queue that copies */
    DMA_BUF           = 1 << 8,  /* memory leaves and enters as DMA_BUF */
    DMA_BUF_NO_TYPES  = 1 << 9,  /* no memory type for a dma-buf that enters */
    DMA_BUF_NO_EXPORT = 1 << 10, /* none leaves, against what the driver says */
    NON_COHERENT      = 1 << 11, /* imported host memory is not coherent, and not all memory is the host's */
    DISCRETE          = 1 << 12, /* not a CPU */
    WRONG_HOST_IMPORT = 1 << 13, /* an import of host memory succeeds and is other memory */
    WRONG_FD_IMPORT   = 1 << 14, /* an import of a descriptor succeeds and is other memory */
    WRONG_TIMELINE    = 1 << 15, /* an import of a timeline succeeds and is another one */
    NO_COPIES         = 1 << 16, /* the transfer queue signals and does nothing else, */
    NO_COPY_SIGNALS   = 1 << 17, /* or copies and does not signal, for the plugin */
    STALLS            = 1 << 18, /* signals nothing from submission VKCOMM_LAYER_STALL of the plugin on */
    JITTER            = 1 << 19, /* queues hand over at random times, with TRANSFER_QUEUE */
    DIES              = 1 << 20, /* and is lost, as who asks it then is told */
    NVIDIA            = 1 << 21,
    AMD               = 1 << 22,
    VENDORS           = NVIDIA | AMD,
};

enum { MAX_NAMED = 32 }; /* devices in VKCOMM_LAYER_DEVICES */

enum { NON_COHERENT_ATOM = 256 };

/* How many devices VKCOMM_LAYER_DEVICES names; 0: those of the driver, as they
 * are. traits_of is what it says of one. */
unsigned traits_devices(void);
unsigned traits_of(unsigned index);

/* Properties and features as queried, changed in place; chain is a pNext. */
void traits_core(unsigned index, VkPhysicalDeviceProperties * core);
void traits_properties(unsigned index, void * chain);
void traits_features(unsigned index, void * chain);

/* Ends the process where the plugin imports against the device's limits. */
void traits_check_import(unsigned index, const VkMemoryAllocateInfo * info);

/* Whether an extension is to be hidden. The second lists those to be shown that
 * the driver does not have, up to NULL. */
bool         traits_hide(unsigned index, const char * extension);
const char * traits_add(unsigned index, unsigned i);

/* ---- devices.c: physical devices -------------------------------------------------------- */

/* What the next layer or the driver calls the device; index: which of ours it
 * is, 0 where there are none of ours. */
VkPhysicalDevice devices_real(VkPhysicalDevice device, unsigned * index);

/* Learns the driver's commands as soon as there is an instance: later the
 * loader answers with the first layer of the chain. */
void devices_resolve(VkInstance instance, PFN_vkGetInstanceProcAddr next);

/* What the layer has in the place of a command of a physical device, or NULL. */
PFN_vkVoidFunction devices_command(const char * name);

/* ---- layer.c: devices ---------------------------------------------------------------------- */

struct calls {
#define MEMBER(name, parameters, arguments) PFN_vk##name name;
    COMMANDS(MEMBER)
#undef MEMBER
#define MEMBER(name) PFN_vk##name name;
    OTHER_COMMANDS(MEMBER)
#undef MEMBER
};

struct device {
    void *                  key;
    VkDevice                handle;
    unsigned                number; /* in the order of creation */
    unsigned                index;  /* of its physical device, see traits_of */
    PFN_vkGetDeviceProcAddr get;
    struct calls            driver; /* the driver's */
    struct calls            below;  /* what follows fault.c: the driver's or ours */
    struct queues *         queues; /* of queues.c, NULL: the driver's */
};

/* The device of a dispatchable handle: all handles of one start with the same
 * pointer. */
#define KEY(handle) (*(void **) (handle))
struct device * device_of(void * key);

/* An element of a pNext chain. */
void * chain_find(const void * chain, VkStructureType type);

/* Each puts its functions into device->below, as the device's traits want. */
void traits_take(struct device * device);
void memory_take(struct device * device);
void semaphores_take(struct device * device);
void queues_take(struct device * device);

/* ---- semaphores.c ---------------------------------------------------------------------------- */

/* Carries what these submissions will signal to the other devices that share it. */
void semaphores_submitted(struct device * device, uint32_t count, const VkSubmitInfo * infos);

/* ---- queues.c ----------------------------------------------------------------------------------- */

/* A binary semaphore was made, is to be destroyed. */
void queues_semaphore_made(struct device * device, VkSemaphore handle);
void queues_semaphore_gone(struct device * device, VkSemaphore handle);

/* ---- memory.c: what devices.c says of memory --------------------------------------------------- */

void memory_types(unsigned index, VkPhysicalDeviceMemoryProperties * memory);
void memory_external(unsigned index, const VkPhysicalDeviceExternalBufferInfo * info, VkExternalBufferProperties * out,
                     VkPhysicalDevice real, PFN_vkGetPhysicalDeviceExternalBufferProperties next);

/* Ends the process: a test that shows nothing must not pass. */
_Noreturn void layer_fail(const char * format, ...) __attribute__((format(printf, 1, 2)));

#endif
