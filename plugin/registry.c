#include "registry.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEVICES = 64, MAX_QUEUES = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void vkcomm_registry_forked(void) {
    lock = (pthread_mutex_t) PTHREAD_MUTEX_INITIALIZER;
}

/* ---- devices and queues --------------------------------------------------- */

/* Fixed arrays, so that the submit path can look a queue up without the lock:
 * an entry is published by its handle, and unpublished before it is reused. */
static struct vkcomm_device *devices[MAX_DEVICES];

static struct queue_entry {
    _Atomic(VkQueue)                queue;
    _Atomic(struct vkcomm_device *) device;
    uint32_t                        family;
} queues[MAX_QUEUES];
static atomic_uint queue_count;

struct vkcomm_device *vkcomm_registry_add_device(const struct vkcomm_device_info *info,
                                                 const struct vkcomm_device_calls *calls) {
    struct vkcomm_device *device = calloc(1, sizeof(*device));
    if (!device) {
        return NULL;
    }
    device->info  = *info;
    device->calls = *calls;
    pthread_mutex_init(&device->submit_lock, NULL);

    pthread_mutex_lock(&lock);
    unsigned i = 0;
    while (i < MAX_DEVICES && devices[i]) {
        i++;
    }
    if (i < MAX_DEVICES) {
        devices[i] = device;
    }
    pthread_mutex_unlock(&lock);
    if (i == MAX_DEVICES) {
        free(device);
        return NULL;
    }
    return device;
}

