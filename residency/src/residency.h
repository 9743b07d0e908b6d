/* What the files of this library know of each other.
 *
 * The library stands between a program and libcuda.so.1 (LD_PRELOAD). It uses no header of CUDA: names, arguments and numbers
 * are those of the public documentation of the driver API.
 *
 *   start.c       whether it does anything in this process; forks
 *   lookup.c      how programs find the driver's functions
 *   calls.c       what passes the gate: calls.def
 *   gate.c        open or closed; who is inside
 *   interrupt.c   SIGINT ends a wait at the gate
 *   blocks.c      the tables: physical memory, and where it is mapped
 *   allocate.c    cuMemAlloc through the calls for virtual memory
 *   virtual.c     programs that use those calls themselves
 *   stays.c       memory that cannot take part, counted with the reason
 *   contexts.c    contexts, devices, peers, captures
 *   pool.c        host memory that the broker gave: mapped, registered
 *   transfer.c    out and in, piece by piece
 *   quiet.c       the end of everything that was submitted
 *   agent.c       the thread that talks to the broker, and when it gives a lease back
 *   orders.c      what the broker says, and the answers
 *   tell.c        what the broker is told
 *   lanes.c       the streams of a move, two for each device
 *   link.c        the socket
 *   json.c, json_write.c   one flat object
 */
#ifndef CARREL_RESIDENCY_H
#define CARREL_RESIDENCY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define MIB ((size_t)1 << 20)

typedef unsigned long long address; /* CUdeviceptr */
typedef unsigned long long handle;  /* CUmemGenericAllocationHandle */

/* Numbers of CUresult. */
enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEVICE_UNAVAILABLE = 46, /* at the gate: the broker has refused a lease */
    NO_DEVICE = 100,
    CONTEXT_IS_DESTROYED = 709, /* at the gate: the state is lost */
    ALREADY_REGISTERED = 712,
    NOT_PERMITTED = 800, /* at the gate: interrupted; no framework takes it for out of memory or for a broken context */
    NOT_SUPPORTED = 801
};

struct location {
    int type, id; /* type 1: a device */
};
struct property { /* CUmemAllocationProp */
    int type, shareable;
    struct location location;
    void *meta;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};
struct access { /* CUmemAccessDesc */
    struct location location;
    int flags;
};
enum { ON_DEVICE = 1, PINNED = 1, READ_WRITE = 3 };

/* -- start.c */
extern bool active;              /* this process takes part */
extern const char *broker_path;  /* CARREL_BROKER */
extern const char *job_token;    /* CARREL_TOKEN, or "" */
void start(void);                /* may be called any number of times, before the constructor too */
void say(const char *format, ...) __attribute__((format(printf, 1, 2))); /* one line on stderr */
double now(void);                /* CLOCK_MONOTONIC */

/* -- lookup.c */
void *driver_symbol(const char *symbol); /* of libcuda itself; NULL where there is none */
void *late(_Atomic(void *) *real, const char *symbol);
void lookup_forked(void);
struct slot {
    const char *family, *symbol; /* symbol NULL: for a version of the function whose name we don't know */
    void *wrapper;
    _Atomic(void *) *real;
    int since; /* the CUDA version of this signature, for functions that need theirs; else 0 */
};
extern const struct slot gated_slots[];
extern const size_t gated_count;

/* The driver's own functions, for our own use: never gated. */
#define DRIVER(ENTRY) \
    ENTRY(cuInit, (unsigned)) \
    ENTRY(cuCtxSynchronize, (void)) \
    ENTRY(cuCtxGetCurrent, (void **)) \
    ENTRY(cuCtxSetCurrent, (void *)) \
    ENTRY(cuCtxGetDevice, (int *)) \
    ENTRY(cuDeviceGetCount, (int *)) \
    ENTRY(cuDeviceGetUuid_v2, (unsigned char *, int)) \
    ENTRY(cuDevicePrimaryCtxGetState, (int, unsigned *, int *)) \
    ENTRY(cuMemAlloc_v2, (address *, size_t)) \
    ENTRY(cuMemFree_v2, (address)) \
    ENTRY(cuMemGetAddressRange_v2, (address *, size_t *, address)) \
    ENTRY(cuMemAddressReserve, (address *, size_t, size_t, address, unsigned long long)) \
    ENTRY(cuMemAddressFree, (address, size_t)) \
    ENTRY(cuMemCreate, (handle *, size_t, const struct property *, unsigned long long)) \
    ENTRY(cuMemRelease, (handle)) \
    ENTRY(cuMemMap, (address, size_t, size_t, handle, unsigned long long)) \
    ENTRY(cuMemUnmap, (address, size_t)) \
    ENTRY(cuMemSetAccess, (address, size_t, const struct access *, size_t)) \
    ENTRY(cuMemRetainAllocationHandle, (handle *, void *)) \
    ENTRY(cuMemExportToShareableHandle, (void *, handle, int, unsigned long long)) \
    ENTRY(cuMemImportFromShareableHandle, (handle *, void *, int)) \
    ENTRY(cuMemGetAllocationPropertiesFromHandle, (struct property *, handle)) \
    ENTRY(cuMulticastBindMem, (handle, size_t, handle, size_t, size_t, unsigned long long)) \
    ENTRY(cuMulticastBindMem_v2, (handle, int, size_t, handle, size_t, size_t, unsigned long long)) \
    ENTRY(cuIpcGetMemHandle, (void *, address)) \
    ENTRY(cuMemHostRegister_v2, (void *, size_t, unsigned)) \
    ENTRY(cuMemHostUnregister, (void *)) \
    ENTRY(cuMemcpyDtoHAsync_v2, (void *, address, size_t, void *)) \
    ENTRY(cuMemcpyHtoDAsync_v2, (address, const void *, size_t, void *)) \
    ENTRY(cuStreamCreate, (void **, unsigned)) \
    ENTRY(cuStreamSynchronize, (void *)) \
    ENTRY(cuStreamDestroy_v2, (void *))
