/*
 * ggml_comm.h - the C ABI between llama.cpp's ggml and an out-of-tree
 * AllReduce for its Vulkan backend.
 *
 * Two parts:
 *   1. the communicator trio that ggml's meta backend (`-sm tensor`) asks a
 *      backend registry for, with the contract that the host relies on;
 *   2. a mirror of the little of ggml's public ABI that a communicator needs.
 *
 * It needs no ggml header, and can be included together with ggml.h and
 * ggml-backend.h in one translation unit, in any order. Every layout, constant
 * and signature below is compared with the real headers by tests/abi.c.
 *
 * Only 64-bit hosts: the mirrored structures are those of LP64.
 */
#ifndef VKCOMM_GGML_COMM_H
#define VKCOMM_GGML_COMM_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Raised when anything below changes in a way that a separately built shim or
 * plugin can notice. The two compare it before they trust each other. */
#define VKCOMM_ABI_VERSION 1

/* Visible whatever -fvisibility says; the export map has the last word. */
#define VKCOMM_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* ---- handles: owned by ggml, never dereferenced here -------------------- */

struct ggml_context;
struct ggml_cgraph;
struct ggml_tensor; /* see struct vkcomm_ggml_tensor for its fields */
struct ggml_backend;
struct ggml_backend_buffer;
struct ggml_backend_buffer_type;
struct ggml_backend_device;
struct ggml_backend_reg;

/* ---- 1. the trio --------------------------------------------------------- */

/* The same types under the same names as in ggml-backend.h, so that including
 * both is a check and not a clash. */
typedef void * (*ggml_backend_comm_init_t)(struct ggml_backend ** backends, size_t n_backends);
typedef void   (*ggml_backend_comm_free_t)(void * comm_ctx);
typedef bool   (*ggml_backend_comm_allreduce_tensor_t)(void * comm_ctx, struct ggml_tensor ** tensors);

/* The names under which ggml_backend_reg_get_proc_address() is asked. A
 * registry answers all three or none: the host asserts that the other two exist
 * once comm_init has succeeded. */
#define VKCOMM_NAME_INIT      "ggml_backend_comm_init"
#define VKCOMM_NAME_FREE      "ggml_backend_comm_free"
#define VKCOMM_NAME_ALLREDUCE "ggml_backend_comm_allreduce_tensor"

/* Name of the only registry that is answered for. */
#define VKCOMM_REG_NAME "Vulkan"

#ifndef VKCOMM_NO_PROTOTYPES /* cgo writes its own for exported Go functions */

/*
 * Makes a communicator over n_backends ranks; rank i lives on backends[i].
 * The host calls it once per llama_context, and several may live on the same
 * devices. NULL is no error: the host then reduces by itself, for good.
 */
VKCOMM_API void * ggml_backend_comm_init(struct ggml_backend ** backends, size_t n_backends);

/*
 * Sums tensors[0..n-1] element by element; every tensor ends with the sum.
 * Called right after the graphs that write them were submitted, without a
 * synchronisation in between, and followed by graphs that read them.
 *   - A tensor without VKCOMM_GGML_TENSOR_FLAG_COMPUTE counts as +0.0, whatever
 *     its memory holds, and receives the sum like the others.
 *   - No elements: nothing to do, true.
 *   - false: nothing was touched, and the host reduces the same tensors at
 *     once by itself. It may be returned before the first side effect only.
 */
VKCOMM_API bool ggml_backend_comm_allreduce_tensor(void * comm_ctx, struct ggml_tensor ** tensors);

/* Waits for the communicator's own work and releases it. The host calls it
 * before it frees the backends. */
VKCOMM_API void ggml_backend_comm_free(void * comm_ctx);

#endif /* VKCOMM_NO_PROTOTYPES */

/* ---- 2. mirror of ggml's ABI --------------------------------------------- */

enum {
    VKCOMM_GGML_MAX_DIMS      = 4,
    VKCOMM_GGML_MAX_SRC       = 10,
    VKCOMM_GGML_MAX_OP_PARAMS = 64, /* bytes */
    VKCOMM_GGML_MAX_NAME      = 64,
    VKCOMM_GGML_MEM_ALIGN     = 16,