struct vkcomm_device *vkcomm_registry_device(VkDevice handle) {
    struct vkcomm_device *found = NULL;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < MAX_DEVICES && !found; i++) {
        if (devices[i] && devices[i]->info.device == handle) {
            found = devices[i];
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void vkcomm_registry_add_queue(struct vkcomm_device *device, VkQueue queue, uint32_t family) {
    pthread_mutex_lock(&lock);
    unsigned n = atomic_load(&queue_count), i = 0, slot = n;
    for (; i < n && atomic_load(&queues[i].queue) != queue; i++) {
        if (!atomic_load(&queues[i].queue)) {
            slot = i;
        }
    }
    if (i == n && slot < MAX_QUEUES) {
        queues[slot].family = family;
        atomic_store(&queues[slot].device, device);
        atomic_store(&queues[slot].queue, queue);
        if (slot == n) {
            atomic_store(&queue_count, n + 1);
        }
    }
    pthread_mutex_unlock(&lock);
}

static struct queue_entry *find_queue(VkQueue queue) {
    unsigned n = atomic_load_explicit(&queue_count, memory_order_acquire);
    for (unsigned i = 0; i < n; i++) {
        if (atomic_load_explicit(&queues[i].queue, memory_order_acquire) == queue) {
            return &queues[i];
        }
    }
    return NULL;
}

struct vkcomm_device *vkcomm_registry_queue_device(VkQueue queue) {
    struct queue_entry *entry = find_queue(queue);
    return entry ? atomic_load(&entry->device) : NULL;
}

bool vkcomm_registry_queue_info(VkQueue queue, struct vkcomm_queue_info *out) {
    struct queue_entry *entry = queue ? find_queue(queue) : NULL;
    if (!entry) {
        return false;
    }
    *out = (struct vkcomm_queue_info){
        .queue = queue, .device = atomic_load(&entry->device)->info.device, .family = entry->family };
    return true;
}

bool vkcomm_registry_second_queue(VkQueue queue, struct vkcomm_queue_info *out) {
    struct queue_entry *first = find_queue(queue), *second = NULL;
    for (unsigned i = 0, n = atomic_load(&queue_count); first && i < n; i++) {
        struct queue_entry *entry = &queues[i];
        bool candidate = entry != first && atomic_load(&entry->queue) && atomic_load(&entry->device) == atomic_load(&first->device);
        if (candidate && (!second || second->family == first->family)) {
            second = entry;
        }
    }
    return second && vkcomm_registry_queue_info(atomic_load(&second->queue), out);
}

/* ---- ggml buffers ---------------------------------------------------------- */

/* Open addressing, at most half full. Freed keys leave a tombstone. */
#define TOMBSTONE ((struct ggml_backend_buffer *) (uintptr_t) 1)

static struct binding {
    struct ggml_backend_buffer *key;
    struct vkcomm_buffer_info   info;
} *bindings;
static size_t   binding_capacity, binding_used; /* used counts tombstones too */
static uint64_t generation;

static size_t hash_pointer(const void *p) {
    uint64_t x = (uint64_t) (uintptr_t) p;
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15u; /* Fibonacci hashing: 2^64 / golden ratio */
    return (size_t) (x >> 20);
}

static struct binding *find_binding(const struct ggml_backend_buffer *key) {
    for (size_t i = hash_pointer(key), left = binding_capacity; left; i++, left--) {
        struct binding *b = &bindings[i & (binding_capacity - 1)];
        if (b->key == key) {
            return b;
        }
        if (!b->key) {
            return NULL;
        }
    }
    return NULL;
}

static void insert_binding(const struct binding *entry) {
    size_t i = hash_pointer(entry->key);
    while (bindings[i & (binding_capacity - 1)].key) {
        i++;
    }
    bindings[i & (binding_capacity - 1)] = *entry;
    binding_used++;
}

/* Makes room for one more: rehashes without the tombstones, in a table of four
 * times the live entries. */
static bool reserve_binding(void) {
    if (2 * (binding_used + 1) <= binding_capacity) {
        return true;
    }
    size_t live = 0;
    for (size_t i = 0; i < binding_capacity; i++) {
        live += bindings[i].key && bindings[i].key != TOMBSTONE;
    }
    size_t capacity = 64;
    while (capacity < 4 * (live + 1)) {
        capacity *= 2;
    }
    struct binding *old = bindings, *fresh = calloc(capacity, sizeof(*fresh));
    size_t          old_capacity = binding_capacity;
    if (!fresh) {
        return false;
    }
    bindings         = fresh;
    binding_capacity = capacity;
    binding_used     = 0;
    for (size_t i = 0; i < old_capacity; i++) {
        if (old[i].key && old[i].key != TOMBSTONE) {
            insert_binding(&old[i]);
        }
    }
    free(old);
    return true;
}

void vkcomm_registry_bind(struct ggml_backend_buffer *buffer, const struct vkcomm_buffer_info *info) {
    pthread_mutex_lock(&lock);
    struct binding *known = find_binding(buffer);
    struct binding  entry = { .key = buffer, .info = *info };
    entry.info.generation = ++generation;
    if (known) {
        *known = entry;
    } else if (reserve_binding()) {
        insert_binding(&entry);
    }
    pthread_mutex_unlock(&lock);
}

void vkcomm_registry_unbind(struct ggml_backend_buffer *buffer) {
    pthread_mutex_lock(&lock);
    struct binding *known = find_binding(buffer);
    if (known) {
        known->key = TOMBSTONE;
    }
    pthread_mutex_unlock(&lock);
}

bool vkcomm_registry_buffer(struct ggml_backend_buffer *buffer, struct vkcomm_buffer_info *out) {
    pthread_mutex_lock(&lock);
    struct binding *known = buffer ? find_binding(buffer) : NULL;
    if (known) {
        *out = known->info;
    }
    pthread_mutex_unlock(&lock);
    return known != NULL;
}

static void forget_buffers(VkDevice device, VkBuffer buffer /* NULL: all */) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < binding_capacity; i++) {
        struct binding *b = &bindings[i];
        if (b->key && b->key != TOMBSTONE && b->info.device == device && (!buffer || b->info.buffer == buffer)) {
            b->key = TOMBSTONE;
        }
    }
    pthread_mutex_unlock(&lock);
}

