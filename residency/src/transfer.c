/* Out and in: physical memory leaves for the pool and comes back to the same addresses, piece by piece.
 *
 * Two streams for each device take turns: while one copies a piece, the piece of the other is done and its memory goes (or is
 * made). So another process can come in while this one goes out.
 *
 * A move that fails is taken back, so that the state is whole on one side. Nothing in the pool is given up before all is back,
 * and nothing on the device before its copy is complete; "lost" means that neither side could be made whole now.
 *
 * The pool's memory itself can be given up while the state is out, once the broker has the contents on the disk ("spilled"). Nothing
 * comes back then before the broker has said that they are in the pool again, in whatever pieces, from its beginning on.
 */
#define _GNU_SOURCE
#include "lanes.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

const char *const place_names[] = {[NOWHERE] = "none", [IN] = "in", [OUT] = "out", [SPILLED] = "spilled", [LOST] = "lost"};
static enum place torn; /* LOST after a move that could be neither finished nor taken back */
static bool spilled;    /* what is away is not in the pool */

void transfer_forked(void) {
    memset(lanes, 0, sizeof lanes);
    torn = NOWHERE;
    spilled = false;
}

static bool moves(const struct block *block) {
    int device = block->property.location.id;
    return block->stays == NULL && device >= 0 && device < MOST_DEVICES;
}

enum place memory_place(void) {
    enum place place = NOWHERE;
    memory_hold();
    for (struct block *block = blocks; block != NULL && place != OUT; block = block->next)
        for (size_t number = 0; number < block->count && moves(block) && place != OUT; number++)
            place = block->pieces[number].away ? OUT : IN;
    memory_release();
    return torn == LOST ? LOST : place == OUT && spilled ? SPILLED : place;
}

static bool failed(struct move *move, const char *call, int result) {
    snprintf(move->why, sizeof move->why, "%s: CUresult %d", call, result);
    return false;
}

/* Gives back the memory of a piece. If that fails the memory is still there, and mapped as it was, if the driver does that. */
static int leave(struct block *block, size_t number) {
    struct piece *piece = &block->pieces[number];
    int result = scratch_off(piece); /* memory that is mapped anywhere stays the process' */
    if (result == SUCCESS) result = piece_mapped(block, number, false);
    if (result != SUCCESS) return result;
    result = real_cuMemRelease()(piece->real);
    if (result != SUCCESS) piece_mapped(block, number, true);
    else piece->here = false;
    return result;
}

/* A piece has been copied: on its way out its memory goes. */
static int finish(struct move *move, const struct done *done, bool out) {
    int result = SUCCESS;
    if (done->block == NULL) return result;
    struct piece *piece = &done->block->pieces[done->number];
    if (out) {
        result = leave(done->block, done->number);
        piece->away = !piece->here;
    }
    if (result == SUCCESS) move->done += piece->size;
    if (result == SUCCESS && move->progress != NULL) move->progress(move->done, move->of);
    return result;
}

/* Memory of pieces that are away, which the driver did not take back, is given back now; or it stays, and the next way back writes
 * over it. Where a copy may still be under way it has to stay. */
static void leave_again(void) {
    for (struct block *block = blocks; block != NULL; block = block->next)
        for (size_t number = 0; number < block->count; number++) {
            struct piece *piece = &block->pieces[number];
            if (piece->away && piece->here && !piece->touched) leave(block, number);
        }
}

static int close_lanes(struct move *move, bool out, bool good) {
    int result = SUCCESS;
    for (int device = 0; device < MOST_DEVICES; device++) {
        struct lanes *pair = &lanes[device];
        if (pair->context == NULL) continue;
        real_cuCtxSetCurrent()(pair->context);
        for (int turn = 0; turn < 2; turn++) {
            struct done done;
            int ended = lane_wait(&pair->two[turn], &done);
            if (ended == SUCCESS && good && result == SUCCESS) ended = finish(move, &done, out);
            if (result == SUCCESS) result = ended;
            if (pair->two[turn].stream != NULL) real_cuStreamDestroy_v2()(pair->two[turn].stream);
        }
        memset(pair, 0, sizeof *pair);
    }
    real_cuCtxSetCurrent()(NULL);
    return result;
}

