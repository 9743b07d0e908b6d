/* The streams of a move, and the copies on them. */
#define _GNU_SOURCE
#include "lanes.h"

#include <string.h>

struct lanes lanes[MOST_DEVICES];

/* An address at which the whole piece can be read and written by its device. */
static int reachable(struct block *block, size_t number, address *at) {
    size_t start = piece_start(block, number), end = start + block->pieces[number].size;
    struct location here = {ON_DEVICE, block->property.location.id};
    for (struct mapping *mapping = block->mappings; mapping != NULL; mapping = mapping->next) {
        if (mapping->there[number] != SHOWN || mapping->offset > start || mapping->offset + mapping->size < end) continue;
        for (int entry = 0; entry < mapping->allowed; entry++)
            if (memcmp(&mapping->access[entry].location, &here, sizeof here) == 0 && mapping->access[entry].flags == READ_WRITE) {
                *at = mapping->at + (start - mapping->offset);
                return SUCCESS;
            }
    }
    int result = scratch_on(block, number);
    *at = block->pieces[number].scratch;
    return result;
}

int lane_copy(struct lane *lane, struct block *block, size_t number, bool out) {
    address at;
    int result = reachable(block, number, &at);
    size_t offset = block->pieces[number].at, left = block->pieces[number].size;
    while (left > 0 && result == SUCCESS) {
        size_t room;
        char *host = pool_at(offset, &room);
        size_t part = room < left ? room : left;
        result = out ? real_cuMemcpyDtoHAsync_v2()(host, at, part, lane->stream) : real_cuMemcpyHtoDAsync_v2()(at, host, part, lane->stream);
        at += part;
        offset += part;
        left -= part;
    }
    lane->block = block; /* also if it failed: what was begun has to end before the memory goes */
    lane->number = number;
    return result;
}

/* A copy of which the driver does not say that it has ended may still be under way: its memory must not be taken away then. */
static int settle(struct lane *lane, bool *ended) {
    int result = real_cuStreamSynchronize()(lane->stream), again = result;
    for (int try = 0; try < 3 && again != SUCCESS; try++)
        again = try < 2 ? real_cuStreamSynchronize()(lane->stream) : real_cuCtxSynchronize()();
    *ended = again == SUCCESS;
    return result;
}

int lane_wait(struct lane *lane, struct done *done) {
    bool ended;
    *done = (struct done){lane->block, lane->number};
    if (lane->block == NULL) return SUCCESS;
    int result = settle(lane, &ended);
    lane->block->pieces[lane->number].touched = !ended;
    if (ended) scratch_off(&lane->block->pieces[lane->number]); /* if that fails it is tried again when the memory has to go */
    lane->block = NULL;
    if (result != SUCCESS) done->block = NULL;
    return result;
}

int open_lanes(int device, struct lanes **found) {
    struct lanes *pair = &lanes[device];
    int result = SUCCESS;
    *found = pair;
    if (pair->context == NULL) {
        if ((pair->context = context_on(device)) == NULL) return NO_DEVICE;
        real_cuCtxSetCurrent()(pair->context);
        for (int turn = 0; turn < 2 && result == SUCCESS; turn++) result = real_cuStreamCreate()(&pair->two[turn].stream, 1);
    } else real_cuCtxSetCurrent()(pair->context);
    return result;
}
