/* How programs find what this library has: cuGetProcAddress, in both of its forms, by names without a version.
 *
 * A table and no dlsym(3): a guard that stands in for dlsym must not see calls that the program did not make.
 */
#include "cuda.h"

#include <stddef.h>
#include <string.h>

enum { PER_THREAD_DEFAULT_STREAM = 2, FOUND = 0, NO_SUCH_SYMBOL = 1 };

/* name without version, the function behind it, and the one for the per-thread default stream */
#define ENTRIES(ENTRY, BOTH) \
    ENTRY(cuCheckpointProcessCheckpoint, cuCheckpointProcessCheckpoint) \
    ENTRY(cuCheckpointProcessGetRestoreThreadId, cuCheckpointProcessGetRestoreThreadId) \
    ENTRY(cuCheckpointProcessGetState, cuCheckpointProcessGetState) \
    ENTRY(cuCheckpointProcessLock, cuCheckpointProcessLock) \
    ENTRY(cuCheckpointProcessRestore, cuCheckpointProcessRestore) \
    ENTRY(cuCheckpointProcessUnlock, cuCheckpointProcessUnlock) \
    ENTRY(cuCtxCreate, cuCtxCreate_v4) \
    ENTRY(cuCtxDestroy, cuCtxDestroy_v2) \
    ENTRY(cuCtxDisablePeerAccess, cuCtxDisablePeerAccess) \
    ENTRY(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess) \
    ENTRY(cuCtxGetCurrent, cuCtxGetCurrent) \
    ENTRY(cuCtxGetDevice, cuCtxGetDevice) \
    ENTRY(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange) \
    ENTRY(cuCtxPopCurrent, cuCtxPopCurrent_v2) \
    ENTRY(cuCtxPushCurrent, cuCtxPushCurrent_v2) \
    ENTRY(cuCtxSetCurrent, cuCtxSetCurrent) \
    ENTRY(cuCtxSynchronize, cuCtxSynchronize) \
    ENTRY(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer) \
    ENTRY(cuDeviceGet, cuDeviceGet) \
    ENTRY(cuDeviceGetAttribute, cuDeviceGetAttribute) \
    ENTRY(cuDeviceGetCount, cuDeviceGetCount) \
    ENTRY(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool) \
    ENTRY(cuDeviceGetMemPool, cuDeviceGetMemPool) \
    ENTRY(cuDeviceGetName, cuDeviceGetName) \
    ENTRY(cuDeviceGetUuid, cuDeviceGetUuid_v2) \
    ENTRY(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState) \
    ENTRY(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2) \
    ENTRY(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain) \
    ENTRY(cuDeviceSetMemPool, cuDeviceSetMemPool) \
    ENTRY(cuDeviceTotalMem, cuDeviceTotalMem_v2) \
    ENTRY(cuDriverGetVersion, cuDriverGetVersion) \
    ENTRY(cuEventCreate, cuEventCreate) \
    ENTRY(cuEventDestroy, cuEventDestroy_v2) \
    ENTRY(cuEventElapsedTime, cuEventElapsedTime_v2) \
    ENTRY(cuEventQuery, cuEventQuery) \
    BOTH(cuEventRecord, cuEventRecord, cuEventRecord_ptsz) \
    BOTH(cuEventRecordWithFlags, cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz) \
    ENTRY(cuEventSynchronize, cuEventSynchronize) \
    ENTRY(cuGetErrorName, cuGetErrorName) \
    ENTRY(cuGetErrorString, cuGetErrorString) \
    ENTRY(cuGraphCreate, cuGraphCreate) \
    ENTRY(cuGraphDestroy, cuGraphDestroy) \
    ENTRY(cuGraphExecDestroy, cuGraphExecDestroy) \
    ENTRY(cuGraphGetNodes, cuGraphGetNodes) \
    ENTRY(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags) \
    BOTH(cuGraphLaunch, cuGraphLaunch, cuGraphLaunch_ptsz) \
    BOTH(cuGraphUpload, cuGraphUpload, cuGraphUpload_ptsz) \
    ENTRY(cuInit, cuInit) \
    ENTRY(cuIpcCloseMemHandle, cuIpcCloseMemHandle) \
    ENTRY(cuIpcGetMemHandle, cuIpcGetMemHandle) \
    ENTRY(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2) \
    ENTRY(cuKernelGetFunction, cuKernelGetFunction) \
    BOTH(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz) \
    BOTH(cuLaunchHostFunc, cuLaunchHostFunc, cuLaunchHostFunc_ptsz) \
    BOTH(cuLaunchKernel, cuLaunchKernel, cuLaunchKernel_ptsz) \
    BOTH(cuLaunchKernelEx, cuLaunchKernelEx, cuLaunchKernelEx_ptsz) \
    ENTRY(cuLibraryGetKernel, cuLibraryGetKernel) \
    ENTRY(cuLibraryGetModule, cuLibraryGetModule) \
    ENTRY(cuLibraryLoadData, cuLibraryLoadData) \
    ENTRY(cuLibraryUnload, cuLibraryUnload) \
    ENTRY(cuMemAddressFree, cuMemAddressFree) \
    ENTRY(cuMemAddressReserve, cuMemAddressReserve) \
    BOTH(cuMemAllocAsync, cuMemAllocAsync, cuMemAllocAsync_ptsz) \
    BOTH(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz) \
    ENTRY(cuMemAllocHost, cuMemAllocHost_v2) \
    ENTRY(cuMemAllocManaged, cuMemAllocManaged) \
    ENTRY(cuMemAllocPitch, cuMemAllocPitch_v2) \
    ENTRY(cuMemAlloc, cuMemAlloc_v2) \
    ENTRY(cuMemCreate, cuMemCreate) \
    ENTRY(cuMemExportToShareableHandle, cuMemExportToShareableHandle) \
    BOTH(cuMemFreeAsync, cuMemFreeAsync, cuMemFreeAsync_ptsz) \
    ENTRY(cuMemFreeHost, cuMemFreeHost) \
    ENTRY(cuMemFree, cuMemFree_v2) \
    ENTRY(cuMemGetAccess, cuMemGetAccess) \
    ENTRY(cuMemGetAddressRange, cuMemGetAddressRange_v2) \
    ENTRY(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity) \
    ENTRY(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle) \
    ENTRY(cuMemGetInfo, cuMemGetInfo_v2) \
    ENTRY(cuMemHostAlloc, cuMemHostAlloc) \
    ENTRY(cuMemHostGetDevicePointer, cuMemHostGetDevicePointer_v2) \
    ENTRY(cuMemHostGetFlags, cuMemHostGetFlags) \
    ENTRY(cuMemHostRegister, cuMemHostRegister_v2) \
    ENTRY(cuMemHostUnregister, cuMemHostUnregister) \
    ENTRY(cuMemMap, cuMemMap) \
    ENTRY(cuMemPoolCreate, cuMemPoolCreate) \
    ENTRY(cuMemPoolDestroy, cuMemPoolDestroy) \
    ENTRY(cuMemPoolGetAttribute, cuMemPoolGetAttribute) \
    ENTRY(cuMemPoolSetAttribute, cuMemPoolSetAttribute) \
    ENTRY(cuMemPoolTrimTo, cuMemPoolTrimTo) \
    ENTRY(cuMemRelease, cuMemRelease) \
    ENTRY(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle) \
    ENTRY(cuMemSetAccess, cuMemSetAccess) \
    ENTRY(cuMemUnmap, cuMemUnmap) \
    BOTH(cuMemcpy, cuMemcpy, cuMemcpy_ptds) \
    BOTH(cuMemcpyAsync, cuMemcpyAsync, cuMemcpyAsync_ptsz) \
    BOTH(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz) \
    BOTH(cuMemcpyDtoD, cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds) \
    BOTH(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz) \
    BOTH(cuMemcpyDtoH, cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds) \
    BOTH(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz) \
    BOTH(cuMemcpyHtoD, cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds) \
    BOTH(cuMemsetD16Async, cuMemsetD16Async, cuMemsetD16Async_ptsz) \
    BOTH(cuMemsetD16, cuMemsetD16_v2, cuMemsetD16_v2_ptds) \
    BOTH(cuMemsetD32Async, cuMemsetD32Async, cuMemsetD32Async_ptsz) \
    BOTH(cuMemsetD32, cuMemsetD32_v2, cuMemsetD32_v2_ptds) \
    BOTH(cuMemsetD8Async, cuMemsetD8Async, cuMemsetD8Async_ptsz) \
    BOTH(cuMemsetD8, cuMemsetD8_v2, cuMemsetD8_v2_ptds) \
    ENTRY(cuModuleGetFunction, cuModuleGetFunction) \
    ENTRY(cuModuleLoadData, cuModuleLoadData) \
    ENTRY(cuModuleLoadDataEx, cuModuleLoadDataEx) \
    ENTRY(cuModuleLoadFatBinary, cuModuleLoadFatBinary) \
    ENTRY(cuModuleUnload, cuModuleUnload) \
    ENTRY(cuPointerGetAttribute, cuPointerGetAttribute) \
    ENTRY(cuPointerGetAttributes, cuPointerGetAttributes) \
    ENTRY(cuPointerSetAttribute, cuPointerSetAttribute) \
    BOTH(cuStreamBeginCapture, cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz) \
    ENTRY(cuStreamCreate, cuStreamCreate) \
    ENTRY(cuStreamCreateWithPriority, cuStreamCreateWithPriority) \
    ENTRY(cuStreamDestroy, cuStreamDestroy_v2) \
    BOTH(cuStreamEndCapture, cuStreamEndCapture, cuStreamEndCapture_ptsz) \
    BOTH(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz) \
    BOTH(cuStreamGetCtx, cuStreamGetCtx, cuStreamGetCtx_ptsz) \
    BOTH(cuStreamGetDevice, cuStreamGetDevice, cuStreamGetDevice_ptsz) \
    BOTH(cuStreamGetFlags, cuStreamGetFlags, cuStreamGetFlags_ptsz) \
    BOTH(cuStreamGetId, cuStreamGetId, cuStreamGetId_ptsz) \
    BOTH(cuStreamGetPriority, cuStreamGetPriority, cuStreamGetPriority_ptsz) \
    BOTH(cuStreamIsCapturing, cuStreamIsCapturing, cuStreamIsCapturing_ptsz) \
    BOTH(cuStreamQuery, cuStreamQuery, cuStreamQuery_ptsz) \
    BOTH(cuStreamSynchronize, cuStreamSynchronize, cuStreamSynchronize_ptsz) \
    BOTH(cuStreamWaitEvent, cuStreamWaitEvent, cuStreamWaitEvent_ptsz) \
    ENTRY(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode) \
    ENTRY(cuGraphInstantiate, cuGraphInstantiateWithFlags)

