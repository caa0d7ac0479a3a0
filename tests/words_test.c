/* How CPUs pass a slot's words on (vkimpl/words.c): every way that this CPU has, against the rule itself. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../vkimpl/words.h"

enum { LINE = VKCOMM_WORDS_LINE, MOST = 5 * LINE, TARGETS = 3, SEQ = 0x01020307 };

static uint64_t *slot, *targets[TARGETS];

static uint64_t word(uint32_t seq, uint32_t i) { return (uint64_t) seq << 32 | (i * 2654435761u ^ SEQ); }

/* How many words may go: those before the first that is missing; where that lies in a whole line, those before the line. */
static uint32_t may_go(uint32_t count, uint32_t missing) {
    if (missing >= count) {
        return count;
    }
    const uint32_t line = missing / LINE * LINE;
    return line + LINE <= count ? line : missing;
}

/* A slot of count words without the one at missing, and what is in the targets afterwards, up to their very ends.
 * A way that goes word by word may pass on a line's first words. */
static bool right(const struct vkcomm_words *words, uint32_t at, uint32_t count, uint32_t missing, uint32_t other) {
    for (uint32_t i = 0; i < count; i++) {
        slot[i] = word(i == missing ? other : SEQ, i);
    }
    for (int t = 0; t < TARGETS; t++) {
        memset(targets[t], 0xee, (at + MOST) * sizeof(uint64_t));
    }
    const uint32_t went  = words->pass(slot, targets, at, TARGETS, SEQ, count);
    const uint32_t least = may_go(count, missing);
    bool           ok    = went >= least && went <= (missing < count ? missing : count);
    for (uint32_t i = 0; i < at + MOST; i++) {
        const bool     passed = i >= at && i < at + went;
        const uint64_t want   = passed ? word(SEQ, i - at) : 0xeeeeeeeeeeeeeeeeu;
        for (int t = 0; t < TARGETS; t++) {
            ok = ok && targets[t][i] == want;
        }
    }
    return ok;
}

static bool all_right(const struct vkcomm_words *words) {
    /* Numbers that differ in one bit of each byte: all of the upper half is compared. */
    static const uint32_t others[] = { 0, SEQ - 1, SEQ ^ 0x80000000, SEQ ^ 0x00400000, SEQ ^ 0x00000100, ~(uint32_t) SEQ };
    for (uint32_t at = 0; at <= 2 * LINE; at += LINE) {
        for (uint32_t count = 0; count <= MOST; count++) {
            for (uint32_t missing = 0; missing <= count; missing++) {
                for (size_t o = 0; o < sizeof(others) / sizeof(others[0]); o++) {
                    if (!right(words, at, count, missing, others[o])) {
                        printf("# %u words, %u missing (%#x), at %u\n", count, missing, others[o], at);
                        return false;
                    }
                }
            }
        }
    }
    return true;
}

int main(void) {
    unsigned ways = 0, failures = 0;
    slot = aligned_alloc(64, MOST * sizeof(uint64_t));
    for (int t = 0; t < TARGETS; t++) {
        targets[t] = aligned_alloc(64, (2 * LINE + MOST) * sizeof(uint64_t));
    }
    for (const struct vkcomm_words *words; (words = vkcomm_words(ways)) != NULL; ways++) {
        const bool ok = all_right(words);
        printf("%s %s\n", ok ? "ok" : "not ok", words->name);
        failures += !ok;
    }
    printf("%u passed, %u failed\n", ways - failures, failures);
    for (int t = 0; t < TARGETS; t++) {
        free(targets[t]);
    }
    free(slot);
    return ways == 0 || failures > 0;
}
