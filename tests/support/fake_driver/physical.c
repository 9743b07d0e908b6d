/* Physical memory, by cuMemCreate: it has a handle and no address. It is in the table, where others see that the device has less and
 * where a checkpoint finds it.
 */
#define _GNU_SOURCE
#include "cuda.h"

#include <fcntl.h>
#include <stddef.h>
#include <string.h>

#define HANDLES 0x0c0000000000ull /* handles are no addresses: whoever mixes them up is told */

enum { LOCATION_DEVICE = 1, PINNED = 1, POSIX_DESCRIPTOR = 1 };

struct properties {
    int type, exportable;
    struct {
        int type, id;
    } location;
    void *windows;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

EXPORT int cuMemGetAllocationGranularity(size_t *granularity, const struct properties *wanted, int option) {
    (void)option;
    if (!fake_initialized()) return NOT_INITIALIZED;
    if (granularity == NULL || wanted == NULL || wanted->type != PINNED) return INVALID_VALUE;
    *granularity = GRANULARITY;
    return SUCCESS;
}

uint64_t fake_handle_of(const struct allocation *memory) { return HANDLES + memory->number; }

struct allocation *fake_by_handle(uint64_t handle) {
    struct process *process = fake_mine();
    for (uint32_t slot = 0; slot < process->top; slot++) {
        struct allocation *allocation = &process->allocations[slot];
        if (allocation->size != 0 && allocation->kind == PHYSICAL && fake_handle_of(allocation) == handle)
            return allocation->references > 0 ? allocation : NULL;
    }
    return NULL;
}

void fake_drop_unused(struct allocation *memory) {
    if (memory->references == 0 && memory->mappings == 0) fake_discard(memory);
}

static int create(uint64_t *handle, size_t size, const struct properties *wanted) {
    if (wanted->location.id < 0 || wanted->location.id >= fake_mine()->visible_count) return INVALID_DEVICE;
    struct allocation *memory = fake_allocate(fake_mine()->visible[wanted->location.id], size, PHYSICAL);
    if (memory == NULL) return OUT_OF_MEMORY;
    memory->references = 1;
    memory->exportable = (uint32_t)wanted->exportable;
    *handle = fake_handle_of(memory);
    return SUCCESS;
}

EXPORT int cuMemCreate(uint64_t *handle, size_t size, const struct properties *wanted, unsigned long long flags) {
    int result = fake_enter("cuMemCreate");
    if (result != SUCCESS) return result;
    fake_hold();
    if (wanted == NULL || wanted->type != PINNED || size == 0 || size % GRANULARITY != 0 || flags != 0) result = INVALID_VALUE;
    else if (wanted->location.type != LOCATION_DEVICE) result = NOT_SUPPORTED; /* the host's memory: not here */
    else result = create(handle, size, wanted);
    fake_release();
    fake_leave();
    return result;
}

EXPORT int cuMemRelease(uint64_t handle) {
    int result = fake_enter("cuMemRelease");
    if (result != SUCCESS) return result;
    fake_hold();
    struct allocation *memory = fake_by_handle(handle);
    result = memory == NULL ? INVALID_VALUE : SUCCESS;
    if (memory != NULL) {
        memory->references--;
        fake_drop_unused(memory);
    }
    fake_release();
    fake_leave();
    return result;
}

EXPORT int cuMemGetAllocationPropertiesFromHandle(struct properties *properties, uint64_t handle) {
    if (!fake_initialized()) return NOT_INITIALIZED;
    fake_hold();
    struct allocation *memory = fake_by_handle(handle);
    struct process *process = fake_mine();
    if (memory != NULL) {
        memset(properties, 0, sizeof *properties);
        properties->type = PINNED;
        properties->exportable = (int)memory->exportable;
        properties->location.type = LOCATION_DEVICE;
        while (properties->location.id < process->visible_count - 1 && process->visible[properties->location.id] != memory->device)
            properties->location.id++;
    }
    fake_release();
    return memory != NULL ? SUCCESS : INVALID_VALUE;
}

/* The descriptor is of the file that stands for the memory. Nothing here imports one: that a program exports is what counts. */
EXPORT int cuMemExportToShareableHandle(void *shared, uint64_t handle, int type, unsigned long long flags) {
    int result = fake_enter("cuMemExportToShareableHandle");
    if (result != SUCCESS) return result;
    char path[4096] = "";
    fake_hold();
    struct allocation *memory = fake_by_handle(handle);
    if (memory == NULL || flags != 0 || type != POSIX_DESCRIPTOR || !(memory->exportable & POSIX_DESCRIPTOR)) result = INVALID_VALUE;
    else fake_file(path, sizeof path, fake_mine(), memory, 1);
    fake_release();
    if (*path) *(int *)shared = open(path, O_RDWR | O_CLOEXEC);
    fake_leave();
    return result;
}
