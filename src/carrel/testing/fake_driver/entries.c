/* How programs find what this library has (cuGetProcAddress), and the names of errors.
 *
 * A table and no dlsym(3): a guard that stands in for dlsym must not see calls that the program did not make.
 */
#include "cuda.h"

#include <stddef.h>
#include <string.h>

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int describe(int code, const char **word, int text) {
    for (size_t index = 0; index < sizeof errors / sizeof *errors; index++)
        if (errors[index].code == code) {
            *word = text ? errors[index].text : errors[index].name;
            return SUCCESS;
        }
    *word = NULL;
    return INVALID_VALUE;
}

EXPORT int cuGetErrorName(int code, const char **name) { return describe(code, name, 0); }
EXPORT int cuGetErrorString(int code, const char **text) { return describe(code, text, 1); }

/* name without version, and the function behind it */
#define ENTRIES(ENTRY) \
    ENTRY(cuInit, cuInit) \
    ENTRY(cuDriverGetVersion, cuDriverGetVersion) \
    ENTRY(cuDeviceGetCount, cuDeviceGetCount) \
    ENTRY(cuDeviceGet, cuDeviceGet) \
    ENTRY(cuDeviceGetName, cuDeviceGetName) \
    ENTRY(cuDeviceGetUuid, cuDeviceGetUuid_v2) \
    ENTRY(cuDeviceTotalMem, cuDeviceTotalMem_v2) \
    ENTRY(cuDeviceGetAttribute, cuDeviceGetAttribute) \
    ENTRY(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain) \
    ENTRY(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2) \
    ENTRY(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState) \
    ENTRY(cuCtxCreate, cuCtxCreate_v4) \
    ENTRY(cuCtxDestroy, cuCtxDestroy_v2) \
    ENTRY(cuCtxSetCurrent, cuCtxSetCurrent) \
    ENTRY(cuCtxPushCurrent, cuCtxPushCurrent_v2) \
    ENTRY(cuCtxPopCurrent, cuCtxPopCurrent_v2) \
    ENTRY(cuCtxGetCurrent, cuCtxGetCurrent) \
    ENTRY(cuCtxGetDevice, cuCtxGetDevice) \
    ENTRY(cuCtxSynchronize, cuCtxSynchronize) \
    ENTRY(cuMemGetInfo, cuMemGetInfo_v2) \
    ENTRY(cuMemAlloc, cuMemAlloc_v2) \
    ENTRY(cuMemAllocManaged, cuMemAllocManaged) \
    ENTRY(cuMemFree, cuMemFree_v2) \
    ENTRY(cuMemHostAlloc, cuMemHostAlloc) \
    ENTRY(cuMemAllocHost, cuMemAllocHost_v2) \
    ENTRY(cuMemFreeHost, cuMemFreeHost) \
    ENTRY(cuMemHostRegister, cuMemHostRegister_v2) \
    ENTRY(cuMemHostUnregister, cuMemHostUnregister) \
    ENTRY(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2) \
    ENTRY(cuMemHostGetFlags, cuMemHostGetFlags) \
    ENTRY(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity) \
    ENTRY(cuMemAddressReserve, cuMemAddressReserve) \
    ENTRY(cuMemAddressFree, cuMemAddressFree) \
    ENTRY(cuMemCreate, cuMemCreate) \
    ENTRY(cuMemRelease, cuMemRelease) \
    ENTRY(cuMemMap, cuMemMap) \
    ENTRY(cuMemUnmap, cuMemUnmap) \
    ENTRY(cuMemSetAccess, cuMemSetAccess) \
    ENTRY(cuMemGetAccess, cuMemGetAccess) \
    ENTRY(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle) \
    ENTRY(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle) \
    ENTRY(cuMemExportToShareableHandle, cuMemExportToShareableHandle) \
    ENTRY(cuMemcpyHtoD, cuMemcpyHtoD_v2) \
    ENTRY(cuMemcpyDtoH, cuMemcpyDtoH_v2) \
    ENTRY(cuMemsetD8, cuMemsetD8_v2) \
    ENTRY(cuMemsetD32, cuMemsetD32_v2) \
    ENTRY(cuMemcpyDtoD, cuMemcpyDtoD_v2) \
    ENTRY(cuCheckpointProcessGetState, cuCheckpointProcessGetState) \
    ENTRY(cuCheckpointProcessGetRestoreThreadId, cuCheckpointProcessGetRestoreThreadId) \
    ENTRY(cuCheckpointProcessLock, cuCheckpointProcessLock) \
    ENTRY(cuCheckpointProcessCheckpoint, cuCheckpointProcessCheckpoint) \
    ENTRY(cuCheckpointProcessRestore, cuCheckpointProcessRestore) \
    ENTRY(cuCheckpointProcessUnlock, cuCheckpointProcessUnlock)

#define DECLARE(name, function) extern void function(void);
ENTRIES(DECLARE)

#define ROW(name, function) {#name, function},
static const struct {
    const char *name;
    void (*function)(void);
} entries[] = {ENTRIES(ROW) {"cuGetErrorName", (void (*)(void))cuGetErrorName}, {"cuGetErrorString", (void (*)(void))cuGetErrorString}};

/* Names are asked for without a version; the newest version of a function is the one for programs built with CUDA 13. */
EXPORT int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    (void)version, (void)flags;
    if (symbol == NULL || function == NULL) return INVALID_VALUE;
    *function = strcmp(symbol, "cuGetProcAddress") == 0 ? (void *)cuGetProcAddress_v2 : NULL;
    for (size_t index = 0; index < sizeof entries / sizeof *entries; index++)
        if (strcmp(entries[index].name, symbol) == 0) *function = (void *)entries[index].function;
    if (status != NULL) *status = *function != NULL ? 0 : 1;
    return *function != NULL ? SUCCESS : NOT_FOUND;
}
