/* A stand-in for libnvidia-ml.so.1 with two GPUs: an H200 that is 37 percent busy, and an H200 in MIG mode with one slice.
   Signatures follow NVIDIA's nvml.h. FAKE_NVML=down makes nvmlInit fail as it does without a driver; FAKE_NVML=lost makes
   the first GPU one that fell off the bus. */
#include <stdlib.h>
#include <string.h>

typedef int result;
typedef const struct gpu *device;
struct gpu { const char *name, *uuid; unsigned long long total, used; unsigned busy; };
static const struct gpu gpus[] = {
    {"NVIDIA H200", "GPU-aaaa", 150754820096ULL, 1024ULL, 37},
    {"NVIDIA H200", "GPU-bbbb", 150754820096ULL, 0, 0},
    {"NVIDIA H200 MIG 1g.18gb", "MIG-cccc", 19327352832ULL, 2048ULL, 0},
};
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, NOT_LOADED = 9, LOST = 15 };
static int mode(const char *what) { const char *set = getenv("FAKE_NVML"); return set && !strcmp(set, what); }

result nvmlInitWithFlags(unsigned flags) { (void)flags; return mode("down") ? NOT_LOADED : OK; }
result nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
result nvmlShutdown(void) { return OK; }
result nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }
result nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out) {
    if (mode("lost") && index == 0) return LOST;
    if (index > 1) return INVALID;
    *out = &gpus[index];
    return OK;
}
result nvmlDeviceGetHandleByUUID(const char *uuid, device *out) {
    for (unsigned i = 0; i < 3; i++) if (!strcmp(gpus[i].uuid, uuid)) { *out = &gpus[i]; return OK; }
    return NOT_FOUND;
}
result nvmlDeviceGetName(device gpu, char *name, unsigned length) { strncpy(name, gpu->name, length); return OK; }
result nvmlDeviceGetUUID(device gpu, char *uuid, unsigned length) { strncpy(uuid, gpu->uuid, length); return OK; }
struct memory { unsigned long long total, free, used; };
result nvmlDeviceGetMemoryInfo(device gpu, struct memory *out) {
    out->total = gpu->total; out->used = gpu->used; out->free = gpu->total - gpu->used;
    return OK;
}
struct utilization { unsigned gpu, memory; };
result nvmlDeviceGetUtilizationRates(device gpu, struct utilization *out) {
    if (!strncmp(gpu->uuid, "MIG", 3)) return NOT_SUPPORTED;
    out->gpu = gpu->busy; out->memory = 0;
    return OK;
}
result nvmlDeviceGetMigMode(device gpu, unsigned *current, unsigned *pending) { *current = *pending = gpu == &gpus[1]; return OK; }
result nvmlDeviceGetMaxMigDeviceCount(device gpu, unsigned *count) { *count = gpu == &gpus[1] ? 7 : 0; return OK; }
result nvmlDeviceGetMigDeviceHandleByIndex(device gpu, unsigned index, device *out) {
    if (gpu != &gpus[1] || index != 3) return NOT_FOUND;
    *out = &gpus[2];
    return OK;
}
const char *nvmlErrorString(result code) { (void)code; return "an error of the fake"; }
