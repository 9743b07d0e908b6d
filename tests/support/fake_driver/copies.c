/* What lies at an address, and copies and fills that are done when the call returns. */
#define _GNU_SOURCE
#include "work.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHUNK ((size_t)1 << 18)

static int plain_at(uint64_t address, struct piece *piece) {
    struct process *process = fake_mine();
    for (uint32_t slot = 0; slot < process->top; slot++) {
        struct allocation *allocation = &process->allocations[slot];
        if (allocation->size == 0 || allocation->kind == PHYSICAL) continue;
        if (address < allocation->address || address >= allocation->address + allocation->size) continue;
        *piece = (struct piece){.offset = (off_t)(address - allocation->address), .begin = allocation->address};
        piece->length = allocation->size;
        piece->kind = (int)allocation->kind;
        piece->allocation = allocation;
        piece->size = allocation->size - (size_t)piece->offset;
        fake_file(piece->path, sizeof piece->path, process, allocation, 1);
        return SUCCESS;
    }
    return INVALID_VALUE;
}

int fake_piece(uint64_t address, int write, struct piece *piece) {
    fake_hold();
    int result = plain_at(address, piece);
    if (result != SUCCESS) result = fake_mapped_at(address, write, piece);
    if (result == INVALID_VALUE) result = fake_host_at(address, piece);
    if (result == INVALID_VALUE) result = fake_managed_at(address, piece);
    if (result == INVALID_VALUE) result = fake_opened_at(address, piece);
    fake_release();
    return result;
}

/* A range may go over several mappings that lie side by side, but not from one plain allocation into the next: between those
 * there is always a gap. */
int fake_reachable(uint64_t address, size_t size, int write) {
    struct piece piece;
    for (size_t done = 0; done < size; done += piece.size) {
        int result = fake_piece(address + done, write, &piece);
        if (result != SUCCESS) return result;
    }
    return SUCCESS;
}

struct trouble {
    double rate;  /* bytes a second; 0: as fast as it goes */
    double until; /* bytes; negative: all */
    int stall;    /* what happens there: 1 it hangs, 0 it fails */
};

static struct trouble trouble_of(const char *call) {
    struct trouble trouble = {0, -1, 0};
    struct fault fault;
    fake_hold();
    if (fake_take(call, getpid(), "rate", &fault)) trouble.rate = fault.argument;
    if (fake_take(call, getpid(), "cut", &fault)) trouble.until = fault.argument;
    else if (fake_take(call, getpid(), "stall", &fault)) trouble = (struct trouble){trouble.rate, fault.argument, 1};
    fake_release();
    return trouble;
}

static int move(const struct piece *piece, char *host, size_t size, int to_device) {
    if (!*piece->path) {
        memmove(to_device ? piece->host : host, to_device ? host : piece->host, size);
        return SUCCESS;
    }
    int file = open(piece->path, O_RDWR | O_CLOEXEC);
    size_t done = 0;
    while (file >= 0 && done < size) {
        off_t at = piece->offset + (off_t)done;
        ssize_t some = to_device ? pwrite(file, host + done, size - done, at) : pread(file, host + done, size - done, at);
        if (some <= 0 && errno != EINTR) break;
        done += some > 0 ? (size_t)some : 0;
    }
    if (file >= 0) close(file);
    return done == size ? SUCCESS : UNKNOWN;
}

/* `call` names the faults: a copy can be slow, fail in the middle or stop there for ever. */
int fake_transfer(const char *call, uint64_t address, void *host, size_t size, int to_device) {
    int result = fake_reachable(address, size, to_device);
    if (result != SUCCESS) return result;
    struct trouble trouble = trouble_of(call);
    size_t end = trouble.until >= 0 && trouble.until < (double)size ? (size_t)trouble.until : size, done = 0;
    while (done < end) {
        struct piece piece;
        result = fake_piece(address + done, to_device, &piece);
        if (result != SUCCESS) return result;
        size_t some = piece.size < end - done ? piece.size : end - done;
        if (trouble.rate > 0 && some > CHUNK) some = CHUNK;
        result = move(&piece, (char *)host + done, some, to_device);
        if (result != SUCCESS) return result;
        if (trouble.rate > 0) fake_hang((double)some / trouble.rate);
        done += some;
    }
    if (trouble.until < 0) return SUCCESS;
    if (trouble.stall) fake_hang(-1);
    return UNKNOWN;
}

int fake_between(const char *call, uint64_t to, uint64_t from, size_t size) {
    char *memory = malloc(size + 1);
    int result = memory == NULL ? OUT_OF_MEMORY : fake_transfer("", from, memory, size, 0);
    if (result == SUCCESS) result = fake_transfer(call, to, memory, size, 1);
    free(memory);
    return result;
}

int fake_fill(const char *call, uint64_t address, unsigned value, size_t width, size_t count) {
    char *memory = malloc(width * count + 1);
    for (size_t index = 0; memory != NULL && index < count; index++) memcpy(memory + index * width, &value, width);
    int result = memory == NULL ? OUT_OF_MEMORY : fake_transfer(call, address, memory, width * count, 1);
    free(memory);
    return result;
}

/* These are work of the legacy stream that the caller waits for. */
static int begin(const char *call) {
    int result = fake_enter(call);
    if (result != SUCCESS) return result;
    result = fake_ordinal() < 0 ? INVALID_CONTEXT : fake_capture_forbids_copying(fake_ordinal());
    if (result == SUCCESS) {
        fake_drain(fake_ordinal(), 0);
        result = fake_broken;
    }
    if (result != SUCCESS) fake_leave();
    return result;
}

/* An address without memory or access is a wrong argument when the call looks at it. */
static int end(int result) {
    fake_leave();
    return result == ILLEGAL_ADDRESS ? INVALID_VALUE : result;
}

EXPORT int cuMemcpyHtoD_v2(uint64_t address, const void *host, size_t size) {
    int result = begin("cuMemcpyHtoD");
    return result != SUCCESS ? result : end(fake_transfer("cuMemcpyHtoD", address, (void *)(uintptr_t)host, size, 1));
}

EXPORT int cuMemcpyDtoH_v2(void *host, uint64_t address, size_t size) {
    int result = begin("cuMemcpyDtoH");
    return result != SUCCESS ? result : end(fake_transfer("cuMemcpyDtoH", address, host, size, 0));
}

EXPORT int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t size) {
    int result = begin("cuMemcpyDtoD");
    return result != SUCCESS ? result : end(fake_between("cuMemcpyDtoD", to, from, size));
}

static int fill(uint64_t address, unsigned value, size_t width, size_t count) {
    int result = begin("cuMemset");
    return result != SUCCESS ? result : end(fake_fill("cuMemset", address, value, width, count));
}

EXPORT int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t count) { return fill(address, value, 1, count); }
EXPORT int cuMemsetD16_v2(uint64_t address, unsigned short value, size_t count) { return fill(address, value, 2, count); }
EXPORT int cuMemsetD32_v2(uint64_t address, unsigned value, size_t count) { return fill(address, value, 4, count); }
