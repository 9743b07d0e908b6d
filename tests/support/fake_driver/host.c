/* Host memory that the driver knows: its own, and what a program registered. It has one address for processor and device. */
#define _GNU_SOURCE
#include "cuda.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct host {
    char *address; /* NULL: a free slot */
    size_t size;
    unsigned flags;
    int registered;
};

static struct host *known;
static int count;

void fake_forget_host(void) { count = 0; }

static struct host *free_slot(void) {
    for (int slot = 0; slot < count; slot++)
        if (known[slot].address == NULL) return &known[slot];
    struct host *longer = realloc(known, (size_t)(count + 1) * sizeof *known);
    if (longer == NULL) return NULL;
    known = longer;
    return &known[count++];
}

static struct host *overlapping(const char *address, size_t size) {
    for (int slot = 0; slot < count; slot++) {
        struct host *host = &known[slot];
        if (host->address != NULL && address < host->address + host->size && host->address < address + size) return host;
    }
    return NULL;
}

int fake_host_at(uint64_t address, struct piece *piece) {
    char *at = (char *)(uintptr_t)address;
    struct host *host = overlapping(at, 1);
    if (host == NULL) return INVALID_VALUE;
    *piece = (struct piece){.host = at, .size = (size_t)(host->address + host->size - at), .kind = HOST};
    piece->begin = (uint64_t)(uintptr_t)host->address;
    piece->length = host->size;
    return SUCCESS;
}

static int remember(char *address, size_t size, unsigned flags, int registered) {
    struct host *host = free_slot();
    if (host == NULL) return OUT_OF_MEMORY;
    *host = (struct host){.address = address, .size = size, .flags = flags, .registered = registered};
    return SUCCESS;
}

EXPORT int cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    int result = fake_enter("cuMemHostAlloc");
    if (result != SUCCESS) return result;
    void *memory = size == 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) result = size == 0 ? INVALID_VALUE : OUT_OF_MEMORY;
    else {
        fake_hold();
        result = remember(memory, size, flags, 0);
        fake_release();
        *address = memory;
    }
    fake_leave();
    return result;
}

EXPORT int cuMemAllocHost_v2(void **address, size_t size) { return cuMemHostAlloc(address, size, 0); }

EXPORT int cuMemFreeHost(void *address) {
    int result = fake_enter("cuMemFreeHost");
    if (result != SUCCESS) return result;
    fake_hold();
    struct host *host = overlapping(address, 1);
    result = host == NULL || host->registered || host->address != address ? INVALID_VALUE : SUCCESS;
    if (result == SUCCESS) {
        munmap(host->address, host->size);
        host->address = NULL;
    }
    fake_release();
    fake_leave();
    return result;
}

/* Only what is mapped can be registered; mincore(2) says ENOMEM of the rest. */
static int is_mapped(char *address, size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *begin = (char *)((uintptr_t)address / page * page);
    size_t length = (size_t)(address + size - begin);
    unsigned char *resident = malloc(length / page + 1);
    int mapped = resident != NULL && mincore(begin, length, resident) == 0;
    free(resident);
    return mapped;
}

EXPORT int cuMemHostRegister_v2(void *address, size_t size, unsigned flags) {
    int result = fake_enter("cuMemHostRegister");
    if (result != SUCCESS) return result;
    fake_hold();
    if (fake_ordinal() < 0) result = INVALID_CONTEXT;
    else if (address == NULL || size == 0 || flags > 15 || !is_mapped(address, size)) result = INVALID_VALUE;
    else if (overlapping(address, size) != NULL) result = ALREADY_REGISTERED;
    else result = remember(address, size, flags, 1);
    fake_release();
    fake_leave();
    return result;
}

EXPORT int cuMemHostUnregister(void *address) {
    int result = fake_enter("cuMemHostUnregister");
    if (result != SUCCESS) return result;
    fake_hold();
    struct host *host = overlapping(address, 1);
    result = host == NULL || !host->registered || host->address != address ? NOT_REGISTERED : SUCCESS;
    if (result == SUCCESS) host->address = NULL;
    fake_release();
    fake_leave();
    return result;
}

EXPORT int cuMemHostGetDevicePointer_v2(uint64_t *device, void *address, unsigned flags) {
    int result = fake_enter("cuMemHostGetDevicePointer");
    if (result != SUCCESS) return result;
    fake_hold();
    result = flags != 0 || overlapping(address, 1) == NULL ? INVALID_VALUE : SUCCESS;
    fake_release();
    *device = result == SUCCESS ? (uint64_t)(uintptr_t)address : 0;
    fake_leave();
    return result;
}

EXPORT int cuMemHostGetFlags(unsigned *flags, void *address) {
    int result = fake_enter("cuMemHostGetFlags");
    if (result != SUCCESS) return result;
    fake_hold();
    struct host *host = overlapping(address, 1);
    if (host == NULL) result = INVALID_VALUE;
    else *flags = host->flags;
    fake_release();
    fake_leave();
    return result;
}
