/* What libnvidia-ml.so.1 tells of GPUs in MIG mode, and how slices are made and destroyed by the rules of real ones.
 *
 * The profiles are those of NVIDIA's Multi-Instance GPU User Guide ("Supported MIG Profiles"); their sizes in MiB those that
 * `nvidia-smi mig -lgip` shows (A100: NVIDIA/go-nvml, pkg/nvml/mock; H200: NVIDIA/mig-parted, issue 120), their places those of
 * `nvidia-smi mig -lgipp`. A GPU of another name has no profile. Slices lie in a file, so they outlive processes as hardware does;
 * the lines of the file `running` ("MIG-... pid bytes") say on which of them something runs. Signatures follow NVIDIA's nvml.h. */
#define _GNU_SOURCE
#include "state.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, IN_USE = 19, INSUFFICIENT_RESOURCES = 23 };
enum { COMPUTE = 7, MEMORY = 8, MOST = 8, ROWS = 7 };

struct placement {
    unsigned start, size;
};
struct profile_info {
    unsigned version, id, p2p, slices, count, multiprocessors, copies, decoders, encoders, jpegs, ofas;
    unsigned long long mib;
    char name[96];
};
struct compute_profile_info {
    unsigned version, id, slices, count, multiprocessors, copies, decoders, encoders, jpegs, ofas;
    char name[96];
};
struct instance_info {
    struct device *device;
    unsigned id, profile;
    struct placement placement;
};

/* NVML's number of the profile, its id, and what it takes. */
static const struct row {
    unsigned number, id, compute, size, count, starts[7];
} rows[ROWS] = {
    {0, 19, 1, 1, 7, {0, 1, 2, 3, 4, 5, 6}}, {7, 20, 1, 1, 1, {0, 1, 2, 3, 4, 5, 6}}, {9, 15, 1, 2, 4, {0, 2, 4, 6}},
    {1, 14, 2, 2, 3, {0, 2, 4}},             {2, 9, 3, 4, 2, {0, 4}},                 {3, 5, 4, 4, 1, {0}},
    {4, 0, 7, 8, 1, {0}},
};
static const struct model {
    const char *name;
    const char *profiles[ROWS];
    unsigned mib[ROWS], multiprocessors[ROWS];
} models[] = {
    {"NVIDIA A100-SXM4-40GB",
     {"1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"},
     {4864, 4864, 9856, 9856, 19968, 19968, 40192},
     {14, 14, 14, 28, 42, 56, 98}},
    {"NVIDIA A100-SXM4-80GB",
     {"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"},
     {9856, 9856, 19968, 19968, 40192, 40192, 80384},
     {14, 14, 14, 28, 42, 56, 98}},
    {"NVIDIA H100 80GB HBM3",
     {"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"},
     {9856, 9856, 19968, 19968, 40192, 40192, 80384},
     {16, 16, 26, 32, 60, 64, 132}},
    {"NVIDIA H200",
     {"1g.18gb", "1g.18gb+me", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"},
     {16384, 16384, 33024, 33024, 71168, 71168, 143360},
     {16, 16, 26, 32, 60, 64, 132}},
};

struct instance {
    unsigned row, start, used, computing; /* computing: it has its compute instance */
    struct device slice;                  /* the MIG device that programs see */
};
static struct instance (*instances)[MOST];

static int index_of(const struct device *device) {
    ptrdiff_t index = device - config.devices;
    return index >= 0 && index < config.count ? (int)index : -1;
}

static const struct model *model_of(const struct device *device) {
    for (size_t number = 0; number < sizeof models / sizeof *models; number++)
        if (strcmp(models[number].name, device->name) == 0) return &models[number];
    return NULL;
}

static const struct row *row_by_id(unsigned id) {
    for (int row = 0; row < ROWS; row++)
        if (rows[row].id == id) return &rows[row];
    return NULL;
}

static int load(void) {
    if (instances != NULL) return SUCCESS;
    char path[4096];
    snprintf(path, sizeof path, "%s/slices", directory);
    size_t size = sizeof(struct instance[MAX_DEVICES][MOST]);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    void *mapped = file < 0 || ftruncate(file, (off_t)size) != 0 ? MAP_FAILED
                                                                : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED) return 999;
    instances = mapped;
    return SUCCESS;
}

