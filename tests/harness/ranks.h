/* Backends, communicators and the tensors of each rank. */
#ifndef HARNESS_RANKS_H
#define HARNESS_RANKS_H

#include "ggml.h"
#include "ggml-alloc.h"
#include "ggml-backend.h"

#include <stdbool.h>
#include <stdint.h>

enum { MAX_RANKS = 8 };

/* ---- the host's view of the plugin --------------------------------------- */

struct trio {
    ggml_backend_comm_init_t             init;
    ggml_backend_comm_free_t             free;
    ggml_backend_comm_allreduce_tensor_t allreduce;
};

extern struct trio        trio;
extern ggml_backend_reg_t vulkan_reg;

/* Loads the backends of a directory and finds the Vulkan registry. */
bool ranks_load(const char * libdir);

/* Asks the Vulkan registry for the trio, as llama.cpp's meta backend does. */
void ranks_find_trio(void);

/* Vulkan devices visible. */
int ranks_available(void);

/* ---- a world: one backend per rank --------------------------------------- */

struct world {
    int            n;
    ggml_backend_t backend[MAX_RANKS];
};

bool world_open(struct world * world, int n); /* devices 0..n-1 */
void world_close(struct world * world);
void world_synchronize(const struct world * world, int n);

/* ---- an operand: one rank's tensor between guards ------------------------ */

enum binding {
    BINDING_PLAIN, /* a tensor of its own, at the start of its buffer */
    BINDING_VIEW,  /* a view, an odd number of floats into a bigger tensor */
};

struct operand {
    struct ggml_context * ctx;
    ggml_backend_buffer_t buffer;
    struct ggml_tensor *  tensor; /* what is reduced */
    struct ggml_tensor *  root;   /* the allocation it lies in; itself if plain */
    struct ggml_tensor *  after;  /* guard behind a plain tensor, else NULL */
    int64_t               elements;
    int64_t               lead; /* guard elements before a view */
};

bool operand_alloc(struct operand * op, ggml_backend_t backend, int64_t elements, enum binding binding, int rank);
void operand_free(struct operand * op);

/* Writes elements floats, and the guards round them. */
void operand_write(struct operand * op, const float * values);
void operand_read(const struct operand * op, float * values);
bool operand_guards_intact(const struct operand * op);

/* Sets or clears the flag that says "this rank computed the tensor". */
void operand_set_compute(struct operand * op, bool compute);

/*
 * Memory of a rank for graphs that ggml runs: ARENA_BYTES, allocated once, used
 * by one case at a time, never freed. ggml reuses descriptor sets and leaves
 * bindings that a pipeline has no use for as they were; lavapipe follows them
 * all the same, so a buffer that was in a graph must outlive all graphs.
 */
enum { ARENA_BYTES = 16 << 20 };
ggml_backend_buffer_t rank_arena(const struct world * world, int rank);

/* A context that describes tensors without allocating them. */
struct ggml_context * meta_context(size_t tensors, size_t graphs);

#endif
