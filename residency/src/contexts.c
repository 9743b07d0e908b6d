/* Contexts that live, devices that see each other's memory, and stream captures under way. */
#define _GNU_SOURCE
#include "residency.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "after.h"

#define MOST_CONTEXTS 256
#define MOST_CAPTURES 256

struct context {
    void *it; /* NULL: a free place */
    int device;
    bool primary;
};

static struct context contexts[MOST_CONTEXTS];
static uint64_t seen_by[MOST_DEVICES]; /* bit D: device D sees the memory of this one */
static uintptr_t capturing[MOST_CAPTURES]; /* streams, each plus one */
static atomic_int capture_count;
static pthread_mutex_t noting = PTHREAD_MUTEX_INITIALIZER;

void contexts_forked(void) {
    pthread_mutex_init(&noting, NULL);
    memset(contexts, 0, sizeof contexts);
    memset(seen_by, 0, sizeof seen_by);
    memset(capturing, 0, sizeof capturing);
    atomic_store(&capture_count, 0);
}

static void note(void *it, int device, bool primary) {
    pthread_mutex_lock(&noting);
    struct context *place = NULL;
    for (int number = 0; number < MOST_CONTEXTS; number++) {
        if (contexts[number].it == it) place = &contexts[number];
        if (place == NULL && contexts[number].it == NULL) place = &contexts[number];
        if (place != NULL && place->it == it) break;
    }
    if (place != NULL) *place = (struct context){.it = it, .device = device, .primary = primary};
    pthread_mutex_unlock(&noting);
}

void context_made(int result, const uintptr_t *arguments) {
    int device = 0;
    void *it = result == SUCCESS ? *(void **)arguments[0] : NULL, *before = NULL;
    if (it == NULL) return;
    /* cuCtxCreate makes it the thread's own, cuCtxFromGreenCtx does not. */
    real_cuCtxGetCurrent()(&before);
    if (before != it) real_cuCtxSetCurrent()(it);
    if (real_cuCtxGetDevice()(&device) == SUCCESS) note(it, device, false);
    if (before != it) real_cuCtxSetCurrent()(before);
}

void primary_retained(int result, const uintptr_t *arguments) {
    if (result == SUCCESS) note(*(void **)arguments[0], (int)arguments[1], true);
}

static void gone(void *it) {
    pthread_mutex_lock(&noting);
    for (int number = 0; number < MOST_CONTEXTS; number++)
        if (contexts[number].it == it) contexts[number].it = NULL;
    pthread_mutex_unlock(&noting);
    /* Memory of cuMemAlloc ends with its context, that of the calls for virtual memory does not. */
    memory_hold();
    allocations_end(it);
    stays_dropped(it);
    pool_context_gone(it);
    memory_release();
}

void context_destroyed(int result, const uintptr_t *arguments) {
    if (result == SUCCESS) gone((void *)arguments[0]);
}

void primary_released(int result, const uintptr_t *arguments) {
    unsigned flags;
    int running = 0, device = (int)arguments[0];
    if (result != SUCCESS || real_cuDevicePrimaryCtxGetState()(device, &flags, &running) != SUCCESS || running) return;
    for (int number = 0; number < MOST_CONTEXTS; number++)
        if (contexts[number].it != NULL && contexts[number].primary && contexts[number].device == device) gone(contexts[number].it);
}

static bool lives(const struct context *context) {
    unsigned flags;
    int running = 1;
    if (context->it == NULL) return false;
    return !context->primary || real_cuDevicePrimaryCtxGetState()(context->device, &flags, &running) != SUCCESS || running;
}

void *context_on(int device) {
    void *found = NULL;
    pthread_mutex_lock(&noting);
    for (int number = 0; number < MOST_CONTEXTS && found == NULL; number++)
        if (contexts[number].device == device && lives(&contexts[number])) found = contexts[number].it;
    pthread_mutex_unlock(&noting);
    return found;
}

int context_device(void *it) {
    int device = -1;
    pthread_mutex_lock(&noting);
    for (int number = 0; number < MOST_CONTEXTS && it != NULL; number++)
        if (contexts[number].it == it) device = contexts[number].device;
    pthread_mutex_unlock(&noting);
    return device;
}

size_t contexts_all(void **all, size_t room) {
    size_t count = 0;
    pthread_mutex_lock(&noting);
    for (int number = 0; number < MOST_CONTEXTS && count < room; number++)
        if (lives(&contexts[number])) all[count++] = contexts[number].it;
    pthread_mutex_unlock(&noting);
    return count;
}

/* cuCtxEnablePeerAccess opens what a device has for the current one. Memory of virtual addresses does not take part in that by
 * itself, so access is set for each block, now and when one is made. */
void peer_enabled(int result, const uintptr_t *arguments) {
    int here = -1, there = context_device((void *)arguments[0]);
    if (result != SUCCESS || real_cuCtxGetDevice()(&here) != SUCCESS) return;
    if (there < 0 || there >= MOST_DEVICES || here < 0 || here >= MOST_DEVICES) return;
    struct access access = {{ON_DEVICE, here}, READ_WRITE};
    pthread_mutex_lock(&noting);
    seen_by[there] |= (uint64_t)1 << here;
    pthread_mutex_unlock(&noting);
    memory_hold();
    for (struct block *block = blocks; block != NULL; block = block->next)
        if (block->token == 0 && block->property.location.id == there && block->mappings != NULL)
            mapping_allow(block->mappings, &access, 1);
    memory_release();
}

bool peers_of(int device, struct access *access, int *count) {
    *count = 0;
    access[(*count)++] = (struct access){{ON_DEVICE, device}, READ_WRITE};
    pthread_mutex_lock(&noting);
    uint64_t others = device >= 0 && device < MOST_DEVICES ? seen_by[device] : 0;
    pthread_mutex_unlock(&noting);
    for (int other = 0; other < MOST_DEVICES && *count < MOST_ACCESS; other++)
        if (others >> other & 1 && other != device) access[(*count)++] = (struct access){{ON_DEVICE, other}, READ_WRITE};
    return *count > 1;
}

static void capture(uintptr_t stream, bool begins) {
    uintptr_t wanted = begins ? 0 : stream + 1;
    pthread_mutex_lock(&noting);
    for (int number = 0; number < MOST_CAPTURES; number++)
        if (capturing[number] == wanted) {
            capturing[number] = begins ? stream + 1 : 0;
            atomic_fetch_add(&capture_count, begins ? 1 : -1);
            break;
        }
    pthread_mutex_unlock(&noting);
    if (!begins) agent_wake();
}

void capture_began(int result, const uintptr_t *arguments) {
    if (result == SUCCESS) capture(arguments[0], true);
}

/* Whatever came of it, the stream does not capture any more; the same for a stream that is destroyed. */
void capture_ended(int result, const uintptr_t *arguments) {
    (void)result;
    if (atomic_load(&capture_count) > 0) capture(arguments[0], false);
}

int captures(void) { return atomic_load(&capture_count); }

int device_count(void) {
    int count = 0;
    return real_cuDeviceGetCount()(&count) == SUCCESS ? count : 0;
}

bool device_uuid(int device, char text[64]) {
    unsigned char raw[16];
    if (real_cuDeviceGetUuid_v2()(raw, device) != SUCCESS) return false;
    char *at = text + sprintf(text, "GPU-");
    for (int number = 0; number < 16; number++)
        at += sprintf(at, number == 4 || number == 6 || number == 8 || number == 10 ? "-%02x" : "%02x", raw[number]);
    return true;
}