    /* enum ggml_type */
    VKCOMM_GGML_TYPE_F32  = 0,
    VKCOMM_GGML_TYPE_F16  = 1,
    VKCOMM_GGML_TYPE_I32  = 26,
    VKCOMM_GGML_TYPE_BF16 = 30,

    /* enum ggml_op; read for log lines only */
    VKCOMM_GGML_OP_NONE = 0,
    VKCOMM_GGML_OP_ADD  = 2,

    /* enum ggml_tensor_flag; COMPUTE: "this tensor must be computed". Its
     * absence after a graph build marks a zero-sized slice. */
    VKCOMM_GGML_TENSOR_FLAG_INPUT   = 1,
    VKCOMM_GGML_TENSOR_FLAG_OUTPUT  = 2,
    VKCOMM_GGML_TENSOR_FLAG_COMPUTE = 16,

    /* enum ggml_status */
    VKCOMM_GGML_STATUS_ALLOC_FAILED = -2,
    VKCOMM_GGML_STATUS_FAILED       = -1,
    VKCOMM_GGML_STATUS_SUCCESS      = 0,
    VKCOMM_GGML_STATUS_ABORTED      = 1,

    /* enum ggml_log_level */
    VKCOMM_GGML_LOG_LEVEL_NONE  = 0,
    VKCOMM_GGML_LOG_LEVEL_DEBUG = 1,
    VKCOMM_GGML_LOG_LEVEL_INFO  = 2,
    VKCOMM_GGML_LOG_LEVEL_WARN  = 3,
    VKCOMM_GGML_LOG_LEVEL_ERROR = 4,
    VKCOMM_GGML_LOG_LEVEL_CONT  = 5
};

/* struct ggml_tensor, field by field. Enumerations are 32 bits wide. */
struct vkcomm_ggml_tensor {
    int32_t type;

    struct ggml_backend_buffer * buffer; /* a view carries its source's */

    int64_t ne[VKCOMM_GGML_MAX_DIMS]; /* elements per dimension */
    size_t  nb[VKCOMM_GGML_MAX_DIMS]; /* stride in bytes per dimension */

    int32_t op;
    int32_t op_params[VKCOMM_GGML_MAX_OP_PARAMS / sizeof(int32_t)];
    int32_t flags;

    struct vkcomm_ggml_tensor * src[VKCOMM_GGML_MAX_SRC];

    /* A view aliases view_src's memory from byte view_offs on; view_src is
     * always the root, never itself a view. */
    struct vkcomm_ggml_tensor * view_src;
    size_t                      view_offs;

    /* An address in the buffer's address range. The Vulkan backend hands out
     * fictitious ones: only the distance from the buffer's base means anything. */
    void * data;

    char   name[VKCOMM_GGML_MAX_NAME];
    void * extra;
    char   padding[8];
};

struct vkcomm_ggml_init_params {
    size_t mem_size;
    void * mem_buffer; /* NULL: ggml allocates */
    bool   no_alloc;
};

static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8, "ggml_comm.h describes 64-bit hosts");
static_assert(sizeof(struct vkcomm_ggml_tensor) == 336, "layout of struct ggml_tensor");
static_assert(sizeof(struct vkcomm_ggml_init_params) == 24, "layout of struct ggml_init_params");

/* The two structures name the same object; these say so at the border. */
static inline struct vkcomm_ggml_tensor * vkcomm_tensor(struct ggml_tensor * t) {
    return (struct vkcomm_ggml_tensor *) (void *) t;
}

static inline struct ggml_tensor * vkcomm_tensor_handle(struct vkcomm_ggml_tensor * t) {
    return (struct ggml_tensor *) (void *) t;
}

/*
 * Functions of libggml-base, found with dlsym in the module that called: a
 * link-time reference would find nothing where ggml was loaded RTLD_LOCAL.
 * Each list is X(return type, name, parameters). Enumerations travel as int.
 */

