/*
 * The ranks of a communicator whose graphs are recorded side by side.
 *
 * llama.cpp's meta backend computes a part of the graph on every rank, one after
 * the other on one thread, and then reduces. To record and submit a part takes
 * the CPU some 55 us a rank, which is what limits generation, not the GPUs. Here
 * each rank but the last is given to a thread of its own; the call for the last
 * one runs on the caller's and returns when all of them are done. So whatever
 * follows finds the ranks' work submitted, as without us, and nothing else of
 * ggml runs in between: ggml_backend_meta_graph_compute calls for rank 0 to n-1
 * in turn, and for nothing else.
 *
 * Its own reduction, which it makes when ours returns false, computes on single
 * ranks and copies in between. So a team works only while the latest reduction
 * was ours, and after a round of calls that nothing has interrupted. A call out of
 * turn, a synchronisation and a reduction in the midst of a round wait for what
 * was given to the threads; then the next round is done without them.
 */
#ifndef VKCOMM_TEAM_H
#define VKCOMM_TEAM_H

#include "host_api.h"

struct vkcomm_team;

/* comm is the handle that allreduce is called with. threads false: only takes the
 * time. NULL: no memory or thread. */
struct vkcomm_team *vkcomm_team_start(const void *comm, struct ggml_backend *const *backends, unsigned world, bool threads);

/* Fills in what the team did. */
void vkcomm_team_stop(struct vkcomm_team *team, struct vkcomm_team_stats *stats);

/* compute(backend, graph), now, or for a rank of a team at its last rank's turn
 * the latest. */
int vkcomm_team_compute(struct ggml_backend *backend, struct ggml_cgraph *graph, vkcomm_ggml_backend_graph_compute_async_fn compute);

/* The host is about to synchronise the backend, or to reduce. */
void vkcomm_team_synchronizes(const struct ggml_backend *backend);
void vkcomm_team_reduces(const void *comm);

/* The host has been told that a reduction is done, or that it must do it. */
void vkcomm_team_reduced(const void *comm, bool done);

#endif
