/*
 * Words: how a CPU passes a slot's words on to inboxes. A word is 32 bits of
 * payload below the 32-bit number of its reduction. Vector loads take several
 * words at once; no CPU divides one within 8 aligned bytes, so that each word is
 * whole.
 *
 * One load a line is what counts: a line that a device is writing at that moment
 * changes owner once for it and not four times. In a kernel's wait, two H200,
 * 16 and 32 KiB: 13.1 and 16.5 us with AVX-512, 14.3 and 20.5 with SSE2.
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
