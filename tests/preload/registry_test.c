/*
 * registry-test - plugin/registry.c by itself: no ggml, no Vulkan, invented
 * handles.
 */
#define _GNU_SOURCE
#include "../../plugin/registry.h"
#include "../harness/report.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

/* Handles are pointers here; none is ever followed. */
static VkDevice device_of(uintptr_t n) { return (VkDevice) (n * 0x1000); }
static VkBuffer buffer_of(uintptr_t n) { return (VkBuffer) (n * 0x40); }
static VkQueue  queue_of(uintptr_t n) { return (VkQueue) (n * 0x100); }

static struct ggml_backend_buffer * key_of(uintptr_t n) {
    return (struct ggml_backend_buffer *) (0x7f0000000000 + n * 48);
}

static void check(const char * name, bool ok) {
    report_start("registry/%s", name);
    report_result(ok);
}

static struct vkcomm_device * add_device(uintptr_t n) {
    const struct vkcomm_device_info  info  = { .device = device_of(n), .enabled = (uint32_t) n };
    const struct vkcomm_device_calls calls = { 0 };
    return vkcomm_registry_add_device(&info, &calls);
}

static void bind(uintptr_t key, uintptr_t device, uintptr_t buffer) {
    const struct vkcomm_buffer_info info = { .device = device_of(device), .buffer = buffer_of(buffer), .size = 100 };
    vkcomm_registry_bind(key_of(key), &info);
}

static bool known(uintptr_t key) {
    struct vkcomm_buffer_info info;
    return vkcomm_registry_buffer(key_of(key), &info);
}

static uint64_t generation_of(uintptr_t key) {
    struct vkcomm_buffer_info info = { .generation = 0 };
    vkcomm_registry_buffer(key_of(key), &info);
    return info.generation;
}

/* ---- capture ------------------------------------------------------------------------ */

/* What the hook takes for the allocation: one survivor that has a name. */
static VkBuffer survivor(const struct vkcomm_capture * c) {
    return c->alive == 1 ? c->created.buffer : VK_NULL_HANDLE;
}

static void capture_nests(void) {
    struct vkcomm_capture meta, rank[2];
    vkcomm_capture_begin(&meta);
    for (uintptr_t r = 0; r < 2; r++) {
        vkcomm_capture_begin(&rank[r]);
        vkcomm_registry_buffer_created(device_of(r + 1), buffer_of(r + 10), 4096 * (r + 1));
        vkcomm_capture_end(&rank[r]);
    }
    vkcomm_capture_end(&meta);
    check("capture/a rank's buffer counts for the rank",
          survivor(&rank[0]) == buffer_of(10) && survivor(&rank[1]) == buffer_of(11) &&
              rank[1].created.device == device_of(2) && rank[1].created.size == 8192);
    check("capture/and not for the meta buffer around it", meta.alive == 0 && meta.created.buffer == VK_NULL_HANDLE);
    vkcomm_registry_buffer_created(device_of(1), buffer_of(12), 1);
    check("capture/nothing counts after its end", meta.alive == 0 && rank[1].alive == 1);
}

static void capture_between(void) {
    struct vkcomm_capture outer, inner;
    vkcomm_capture_begin(&outer);
    vkcomm_registry_buffer_created(device_of(1), buffer_of(1), 1);
    vkcomm_capture_begin(&inner);
    vkcomm_registry_buffer_created(device_of(1), buffer_of(2), 1);
    vkcomm_capture_end(&inner);
    vkcomm_capture_end(&outer);
    check("capture/an inner one leaves the outer one's buffer",
          survivor(&outer) == buffer_of(1) && survivor(&inner) == buffer_of(2));
}

/* ggml takes another memory type when the first is full: the buffer is made
 * again, often with the handle that has just been freed. */
