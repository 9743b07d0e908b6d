/* Functions that this library exports in place of the driver's, with arguments that mean something to it. */
#ifndef CARREL_RESIDENCY_OWN_H
#define CARREL_RESIDENCY_OWN_H

#include "residency.h"

/* name, symbol, the CUDA version from which on the name means this symbol */
#define OWN(ENTRY) \
    ENTRY(cuInit, cuInit, 2000) \
    ENTRY(cuMemAlloc, cuMemAlloc_v2, 3020) \
    ENTRY(cuMemFree, cuMemFree_v2, 3020) \
    ENTRY(cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020) \
    ENTRY(cuMemCreate, cuMemCreate, 10020) \
    ENTRY(cuMemRelease, cuMemRelease, 10020) \
    ENTRY(cuMemMap, cuMemMap, 10020) \
    ENTRY(cuMemUnmap, cuMemUnmap, 10020) \
    ENTRY(cuMemSetAccess, cuMemSetAccess, 10020) \
    ENTRY(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000) \
    ENTRY(cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020) \
    ENTRY(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020) \
    ENTRY(cuMemGetAllocationPropertiesFromHandle, cuMemGetAllocationPropertiesFromHandle, 10020) \
    ENTRY(cuMulticastBindMem, cuMulticastBindMem, 12010) \
    ENTRY(cuMulticastBindMem, cuMulticastBindMem_v2, 13010) \
    ENTRY(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010) \
    ENTRY(cuIpcOpenMemHandle, cuIpcOpenMemHandle_v2, 11000)

struct ipc_handle { /* passed by value, so not one for calls.def */
    char bytes[64];
};
extern _Atomic(void *) driver_cuIpcOpenMemHandle_v2;

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);
int cuInit(unsigned flags);
int cuMemAlloc_v2(address *at, size_t size);
int cuMemFree_v2(address at);
int cuMemGetAddressRange_v2(address *base, size_t *size, address at);
int cuMemCreate(handle *made, size_t size, const struct property *property, unsigned long long flags);
int cuMemRelease(handle token);
int cuMemMap(address at, size_t size, size_t offset, handle token, unsigned long long flags);
int cuMemUnmap(address at, size_t size);
int cuMemSetAccess(address at, size_t size, const struct access *access, size_t count);
int cuMemRetainAllocationHandle(handle *token, void *at);
int cuMemExportToShareableHandle(void *shared, handle token, int type, unsigned long long flags);
int cuMemImportFromShareableHandle(handle *token, void *shared, int type);
int cuMemGetAllocationPropertiesFromHandle(struct property *property, handle token);
int cuMulticastBindMem(handle group, size_t at, handle token, size_t offset, size_t size, unsigned long long flags);
int cuMulticastBindMem_v2(handle group, int device, size_t at, handle token, size_t offset, size_t size, unsigned long long flags);
int cuIpcGetMemHandle(void *shared, address at);
int cuIpcOpenMemHandle_v2(address *at, struct ipc_handle shared, unsigned flags);

extern const struct slot own_slots[];
extern const size_t own_count;

#endif
