/*
 * submit-test - plugin/submit.c by itself, over a vkQueueSubmit that notes what
 * it is given: which command buffers go out, in which order, in how many calls.
 */
#define _GNU_SOURCE
#include "../../plugin/submit.h"
#include "../harness/report.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Handles are pointers here; none is ever followed. */
static VkDevice        device_of(uintptr_t n) { return (VkDevice) (n * 0x1000); }
static VkQueue         queue_of(uintptr_t n) { return (VkQueue) (n * 0x100); }
static VkCommandBuffer command(uintptr_t n) { return (VkCommandBuffer) n; }
static const VkFence   fence = (VkFence) (uintptr_t) 0x77;

static struct vkcomm_device * devices[3]; /* 1 and 2; queues 1 and 3 are of device 1, 2 of device 2 */

/* ---- the driver ------------------------------------------------------------------------ */

static char     noted[1024]; /* "1:a+b,c! ": queue 1, an info with a and b, one with c, a fence */
static VkResult answer = VK_SUCCESS;
static bool     unlocked;

static VKAPI_ATTR VkResult VKAPI_CALL note(VkQueue queue, uint32_t count, const VkSubmitInfo * infos, VkFence f) {
    const uintptr_t q    = (uintptr_t) queue / 0x100;
    char *          text = noted + strlen(noted);
    unlocked |= pthread_mutex_trylock(&devices[q == 2 ? 2 : 1]->submit_lock) != EBUSY;
    text += sprintf(text, "%u:", (unsigned) q);
    for (uint32_t i = 0; i < count; i++) {
        text += sprintf(text, "%s%s", i ? "," : "", infos[i].waitSemaphoreCount ? "w" : "");
        for (uint32_t c = 0; c < infos[i].commandBufferCount; c++) {
            text += sprintf(text, "%s%c", c ? "+" : "", (char) (uintptr_t) infos[i].pCommandBuffers[c]);
        }
    }
    sprintf(text, "%s ", f != VK_NULL_HANDLE ? "!" : "");
    return answer;
}

static void expect(const char * name, const char * calls) {
    report_start("submit/%s", name);
    if (strcmp(noted, calls) != 0) {
        report_note("calls '%s', expected '%s'", noted, calls);
    }
    report_result(strcmp(noted, calls) == 0 && !unlocked);
    noted[0] = 0;
}

static void check(const char * name, bool ok) {
    report_start("submit/%s", name);
    report_result(ok);
}

/* ---- calls ------------------------------------------------------------------------------- */

static int failures;

static void failed(void * context, VkResult result) {
    failures += context == &failures && result == answer;
}

static void hold(uintptr_t queue, char name) {
    vkcomm_hold(queue_of(queue), command((uintptr_t) name), failed, &failures);
}

/* One VkSubmitInfo of the host for each letter; a small one waits for nothing, a
 * capital for one semaphore. */
static VkResult submit(uintptr_t queue, const char * letters, VkFence f) {
    VkCommandBuffer commands[16];
    VkSubmitInfo    infos[16];
    const uint32_t  n = (uint32_t) strlen(letters);
    for (uint32_t i = 0; i < n; i++) {
        commands[i] = command((uintptr_t) letters[i]);
        infos[i]    = (VkSubmitInfo) { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1,
                                       .pCommandBuffers = &commands[i], .waitSemaphoreCount = letters[i] < 'a' };
    }
    return vkcomm_submit(queue_of(queue), n, infos, f);
}

static void together(void) {
    submit(1, "a", VK_NULL_HANDLE);
    expect("nothing held back", "1:a ");
    hold(1, 'x');
    expect("holding submits nothing", "");
    submit(1, "a", VK_NULL_HANDLE);
    expect("in the same call and before the host's", "1:x+a ");
    submit(1, "a", VK_NULL_HANDLE);
    expect("once", "1:a ");
    hold(1, 'x');
    hold(1, 'y');
    submit(1, "ab", VK_NULL_HANDLE);
    expect("in the order of holding", "1:x+y+a,b ");
    hold(1, 'x');
    submit(1, "Ab", VK_NULL_HANDLE);
    expect("not behind the host's wait", "1:x,wA,b ");
    hold(1, 'x');
    submit(1, "abcdefghi", VK_NULL_HANDLE);
    expect("more than go into one call", "1:x 1:a,b,c,d,e,f,g,h,i ");
    hold(1, 'x');
    const VkDeviceGroupSubmitInfo group = { .sType = VK_STRUCTURE_TYPE_DEVICE_GROUP_SUBMIT_INFO };
    VkCommandBuffer               c = command('a');
    VkSubmitInfo info = { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .pNext = &group, .commandBufferCount = 1, .pCommandBuffers = &c };
    vkcomm_submit(queue_of(1), 1, &info, VK_NULL_HANDLE);
    expect("not into an info whose extensions count its command buffers", "1:x,a ");
    for (char n = '0'; n <= '8'; n++) {
        hold(1, n);
    }
    expect("no more than there is room for", "1:0+1+2+3+4+5+6+7 ");
    submit(1, "", fence);
    expect("with a submission that is only a fence", "1:8! ");
}

