/* Device memory with real contents: a file per allocation, at addresses that mean nothing to the processor. */
#define _GNU_SOURCE
#include "work.h"

#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

struct managed {
    void *address;
    size_t size;
};

static struct managed managed[64];

#define MAX_MANAGED (int)(sizeof managed / sizeof *managed)

EXPORT int cuMemGetInfo_v2(size_t *unused, size_t *total) {
    int result = fake_enter("cuMemGetInfo");
    if (result != SUCCESS) return result;
    if (fake_ordinal() < 0) result = INVALID_CONTEXT;
    else {
        fake_hold();
        int device = fake_mine()->visible[fake_ordinal()];
        *total = config.devices[device].memory;
        *unused = *total - fake_used(device);
        fake_release();
    }
    fake_leave();
    return result;
}

struct allocation *fake_allocate(int device, size_t size, uint32_t kind) {
    struct process *process = fake_mine();
    if (size > config.devices[device].memory || fake_used(device) + size > config.devices[device].memory) return NULL;
    uint32_t slot = 0;
    while (slot < process->top && process->allocations[slot].size != 0) slot++;
    if (slot == MAX_ALLOCATIONS) return NULL;
    struct allocation made = {.size = size, .device = device, .number = process->counter++, .kind = kind};
    char path[4096];
    fake_file(path, sizeof path, process, &made, 1);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int bad = file < 0 || ftruncate(file, (off_t)size) != 0;
    if (file >= 0) close(file);
    if (bad) return NULL;
    process->allocations[slot] = made;
    if (slot == process->top) process->top++;
    return &process->allocations[slot];
}

void fake_discard(struct allocation *allocation) {
    char path[4096];
    fake_file(path, sizeof path, fake_mine(), allocation, 1);
    unlink(path);
    allocation->size = 0;
}

uint64_t fake_addresses(size_t size) {
    struct process *process = fake_mine();
    uint64_t address = process->next;
    process->next += (size + GRANULARITY - 1) / GRANULARITY * GRANULARITY + GRANULARITY;
    return address;
}

static int allocate(uint64_t *address, size_t size) {
    if (size == 0) return INVALID_VALUE;
    if (fake_ordinal() < 0) return INVALID_CONTEXT;
    int result = fake_capture_forbids_memory();
    if (result != SUCCESS) return result;
    fake_hold();
    struct allocation *allocation = fake_allocate(fake_mine()->visible[fake_ordinal()], size, PLAIN);
    if (allocation != NULL) *address = allocation->address = fake_addresses(size);
    fake_release();
    return allocation == NULL ? OUT_OF_MEMORY : SUCCESS;
}

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t size) {
    int result = fake_enter("cuMemAlloc");
    if (result != SUCCESS) return result;
    result = allocate(address, size);
    fake_leave();
    return result;
}

EXPORT int cuMemAllocPitch_v2(uint64_t *address, size_t *pitch, size_t width, size_t height, unsigned element) {
    if (width == 0 || height == 0 || (element != 4 && element != 8 && element != 16)) return INVALID_VALUE;
    *pitch = (width + 511) / 512 * 512;
    return cuMemAlloc_v2(address, *pitch * height);
}

/* Managed memory is the host's here, and only counted; what matters is that such a process cannot be checkpointed. */
EXPORT int cuMemAllocManaged(uint64_t *address, size_t size, unsigned flags) {
    (void)flags;
    int result = fake_enter("cuMemAllocManaged");
    if (result != SUCCESS) return result;
    void *memory = fake_ordinal() < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    result = fake_ordinal() < 0 ? INVALID_CONTEXT : OUT_OF_MEMORY;
    fake_hold();
    for (int slot = 0; slot < MAX_MANAGED && memory != MAP_FAILED && result != SUCCESS; slot++) {
        if (managed[slot].address != NULL) continue;
        managed[slot] = (struct managed){.address = memory, .size = size};
        *address = (uint64_t)(uintptr_t)memory;
        fake_mine()->managed++;
        result = SUCCESS;
    }
    fake_release();
    fake_leave();
    return result;
}

int fake_managed_at(uint64_t address, struct piece *piece) {
    for (int slot = 0; slot < MAX_MANAGED; slot++) {
        uint64_t begin = (uint64_t)(uintptr_t)managed[slot].address;
        if (begin == 0 || address < begin || address >= begin + managed[slot].size) continue;
        *piece = (struct piece){.host = (char *)(uintptr_t)address, .size = begin + managed[slot].size - address, .kind = MANAGED};
        piece->begin = begin;
        piece->length = managed[slot].size;
        return SUCCESS;
    }
    return INVALID_VALUE;
}

static int give_back(uint64_t address) {
    for (int slot = 0; slot < MAX_MANAGED; slot++)
        if (managed[slot].address != NULL && (uint64_t)(uintptr_t)managed[slot].address == address) {
            munmap(managed[slot].address, managed[slot].size);
            managed[slot].address = NULL;
            fake_mine()->managed--;
            return SUCCESS;
        }
    struct process *process = fake_mine();
    for (uint32_t slot = 0; slot < process->top; slot++) {
        struct allocation *allocation = &process->allocations[slot];
        if (allocation->size == 0 || allocation->kind == PHYSICAL || allocation->address != address) continue;
        fake_discard(allocation);
        return SUCCESS;
    }
    return address == 0 ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuMemFree_v2(uint64_t address) {
    int result = fake_enter("cuMemFree");
    if (result != SUCCESS) return result;
    result = fake_capture_forbids_memory();
    if (result == SUCCESS && fake_ordinal() >= 0) fake_drain(fake_ordinal(), 1); /* as the driver, it waits for what may use it */
    if (result == SUCCESS) {
        fake_hold();
        result = give_back(address);
        fake_release();
    }
    fake_leave();
    return result;
}
