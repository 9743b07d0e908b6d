/* The tables: blocks of physical memory, and the places where they are mapped.
 *
 * Physical memory is made in pieces, so that a large block can leave little by little: what is out makes room at once. The
 * program knows a block by a token of ours, because the driver's handle changes each time the block comes back.
 */
#define _GNU_SOURCE
#include "residency.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

/* Above what any address of a device or a handle of the driver is. */
#define TOKENS 0xca00000000000000ull
#define PIECE (256 * MIB)

struct block *blocks;
static void *tokens, *places; /* trees: blocks by token, mappings by address */
static handle last_token = TOKENS;
static pthread_mutex_t holding = PTHREAD_MUTEX_INITIALIZER;

void memory_hold(void) { pthread_mutex_lock(&holding); }
void memory_release(void) { pthread_mutex_unlock(&holding); }

/* What the parent had is not this process'; the driver says so as well. */
void blocks_forked(void) {
    pthread_mutex_init(&holding, NULL);
    blocks = NULL;
    tokens = places = NULL;
}

/* CARREL_RESIDENCY_PIECE: bytes; for tests, whose devices are small. */
size_t piece_size(void) {
    static size_t size;
    if (size == 0) {
        const char *set = getenv("CARREL_RESIDENCY_PIECE");
        size_t wanted = set != NULL ? (size_t)strtoull(set, NULL, 10) : 0;
        size = wanted >= 2 * MIB ? wanted / (2 * MIB) * (2 * MIB) : PIECE;
    }
    return size;
}

static int by_token(const void *a, const void *b) {
    handle one = ((const struct block *)a)->token, other = ((const struct block *)b)->token;
    return one < other ? -1 : one > other;
}

/* Mappings never overlap; "equal" is what has an address in common, so one address finds the mapping around it. */
static int by_place(const void *a, const void *b) {
    const struct mapping *one = a, *other = b;
    return one->at + one->size <= other->at ? -1 : other->at + other->size <= one->at ? 1 : 0;
}

struct block *block_by_token(handle token) {
    struct block wanted = {.token = token};
    struct block **found = tfind(&wanted, &tokens, by_token);
    return found != NULL ? *found : NULL;
}

struct mapping *mapping_at(address any) {
    struct mapping wanted = {.at = any, .size = 1};
    struct mapping **found = tfind(&wanted, &places, by_place);
    return found != NULL ? *found : NULL;
}

size_t piece_start(const struct block *block, size_t number) { return number * block->pieces[0].size; }

int scratch_off(struct piece *piece) {
    int result = piece->scratch != 0 ? real_cuMemUnmap()(piece->scratch, piece->size) : SUCCESS;
    if (result == SUCCESS && piece->scratch != 0) {
        real_cuMemAddressFree()(piece->scratch, piece->size);
        piece->scratch = 0;
    }
    return result;
}

int scratch_on(struct block *block, size_t number) {
    struct piece *piece = &block->pieces[number];
    struct access access = {{ON_DEVICE, block->property.location.id}, READ_WRITE};
    address at = piece->scratch;
    int result = SUCCESS;
    if (at == 0) {
        if ((result = real_cuMemAddressReserve()(&at, piece->size, 0, 0, 0)) != SUCCESS) return result;
        result = real_cuMemMap()(at, piece->size, 0, piece->real, 0);
        if (result == SUCCESS) piece->scratch = at;
        else real_cuMemAddressFree()(at, piece->size);
    }
    if (result == SUCCESS && (result = real_cuMemSetAccess()(at, piece->size, &access, 1)) != SUCCESS) scratch_off(piece);
    return result;
}

static void release_pieces(struct block *block) {
    for (size_t number = 0; number < block->count; number++) {
        scratch_off(&block->pieces[number]);
        if (block->pieces[number].here) real_cuMemRelease()(block->pieces[number].real);
    }
}

/* Where memory can be given to other processes there is one piece: a handle that is given away is one of the driver's. */
struct block *block_made(size_t size, const struct property *property, unsigned long long flags, size_t piece, int *result) {
    if (property->shareable != 0 || piece == 0 || piece > size) piece = size;
    size_t count = piece > 0 ? (size + piece - 1) / piece : 0;
    struct block *block = calloc(1, sizeof *block);
    struct piece *pieces = calloc(count > 0 ? count : 1, sizeof *pieces);
    *result = block == NULL || pieces == NULL ? OUT_OF_MEMORY : count == 0 ? INVALID_VALUE : SUCCESS;
    if (*result == SUCCESS) {
        *block = (struct block){.size = size, .property = *property, .flags = flags, .count = count, .pieces = pieces};
        for (size_t number = 0; number < count; number++) pieces[number].size = piece;
        pieces[count - 1].size = size - (count - 1) * piece;
    }
    for (size_t number = 0; *result == SUCCESS && number < count; number++) {
        *result = real_cuMemCreate()(&pieces[number].real, pieces[number].size, property, flags);
        pieces[number].here = *result == SUCCESS;
    }
    if (*result != SUCCESS) {
        if (block != NULL) release_pieces(block);
        free(pieces);
        free(block);
        return NULL;
    }
    if ((block->next = blocks) != NULL) blocks->previous = block;
    return blocks = block;
}

void block_named(struct block *block) {
    block->token = ++last_token;
    block->references = 1;
    tsearch(block, &tokens, by_token);
}

