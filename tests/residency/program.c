/* A program with 8 MiB on a GPU, in C. For each line that it reads it adds one to every word and says whether all were right.
 *
 * Linked with libcuda; with -DOPENED it opens that itself and asks by names, with -DASKED by cuGetProcAddress.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE ((size_t)8 << 20)
#define FUNCTIONS(ENTRY) \
    ENTRY(cuInit, cuInit, (unsigned)) \
    ENTRY(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (void **, int)) \
    ENTRY(cuCtxSetCurrent, cuCtxSetCurrent, (void *)) \
    ENTRY(cuMemAlloc, cuMemAlloc_v2, (unsigned long long *, size_t)) \
    ENTRY(cuMemsetD32, cuMemsetD32_v2, (unsigned long long, unsigned, size_t)) \
    ENTRY(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, unsigned long long, size_t)) \
    ENTRY(cuMemFree, cuMemFree_v2, (unsigned long long))
#if defined(OPENED) || defined(ASKED)
#define DECLARE(name, symbol, arguments) static int(*symbol) arguments;
#else
#define DECLARE(name, symbol, arguments) extern int symbol arguments;
#endif
FUNCTIONS(DECLARE)

static void check(int result, const char *call) {
    if (result == 0) return;
    printf("%s: %d\n", call, result);
    exit(1);
}

static void find(void) {
#if defined(OPENED) || defined(ASKED)
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) exit(2);
#endif
#if defined(ASKED)
    int (*ask)(const char *, void **, int, uint64_t, int *);
    *(void **)&ask = dlsym(library, "cuGetProcAddress_v2");
#define FIND(name, symbol, arguments) check(ask(#name, (void **)&symbol, 13000, 0, NULL), #name);
    FUNCTIONS(FIND)
#elif defined(OPENED)
#define FIND(name, symbol, arguments) *(void **)&symbol = dlsym(library, #symbol);
    FUNCTIONS(FIND)
#endif
}

int main(void) {
    unsigned long long at;
    unsigned value = 1, *host = malloc(SIZE);
    void *context;
    char line[16];
    find();
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuMemAlloc_v2(&at, SIZE), "cuMemAlloc");
    check(cuMemsetD32_v2(at, value, SIZE / 4), "cuMemsetD32");
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin) != NULL) {
        size_t wrong = 0;
        check(cuMemcpyDtoH_v2(host, at, SIZE), "cuMemcpyDtoH");
        for (size_t number = 0; number < SIZE / 4; number++) wrong += host[number] != value;
        printf("%zu wrong at %llx\n", wrong, at);
        fflush(stdout);
        check(cuMemsetD32_v2(at, ++value, SIZE / 4), "cuMemsetD32");
    }
    check(cuMemFree_v2(at), "cuMemFree");
    return 0;
}
