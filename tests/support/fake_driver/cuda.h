/* The numbers of CUresult that are used here, and the functions that cuGetProcAddress knows. Written for this project. */
#ifndef CARREL_FAKE_CUDA_H
#define CARREL_FAKE_CUDA_H

#include "state.h"

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    PEER_ACCESS_UNSUPPORTED = 217,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    PEER_ACCESS_NOT_ENABLED = 705,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    NOT_SUPPORTED = 801,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    STREAM_CAPTURE_UNMATCHED = 903,
    STREAM_CAPTURE_ISOLATION = 905,
    STREAM_CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    STREAM_CAPTURE_WRONG_THREAD = 908,
    UNKNOWN = 999
};

#define FIRST_ADDRESS 0x7d0000000000ull
#define GRANULARITY 0x200000ull

/* Bytes that lie together: of a file that stands for device memory, or (path empty) of this process. */
struct piece {
    char path[4096];
    off_t offset;
    char *host;
    size_t size;
    uint64_t begin, length; /* of all that it is a part of */
    int kind;
    const struct allocation *allocation; /* NULL: not of this process, or the host's */
};

int fake_initialized(void);           /* cuInit was called in this very process, not in the one it was forked from */
int fake_enter(const char *call);     /* a CUresult; waits while this process is locked */
void fake_leave(void);
int fake_ordinal(void);               /* of the thread's context, or -1 */
void *fake_context(void);             /* the thread's, or NULL */

/* The following want the lock held. */
struct allocation *fake_allocate(int device, size_t size, uint32_t kind); /* NULL: no room */
void fake_discard(struct allocation *allocation);
uint64_t fake_handle_of(const struct allocation *memory);
struct allocation *fake_by_handle(uint64_t handle); /* NULL: the program has no such handle */
void fake_drop_unused(struct allocation *memory);   /* without handles and mappings it goes */
int fake_mapped_at(uint64_t address, int write, struct piece *piece); /* INVALID_VALUE, or ILLEGAL_ADDRESS without access */
int fake_host_at(uint64_t address, struct piece *piece);
int fake_managed_at(uint64_t address, struct piece *piece);
int fake_opened_at(uint64_t address, struct piece *piece); /* another process' memory */
void fake_forget_mappings(void); /* a forked child begins anew */
void fake_forget_host(void);
void fake_forget_shared(void);
uint64_t fake_addresses(size_t size); /* for memory of that size; nothing else is there */

int fake_piece(uint64_t address, int write, struct piece *piece); /* takes the lock itself, as the rest */
int fake_reachable(uint64_t address, size_t size, int write); /* as fake_mapped_at, for all of it */
int fake_transfer(const char *call, uint64_t address, void *host, size_t size, int to_device);

#endif
