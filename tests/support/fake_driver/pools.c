/* Stream-ordered memory. It is there when the call returns; a free is work of its stream, and what is freed is the device's again
 * at once: a pool keeps nothing.
 */
#define _GNU_SOURCE
#include "work.h"

#include <stdlib.h>
#include <string.h>

struct pool_properties {
    int type, exportable;
    struct {
        int type, id;
    } location;
};
struct pool {
    int ordinal;
    uint64_t threshold;
};

static struct pool defaults[MAX_DEVICES];
static struct pool *chosen[MAX_DEVICES];

static int pool_of(struct pool **pool, int ordinal, struct pool *wanted) {
    if (!fake_initialized()) return NOT_INITIALIZED;
    if (ordinal < 0 || ordinal >= MAX_DEVICES) return INVALID_DEVICE;
    defaults[ordinal].ordinal = ordinal;
    *pool = wanted != NULL ? wanted : &defaults[ordinal];
    return SUCCESS;
}

EXPORT int cuDeviceGetDefaultMemPool(struct pool **pool, int ordinal) { return pool_of(pool, ordinal, NULL); }

EXPORT int cuDeviceGetMemPool(struct pool **pool, int ordinal) {
    return pool_of(pool, ordinal, ordinal >= 0 && ordinal < MAX_DEVICES ? chosen[ordinal] : NULL);
}

EXPORT int cuDeviceSetMemPool(int ordinal, struct pool *pool) {
    if (ordinal < 0 || ordinal >= MAX_DEVICES) return INVALID_DEVICE;
    chosen[ordinal] = pool;
    return SUCCESS;
}

EXPORT int cuMemPoolCreate(struct pool **pool, const struct pool_properties *wanted) {
    int result = fake_enter("cuMemPoolCreate");
    if (result != SUCCESS) return result;
    *pool = wanted == NULL || wanted->location.type != 1 ? NULL : malloc(sizeof **pool);
    if (*pool == NULL) result = INVALID_VALUE;
    else **pool = (struct pool){.ordinal = wanted->location.id};
    fake_leave();
    return result;
}

EXPORT int cuMemPoolDestroy(struct pool *pool) {
    int result = fake_enter("cuMemPoolDestroy");
    if (result != SUCCESS) return result;
    for (int ordinal = 0; ordinal < MAX_DEVICES; ordinal++)
        if (chosen[ordinal] == pool) chosen[ordinal] = NULL;
    if (pool < defaults || pool >= defaults + MAX_DEVICES) free(pool);
    else result = INVALID_VALUE;
    fake_leave();
    return result;
}

EXPORT int cuMemPoolTrimTo(struct pool *pool, size_t keep) {
    (void)keep;
    int result = fake_enter("cuMemPoolTrimTo");
    if (result == SUCCESS) fake_leave();
    return result == SUCCESS && pool == NULL ? INVALID_VALUE : result;
}

enum { RELEASE_THRESHOLD = 4, LAST_ATTRIBUTE = 8 };

EXPORT int cuMemPoolSetAttribute(struct pool *pool, int attribute, void *value) {
    if (pool == NULL || value == NULL || attribute < 1 || attribute > LAST_ATTRIBUTE) return INVALID_VALUE;
    if (attribute == RELEASE_THRESHOLD) pool->threshold = *(uint64_t *)value;
    return SUCCESS;
}

EXPORT int cuMemPoolGetAttribute(struct pool *pool, int attribute, void *value) {
    if (pool == NULL || value == NULL || attribute < 1 || attribute > LAST_ATTRIBUTE) return INVALID_VALUE;
    if (attribute < RELEASE_THRESHOLD) *(int *)value = 1;
    else *(uint64_t *)value = attribute == RELEASE_THRESHOLD ? pool->threshold : 0;
    return SUCCESS;
}

static int is_captured(struct stream *handle) {
    pthread_mutex_lock(&fake_queues);
    struct stream *stream = fake_ordinal() < 0 ? NULL : fake_stream(handle);
    int captured = stream != NULL && stream->capture != NULL;
    pthread_mutex_unlock(&fake_queues);
    return captured;
}

EXPORT int cuMemAllocFromPoolAsync(uint64_t *address, size_t size, struct pool *pool, struct stream *stream) {
    int result = fake_enter("cuMemAllocAsync");
    if (result != SUCCESS) return result;
    if (size == 0 || pool == NULL) result = INVALID_VALUE;
    else if (fake_ordinal() < 0) result = INVALID_CONTEXT;
    else if (is_captured(stream)) result = NOT_SUPPORTED; /* nodes that allocate are beyond this driver */
    else {
        fake_hold();
        struct allocation *allocation = fake_allocate(fake_mine()->visible[pool->ordinal], size, POOLED);
        if (allocation == NULL) result = OUT_OF_MEMORY;
        else *address = allocation->address = fake_addresses(size);
        fake_release();
    }
    fake_leave();
    return result;
}

EXPORT int cuMemAllocAsync(uint64_t *address, size_t size, struct stream *stream) {
    struct pool *pool = NULL;
    int result = fake_ordinal() < 0 ? INVALID_CONTEXT : cuDeviceGetMemPool(&pool, fake_ordinal());
    return result != SUCCESS ? result : cuMemAllocFromPoolAsync(address, size, pool, stream);
}

static int discard(struct work *work) {
    int result = INVALID_VALUE;
    fake_hold();
    struct process *process = fake_mine();
    for (uint32_t slot = 0; slot < process->top && result != SUCCESS; slot++) {
        struct allocation *allocation = &process->allocations[slot];
        if (allocation->size == 0 || allocation->kind == PHYSICAL || allocation->address != work->arguments[0]) continue;
        fake_discard(allocation);
        result = SUCCESS;
    }
    fake_release();
    return result;
}

EXPORT int cuMemFreeAsync(uint64_t address, struct stream *stream) {
    if (fake_initialized() && fake_reachable(address, 1, 0) != SUCCESS) return INVALID_VALUE;
    return fake_submit("cuMemFreeAsync", stream, (struct work){.run = discard, .arguments = {address}});
}
