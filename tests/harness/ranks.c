#include "ranks.h"

#include "report.h"

#include <stdlib.h>
#include <string.h>

enum {
    GUARD = 16, /* guard elements on each side */
    GUARD_BITS = 0x7fa50000 /* NaNs with a payload: any addition shows */
};

struct trio        trio;
ggml_backend_reg_t vulkan_reg;

bool ranks_load(const char * libdir) {
    ggml_backend_load_all_from_path(libdir);
    vulkan_reg = ggml_backend_reg_by_name("Vulkan");
    return vulkan_reg != NULL;
}

/* ISO C knows no conversion of void * to a function pointer; POSIX does. */
static void ask(const char * name, void * function, size_t size) {
    void * address = ggml_backend_reg_get_proc_address(vulkan_reg, name);
    memcpy(function, &address, size);
}

void ranks_find_trio(void) {
    ask("ggml_backend_comm_init", &trio.init, sizeof(trio.init));
    ask("ggml_backend_comm_free", &trio.free, sizeof(trio.free));
    ask("ggml_backend_comm_allreduce_tensor", &trio.allreduce, sizeof(trio.allreduce));
}

int ranks_available(void) {
    const int n = (int) ggml_backend_reg_dev_count(vulkan_reg);
    return n < MAX_RANKS ? n : MAX_RANKS;
}

bool world_open(struct world * world, int n) {
    memset(world, 0, sizeof(*world));
    for (int r = 0; r < n; r++) {
        world->backend[r] = ggml_backend_dev_init(ggml_backend_reg_dev_get(vulkan_reg, r), NULL);
        if (world->backend[r] == NULL) {
            report_note("no backend on Vulkan device %d", r);
            world_close(world);
            return false;
        }
        world->n = r + 1;
    }
    return true;
}

void world_close(struct world * world) {
    for (int r = 0; r < world->n; r++) {
        ggml_backend_free(world->backend[r]);
    }
    memset(world, 0, sizeof(*world));
}

void world_synchronize(const struct world * world, int n) {
    for (int r = 0; r < n; r++) {
        ggml_backend_synchronize(world->backend[r]);
    }
}

ggml_backend_buffer_t rank_arena(const struct world * world, int rank) {
    static ggml_backend_buffer_t arenas[MAX_RANKS];
    if (arenas[rank] == NULL) {
        arenas[rank] = ggml_backend_alloc_buffer(world->backend[rank], ARENA_BYTES);
    }
    if (arenas[rank] == NULL) {
        report_note("rank %d: no memory", rank);
        abort();
    }
    return arenas[rank];
}

struct ggml_context * meta_context(size_t tensors, size_t graphs) {
    const struct ggml_init_params params = {
        .mem_size   = tensors * ggml_tensor_overhead() + graphs * ggml_graph_overhead(),
        .mem_buffer = NULL,
        .no_alloc   = true,
    };
    return ggml_init(params);
}

/* Activations are matrices; the sum must not care. */
static struct ggml_tensor * new_plain(struct ggml_context * ctx, int64_t elements) {
    if (elements > 0 && elements % 4 == 0) {
        return ggml_new_tensor_2d(ctx, GGML_TYPE_F32, elements / 4, 4);
    }
    return ggml_new_tensor_1d(ctx, GGML_TYPE_F32, elements);
}

bool operand_alloc(struct operand * op, ggml_backend_t backend, int64_t elements, enum binding binding, int rank) {
    memset(op, 0, sizeof(*op));
    op->ctx      = meta_context(3, 0);
    op->elements = elements;
    if (binding == BINDING_VIEW) {
        op->lead   = GUARD + 1 + 2 * rank; /* odd, and different on each rank */
        op->root   = ggml_new_tensor_1d(op->ctx, GGML_TYPE_F32, op->lead + elements + GUARD);
        op->tensor = ggml_view_1d(op->ctx, op->root, elements, op->lead * sizeof(float));
    } else {
        op->tensor = op->root = new_plain(op->ctx, elements);
        op->after  = ggml_new_tensor_1d(op->ctx, GGML_TYPE_F32, GUARD);
    }
    op->buffer = ggml_backend_alloc_ctx_tensors(op->ctx, backend);
    if (op->buffer == NULL) {
        report_note("rank %d: no memory for %lld elements", rank, (long long) elements);
        operand_free(op);
        return false;
    }
    return true;
}

void operand_free(struct operand * op) {
    if (op->buffer != NULL) {
        ggml_backend_buffer_free(op->buffer);
    }
    if (op->ctx != NULL) {
        ggml_free(op->ctx);
    }
    memset(op, 0, sizeof(*op));
}

static void make_guard(uint32_t guard[], int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        guard[i] = GUARD_BITS + (uint32_t) i;
    }
}

/* The guards of an operand: up to two stretches of a tensor. */
struct stretch {
    struct ggml_tensor * tensor;
    int64_t              offset; /* elements */
    int64_t              count;
};

static int guard_stretches(const struct operand * op, struct stretch s[2]) {
    if (op->after != NULL) {
        s[0] = (struct stretch) { op->after, 0, GUARD };
        return 1;
    }
    s[0] = (struct stretch) { op->root, 0, op->lead };
    s[1] = (struct stretch) { op->root, op->lead + op->elements, GUARD };
    return 2;
}

enum { MAX_GUARD = GUARD + 1 + 2 * MAX_RANKS };

void operand_write(struct operand * op, const float * values) {
    struct stretch s[2];
    const int      n = guard_stretches(op, s);
    for (int i = 0; i < n; i++) {
        uint32_t guard[MAX_GUARD];
        make_guard(guard, s[i].count);
        ggml_backend_tensor_set(s[i].tensor, guard, s[i].offset * sizeof(float), s[i].count * sizeof(float));
    }
    if (op->elements > 0) {
        ggml_backend_tensor_set(op->root, values, op->lead * sizeof(float), op->elements * sizeof(float));
    }
}

void operand_read(const struct operand * op, float * values) {
    if (op->elements > 0) {
        ggml_backend_tensor_get(op->root, values, op->lead * sizeof(float), op->elements * sizeof(float));
    }
}

bool operand_guards_intact(const struct operand * op) {
    struct stretch s[2];
    const int      n = guard_stretches(op, s);
    for (int i = 0; i < n; i++) {
        uint32_t wanted[MAX_GUARD], found[MAX_GUARD];
        make_guard(wanted, s[i].count);
        ggml_backend_tensor_get(s[i].tensor, found, s[i].offset * sizeof(float), s[i].count * sizeof(float));
        if (memcmp(wanted, found, s[i].count * sizeof(float)) != 0) {
            return false;
        }
    }
    return true;
}

void operand_set_compute(struct operand * op, bool compute) {
    if (compute) {
        op->tensor->flags |= GGML_TENSOR_FLAG_COMPUTE;
    } else {
        op->tensor->flags &= ~GGML_TENSOR_FLAG_COMPUTE;
    }
}