static void capture_retries(void) {
    struct vkcomm_capture c;
    vkcomm_capture_begin(&c);
    vkcomm_registry_buffer_created(device_of(1), buffer_of(1), 64);
    vkcomm_registry_buffer_destroyed(device_of(1), buffer_of(1));
    check("capture/a destroyed buffer is none", c.alive == 0 && survivor(&c) == VK_NULL_HANDLE);
    vkcomm_registry_buffer_created(device_of(1), buffer_of(1), 128);
    check("capture/made again under the same handle", survivor(&c) == buffer_of(1) && c.created.size == 128);
    vkcomm_registry_buffer_destroyed(device_of(1), buffer_of(1));
    vkcomm_registry_buffer_created(device_of(1), buffer_of(2), 256);
    check("capture/made again under another", survivor(&c) == buffer_of(2) && c.created.size == 256);
    vkcomm_registry_buffer_destroyed(device_of(2), buffer_of(2));
    check("capture/the same handle of another device is another buffer", survivor(&c) == buffer_of(2));
    vkcomm_capture_end(&c);
}

static void capture_several(void) {
    struct vkcomm_capture c;
    vkcomm_capture_begin(&c);
    vkcomm_registry_buffer_created(device_of(1), buffer_of(1), 1);
    vkcomm_registry_buffer_created(device_of(1), buffer_of(2), 1);
    check("capture/two buffers are no allocation of ours", survivor(&c) == VK_NULL_HANDLE);
    vkcomm_registry_buffer_destroyed(device_of(1), buffer_of(1)); /* the older one: it cannot be told which is left */
    check("capture/of two, the destroyed one is never taken", survivor(&c) != buffer_of(1));
    vkcomm_capture_end(&c);

    vkcomm_capture_begin(&c);
    vkcomm_registry_buffer_created(device_of(1), buffer_of(1), 1);
    vkcomm_registry_buffer_created(device_of(1), buffer_of(2), 1);
    vkcomm_registry_buffer_destroyed(device_of(1), buffer_of(2));
    check("capture/nor is it when it was the newer", survivor(&c) != buffer_of(2));
    vkcomm_capture_end(&c);
}

/* ---- bindings ------------------------------------------------------------------------- */

static void generations(void) {
    bind(1, 1, 1);
    const uint64_t first = generation_of(1);
    vkcomm_registry_unbind(key_of(1));
    check("bindings/unbound is unknown", !known(1));
    bind(1, 1, 1);
    const uint64_t second = generation_of(1);
    check("bindings/the same two handles again are another generation", first != 0 && second > first);
    bind(1, 1, 2);
    check("bindings/bound over", generation_of(1) > second);
    vkcomm_registry_buffer_destroyed(device_of(2), buffer_of(2));
    check("bindings/another device's buffer of that handle may go", known(1));
    vkcomm_registry_buffer_destroyed(device_of(1), buffer_of(2));
    check("bindings/its own buffer may not", !known(1));
    struct vkcomm_buffer_info info;
    check("bindings/NULL is unknown", !vkcomm_registry_buffer(NULL, &info));
    vkcomm_registry_unbind(key_of(1));
    vkcomm_registry_unbind(NULL);
    check("bindings/unbinding what is not bound", !known(1));
}