/* -- all pieces */

static bool go_out(struct move *move) {
    int result = SUCCESS;
    const char *call = "copying out";
    for (struct block *block = blocks; block != NULL && result == SUCCESS; block = block->next)
        for (size_t number = 0; moves(block) && number < block->count && result == SUCCESS; number++) {
            struct lanes *pair;
            if (block->pieces[number].away) continue;
            if ((result = open_lanes(block->property.location.id, &pair)) != SUCCESS) break;
            struct lane *lane = &pair->two[pair->turn++ % 2];
            struct done done;
            if ((result = lane_wait(lane, &done)) != SUCCESS) break;
            result = lane_copy(lane, block, number, true); /* first, so that the bus does not wait for the memory to go */
            int ended = finish(move, &done, true);
            if (result == SUCCESS) result = ended;
        }
    int ended = close_lanes(move, true, result == SUCCESS);
    if (result == SUCCESS) result = ended;
    leave_again();
    return result == SUCCESS ? true : failed(move, call, result);
}

/* Memory of another process may still be on its way out. Each piece that comes is waited for anew: in an exchange the other's
 * state leaves at the pace of the bus, however large it is. */
static int make(struct move *move, struct block *block, struct piece *piece) {
    int result = real_cuMemCreate()(&piece->real, piece->size, &block->property, block->flags);
    double until = result == OUT_OF_MEMORY ? now() + move->patience : 0;
    while (result == OUT_OF_MEMORY && now() < until) {
        struct timespec moment = {.tv_nsec = 500000};
        nanosleep(&moment, NULL);
        result = real_cuMemCreate()(&piece->real, piece->size, &block->property, block->flags);
    }
    piece->here = result == SUCCESS;
    return result;
}

/* What comes back is the pool's until all is here: then none is away any more, or everything that was made goes again. */
static bool go_in(struct move *move) {
    int result = SUCCESS;
    const char *call = "making memory";
    for (struct block *block = blocks; block != NULL && result == SUCCESS; block = block->next)
        for (size_t number = 0; moves(block) && number < block->count && result == SUCCESS; number++) {
            struct lanes *pair;
            struct piece *piece = &block->pieces[number];
            if (!piece->away) {
                result = piece_mapped(block, number, true); /* as it was before it should leave */
                continue;
            }
            if ((result = open_lanes(block->property.location.id, &pair)) != SUCCESS) break;
            struct lane *lane = &pair->two[pair->turn++ % 2];
            struct done done;
            if ((result = lane_wait(lane, &done)) != SUCCESS || (result = finish(move, &done, false)) != SUCCESS) break;
            if (!piece->here && (result = make(move, block, piece)) != SUCCESS) break;
            if ((result = piece_mapped(block, number, true)) != SUCCESS) break;
            call = "copying in";
            if ((result = lane_copy(lane, block, number, false)) == SUCCESS) call = "making memory";
        }
    int ended = close_lanes(move, false, result == SUCCESS);
    if (result == SUCCESS && (result = ended) != SUCCESS) call = "copying in";
    for (struct block *block = blocks; block != NULL && result == SUCCESS; block = block->next)
        for (size_t number = 0; number < block->count; number++) block->pieces[number].away = false;
    if (result != SUCCESS) leave_again();
    return result == SUCCESS ? true : failed(move, call, result);
}

/* Where each piece lies in the pool. Returns how many bytes there are. */
static size_t lay_out(void) {
    size_t sum = 0;
    for (struct block *block = blocks; block != NULL; block = block->next)
        for (size_t number = 0; moves(block) && number < block->count; number++) {
            block->pieces[number].at = sum;
            sum += block->pieces[number].size;
        }
    return sum;
}

static size_t amount(bool away) {
    size_t sum = 0;
    for (struct block *block = blocks; block != NULL; block = block->next)
        for (size_t number = 0; moves(block) && number < block->count; number++)
            if (block->pieces[number].away == away) sum += block->pieces[number].size;
    return sum;
}

