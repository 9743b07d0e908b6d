/* libnvidia-ml.so.1 without a GPU: what nvidia-ml-py needs to list devices, memory and processes. */
#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15,
    UNKNOWN = 999
};

struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct process_info {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};
struct utilization {
    unsigned gpu, memory;
};
struct sample {
    unsigned pid;
    unsigned long long time;
    unsigned sm, memory, encoder, decoder;
};

static int users;

/* Plays a fault for this call; every call comes here first. */
static int begin(const char *call) {
    if (users == 0) return UNINITIALIZED;
    struct fault fault;
    fake_hold();
    int bad = fake_take(call, getpid(), NULL, &fault);
    fake_release();
    if (bad && strcmp(fault.action, "error") == 0) return (int)fault.argument;
    if (bad) fake_hang(fault.argument);
    return SUCCESS;
}

static int index_of(const struct device *device) {
    ptrdiff_t index = device - config.devices;
    return index >= 0 && index < config.count ? (int)index : -1;
}

/* A GPU, or a slice of one. */
static int is_known(const struct device *device) { return index_of(device) >= 0 || fake_is_slice(device); }

EXPORT int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (fake_open() != 0) return DRIVER_NOT_LOADED;
    users++;
    int result = begin("nvmlInitWithFlags");
    if (result != SUCCESS) users--;
    return result;
}

EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

EXPORT int nvmlShutdown(void) {
    if (users == 0) return UNINITIALIZED;
    users--;
    return SUCCESS;
}

EXPORT const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}

static int text(char *target, unsigned size, const char *source) {
    if (strlen(source) >= size) return INSUFFICIENT_SIZE;
    strcpy(target, source);
    return SUCCESS;
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned size) {
    int result = begin("nvmlSystemGetDriverVersion");
    return result != SUCCESS ? result : text(version, size, config.driver);
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, unsigned size) { return text(version, size, config.driver); }

EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    *version = config.cuda;
    return users ? SUCCESS : UNINITIALIZED;
}

EXPORT int nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size) {
    int result = begin("nvmlSystemGetProcessName");
    if (result != SUCCESS) return result;
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return NOT_FOUND;
    ssize_t length = read(file, line, sizeof line - 1);
    close(file);
    line[length > 0 ? length : 0] = 0;
    return text(name, size, line);
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    int result = begin("nvmlDeviceGetCount_v2");
    *count = (unsigned)config.count;
    return result;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device) {
    int result = begin("nvmlDeviceGetHandleByIndex_v2");
    if (result != SUCCESS) return result;
    if (index >= (unsigned)config.count) return INVALID_ARGUMENT;
    *device = &config.devices[index];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device) {
    int result = begin("nvmlDeviceGetHandleByUUID");
    if (result != SUCCESS) return result;
    for (int index = 0; index < config.count; index++)
        if (strcmp(config.devices[index].uuid, uuid) == 0) {
            *device = &config.devices[index];
            return SUCCESS;
        }
    *device = fake_slice_of(uuid);
    return *device == NULL ? NOT_FOUND : SUCCESS;
}

EXPORT int nvmlDeviceGetIndex(struct device *device, unsigned *index) {
    if (index_of(device) < 0) return INVALID_ARGUMENT;
    *index = (unsigned)index_of(device);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMinorNumber(struct device *device, unsigned *minor) { return nvmlDeviceGetIndex(device, minor); }

EXPORT int nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned size) {
    return is_known(device) ? text(uuid, size, device->uuid) : INVALID_ARGUMENT;
}

EXPORT int nvmlDeviceGetName(struct device *device, char *name, unsigned size) {
    return is_known(device) ? text(name, size, device->name) : INVALID_ARGUMENT;
}

static unsigned long long used(int device) {
    fake_hold();
    unsigned long long bytes = fake_used(device);
    fake_release();
    return bytes;
}

EXPORT int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory) {
    int result = begin("nvmlDeviceGetMemoryInfo");
    if (result != SUCCESS) return result;
    if (!is_known(device)) return INVALID_ARGUMENT;
    memory->total = device->memory;
    memory->used = index_of(device) < 0 ? fake_slice_used(device) : used(index_of(device));
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory) {
    struct memory plain;
    int result = nvmlDeviceGetMemoryInfo(device, &plain);
    if (result != SUCCESS) return result;
    memory->total = plain.total, memory->free = plain.free, memory->used = plain.used, memory->reserved = 0;
    return SUCCESS;
}

/* 100 while a call of some process is at work on the device, else 0. */
EXPORT int nvmlDeviceGetUtilizationRates(struct device *device, struct utilization *utilization) {
    int result = begin("nvmlDeviceGetUtilizationRates");
    if (result != SUCCESS) return result;
    if (index_of(device) < 0) return INVALID_ARGUMENT;
    utilization->gpu = utilization->memory = 0;
    fake_hold();
    for (int slot = 0; slot < MAX_PROCESSES; slot++) {
        struct process *process = &table->processes[slot];
        if (fake_on_device(process) && process->inflight > 0 && process->contexts[index_of(device)] > 0) utilization->gpu = 100;
    }
    fake_release();
    return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *count, struct process_info *infos) {
    int result = begin("nvmlDeviceGetComputeRunningProcesses_v3");
    if (result != SUCCESS) return result;
    int index = index_of(device);
    if (!is_known(device)) return INVALID_ARGUMENT;
    unsigned found = 0, room = infos == NULL ? 0 : *count, pid;
    if (index < 0) { /* of a slice: whom the test has put there */
        found = (unsigned)fake_slice_runs(device, &pid);
        if (found && room) infos[0] = (struct process_info){.pid = pid};
        *count = found;
        return found > room ? INSUFFICIENT_SIZE : SUCCESS;
    }
    struct fault fault;
    fake_hold();
    int blind = fake_take("nvmlDeviceGetComputeRunningProcesses_v3", getpid(), "blind", &fault);
    for (int slot = 0; slot < MAX_PROCESSES && !blind; slot++) {
        struct process *process = &table->processes[slot];
        if (!fake_on_device(process) || fake_bytes(process, index) == 0) continue;
        if (found < room)
            infos[found] = (struct process_info){
                .pid = (unsigned)process->pid, .bytes = fake_bytes(process, index), .gpu_instance = ~0u, .compute_instance = ~0u};
        found++;
    }
    fake_release();
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(struct device *device, unsigned *count, struct process_info *infos) {
    (void)infos;
    *count = 0;
    return index_of(device) < 0 ? INVALID_ARGUMENT : SUCCESS;
}

EXPORT int nvmlDeviceGetProcessUtilization(struct device *device, struct sample *samples, unsigned *count, unsigned long long since) {
    (void)samples, (void)since;
    *count = 0;
    return index_of(device) < 0 ? INVALID_ARGUMENT : NOT_FOUND; /* "no sample" */
}

EXPORT int nvmlDeviceGetMigMode(struct device *device, unsigned *now, unsigned *pending) {
    if (index_of(device) < 0) return INVALID_ARGUMENT;
    *now = *pending = (unsigned)device->mig;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPersistenceMode(struct device *device, unsigned *mode) {
    *mode = 0;
    return index_of(device) < 0 ? INVALID_ARGUMENT : SUCCESS;
}

EXPORT int nvmlDeviceGetComputeMode(struct device *device, unsigned *mode) {
    *mode = 0;
    return index_of(device) < 0 ? INVALID_ARGUMENT : SUCCESS;
}