/* Without any of these no communicator is made. */
#define VKCOMM_GGML_REQUIRED(X) \
    X(struct ggml_context *, ggml_init, (struct vkcomm_ggml_init_params params)) \
    X(void, ggml_free, (struct ggml_context * ctx)) \
    X(size_t, ggml_tensor_overhead, (void)) \
    X(size_t, ggml_graph_overhead, (void)) \
    X(struct ggml_tensor *, ggml_new_tensor_1d, (struct ggml_context * ctx, int type, int64_t ne0)) \
    X(struct ggml_tensor *, ggml_scale, (struct ggml_context * ctx, struct ggml_tensor * a, float s)) \
    X(struct ggml_cgraph *, ggml_new_graph, (struct ggml_context * ctx)) \
    X(void, ggml_build_forward_expand, (struct ggml_cgraph * graph, struct ggml_tensor * tensor)) \
    X(int64_t, ggml_nelements, (const struct ggml_tensor * tensor)) \
    X(bool, ggml_is_contiguous, (const struct ggml_tensor * tensor)) \
    X(struct ggml_backend_buffer *, ggml_backend_alloc_ctx_tensors, (struct ggml_context * ctx, struct ggml_backend * backend)) \
    X(struct ggml_backend_buffer *, ggml_backend_alloc_buffer, (struct ggml_backend * backend, size_t size)) \
    X(void *, ggml_backend_buffer_get_base, (struct ggml_backend_buffer * buffer)) \
    X(struct ggml_backend_buffer_type *, ggml_backend_buffer_get_type, (struct ggml_backend_buffer * buffer)) \
    X(bool, ggml_backend_buft_is_host, (struct ggml_backend_buffer_type * buft)) \
    X(int, ggml_backend_graph_compute, (struct ggml_backend * backend, struct ggml_cgraph * graph)) \
    X(void, ggml_backend_synchronize, (struct ggml_backend * backend)) \
    X(const char *, ggml_backend_name, (struct ggml_backend * backend)) \
    X(struct ggml_backend_device *, ggml_backend_get_device, (struct ggml_backend * backend)) \
    X(struct ggml_backend_reg *, ggml_backend_dev_backend_reg, (struct ggml_backend_device * device)) \
    X(const char *, ggml_backend_dev_name, (struct ggml_backend_device * device)) \
    X(const char *, ggml_backend_dev_description, (struct ggml_backend_device * device)) \
    X(const char *, ggml_backend_reg_name, (struct ggml_backend_reg * reg))

/* Better with, possible without: log lines and version lines. */
#define VKCOMM_GGML_OPTIONAL(X) \
    X(void, ggml_log_internal, (int level, const char * format, ...)) \
    X(const char *, ggml_version, (void)) \
    X(const char *, ggml_commit, (void))

/* Interposed: the plugin defines these names itself and calls the real ones. */
#define VKCOMM_GGML_HOOKED(X) \
    X(void *, ggml_backend_reg_get_proc_address, (struct ggml_backend_reg * reg, const char * name)) \
    X(struct ggml_backend_buffer *, ggml_backend_buft_alloc_buffer, (struct ggml_backend_buffer_type * buft, size_t size)) \
    X(void, ggml_backend_buffer_free, (struct ggml_backend_buffer * buffer)) \
    X(int, ggml_backend_graph_compute_async, (struct ggml_backend * backend, struct ggml_cgraph * graph))

/* vkcomm_ggml_init_fn and so on: a pointer type per function. */
#define VKCOMM_DECLARE_FN(ret, name, args) typedef ret (*vkcomm_##name##_fn) args;
VKCOMM_GGML_REQUIRED(VKCOMM_DECLARE_FN)
VKCOMM_GGML_OPTIONAL(VKCOMM_DECLARE_FN)
VKCOMM_GGML_HOOKED(VKCOMM_DECLARE_FN)
#undef VKCOMM_DECLARE_FN

/* One member per function, named as the function; NULL where not found. */
struct vkcomm_ggml_api {
#define VKCOMM_DECLARE_MEMBER(ret, name, args) vkcomm_##name##_fn name;
    VKCOMM_GGML_REQUIRED(VKCOMM_DECLARE_MEMBER)
    VKCOMM_GGML_OPTIONAL(VKCOMM_DECLARE_MEMBER)
    VKCOMM_GGML_HOOKED(VKCOMM_DECLARE_MEMBER)
#undef VKCOMM_DECLARE_MEMBER
};

#ifdef __cplusplus
}
#endif

#endif /* VKCOMM_GGML_COMM_H */
