/*
 * abi - compares ggml_comm.h with the ggml headers and library it mirrors.
 *
 * Sizes, offsets and constants are compared by the compiler: a difference does
 * not build. What only the library knows is compared when the program runs.
 * It includes both headers, which is a check of its own: no clash, and equal
 * types behind the names that both define.
 */
#include "ggml_comm.h"

#include "ggml.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"

#include <stdio.h>
#include <string.h>

/* ggml_log_internal is exported, but declared in a private header only. */
#if __has_include("../src/ggml-impl.h")
#define HAVE_LOG_INTERNAL 1
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../src/ggml-impl.h"
#pragma GCC diagnostic pop
#else
void ggml_log_internal(enum ggml_log_level level, const char * format, ...);
#endif

/* ---- layout -------------------------------------------------------------- */

#define SIZEOF_MEMBER(type, member) sizeof(((type *) 0)->member)

#define SAME_FIELD(ours, theirs, field) \
    _Static_assert(offsetof(ours, field) == offsetof(theirs, field), "offset of " #field); \
    _Static_assert(SIZEOF_MEMBER(ours, field) == SIZEOF_MEMBER(theirs, field), "size of " #field);

#define TENSOR_FIELDS(X) \
    X(type) X(buffer) X(ne) X(nb) X(op) X(op_params) X(flags) X(src) X(view_src) X(view_offs) X(data) X(name) X(extra) X(padding)
#define TENSOR_FIELD(f) SAME_FIELD(struct vkcomm_ggml_tensor, struct ggml_tensor, f)
TENSOR_FIELDS(TENSOR_FIELD)
_Static_assert(sizeof(struct vkcomm_ggml_tensor) == sizeof(struct ggml_tensor), "size of ggml_tensor");
_Static_assert(_Alignof(struct vkcomm_ggml_tensor) == _Alignof(struct ggml_tensor), "alignment of ggml_tensor");

#define PARAM_FIELDS(X) X(mem_size) X(mem_buffer) X(no_alloc)
#define PARAM_FIELD(f) SAME_FIELD(struct vkcomm_ggml_init_params, struct ggml_init_params, f)
PARAM_FIELDS(PARAM_FIELD)
_Static_assert(sizeof(struct vkcomm_ggml_init_params) == sizeof(struct ggml_init_params), "size of ggml_init_params");

/* ---- constants ----------------------------------------------------------- */

#define CONSTANTS(X) \
    X(GGML_MAX_DIMS) X(GGML_MAX_SRC) X(GGML_MAX_OP_PARAMS) X(GGML_MAX_NAME) X(GGML_MEM_ALIGN) \
    X(GGML_TYPE_F32) X(GGML_TYPE_F16) X(GGML_TYPE_I32) X(GGML_TYPE_BF16) \
    X(GGML_OP_NONE) X(GGML_OP_ADD) \
    X(GGML_TENSOR_FLAG_INPUT) X(GGML_TENSOR_FLAG_OUTPUT) X(GGML_TENSOR_FLAG_COMPUTE) \
    X(GGML_STATUS_ALLOC_FAILED) X(GGML_STATUS_FAILED) X(GGML_STATUS_SUCCESS) X(GGML_STATUS_ABORTED) \
    X(GGML_LOG_LEVEL_NONE) X(GGML_LOG_LEVEL_DEBUG) X(GGML_LOG_LEVEL_INFO) X(GGML_LOG_LEVEL_WARN) \
    X(GGML_LOG_LEVEL_ERROR) X(GGML_LOG_LEVEL_CONT)
#define SAME_CONSTANT(c) _Static_assert((int) VKCOMM_##c == (int) c, #c);
CONSTANTS(SAME_CONSTANT)

/* ---- signatures ---------------------------------------------------------- */

#define SAME_TYPE(a, b) __builtin_types_compatible_p(a, b)

/* ggml spells these with its enumerations or structures, ggml_comm.h with int
 * and its mirrors; they are compared with the spelling restored. */
typedef struct ggml_context * (*spelled_init)(struct ggml_init_params);
typedef struct ggml_tensor *  (*spelled_new_tensor_1d)(struct ggml_context *, enum ggml_type, int64_t);
typedef enum ggml_status      (*spelled_graph_compute)(struct ggml_backend *, struct ggml_cgraph *);
typedef void                  (*spelled_log_internal)(enum ggml_log_level, const char *, ...);

_Static_assert(SAME_TYPE(__typeof__(&ggml_init), spelled_init), "ggml_init");
_Static_assert(SAME_TYPE(__typeof__(&ggml_new_tensor_1d), spelled_new_tensor_1d), "ggml_new_tensor_1d");
_Static_assert(SAME_TYPE(__typeof__(&ggml_backend_graph_compute), spelled_graph_compute), "ggml_backend_graph_compute");
_Static_assert(SAME_TYPE(__typeof__(&ggml_log_internal), spelled_log_internal), "ggml_log_internal");
_Static_assert(sizeof(enum ggml_type) == sizeof(int) && sizeof(enum ggml_status) == sizeof(int) &&
               sizeof(enum ggml_log_level) == sizeof(int), "enumerations travel as int");

static const char * const spelled[] = {
    "ggml_init", "ggml_new_tensor_1d", "ggml_backend_graph_compute", "ggml_log_internal",
};

struct signature {
    const char * name;
    bool         same;
    bool         linked;
};

#define SIGNATURE(ret, name, args) { #name, SAME_TYPE(__typeof__(&name), vkcomm_##name##_fn), (void *) &name != NULL },

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Waddress"
#pragma GCC diagnostic ignored "-Wpedantic" /* a function's address as void * */
static const struct signature signatures[] = {
    VKCOMM_GGML_REQUIRED(SIGNATURE)
    VKCOMM_GGML_OPTIONAL(SIGNATURE)
    VKCOMM_GGML_HOOKED(SIGNATURE)
};
#pragma GCC diagnostic pop

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static int failed;

static void expect(bool ok, const char * what) {
    printf("%s abi/%s\n", ok ? "ok" : "not ok", what);
    failed += !ok;
}

static bool is_spelled(const char * name) {
    for (size_t i = 0; i < COUNT(spelled); i++) {
        if (strcmp(spelled[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static void check_signatures(void) {
    for (size_t i = 0; i < COUNT(signatures); i++) {
        char what[128];
        snprintf(what, sizeof(what), "signature %s", signatures[i].name);
        expect(signatures[i].linked && (signatures[i].same || is_spelled(signatures[i].name)), what);
    }
}

/* struct ggml_object, private to ggml: an arena's header before each tensor. */
struct object_header {
    size_t offs;
    size_t size;
    void * next;
    int    type;
    char   padding[4];
};

static void check_overhead(void) {
    const size_t expected = sizeof(struct vkcomm_ggml_tensor) + sizeof(struct object_header);
    printf("# ggml_tensor_overhead() = %zu, mirror %zu + object header %zu\n", ggml_tensor_overhead(),
           sizeof(struct vkcomm_ggml_tensor), sizeof(struct object_header));
    expect(ggml_tensor_overhead() == expected, "tensor overhead");
    expect(ggml_graph_overhead() > 0 && ggml_graph_overhead() % VKCOMM_GGML_MEM_ALIGN == 0, "graph overhead");
}

/* The library fills a tensor, the mirror reads it: headers and library agree. */
static void check_through_mirror(void) {
    struct vkcomm_ggml_init_params params = { 4 * ggml_tensor_overhead(), NULL, true };
    vkcomm_ggml_init_fn init = (vkcomm_ggml_init_fn) (void (*)(void)) ggml_init;
    struct ggml_context * ctx = init(params);
    struct ggml_tensor * root = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 5, 3, 2);
    struct ggml_tensor * view = ggml_view_1d(ctx, root, 7, 3 * sizeof(float));
    ggml_set_name(root, "mirrored");
    view->flags |= GGML_TENSOR_FLAG_COMPUTE;

    const struct vkcomm_ggml_tensor * r = vkcomm_tensor(root);
    const struct vkcomm_ggml_tensor * v = vkcomm_tensor(view);
    expect(r->type == VKCOMM_GGML_TYPE_F32 && r->op == VKCOMM_GGML_OP_NONE, "library: type and op");
    expect(r->ne[0] == 5 && r->ne[1] == 3 && r->ne[2] == 2 && r->ne[3] == 1, "library: ne");
    expect(r->nb[0] == 4 && r->nb[1] == 20 && r->nb[2] == 60 && r->nb[3] == 120, "library: nb");
    expect(strcmp(r->name, "mirrored") == 0, "library: name");
    expect(r->data == NULL && r->buffer == NULL && r->view_src == NULL, "library: unallocated");
    expect(v->view_src == r && v->view_offs == 12 && v->src[0] == r, "library: view");
    expect(v->flags & VKCOMM_GGML_TENSOR_FLAG_COMPUTE, "library: flags");
    expect(vkcomm_tensor_handle(vkcomm_tensor(root)) == root, "library: handle");
    ggml_free(ctx);
}

int main(void) {
    printf("# ggml_comm.h ABI %d against ggml %s (%s)\n", VKCOMM_ABI_VERSION, ggml_version(), ggml_commit());
#define PRINT_FIELD(f) printf("# ggml_tensor.%-10s offset %3zu size %3zu\n", #f, offsetof(struct ggml_tensor, f), SIZEOF_MEMBER(struct ggml_tensor, f));
    TENSOR_FIELDS(PRINT_FIELD)
    printf("# sizeof ggml_tensor %zu, ggml_init_params %zu\n", sizeof(struct ggml_tensor), sizeof(struct ggml_init_params));
#define PRINT_CONSTANT(c) printf("# %s = %d\n", #c, (int) c);
    CONSTANTS(PRINT_CONSTANT)
    expect(true, "layout and constants (by the compiler)");
#ifndef HAVE_LOG_INTERNAL
    printf("SKIP abi/declaration of ggml_log_internal (private header not at hand)\n");
#endif
    check_signatures();
    check_overhead();
    check_through_mirror();
    printf("# %d failed\n", failed);
    return failed ? 1 : 0;
}
