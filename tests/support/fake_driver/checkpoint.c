/* The checkpoint calls of the driver API.
 *
 * RUNNING -Lock-> LOCKED -Checkpoint-> CHECKPOINTED -Restore-> LOCKED -Unlock-> RUNNING; any other order is ILLEGAL_STATE.
 */
#define _GNU_SOURCE
#include "cuda.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct pair {
    unsigned char from[16], to[16];
};
struct lock_arguments {
    unsigned timeout_ms;
};
struct restore_arguments {
    struct pair *pairs;
    unsigned count;
};

/* Takes the lock, finds the target, plays a fault of the general kind. Returns SUCCESS with the lock held, or an error without. */
static int begin(const char *call, int pid, struct process **process, struct fault *fault) {
    if (fake_open() != 0) return NO_DEVICE;
    fault->action[0] = 0;
    fake_hold();
    if (fake_take(call, pid, NULL, fault)) {
        if (strcmp(fault->action, "segv") == 0) kill(pid, SIGSEGV);
        if (strcmp(fault->action, "hang_after") != 0) {
            fake_release();
            if (strcmp(fault->action, "hang") == 0) fake_hang(fault->argument);
            if (strcmp(fault->action, "error") == 0) return (int)fault->argument;
            if (strcmp(fault->action, "segv") == 0) return UNKNOWN;
            fault->action[0] = 0;
            fake_hold();
        }
    }
    *process = fake_find(pid);
    if (*process != NULL) return SUCCESS;
    fake_release();
    return INVALID_VALUE;
}

static int end(int result, const struct fault *fault) {
    fake_release();
    if (strcmp(fault->action, "hang_after") == 0) fake_hang(fault->argument);
    return result;
}

/* Like the real one, it takes a process without CUDA for a running one: cuCheckpointProcessGetRestoreThreadId tells. */
EXPORT int cuCheckpointProcessGetState(int pid, int *state) {
    struct process *process;
    struct fault fault;
    int result = begin("cuCheckpointProcessGetState", pid, &process, &fault);
    if (result == INVALID_VALUE && strcmp(fault.action, "error") != 0 && fake_start_of(pid) != 0) {
        *state = RUNNING;
        return SUCCESS;
    }
    if (result != SUCCESS) return result;
    *state = (int)process->state;
    if (config.cuda < 13040) /* older drivers have no names for the states between */
        *state = *state == CHECKPOINTING ? LOCKED : *state == RESTORING ? CHECKPOINTED : *state;
    return end(SUCCESS, &fault);
}

EXPORT int cuCheckpointProcessGetRestoreThreadId(int pid, int *tid) {
    struct process *process;
    struct fault fault;
    int result = begin("cuCheckpointProcessGetRestoreThreadId", pid, &process, &fault);
    if (result != SUCCESS) return result;
    *tid = pid;
    return end(SUCCESS, &fault);
}

EXPORT int cuCheckpointProcessLock(int pid, struct lock_arguments *arguments) {
    struct process *process;
    struct fault fault;
    int result = begin("cuCheckpointProcessLock", pid, &process, &fault);
    if (result != SUCCESS) return result;
    if (process->state != RUNNING || process->locking) return end(ILLEGAL_STATE, &fault);
    double until = arguments != NULL && arguments->timeout_ms > 0 ? fake_now() + arguments->timeout_ms / 1000.0 : 0;
    process->locking = 1;
    process->mover = getpid();
    process->mover_start = fake_start_of(getpid());
    while (process->pid == pid && process->inflight > 0) {
        if (until > 0 && fake_now() > until) {
            process->locking = 0;
            fake_wake(process);
            return end(NOT_READY, &fault);
        }
        fake_release();
        fake_sleep(0.002);
        fake_hold();
    }
    if (process->pid != pid) return end(UNKNOWN, &fault);
    process->locking = 0;
    process->state = LOCKED;
    return end(SUCCESS, &fault);
}

static int copy_file(const char *from, const char *to, double rate) {
    static char piece[1 << 18];
    int source = open(from, O_RDONLY | O_CLOEXEC), target = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ssize_t size = -1;
    while (source >= 0 && target >= 0 && (size = read(source, piece, sizeof piece)) > 0) {
        if (write(target, piece, (size_t)size) != size) break;
        if (rate > 0) fake_hang((double)size / rate);
    }
    if (source >= 0) close(source);
    if (target >= 0) close(target);
    return size == 0 ? 0 : -1;
}

/* Copies every allocation to the other side, without the lock: the state says that it is under way, and who does it. */
static int move(struct process *process, int to_device, double rate) {
    int failed = 0;
    process->mover = getpid();
    process->mover_start = fake_start_of(getpid());
    fake_release();
    for (uint32_t slot = 0; slot < process->top && !failed; slot++) {
        struct allocation *allocation = &process->allocations[slot];
        char from[4096], to[4096];
        if (allocation->size == 0) continue;
        fake_file(from, sizeof from, process, allocation, !to_device);
        fake_file(to, sizeof to, process, allocation, to_device);
        failed = copy_file(from, to, rate);
    }
    fake_hold();
    for (uint32_t slot = 0; slot < process->top && process->pid != 0; slot++) {
        char path[4096];
        if (process->allocations[slot].size == 0) continue;
        fake_file(path, sizeof path, process, &process->allocations[slot], failed ? to_device : !to_device);
        unlink(path);
    }
    return failed ? -1 : 0;
}

