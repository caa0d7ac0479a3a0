/* What the plugin must hand back to the host: false, and not one byte changed.
 * The host then reduces the same tensors itself, so any write would be added
 * twice. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 4096 * 4, PAGE = 4096 };

/* One call's tensors, each rank's in a context and buffer of its own. */
struct bad_call {
    int                   n;
    struct ggml_context * ctx[MAX_RANKS];
    ggml_backend_buffer_t buffer[MAX_RANKS];
    struct ggml_tensor *  root[MAX_RANKS];   /* the memory that is watched */
    struct ggml_tensor *  tensor[MAX_RANKS]; /* what is passed */
};

static ggml_backend_buffer_type_t own_buft(int r) {
    return ggml_backend_get_default_buffer_type(world.backend[r]);
}

/* A rank's usual operand, 64 x 64 floats, in any buffer type. */
static void place(struct bad_call * call, int r, enum ggml_type type, int64_t elements, ggml_backend_buffer_type_t buft) {
    if (call->buffer[r] != NULL) {
        ggml_backend_buffer_free(call->buffer[r]);
    }
    if (call->ctx[r] != NULL) {
        ggml_free(call->ctx[r]);
    }
    call->ctx[r]  = meta_context(4, 0);
    call->root[r] = ggml_new_tensor_2d(call->ctx[r], type, elements / 64, 64);
    call->buffer[r] = ggml_backend_alloc_ctx_tensors_from_buft(call->ctx[r], buft);
    call->tensor[r] = call->root[r];
    call->tensor[r]->flags |= GGML_TENSOR_FLAG_COMPUTE;
}

static void begin(struct bad_call * call, int n) {
    memset(call, 0, sizeof(*call));
    call->n = n;
    for (int r = 0; r < n; r++) {
        place(call, r, GGML_TYPE_F32, 4096, own_buft(r));
    }
}

static void end(struct bad_call * call) {
    for (int r = 0; r < call->n; r++) {
        ggml_backend_buffer_free(call->buffer[r]);
        ggml_free(call->ctx[r]);
    }
}

/* A view must be made with its source allocated, to inherit the memory. */
static void pass_view(struct bad_call * call, int r, struct ggml_tensor * view) {
    if (view->buffer == NULL) {
        ggml_backend_view_init(view);
    }
    view->flags |= GGML_TENSOR_FLAG_COMPUTE;
    call->tensor[r] = view;
}

static void fill(const struct bad_call * call, int r, unsigned char * image) {
    uint64_t     state = (uint64_t) r + 1;
    const size_t bytes = ggml_nbytes(call->root[r]);
    for (size_t i = 0; i < bytes; i++) {
        image[i] = (unsigned char) random_next(&state);
    }
    ggml_backend_tensor_set(call->root[r], image, 0, bytes);
}

static bool unchanged(const struct bad_call * call, int r, const unsigned char * image) {
    unsigned char * found = malloc(BYTES);
    const size_t    bytes = ggml_nbytes(call->root[r]);
    ggml_backend_tensor_get(call->root[r], found, 0, bytes);
    const bool same = memcmp(image, found, bytes) == 0;
    if (!same) {
        report_note("rank %d: memory was changed", r);
    }
    free(found);
    return same;
}

/* Calls with tensors as they are; false and untouched is what is wanted. */
static bool refused(struct bad_call * call, void * comm) {
    unsigned char * images = malloc((size_t) call->n * BYTES);
    for (int r = 0; r < call->n; r++) {
        fill(call, r, images + (size_t) r * BYTES);
    }
    const bool answer = trio.allreduce(comm, call->tensor);
    world_synchronize(&world, call->n);
    bool ok = !answer;
    if (answer) {
        report_note("answered true");
    }
    for (int r = 0; r < call->n; r++) {
        ok = unchanged(call, r, images + (size_t) r * BYTES) && ok;
    }
    free(images);
    return ok;
}

/* ---- one way each to spoil rank r's operand ------------------------------- */

static void spoil_transposed(struct bad_call * c, int r) {
    pass_view(c, r, ggml_transpose(c->ctx[r], c->root[r]));
}

static void spoil_permuted(struct bad_call * c, int r) {
    pass_view(c, r, ggml_permute(c->ctx[r], c->root[r], 2, 0, 1, 3));
}

static void spoil_strided(struct bad_call * c, int r) {
    pass_view(c, r, ggml_view_2d(c->ctx[r], c->root[r], 32, 64, c->root[r]->nb[1], 0));
}

static void spoil_count(struct bad_call * c, int r) {
    place(c, r, GGML_TYPE_F32, 4032, own_buft(r));
}

static void spoil_type_f16(struct bad_call * c, int r) {
    place(c, r, GGML_TYPE_F16, 4096, own_buft(r));
}

static void spoil_null(struct bad_call * c, int r) {
    c->tensor[r] = NULL;
}

static void spoil_cpu(struct bad_call * c, int r) {
    place(c, r, GGML_TYPE_F32, 4096, ggml_backend_cpu_buffer_type());
}

static void spoil_pinned(struct bad_call * c, int r) {
    place(c, r, GGML_TYPE_F32, 4096, ggml_backend_dev_host_buffer_type(ggml_backend_get_device(world.backend[r])));
}

static void spoil_other_device(struct bad_call * c, int r) {
    place(c, r, GGML_TYPE_F32, 4096, own_buft((r + 1) % c->n));
}

static void spoil_unallocated(struct bad_call * c, int r) {
    c->tensor[r] = ggml_new_tensor_2d(c->ctx[r], GGML_TYPE_F32, 64, 64);
    c->tensor[r]->flags |= GGML_TENSOR_FLAG_COMPUTE;
}

