/* Host memory that the broker gave, in pieces: mapped, and registered with the driver before anything has to move.
 *
 * The pieces lie one after the other in a space of their own, in which a state is laid out; a copy never spans two of them. The
 * agent's thread alone uses this file, except for what a context takes with it.
 */
#define _GNU_SOURCE
#include "residency.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_PIECES 200 /* their descriptors must fit into one message */
#define PORTABLE 1      /* CU_MEMHOSTREGISTER_PORTABLE: pinned for every context */
#define POPULATE_WRITE 23 /* MADV_POPULATE_WRITE of Linux 5.14; an older one refuses it */

struct part {
    long long id;
    int file;
    size_t size, start;
    char *memory;
    _Atomic(void *) context; /* in which it is registered, or NULL */
};

static struct part parts[MOST_PIECES];
static size_t count;

void pool_forked(void) {
    for (size_t number = 0; number < count; number++) close(parts[number].file); /* the mapping is not in the child */
    count = 0;
}

static void lay_out(void) {
    size_t start = 0;
    for (size_t number = 0; number < count; number++) {
        parts[number].start = start;
        start += parts[number].size;
    }
}

int pool_add(long long id, int file, size_t size) {
    for (size_t number = 0; number < count; number++)
        if (parts[number].id == id) {
            close(file);
            return 0; /* told again by a broker that was restarted */
        }
    char *memory = count < MOST_PIECES && size > 0 ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    if (memory == MAP_FAILED) {
        close(file);
        return -1;
    }
    madvise(memory, size, MADV_HUGEPAGE); /* where the machine allows that for memory of several processes */
    madvise(memory, size, POPULATE_WRITE); /* page by page, in cuMemHostRegister, it takes twice as long */
    madvise(memory, size, MADV_DONTFORK); /* a child must not keep what the broker gives to others later */
    parts[count].id = id;
    parts[count].file = file;
    parts[count].size = size;
    parts[count].memory = memory;
    atomic_store(&parts[count].context, NULL);
    count++;
    lay_out();
    return 0;
}

static void set_context(void *context, void **before) {
    *before = NULL;
    real_cuCtxGetCurrent()(before);
    if (*before != context) real_cuCtxSetCurrent()(context);
}

/* Registers what is not yet; without a context there is nothing to move and nothing to register with. Returns a CUresult. */
int pool_register(void) {
    void *context = NULL, *before;
    int result = SUCCESS;
    if (contexts_all(&context, 1) == 0) return SUCCESS;
    set_context(context, &before);
    for (size_t number = 0; number < count && result == SUCCESS; number++) {
        if (atomic_load(&parts[number].context) != NULL) continue;
        result = real_cuMemHostRegister_v2()(parts[number].memory, parts[number].size, PORTABLE);
        if (result == ALREADY_REGISTERED) result = SUCCESS;
        if (result == SUCCESS) atomic_store(&parts[number].context, context);
    }
    if (before != context) real_cuCtxSetCurrent()(before);
    return result;
}

/* Memory that is still registered is still pinned: it is not given back as if it were free. Returns a CUresult. */
static int unregister(struct part *part) {
    void *before, *context = atomic_load(&part->context);
    if (context == NULL) return SUCCESS;
    set_context(context, &before);
    int result = real_cuMemHostUnregister()(part->memory);
    if (before != context) real_cuCtxSetCurrent()(before);
    if (result == SUCCESS) atomic_store(&part->context, NULL);
    return result;
}

int pool_remove(long long id) {
    for (size_t number = 0; number < count; number++) {
        struct part *part = &parts[number];
        if (part->id != id) continue;
        int result = unregister(part);
        if (result != SUCCESS) return result;
        munmap(part->memory, part->size);
        close(part->file);
        for (size_t next = number + 1; next < count; next++) { /* atomics are not assigned as a struct */
            parts[next - 1].id = parts[next].id;
            parts[next - 1].file = parts[next].file;
            parts[next - 1].size = parts[next].size;
            parts[next - 1].memory = parts[next].memory;
            atomic_store(&parts[next - 1].context, atomic_load(&parts[next].context));
        }
        count--;
        lay_out();
        return 0;
    }
    return 0;
}

bool pool_is(const long long *ids, size_t number) {
    for (size_t place = 0; place < count && number == count; place++)
        if (parts[place].id != ids[place]) return false;
    return number == count;
}

int pool_remove_all(void) {
    int result = SUCCESS;
    for (size_t number = 0; number < count && result == SUCCESS; number++) result = unregister(&parts[number]);
    if (result != SUCCESS) {
        pool_register(); /* what stays so is copied more slowly, and is tried again before the next move */
        return result;
    }
    while (count > 0) {
        count--;
        munmap(parts[count].memory, parts[count].size);
        close(parts[count].file);
    }
    return SUCCESS;
}

/* What is registered in a context ends with it. */
void pool_context_gone(void *context) {
    for (size_t number = 0; number < count; number++)
        if (atomic_load(&parts[number].context) == context) atomic_store(&parts[number].context, NULL);
}

size_t pool_size(void) { return count > 0 ? parts[count - 1].start + parts[count - 1].size : 0; }

size_t pool_count(void) { return count; }

bool pool_piece(size_t number, long long *id, size_t *size, int *file) {
    if (number >= count) return false;
    *id = parts[number].id;
    *size = parts[number].size;
    *file = parts[number].file;
    return true;
}

char *pool_at(size_t offset, size_t *left) {
    size_t low = 0, high = count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (parts[middle].start <= offset) low = middle;
        else high = middle;
    }
    *left = parts[low].size - (offset - parts[low].start);
    return parts[low].memory + (offset - parts[low].start);
}