/* A part of it is away, or does not have all of its addresses. */
static bool is_torn(void) {
    bool torn_now = amount(true) > 0 && amount(false) > 0;
    for (struct block *block = blocks; block != NULL && !torn_now; block = block->next)
        for (size_t number = 0; moves(block) && number < block->count && !torn_now; number++)
            torn_now = !block->pieces[number].away && !piece_shown(block, number);
    return torn_now;
}

bool memory_out(struct move *move) {
    memory_hold();
    allocations_sweep();
    /* Some of it may be out already, after a move that was torn: then the places hold. */
    size_t needs = amount(true) > 0 ? 0 : lay_out();
    if (amount(true) == 0) spilled = false; /* what was on the disk has been freed since */
    move->of = amount(false);
    bool good = needs <= pool_size();
    int result = good ? pool_register() : SUCCESS;
    if (!good) snprintf(move->why, sizeof move->why, "the state has %zu bytes and its part of the pool %zu", needs, pool_size());
    else if (result != SUCCESS) good = failed(move, "registering host memory", result);
    else if (!(good = go_out(move))) {
        char why[sizeof move->why];
        memcpy(why, move->why, sizeof why);
        /* Back; or, where another has taken the room already, on. */
        if (!go_in(move)) good = go_out(move);
        memcpy(move->why, why, sizeof why);
    }
    if (good) move->why[0] = 0;
    torn = is_torn() ? LOST : NOWHERE;
    memory_release();
    return good;
}

bool memory_in(struct move *move) {
    memory_hold();
    move->of = amount(true);
    bool good = !spilled || move->of == 0;
    if (!good) snprintf(move->why, sizeof move->why, "its contents are on the disk");
    else {
        good = go_in(move);
        spilled = false;
    }
    torn = is_torn() ? LOST : NOWHERE;
    memory_release();
    return good;
}

static size_t reach(void) {
    size_t end = 0;
    for (struct block *block = blocks; block != NULL; block = block->next)
        for (size_t number = 0; moves(block) && number < block->count; number++) {
            const struct piece *piece = &block->pieces[number];
            if (piece->away && piece->at + piece->size > end) end = piece->at + piece->size;
        }
    return end;
}

size_t memory_reach(void) {
    memory_hold();
    size_t end = reach();
    memory_release();
    return end;
}

/* Only what is out as a whole, and all of it. A second time, it is so already. */
bool memory_spilled(size_t bytes, char *why, size_t room) {
    memory_hold();
    size_t end = reach();
    bool good = spilled;
    if (spilled) why[0] = 0;
    else if (end == 0 || amount(false) > 0) snprintf(why, room, "the state is not out");
    else if (bytes < end) snprintf(why, room, "the state takes %zu bytes, and %zu are on the disk", end, bytes);
    else {
        int result = pool_remove_all();
        good = spilled = result == SUCCESS;
        if (!good) snprintf(why, room, "unregistering host memory: CUresult %d", result);
    }
    memory_release();
    return good;
}

bool memory_filled(size_t bytes, char *why, size_t room) {
    memory_hold();
    size_t end = reach(), size = pool_size();
    if (bytes < end || size < end)
        snprintf(why, room, "the state takes %zu bytes; of %zu in its part of the pool %zu were filled", end, size, bytes);
    else spilled = false;
    bool good = !spilled;
    memory_release();
    return good;
}

/* The driver did not take it back yet: memory on the device of pieces that are away. */
size_t memory_leaked(void) {
    size_t sum = 0;
    memory_hold();
    for (struct block *block = blocks; block != NULL; block = block->next)
        for (size_t number = 0; number < block->count; number++)
            if (block->pieces[number].away && block->pieces[number].here) sum += block->pieces[number].size;
    memory_release();
    return sum;
}

void memory_sizes(int device, size_t *movable, size_t *stays, unsigned *kinds) {
    *movable = *stays = 0;
    *kinds = 0;
    memory_hold();
    for (struct block *block = blocks; block != NULL; block = block->next) {
        if (device >= 0 && block->property.location.id != device) continue;
        *(moves(block) ? movable : stays) += block->size;
        for (int why = 0; why < STAYS && block->stays != NULL; why++)
            if (block->stays == stay_names[why]) *kinds |= 1u << why;
    }
    memory_release();
    stays_total(device, stays, kinds);
}
