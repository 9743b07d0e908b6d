/* How programs find the driver's functions, and how ours get in between.
 *
 * Three ways: dlsym(3) by exported names (numba, JAX, ctypes), cuGetProcAddress by names without a version (everything on top of
 * libcudart), and plain linking. Where the library is not active, and for every name that it does not know, all of them end
 * where they would have ended without it.
 */
#define _GNU_SOURCE
#include "residency.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "own.h"

#define POINTER(name, arguments) _Atomic(void *) driver_##name;
DRIVER(POINTER)
#undef POINTER

typedef void *(*finder)(void *, const char *);
static _Atomic(finder) real_dlsym;
static pthread_mutex_t claiming = PTHREAD_MUTEX_INITIALIZER;
static const struct slot **by_symbol, **by_family; /* sorted */
static size_t slots;

int driver_missing(void) { return NOT_SUPPORTED; }

/* dlvsym is not ours, so it can be asked for the dlsym that stands behind ours; its version depends on the C library's age. */
static __attribute__((noinline)) finder find_dlsym(void) {
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.27"};
    finder found = NULL;
    for (size_t number = 0; number < sizeof versions / sizeof *versions && found == NULL; number++)
        *(void **)&found = dlvsym(RTLD_NEXT, "dlsym", versions[number]);
    atomic_store(&real_dlsym, found);
    return found;
}

static void *libcuda(bool open) {
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return library != NULL || !open ? library : dlopen("libcuda.so.1", RTLD_LAZY);
}

static void *exported(const char *symbol, bool open) {
    finder find = atomic_load(&real_dlsym);
    if (find == NULL && (find = find_dlsym()) == NULL) return NULL;
    void *library = libcuda(open);
    return library != NULL ? find(library, symbol) : NULL;
}

void *driver_symbol(const char *symbol) { return exported(symbol, true); }

void *late(_Atomic(void *) *real, const char *symbol) {
    void *found = atomic_load_explicit(real, memory_order_acquire);
    if (found != NULL || symbol == NULL) return found;
    start(); /* another library's constructor may call the driver before ours has run */
    if ((found = driver_symbol(symbol)) != NULL) atomic_store(real, found);
    return found;
}

static int order_symbols(const void *a, const void *b) {
    const struct slot *one = *(const struct slot *const *)a, *other = *(const struct slot *const *)b;
    return strcmp(one->symbol != NULL ? one->symbol : "", other->symbol != NULL ? other->symbol : "");
}

static int order_families(const void *a, const void *b) {
    return strcmp((*(const struct slot *const *)a)->family, (*(const struct slot *const *)b)->family);
}

static void sort_once(void) {
    slots = gated_count + own_count;
    by_symbol = calloc(2 * slots, sizeof *by_symbol);
    if (by_symbol == NULL) {
        slots = 0; /* nothing is known then, and everything handed through */
        return;
    }
    by_family = by_symbol + slots;
    for (size_t number = 0; number < slots; number++)
        by_symbol[number] = by_family[number] =
            number < gated_count ? &gated_slots[number] : &own_slots[number - gated_count];
    qsort(by_symbol, slots, sizeof *by_symbol, order_symbols);
    qsort(by_family, slots, sizeof *by_family, order_families);
}

static void sort_slots(void) {
    static pthread_once_t sorted = PTHREAD_ONCE_INIT;
    pthread_once(&sorted, sort_once);
}

static const struct slot *slot_of_symbol(const char *symbol) {
    sort_slots();
    struct slot wanted = {.symbol = symbol};
    const struct slot *key = &wanted;
    const struct slot **found = bsearch(&key, by_symbol, slots, sizeof *by_symbol, order_symbols);
    return found != NULL ? *found : NULL;
}