static void apart(void) {
    hold(1, 'x');
    hold(2, 'y');
    submit(1, "a", VK_NULL_HANDLE);
    expect("another device's stays", "1:x+a ");
    hold(1, 'z');
    submit(1, "a", fence);
    expect("before a fence all devices' goes", "2:y 1:z+a! ");
    hold(1, 'x');
    submit(3, "a", VK_NULL_HANDLE);
    expect("before another queue of the device", "1:x 3:a ");
    hold(1, 'x');
    hold(3, 'y');
    expect("one queue of a device holds at a time", "1:x ");
    vkcomm_flush_held();
    expect("flushed", "3:y ");
    vkcomm_flush_held();
    expect("flushed once", "");
    hold(1, 'x');
    hold(2, 'y');
    vkcomm_submit_lock(devices[2]);
    expect("before a wait on one device all devices' goes", "1:x 2:y ");
    check("whose lock is then taken", pthread_mutex_trylock(&devices[2]->submit_lock) == EBUSY);
    vkcomm_submit_unlock(devices[2]);
}

static void failing(void) {
    answer = VK_ERROR_DEVICE_LOST;
    check("the driver's result is handed on", submit(1, "a", VK_NULL_HANDLE) == VK_ERROR_DEVICE_LOST && failures == 0);
    hold(1, 'x');
    submit(1, "a", VK_NULL_HANDLE);
    check("the holder is told, together", failures == 1);
    hold(1, 'x');
    vkcomm_flush_held();
    check("the holder is told, alone", failures == 2);
    vkcomm_hold(queue_of(9), command('x'), failed, &failures);
    check("the holder is told, of no known queue", failures == 3 && vkcomm_submit(queue_of(9), 0, NULL, VK_NULL_HANDLE) == answer);
    answer   = VK_SUCCESS;
    noted[0] = 0;
}

/* ---- threads ------------------------------------------------------------------------------- */

enum { THREADS = 4, ROUNDS = 20000 };

static unsigned long arrived, disordered;
static uintptr_t     newest[THREADS + 1];

/* Under the device's lock. A command buffer is thread << 32 | number. */
static VKAPI_ATTR VkResult VKAPI_CALL count(VkQueue queue, uint32_t n, const VkSubmitInfo * infos, VkFence f) {
    (void) queue, (void) f;
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t c = 0; c < infos[i].commandBufferCount; c++) {
            const uintptr_t name = (uintptr_t) infos[i].pCommandBuffers[c], thread = name >> 32;
            disordered += name <= newest[thread];
            newest[thread] = name;
            arrived++;
        }
    }
    return VK_SUCCESS;
}

static void * hammer(void * argument) {
    const uintptr_t thread = (uintptr_t) argument << 32;
    for (uintptr_t i = 1; i <= ROUNDS; i++) {
        VkCommandBuffer    c    = command(thread | i);
        const VkSubmitInfo info = { .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &c };
        if (i % 3 != 0) {
            vkcomm_hold(queue_of(1), c, failed, &failures);
        } else {
            vkcomm_submit(queue_of(1), 1, &info, i % 7 ? VK_NULL_HANDLE : fence);
        }
        if (i % 1000 == 0) {
            vkcomm_flush_held();
        }
    }
    return NULL;
}

static void threads(void) {
    pthread_t thread[THREADS];
    devices[1]->calls.queue_submit = count;
    for (uintptr_t t = 0; t < THREADS; t++) {
        pthread_create(&thread[t], NULL, hammer, (void *) (t + 1));
    }
    for (int t = 0; t < THREADS; t++) {
        pthread_join(thread[t], NULL);
    }
    vkcomm_flush_held();
    check("threads/everything goes out", arrived == (unsigned long) THREADS * ROUNDS);
    check("threads/in each thread's order", disordered == 0);
}

int main(void) {
    report_watchdog(60);
    for (uintptr_t d = 1; d <= 2; d++) {
        const struct vkcomm_device_info  info  = { .device = device_of(d) };
        const struct vkcomm_device_calls calls = { .queue_submit = note };
        devices[d] = vkcomm_registry_add_device(&info, &calls);
        vkcomm_registry_add_queue(devices[d], queue_of(d), 0);
    }
    vkcomm_registry_add_queue(devices[1], queue_of(3), 1);
    together();
    apart();
    failing();
    threads();
    vkcomm_submit_forget(devices[1]);
    vkcomm_registry_remove_device(device_of(1));
    check("a queue of no known device", vkcomm_submit(queue_of(1), 0, NULL, VK_NULL_HANDLE) == VK_ERROR_DEVICE_LOST);
    hold(2, 'x');
    vkcomm_flush_held();
    expect("a forgotten device leaves the others be", "2:x ");
    return report_finish();
}
