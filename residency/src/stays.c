/* Memory that cannot take part: it stays on the device, counted, with the reason. */
#define _GNU_SOURCE
#include "residency.h"

#include <pthread.h>
#include <search.h>
#include <stdlib.h>

#include "after.h"

const char *const stay_names[STAYS] = {
    [STAY_SMALL] = "small allocations",
    [STAY_MANAGED] = "managed memory",
    [STAY_PITCHED] = "pitched memory",
    [STAY_POOLED] = "memory pools",
    [STAY_ARRAY] = "arrays",
    [STAY_IPC] = "CUDA IPC",
    [STAY_EXTERNAL] = "external memory",
    [STAY_MULTICAST] = "multicast",
    [STAY_NCCL] = "NCCL",
    [STAY_UNSUPPORTED] = "no virtual memory on this device",
    [STAY_IMPORTED] = "imported memory",
    [STAY_EXPORTED] = "exported memory",
};

struct kept {
    address key; /* an address, an array or a handle: what ends it */
    size_t size;
    void *context;
    int device;
    enum stay why;
};

static void *tree;
static size_t sums[MOST_DEVICES][STAYS];
static unsigned counts[MOST_DEVICES][STAYS];
static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;

void stays_forked(void) {
    pthread_mutex_init(&counting, NULL);
    tree = NULL;
    for (int device = 0; device < MOST_DEVICES; device++)
        for (int why = 0; why < STAYS; why++) sums[device][why] = counts[device][why] = 0;
}

static int by_key(const void *a, const void *b) {
    address one = ((const struct kept *)a)->key, other = ((const struct kept *)b)->key;
    return one < other ? -1 : one > other;
}

static void count(const struct kept *kept, bool more) {
    sums[kept->device][kept->why] += more ? kept->size : -kept->size;
    counts[kept->device][kept->why] += more ? 1u : -1u;
}

static void drop(struct kept *kept) {
    count(kept, false);
    tdelete(kept, &tree, by_key);
    free(kept);
}

void stay_began(enum stay why, address key, size_t size) {
    struct kept *kept = calloc(1, sizeof *kept);
    int device = 0;
    if (kept == NULL) return;
    real_cuCtxGetDevice()(&device);
    if (device < 0 || device >= MOST_DEVICES) device = 0;
    *kept = (struct kept){.key = key, .size = size, .device = device, .why = why};
    real_cuCtxGetCurrent()(&kept->context);
    pthread_mutex_lock(&counting);
    struct kept **found = tsearch(kept, &tree, by_key);
    if (found != NULL && *found == kept) count(kept, true);
    else free(kept); /* known already, as memory whose handle was given away twice */
    pthread_mutex_unlock(&counting);
}

bool stay_over(address key) {
    struct kept wanted = {.key = key};
    pthread_mutex_lock(&counting);
    struct kept **found = tfind(&wanted, &tree, by_key);
    bool known = found != NULL;
    if (known) drop(*found);
    pthread_mutex_unlock(&counting);
    return known;
}

static void *ending;
static struct kept *of_context;

static void find_one(const void *node, VISIT visit, int depth) {
    (void)depth;
    struct kept *kept = *(struct kept *const *)node;
    if ((visit == postorder || visit == leaf) && kept->context == ending) of_context = kept;
}

void stays_dropped(void *context) {
    pthread_mutex_lock(&counting);
    ending = context;
    do {
        of_context = NULL;
        twalk(tree, find_one);
        if (of_context != NULL) drop(of_context);
    } while (of_context != NULL);
    pthread_mutex_unlock(&counting);
}

/* `kinds`: a bit for each reason. Small allocations are no reason: every program has some. */
void stays_total(int device, size_t *bytes, unsigned *kinds) {
    pthread_mutex_lock(&counting);
    for (int each = 0; each < MOST_DEVICES; each++)
        for (int why = 0; why < STAYS; why++) {
            if ((device >= 0 && device != each) || counts[each][why] == 0) continue;
            *bytes += sums[each][why];
            if (why != STAY_SMALL) *kinds |= 1u << why;
        }
    pthread_mutex_unlock(&counting);
}

void stays_managed(int result, const uintptr_t *arguments) {
    if (result == SUCCESS) stay_began(STAY_MANAGED, *(address *)arguments[0], arguments[1]);
}

void stays_pitched(int result, const uintptr_t *arguments) {
    if (result == SUCCESS) stay_began(STAY_PITCHED, *(address *)arguments[0], *(size_t *)arguments[1] * arguments[3]);
}

void stays_pooled(int result, const uintptr_t *arguments) {
    if (result == SUCCESS) stay_began(STAY_POOLED, *(address *)arguments[0], arguments[1]);
}

/* The two descriptors of arrays: sizes of CUarray_format by their number, the first group unsigned, then signed, half, float. */
struct descriptor {
    size_t width, height;
    int format;
    unsigned channels;
};
struct descriptor_3d {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

static size_t volume(size_t width, size_t height, size_t depth, int format, unsigned channels) {
    size_t element = format == 0x01 || format == 0x08 ? 1 : format == 0x02 || format == 0x09 || format == 0x10 ? 2 : 4;
    return width * (height > 0 ? height : 1) * (depth > 0 ? depth : 1) * element * (channels > 0 ? channels : 1);
}

void stays_array(int result, const uintptr_t *arguments) {
    if (result != SUCCESS) return;
    const struct descriptor *about = (const struct descriptor *)arguments[1];
    stay_began(STAY_ARRAY, *(uintptr_t *)arguments[0], volume(about->width, about->height, 0, about->format, about->channels));
}

void stays_array_3d(int result, const uintptr_t *arguments) {
    if (result != SUCCESS) return;
    const struct descriptor_3d *about = (const struct descriptor_3d *)arguments[1];
    stay_began(STAY_ARRAY, *(uintptr_t *)arguments[0],
               volume(about->width, about->height, about->depth, about->format, about->channels));
}

void stays_external(int result, const uintptr_t *arguments) {
    if (result == SUCCESS) stay_began(STAY_EXTERNAL, *(uintptr_t *)arguments[0], 0);
}

void stays_multicast(int result, const uintptr_t *arguments) {
    if (result == SUCCESS) stay_began(STAY_MULTICAST, *(handle *)arguments[0], 0);
}

/* Multicast to an address: the memory behind it is bound, so it cannot be exchanged for other memory. The second version of the
 * call has a device before the other arguments. */
void stays_bound(int result, const uintptr_t *arguments) {
    if (result != SUCCESS) return;
    memory_hold();
    for (int place = 2; place < 4; place++) {
        struct mapping *mapping = mapping_at(arguments[place]);
        if (mapping != NULL) mapping->block->stays = stay_names[STAY_MULTICAST];
    }
    memory_release();
}

void stay_ended(int result, const uintptr_t *arguments) {
    if (result == SUCCESS) stay_over(arguments[0]);
}