static void device_removal(void) {
    add_device(1);
    struct vkcomm_device * two = add_device(2);
    vkcomm_registry_add_queue(vkcomm_registry_device(device_of(1)), queue_of(1), 0);
    vkcomm_registry_add_queue(two, queue_of(2), 0);
    for (uintptr_t k = 0; k < 200; k++) {
        bind(k, 1 + k % 2, k + 1);
    }
    vkcomm_registry_remove_device(device_of(1));
    bool gone = true, kept = true;
    for (uintptr_t k = 0; k < 200; k++) {
        gone = gone && (k % 2 == 1 || !known(k));
        kept = kept && (k % 2 == 0 || known(k));
    }
    struct vkcomm_queue_info info;
    check("devices/removal forgets the device's buffers", gone);
    check("devices/and no other's", kept);
    check("devices/the device and its queue are unknown",
          vkcomm_registry_device(device_of(1)) == NULL && vkcomm_registry_queue_device(queue_of(1)) == NULL &&
              !vkcomm_registry_queue_info(queue_of(1), &info));
    check("devices/the other device and its queue are known",
          vkcomm_registry_device(device_of(2)) == two && vkcomm_registry_queue_device(queue_of(2)) == two);

    /* drivers hand the same addresses out again */
    struct vkcomm_device * again = add_device(1);
    vkcomm_registry_add_queue(again, queue_of(1), 3);
    check("devices/the same handles again are the new device",
          vkcomm_registry_queue_info(queue_of(1), &info) && info.family == 3 && info.device == device_of(1) &&
              vkcomm_registry_queue_device(queue_of(1)) == again && !known(0));
    vkcomm_registry_remove_device(device_of(1));
    vkcomm_registry_remove_device(device_of(2));
    check("devices/removing what is not there", vkcomm_registry_device(device_of(2)) == NULL);
    vkcomm_registry_remove_device(device_of(2));
}

/* Hosts may ask for the same queue as often as they like. */
static void repeated_queue(void) {
    struct vkcomm_device * device = add_device(1);
    for (int i = 0; i < 1000; i++) {
        vkcomm_registry_add_queue(device, queue_of(1), 0);
    }
    vkcomm_registry_add_queue(device, queue_of(2), 0);
    check("devices/one queue asked for often", vkcomm_registry_queue_device(queue_of(2)) == device);
    vkcomm_registry_remove_device(device_of(1));
}

/* More than the arrays hold: unknown, and nothing worse. */
static void overflow(void) {
    enum { MANY = 600 };
    int devices = 0, queues = 0;
    for (uintptr_t n = 1; n <= MANY; n++) {
        struct vkcomm_device * device = add_device(n);
        devices += device != NULL;
        if (device != NULL) {
            for (uintptr_t q = 0; q < 10; q++) {
                vkcomm_registry_add_queue(device, queue_of(10 * n + q), 0);
            }
        }
    }
    for (uintptr_t q = 1; q < 10 * (MANY + 1); q++) {
        struct vkcomm_device * device = vkcomm_registry_queue_device(queue_of(q));
        queues += device != NULL && device->info.device == device_of(q / 10);
    }
    report_note("%d devices and %d queues were kept", devices, queues);
    check("devices/too many", devices >= 16 && devices < MANY && queues >= 64 && queues <= 10 * devices);
    for (uintptr_t n = 1; n <= MANY; n++) {
        vkcomm_registry_remove_device(device_of(n));
    }
    check("devices/all gone", vkcomm_registry_queue_device(queue_of(10)) == NULL);
}

/* ---- against a model ---------------------------------------------------------------------- */

enum { KEYS = 3000, STEPS = 100000, BUFFERS = 500, DEVICES = 3 };

static struct {
    uintptr_t device, buffer; /* 0: not bound */
    uint64_t  generation;
} model[KEYS];

static uint32_t next_random(uint64_t * state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) (*state >> 33);
}

static bool agrees(uintptr_t key) {
    struct vkcomm_buffer_info info;
    const bool                found = vkcomm_registry_buffer(key_of(key), &info);
    return found == (model[key].buffer != 0) &&
           (!found || (info.device == device_of(model[key].device) && info.buffer == buffer_of(model[key].buffer) &&
                       info.generation == model[key].generation));
}

static bool all_agree(void) {
    for (uintptr_t k = 0; k < KEYS; k++) {
        if (!agrees(k)) {
            report_note("key %d differs from the model", (int) k);
            return false;
        }
    }
    return true;
}

static void model_forget(uintptr_t device, uintptr_t buffer) {
    for (uintptr_t k = 0; k < KEYS; k++) {
        if (model[k].device == device && (buffer == 0 || model[k].buffer == buffer)) {
            model[k].buffer = model[k].device = 0;
        }
    }
}

