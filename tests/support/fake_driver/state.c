#define _GNU_SOURCE
#include "state.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct config config;
struct table *table;
char directory[3072];

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int lock_file = -1;
static pid_t lock_owner;

double fake_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* A test has said that nothing waits any more. */
static int let_go(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/go", directory);
    return access(path, F_OK) == 0;
}

static void sleep_a_little(double most) {
    struct timespec piece = {.tv_sec = 0, .tv_nsec = (long)((most < 0.02 ? most : 0.02) * 1e9)};
    nanosleep(&piece, NULL);
}

void fake_sleep(double seconds) {
    double until = fake_now() + seconds;
    for (double left = seconds; left > 0; left = until - fake_now()) sleep_a_little(left);
}

void fake_hang(double seconds) {
    double until = fake_now() + seconds;
    for (double left = seconds; (seconds < 0 || left > 0) && !let_go(); left = until - fake_now())
        sleep_a_little(seconds < 0 ? 1 : left);
}

uint64_t fake_start_of(int pid) { /* proc_pid_stat(5), field 22; zombies hold no device */
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    if (size <= 0) return 0;
    text[size] = 0;
    char *after = strrchr(text, ')');
    char status = 0;
    unsigned long long start = 0;
    if (after == NULL) return 0;
    if (sscanf(after + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &status, &start) != 2)
        return 0;
    return status == 'Z' || status == 'X' ? 0 : (uint64_t)start;
}

static void parse_uuid(struct device *device) {
    int digits = 0;
    for (const char *at = strchr(device->uuid, '-'); at != NULL && *at && digits < 32; at++) {
        int value = *at >= '0' && *at <= '9' ? *at - '0' : *at >= 'a' && *at <= 'f' ? *at - 'a' + 10 : -1;
        if (value < 0) continue;
        device->raw[digits / 2] = (unsigned char)(device->raw[digits / 2] << 4 | value);
        digits++;
    }
}

static int read_config(void) {
    char path[4096], line[512];
    snprintf(path, sizeof path, "%s/config", directory);
    FILE *file = fopen(path, "re");
    if (file == NULL) return -1;
    memset(&config, 0, sizeof config);
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = 0;
        struct device *device = &config.devices[config.count];
        unsigned long long number = 0;
        int mig = 0, name = 0;
        if (sscanf(line, "driver %63s", config.driver) == 1) continue;
        if (sscanf(line, "cuda %d", &config.cuda) == 1) continue;
        if (sscanf(line, "context %llu", &number) == 1) config.context = number;
        else if (config.count < MAX_DEVICES && sscanf(line, "device %63s %llu %d %n", device->uuid, &number, &mig, &name) == 3) {
            device->memory = number;
            device->mig = mig;
            snprintf(device->name, sizeof device->name, "%s", line + name);
            parse_uuid(device);
            config.count++;
        }
    }
    fclose(file);
    return 0;
}

static void after_fork(void) { pthread_mutex_init(&mutex, NULL); }

/* A program whose environment was cleared has this machine when the file beside the library says so (`FakeDriver.for_all`). */
static const char *machine_beside(void) {
    static char path[3072], line[3072];
    Dl_info about;
    if (dladdr((void *)machine_beside, &about) == 0 || strlen(about.dli_fname) > sizeof path - 16) return NULL;
    strcpy(path, about.dli_fname);
    char *name = strrchr(path, '/');
    if (name == NULL) return NULL;
    strcpy(name, "/machine");
    FILE *file = fopen(path, "re");
    if (file == NULL) return NULL;
    const char *found = fgets(line, sizeof line, file);
    fclose(file);
    return found;
}

int fake_open(void) {
    if (table != NULL) return 0;
    const char *named = getenv("CARREL_FAKE_DRIVER");
    if (named == NULL) named = machine_beside();
    if (named == NULL || *named == 0 || strlen(named) >= sizeof directory) return -1;
    strcpy(directory, named);
    if (read_config() != 0) return -1;
    char path[4096];
    snprintf(path, sizeof path, "%s/table", directory);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || ftruncate(file, sizeof(struct table)) != 0) return -1;
    void *mapped = mmap(NULL, sizeof(struct table), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED) return -1;
    pthread_atfork(NULL, NULL, after_fork);
    table = mapped;
    return 0;
}

/* A copy or a lock whose maker died is void: the data is still where it was. The contents of dead processes are gone. */
static void clear_away(void) {
    for (int slot = 0; slot < MAX_PROCESSES; slot++) {
        struct process *process = &table->processes[slot];
        if (process->pid == 0) continue;
        if (fake_start_of(process->pid) != process->start) {
            for (uint32_t number = 0; number < process->top; number++) {
                struct allocation *allocation = &process->allocations[number];
                if (allocation->size == 0) continue;
                for (int place = 0; place < 2; place++) {
                    char path[4096];
                    fake_file(path, sizeof path, process, allocation, place);
                    unlink(path);
                }
            }
            memset(process, 0, sizeof *process);
        } else if ((process->state == CHECKPOINTING || process->state == RESTORING) &&
                   fake_start_of(process->mover) != process->mover_start) {
            process->state = process->state == CHECKPOINTING ? LOCKED : CHECKPOINTED;
        } else if (process->locking && fake_start_of(process->mover) != process->mover_start) {
            process->locking = 0;
            fake_wake(process);
        }
    }
}

