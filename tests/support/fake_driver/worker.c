/* A program that uses the driver as frameworks do, driven by lines on its standard input; it knows nothing of fakes or leases.
 *
 *   alloc KIND COUNT BYTES   buffers: plain (cuMemAlloc), mapped (JAX: a reservation, one handle), expandable (PyTorch's expandable
 *                            segments: handles of 2 MiB side by side), pooled (cuMemAllocAsync). They get values of their own.
 *   free NUMBER              the buffer with this number; "-1": all
 *   step COUNT               gives so many steps of a training to its stream and does not wait: each step changes every buffer
 *   train COUNT              the same in another thread, which waits for each step; "trained" tells how many are done
 *   join                     waits for that thread
 *   capture COUNT            so many steps as a graph; "replay COUNT" launches it; "hold" begins a capture and "drop" ends it
 *   digest                   waits, and tells a digest of the contents of all buffers
 *   where                    addresses of all buffers
 *   room                     cuMemGetInfo
 *   sync, share NUMBER (cuIpcGetMemHandle), spin MICROSECONDS, quit
 *
 * Each answer is a line: "ok ..." or "error CODE CALL". The argument of the program says how calls are looked up: "new"
 * (cuGetProcAddress_v2, as libcudart), "old" (cuGetProcAddress) or "names" (dlsym of each, as numba).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNIT 0x200000ull
#define MAX_BUFFERS 1024

#define CALLS(CALL) \
    CALL(cuInit, "") CALL(cuDeviceGet, "") CALL(cuDevicePrimaryCtxRetain, "") CALL(cuCtxSetCurrent, "") CALL(cuStreamCreate, "") \
    CALL(cuStreamSynchronize, "") CALL(cuMemAlloc, "_v2") CALL(cuMemFree, "_v2") CALL(cuMemAllocAsync, "") CALL(cuMemFreeAsync, "") \
    CALL(cuMemAddressReserve, "") CALL(cuMemAddressFree, "") CALL(cuMemCreate, "") CALL(cuMemRelease, "") CALL(cuMemMap, "") \
    CALL(cuMemUnmap, "") CALL(cuMemSetAccess, "") CALL(cuMemcpyDtoHAsync, "_v2") CALL(cuMemcpyHtoDAsync, "_v2") \
    CALL(cuModuleLoadData, "") CALL(cuModuleGetFunction, "") CALL(cuLaunchKernel, "") CALL(cuStreamBeginCapture, "_v2") \
    CALL(cuStreamEndCapture, "") CALL(cuGraphInstantiateWithFlags, "") CALL(cuGraphLaunch, "") CALL(cuMemGetInfo, "_v2") \
    CALL(cuIpcGetMemHandle, "")

#define POINTER(name, version) static int (*name)();
CALLS(POINTER)

struct buffer {
    char kind;
    uint64_t at, size, whole; /* what it was asked for, and what is mapped for it */
    uint64_t *handles;
};
struct location {
    int type, id;
};
struct properties {
    int type, exportable;
    struct location location;
    void *windows;
    unsigned char flags[8];
};
struct access {
    struct location location;
    int flags;
};

static struct buffer buffers[MAX_BUFFERS];
static int count, next_step, failed_code;
static const char *failed_call;
static void *context, *stream, *mix, *spin, *graph;
static pthread_t trainer;
static int training, wanted_steps;
static _Atomic int trained;

/* Remembers the first call that failed. */
static int call_(int code, const char *name) {
    if (code != 0 && failed_code == 0) {
        failed_code = code;
        failed_call = name;
    }
    return code;
}
#define DO(name, ...) call_(name(__VA_ARGS__), #name)

static void *look_up(void *library, const char *how, const char *name, const char *version) {
    char full[64];
    void *found = NULL;
    snprintf(full, sizeof full, "%s%s", name, version);
    int (*ask)() = (int (*)())dlsym(library, strcmp(how, "old") == 0 ? "cuGetProcAddress" : "cuGetProcAddress_v2");
    if (strcmp(how, "names") == 0) found = dlsym(library, full);
    else if (strcmp(how, "old") == 0) ask(name, &found, 11040, (uint64_t)0);
    else ask(name, &found, 13000, (uint64_t)0, NULL);
    if (found == NULL) {
        fprintf(stderr, "no %s\n", full);
        exit(2);
    }
    return found;
}

