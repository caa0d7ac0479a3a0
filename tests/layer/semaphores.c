/* Timeline semaphores that several devices share through OPAQUE_FD. Each device
 * has a timeline of its own in the driver; what a queue or the host brings one
 * of them to, a thread or the host's call brings the others to. */
#define _GNU_SOURCE
#include "layer.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* What is shared. Never freed: a descriptor may outlive all semaphores. */
struct payload {
    uint64_t         value;
    unsigned         vendor; /* of the traits: other drivers cannot import it */
    struct member *  members;
    struct payload * next;
    uint64_t         id; /* is written into the descriptor's file */
};

struct member {
    struct device *  device;
    VkSemaphore      handle;
    struct payload * payload;
    struct member *  next;  /* of the payload */
    bool             watched, stop;
    pthread_t        watcher;
    uint64_t         value; /* that it is known to have */
};

static const uint64_t    magic = 0x76b3a5c0de7173ull;
static pthread_mutex_t   lock  = PTHREAD_MUTEX_INITIALIZER;
static struct payload *  payloads;

static struct member * find(const struct device * device, VkSemaphore handle) {
    for (struct payload * p = payloads; p != NULL; p = p->next) {
        for (struct member * m = p->members; m != NULL; m = m->next) {
            if (m->device == device && m->handle == handle) {
                return m;
            }
        }
    }
    return NULL;
}

static void join(struct payload * payload, struct device * device, VkSemaphore handle) {
    struct member * m = calloc(1, sizeof(*m));
    if (m == NULL) {
        layer_fail("out of memory");
    }
    *m = (struct member) { .device = device, .handle = handle, .payload = payload, .next = payload->members };
    payload->members = m;
}

/* Brings every member to at least value; the lock is held. from has it already. */
static void reach(struct payload * payload, uint64_t value, struct member * from) {
    if (from != NULL && from->value < value) {
        from->value = value;
    }
    payload->value = value > payload->value ? value : payload->value;
    for (struct member * m = payload->members; m != NULL; m = m->next) {
        const VkSemaphoreSignalInfo info = { .sType     = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO,
                                             .semaphore = m->handle,
                                             .value     = payload->value };
        if (m->value < info.value) {
            m->value = info.value;
            m->device->driver.SignalSemaphore(m->device->handle, &info); /* fails on a lost device: as it does there */
        }
    }
}

/* Waits for what queues signal. */
static void * watch(void * argument) {
    struct member *       m      = argument;
    const struct device * device = m->device;
    for (;;) {
        pthread_mutex_lock(&lock);
        uint64_t                  value = m->value + 1;
        const bool                stop  = m->stop;
        const VkSemaphoreWaitInfo info  = { .sType          = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                            .semaphoreCount = 1,
                                            .pSemaphores    = &m->handle,
                                            .pValues        = &value };
        pthread_mutex_unlock(&lock);
        if (stop || device->driver.WaitSemaphores(device->handle, &info, UINT64_MAX) != VK_SUCCESS ||
            device->driver.GetSemaphoreCounterValue(device->handle, m->handle, &value) != VK_SUCCESS) {
            return NULL;
        }
        pthread_mutex_lock(&lock);
        if (!m->stop) {
            reach(m->payload, value, m);
        }
        pthread_mutex_unlock(&lock);
    }
}

void semaphores_submitted(struct device * device, uint32_t count, const VkSubmitInfo * infos) {
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t s = 0; s < infos[i].signalSemaphoreCount; s++) {
            struct member * m = find(device, infos[i].pSignalSemaphores[s]);
            if (m != NULL && !m->watched) {
                m->watched = pthread_create(&m->watcher, NULL, watch, m) == 0;
                if (!m->watched) {
                    layer_fail("no thread for a shared timeline");
                }
            }
        }
    }
    pthread_mutex_unlock(&lock);
}

/* ---- commands ---------------------------------------------------------------------------- */

static VKAPI_ATTR VkResult VKAPI_CALL create(VkDevice handle, const VkSemaphoreCreateInfo * info,
                                             const VkAllocationCallbacks * allocator, VkSemaphore * out) {
    struct device *                    device = device_of(KEY(handle));
    const VkExportSemaphoreCreateInfo * export = chain_find(info->pNext, VK_STRUCTURE_TYPE_EXPORT_SEMAPHORE_CREATE_INFO);
    const VkSemaphoreTypeCreateInfo *  type   = chain_find(info->pNext, VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO);
    if (export == NULL || export->handleTypes == 0) {
        const VkResult result = device->driver.CreateSemaphore(handle, info, allocator, out);
        if (result == VK_SUCCESS && (type == NULL || type->semaphoreType == VK_SEMAPHORE_TYPE_BINARY)) {
            queues_semaphore_made(device, *out);
        }
        return result;
    }
    if (export->handleTypes != VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT || type == NULL ||
        type->semaphoreType != VK_SEMAPHORE_TYPE_TIMELINE) {
        return VK_ERROR_INVALID_EXTERNAL_HANDLE;
    }
    /* lavapipe 22.3 refuses a semaphore that is to be exported. */
    VkSemaphoreTypeCreateInfo bare_type = *type;
    VkSemaphoreCreateInfo     bare      = *info;
    bare_type.pNext                     = NULL;
    bare.pNext                          = &bare_type;
    const VkResult result               = device->driver.CreateSemaphore(handle, &bare, allocator, out);
    if (result != VK_SUCCESS) {
        return result;
    }
    static uint64_t  ids;
    struct payload * payload = calloc(1, sizeof(*payload));
    if (payload == NULL) {
        layer_fail("out of memory");
    }
    pthread_mutex_lock(&lock);
    *payload = (struct payload) { .value = type->initialValue, .vendor = traits_of(device->index) & VENDORS,
                                  .next = payloads, .id = ++ids };
    payloads = payload;
    join(payload, device, *out);
    payload->members->value = type->initialValue;
    pthread_mutex_unlock(&lock);
    return VK_SUCCESS;
}

