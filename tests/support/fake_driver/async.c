/* Copies, fills and the program's own functions as work of streams. */
#define _GNU_SOURCE
#include "work.h"

#include <stdlib.h>
#include <string.h>

/* When it is called, a wrong address is a wrong argument; when it is done, it is the end of the context. */
static int sound(uint64_t address, size_t size, int write) {
    return fake_initialized() && fake_reachable(address, size, write) != SUCCESS ? INVALID_VALUE : SUCCESS;
}

/* Memory that the driver does not know is read at once, and written before the call returns. */
static int is_pageable(const void *host) {
    struct piece piece;
    return fake_initialized() && fake_piece((uint64_t)(uintptr_t)host, 0, &piece) != SUCCESS;
}

static int to_device(struct work *work) {
    void *host = work->data != NULL ? work->data : work->pointer;
    return fake_transfer(work->call, work->arguments[0], host, work->arguments[1], 1);
}

EXPORT int cuMemcpyHtoDAsync_v2(uint64_t address, const void *host, size_t size, struct stream *stream) {
    if (sound(address, size, 1) != SUCCESS) return INVALID_VALUE;
    struct work work = {.run = to_device, .arguments = {address, size}, .pointer = (void *)(uintptr_t)host};
    if (is_pageable(host)) {
        work.data = malloc(size + 1);
        if (work.data == NULL) return OUT_OF_MEMORY;
        memcpy(work.data, host, size);
        work.data_size = size;
    }
    return fake_submit("cuMemcpyHtoDAsync", stream, work);
}

static int to_host(struct work *work) {
    return fake_transfer(work->call, work->arguments[0], work->pointer, work->arguments[1], 0);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *host, uint64_t address, size_t size, struct stream *stream) {
    if (sound(address, size, 0) != SUCCESS) return INVALID_VALUE;
    struct work work = {.run = to_host, .arguments = {address, size}, .pointer = host};
    int result = fake_submit("cuMemcpyDtoHAsync", stream, work);
    return result == SUCCESS && is_pageable(host) ? fake_synchronize("", stream) : result;
}

static int on_device(struct work *work) {
    return fake_between(work->call, work->arguments[0], work->arguments[1], work->arguments[2]);
}

EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, struct stream *stream) {
    if (sound(to, size, 1) != SUCCESS || sound(from, size, 0) != SUCCESS) return INVALID_VALUE;
    return fake_submit("cuMemcpyDtoDAsync", stream, (struct work){.run = on_device, .arguments = {to, from, size}});
}

/* Addresses say of which kind they are: what the driver does not know is the host's. */
EXPORT int cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, struct stream *stream) {
    void *to_host_at = (void *)(uintptr_t)to, *from_host_at = (void *)(uintptr_t)from;
    if (is_pageable(to_host_at)) return cuMemcpyDtoHAsync_v2(to_host_at, from, size, stream);
    if (is_pageable(from_host_at)) return cuMemcpyHtoDAsync_v2(to, from_host_at, size, stream);
    return cuMemcpyDtoDAsync_v2(to, from, size, stream);
}

EXPORT int cuMemcpy(uint64_t to, uint64_t from, size_t size) {
    int result = cuMemcpyAsync(to, from, size, NULL);
    return result == SUCCESS ? fake_synchronize("", NULL) : result;
}

static int fill(struct work *work) {
    return fake_fill(work->call, work->arguments[0], (unsigned)work->arguments[1], work->arguments[2], work->arguments[3]);
}

static int fill_later(uint64_t address, unsigned value, size_t width, size_t count, struct stream *stream) {
    if (sound(address, width * count, 1) != SUCCESS) return INVALID_VALUE;
    return fake_submit("cuMemsetAsync", stream, (struct work){.run = fill, .arguments = {address, value, width, count}});
}

EXPORT int cuMemsetD8Async(uint64_t address, unsigned char value, size_t count, struct stream *stream) {
    return fill_later(address, value, 1, count, stream);
}

EXPORT int cuMemsetD16Async(uint64_t address, unsigned short value, size_t count, struct stream *stream) {
    return fill_later(address, value, 2, count, stream);
}

EXPORT int cuMemsetD32Async(uint64_t address, unsigned value, size_t count, struct stream *stream) {
    return fill_later(address, value, 4, count, stream);
}

struct callback {
    void (*function)(void *data);
};

static int call_back(struct work *work) {
    ((struct callback *)work->data)->function(work->pointer);
    return SUCCESS;
}

EXPORT int cuLaunchHostFunc(struct stream *stream, void (*function)(void *data), void *data) {
    if (function == NULL) return INVALID_VALUE;
    struct callback *callback = malloc(sizeof *callback);
    if (callback == NULL) return OUT_OF_MEMORY;
    callback->function = function;
    struct work work = {.run = call_back, .pointer = data, .data = callback, .data_size = sizeof *callback};
    return fake_submit("cuLaunchHostFunc", stream, work);
}