static int begin(const char *how) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *module;
    int device;
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
#define FIND(name, version) name = (int (*)())look_up(library, how, #name, version);
    CALLS(FIND)
    return DO(cuInit, 0) || DO(cuDeviceGet, &device, 0) || DO(cuDevicePrimaryCtxRetain, &context, device) ||
           DO(cuCtxSetCurrent, context) || DO(cuStreamCreate, &stream, 1) || DO(cuModuleLoadData, &module, "") ||
           DO(cuModuleGetFunction, &mix, module, "mix") || DO(cuModuleGetFunction, &spin, module, "spin");
}

/* Memory in pieces, each with a handle of its own, that lie side by side. */
static int map(struct buffer *buffer, uint64_t piece) {
    struct properties properties = {.type = 1, .location = {1, 0}};
    struct access access = {{1, 0}, 3};
    uint64_t whole = buffer->whole = (buffer->size + piece - 1) / piece * piece;
    buffer->handles = calloc(whole / piece, sizeof *buffer->handles);
    if (DO(cuMemAddressReserve, &buffer->at, whole, (size_t)0, (uint64_t)0, 0ull)) return 1;
    for (uint64_t index = 0; index < whole / piece; index++) {
        uint64_t at = buffer->at + index * piece;
        if (DO(cuMemCreate, &buffer->handles[index], piece, &properties, 0ull)) return 1;
        if (DO(cuMemMap, at, piece, (size_t)0, buffer->handles[index], 0ull)) return 1;
        if (DO(cuMemSetAccess, at, piece, &access, (size_t)1)) return 1;
    }
    return 0;
}

static uint64_t piece_of(const struct buffer *buffer) {
    return buffer->kind == 'e' ? UNIT : (buffer->size + UNIT - 1) / UNIT * UNIT;
}

static int allocate(char kind, uint64_t size) {
    struct buffer *buffer = &buffers[count];
    *buffer = (struct buffer){.kind = kind, .size = size};
    if (count == MAX_BUFFERS) return 1;
    int refused = kind == 'a'   ? DO(cuMemAllocAsync, &buffer->at, size, stream)
                  : kind == 'p' ? DO(cuMemAlloc, &buffer->at, size)
                                : map(buffer, piece_of(buffer));
    if (refused) return 1;
    uint32_t *words = malloc(buffer->size);
    for (uint64_t index = 0; index < buffer->size / 4; index++) words[index] = (uint32_t)(index * 2654435761u + (unsigned)count);
    int bad = DO(cuMemcpyHtoDAsync, buffer->at, words, buffer->size, stream);
    free(words);
    count += !bad;
    return bad;
}

static int release(int number) {
    struct buffer buffer = buffers[number];
    if (DO(cuStreamSynchronize, stream)) return 1;
    memmove(&buffers[number], &buffers[number + 1], (size_t)(--count - number) * sizeof *buffers);
    if (buffer.kind == 'p') return DO(cuMemFree, buffer.at);
    if (buffer.kind == 'a') return DO(cuMemFreeAsync, buffer.at, stream);
    if (DO(cuMemUnmap, buffer.at, buffer.whole)) return 1;
    for (uint64_t index = 0; index < buffer.whole / piece_of(&buffer); index++)
        if (DO(cuMemRelease, buffer.handles[index])) return 1;
    free(buffer.handles);
    return DO(cuMemAddressFree, buffer.at, buffer.whole);
}

static int step(void) {
    int number = ++next_step;
    for (int index = 0; index < count; index++) {
        struct buffer *to = &buffers[index], *from = &buffers[(index + 1) % count];
        uint64_t words = (to->size < from->size ? to->size : from->size) / 4;
        void *parameters[] = {&to->at, &from->at, &words, &number};
        if (DO(cuLaunchKernel, mix, 1, 1, 1, 256, 1, 1, 0, stream, parameters, NULL)) return 1;
    }
    return 0;
}

static int steps(int wanted) {
    while (wanted-- > 0)
        if (step()) return 1;
    return 0;
}

