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
/* 250 J more at each look; slices have no counter of their own. */
result nvmlDeviceGetTotalEnergyConsumption(device gpu, unsigned long long *out) {
    static unsigned long long taken = 1000000;
    if (gpu == &gpus[2]) return NOT_SUPPORTED;
    *out = taken += 250000;
    return OK;
}
/* GPM: the first GPU's multiprocessors have work for 21.5 percent, the slice's for 40; the GPU in MIG mode has none of its own. */
struct sample { device gpu; int slice; };
struct metric { unsigned id; result answer; double value; const char *info[3]; };
struct metrics { unsigned version, count; struct sample *before, *after; struct metric metrics[1]; };
struct support { unsigned version, supported; };
result nvmlGpmQueryDeviceSupport(device gpu, struct support *out) { (void)gpu; out->supported = !mode("old"); return OK; }
result nvmlGpmSampleAlloc(struct sample **out) { *out = calloc(1, sizeof **out); return OK; }
result nvmlGpmSampleFree(struct sample *sample) { free(sample); return OK; }
result nvmlGpmSampleGet(device gpu, struct sample *sample) {
    if (gpu != &gpus[0]) return NOT_SUPPORTED;
    sample->gpu = gpu;
    return OK;
}
result nvmlGpmMigSampleGet(device gpu, unsigned slice, struct sample *sample) {
    if (gpu != &gpus[1] || slice != 3) return INVALID;
    sample->gpu = gpu; sample->slice = 1;
    return OK;
}
result nvmlGpmMetricsGet(struct metrics *asked) {
    if (asked->version != 1 || asked->count != 1 || asked->metrics[0].id != 2 || !asked->before->gpu) return INVALID;
    asked->metrics[0].answer = OK;
    asked->metrics[0].value = asked->after->slice ? 40 : 21.5;
    return OK;
}
result nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device gpu, device *out) {
    if (gpu != &gpus[2]) return INVALID;
    *out = &gpus[1];
    return OK;
}
result nvmlDeviceGetGpuInstanceId(device gpu, unsigned *out) { (void)gpu; *out = 3; return OK; }
const char *nvmlErrorString(result code) { (void)code; return "an error of the fake"; }