#define POINTER(name, arguments) extern _Atomic(void *) driver_##name;
DRIVER(POINTER)
#undef POINTER
int driver_missing(void); /* what stands for a function that this driver hasn't: NOT_SUPPORTED */
#define DECLARE(name, arguments) \
    typedef int (*type_##name) arguments; \
    static inline type_##name real_##name(void) { \
        void *found = late(&driver_##name, #name); \
        return found != NULL ? (type_##name)found : (type_##name)(void *)driver_missing; \
    }
DRIVER(DECLARE)
#undef DECLARE

/* -- gate.c */
struct shard { /* a cache line of its own for a few threads each */
    _Alignas(128) atomic_ulong entered, left;
};
extern atomic_int gate_closed;
extern _Thread_local struct shard *my_shard;
/* The driver may call itself: only the outermost call passes the gate or means anything to us. Our own threads are always inside. */
extern _Thread_local int gate_depth;
static inline bool outermost(void) { return active && gate_depth == 0; }
struct shard *pick_shard(void);
int gate_wait(void); /* 0: inside; or the CUresult with which the call ends */
void gate_left(void);
static inline int gate_enter(void) {
    if (gate_depth++ > 0) return SUCCESS;
    struct shard *shard = my_shard != NULL ? my_shard : pick_shard();
    /* Both are sequentially consistent: either the closer sees this call inside, or the call sees the gate closed. */
    atomic_fetch_add(&shard->entered, 1);
    return atomic_load(&gate_closed) ? gate_wait() : SUCCESS;
}
static inline void gate_leave(void) {
    if (--gate_depth > 0) return;
    atomic_fetch_add(&my_shard->left, 1);
    if (atomic_load(&gate_closed)) gate_left();
}
int gate_look(void);                  /* as gate_enter, but waits only while memory is away */
void gate_close(void);
void gate_open(void);
bool gate_empty(void);                /* nobody is inside */
unsigned long gate_activity(void);    /* how many calls have come until now */
int gate_waiting(void);
void gate_refuse(int code);           /* ends the waits that there are now */
void gate_lose(void);                 /* ends all waits, now and later */
void gate_news(void);                 /* wakes who waits, to look again */
void gate_forked(void);
extern atomic_bool memory_away;

/* -- interrupt.c */
extern atomic_uint interrupts; /* how many SIGINTs have come */
bool on_main_thread(void);
void interrupt_forked(void);

/* -- blocks.c */
struct piece {
    handle real;     /* while it is here */
    size_t size, at; /* at: where in the pool it lies while it is away */
    bool here;       /* there is memory for it on the device */
    bool touched;    /* a copy may still be under way */
    bool away;       /* its contents are those in the pool, whatever is on the device */
    address scratch; /* where it is mapped for a copy, if nowhere else; or 0 */
};
struct block { /* physical memory that comes and goes as one, in pieces */
    handle token; /* what the program calls it; 0: made by cuMemAlloc */
    size_t size;
    int references;
    struct property property;
    unsigned long long flags;
    const char *stays; /* why it cannot move, or NULL */
    void *context; /* of cuMemAlloc: it ends with it */
    bool ended;    /* freed, while nothing could wait for what still used it */
    size_t count;
    struct piece *pieces;
    struct mapping *mappings;
    struct block *next, *previous;
};
#define MOST_ACCESS 16
struct mapping {
    address at;
    size_t size, offset, asked;
    struct block *block;
    struct access access[MOST_ACCESS];
    int allowed;
    unsigned char *there;            /* of each piece of the block: whether it is mapped there; NOT, BARE (without access) or SHOWN */
    struct mapping *next, *previous; /* of the same block */
};
enum { NOT = 0, BARE = 1, SHOWN = 2 };
extern struct block *blocks;
void memory_hold(void);
void memory_release(void);
void blocks_forked(void);
struct block *block_made(size_t size, const struct property *property, unsigned long long flags, size_t piece, int *result);
void block_unused(struct block *block); /* gives its memory back if nobody has a handle or a mapping */
struct block *block_by_token(handle token);
void block_named(struct block *block); /* gives it a token */
struct mapping *mapping_at(address any);
int mapping_made(struct block *block, address at, size_t size, size_t offset, struct mapping **made);
int mapping_gone(struct mapping *mapping);
int mapping_allow(struct mapping *mapping, const struct access *access, size_t count);
int scratch_on(struct block *block, size_t number); /* maps a piece where its device can read and write all of it */
int scratch_off(struct piece *piece);
int piece_mapped(struct block *block, size_t number, bool into); /* every place where a piece is mapped: into it, or out of it */
bool piece_shown(const struct block *block, size_t number);       /* it is mapped in each of them */
size_t piece_start(const struct block *block, size_t number);
size_t piece_size(void);

/* -- stays.c */
enum stay { STAY_SMALL, STAY_MANAGED, STAY_PITCHED, STAY_POOLED, STAY_ARRAY, STAY_IPC, STAY_EXTERNAL, STAY_MULTICAST, STAY_NCCL,
            STAY_UNSUPPORTED, STAY_IMPORTED, STAY_EXPORTED, STAYS };
extern const char *const stay_names[STAYS];
void stay_began(enum stay why, address key, size_t size);
bool stay_over(address key);
void stays_total(int device, size_t *bytes, unsigned *kinds);
void stays_forked(void);
void stays_dropped(void *context);

/* -- contexts.c */
#define MOST_DEVICES 64
void *context_on(int device); /* one that lives, or NULL */
int context_device(void *context);
size_t contexts_all(void **all, size_t room);
bool peers_of(int device, struct access *access, int *count);
int captures(void);
void contexts_forked(void);
int device_count(void);
bool device_uuid(int device, char text[64]);

/* -- allocate.c */
bool by_nccl(void *caller);
/* Both with the memory lock held. */
void allocations_end(void *context);
void allocations_sweep(void); /* with nothing running */

/* -- pool.c */
int pool_add(long long id, int file, size_t size);
int pool_remove(long long id);
int pool_remove_all(void); /* all of them, or none */
bool pool_is(const long long *ids, size_t number); /* these pieces, in this order */
size_t pool_size(void);
size_t pool_count(void);
bool pool_piece(size_t number, long long *id, size_t *size, int *file);
int pool_register(void);
void pool_context_gone(void *context);
char *pool_at(size_t offset, size_t *left);
void pool_forked(void);

/* -- transfer.c */
enum place { NOWHERE, IN, OUT, SPILLED, LOST }; /* SPILLED: the broker has its contents on the disk */
extern const char *const place_names[];
struct move {
    void (*progress)(size_t done, size_t of);
    double patience; /* seconds without a piece in which a full device is tried again: another's memory may be leaving it */
    size_t done, of;
    char why[256];
};
enum place memory_place(void);
bool memory_out(struct move *move); /* with the gate closed and nothing running */
bool memory_in(struct move *move);
size_t memory_reach(void); /* bytes of the pool, from its beginning, in which a state lies that is out */
bool memory_spilled(size_t bytes, char *why, size_t room); /* so many of them are on the disk: lets go of the pool */
bool memory_filled(size_t bytes, char *why, size_t room);  /* so many of them are in the pool again */
size_t memory_leaked(void); /* bytes on the device that the driver did not take back */
void transfer_forked(void);
void memory_sizes(int device, size_t *movable, size_t *stays, unsigned *kinds); /* device -1: all */

/* -- quiet.c */
bool quiet_ask(void);   /* begins to wait for the end of all work; false: it does so already */
bool quiet_busy(void);
int quiet_result(void); /* of the last time */
void quiet_forked(void);

/* -- agent.c */
void agent_need(void); /* a call waits: see that the agent runs, and wake it */
void agent_wake(void);
void agent_forked(void);
bool devices_wanted(void);   /* the first grant says which devices this process sees */
void devices_see(void);      /* in the thread of the first cuInit: make them CUDA_VISIBLE_DEVICES */

#endif
