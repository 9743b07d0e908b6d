/* What the driver tells about addresses. */
#define _GNU_SOURCE
#include "cuda.h"

#include <stddef.h>
#include <string.h>

enum {
    CONTEXT = 1,
    MEMORY_TYPE = 2,
    DEVICE_POINTER = 3,
    HOST_POINTER = 4,
    SYNC_MEMOPS = 6,
    BUFFER_ID = 7,
    IS_MANAGED = 8,
    DEVICE_ORDINAL = 9,
    IPC_CAPABLE = 10,
    RANGE_START = 11,
    RANGE_SIZE = 12,
    MAPPED = 13,
    HANDLE_TYPES = 14,
    ACCESS_FLAGS = 16,
    MEMORY_POOL = 17
};

static int ordinal_of(const struct piece *piece) {
    int found = fake_ordinal() < 0 ? 0 : fake_ordinal();
    if (piece->allocation == NULL) return found;
    fake_hold();
    struct process *process = fake_mine();
    for (int ordinal = process->visible_count - 1; ordinal >= 0; ordinal--)
        if (process->visible[ordinal] == piece->allocation->device) found = ordinal;
    fake_release();
    return found;
}

/* Sizes of the answers differ: pointers and sizes have 8 bytes, types and ordinals 4, truth values 1. */
static int tell(void *value, int attribute, uint64_t address, const struct piece *piece) {
    int host = piece->kind == HOST;
    switch (attribute) {
    case CONTEXT: *(void **)value = piece->kind == PHYSICAL || piece->kind == POOLED ? NULL : fake_context(); break;
    case MEMORY_TYPE: *(unsigned *)value = host ? 1 : 2; break;
    case DEVICE_POINTER: *(uint64_t *)value = address; break;
    case HOST_POINTER: *(uint64_t *)value = piece->host != NULL ? address : 0; return piece->host != NULL ? SUCCESS : INVALID_VALUE;
    case SYNC_MEMOPS: *(unsigned char *)value = 0; break;
    case BUFFER_ID: *(uint64_t *)value = piece->allocation != NULL ? piece->allocation->number + 1 : piece->begin; break;
    case IS_MANAGED: *(unsigned char *)value = piece->kind == MANAGED; break;
    case DEVICE_ORDINAL: *(int *)value = ordinal_of(piece); break;
    case IPC_CAPABLE: *(unsigned char *)value = piece->kind == PLAIN; break;
    case RANGE_START: *(uint64_t *)value = piece->begin; break;
    case RANGE_SIZE: *(uint64_t *)value = piece->length; break;
    case MAPPED: *(unsigned char *)value = 1; break;
    case HANDLE_TYPES: *(uint64_t *)value = piece->allocation != NULL ? piece->allocation->exportable : 0; break;
    case ACCESS_FLAGS: *(unsigned *)value = 3; break;
    case MEMORY_POOL: *(void **)value = NULL; break;
    default: return NOT_SUPPORTED;
    }
    return SUCCESS;
}

EXPORT int cuPointerGetAttribute(void *value, int attribute, uint64_t address) {
    struct piece piece;
    if (!fake_initialized()) return NOT_INITIALIZED;
    if (value == NULL || fake_piece(address, 0, &piece) != SUCCESS) return INVALID_VALUE;
    return tell(value, attribute, address, &piece);
}

/* Unlike the call for one, this does not fail for an address that the driver does not know: the answers are nought then. */
EXPORT int cuPointerGetAttributes(unsigned count, const int *attributes, void **values, uint64_t address) {
    static const unsigned char sizes[] = {[CONTEXT] = 8, [MEMORY_TYPE] = 4, [DEVICE_POINTER] = 8, [HOST_POINTER] = 8,
        [SYNC_MEMOPS] = 1, [BUFFER_ID] = 8, [IS_MANAGED] = 1, [DEVICE_ORDINAL] = 4, [IPC_CAPABLE] = 1, [RANGE_START] = 8,
        [RANGE_SIZE] = 8, [MAPPED] = 1, [HANDLE_TYPES] = 8, [ACCESS_FLAGS] = 4, [MEMORY_POOL] = 8};
    struct piece piece;
    if (!fake_initialized()) return NOT_INITIALIZED;
    int known = fake_piece(address, 0, &piece) == SUCCESS;
    for (unsigned index = 0; index < count; index++) {
        int attribute = attributes[index];
        if (attribute < CONTEXT || attribute > MEMORY_POOL) return INVALID_VALUE;
        memset(values[index], 0, sizes[attribute]);
        if (known) tell(values[index], attribute, address, &piece);
        else if (attribute == DEVICE_ORDINAL) *(int *)values[index] = -2; /* CU_DEVICE_INVALID */
    }
    return SUCCESS;
}

EXPORT int cuPointerSetAttribute(const void *value, int attribute, uint64_t address) {
    struct piece piece;
    if (!fake_initialized()) return NOT_INITIALIZED;
    return value == NULL || attribute != SYNC_MEMOPS || fake_piece(address, 0, &piece) != SUCCESS ? INVALID_VALUE : SUCCESS;
}

EXPORT int cuMemGetAddressRange_v2(uint64_t *begin, size_t *size, uint64_t address) {
    struct piece piece;
    if (!fake_initialized()) return NOT_INITIALIZED;
    if (fake_piece(address, 0, &piece) != SUCCESS) return NOT_FOUND;
    if (begin != NULL) *begin = piece.begin;
    if (size != NULL) *size = piece.length;
    return SUCCESS;
}