#define DECLARE(name, function) extern void function(void);
#define DECLARE_BOTH(name, function, own) extern void function(void), own(void);
ENTRIES(DECLARE, DECLARE_BOTH)

#define ROW(name, function) {#name, function, function},
#define ROW_BOTH(name, function, own) {#name, function, own},
static const struct {
    const char *name;
    void (*function)(void), (*own)(void);
} entries[] = {ENTRIES(ROW, ROW_BOTH)};

static void *look_up(const char *symbol, uint64_t flags) {
    for (size_t index = 0; index < sizeof entries / sizeof *entries; index++)
        if (strcmp(entries[index].name, symbol) == 0)
            return (void *)(flags & PER_THREAD_DEFAULT_STREAM ? entries[index].own : entries[index].function);
    return NULL;
}

EXPORT int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags);

/* The newest version of a function is the one for programs built with CUDA 13; of this one it is by the version that they name. */
EXPORT int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    if (symbol == NULL || function == NULL) return INVALID_VALUE;
    if (strcmp(symbol, "cuGetProcAddress") != 0) *function = look_up(symbol, flags);
    else *function = version >= 12000 ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
    if (status != NULL) *status = *function != NULL ? FOUND : NO_SUCH_SYMBOL;
    return *function != NULL ? SUCCESS : NOT_FOUND;
}

EXPORT int cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
