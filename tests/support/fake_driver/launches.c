/* Kernels: modules and libraries have, whatever their image, the same few, which the processor does.
 *
 *   add(buffer, count, value)             adds the value to each of `count` 32-bit words
 *   mix(to, from, count, step)            a step of a training: each word depends on all words before it, on `from` and on `step`,
 *                                         so that steps left out, done twice or in another order never give the same
 *   spin(microseconds)                    takes that time
 *
 * Buffers and counts are 64-bit, value, step and microseconds 32-bit numbers.
 */
#define _GNU_SOURCE
#include "work.h"

#include <stdlib.h>
#include <string.h>

struct kernel {
    const char *name;
    int (*run)(struct work *work);
    int wide, narrow; /* parameters of 64 bits, then of 32 */
};

struct launch_config {
    unsigned grid[3], block[3], shared;
    struct stream *stream;
    void *attributes;
    unsigned attribute_count;
};

static int with_words(const char *call, uint64_t address, uint32_t **words, uint64_t count) {
    int result = fake_reachable(address, count * 4, 1);
    if (result != SUCCESS) return result;
    *words = malloc(count * 4 + 1);
    return *words == NULL ? OUT_OF_MEMORY : fake_transfer(call, address, *words, count * 4, 0);
}

static int add(struct work *work) {
    uint32_t *words = NULL;
    int result = with_words("", work->arguments[0], &words, work->arguments[1]);
    for (uint64_t index = 0; result == SUCCESS && index < work->arguments[1]; index++) words[index] += (uint32_t)work->arguments[2];
    if (result == SUCCESS) result = fake_transfer("cuLaunchKernel", work->arguments[0], words, work->arguments[1] * 4, 1);
    free(words);
    return result;
}

static int mix(struct work *work) {
    uint32_t *to = NULL, *from = NULL, chain = (uint32_t)work->arguments[3] * 2654435761u + 1;
    uint64_t count = work->arguments[2];
    int result = with_words("", work->arguments[0], &to, count);
    if (result == SUCCESS) result = with_words("", work->arguments[1], &from, count);
    for (uint64_t index = 0; result == SUCCESS && index < count; index++) {
        chain = (chain ^ to[index]) * 16777619u + from[index];
        chain ^= chain >> 15;
        to[index] = chain;
    }
    if (result == SUCCESS) result = fake_transfer("cuLaunchKernel", work->arguments[0], to, count * 4, 1);
    free(to);
    free(from);
    return result;
}

static int spin(struct work *work) {
    fake_sleep((double)work->arguments[0] / 1e6);
    return SUCCESS;
}

static const struct kernel kernels[] = {{"add", add, 2, 1}, {"mix", mix, 3, 1}, {"spin", spin, 0, 1}};

static int is_kernel(const struct kernel *kernel) {
    return kernel >= kernels && kernel < kernels + sizeof kernels / sizeof *kernels;
}

EXPORT int cuModuleLoadData(void **module, const void *image) {
    int result = fake_enter("cuModuleLoadData");
    if (result != SUCCESS) return result;
    result = fake_ordinal() < 0 ? INVALID_CONTEXT : image == NULL ? INVALID_VALUE : SUCCESS;
    *module = result == SUCCESS ? malloc(1) : NULL;
    fake_leave();
    return result;
}

EXPORT int cuModuleLoadDataEx(void **module, const void *image, unsigned count, void *options, void **values) {
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(module, image);
}

EXPORT int cuModuleLoadFatBinary(void **module, const void *image) { return cuModuleLoadData(module, image); }

EXPORT int cuModuleUnload(void *module) {
    int result = fake_enter("cuModuleUnload");
    if (result != SUCCESS) return result;
    free(module);
    fake_leave();
    return SUCCESS;
}

EXPORT int cuModuleGetFunction(const struct kernel **function, void *module, const char *name) {
    if (!fake_initialized()) return NOT_INITIALIZED;
    if (module == NULL || name == NULL) return INVALID_VALUE;
    *function = NULL;
    for (size_t index = 0; index < sizeof kernels / sizeof *kernels; index++)
        if (strcmp(kernels[index].name, name) == 0) *function = &kernels[index];
    return *function == NULL ? NOT_FOUND : SUCCESS;
}

EXPORT int cuLibraryLoadData(void **library, const void *code, void *options, void **values, unsigned count, void *library_options,
                             void **library_values, unsigned library_count) {
    (void)options, (void)values, (void)count, (void)library_options, (void)library_values, (void)library_count;
    int result = fake_enter("cuLibraryLoadData");
    if (result != SUCCESS) return result;
    *library = code == NULL ? NULL : malloc(1);
    fake_leave();
    return code == NULL ? INVALID_VALUE : SUCCESS;
}

EXPORT int cuLibraryUnload(void *library) {
    int result = fake_enter("cuLibraryUnload");
    if (result != SUCCESS) return result;
    free(library);
    fake_leave();
    return SUCCESS;
}

EXPORT int cuLibraryGetModule(void **module, void *library) {
    *module = library;
    return library == NULL ? INVALID_HANDLE : SUCCESS;
}

EXPORT int cuLibraryGetKernel(const struct kernel **kernel, void *library, const char *name) {
    return cuModuleGetFunction(kernel, library, name);
}

EXPORT int cuKernelGetFunction(const struct kernel **function, const struct kernel *kernel) {
    *function = kernel;
    return is_kernel(kernel) ? SUCCESS : INVALID_HANDLE;
}

static int launch(const char *call, const struct kernel *kernel, struct stream *stream, void **parameters, void **extra) {
    if (!is_kernel(kernel)) return INVALID_HANDLE;
    if (parameters == NULL || extra != NULL) return INVALID_VALUE; /* packed parameters are not understood here */
    struct work work = {.run = kernel->run};
    for (int index = 0; index < kernel->wide; index++) work.arguments[index] = *(uint64_t *)parameters[index];
    for (int index = kernel->wide; index < kernel->wide + kernel->narrow; index++)
        work.arguments[index] = *(uint32_t *)parameters[index];
    return fake_submit(call, stream, work);
}

EXPORT int cuLaunchKernel(const struct kernel *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared, struct stream *stream, void **parameters,
                          void **extra) {
    (void)shared;
    if (!grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z) return INVALID_VALUE;
    return launch("cuLaunchKernel", kernel, stream, parameters, extra);
}

EXPORT int cuLaunchCooperativeKernel(const struct kernel *kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                     unsigned block_y, unsigned block_z, unsigned shared, struct stream *stream,
                                     void **parameters) {
    return cuLaunchKernel(kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters, NULL);
}

EXPORT int cuLaunchKernelEx(const struct launch_config *wanted, const struct kernel *kernel, void **parameters, void **extra) {
    if (wanted == NULL) return INVALID_VALUE;
    return launch("cuLaunchKernelEx", kernel, wanted->stream, parameters, extra);
}
