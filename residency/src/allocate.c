/* cuMemAlloc through the calls for virtual memory: an address range of its own, with physical memory that can leave and come back. */
#define _GNU_SOURCE
#include "residency.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "own.h"

#define GRANULE (2 * MIB)

/* NCCL gives its buffers to other processes and to network cards, which hold on to the memory itself and not to its address. */
bool by_nccl(void *caller) {
    Dl_info about;
    if (dladdr(caller, &about) == 0 || about.dli_fname == NULL) return false;
    const char *name = strrchr(about.dli_fname, '/');
    return strncmp(name != NULL ? name + 1 : about.dli_fname, "libnccl", 7) == 0;
}

static int plain(address *at, size_t size, enum stay why) {
    int result = real_cuMemAlloc_v2()(at, size);
    if (result == SUCCESS) stay_began(why, *at, size);
    return result;
}

static int with_pages(address *at, size_t size, size_t asked, int device, void *context) {
    struct property property;
    struct access access[MOST_ACCESS];
    int result, allowed;
    memset(&property, 0, sizeof property); /* padding too: the driver compares */
    property.type = PINNED;
    property.location = (struct location){ON_DEVICE, device};
    if ((result = real_cuMemAddressReserve()(at, size, 0, 0, 0)) != SUCCESS) return result;
    peers_of(device, access, &allowed);
    memory_hold();
    struct mapping *mapping = NULL;
    struct block *block = block_made(size, &property, 0, piece_size(), &result);
    if (block != NULL) {
        result = mapping_made(block, *at, size, 0, &mapping);
        if (result != SUCCESS) block_unused(block);
    }
    if (mapping != NULL) {
        mapping->asked = asked;
        block->context = context;
        if ((result = mapping_allow(mapping, access, (size_t)allowed)) != SUCCESS) mapping_gone(mapping);
    }
    memory_release();
    if (result != SUCCESS) real_cuMemAddressFree()(*at, size);
    return result;
}

static int allocate(address *at, size_t asked, void *caller) {
    void *context = NULL;
    int device = 0, result;
    if (at == NULL || asked == 0) return real_cuMemAlloc_v2()(at, asked); /* it has an error for that */
    if (asked < GRANULE) return plain(at, asked, STAY_SMALL);
    if (by_nccl(caller)) return plain(at, asked, STAY_NCCL);
    if ((result = real_cuCtxGetDevice()(&device)) != SUCCESS) return result;
    real_cuCtxGetCurrent()(&context);
    if (asked > SIZE_MAX - GRANULE) return OUT_OF_MEMORY;
    result = with_pages(at, (asked + GRANULE - 1) / GRANULE * GRANULE, asked, device, context);
    return result == NOT_SUPPORTED ? plain(at, asked, STAY_UNSUPPORTED) : result;
}

EXPORT int cuMemAlloc_v2(address *at, size_t size) {
    if (!active) return real_cuMemAlloc_v2()(at, size);
    int result = gate_enter();
    if (result != SUCCESS) return result;
    result = gate_depth > 1 ? real_cuMemAlloc_v2()(at, size) : allocate(at, size, __builtin_return_address(0));
    gate_leave();
    return result;
}

static struct mapping *own_at(address at) {
    struct mapping *mapping = mapping_at(at);
    return mapping != NULL && mapping->block->token == 0 ? mapping : NULL;
}

/* Takes back an allocation of ours, here or away. */
static int end(struct mapping *mapping) {
    address at = mapping->at;
    size_t size = mapping->size;
    int result = mapping_gone(mapping);
    return result == SUCCESS ? real_cuMemAddressFree()(at, size) : result;
}

static void synchronize(void *context) {
    void *before = NULL;
    real_cuCtxGetCurrent()(&before);
    if (before != context) real_cuCtxSetCurrent()(context);
    real_cuCtxSynchronize()();
    if (before != context) real_cuCtxSetCurrent()(before);
}

void allocations_sweep(void) {
    for (struct block *block = blocks, *next; block != NULL; block = next) {
        next = block->next;
        if (block->ended && block->mappings != NULL) end(block->mappings);
    }
}

