/* The same calls for programs that are built for the per-thread default stream: there NULL means the thread's own.
 *
 * Their copies that wait (_ptds) wait here for the legacy stream too, which is more than they must.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define OWN(stream) ((stream) == NULL ? (void *)2 : (stream))

#define COPY(name, to, from) \
    extern int name(to, from, size_t); \
    EXPORT int name##_ptds(to a, from b, size_t size) { return name(a, b, size); }
#define FILL(name, type) \
    extern int name(uint64_t, type, size_t); \
    EXPORT int name##_ptds(uint64_t at, type value, size_t count) { return name(at, value, count); }
#define COPY_LATER(name, to, from) \
    extern int name(to, from, size_t, void *); \
    EXPORT int name##_ptsz(to a, from b, size_t size, void *stream) { return name(a, b, size, OWN(stream)); }
#define FILL_LATER(name, type) \
    extern int name(uint64_t, type, size_t, void *); \
    EXPORT int name##_ptsz(uint64_t at, type value, size_t count, void *stream) { return name(at, value, count, OWN(stream)); }
#define FIRST0(name) \
    extern int name(void *); \
    EXPORT int name##_ptsz(void *stream) { return name(OWN(stream)); }
#define FIRST1(name, type) \
    extern int name(void *, type); \
    EXPORT int name##_ptsz(void *stream, type a) { return name(OWN(stream), a); }
#define FIRST2(name, type, other) \
    extern int name(void *, type, other); \
    EXPORT int name##_ptsz(void *stream, type a, other b) { return name(OWN(stream), a, b); }
#define LAST1(name, type) \
    extern int name(type, void *); \
    EXPORT int name##_ptsz(type a, void *stream) { return name(a, OWN(stream)); }

COPY(cuMemcpyHtoD_v2, uint64_t, const void *)
COPY(cuMemcpyDtoH_v2, void *, uint64_t)
COPY(cuMemcpyDtoD_v2, uint64_t, uint64_t)
COPY(cuMemcpy, uint64_t, uint64_t)
FILL(cuMemsetD8_v2, unsigned char)
FILL(cuMemsetD16_v2, unsigned short)
FILL(cuMemsetD32_v2, unsigned)
COPY_LATER(cuMemcpyHtoDAsync_v2, uint64_t, const void *)
COPY_LATER(cuMemcpyDtoHAsync_v2, void *, uint64_t)
COPY_LATER(cuMemcpyDtoDAsync_v2, uint64_t, uint64_t)
COPY_LATER(cuMemcpyAsync, uint64_t, uint64_t)
FILL_LATER(cuMemsetD8Async, unsigned char)
FILL_LATER(cuMemsetD16Async, unsigned short)
FILL_LATER(cuMemsetD32Async, unsigned)
FIRST0(cuStreamSynchronize)
FIRST0(cuStreamQuery)
FIRST1(cuStreamBeginCapture_v2, int)
FIRST1(cuStreamEndCapture, void *)
FIRST1(cuStreamIsCapturing, int *)
FIRST1(cuStreamGetCtx, void *)
FIRST1(cuStreamGetDevice, int *)
FIRST1(cuStreamGetPriority, int *)
FIRST1(cuStreamGetFlags, unsigned *)
FIRST1(cuStreamGetId, uint64_t *)
FIRST2(cuStreamWaitEvent, void *, unsigned)
FIRST2(cuLaunchHostFunc, void *, void *)
LAST1(cuEventRecord, void *)
LAST1(cuGraphLaunch, void *)
LAST1(cuGraphUpload, void *)
LAST1(cuMemFreeAsync, uint64_t)

extern int cuEventRecordWithFlags(void *, void *, unsigned);
EXPORT int cuEventRecordWithFlags_ptsz(void *event, void *stream, unsigned flags) {
    return cuEventRecordWithFlags(event, OWN(stream), flags);
}

extern int cuMemAllocAsync(uint64_t *, size_t, void *);
EXPORT int cuMemAllocAsync_ptsz(uint64_t *address, size_t size, void *stream) { return cuMemAllocAsync(address, size, OWN(stream)); }

extern int cuMemAllocFromPoolAsync(uint64_t *, size_t, void *, void *);
EXPORT int cuMemAllocFromPoolAsync_ptsz(uint64_t *address, size_t size, void *pool, void *stream) {
    return cuMemAllocFromPoolAsync(address, size, pool, OWN(stream));
}

extern int cuStreamGetCaptureInfo_v2(void *, int *, uint64_t *, void *, void *, size_t *);
EXPORT int cuStreamGetCaptureInfo_v2_ptsz(void *stream, int *status, uint64_t *identity, void *graph, void *nodes, size_t *count) {
    return cuStreamGetCaptureInfo_v2(OWN(stream), status, identity, graph, nodes, count);
}

extern int cuStreamGetCaptureInfo_v3(void *, int *, uint64_t *, void *, void *, void *, size_t *);
EXPORT int cuStreamGetCaptureInfo_v3_ptsz(void *stream, int *status, uint64_t *identity, void *graph, void *nodes, void *edges,
                                          size_t *count) {
    return cuStreamGetCaptureInfo_v3(OWN(stream), status, identity, graph, nodes, edges, count);
}

extern int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
EXPORT int cuLaunchKernel_ptsz(void *kernel, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned shared,
                               void *stream, void **parameters, void **extra) {
    return cuLaunchKernel(kernel, a, b, c, d, e, f, shared, OWN(stream), parameters, extra);
}

extern int cuLaunchCooperativeKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **);
EXPORT int cuLaunchCooperativeKernel_ptsz(void *kernel, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f,
                                          unsigned shared, void *stream, void **parameters) {
    return cuLaunchCooperativeKernel(kernel, a, b, c, d, e, f, shared, OWN(stream), parameters);
}

struct launch_config {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned attribute_count;
};

extern int cuLaunchKernelEx(const struct launch_config *, void *, void **, void **);
EXPORT int cuLaunchKernelEx_ptsz(const struct launch_config *wanted, void *kernel, void **parameters, void **extra) {
    struct launch_config own = *wanted;
    own.stream = OWN(own.stream);
    return cuLaunchKernelEx(&own, kernel, parameters, extra);
}