/* Plays a fault for this call, with the lock held from here on. *after is an error that is told although it was done. */
static int begin(const char *call, int *after) {
    struct fault fault;
    fake_hold();
    if (after != NULL) *after = SUCCESS;
    int result = load();
    if (result == SUCCESS && fake_take(call, getpid(), "error", &fault)) result = (int)fault.argument;
    if (result == SUCCESS && after != NULL && fake_take(call, getpid(), "lost", &fault)) *after = (int)fault.argument;
    if (result != SUCCESS) fake_release();
    return result;
}

/* The process dies here when a test wants it: with the lock held, which the kernel gives back. */
static void die_after(const char *call) {
    struct fault fault;
    if (fake_take(call, getpid(), "die", &fault)) _exit(9);
}

static int end(int result) {
    fake_release();
    return result;
}

static int runs(const struct device *slice, unsigned *pid, unsigned long long *bytes) {
    char path[4096], line[160], uuid[64];
    snprintf(path, sizeof path, "%s/running", directory);
    FILE *file = fopen(path, "re");
    int found = 0;
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL)
        found = sscanf(line, "%63s %u %llu", uuid, pid, bytes) == 3 && strcmp(uuid, slice->uuid) == 0;
    if (file != NULL) fclose(file);
    return found;
}

int fake_slice_runs(const struct device *slice, unsigned *pid) {
    unsigned long long bytes;
    return runs(slice, pid, &bytes);
}

uint64_t fake_slice_used(const struct device *slice) {
    unsigned long long bytes = 0;
    unsigned pid;
    return runs(slice, &pid, &bytes) ? bytes : 0;
}

static int located(const struct device *slice, int *index, int *slot) {
    if (load() != SUCCESS) return 0;
    for (*index = 0; *index < config.count; (*index)++)
        for (*slot = 0; *slot < MOST; (*slot)++)
            if (&instances[*index][*slot].slice == slice) return instances[*index][*slot].computing;
    return 0;
}

int fake_is_slice(const struct device *device) {
    int index, slot;
    return located(device, &index, &slot);
}

struct device *fake_slice_of(const char *uuid) {
    if (load() != SUCCESS) return NULL;
    for (int index = 0; index < config.count; index++)
        for (int slot = 0; slot < MOST; slot++)
            if (instances[index][slot].computing && strcmp(instances[index][slot].slice.uuid, uuid) == 0)
                return &instances[index][slot].slice;
    return NULL;
}

static int takes(int index, const struct row *row, unsigned start) {
    unsigned compute = COMPUTE, same = 0, allowed = 0;
    for (int slot = 0; slot < MOST; slot++) {
        struct instance *other = &instances[index][slot];
        if (!other->used) continue;
        compute -= rows[other->row].compute;
        same += &rows[other->row] == row;
        if (start < other->start + rows[other->row].size && other->start < start + row->size) return 0;
    }
    for (unsigned number = 0; number < 7; number++) allowed |= row->starts[number] == start && (number == 0 || row->starts[number] > 0);
    return allowed && row->compute <= compute && same < row->count;
}

