/* What both fake libraries share: one directory of files that stands for the driver in the kernel.
 *
 *   config   the devices, written before anybody starts; see FakeDriver.configure
 *   lock     flock(2) guards everything below
 *   table    one mapped struct: who has CUDA state, where, and how much
 *   faults   what shall go wrong, one per line
 *   calls    who has called what, if that is wanted
 *   device/  contents of device memory, a file per allocation
 *   host/    the same of suspended processes
 */
#ifndef CARREL_FAKE_STATE_H
#define CARREL_FAKE_STATE_H

#include <stdint.h>
#include <sys/types.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_DEVICES 16
#define MAX_PROCESSES 128
#define MAX_ALLOCATIONS 4096

enum { RUNNING = 0, LOCKED = 1, CHECKPOINTED = 2, FAILED = 3, CHECKPOINTING = 4, RESTORING = 5 };

struct device {
    char uuid[64];
    unsigned char raw[16];
    char name[96];
    uint64_t memory;
    int mig;
};

struct config {
    int count;
    struct device devices[MAX_DEVICES];
    char driver[64];
    int cuda;
    uint64_t context; /* bytes that a context takes on its device */
};

/* Memory by cuMemAlloc, by cuMemCreate (which has no address of its own), by cuMemAllocAsync; the last three are never in the table:
 * another process', the host's that the driver knows, managed. */
enum { PLAIN = 0, PHYSICAL = 1, POOLED = 2, OPENED = 3, HOST = 4, MANAGED = 5 };

struct allocation {
    uint64_t address, size; /* size 0: a free slot */
    int32_t device;
    uint32_t number;
    uint32_t kind;
    uint32_t references, mappings; /* of physical memory: it lives while there is one of either */
    uint32_t exportable;           /* the types of handles that were asked for */
};

struct process {
    int32_t pid; /* 0: a free slot */
    uint32_t state;
    uint64_t start;
    uint32_t inflight; /* calls that use the GPU now; a lock waits until it is 0 */
    uint32_t locking;
    uint32_t gate; /* futex: changes when blocked calls may look again */
    uint32_t managed;
    uint32_t shared; /* with other processes, by IPC */
    uint32_t poisoned;
    int32_t mover; /* who copies or locks now; when it dies, that is void */
    uint64_t mover_start;
    uint32_t counter;
    uint64_t next;
    double ghost_until; /* CLOCK_MONOTONIC seconds; negative: for ever; 0: not a ghost */
    int32_t visible_count;
    int32_t visible[MAX_DEVICES]; /* the process' ordinals -> devices of the node */
    uint32_t contexts[MAX_DEVICES];
    uint32_t top; /* slots from here on have never been used */
    struct allocation allocations[MAX_ALLOCATIONS];
};

struct table {
    struct process processes[MAX_PROCESSES];
};

struct fault {
    char action[32];
    double argument;
};

extern struct config config;
extern struct table *table;
extern char directory[];

int fake_open(void);  /* 0, or -1: no CARREL_FAKE_DRIVER directory: then there is no driver */
void fake_hold(void); /* takes the lock and clears away what the dead left */
void fake_release(void);
int fake_take(const char *call, int pid, const char *action, struct fault *fault); /* with the lock held */
void fake_record(const char *call);
void fake_sleep(double seconds);
void fake_hang(double seconds); /* for a fault: negative: for ever; ends when the test lets go */
double fake_now(void);
uint64_t fake_start_of(int pid); /* 0: dead */
struct process *fake_find(int pid);
struct process *fake_mine(void);
int fake_on_device(const struct process *process); /* NVML shows it */
uint64_t fake_bytes(const struct process *process, int device);
uint64_t fake_used(int device);
void fake_file(char *path, size_t size, const struct process *process, const struct allocation *allocation, int on_device);
void fake_wake(struct process *process);
void fake_wait(struct process *process, uint32_t gate);
int fake_is_slice(const struct device *device); /* MIG: mig.c */
int fake_slice_runs(const struct device *slice, unsigned *pid);
uint64_t fake_slice_used(const struct device *slice);
struct device *fake_slice_of(const char *uuid);

#endif