static size_t first_of_family(const char *family) {
    sort_slots();
    size_t low = 0, high = slots;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(by_family[middle]->family, family) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

static bool is_other_version(const char *family, void *function) {
    char symbol[96];
    for (int version = 2; version < 6; version++) {
        snprintf(symbol, sizeof symbol, "%s_v%d", family, version);
        if (exported(symbol, false) == function) return true;
    }
    return false;
}

/* The wrapper that stands for this very function of the driver, or NULL: the function is handed through as it is. */
static void *claim(const char *family, void *function, int version) {
    size_t first = first_of_family(family), end = first;
    for (; end < slots && strcmp(by_family[end]->family, family) == 0; end++) {
        const struct slot *slot = by_family[end];
        if (slot->symbol != NULL) late(slot->real, slot->symbol);
        if (atomic_load(slot->real) == function || slot->wrapper == function) return slot->wrapper;
    }
    /* One of ours with a signature of its own: the newest that the asker's CUDA has. A version of the function that is exported
     * and that we don't know may have other arguments. */
    if (end > first && by_family[first]->since > 0 && is_other_version(family, function)) return NULL;
    const struct slot *best = NULL;
    for (size_t number = first; number < end; number++) {
        const struct slot *slot = by_family[number];
        if (slot->since > 0 && slot->since <= version && (best == NULL || slot->since > best->since)) best = slot;
    }
    if (best != NULL) {
        if (atomic_load(best->real) == NULL) atomic_store(best->real, function);
        return best->wrapper;
    }
    pthread_mutex_lock(&claiming);
    void *wrapper = NULL;
    for (size_t number = first; number < end && wrapper == NULL; number++) {
        const struct slot *slot = by_family[number];
        if (slot->symbol != NULL || slot->since > 0) continue;
        void *real = atomic_load(slot->real);
        if (real == NULL) atomic_store(slot->real, function);
        if (real == NULL || real == function) wrapper = slot->wrapper;
    }
    pthread_mutex_unlock(&claiming);
    return wrapper;
}

void lookup_forked(void) { pthread_mutex_init(&claiming, NULL); }

static __attribute__((noinline)) void *found_by_name(void *library, const char *name) {
    void *found = atomic_load(&real_dlsym)(library, name);
    start();
    if (found == NULL) return NULL;
    const struct slot *slot = slot_of_symbol(name);
    if (slot == NULL) return found;
    /* A search through the whole program ends at our name, whether there is a driver or not. */
    if (found == slot->wrapper) found = exported(name, false);
    if (found == NULL || !active) return found;
    void *none = NULL;
    if (atomic_compare_exchange_strong(slot->real, &none, found) || none == found) return slot->wrapper;
    void *other = claim(slot->family, found, slot->since);
    return other != NULL ? other : found;
}

static __attribute__((noinline)) bool is_known(const char *name) { return slot_of_symbol(name) != NULL; }

/* The ways out to `real` must be jumps (that is what gcc and clang make of them with -O2): for RTLD_NEXT and RTLD_DEFAULT the C
 * library looks at the return address to see who asks, and that must be the program and not this file. tests/residency/
 * test_lookup.py holds it to that. */
EXPORT void *dlsym(void *restrict library, const char *restrict name);
EXPORT void *dlsym(void *restrict library, const char *restrict name) {
    finder real = atomic_load_explicit(&real_dlsym, memory_order_acquire);
    if (__builtin_expect(real == NULL, 0)) real = find_dlsym();
    if (real == NULL) return NULL;
    if (library == RTLD_NEXT || name[0] != 'c' || name[1] != 'u') return real(library, name);
    if (library == RTLD_DEFAULT && !is_known(name)) return real(library, name);
    return found_by_name(library, name);
}

static _Atomic(void *) real_ask, real_ask_v2;

static void *swapped(const char *name, void *function, int version) {
    if (!active || name == NULL || function == NULL) return function;
    if (strcmp(name, "cuGetProcAddress") == 0) {
        if (function == late(&real_ask, "cuGetProcAddress")) return (void *)cuGetProcAddress;
        if (function == late(&real_ask_v2, "cuGetProcAddress_v2")) return (void *)cuGetProcAddress_v2;
        return version >= 12000 ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
    }
    void *wrapper = claim(name, function, version);
    return wrapper != NULL ? wrapper : function;
}

EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    void *real = late(&real_ask, "cuGetProcAddress");
    if (real == NULL) return NOT_INITIALIZED;
    start();
    int result = ((int (*)(const char *, void **, int, uint64_t))real)(name, function, version, flags);
    if (result == SUCCESS && function != NULL) *function = swapped(name, *function, version);
    return result;
}

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    void *real = late(&real_ask_v2, "cuGetProcAddress_v2");
    if (real == NULL) return NOT_INITIALIZED;
    start();
    int result = ((int (*)(const char *, void **, int, uint64_t, int *))real)(name, function, version, flags, status);
    if (result == SUCCESS && function != NULL) *function = swapped(name, *function, version);
    return result;
}

/* The functions of virtual.c and allocate.c: their arguments mean something to us. */
#define ROW(name, symbol, since) {#name, #symbol, (void *)symbol, &driver_##symbol, since},
const struct slot own_slots[] = {
    {"cuGetProcAddress", "cuGetProcAddress", (void *)cuGetProcAddress, &real_ask, 0},
    {"cuGetProcAddress", "cuGetProcAddress_v2", (void *)cuGetProcAddress_v2, &real_ask_v2, 0},
    OWN(ROW)
};
const size_t own_count = sizeof own_slots / sizeof *own_slots;
