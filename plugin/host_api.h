/*
 * What the preloaded side knows of the host, handed to the Go side as a table.
 *
 * The preload shim and the Go object are built from the same C sources. Only
 * the one that the dynamic linker put in front of ggml sees its calls; it
 * passes its table to the Go object with vkcomm_attach(), so that the Go side
 * reads one registry however it was loaded.
 */
#ifndef VKCOMM_HOST_API_H
#define VKCOMM_HOST_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <vulkan/vulkan.h>

#include "../ggml_comm.h"

#define VKCOMM_HOST_API_VERSION 2u

/* Extensions and features enabled on a VkDevice. */
enum {
    VKCOMM_HAS_TIMELINE             = 1u << 0, /* timelineSemaphore */
    VKCOMM_HAS_DYNAMIC_INDEXING     = 1u << 1, /* shaderStorageBufferArrayDynamicIndexing */
    VKCOMM_HAS_EXTERNAL_MEMORY_HOST = 1u << 2,
    VKCOMM_HAS_EXTERNAL_MEMORY_FD   = 1u << 3,
    VKCOMM_HAS_EXTERNAL_DMA_BUF     = 1u << 4,
    VKCOMM_HAS_EXTERNAL_SEMAPHORE_FD = 1u << 5,
    VKCOMM_HAS_QUEUE_FAMILY_FOREIGN = 1u << 6,
};

/* One VkDevice that ggml created. The two entry points are the real ones, not
 * the wrappers that ggml was given. */
struct vkcomm_device_info {
    VkInstance                instance;
    VkPhysicalDevice          physical_device;
    VkDevice                  device;
    PFN_vkGetInstanceProcAddr get_instance_proc_addr;
    PFN_vkGetDeviceProcAddr   get_device_proc_addr;
    uint32_t                  enabled; /* VKCOMM_HAS_* */
};

struct vkcomm_queue_info {
    VkQueue  queue;
    VkDevice device;
    uint32_t family;
};

/* The VkBuffer behind a ggml_backend_buffer_t. Both handles are reused by
 * their owners as soon as they are freed; the generation never is. */
struct vkcomm_buffer_info {
    VkDevice device;
    VkBuffer buffer;
    uint64_t size; /* bytes */
    uint64_t generation;
};

/* Work of ours that ggml may not know of. While pending is non-zero a
 * ggml_backend_synchronize() of that backend ends with synchronized(context,
 * covered), which must return when the work is complete; covered: the host has
 * itself waited for a fence behind all of it. */
struct vkcomm_sync {
    struct ggml_backend *backend;
    uint32_t            pending; /* atomic */
    void              (*synchronized)(void *context, bool covered);
    void               *context;
    struct vkcomm_sync *next;
};

/* How long it took to record the parts of a graph between two reductions, all
 * ranks of a part. */
struct vkcomm_team_stats {
    uint64_t parts, ns;
};

struct vkcomm_team;

struct vkcomm_host_api {
    uint32_t version;

    /* Address of a ggml function in the library whose registry was asked for
     * the trio, NULL if it has none. */
    void *(*symbol)(const char *name);

    /* One line, without a newline, through ggml's logger or to stderr. */
    void (*log)(int level, const char *line);

    bool (*device)(VkDevice device, struct vkcomm_device_info *out);
    bool (*queue)(VkQueue queue, struct vkcomm_queue_info *out);
    /* Another queue of the same device, of another family if there is one. */
    bool (*second_queue)(VkQueue queue, struct vkcomm_queue_info *out);
    bool (*buffer)(struct ggml_backend_buffer *buffer, struct vkcomm_buffer_info *out);

    /* The queue of this thread's latest vkQueueSubmit with work in it, since
     * the last call of this function. */
    VkQueue (*last_submit)(void);

    /* The real vkQueueSubmit under the lock that ggml's own submissions to the
     * same VkDevice take. */
    VkResult (*submit)(VkQueue queue, uint32_t count, const VkSubmitInfo *infos, VkFence fence);

    /* Lets a command buffer go out with ggml's next submission to the queue, and
     * all such at once; submit.h. */
    void (*hold)(VkQueue queue, VkCommandBuffer commands, void (*failed)(void *context, VkResult result), void *context);
    void (*flush)(void);

    void (*sync_add)(struct vkcomm_sync *entry);
    void (*sync_remove)(struct vkcomm_sync *entry);

    /* The ranks' graphs side by side; team.h. */
    struct vkcomm_team *(*team_start)(const void *comm, struct ggml_backend *const *backends, unsigned world, bool threads);
    void (*team_stop)(struct vkcomm_team *team, struct vkcomm_team_stats *stats);
};

#endif
