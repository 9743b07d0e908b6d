/* Programs that use the calls for virtual memory themselves (JAX, PyTorch's expandable segments).
 *
 * They go on with handles of ours; what those stand for is made again each time it comes back. Memory that is in host memory
 * already, or that a function knows which we don't translate for (sparse arrays), is left to the driver from its making on.
 */
#define _GNU_SOURCE
#include "residency.h"

#include <stdlib.h>

#include "own.h"

static bool movable(const struct property *property) {
    return property->type == PINNED && property->location.type == ON_DEVICE && property->flags.usage == 0;
}

EXPORT int cuMemCreate(handle *made, size_t size, const struct property *property, unsigned long long flags) {
    if (!active) return real_cuMemCreate()(made, size, property, flags);
    int result = gate_enter();
    if (result != SUCCESS) return result;
    bool nccl = by_nccl(__builtin_return_address(0));
    if (gate_depth > 1 || made == NULL || property == NULL || nccl || !movable(property)) {
        result = real_cuMemCreate()(made, size, property, flags);
        if (result == SUCCESS && nccl && gate_depth == 1) stay_began(STAY_NCCL, *made, size);
    } else {
        memory_hold();
        struct block *block = block_made(size, property, flags, piece_size(), &result);
        if (block != NULL) {
            block_named(block);
            *made = block->token;
        }
        memory_release();
    }
    gate_leave();
    return result;
}

EXPORT int cuMemRelease(handle token) {
    if (!outermost()) return real_cuMemRelease()(token);
    gate_depth++;
    memory_hold();
    struct block *block = block_by_token(token);
    int result = SUCCESS;
    if (block != NULL && block->references == 0) result = INVALID_VALUE;
    else if (block != NULL) {
        block->references--;
        block_unused(block);
    }
    memory_release();
    if (block == NULL && (result = real_cuMemRelease()(token)) == SUCCESS) stay_over(token);
    gate_depth--;
    return result;
}

EXPORT int cuMemMap(address at, size_t size, size_t offset, handle token, unsigned long long flags) {
    if (!active) return real_cuMemMap()(at, size, offset, token, flags);
    int result = gate_enter();
    if (result != SUCCESS) return result;
    memory_hold();
    struct block *block = gate_depth > 1 ? NULL : block_by_token(token);
    struct mapping *mapping;
    if (block != NULL) result = mapping_made(block, at, size, offset, &mapping);
    memory_release();
    if (block == NULL) result = real_cuMemMap()(at, size, offset, token, flags);
    gate_leave();
    return result;
}

/* Ranges are made of whole mappings, of ours and of the driver's; the stretch of one kind from `at` on. */
static size_t stretch(address at, size_t size, struct mapping **mapping) {
    *mapping = mapping_at(at);
    if (*mapping != NULL) return (*mapping)->at == at && (*mapping)->size <= size ? (*mapping)->size : 0;
    size_t step = 2 * MIB, length = step < size ? step : size;
    while (length < size && mapping_at(at + length) == NULL) length += step < size - length ? step : size - length;
    return length;
}

EXPORT int cuMemUnmap(address at, size_t size) {
    if (!outermost()) return real_cuMemUnmap()(at, size);
    int result = SUCCESS;
    gate_depth++;
    memory_hold();
    for (size_t done = 0, length; result == SUCCESS && done < size; done += length) {
        struct mapping *mapping;
        length = stretch(at + done, size - done, &mapping);
        result = length == 0 ? INVALID_VALUE : mapping != NULL ? mapping_gone(mapping) : real_cuMemUnmap()(at + done, length);
    }
    memory_release();
    gate_depth--;
    return result;
}