void vkcomm_registry_remove_device(VkDevice handle) {
    forget_buffers(handle, VK_NULL_HANDLE);
    struct vkcomm_device *device = NULL;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < MAX_DEVICES; i++) {
        if (devices[i] && devices[i]->info.device == handle) {
            device     = devices[i];
            devices[i] = NULL;
        }
    }
    for (unsigned i = 0, n = atomic_load(&queue_count); device && i < n; i++) {
        if (atomic_load(&queues[i].device) == device) {
            atomic_store(&queues[i].queue, VK_NULL_HANDLE);
            atomic_store(&queues[i].device, NULL);
        }
    }
    pthread_mutex_unlock(&lock);
    if (device) {
        pthread_mutex_destroy(&device->submit_lock);
        free(device);
    }
}

/* ---- what this thread does -------------------------------------------------- */

static __thread struct {
    struct vkcomm_capture *capture;
    VkQueue                last_submit;
    uint64_t               fences;
} self;

void vkcomm_capture_begin(struct vkcomm_capture *capture) {
    *capture     = (struct vkcomm_capture){ .outer = self.capture };
    self.capture = capture;
}

void vkcomm_capture_end(struct vkcomm_capture *capture) {
    self.capture = capture->outer;
}

void vkcomm_registry_buffer_created(VkDevice device, VkBuffer buffer, uint64_t size) {
    if (self.capture) {
        self.capture->created = (struct vkcomm_buffer_info){ .device = device, .buffer = buffer, .size = size };
        self.capture->alive++;
    }
}

void vkcomm_registry_buffer_destroyed(VkDevice device, VkBuffer buffer) {
    /* ggml destroys and creates again when no memory of the first choice is
     * left: only the survivor is the allocation. */
    if (self.capture && self.capture->created.device == device && self.capture->created.buffer == buffer) {
        self.capture->created.buffer = VK_NULL_HANDLE;
        self.capture->alive--;
    }
    forget_buffers(device, buffer);
}

void vkcomm_registry_submitted(VkQueue queue, bool work, bool fence) {
    if (work) {
        self.last_submit = queue;
    }
    self.fences += fence;
}

VkQueue vkcomm_registry_last_submit(void) {
    VkQueue queue    = self.last_submit;
    self.last_submit = VK_NULL_HANDLE;
    return queue;
}

uint64_t vkcomm_registry_fence_count(void) {
    return self.fences;
}

/* ---- synchronisation that covers our work ------------------------------------ */

static struct vkcomm_sync *syncs;
static atomic_uint         sync_count;

void vkcomm_sync_add(struct vkcomm_sync *entry) {
    pthread_mutex_lock(&lock);
    entry->next = syncs;
    syncs       = entry;
    atomic_fetch_add(&sync_count, 1);
    pthread_mutex_unlock(&lock);
}

void vkcomm_sync_remove(struct vkcomm_sync *entry) {
    pthread_mutex_lock(&lock);
    for (struct vkcomm_sync **p = &syncs; *p; p = &(*p)->next) {
        if (*p == entry) {
            *p = entry->next;
            atomic_fetch_sub(&sync_count, 1);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

void vkcomm_sync_done(struct ggml_backend *backend, bool covered) {
    if (atomic_load_explicit(&sync_count, memory_order_relaxed) == 0) {
        return;
    }
    for (;;) {
        void (*synchronized)(void *, bool) = NULL;
        void *context                      = NULL;
        pthread_mutex_lock(&lock);
        for (struct vkcomm_sync *s = syncs; s && !synchronized; s = s->next) {
            if (s->backend == backend && __atomic_exchange_n(&s->pending, 0, __ATOMIC_ACQ_REL)) {
                synchronized = s->synchronized;
                context      = s->context;
            }
        }
        pthread_mutex_unlock(&lock);
        if (!synchronized) {
            return;
        }
        synchronized(context, covered);
    }
}
