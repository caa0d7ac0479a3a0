/*
 * Relay: the host side of the in-kernel handshake (shaders/relay_f32.comp). One
 * thread a rank, or two for larger tensors, copies what the rank's kernel
 * publishes in host memory into the peers' inboxes, which lie in device-local
 * memory that the host can write.
 *
 * Why a slot or an inbox may be written again, with two halves used in turn
 * (r, p ranks; k the number of a reduction, the same on all):
 *   - p's inbox for k+2: its words come from r's kernel k+2, which runs after
 *     r's kernel k+1 ended, which needed p's words of k+1, which p's kernel k+1
 *     published after p's kernel k ended. So p is done reading its half of k.
 *   - r's slot for k+2: r's kernel k+2 runs after its kernel k+1 ended, which
 *     needed every p's words of k+1, published after p's kernel k ended, which
 *     needed all of r's words of k. So the threads have read r's half of k.
 *   - A rank that runs ahead: at most to the end of its k+1, as above.
 *   - A rank without data publishes +0.0 like any other, so all of this holds.
 * Two communicators share nothing: slots, inboxes, counters and threads are each
 * one's own, and a collective's submissions are made under one process-wide lock.
 *
 * A thread sleeps when no reduction has been outstanding for a while, and then
 * costs no CPU time.
 */
#ifndef VKCOMM_RELAY_H
#define VKCOMM_RELAY_H

#include <stdbool.h>
#include <stdint.h>

enum {
    VKCOMM_RELAY_ELEMENTS = 65536, /* most of one reduction; CAPACITY in the kernel */
    VKCOMM_RELAY_GROUPS   = 32,    /* workgroups of every launch, resident at once on any GPU */
    VKCOMM_RELAY_PENDING  = 1024,  /* reductions in flight */
    VKCOMM_RELAY_LANES    = 2,     /* threads a rank, at most */
};

/* Bytes of a rank's slot, in host memory: two halves and the failure word. */
#define VKCOMM_RELAY_SLOT_BYTES (2u * VKCOMM_RELAY_ELEMENTS * 8u + 4096u)

/* Bytes of a rank's inbox, in its own memory: two halves a peer, and behind
 * them the workgroups' counters. */
#define VKCOMM_RELAY_INBOX_BYTES(world) (((world) - 1u) * 2u * VKCOMM_RELAY_ELEMENTS * 8u)
#define VKCOMM_RELAY_STATE_BYTES (VKCOMM_RELAY_GROUPS * 8u)

struct vkcomm_relay;

/* Whom the relay works for. */
struct vkcomm_relay_host {
    /* Called on a relay thread when a rank's kernel gave up waiting, once armed.
     * Must not return. */
    void (*failed)(void *context);
    /* Called on a relay thread now and then while words are awaited for longer
     * than a kernel takes: what is held back should go to the queues. */
    void (*late)(void *context);
    void *context;
    /* How long a thread polls for the next reduction before it sleeps. To wake it
     * costs the host's thread some 10 us a reduction (two H200). */
    uint64_t linger_ns;
};

/* slots[r] and inboxes[r] are mapped and zero; lanes, at most VKCOMM_RELAY_LANES,
 * is how many threads each rank has. NULL: no thread or memory. */
struct vkcomm_relay *vkcomm_relay_start(unsigned world, unsigned lanes, uint64_t *const *slots, uint64_t *const *inboxes,
                                        const struct vkcomm_relay_host *host);

/* From now on a kernel that gives up is a failure. Until then, while the trial
 * finds out whether kernels can wait at all, its thread just ends. */
void vkcomm_relay_arm(struct vkcomm_relay *relay);

/* Room for one more reduction in flight, and numbers left to give it. */
bool vkcomm_relay_ready(const struct vkcomm_relay *relay);

/* The next reduction, of so many elements, is about to be submitted. */
void vkcomm_relay_expect(struct vkcomm_relay *relay, uint32_t elements);

/* Whether some kernel has reported that it gave up. */
bool vkcomm_relay_has_failed(const struct vkcomm_relay *relay);

/* CPU seconds that the threads have used. */
double vkcomm_relay_cpu_seconds(const struct vkcomm_relay *relay);

void vkcomm_relay_stop(struct vkcomm_relay *relay);

#endif