void block_unused(struct block *block) {
    if (block->references > 0 || block->mappings != NULL) return;
    release_pieces(block);
    if (block->token != 0) tdelete(block, &tokens, by_token);
    if (block->next != NULL) block->next->previous = block->previous;
    if (block->previous != NULL) block->previous->next = block->next;
    else blocks = block->next;
    free(block->pieces);
    free(block);
}

/* The part of a piece that a mapping shows. Returns its size, 0 where it shows nothing of it. */
static size_t shown(const struct mapping *mapping, size_t number, address *at, size_t *offset) {
    const struct block *block = mapping->block;
    size_t start = piece_start(block, number), end = start + block->pieces[number].size;
    size_t from = start > mapping->offset ? start : mapping->offset;
    size_t to = end < mapping->offset + mapping->size ? end : mapping->offset + mapping->size;
    if (from >= to) return 0;
    *at = mapping->at + (from - mapping->offset);
    *offset = from - start;
    return to - from;
}

/* What is so already is not done again, so a change that failed in its middle can be finished or taken back later. */
static int show(struct mapping *mapping, size_t number, bool into) {
    address at;
    size_t offset, size = shown(mapping, number, &at, &offset);
    unsigned char *there = &mapping->there[number];
    int result = SUCCESS;
    if (size == 0) return SUCCESS;
    if (!into && *there != NOT && (result = real_cuMemUnmap()(at, size)) == SUCCESS) *there = NOT;
    if (into && *there == NOT && (result = real_cuMemMap()(at, size, offset, mapping->block->pieces[number].real, 0)) == SUCCESS)
        *there = BARE;
    if (!into || *there != BARE) return result;
    if (mapping->allowed > 0) result = real_cuMemSetAccess()(at, size, mapping->access, (size_t)mapping->allowed);
    if (result == SUCCESS) *there = SHOWN;
    else if (real_cuMemUnmap()(at, size) == SUCCESS) *there = NOT;
    return result;
}

bool piece_shown(const struct block *block, size_t number) {
    address at;
    size_t offset;
    for (struct mapping *mapping = block->mappings; mapping != NULL; mapping = mapping->next)
        if (mapping->there[number] != SHOWN && shown(mapping, number, &at, &offset) > 0) return false;
    return true;
}

int piece_mapped(struct block *block, size_t number, bool into) {
    int result = SUCCESS;
    for (struct mapping *mapping = block->mappings; mapping != NULL && result == SUCCESS; mapping = mapping->next)
        result = show(mapping, number, into);
    /* All or nothing; where that fails too, `piece_shown` says so. */
    for (struct mapping *mapping = block->mappings; result != SUCCESS && mapping != NULL; mapping = mapping->next)
        show(mapping, number, !into);
    return result;
}

int mapping_made(struct block *block, address at, size_t size, size_t offset, struct mapping **made) {
    struct mapping *mapping = calloc(1, sizeof *mapping);
    unsigned char *there = calloc(block->count, 1);
    int result = offset <= block->size && size <= block->size - offset && size > 0 ? SUCCESS : INVALID_VALUE;
    size_t number = 0;
    if (mapping == NULL || there == NULL) result = OUT_OF_MEMORY;
    else *mapping = (struct mapping){.at = at, .size = size, .offset = offset, .asked = size, .block = block, .there = there};
    for (; result == SUCCESS && number < block->count; number++)
        if (block->pieces[number].here && (result = show(mapping, number, true)) != SUCCESS) break;
    if (result != SUCCESS) {
        while (number-- > 0) show(mapping, number, false);
        free(there);
        free(mapping);
        return result;
    }
    if ((mapping->next = block->mappings) != NULL) block->mappings->previous = mapping;
    block->mappings = mapping;
    tsearch(mapping, &places, by_place);
    *made = mapping;
    return SUCCESS;
}

int mapping_gone(struct mapping *mapping) {
    struct block *block = mapping->block;
    int result = SUCCESS;
    for (size_t number = 0; number < block->count && result == SUCCESS; number++) result = show(mapping, number, false);
    if (result != SUCCESS) return result;
    tdelete(mapping, &places, by_place);
    if (mapping->next != NULL) mapping->next->previous = mapping->previous;
    if (mapping->previous != NULL) mapping->previous->next = mapping->next;
    else block->mappings = mapping->next;
    free(mapping->there);
    free(mapping);
    block_unused(block);
    return SUCCESS;
}

/* Sets access and remembers it, one entry for each location; it is set again each time the memory comes back. */
int mapping_allow(struct mapping *mapping, const struct access *access, size_t count) {
    int result = SUCCESS;
    struct block *block = mapping->block;
    for (size_t number = 0; number < block->count && result == SUCCESS; number++) {
        address at;
        size_t offset, size = shown(mapping, number, &at, &offset);
        if (size > 0 && mapping->there[number] != NOT) result = real_cuMemSetAccess()(at, size, access, count);
    }
    for (size_t entry = 0; result == SUCCESS && entry < count; entry++) {
        int known = 0;
        while (known < mapping->allowed && memcmp(&mapping->access[known].location, &access[entry].location, sizeof(struct location)))
            known++;
        if (known == MOST_ACCESS) block->stays = "more devices see it than can be noted";
        else mapping->access[known] = access[entry];
        if (known == mapping->allowed && known < MOST_ACCESS) mapping->allowed++;
    }
    return result;
}
