/* Memory that several processes (IPC) or several devices (peers) use. */
#define _GNU_SOURCE
#include "work.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC 0x6361727265ull

struct ipc_handle { /* 64 bytes, as the real one */
    uint64_t magic, size, number, start;
    int32_t pid;
    char rest[28];
};

struct opened {
    uint64_t address, size;
    char path[4096];
};

static struct opened *opened;
static int count;
static unsigned char enabled[MAX_DEVICES][MAX_DEVICES]; /* from, to: by ordinal */

void fake_forget_shared(void) {
    count = 0;
    memset(enabled, 0, sizeof enabled);
}

/* Only what cuMemAlloc gave: mapped memory and that of pools has handles of other kinds. */
EXPORT int cuIpcGetMemHandle(struct ipc_handle *handle, uint64_t address) {
    int result = fake_enter("cuIpcGetMemHandle");
    if (result != SUCCESS) return result;
    struct piece piece;
    result = fake_piece(address, 0, &piece) != SUCCESS || piece.kind != PLAIN ? INVALID_VALUE : SUCCESS;
    if (result == SUCCESS) {
        fake_hold();
        struct process *process = fake_mine();
        memset(handle, 0, sizeof *handle);
        *handle = (struct ipc_handle){.magic = MAGIC, .size = piece.length, .number = piece.allocation->number, .pid = getpid()};
        handle->start = process->start;
        process->shared++;
        fake_release();
    }
    fake_leave();
    return result;
}

static int open_shared(uint64_t *address, const struct ipc_handle *handle) {
    struct process *owner = fake_find(handle->pid);
    if (owner == NULL || owner->start != handle->start) return INVALID_VALUE;
    if (owner == fake_mine()) return INVALID_CONTEXT;
    struct allocation named = {.number = (uint32_t)handle->number};
    struct opened *longer = realloc(opened, (size_t)(count + 1) * sizeof *opened);
    if (longer == NULL) return OUT_OF_MEMORY;
    opened = longer;
    struct opened *made = &opened[count++];
    made->size = handle->size;
    *address = made->address = fake_addresses(made->size);
    fake_file(made->path, sizeof made->path, owner, &named, 1);
    fake_mine()->shared++;
    return access(made->path, R_OK | W_OK) == 0 ? SUCCESS : (count--, INVALID_VALUE);
}

EXPORT int cuIpcOpenMemHandle_v2(uint64_t *address, struct ipc_handle handle, unsigned flags) {
    (void)flags;
    int result = fake_enter("cuIpcOpenMemHandle");
    if (result != SUCCESS) return result;
    fake_hold();
    result = fake_ordinal() < 0 ? INVALID_CONTEXT : handle.magic != MAGIC ? INVALID_VALUE : open_shared(address, &handle);
    fake_release();
    fake_leave();
    return result;
}

EXPORT int cuIpcCloseMemHandle(uint64_t address) {
    int result = fake_enter("cuIpcCloseMemHandle");
    if (result != SUCCESS) return result;
    result = INVALID_VALUE;
    fake_hold();
    for (int index = 0; index < count && result != SUCCESS; index++)
        if (opened[index].address == address) {
            opened[index] = opened[--count];
            fake_mine()->shared--;
            result = SUCCESS;
        }
    fake_release();
    fake_leave();
    return result;
}

int fake_opened_at(uint64_t address, struct piece *piece) {
    for (int index = 0; index < count; index++) {
        struct opened *one = &opened[index];
        if (address < one->address || address >= one->address + one->size) continue;
        *piece = (struct piece){.offset = (off_t)(address - one->address), .begin = one->address, .length = one->size, .kind = OPENED};
        piece->size = one->size - (size_t)piece->offset;
        memcpy(piece->path, one->path, sizeof piece->path);
        return SUCCESS;
    }
    return INVALID_VALUE;
}

static int visible(void) {
    fake_hold();
    int seen = fake_mine() != NULL ? fake_mine()->visible_count : 0;
    fake_release();
    return seen;
}

EXPORT int cuDeviceCanAccessPeer(int *can, int from, int to) {
    if (!fake_initialized()) return NOT_INITIALIZED;
    int seen = visible();
    if (from < 0 || to < 0 || from >= seen || to >= seen) return INVALID_DEVICE;
    *can = from != to;
    return SUCCESS;
}

EXPORT int cuCtxGetDevice(int *ordinal);
EXPORT int cuCtxPushCurrent_v2(void *context);
EXPORT int cuCtxPopCurrent_v2(void **context);

static int peer_of(void *context, int *ordinal) {
    if (fake_ordinal() < 0 || context == NULL || cuCtxPushCurrent_v2(context) != SUCCESS) return INVALID_CONTEXT;
    int result = cuCtxGetDevice(ordinal);
    cuCtxPopCurrent_v2(NULL);
    return result;
}

static int set_peer(const char *call, void *context, unsigned char wanted) {
    int peer = -1, result = fake_enter(call);
    if (result != SUCCESS) return result;
    result = peer_of(context, &peer);
    if (result == SUCCESS && peer == fake_ordinal()) result = INVALID_DEVICE;
    else if (result == SUCCESS && enabled[fake_ordinal()][peer] == wanted)
        result = wanted ? PEER_ACCESS_ALREADY_ENABLED : PEER_ACCESS_NOT_ENABLED;
    if (result == SUCCESS) enabled[fake_ordinal()][peer] = wanted;
    fake_leave();
    return result;
}

EXPORT int cuCtxEnablePeerAccess(void *context, unsigned flags) {
    return flags != 0 ? INVALID_VALUE : set_peer("cuCtxEnablePeerAccess", context, 1);
}

EXPORT int cuCtxDisablePeerAccess(void *context) { return set_peer("cuCtxDisablePeerAccess", context, 0); }