static int on_mig(const struct process *process) {
    for (int device = 0; device < config.count; device++)
        if (config.devices[device].mig && fake_bytes(process, device) > 0) return 1;
    return 0;
}

EXPORT int cuCheckpointProcessCheckpoint(int pid, void *arguments) {
    (void)arguments;
    static const char *call = "cuCheckpointProcessCheckpoint";
    struct process *process;
    struct fault fault, extra = {"", 0};
    int result = begin(call, pid, &process, &fault);
    if (result != SUCCESS) return result;
    if (process->state != LOCKED) return end(ILLEGAL_STATE, &fault);
    if (process->managed || process->shared) return end(NOT_SUPPORTED, &fault);
    if (on_mig(process)) return end(OUT_OF_MEMORY, &fault);
    if (fake_take(call, pid, "fail", &extra)) {
        process->state = FAILED;
        fake_wake(process);
        return end(UNKNOWN, &fault);
    }
    double rate = fake_take(call, pid, "rate", &extra) ? extra.argument : 0;
    process->state = CHECKPOINTING;
    if (move(process, 0, rate) != 0 || process->pid != pid) {
        if (process->pid == pid) process->state = LOCKED;
        return end(UNKNOWN, &fault);
    }
    process->state = CHECKPOINTED;
    if (fake_take(call, pid, "ghost", &extra)) process->ghost_until = extra.argument < 0 ? -1 : fake_now() + extra.argument;
    return end(SUCCESS, &fault);
}

static int by_uuid(const unsigned char *raw) {
    for (int device = 0; device < config.count; device++)
        if (memcmp(config.devices[device].raw, raw, 16) == 0) return device;
    return -1;
}

/* Reads the wanted devices. Every device of the node must be named, whatever the process itself can see. */
static int read_pairs(const struct restore_arguments *arguments, int *target) {
    for (int device = 0; device < config.count; device++) target[device] = device;
    if (arguments == NULL || arguments->count == 0) return SUCCESS;
    int named = 0;
    for (unsigned index = 0; index < arguments->count; index++) {
        int from = by_uuid(arguments->pairs[index].from), to = by_uuid(arguments->pairs[index].to);
        if (from < 0 || to < 0) return INVALID_VALUE;
        target[from] = to;
        named |= 1 << from;
    }
    return named == (1 << config.count) - 1 ? SUCCESS : INVALID_VALUE;
}

static int fits(const struct process *process, const int *target) {
    for (int device = 0; device < config.count; device++) {
        uint64_t needed = 0;
        for (int from = 0; from < config.count; from++)
            if (target[from] == device) needed += fake_bytes(process, from);
        if (needed > 0 && fake_used(device) + needed > config.devices[device].memory) return 0;
    }
    return 1;
}

static void place(struct process *process, const int *target) {
    uint32_t contexts[MAX_DEVICES] = {0};
    for (int device = 0; device < config.count; device++) contexts[target[device]] += process->contexts[device];
    memcpy(process->contexts, contexts, sizeof contexts);
    for (uint32_t slot = 0; slot < process->top; slot++)
        if (process->allocations[slot].size != 0) process->allocations[slot].device = target[process->allocations[slot].device];
    for (int ordinal = 0; ordinal < process->visible_count; ordinal++) process->visible[ordinal] = target[process->visible[ordinal]];
}

EXPORT int cuCheckpointProcessRestore(int pid, struct restore_arguments *arguments) {
    static const char *call = "cuCheckpointProcessRestore";
    struct process *process;
    struct fault fault, extra = {"", 0};
    int target[MAX_DEVICES];
    if (!fake_initialized()) return NOT_INITIALIZED; /* or persistence mode, which is off here */
    int result = begin(call, pid, &process, &fault);
    if (result != SUCCESS) return result;
    if (process->state != CHECKPOINTED) return end(ILLEGAL_STATE, &fault);
    if (process->poisoned) return end(OPERATING_SYSTEM, &fault);
    if (arguments != NULL && arguments->count > 0 && fake_take(call, pid, "refuse_map", &extra)) return end(INVALID_VALUE, &fault);
    result = read_pairs(arguments, target);
    if (result != SUCCESS) return end(result, &fault);
    if (fake_take(call, pid, "stay", &extra)) read_pairs(NULL, target);
    if (fake_take(call, pid, "elsewhere", &extra))
        for (int device = 0; device < config.count; device++) target[device] = (int)extra.argument;
    process->ghost_until = 0;
    if (fake_take(call, pid, "poison", &extra) || !fits(process, target)) {
        process->poisoned = 1;
        return end(OUT_OF_MEMORY, &fault);
    }
    double rate = fake_take(call, pid, "rate", &extra) ? extra.argument : 0;
    place(process, target);
    process->state = RESTORING;
    if (move(process, 1, rate) != 0 || process->pid != pid) {
        if (process->pid == pid) process->state = CHECKPOINTED;
        return end(UNKNOWN, &fault);
    }
    process->state = LOCKED;
    return end(SUCCESS, &fault);
}

EXPORT int cuCheckpointProcessUnlock(int pid, void *arguments) {
    (void)arguments;
    struct process *process;
    struct fault fault;
    int result = begin("cuCheckpointProcessUnlock", pid, &process, &fault);
    if (result != SUCCESS) return result;
    if (process->state != LOCKED || process->poisoned) return end(ILLEGAL_STATE, &fault);
    process->state = RUNNING;
    fake_wake(process);
    return end(SUCCESS, &fault);
}