EXPORT int nvmlDeviceGetGpuInstanceProfileInfoV(struct device *device, unsigned profile, struct profile_info *info) {
    int index = index_of(device);
    const struct model *model = index < 0 ? NULL : model_of(device);
    for (int row = 0; model != NULL && row < ROWS; row++) {
        if (rows[row].number != profile) continue;
        unsigned version = info->version;
        memset(info, 0, sizeof *info);
        info->version = version, info->id = rows[row].id, info->slices = rows[row].compute, info->count = rows[row].count;
        info->multiprocessors = model->multiprocessors[row], info->mib = model->mib[row];
        snprintf(info->name, sizeof info->name, "MIG %s", model->profiles[row]);
        return SUCCESS;
    }
    return index < 0 ? INVALID_ARGUMENT : NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetGpuInstancePossiblePlacements_v2(struct device *device, unsigned id, struct placement *places, unsigned *count) {
    const struct row *row = row_by_id(id);
    if (index_of(device) < 0 || row == NULL) return INVALID_ARGUMENT;
    unsigned found = 0;
    for (unsigned number = 0; number < 7 && (number == 0 || row->starts[number] > 0); number++) {
        if (places != NULL && found >= *count) return INSUFFICIENT_SIZE;
        if (places != NULL) places[found] = (struct placement){row->starts[number], row->size};
        found++;
    }
    *count = found;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetGpuInstanceRemainingCapacity(struct device *device, unsigned id, unsigned *count) {
    const struct row *row = row_by_id(id);
    int index = index_of(device), result;
    if (index < 0 || row == NULL) return INVALID_ARGUMENT;
    if (!device->mig) return NOT_SUPPORTED;
    if ((result = begin("nvmlDeviceGetGpuInstanceRemainingCapacity", NULL)) != SUCCESS) return result;
    unsigned compute = COMPUTE, same = 0, after = 0;
    for (int slot = 0; slot < MOST; slot++)
        if (instances[index][slot].used) compute -= rows[instances[index][slot].row].compute, same += &rows[instances[index][slot].row] == row;
    *count = 0;
    for (unsigned number = 0; number < 7 && (number == 0 || row->starts[number] > 0); number++)
        if (row->starts[number] >= after && takes(index, row, row->starts[number]) && compute >= row->compute && same < row->count)
            compute -= row->compute, same++, (*count)++, after = row->starts[number] + row->size;
    return end(SUCCESS);
}

EXPORT int nvmlDeviceCreateGpuInstanceWithPlacement(struct device *device, unsigned id, const struct placement *place, struct instance **made) {
    static const char call[] = "nvmlDeviceCreateGpuInstanceWithPlacement";
    const struct row *row = row_by_id(id);
    int index = index_of(device), after, result;
    if (index < 0 || row == NULL || model_of(device) == NULL || place->size != row->size) return INVALID_ARGUMENT;
    if (!device->mig) return NOT_SUPPORTED;
    if ((result = begin(call, &after)) != SUCCESS) return result;
    int slot = 0;
    while (slot < MOST && instances[index][slot].used) slot++;
    if (slot == MOST || !takes(index, row, place->start)) return end(INSUFFICIENT_RESOURCES);
    struct instance *instance = &instances[index][slot];
    *instance = (struct instance){.row = (unsigned)(row - rows), .start = place->start, .used = 1};
    *made = instance;
    die_after(call);
    return end(after);
}

EXPORT int nvmlDeviceGetGpuInstances(struct device *device, unsigned id, struct instance **found, unsigned *count) {
    int index = index_of(device), result;
    if (index < 0 || row_by_id(id) == NULL) return INVALID_ARGUMENT;
    if (!device->mig) return NOT_SUPPORTED;
    if ((result = begin("nvmlDeviceGetGpuInstances", NULL)) != SUCCESS) return result;
    *count = 0;
    for (int slot = 0; slot < MOST; slot++)
        if (instances[index][slot].used && rows[instances[index][slot].row].id == id) found[(*count)++] = &instances[index][slot];
    return end(SUCCESS);
}

static int place_of(const struct instance *instance, int *index, int *slot) {
    for (*index = 0; instances != NULL && *index < config.count; (*index)++)
        for (*slot = 0; *slot < MOST; (*slot)++)
            if (&instances[*index][*slot] == instance) return instance->used;
    return 0;
}

EXPORT int nvmlGpuInstanceGetInfo(struct instance *instance, struct instance_info *info) {
    int index, slot;
    if (!place_of(instance, &index, &slot)) return INVALID_ARGUMENT;
    const struct row *row = &rows[instance->row];
    *info = (struct instance_info){&config.devices[index], (unsigned)slot + 1, row->id, {instance->start, row->size}};
    return SUCCESS;
}

EXPORT int nvmlGpuInstanceDestroy(struct instance *instance) {
    static const char call[] = "nvmlGpuInstanceDestroy";
    int index, slot, after, result;
    if (!place_of(instance, &index, &slot)) return INVALID_ARGUMENT;
    if ((result = begin(call, &after)) != SUCCESS) return result;
    if (instance->computing) return end(IN_USE);
    memset(instance, 0, sizeof *instance);
    die_after(call);
    return end(after);
}

/* A compute instance of all that the slice has, or of one compute slice, which makes others possible beside it. */
EXPORT int nvmlGpuInstanceGetComputeInstanceProfileInfoV(struct instance *instance, unsigned profile, unsigned engine, struct compute_profile_info *info) {
    static const unsigned slices[] = {1, 2, 3, 4, 7};
    int index, slot;
    if (!place_of(instance, &index, &slot) || engine != 0) return INVALID_ARGUMENT;
    if (profile >= 5 || slices[profile] > rows[instance->row].compute) return NOT_SUPPORTED;
    unsigned version = info->version;
    memset(info, 0, sizeof *info);
    info->version = version, info->id = profile, info->slices = slices[profile], info->count = 1;
    return SUCCESS;
}

EXPORT int nvmlGpuInstanceGetComputeInstances(struct instance *instance, unsigned id, struct instance **found, unsigned *count) {
    int index, slot, result;
    if (!place_of(instance, &index, &slot)) return INVALID_ARGUMENT;
    if ((result = begin("nvmlGpuInstanceGetComputeInstances", NULL)) != SUCCESS) return result;
    *count = instance->computing && instance->computing == id + 1;
    if (*count) found[0] = instance;
    return end(SUCCESS);
}

EXPORT int nvmlGpuInstanceCreateComputeInstance(struct instance *instance, unsigned id, struct instance **made) {
    static const char call[] = "nvmlGpuInstanceCreateComputeInstance";
    int index, slot, after, result;
    if (!place_of(instance, &index, &slot)) return INVALID_ARGUMENT;
    if ((result = begin(call, &after)) != SUCCESS) return result;
    if (instance->computing) return end(INSUFFICIENT_RESOURCES);
    const struct model *model = model_of(&config.devices[index]);
    instance->computing = id + 1;
    instance->slice.memory = (uint64_t)model->mib[instance->row] << 20;
    snprintf(instance->slice.uuid, sizeof instance->slice.uuid, "MIG-%.40s-%d", config.devices[index].uuid + 4, slot + 1);
    snprintf(instance->slice.name, sizeof instance->slice.name, "%.40s MIG %s", model->name, model->profiles[instance->row]);
    *made = instance;
    die_after(call);
    return end(after);
}

EXPORT int nvmlComputeInstanceDestroy(struct instance *instance) {
    static const char call[] = "nvmlComputeInstanceDestroy";
    int index, slot, after, result;
    unsigned pid;
    if (!place_of(instance, &index, &slot) || !instance->computing) return INVALID_ARGUMENT;
    if ((result = begin(call, &after)) != SUCCESS) return result;
    if (fake_slice_runs(&instance->slice, &pid)) return end(IN_USE);
    instance->computing = 0;
    die_after(call);
    return end(after);
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count) {
    *count = index_of(device) >= 0 && device->mig ? COMPUTE : 0;
    return index_of(device) < 0 ? INVALID_ARGUMENT : SUCCESS;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned number, struct device **slice) {
    int index = index_of(device);
    if (index < 0 || load() != SUCCESS) return INVALID_ARGUMENT;
    for (int slot = 0; slot < MOST; slot++)
        if (instances[index][slot].computing && number-- == 0) {
            *slice = &instances[index][slot].slice;
            return SUCCESS;
        }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *slice, struct device **device) {
    int index, slot;
    if (!located(slice, &index, &slot)) return INVALID_ARGUMENT;
    *device = &config.devices[index];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetGpuInstanceId(struct device *slice, unsigned *id) {
    int index, slot;
    if (!located(slice, &index, &slot)) return INVALID_ARGUMENT;
    *id = (unsigned)slot + 1;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeInstanceId(struct device *slice, unsigned *id) {
    *id = 0;
    return fake_is_slice(slice) ? SUCCESS : INVALID_ARGUMENT;
}
