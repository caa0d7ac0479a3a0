#define _GNU_SOURCE
#include "proxy.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "spin.h"

/* A value that is about to be reached is polled for this long, and then with
 * naps in between. Only a thread that has napped for a while blocks in the
 * driver: with a blocking wait right behind the polls, two H200 took 110 us for
 * a reduction at best and 2.6 ms in the median when many were queued. */
#define SPIN_NS 10000
#define NAP_NS 10000
#define NAPS_END_NS 5000000

/* A blocking wait ends this often to see whether it should stop; a late peer
 * (model load, debugger) is simply waited for again. */
#define WAIT_NS 100000000ull

struct vkcomm_proxy {
    pthread_t               thread;
    const struct vkcomm_vk *vk;
    VkSemaphore             source;
    unsigned                peer_count;
    vkcomm_proxy_failed     failed;
    void                   *context;
    _Atomic uint64_t        expected;
    atomic_bool             stop, asleep;
    pthread_mutex_t         lock;
    pthread_cond_t          wake;
    struct {
        const struct vkcomm_vk *vk;
        VkSemaphore             mirror;
    } peers[];
};

/* Sleeps until there is a value above carried to wait for; false: stop. asleep
 * is raised before expected is read and expected is stored before asleep is
 * read, so that no wake-up is lost. */
static bool sleep_until_expected(struct vkcomm_proxy *p, uint64_t carried) {
    if (atomic_load(&p->expected) <= carried && !atomic_load(&p->stop)) {
        pthread_mutex_lock(&p->lock);
        atomic_store(&p->asleep, true);
        while (atomic_load(&p->expected) <= carried && !atomic_load(&p->stop)) {
            pthread_cond_wait(&p->wake, &p->lock);
        }
        atomic_store(&p->asleep, false);
        pthread_mutex_unlock(&p->lock);
    }
    return !atomic_load(&p->stop);
}

/* The source's value once it exceeds carried; carried itself when stopped. */
static uint64_t wait_beyond(struct vkcomm_proxy *p, uint64_t carried) {
    uint64_t value = 0, start = now_ns();
    for (;;) {
        VkResult result = vkcomm_vk_value(p->vk, p->source, &value);
        if (result == VK_SUCCESS && value > carried) {
            return value;
        }
        uint64_t waited = now_ns() - start;
        if (result == VK_SUCCESS && waited >= NAPS_END_NS) {
            result = vkcomm_vk_wait(p->vk, p->source, carried + 1, WAIT_NS);
        } else if (result == VK_SUCCESS && waited >= SPIN_NS) {
            const struct timespec nap = { 0, NAP_NS };
            nanosleep(&nap, NULL);
        }
        if (result != VK_SUCCESS && result != VK_TIMEOUT) {
            p->failed(p->context, "waiting for a rank's timeline", result);
        }
        if (atomic_load(&p->stop)) {
            return carried;
        }
    }
}

static void *run(void *argument) {
    struct vkcomm_proxy *p       = argument;
    uint64_t             carried = 0;
    prctl(PR_SET_TIMERSLACK, 1000ul); /* ns; naps are 50 us longer by default */
    while (sleep_until_expected(p, carried)) {
        uint64_t value = wait_beyond(p, carried);
        if (value == carried) {
            break;
        }
        for (unsigned i = 0; i < p->peer_count; i++) {
            VkResult result = vkcomm_vk_signal(p->peers[i].vk, p->peers[i].mirror, value);
            if (result != VK_SUCCESS) {
                p->failed(p->context, "signalling a peer", result);
            }
        }
        carried = value;
    }
    return NULL;
}

struct vkcomm_proxy *vkcomm_proxy_start(unsigned rank, unsigned queue, const struct vkcomm_vk *vk, VkSemaphore source,
                                        unsigned peer_count, const struct vkcomm_vk *const *peers,
                                        const VkSemaphore *mirrors, vkcomm_proxy_failed failed, void *context) {
    struct vkcomm_proxy *p = calloc(1, sizeof(*p) + peer_count * sizeof(p->peers[0]));
    if (!p) {
        return NULL;
    }
    p->vk         = vk;
    p->source     = source;
    p->peer_count = peer_count;
    p->failed     = failed;
    p->context    = context;
    for (unsigned i = 0; i < peer_count; i++) {
        p->peers[i].vk     = peers[i];
        p->peers[i].mirror = mirrors[i];
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    if (pthread_create(&p->thread, NULL, run, p) != 0) {
        free(p);
        return NULL;
    }
    char name[16]; /* the kernel's limit */
    snprintf(name, sizeof(name), "vkcomm-proxy%u%s", rank % 16, queue ? "t" : "");
    pthread_setname_np(p->thread, name);
    return p;
}

void vkcomm_proxy_expect(struct vkcomm_proxy *p, uint64_t value) {
    atomic_store(&p->expected, value);
    if (atomic_load(&p->asleep)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
}

void vkcomm_proxy_stop(struct vkcomm_proxy *p) {
    atomic_store(&p->stop, true);
    pthread_mutex_lock(&p->lock);
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
    free(p);
}
