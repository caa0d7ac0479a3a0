#include "host.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

const struct vkcomm_host_api *vkcomm_host;
struct vkcomm_ggml_api        vkcomm_ggml;

__attribute__((visibility("default"))) uint32_t vkcomm_attach(const struct vkcomm_host_api *api) {
    if (api->version == VKCOMM_HOST_API_VERSION) {
        vkcomm_host = api;
    }
    return VKCOMM_HOST_API_VERSION;
}

/* Other communicators read the table while they reduce, without a lock: what is
 * there already is not written again. */
const char *vkcomm_ggml_load(void) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct vkcomm_ggml_api found;
#define FIND(ret, name, args) found.name = (vkcomm_##name##_fn) vkcomm_host->symbol(#name);
    VKCOMM_GGML_REQUIRED(FIND)
    VKCOMM_GGML_OPTIONAL(FIND)
#undef FIND
    pthread_mutex_lock(&lock);
#define KEEP(ret, name, args)            \
    if (vkcomm_ggml.name != found.name) { \
        vkcomm_ggml.name = found.name;    \
    }
    VKCOMM_GGML_REQUIRED(KEEP)
    VKCOMM_GGML_OPTIONAL(KEEP)
#undef KEEP
    pthread_mutex_unlock(&lock);
#define REQUIRE(ret, name, args) if (!found.name) return #name;
    VKCOMM_GGML_REQUIRED(REQUIRE)
#undef REQUIRE
    return NULL;
}

size_t vkcomm_expected_overhead(void) {
    const size_t object = 32; /* struct ggml_object: two sizes, a pointer, a type, padding */
    return object + sizeof(struct vkcomm_ggml_tensor);
}

/* ---- probing ------------------------------------------------------------------- */

static void free_buffer(struct ggml_backend_buffer *buffer) {
    vkcomm_ggml_backend_buffer_free_fn release =
        (vkcomm_ggml_backend_buffer_free_fn) vkcomm_host->symbol("ggml_backend_buffer_free");
    if (release) {
        release(buffer);
    }
}

/* The VkDevice behind the backend's buffers. */
static bool probe_device(struct vkcomm_rank *rank, char *text, size_t size) {
    enum { PROBE_BYTES = 4096 };
    struct vkcomm_buffer_info   info;
    struct ggml_backend_buffer *buffer = vkcomm_ggml.ggml_backend_alloc_buffer(rank->backend, PROBE_BYTES);
    if (!buffer) {
        snprintf(text, size, "%s cannot allocate %d bytes", rank->name, PROBE_BYTES);
        return false;
    }
    bool known = vkcomm_host->buffer(buffer, &info) && vkcomm_host->device(info.device, &rank->device);
    free_buffer(buffer);
    if (!known) {
        snprintf(text, size, "the VkDevice of %s is unknown: preload before ggml's Vulkan backend is loaded", rank->name);
    }
    return known;
}

/* The queue that a graph is submitted to. ggml's transfer queue may be of the
 * same family, so only watching tells. */
static bool probe_queue(struct vkcomm_rank *rank, char *text, size_t size) {
    enum { ELEMENTS = 32 };
    struct vkcomm_ggml_init_params params = {
        .mem_size = 4 * vkcomm_ggml.ggml_tensor_overhead() + vkcomm_ggml.ggml_graph_overhead(), .no_alloc = true };
    struct ggml_context *context = vkcomm_ggml.ggml_init(params);
    if (!context) {
        snprintf(text, size, "out of memory");
        return false;
    }
    struct ggml_tensor         *source = vkcomm_ggml.ggml_new_tensor_1d(context, VKCOMM_GGML_TYPE_F32, ELEMENTS);
    struct ggml_tensor         *node   = vkcomm_ggml.ggml_scale(context, source, 1.0f);
    struct ggml_cgraph         *graph  = vkcomm_ggml.ggml_new_graph(context);
    struct ggml_backend_buffer *buffer = vkcomm_ggml.ggml_backend_alloc_ctx_tensors(context, rank->backend);
    bool                        known  = false;
    if (buffer) {
        vkcomm_ggml.ggml_build_forward_expand(graph, node);
        vkcomm_host->last_submit(); /* forget older ones */
        int status = vkcomm_ggml.ggml_backend_graph_compute(rank->backend, graph);
        known      = status == VKCOMM_GGML_STATUS_SUCCESS && vkcomm_host->queue(vkcomm_host->last_submit(), &rank->queue);
        free_buffer(buffer);
    }
    vkcomm_ggml.ggml_free(context);
    if (!known || rank->queue.device != rank->device.device) {
        snprintf(text, size, "cannot tell which queue %s computes on", rank->name);
        return false;
    }
    return true;
}

