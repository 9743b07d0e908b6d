/* Device memory with real contents: a file per allocation, at addresses that mean nothing to the processor. */
#define _GNU_SOURCE
#include "cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ALIGNMENT 0x200000ull

struct managed {
    void *address;
    size_t size;
};

static struct managed managed[MAX_ALLOCATIONS];

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

static int reserve(uint64_t *address, size_t size) {
    if (size == 0) return INVALID_VALUE;
    if (fake_ordinal() < 0) return INVALID_CONTEXT;
    fake_hold();
    struct process *process = fake_mine();
    int device = process->visible[fake_ordinal()], result = OUT_OF_MEMORY;
    for (int slot = 0; slot < MAX_ALLOCATIONS && fake_used(device) + size <= config.devices[device].memory; slot++) {
        struct allocation *allocation = &process->allocations[slot];
        if (allocation->size != 0) continue;
        *allocation = (struct allocation){.address = process->next, .size = size, .device = device, .number = process->counter++};
        process->next += (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + ALIGNMENT;
        char path[4096];
        fake_file(path, sizeof path, process, allocation, 1);
        int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (file < 0 || ftruncate(file, (off_t)size) != 0) allocation->size = 0;
        else {
            *address = allocation->address;
            result = SUCCESS;
        }
        if (file >= 0) close(file);
        break;
    }
    fake_release();
    return result;
}

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t size) {
    int result = fake_enter("cuMemAlloc");
    if (result != SUCCESS) return result;
    result = reserve(address, size);
    fake_leave();
    return result;
}

/* Managed memory is the host's here, and only counted; what matters is that such a process cannot be checkpointed. */
EXPORT int cuMemAllocManaged(uint64_t *address, size_t size, unsigned flags) {
    (void)flags;
    int result = fake_enter("cuMemAllocManaged");
    if (result != SUCCESS) return result;
    void *memory = fake_ordinal() < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    result = fake_ordinal() < 0 ? INVALID_CONTEXT : OUT_OF_MEMORY;
    for (int slot = 0; slot < MAX_ALLOCATIONS && memory != MAP_FAILED; slot++) {
        if (managed[slot].address != NULL) continue;
        managed[slot] = (struct managed){.address = memory, .size = size};
        *address = (uint64_t)(uintptr_t)memory;
        fake_hold();
        fake_mine()->managed++;
        fake_release();
        result = SUCCESS;
        break;
    }
    fake_leave();
    return result;
}

static int give_back(uint64_t address) {
    for (int slot = 0; slot < MAX_ALLOCATIONS; slot++)
        if (managed[slot].address != NULL && (uint64_t)(uintptr_t)managed[slot].address == address) {
            munmap(managed[slot].address, managed[slot].size);
            managed[slot].address = NULL;
            fake_hold();
            fake_mine()->managed--;
            fake_release();
            return SUCCESS;
        }
    int result = address == 0 ? SUCCESS : INVALID_VALUE;
    fake_hold();
    struct process *process = fake_mine();
    for (int slot = 0; slot < MAX_ALLOCATIONS && address != 0; slot++)
        if (process->allocations[slot].size != 0 && process->allocations[slot].address == address) {
            char path[4096];
            fake_file(path, sizeof path, process, &process->allocations[slot], 1);
            unlink(path);
            process->allocations[slot].size = 0;
            result = SUCCESS;
        }
    fake_release();
    return result;
}

EXPORT int cuMemFree_v2(uint64_t address) {
    int result = fake_enter("cuMemFree");
    if (result != SUCCESS) return result;
    result = give_back(address);
    fake_leave();
    return result;
}

EXPORT int cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    (void)flags;
    int result = fake_enter("cuMemHostAlloc");
    if (result != SUCCESS) return result;
    *address = malloc(size);
    fake_leave();
    return *address == NULL ? OUT_OF_MEMORY : SUCCESS;
}

EXPORT int cuMemAllocHost_v2(void **address, size_t size) { return cuMemHostAlloc(address, size, 0); }

EXPORT int cuMemFreeHost(void *address) {
    int result = fake_enter("cuMemFreeHost");
    if (result != SUCCESS) return result;
    free(address);
    fake_leave();
    return SUCCESS;
}

/* Opens the contents of device memory at an address and returns the file (or -1) and the offset. */
static int open_at(uint64_t address, size_t size, off_t *offset) {
    char path[4096] = "";
    fake_hold();
    struct process *process = fake_mine();
    for (int slot = 0; slot < MAX_ALLOCATIONS; slot++) {
        struct allocation *allocation = &process->allocations[slot];
        if (allocation->size == 0 || address < allocation->address || address + size > allocation->address + allocation->size) continue;
        *offset = (off_t)(address - allocation->address);
        fake_file(path, sizeof path, process, allocation, 1);
    }
    fake_release();
    return *path ? open(path, O_RDWR | O_CLOEXEC) : -1;
}

static int transfer(uint64_t address, void *host, size_t size, int to_device) {
    off_t offset = 0;
    int file = open_at(address, size, &offset);
    if (file < 0) return INVALID_VALUE;
    size_t done = 0;
    while (done < size) {
        ssize_t piece = to_device ? pwrite(file, (char *)host + done, size - done, offset + (off_t)done)
                                  : pread(file, (char *)host + done, size - done, offset + (off_t)done);
        if (piece <= 0 && errno != EINTR) break;
        done += piece > 0 ? (size_t)piece : 0;
    }
    close(file);
    return done == size ? SUCCESS : UNKNOWN;
}

EXPORT int cuMemcpyHtoD_v2(uint64_t address, const void *host, size_t size) {
    int result = fake_enter("cuMemcpyHtoD");
    if (result != SUCCESS) return result;
    result = transfer(address, (void *)(uintptr_t)host, size, 1);
    fake_leave();
    return result;
}

EXPORT int cuMemcpyDtoH_v2(void *host, uint64_t address, size_t size) {
    int result = fake_enter("cuMemcpyDtoH");
    if (result != SUCCESS) return result;
    result = transfer(address, host, size, 0);
    fake_leave();
    return result;
}

static int fill(uint64_t address, const void *pattern, size_t width, size_t count) {
    int result = fake_enter("cuMemset");
    if (result != SUCCESS) return result;
    char *memory = malloc(width * count + 1);
    for (size_t index = 0; memory != NULL && index < count; index++) memcpy(memory + index * width, pattern, width);
    result = memory == NULL ? OUT_OF_MEMORY : transfer(address, memory, width * count, 1);
    free(memory);
    fake_leave();
    return result;
}

EXPORT int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t count) { return fill(address, &value, 1, count); }
EXPORT int cuMemsetD32_v2(uint64_t address, unsigned value, size_t count) { return fill(address, &value, 4, count); }

EXPORT int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t size) {
    char *memory = malloc(size + 1);
    int result = memory == NULL ? OUT_OF_MEMORY : cuMemcpyDtoH_v2(memory, from, size);
    if (result == SUCCESS) result = cuMemcpyHtoD_v2(to, memory, size);
    free(memory);
    return result;
}
