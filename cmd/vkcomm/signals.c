#include "signals.h"

#include <signal.h>
#include <stdbool.h>

static bool ignored[65];

/* Before Go's runtime starts, which puts handlers of its own everywhere. */
__attribute__((constructor)) static void remember_ignored(void) {
    for (int s = 1; s <= 64; s++) {
        struct sigaction now;
        ignored[s] = sigaction(s, 0, &now) == 0 && now.sa_handler == SIG_IGN;
    }
}

void vkcomm_restore_ignored(void) {
    for (int s = 1; s <= 64; s++) {
        if (ignored[s]) {
            signal(s, SIG_IGN);
        }
    }
}