/* An address without a buffer: nothing to tell the device by. */
static void spoil_no_buffer(struct bad_call * c, int r) {
    spoil_unallocated(c, r);
    c->tensor[r]->data = c->root[r]->data;
}

struct spoiler {
    const char * name;
    void (*spoil)(struct bad_call * call, int r);
};

static const struct spoiler spoilers[] = {
    { "transposed", spoil_transposed },
    { "permuted", spoil_permuted },
    { "rows with gaps", spoil_strided },
    { "other element count", spoil_count },
    { "other type", spoil_type_f16 },
    { "NULL tensor", spoil_null },
    { "CPU buffer", spoil_cpu },
    { "pinned host buffer", spoil_pinned },
    { "another rank's device", spoil_other_device },
    { "not allocated", spoil_unallocated },
    { "no buffer", spoil_no_buffer },
};

/* One rank's operand is bad, the others' are fine. */
static void run_spoiled_ranks(void * comm, int n) {
    for (size_t i = 0; i < sizeof(spoilers) / sizeof(spoilers[0]); i++) {
        for (int r = 0; r < n; r++) {
            struct bad_call call;
            report_start("refusals/n%d/%s/rank%d", n, spoilers[i].name, r);
            begin(&call, n);
            spoilers[i].spoil(&call, r);
            report_result(refused(&call, comm));
            end(&call);
        }
    }
}

static void run_uniform(void * comm, int n, const char * name, enum ggml_type type) {
    struct bad_call call;
    report_start("refusals/n%d/%s on every rank", n, name);
    begin(&call, n);
    for (int r = 0; r < n; r++) {
        place(&call, r, type, 4096, own_buft(r));
    }
    report_result(refused(&call, comm));
    end(&call);
}

static void run_transposed_everywhere(void * comm, int n) {
    struct bad_call call;
    report_start("refusals/n%d/transposed on every rank", n);
    begin(&call, n);
    for (int r = 0; r < n; r++) {
        spoil_transposed(&call, r);
    }
    report_result(refused(&call, comm));
    end(&call);
}

/* Vulkan memory of the right device, but made from a host pointer, which no
 * allocation through a buffer type announces. */
static bool place_imported(struct bad_call * call, int r, void * memory) {
    ggml_backend_dev_t device = ggml_backend_get_device(world.backend[r]);
    ggml_backend_buffer_free(call->buffer[r]);
    ggml_free(call->ctx[r]);
    call->ctx[r]    = meta_context(1, 0);
    call->buffer[r] = ggml_backend_dev_buffer_from_host_ptr(device, memory, BYTES, BYTES);
    if (call->buffer[r] == NULL) {
        place(call, r, GGML_TYPE_F32, 4096, own_buft(r));
        return false;
    }
    call->root[r] = ggml_new_tensor_2d(call->ctx[r], GGML_TYPE_F32, 64, 64);
    ggml_backend_tensor_alloc(call->buffer[r], call->root[r], ggml_backend_buffer_get_base(call->buffer[r]));
    call->tensor[r] = call->root[r];
    call->tensor[r]->flags |= GGML_TENSOR_FLAG_COMPUTE;
    return true;
}

/* Refused and untouched, or summed right: both keep the host's bargain. */
static bool refused_or_right(struct bad_call * call, void * comm) {
    struct values w;
    float         found[4096];
    bool          ok = true;
    values_alloc(&w, call->n, 4096);
    values_fill(&w, KIND_FINITE, next_seed());
    for (int r = 0; r < call->n; r++) {
        ggml_backend_tensor_set(call->root[r], w.v[r], 0, BYTES);
    }
    const bool answer = trio.allreduce(comm, call->tensor);
    world_synchronize(&world, call->n);
    for (int r = 0; r < call->n; r++) {
        ggml_backend_tensor_get(call->root[r], found, 0, BYTES);
        ok = (answer ? values_check(&w, found, options.accuracy, r) : memcmp(found, w.v[r], BYTES) == 0) && ok;
    }
    values_free(&w);
    return ok;
}

static void run_imported(void * comm, int n) {
    for (int r = 0; r < n; r++) {
        struct bad_call call;
        void *          memory = aligned_alloc(PAGE, BYTES);
        char            name[64];
        snprintf(name, sizeof(name), "refusals/n%d/buffer from a host pointer/rank%d", n, r);
        report_start("%s", name);
        begin(&call, n);
        if (place_imported(&call, r, memory)) {
            report_result(refused_or_right(&call, comm));
        } else {
            report_skip(name, "the device imports no host memory");
        }
        end(&call);
        free(memory);
    }
}

/* Refusing must leave no trace: the next good call works. */
static void run_good_after_bad(void * comm, int n) {
    struct set set;
    report_start("refusals/n%d/a good call afterwards", n);
    bool ok = set_alloc(&set, &world, n, 4096, BINDING_PLAIN);
    if (ok) {
        ok = set_roundtrip(&set, &world, comm, usual_kind(), (1u << n) - 1, options.accuracy, next_seed());
        set_free(&set);
    }
    report_result(ok);
}

void case_refusals(void) {
    for (int k = 0; k < options.n_ranks; k++) {
        const int n    = options.ranks[k];
        void *    comm = open_comm("refusals", n);
        if (comm == NULL) {
            continue;
        }
        run_spoiled_ranks(comm, n);
        run_uniform(comm, n, "F16", GGML_TYPE_F16);
        run_uniform(comm, n, "I32", GGML_TYPE_I32);
        run_transposed_everywhere(comm, n);
        run_imported(comm, n);
        run_good_after_bad(comm, n);
        trio.free(comm);
    }
}