static void *train(void *unused) {
    (void)unused;
    DO(cuCtxSetCurrent, context);
    for (trained = 0; trained < wanted_steps; trained++)
        if (step() || DO(cuStreamSynchronize, stream)) break;
    return NULL;
}

static int join(void) {
    if (training) pthread_join(trainer, NULL);
    training = 0;
    return failed_code;
}

static int capture(int wanted) {
    void *captured;
    if (DO(cuStreamBeginCapture, stream, 0) || steps(wanted) || DO(cuStreamEndCapture, stream, &captured)) return 1;
    return DO(cuGraphInstantiateWithFlags, &graph, captured, 0ull);
}

static int replay(int wanted) {
    while (wanted-- > 0)
        if (DO(cuGraphLaunch, graph, stream)) return 1;
    return 0;
}

static int digest(char *answer) {
    uint64_t hash = 14695981039346656037ull;
    for (int index = 0; index < count; index++) {
        unsigned char *bytes = malloc(buffers[index].size);
        int bad = DO(cuMemcpyDtoHAsync, bytes, buffers[index].at, buffers[index].size, stream) || DO(cuStreamSynchronize, stream);
        for (uint64_t at = 0; !bad && at < buffers[index].size; at++) hash = (hash ^ bytes[at]) * 1099511628211ull;
        free(bytes);
        if (bad) return 1;
    }
    return sprintf(answer, "%016llx", (unsigned long long)hash) < 0;
}

static int obey(const char *line, char *answer) {
    char word[32] = "", kind[32] = "";
    long number = 0;
    unsigned long long size = 0;
    char handle[64];
    size_t unused, total;
    sscanf(line, "%31s %ld", word, &number);
    int amount = (int)number;
    if (sscanf(line, "alloc %31s %ld %llu", kind, &number, &size) == 3) {
        for (char letter = strcmp(kind, "pooled") == 0 ? 'a' : kind[0]; number > 0; number--)
            if (allocate(letter, size)) return 1;
        return 0;
    }
    if (strcmp(word, "free") == 0 && number < 0) {
        while (count > 0)
            if (release(count - 1)) return 1;
        return 0;
    }
    if (strcmp(word, "free") == 0) return release(amount);
    if (strcmp(word, "step") == 0) return steps(amount);
    if (strcmp(word, "train") == 0) {
        wanted_steps = amount;
        training = 1;
        return pthread_create(&trainer, NULL, train, NULL);
    }
    if (strcmp(word, "trained") == 0) return sprintf(answer, "%d", trained) < 0;
    if (strcmp(word, "join") == 0) return join();
    if (strcmp(word, "capture") == 0) return capture(amount);
    if (strcmp(word, "replay") == 0) return replay(amount);
    if (strcmp(word, "hold") == 0) return DO(cuStreamBeginCapture, stream, 0);
    if (strcmp(word, "drop") == 0) return DO(cuStreamEndCapture, stream, (void **)handle);
    if (strcmp(word, "digest") == 0) return digest(answer);
    if (strcmp(word, "sync") == 0) return DO(cuStreamSynchronize, stream);
    if (strcmp(word, "share") == 0) return DO(cuIpcGetMemHandle, handle, buffers[amount].at);
    if (strcmp(word, "spin") == 0) return DO(cuLaunchKernel, spin, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&amount}, NULL);
    if (strcmp(word, "room") == 0) return DO(cuMemGetInfo, &unused, &total) || sprintf(answer, "%zu %zu", unused, total) < 0;
    if (strcmp(word, "where") != 0) return 1;
    for (int index = 0; index < count && index < 200; index++)
        answer += sprintf(answer, "%s%llx", index > 0 ? " " : "", (unsigned long long)buffers[index].at);
    return 0;
}

int main(int argc, char **argv) {
    char line[256] = "", answer[4096];
    int bad = begin(argc > 1 ? argv[1] : "new");
    do {
        answer[0] = 0;
        if (line[0] != 0) bad = obey(line, answer);
        if (bad) printf("error %d %s\n", failed_code, failed_call != NULL ? failed_call : "what?");
        else printf(*answer ? "ok %s\n" : "ok\n", answer);
        fflush(stdout);
        failed_code = 0;
        failed_call = NULL;
    } while (fgets(line, sizeof line, stdin) != NULL && strcmp(line, "quit\n") != 0);
    return 0;
}