/* cuMemFree waits for what still uses the memory; cuMemUnmap would take it away. The table is not locked meanwhile: work may take
 * long. While a stream captures nothing may wait for a context, so what is freed then goes with the next that is freed. */
static int free_here(address at, void *context) {
    bool now = captures() == 0;
    if (now) synchronize(context);
    memory_hold();
    struct mapping *mapping = own_at(at);
    int result = mapping != NULL ? SUCCESS : INVALID_VALUE;
    if (mapping != NULL && !now) mapping->block->ended = true;
    if (mapping != NULL && now) {
        result = end(mapping);
        allocations_sweep();
    }
    memory_release();
    return result;
}

/* No lease is needed to let go of something: the memory of a process that ends must not wait for a device. */
EXPORT int cuMemFree_v2(address at) {
    if (!outermost() || at == 0) return real_cuMemFree_v2()(at);
    gate_depth++;
    memory_hold();
    struct mapping *mapping = own_at(at);
    bool ours = mapping != NULL, whole = ours && mapping->at == at && !mapping->block->ended;
    bool here = whole && mapping->block->pieces[0].here;
    void *context = whole ? mapping->block->context : NULL;
    int result = !whole ? INVALID_VALUE : here ? SUCCESS : end(mapping);
    memory_release();
    if (here) result = free_here(at, context);
    if (!ours && (result = real_cuMemFree_v2()(at)) == SUCCESS) stay_over(at);
    gate_depth--;
    return result;
}

void allocations_end(void *context) {
    for (struct block *block = blocks, *next; block != NULL; block = next) {
        next = block->next;
        if (block->token == 0 && block->context == context && block->mappings != NULL) end(block->mappings);
    }
}

EXPORT int cuMemGetAddressRange_v2(address *base, size_t *size, address at) {
    if (outermost()) {
        memory_hold();
        struct mapping *mapping = mapping_at(at);
        if (mapping != NULL) {
            if (base != NULL) *base = mapping->at;
            if (size != NULL) *size = mapping->asked;
        }
        memory_release();
        if (mapping != NULL) return SUCCESS;
    }
    return real_cuMemGetAddressRange_v2()(base, size, at);
}

/* The other process would hold on to this very memory, and it could never leave. */
EXPORT int cuIpcGetMemHandle(void *shared, address at) {
    if (!outermost()) return real_cuIpcGetMemHandle()(shared, at);
    memory_hold();
    bool ours = own_at(at) != NULL;
    memory_release();
    if (ours) {
        say("GPU memory of this process moves, so it cannot be shared with another process (cuIpcGetMemHandle). To share it, start "
            "the program with CARREL_RESIDENCY=off; its memory then stays on the GPU.");
        return NOT_SUPPORTED;
    }
    int result = real_cuIpcGetMemHandle()(shared, at);
    if (result == SUCCESS) stay_began(STAY_IPC, at, 0);
    return result;
}

_Atomic(void *) driver_cuIpcOpenMemHandle_v2;

EXPORT int cuIpcOpenMemHandle_v2(address *at, struct ipc_handle shared, unsigned flags) {
    void *real = late(&driver_cuIpcOpenMemHandle_v2, "cuIpcOpenMemHandle_v2");
    if (real == NULL) return NOT_INITIALIZED;
    int result = active ? gate_enter() : SUCCESS;
    if (result != SUCCESS) return result;
    result = ((int (*)(address *, struct ipc_handle, unsigned))real)(at, shared, flags);
    if (active) {
        if (result == SUCCESS) stay_began(STAY_IPC, *at, 0);
        gate_leave();
    }
    return result;
}

/* The first call of all. A process whose devices come with its first lease waits for that here. */
EXPORT int cuInit(unsigned flags) {
    start();
    if (!active || !devices_wanted()) return real_cuInit()(flags);
    int result = gate_enter();
    if (result != SUCCESS) return result;
    devices_see();
    result = real_cuInit()(flags);
    gate_leave();
    return result;
}
