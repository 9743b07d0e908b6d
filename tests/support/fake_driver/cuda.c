/* libcuda.so.1 without a GPU: processes, devices and contexts. Memory is in memory.c, the checkpoint calls are in checkpoint.c. */
#define _GNU_SOURCE
#include "work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_CONTEXTS 64

struct context {
    int ordinal, used;
};

static pid_t initialized;
static struct context contexts[MAX_CONTEXTS]; /* the first MAX_DEVICES are the primary ones */
static int primary_uses[MAX_DEVICES];
static __thread struct context *stack[16];
static __thread int depth;

int fake_initialized(void) { return initialized == getpid(); }

/* Entry points that launch work or manage resources pass here; they wait while the process is locked. */
int fake_enter(const char *call) {
    if (!fake_initialized()) return NOT_INITIALIZED;
    for (;;) {
        if (fake_broken) return fake_broken;
        fake_hold();
        struct process *process = fake_mine();
        if (process == NULL || process->state == FAILED) {
            fake_release();
            return UNKNOWN;
        }
        if (process->state == RUNNING && !process->locking) {
            struct fault fault = {"", 0};
            int bad = fake_take(call, getpid(), NULL, &fault);
            fake_record(call);
            process->inflight++;
            fake_release();
            if (!bad) return SUCCESS;
            if (strcmp(fault.action, "error") == 0) {
                fake_leave();
                return (int)fault.argument;
            }
            fake_hang(fault.argument);
            return SUCCESS;
        }
        uint32_t gate = process->gate;
        fake_release();
        fake_wait(process, gate);
    }
}

void fake_leave(void) {
    fake_hold();
    struct process *process = fake_mine();
    if (process != NULL && process->inflight > 0) process->inflight--;
    fake_release();
}

static int find_device(const char *entry) {
    char *end;
    long number = strtol(entry, &end, 10);
    if (*entry && *end == 0) return number >= 0 && number < config.count ? (int)number : -1;
    for (int index = 0; *entry && index < config.count; index++)
        if (strncmp(config.devices[index].uuid, entry, strlen(entry)) == 0) return index;
    return -1;
}

static void see_devices(struct process *process) {
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    process->visible_count = 0;
    if (wanted == NULL) {
        for (int index = 0; index < config.count; index++) process->visible[process->visible_count++] = index;
        return;
    }
    char text[2048], *rest = text, *entry;
    snprintf(text, sizeof text, "%s", wanted);
    while ((entry = strsep(&rest, ",")) != NULL && process->visible_count < MAX_DEVICES) {
        int index = find_device(entry);
        if (index < 0) return; /* as in CUDA, the first that names nothing ends the list */
        process->visible[process->visible_count++] = index;
    }
}

EXPORT int cuInit(unsigned flags) {
    (void)flags;
    if (fake_open() != 0 || config.count == 0) return NO_DEVICE;
    struct fault fault;
    fake_hold();
    int bad = fake_take("cuInit", getpid(), NULL, &fault);
    fake_release();
    if (bad && strcmp(fault.action, "error") == 0) return (int)fault.argument;
    if (bad) fake_hang(fault.argument);
    if (fake_initialized()) return SUCCESS;
    fake_hold();
    struct process *process = fake_mine();
    if (process == NULL) process = fake_find(0);
    if (process == NULL) {
        fake_release();
        return OUT_OF_MEMORY;
    }
    memset(process, 0, sizeof *process);
    fake_forget_mappings();
    fake_forget_host();
    fake_forget_shared();
    fake_forget_streams();
    see_devices(process);
    int seen = process->visible_count;
    if (seen > 0) {
        process->pid = getpid();
        process->start = fake_start_of(getpid());
        process->next = FIRST_ADDRESS;
        initialized = getpid();
    }
    fake_release();
    return seen > 0 ? SUCCESS : NO_DEVICE;
}

static const struct device *device_of(int ordinal) {
    if (!fake_initialized()) return NULL;
    fake_hold();
    struct process *process = fake_mine();
    int index = process != NULL && ordinal >= 0 && ordinal < process->visible_count ? process->visible[ordinal] : -1;
    fake_release();
    return index < 0 ? NULL : &config.devices[index];
}

static int no_device(void) { return fake_initialized() ? INVALID_DEVICE : NOT_INITIALIZED; }

EXPORT int cuDriverGetVersion(int *version) {
    if (fake_open() != 0) return NO_DEVICE;
    *version = config.cuda;
    return SUCCESS;
}

EXPORT int cuDeviceGetCount(int *count) {
    if (!fake_initialized()) return NOT_INITIALIZED;
    fake_hold();
    *count = fake_mine()->visible_count;
    fake_release();
    return SUCCESS;
}

EXPORT int cuDeviceGet(int *device, int ordinal) {
    if (device_of(ordinal) == NULL) return no_device();
    *device = ordinal;
    return SUCCESS;
}

EXPORT int cuDeviceGetName(char *name, int size, int ordinal) {
    const struct device *device = device_of(ordinal);
    if (device == NULL) return no_device();
    snprintf(name, (size_t)size, "%s", device->name);
    return SUCCESS;
}

EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int ordinal) {
    const struct device *device = device_of(ordinal);
    if (device == NULL) return no_device();
    memcpy(uuid, device->raw, 16);
    return SUCCESS;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int ordinal) {
    const struct device *device = device_of(ordinal);
    if (device == NULL) return no_device();
    *bytes = device->memory;
    return SUCCESS;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int ordinal) {
    if (device_of(ordinal) == NULL) return no_device();
    *value = attribute == 75 ? 9 : attribute == 83 ? 1 : 0; /* compute capability 9.0; managed memory */
    return SUCCESS;
}

static int charge_context(struct context *context, int ordinal) {
    fake_hold();
    int device = fake_mine()->visible[ordinal];
    int full = fake_used(device) + config.context > config.devices[device].memory;
    if (!full) fake_mine()->contexts[device]++;
    fake_release();
    if (full) return OUT_OF_MEMORY;
    *context = (struct context){.ordinal = ordinal, .used = 1};
    return SUCCESS;
}

static int free_context(struct context *context) {
    if (context == NULL || !context->used) return INVALID_CONTEXT;
    int result = fake_enter("cuCtxDestroy");
    if (result != SUCCESS) return result;
    fake_hold();
    fake_mine()->contexts[fake_mine()->visible[context->ordinal]]--;
    fake_release();
    context->used = 0;
    fake_leave();
    return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRetain(struct context **context, int ordinal) {
    if (device_of(ordinal) == NULL) return no_device();
    int result = fake_enter("cuDevicePrimaryCtxRetain");
    if (result != SUCCESS) return result;
    if (!contexts[ordinal].used) result = charge_context(&contexts[ordinal], ordinal);
    if (result == SUCCESS) primary_uses[ordinal]++;
    *context = &contexts[ordinal];
    fake_leave();
    return result;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int ordinal) {
    if (device_of(ordinal) == NULL) return no_device();
    if (primary_uses[ordinal] == 0) return INVALID_CONTEXT;
    return --primary_uses[ordinal] > 0 ? SUCCESS : free_context(&contexts[ordinal]);
}

EXPORT int cuDevicePrimaryCtxGetState(int ordinal, unsigned *flags, int *active) {
    if (device_of(ordinal) == NULL) return no_device();
    *flags = 0;
    *active = contexts[ordinal].used;
    return SUCCESS;
}

EXPORT int cuCtxCreate_v4(struct context **context, void *parameters, unsigned flags, int ordinal) {
    (void)parameters, (void)flags;
    if (device_of(ordinal) == NULL) return no_device();
    int result = fake_enter("cuCtxCreate");
    if (result != SUCCESS) return result;
    *context = NULL;
    for (int slot = MAX_DEVICES; slot < MAX_CONTEXTS && *context == NULL; slot++)
        if (!contexts[slot].used) *context = &contexts[slot];
    result = *context == NULL ? OUT_OF_MEMORY : charge_context(*context, ordinal);
    if (result == SUCCESS && depth < 15) stack[depth++] = *context;
    fake_leave();
    return result;
}

EXPORT int cuCtxCreate_v2(struct context **context, unsigned flags, int ordinal) {
    return cuCtxCreate_v4(context, NULL, flags, ordinal);
}

EXPORT int cuCtxDestroy_v2(struct context *context) {
    if (depth > 0 && stack[depth - 1] == context) depth--;
    return free_context(context);
}

EXPORT int cuCtxSetCurrent(struct context *context) {
    if (context == NULL) depth = 0;
    else stack[depth > 0 ? depth - 1 : depth++] = context;
    return SUCCESS;
}

EXPORT int cuCtxPushCurrent_v2(struct context *context) {
    if (depth >= 15) return INVALID_VALUE;
    stack[depth++] = context;
    return SUCCESS;
}

EXPORT int cuCtxPopCurrent_v2(struct context **context) {
    if (depth == 0) return INVALID_CONTEXT;
    struct context *top = stack[--depth];
    if (context != NULL) *context = top;
    return SUCCESS;
}

static struct context *current(void) { return depth > 0 && stack[depth - 1]->used ? stack[depth - 1] : NULL; }

void *fake_context(void) { return current(); }

int fake_ordinal(void) { return current() != NULL ? current()->ordinal : -1; }

EXPORT int cuCtxGetCurrent(struct context **context) {
    *context = current();
    return SUCCESS;
}

EXPORT int cuCtxGetDevice(int *ordinal) {
    if (current() == NULL) return INVALID_CONTEXT;
    *ordinal = current()->ordinal;
    return SUCCESS;
}

EXPORT int cuCtxSynchronize(void) {
    int result = fake_enter("cuCtxSynchronize");
    if (result != SUCCESS) return result;
    result = fake_ordinal() < 0 ? INVALID_CONTEXT : fake_capture_forbids_waiting(fake_ordinal());
    if (result == SUCCESS) {
        fake_drain(fake_ordinal(), 1);
        result = fake_broken;
    }
    fake_leave();
    return result;
}
