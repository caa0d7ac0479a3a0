/* Counts the plugin's calls, and makes chosen ones fail. */
#define _GNU_SOURCE
#include "layer.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char * const names[COMMAND_COUNT] = {
#define NAME(name, parameters, arguments) "vk" #name,
    COMMANDS(NAME)
#undef NAME
};

static struct {
    int      fail_command; /* -1: none */
    unsigned fail_call;
    VkResult fail_result;
    unsigned slow_device, slow_ms, lost_device, lost_submit, stall_submit; /* 0 ms, submit 0: none */
    FILE *   counts;
} setup = { .fail_command = -1 };

static unsigned calls[COMMAND_COUNT];
static unsigned submits; /* of the plugin, on the device to lose */
static bool     lost;
static bool     dead[MAX_NAMED]; /* by the trait "dies" */

static _Noreturn void misuse(const char * variable, const char * value) {
    fprintf(stderr, "vkcomm_layer: %s=%s makes no sense\n", variable, value);
    abort(); /* a fault that is never injected would pass for one survived */
}

static void parse_fail(const char * text) {
    char name[64];
    int  result;
    if (sscanf(text, "%63[^:]:%u:%d", name, &setup.fail_call, &result) != 3 || setup.fail_call == 0) {
        misuse("VKCOMM_LAYER_FAIL", text);
    }
    setup.fail_result = (VkResult) result;
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(name, names[i]) == 0) {
            setup.fail_command = i;
            return;
        }
    }
    misuse("VKCOMM_LAYER_FAIL", text);
}

void fault_setup(void) {
    static bool done;
    if (done) {
        return;
    }
    done               = true;
    const char * fail  = getenv("VKCOMM_LAYER_FAIL");
    const char * slow  = getenv("VKCOMM_LAYER_DELAY");
    const char * lose  = getenv("VKCOMM_LAYER_LOSE");
    const char * stall = getenv("VKCOMM_LAYER_STALL");
    const char * count = getenv("VKCOMM_LAYER_COUNT");
    if (fail != NULL) {
        parse_fail(fail);
    }
    if (slow != NULL && sscanf(slow, "%u:%u", &setup.slow_device, &setup.slow_ms) != 2) {
        misuse("VKCOMM_LAYER_DELAY", slow);
    }
    if (lose != NULL && sscanf(lose, "%u:%u", &setup.lost_device, &setup.lost_submit) != 2) {
        misuse("VKCOMM_LAYER_LOSE", lose);
    }
    if (stall != NULL && sscanf(stall, "%u", &setup.stall_submit) != 1) {
        misuse("VKCOMM_LAYER_STALL", stall);
    }
    if (count != NULL && (setup.counts = fopen(count, "w")) == NULL) {
        misuse("VKCOMM_LAYER_COUNT", count);
    }
    void * frames[2];
    backtrace(frames, 2); /* the first call loads libgcc: not in the midst of things */
}

enum caller { SOMEBODY, PLUGIN, GGML };

static enum caller caller(void) {
    enum { DEPTH = 24 };
    void *    frames[DEPTH];
    const int n = backtrace(frames, DEPTH);
    for (int i = 1; i < n; i++) {
        Dl_info info;
        if (dladdr(frames[i], &info) == 0 || info.dli_fname == NULL) {
            continue;
        }
        if (strstr(info.dli_fname, "/libggml-vk-comm.so") != NULL) {
            return PLUGIN;
        }
        if (strstr(info.dli_fname, "/libggml-vulkan") != NULL || strstr(info.dli_fname, "/libggml.vulkan") != NULL) {
            return GGML;
        }
    }
    return SOMEBODY;
}

bool fault_called_by_plugin(void) {
    return caller() == PLUGIN;
}

bool fault_called_by_ggml(void) {
    return caller() == GGML;
}

static bool say(enum command command, unsigned call, unsigned device, VkResult result) {
    fprintf(stderr, "vkcomm_layer: %s of device %u, call %u, gives %d\n", names[command], device, call, result);
    return true;
}

/* What can tell that the device is gone. */
static bool shows_loss(enum command command) {
    return command == COMMAND_QueueSubmit || command == COMMAND_WaitSemaphores || command == COMMAND_GetSemaphoreCounterValue ||
           command == COMMAND_MapMemory;
}

bool fault_injected(enum command command, unsigned device, VkResult * result) {
    const bool ours = fault_called_by_plugin();
    if (command == COMMAND_QueueSubmit && setup.slow_ms > 0 && device == setup.slow_device) {
        static bool said;
        if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED)) {
            fprintf(stderr, "vkcomm_layer: device %u is slow\n", device);
        }
        nanosleep(&(struct timespec) { setup.slow_ms / 1000, setup.slow_ms % 1000 * 1000000l }, NULL);
    }
    const unsigned call = ours ? __atomic_add_fetch(&calls[command], 1, __ATOMIC_RELAXED) : 0;
    if (setup.lost_submit > 0 && device == setup.lost_device) {
        const bool reached = ours && command == COMMAND_QueueSubmit &&
                             __atomic_add_fetch(&submits, 1, __ATOMIC_RELAXED) == setup.lost_submit;
        if (reached) {
            say(command, call, device, VK_ERROR_DEVICE_LOST); /* first: another thread may end the process */
            __atomic_store_n(&lost, true, __ATOMIC_RELEASE);
        }
        if (__atomic_load_n(&lost, __ATOMIC_ACQUIRE) && shows_loss(command)) {
            *result = VK_ERROR_DEVICE_LOST;
            return true;
        }
    }
    if (__atomic_load_n(&dead[device], __ATOMIC_ACQUIRE) && shows_loss(command)) {
        *result = VK_ERROR_DEVICE_LOST;
        return true;
    }
    if ((int) command == setup.fail_command && ours && call == setup.fail_call) {
        *result = setup.fail_result;
        return say(command, call, device, *result);
    }
    return false;
}

/* Whether the plugin's submission is one from which on nothing is signalled. */
static bool stalls(const struct device * device) {
    static unsigned submissions;
    const unsigned  n = __atomic_add_fetch(&submissions, 1, __ATOMIC_RELAXED);
    if (setup.stall_submit == 0) {
        layer_fail("a device stalls, VKCOMM_LAYER_STALL has to say when");
    }
    if (n == setup.stall_submit) {
        fprintf(stderr, "vkcomm_layer: device %u stalls\n", device->index);
        __atomic_store_n(&dead[device->index], (traits_of(device->index) & DIES) != 0, __ATOMIC_RELEASE);
    }
    return n >= setup.stall_submit;
}

void fault_spoil(const struct device * device, bool copies, uint32_t * commands, uint32_t * signals) {
    const unsigned traits = fault_called_by_plugin() ? traits_of(device->index) : 0;
    if (copies && (traits & NO_COPIES)) {
        *commands = 0;
    }
    if ((copies && (traits & NO_COPY_SIGNALS)) || ((traits & STALLS) && stalls(device))) {
        *signals = 0;
    }
}

/* For the program under test: writes the counts so far under a heading. */
__attribute__((visibility("default"))) void vkcomm_layer_mark(const char * phase) {
    for (int i = 0; setup.counts != NULL && i < COMMAND_COUNT; i++) {
        fprintf(setup.counts, "%s %s %u\n", phase, names[i], __atomic_load_n(&calls[i], __ATOMIC_RELAXED));
    }
    if (setup.counts != NULL) {
        fflush(setup.counts);
    }
}
