/* Addresses and memory apart: cuMemAddressReserve gives the one, cuMemCreate the other, cuMemMap joins them.
 *
 * Reservations and mappings concern nobody but this process. The memory is in physical.c.
 */
#define _GNU_SOURCE
#include "cuda.h"

#include <stdlib.h>

enum { LOCATION_DEVICE = 1, READ = 1, READ_WRITE = 3 };

struct location {
    int type, id;
};
struct access {
    struct location location;
    int flags;
};

struct range {
    uint64_t address, size;
};
struct mapping {
    struct range at;
    struct allocation *memory;
    unsigned char access[MAX_DEVICES]; /* by ordinal */
};

static struct range *reservations;
static struct mapping *mappings;
static size_t reserved, mapped;

void fake_forget_mappings(void) { reserved = mapped = 0; }

static int inside(uint64_t address, uint64_t size, const struct range *range) {
    return size <= range->size && address >= range->address && address - range->address <= range->size - size;
}

static int apart(uint64_t address, uint64_t size, const struct range *range) {
    return address + size <= range->address || range->address + range->size <= address;
}

static int aligned(uint64_t number) { return number % GRANULARITY == 0; }

/* A wish for an address is granted where nothing is, and otherwise ignored. */
static int free_from(uint64_t address, uint64_t size) {
    struct process *process = fake_mine();
    if (address < FIRST_ADDRESS || !aligned(address) || address + size < address) return 0;
    for (size_t index = 0; index < reserved; index++)
        if (!apart(address, size, &reservations[index])) return 0;
    for (uint32_t slot = 0; slot < process->top; slot++) {
        struct range range = {process->allocations[slot].address, process->allocations[slot].size};
        if (range.size != 0 && process->allocations[slot].kind != PHYSICAL && !apart(address, size, &range)) return 0;
    }
    return 1;
}

static int reserve(uint64_t *address, uint64_t size, uint64_t alignment, uint64_t wish) {
    struct range *longer = realloc(reservations, (reserved + 1) * sizeof *reservations);
    struct process *process = fake_mine();
    if (longer == NULL) return OUT_OF_MEMORY;
    reservations = longer;
    if (!free_from(wish, size)) {
        if (alignment < GRANULARITY) alignment = GRANULARITY;
        wish = (process->next + alignment - 1) / alignment * alignment;
        while (!free_from(wish, size)) wish += alignment;
    }
    if (process->next < wish + size + GRANULARITY) process->next = wish + size + GRANULARITY;
    reservations[reserved++] = (struct range){wish, size};
    *address = wish;
    return SUCCESS;
}

EXPORT int cuMemAddressReserve(uint64_t *address, size_t size, size_t alignment, uint64_t wish, unsigned long long flags) {
    int result = fake_enter("cuMemAddressReserve");
    if (result != SUCCESS) return result;
    fake_hold();
    int odd = size == 0 || !aligned(size) || (alignment & (alignment - 1)) != 0 || flags != 0 || size >> 46 != 0;
    result = odd ? INVALID_VALUE : reserve(address, size, alignment, wish);
    fake_release();
    fake_leave();
    return result;
}

EXPORT int cuMemAddressFree(uint64_t address, size_t size) {
    int result = fake_enter("cuMemAddressFree");
    if (result != SUCCESS) return result;
    fake_hold();
    result = INVALID_VALUE;
    for (size_t index = 0; index < reserved; index++) {
        if (reservations[index].address != address || reservations[index].size != size) continue;
        int used = 0;
        for (size_t number = 0; number < mapped; number++) used |= !apart(address, size, &mappings[number].at);
        if (used) break;
        reservations[index] = reservations[--reserved];
        result = SUCCESS;
        break;
    }
    fake_release();
    fake_leave();
    return result;
}

static int map(uint64_t address, uint64_t size, struct allocation *memory) {
    size_t index = 0;
    while (index < reserved && !inside(address, size, &reservations[index])) index++;
    if (index == reserved) return INVALID_VALUE;
    for (size_t number = 0; number < mapped; number++)
        if (!apart(address, size, &mappings[number].at)) return INVALID_VALUE;
    struct mapping *longer = realloc(mappings, (mapped + 1) * sizeof *mappings);
    if (longer == NULL) return OUT_OF_MEMORY;
    mappings = longer;
    mappings[mapped++] = (struct mapping){.at = {address, size}, .memory = memory};
    memory->mappings++;
    return SUCCESS;
}

