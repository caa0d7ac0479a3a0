/*
 * The Go side's view of the host: the table that the preloaded side attached,
 * ggml's functions, and the two things that need both on every reduction or at
 * every start: resolving tensors and probing backends.
 */
#ifndef VKCOMM_HOST_H
#define VKCOMM_HOST_H

#include "host_api.h"

enum { VKCOMM_MAX_RANKS = 16 };

/* Set by vkcomm_attach(), before the first call into Go. */
extern const struct vkcomm_host_api *vkcomm_host;
extern struct vkcomm_ggml_api        vkcomm_ggml;

/* Resolves ggml's functions. NULL, or the first required one that is missing. */
const char *vkcomm_ggml_load(void);

/* Bytes that ggml_tensor_overhead() gives with the layout of ggml_comm.h. */
size_t vkcomm_expected_overhead(void);

/* ---- probing ------------------------------------------------------------------- */

struct vkcomm_rank {
    struct ggml_backend      *backend;
    const char               *name, *description; /* ggml's, valid while the device is */
    struct vkcomm_device_info device;
    struct vkcomm_queue_info  queue; /* where the backend's graphs go */
    struct vkcomm_queue_info  transfer; /* a second queue; handle NULL: none */
};

/* Finds out on which VkDevice and queue a backend computes, by allocating from
 * it and running a graph of one node. False: text says why it cannot take part. */
bool vkcomm_probe(struct ggml_backend *backend, struct vkcomm_rank *out, char *text, size_t size);

/* ---- resolving ------------------------------------------------------------------ */

/* Why a reduction is left to the host. */
enum vkcomm_reason {
    VKCOMM_ACCEPTED = 0,
    VKCOMM_EMPTY, /* no elements: done, and true */
    VKCOMM_NULL_TENSOR,
    VKCOMM_TYPE,
    VKCOMM_SHAPE,
    VKCOMM_NOT_CONTIGUOUS,
    VKCOMM_NO_BUFFER,
    VKCOMM_UNKNOWN_BUFFER,
    VKCOMM_OTHER_DEVICE,
    VKCOMM_OUT_OF_BOUNDS,
    VKCOMM_REASONS
};

struct vkcomm_operand {
    uint64_t generation; /* of the buffer; with offset it identifies the memory */
    uint64_t offset;     /* bytes */
    VkBuffer buffer;
    uint64_t size; /* of the buffer, bytes */
};

/* C state of one communicator; its address is the handle that ggml keeps. */
struct vkcomm_comm {
    uint32_t              index; /* in the Go side's table */
    uint32_t              world;
    VkDevice              devices[VKCOMM_MAX_RANKS];
    struct vkcomm_sync    sync[VKCOMM_MAX_RANKS];
    /* of the latest vkcomm_resolve() */
    int64_t               elements;
    uint32_t              zero_ranks; /* bit r: no data, counts as +0.0 */
    struct vkcomm_operand operands[VKCOMM_MAX_RANKS];
};

/* Looks the ranks' tensors up. Touches none of them; with VKCOMM_ACCEPTED the
 * operands are filled in and every rank is marked as having pending work. */
enum vkcomm_reason vkcomm_resolve(struct vkcomm_comm *comm, struct ggml_tensor **tensors);

#endif
