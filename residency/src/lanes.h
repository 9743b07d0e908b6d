/* The streams of a move: two for each device, which take turns. */
#ifndef CARREL_RESIDENCY_LANES_H
#define CARREL_RESIDENCY_LANES_H

#include "residency.h"

struct lane {
    void *stream;
    struct block *block; /* of the piece under way, or NULL */
    size_t number;
};

struct lanes { /* of one device */
    void *context;
    struct lane two[2];
    int turn;
};

struct done { /* a piece whose copy is complete */
    struct block *block;
    size_t number;
};

extern struct lanes lanes[MOST_DEVICES];
int open_lanes(int device, struct lanes **found);
int lane_copy(struct lane *lane, struct block *block, size_t number, bool out); /* begins a copy between a piece and the pool */
int lane_wait(struct lane *lane, struct done *done);                            /* for it; the lane is free then */

#endif