EXPORT int cuMemMap(uint64_t address, size_t size, size_t offset, uint64_t handle, unsigned long long flags) {
    int result = fake_enter("cuMemMap");
    if (result != SUCCESS) return result;
    fake_hold();
    struct allocation *memory = fake_by_handle(handle);
    int odd = memory == NULL || size == 0 || !aligned(address) || !aligned(size) || offset != 0 || flags != 0;
    result = odd || size > memory->size ? INVALID_VALUE : map(address, size, memory);
    fake_release();
    fake_leave();
    return result;
}

/* Bytes of the range that whole mappings cover; a range that begins or ends within one, or has a gap, is not covered. */
static int covered(uint64_t address, uint64_t size) {
    uint64_t sum = 0;
    for (size_t number = 0; number < mapped; number++) {
        struct range whole = {address, size};
        if (inside(mappings[number].at.address, mappings[number].at.size, &whole)) sum += mappings[number].at.size;
    }
    return size != 0 && sum == size;
}

EXPORT int cuMemUnmap(uint64_t address, size_t size) {
    int result = fake_enter("cuMemUnmap");
    if (result != SUCCESS) return result;
    fake_hold();
    result = covered(address, size) ? SUCCESS : INVALID_VALUE;
    for (size_t number = 0; result == SUCCESS && number < mapped;) {
        if (apart(address, size, &mappings[number].at)) {
            number++;
            continue;
        }
        mappings[number].memory->mappings--;
        fake_drop_unused(mappings[number].memory);
        mappings[number] = mappings[--mapped];
    }
    fake_release();
    fake_leave();
    return result;
}

static int allow(uint64_t address, uint64_t size, const struct access *wanted, size_t count) {
    if (wanted == NULL || count == 0 || !covered(address, size)) return INVALID_VALUE;
    for (size_t index = 0; index < count; index++) {
        const struct access *one = &wanted[index];
        if (one->location.type != LOCATION_DEVICE) return NOT_SUPPORTED;
        if (one->location.id < 0 || one->location.id >= fake_mine()->visible_count) return INVALID_DEVICE;
        if (one->flags != 0 && one->flags != READ && one->flags != READ_WRITE) return INVALID_VALUE;
    }
    for (size_t number = 0; number < mapped; number++)
        for (size_t index = 0; index < count && !apart(address, size, &mappings[number].at); index++)
            mappings[number].access[wanted[index].location.id] = (unsigned char)wanted[index].flags;
    return SUCCESS;
}

EXPORT int cuMemSetAccess(uint64_t address, size_t size, const struct access *wanted, size_t count) {
    int result = fake_enter("cuMemSetAccess");
    if (result != SUCCESS) return result;
    fake_hold();
    result = allow(address, size, wanted, count);
    fake_release();
    fake_leave();
    return result;
}

static struct mapping *mapping_of(uint64_t address) {
    for (size_t number = 0; number < mapped; number++)
        if (inside(address, 1, &mappings[number].at)) return &mappings[number];
    return NULL;
}

EXPORT int cuMemGetAccess(unsigned long long *flags, const struct location *location, uint64_t address) {
    if (!fake_initialized()) return NOT_INITIALIZED;
    if (flags == NULL || location == NULL || location->type != LOCATION_DEVICE) return INVALID_VALUE;
    if (location->id < 0 || location->id >= MAX_DEVICES) return INVALID_DEVICE;
    fake_hold();
    struct mapping *mapping = mapping_of(address);
    if (mapping != NULL) *flags = mapping->access[location->id];
    fake_release();
    return mapping != NULL ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuMemRetainAllocationHandle(uint64_t *handle, void *address) {
    int result = fake_enter("cuMemRetainAllocationHandle");
    if (result != SUCCESS) return result;
    fake_hold();
    struct mapping *mapping = mapping_of((uint64_t)(uintptr_t)address);
    if (mapping != NULL) {
        mapping->memory->references++;
        *handle = fake_handle_of(mapping->memory);
    } else result = INVALID_VALUE;
    fake_release();
    fake_leave();
    return result;
}

int fake_mapped_at(uint64_t address, int write, struct piece *piece) {
    struct mapping *mapping = mapping_of(address);
    if (mapping == NULL) return INVALID_VALUE;
    int best = 0;
    for (int ordinal = 0; ordinal < MAX_DEVICES; ordinal++) best |= mapping->access[ordinal];
    if (best < (write ? READ_WRITE : READ)) return ILLEGAL_ADDRESS;
    *piece = (struct piece){.offset = (off_t)(address - mapping->at.address), .begin = mapping->at.address};
    piece->length = mapping->at.size;
    piece->kind = PHYSICAL;
    piece->allocation = mapping->memory;
    piece->size = mapping->at.size - (size_t)piece->offset;
    fake_file(piece->path, sizeof piece->path, fake_mine(), mapping->memory, 1);
    return SUCCESS;
}