/* Phases of growth and of shrinking, so that the table is rebuilt at several
 * sizes, full of tombstones at times. */
static bool model_step(int step, uint64_t * state, uint64_t * newest) {
    const uintptr_t key    = next_random(state) % KEYS;
    const uintptr_t device = 1 + next_random(state) % DEVICES, buffer = 1 + next_random(state) % BUFFERS;
    const uint32_t  dice   = next_random(state) % 1000;
    const uint32_t  binds  = step / 10000 % 2 == 0 ? 700 : 300;
    if (dice < binds) {
        bind(key, device, buffer);
        const uint64_t generation = generation_of(key);
        const bool     newer      = generation > *newest;
        *newest           = generation;
        model[key].device = device, model[key].buffer = buffer, model[key].generation = generation;
        return newer && agrees(key);
    }
    if (dice < 997) {
        vkcomm_registry_unbind(key_of(key));
        model[key].device = model[key].buffer = 0;
    } else if (dice < 999) {
        vkcomm_registry_buffer_destroyed(device_of(device), buffer_of(buffer));
        model_forget(device, buffer);
    } else if (step % 7 == 0) {
        vkcomm_registry_remove_device(device_of(device));
        model_forget(device, 0);
    }
    return agrees(key) && agrees((key + 1) % KEYS);
}

static void random_steps(void) {
    uint64_t state = 1, newest = 0;
    bool     ok    = true;
    bind(0, 9, 1);
    newest = generation_of(0);
    vkcomm_registry_unbind(key_of(0));
    for (int step = 0; step < STEPS && ok; step++) {
        ok = model_step(step, &state, &newest) && (step % 1000 != 0 || all_agree());
        if (!ok) {
            report_note("step %d", step);
        }
    }
    check("model/100000 random steps", ok && all_agree());
    for (uintptr_t k = 0; k < KEYS; k++) {
        vkcomm_registry_unbind(key_of(k));
        model[k].buffer = model[k].device = 0;
    }
    check("model/and empty again", all_agree());
}

/* ---- what a thread submits ------------------------------------------------------------------ */

static void * other_thread(void * seen) {
    *(bool *) seen = vkcomm_registry_last_submit() != VK_NULL_HANDLE || vkcomm_registry_fence_count() != 0;
    return NULL;
}

static void submissions(void) {
    const uint64_t fences = vkcomm_registry_fence_count();
    vkcomm_registry_last_submit();
    vkcomm_registry_submitted(queue_of(1), true, false);
    vkcomm_registry_submitted(queue_of(2), false, true); /* as ggml's synchronize does */
    bool      seen;
    pthread_t thread;
    pthread_create(&thread, NULL, other_thread, &seen);
    pthread_join(thread, NULL);
    check("submissions/the latest queue with work", vkcomm_registry_last_submit() == queue_of(1));
    check("submissions/is told once", vkcomm_registry_last_submit() == VK_NULL_HANDLE);
    check("submissions/fences are counted", vkcomm_registry_fence_count() == fences + 1);
    check("submissions/each thread has its own", !seen);
}

/* ---- what the host's synchronisation covers ------------------------------------------------------- */

static struct ggml_backend * const backends[2] = { (struct ggml_backend *) 0x10, (struct ggml_backend *) 0x20 };
static struct { int drained, covered; } calls[3];
static struct vkcomm_sync entries[3];

static void synchronized(void * context, bool covered) {
    const int i = (int) (uintptr_t) context;
    calls[i].covered += covered;
    calls[i].drained += !covered;
}

/* Takes itself out, as a communicator that goes while it is being called. */
static void synchronized_and_remove(void * context, bool covered) {
    synchronized(context, covered);
    vkcomm_sync_remove(&entries[2]);
}

static bool drained_are(int a, int b, int c) {
    return calls[0].drained == a && calls[1].drained == b && calls[2].drained == c;
}

