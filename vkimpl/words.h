/*
 * Words: how a CPU passes a slot's words on to inboxes. A word is 32 bits of
 * payload below the 32-bit number of its reduction. Vector loads take several
 * words at once; no CPU divides one within 8 aligned bytes, so that each word is
 * whole.
 *
 * Wide loads count: a line that a device is writing at that moment changes owner
 * anew for each. Reductions of 4, 16, 32 and 64 KiB between two H200, us: 10.4,
 * 13.8, 14.7 and 21.1 with AVX-512; 10.7, 14.2, 14.4 and 20.7 with AVX2; 11.1, 16.0,
 * 17.0 and 24.3 with SSE2.
 */
#ifndef VKCOMM_WORDS_H
#define VKCOMM_WORDS_H

#include <stdint.h>

enum { VKCOMM_WORDS_LINE = 8 }; /* words in a cache line, and in a write-combining buffer */

struct vkcomm_words {
    const char *name; /* of the instruction set */
    /* Passes words of seq on, from the first of slot to at words into each target,
     * until a word, or a word of a line, has another number, or all count have gone;
     * returns how many went. slot and targets + at are aligned to a line. Stores are
     * not in order, and may wait in write-combining buffers. */
    uint32_t (*pass)(const uint64_t *slot, uint64_t *const *targets, uint32_t at, unsigned target_count, uint32_t seq,
                     uint32_t count);
};

/* The i-th best of what this CPU can do; NULL: there are no more. */
const struct vkcomm_words *vkcomm_words(unsigned i);

#endif