static VKAPI_ATTR void VKAPI_CALL destroy(VkDevice handle, VkSemaphore semaphore, const VkAllocationCallbacks * allocator) {
    struct device * device = device_of(KEY(handle));
    pthread_mutex_lock(&lock);
    struct member * m = find(device, semaphore);
    if (m != NULL) {
        struct member ** at = &m->payload->members;
        while (*at != m) {
            at = &(*at)->next;
        }
        *at     = m->next;
        m->stop = true;
    }
    pthread_mutex_unlock(&lock);
    if (m != NULL && m->watched) {
        VkSemaphoreSignalInfo wake = { .sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO, .semaphore = semaphore };
        device->driver.GetSemaphoreCounterValue(handle, semaphore, &wake.value);
        wake.value = (wake.value > m->value ? wake.value : m->value) + 1;
        device->driver.SignalSemaphore(handle, &wake);
        pthread_join(m->watcher, NULL);
    }
    free(m);
    queues_semaphore_gone(device, semaphore);
    device->driver.DestroySemaphore(handle, semaphore, allocator);
}

static VKAPI_ATTR VkResult VKAPI_CALL signal_value(VkDevice handle, const VkSemaphoreSignalInfo * info) {
    struct device * device = device_of(KEY(handle));
    pthread_mutex_lock(&lock);
    struct member * m = find(device, info->semaphore);
    if (m != NULL) {
        reach(m->payload, info->value, NULL);
    }
    pthread_mutex_unlock(&lock);
    return m != NULL ? VK_SUCCESS : device->driver.SignalSemaphore(handle, info);
}

static VKAPI_ATTR VkResult VKAPI_CALL get_fd(VkDevice handle, const VkSemaphoreGetFdInfoKHR * info, int * fd) {
    pthread_mutex_lock(&lock);
    const struct member * m = find(device_of(KEY(handle)), info->semaphore);
    const uint64_t  text[2] = { magic, m != NULL ? m->payload->id : 0 };
    pthread_mutex_unlock(&lock);
    if (m == NULL || info->handleType != VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT) {
        layer_fail("vkGetSemaphoreFdKHR of a semaphore that was not made for it");
    }
    *fd = memfd_create("vkcomm-timeline", MFD_CLOEXEC);
    return *fd >= 0 && write(*fd, text, sizeof(text)) == sizeof(text) ? VK_SUCCESS : VK_ERROR_TOO_MANY_OBJECTS;
}

static VKAPI_ATTR VkResult VKAPI_CALL import_fd(VkDevice handle, const VkImportSemaphoreFdInfoKHR * info) {
    struct device *  device  = device_of(KEY(handle));
    uint64_t         text[2] = { 0 };
    struct payload * payload = NULL;
    if (info->handleType == VK_EXTERNAL_SEMAPHORE_HANDLE_TYPE_OPAQUE_FD_BIT &&
        pread(info->fd, text, sizeof(text), 0) == sizeof(text) && text[0] == magic) {
        pthread_mutex_lock(&lock);
        for (payload = payloads; payload != NULL && payload->id != text[1];) {
            payload = payload->next;
        }
        if (payload != NULL && payload->vendor != (traits_of(device->index) & VENDORS)) {
            payload = NULL;
        }
        if (payload != NULL) {
            if (!(traits_of(device->index) & WRONG_TIMELINE)) {
                join(payload, device, info->semaphore);
                reach(payload, payload->value, NULL);
            }
            close(info->fd);
        }
        pthread_mutex_unlock(&lock);
    }
    return payload != NULL ? VK_SUCCESS : VK_ERROR_INVALID_EXTERNAL_HANDLE;
}

void semaphores_take(struct device * device) {
    if (traits_of(device->index) & (TIMELINE_FD | TRANSFER_QUEUE)) {
        device->below.CreateSemaphore  = create;
        device->below.DestroySemaphore = destroy;
    }
    if (traits_of(device->index) & TIMELINE_FD) {
        device->below.SignalSemaphore      = signal_value;
        device->below.GetSemaphoreFdKHR    = get_fd;
        device->below.ImportSemaphoreFdKHR = import_fd;
    }
}