EXPORT int cuMemSetAccess(address at, size_t size, const struct access *access, size_t count) {
    if (!active) return real_cuMemSetAccess()(at, size, access, count);
    int result = gate_enter();
    if (result != SUCCESS) return result;
    if (gate_depth > 1) result = real_cuMemSetAccess()(at, size, access, count);
    else {
        memory_hold();
        for (size_t done = 0, length; result == SUCCESS && done < size; done += length) {
            struct mapping *mapping;
            length = stretch(at + done, size - done, &mapping);
            result = length == 0         ? INVALID_VALUE
                     : mapping != NULL ? mapping_allow(mapping, access, count)
                                         : real_cuMemSetAccess()(at + done, length, access, count);
        }
        memory_release();
    }
    gate_leave();
    return result;
}

EXPORT int cuMemRetainAllocationHandle(handle *token, void *at) {
    if (!outermost()) return real_cuMemRetainAllocationHandle()(token, at);
    memory_hold();
    struct mapping *mapping = mapping_at((address)(uintptr_t)at);
    /* Memory of cuMemAlloc has no handle, and that is how programs tell it from memory that they can give away. */
    int result = mapping == NULL ? SUCCESS : token == NULL || mapping->block->token == 0 ? INVALID_VALUE : SUCCESS;
    if (mapping != NULL && result == SUCCESS) {
        mapping->block->references++;
        *token = mapping->block->token;
    }
    memory_release();
    return mapping != NULL ? result : real_cuMemRetainAllocationHandle()(token, at);
}

/* The driver's handle of memory that goes to somebody else; from then on it stays where it is. NULL: not one of ours. */
static bool given_away(handle token, handle *real, enum stay why, int *result) {
    memory_hold();
    struct block *block = block_by_token(token);
    *result = SUCCESS;
    if (block != NULL) {
        if (block->count != 1 || !block->pieces[0].here) *result = NOT_SUPPORTED;
        else {
            *real = block->pieces[0].real;
            block->stays = stay_names[why];
        }
    }
    memory_release();
    return block != NULL;
}

EXPORT int cuMemExportToShareableHandle(void *shared, handle token, int type, unsigned long long flags) {
    handle real = token;
    int result;
    if (outermost() && given_away(token, &real, STAY_EXPORTED, &result) && result != SUCCESS) return result;
    return real_cuMemExportToShareableHandle()(shared, real, type, flags);
}

static int bind(handle group, int device, size_t at, handle token, size_t offset, size_t size, unsigned long long flags, bool old) {
    handle real = token;
    int result = active ? gate_enter() : SUCCESS;
    if (result != SUCCESS) return result;
    if (!active || gate_depth > 1 || !given_away(token, &real, STAY_MULTICAST, &result) || result == SUCCESS)
        result = old ? real_cuMulticastBindMem()(group, at, real, offset, size, flags)
                     : real_cuMulticastBindMem_v2()(group, device, at, real, offset, size, flags);
    if (active) gate_leave();
    return result;
}

EXPORT int cuMulticastBindMem(handle group, size_t at, handle token, size_t offset, size_t size, unsigned long long flags) {
    return bind(group, 0, at, token, offset, size, flags, true);
}

EXPORT int cuMulticastBindMem_v2(handle group, int device, size_t at, handle token, size_t offset, size_t size,
                                 unsigned long long flags) {
    return bind(group, device, at, token, offset, size, flags, false);
}

EXPORT int cuMemImportFromShareableHandle(handle *token, void *shared, int type) {
    int result = active ? gate_enter() : SUCCESS;
    if (result != SUCCESS) return result;
    result = real_cuMemImportFromShareableHandle()(token, shared, type);
    if (active) {
        if (result == SUCCESS) stay_began(STAY_IMPORTED, *token, 0);
        gate_leave();
    }
    return result;
}

EXPORT int cuMemGetAllocationPropertiesFromHandle(struct property *property, handle token) {
    if (outermost() && property != NULL) {
        memory_hold();
        struct block *block = block_by_token(token);
        if (block != NULL) *property = block->property;
        memory_release();
        if (block != NULL) return SUCCESS;
    }
    return real_cuMemGetAllocationPropertiesFromHandle()(property, token);
}