static void synchronisations(void) {
    for (uintptr_t i = 0; i < 3; i++) {
        entries[i] = (struct vkcomm_sync) { .backend = backends[i == 1], .context = (void *) i,
                                            .synchronized = i == 2 ? synchronized_and_remove : synchronized };
        vkcomm_sync_add(&entries[i]);
    }
    vkcomm_sync_done(backends[0], false);
    check("sync/nothing is pending", drained_are(0, 0, 0));
    entries[0].pending = entries[1].pending = 1;
    vkcomm_sync_done(backends[0], false);
    check("sync/this backend's alone", drained_are(1, 0, 0) && entries[0].pending == 0 && entries[1].pending == 1);
    vkcomm_sync_done(backends[0], false);
    check("sync/once", drained_are(1, 0, 0) && calls[0].covered == 0);
    entries[0].pending = 1;
    vkcomm_sync_done(backends[0], true);
    vkcomm_sync_done(backends[0], false);
    check("sync/told when the host's own wait covered it", drained_are(1, 0, 0) && calls[0].covered == 1);
    entries[0].pending = entries[2].pending = 1;
    vkcomm_sync_done(backends[0], false);
    check("sync/several of one backend, one of which removes itself", drained_are(2, 0, 1));
    entries[2].pending = 1;
    vkcomm_sync_done(backends[0], false);
    check("sync/a removed one is not called", drained_are(2, 0, 1));
    vkcomm_sync_remove(&entries[0]);
    vkcomm_sync_remove(&entries[1]);
    vkcomm_sync_done(backends[1], false);
    check("sync/none is left", drained_are(2, 0, 1));
}

/* ---- threads --------------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 100000 };

/* Each with keys, a device and a queue of its own, all in the same tables. */
static void * hammer(void * argument) {
    const uintptr_t t     = (uintptr_t) argument;
    uint64_t        state = t, newest = 0;
    for (int i = 0; i < ROUNDS; i++) {
        const uintptr_t key = 1000 * t + next_random(&state) % 200, buffer = 1 + next_random(&state) % 50;
        if (i % 500 == 0) {
            vkcomm_registry_add_queue(add_device(t), queue_of(t), (uint32_t) t);
        }
        struct vkcomm_capture capture;
        vkcomm_capture_begin(&capture);
        vkcomm_registry_buffer_created(device_of(t), buffer_of(buffer), 1);
        vkcomm_capture_end(&capture);
        vkcomm_registry_bind(key_of(key), &capture.created);
        const uint64_t           generation = generation_of(key);
        struct vkcomm_queue_info info;
        if (survivor(&capture) != buffer_of(buffer) || generation <= newest ||
            !vkcomm_registry_queue_info(queue_of(t), &info) || info.device != device_of(t)) {
            return "wrong";
        }
        newest = generation;
        if (i % 3 != 0) {
            vkcomm_registry_unbind(key_of(key));
        }
        if (i % 500 == 499) {
            vkcomm_registry_remove_device(device_of(t));
            if (known(key) || vkcomm_registry_queue_device(queue_of(t)) != NULL) {
                return "not forgotten";
            }
        }
    }
    return NULL;
}

static void threads(void) {
    pthread_t thread[THREADS];
    bool      ok = true;
    for (uintptr_t t = 0; t < THREADS; t++) {
        pthread_create(&thread[t], NULL, hammer, (void *) (t + 1));
    }
    for (int t = 0; t < THREADS; t++) {
        void * wrong;
        pthread_join(thread[t], &wrong);
        if (wrong != NULL) {
            report_note("thread %d: %s", t, (const char *) wrong);
            ok = false;
        }
    }
    check("threads/each finds its own", ok);
}

int main(void) {
    report_watchdog(20);
    capture_nests();
    capture_between();
    capture_retries();
    capture_several();
    generations();
    device_removal();
    repeated_queue();
    overflow();
    random_steps();
    submissions();
    synchronisations();
    threads();
    return report_finish();
}