void fake_hold(void) {
    pthread_mutex_lock(&mutex);
    if (lock_owner != getpid()) { /* flock(2) belongs to the open file, which a forked child shares */
        char path[4096];
        snprintf(path, sizeof path, "%s/lock", directory);
        lock_file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        lock_owner = getpid();
    }
    while (flock(lock_file, LOCK_EX) != 0 && errno == EINTR) {}
    clear_away();
}

void fake_release(void) {
    flock(lock_file, LOCK_UN);
    pthread_mutex_unlock(&mutex);
}

/* Finds the first fault for this call and process, of one kind or (action NULL) of a general kind, and uses it up; or one call of
 * those that are still let through. */
int fake_take(const char *call, int pid, const char *action, struct fault *fault) {
    char path[4096], before[8192], rest[8192];
    snprintf(path, sizeof path, "%s/faults", directory);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t size = read(file, before, sizeof before - 1);
    before[size > 0 ? size : 0] = 0;
    int found = 0, changed = 0;
    size_t kept = 0;
    for (char *line = strtok(before, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        char name[64], kind[32];
        int whom, count, after = 0;
        double argument;
        if (sscanf(line, "%63s %d %d %31s %lf %d", name, &whom, &count, kind, &argument, &after) < 5) continue;
        int general = strcmp(kind, "error") == 0 || strncmp(kind, "hang", 4) == 0 || strcmp(kind, "segv") == 0;
        if (!found && strcmp(name, call) == 0 && (whom == 0 || whom == pid) && count != 0 &&
            (action == NULL ? general : strcmp(kind, action) == 0)) {
            changed = 1;
            if (after > 0) after--;
            else {
                found = 1;
                snprintf(fault->action, sizeof fault->action, "%s", kind);
                fault->argument = argument;
                if (count > 0) count--;
            }
        }
        if (count == 0 || kept > sizeof rest - 160) continue;
        kept += (size_t)snprintf(rest + kept, sizeof rest - kept, "%s %d %d %s %.17g", name, whom, count, kind, argument);
        kept += (size_t)snprintf(rest + kept, sizeof rest - kept, after > 0 ? " %d\n" : "\n", after);
    }
    if (changed && (pwrite(file, rest, kept, 0) != (ssize_t)kept || ftruncate(file, (off_t)kept) != 0)) found = 0;
    close(file);
    return found;
}

/* Where somebody wants a record: who has called what, and what each device's memory was then. */
void fake_record(const char *call) {
    char path[4096], line[512];
    snprintf(path, sizeof path, "%s/calls", directory);
    int file = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file < 0) return;
    int size = snprintf(line, sizeof line, "%d %s", getpid(), call);
    for (int device = 0; device < config.count && size < (int)sizeof line - 32; device++)
        size += snprintf(line + size, sizeof line - (size_t)size, " %llu", (unsigned long long)fake_used(device));
    line[size++] = '\n';
    if (write(file, line, (size_t)size) != size) perror(path);
    close(file);
}

struct process *fake_find(int pid) {
    for (int slot = 0; slot < MAX_PROCESSES; slot++)
        if (table->processes[slot].pid == pid) return &table->processes[slot];
    return NULL;
}

struct process *fake_mine(void) { return fake_find(getpid()); }

static int is_ghost(const struct process *process) {
    if (process->ghost_until != 0 && let_go()) return 0;
    return process->ghost_until < 0 || (process->ghost_until > 0 && fake_now() < process->ghost_until);
}

int fake_on_device(const struct process *process) {
    return process->pid != 0 && (process->state != CHECKPOINTED || is_ghost(process));
}

uint64_t fake_bytes(const struct process *process, int device) {
    uint64_t sum = (uint64_t)process->contexts[device] * config.context;
    for (uint32_t number = 0; number < process->top; number++)
        if (process->allocations[number].size != 0 && process->allocations[number].device == device)
            sum += process->allocations[number].size;
    return sum;
}

uint64_t fake_used(int device) {
    uint64_t sum = 0;
    for (int slot = 0; slot < MAX_PROCESSES; slot++)
        if (fake_on_device(&table->processes[slot])) sum += fake_bytes(&table->processes[slot], device);
    return sum;
}

void fake_file(char *path, size_t size, const struct process *process, const struct allocation *allocation, int on_device) {
    snprintf(path, size, "%s/%s/%d-%llu-%u", directory, on_device ? "device" : "host", process->pid,
             (unsigned long long)process->start, allocation->number);
}

void fake_wake(struct process *process) {
    __atomic_add_fetch(&process->gate, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &process->gate, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void fake_wait(struct process *process, uint32_t gate) {
    struct timespec patience = {.tv_sec = 0, .tv_nsec = 50000000};
    syscall(SYS_futex, &process->gate, FUTEX_WAIT, gate, &patience, NULL, 0);
}