bool vkcomm_probe(struct ggml_backend *backend, struct vkcomm_rank *rank, char *text, size_t size) {
    struct ggml_backend_device *device = vkcomm_ggml.ggml_backend_get_device(backend);
    struct ggml_backend_reg    *reg    = device ? vkcomm_ggml.ggml_backend_dev_backend_reg(device) : NULL;
    const char                 *owner  = reg ? vkcomm_ggml.ggml_backend_reg_name(reg) : "no registry";
    *rank = (struct vkcomm_rank){ .backend = backend };
    if (strcmp(owner, VKCOMM_REG_NAME) != 0) {
        snprintf(text, size, "%s is of %s, only Vulkan backends can take part", vkcomm_ggml.ggml_backend_name(backend), owner);
        return false;
    }
    rank->name        = vkcomm_ggml.ggml_backend_dev_name(device);
    rank->description = vkcomm_ggml.ggml_backend_dev_description(device);
    if (!probe_device(rank, text, size) || !probe_queue(rank, text, size)) {
        return false;
    }
    if (!vkcomm_host->second_queue(rank->queue.queue, &rank->transfer)) {
        rank->transfer.queue = VK_NULL_HANDLE;
    }
    return true;
}

/* ---- resolving ------------------------------------------------------------------ */

static bool same_shape(const struct vkcomm_ggml_tensor *a, const struct vkcomm_ggml_tensor *b) {
    return memcmp(a->ne, b->ne, sizeof(a->ne)) == 0;
}

/* A view aliases the memory of its root, and so does its data pointer; its own
 * buffer field may name a buffer that is only a wrapper (llama.cpp #22197). */
static const struct vkcomm_ggml_tensor *root(const struct vkcomm_ggml_tensor *tensor) {
    while (tensor->view_src) {
        tensor = tensor->view_src;
    }
    return tensor;
}

static enum vkcomm_reason resolve_operand(const struct vkcomm_ggml_tensor *tensor, int64_t elements, VkDevice device,
                                          struct vkcomm_operand *out) {
    struct ggml_backend_buffer *buffer = root(tensor)->buffer;
    struct vkcomm_buffer_info   info;
    if (!buffer || !tensor->data) {
        return VKCOMM_NO_BUFFER;
    }
    if (!vkcomm_host->buffer(buffer, &info)) {
        return VKCOMM_UNKNOWN_BUFFER;
    }
    if (info.device != device) {
        return VKCOMM_OTHER_DEVICE;
    }
    uintptr_t base   = (uintptr_t) vkcomm_ggml.ggml_backend_buffer_get_base(buffer);
    uint64_t  offset = (uintptr_t) tensor->data - base, bytes = (uint64_t) elements * sizeof(float);
    if ((uintptr_t) tensor->data < base || offset % sizeof(float) || bytes > info.size || offset > info.size - bytes) {
        return VKCOMM_OUT_OF_BOUNDS;
    }
    *out = (struct vkcomm_operand){ .generation = info.generation, .offset = offset, .buffer = info.buffer, .size = info.size };
    return VKCOMM_ACCEPTED;
}

enum vkcomm_reason vkcomm_resolve(struct vkcomm_comm *comm, struct ggml_tensor **tensors) {
    for (uint32_t r = 0; r < comm->world; r++) {
        if (!tensors || !tensors[r]) {
            return VKCOMM_NULL_TENSOR;
        }
    }
    const struct vkcomm_ggml_tensor *first = vkcomm_tensor(tensors[0]);
    comm->elements   = vkcomm_ggml.ggml_nelements(tensors[0]);
    comm->zero_ranks = 0;
    for (uint32_t r = 0; r < comm->world; r++) {
        const struct vkcomm_ggml_tensor *tensor = vkcomm_tensor(tensors[r]);
        if (!same_shape(tensor, first)) {
            return VKCOMM_SHAPE;
        }
        if (comm->elements > 0 && tensor->type != VKCOMM_GGML_TYPE_F32) {
            return VKCOMM_TYPE;
        }
        if (comm->elements > 0 && !vkcomm_ggml.ggml_is_contiguous(tensors[r])) {
            return VKCOMM_NOT_CONTIGUOUS;
        }
        if (!(tensor->flags & VKCOMM_GGML_TENSOR_FLAG_COMPUTE)) {
            comm->zero_ranks |= 1u << r;
        }
    }
    if (comm->elements == 0) {
        return VKCOMM_EMPTY;
    }
    for (uint32_t r = 0; r < comm->world; r++) {
        enum vkcomm_reason reason =
            resolve_operand(vkcomm_tensor(tensors[r]), comm->elements, comm->devices[r], &comm->operands[r]);
        if (reason != VKCOMM_ACCEPTED) {
            return reason;
        }
    }
    for (uint32_t r = 0; r < comm->world; r++) {
        __atomic_store_n(&comm->sync[r].pending, 1, __ATOMIC_RELEASE);
    }
    return VKCOMM_ACCEPTED;
}
