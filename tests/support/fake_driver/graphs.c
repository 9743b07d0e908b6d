/* Capture of work into graphs. A graph is done in the order in which its work was given, from whichever stream; so branches
 * that could run side by side do not, and that a branch was never joined is not noticed.
 */
#define _GNU_SOURCE
#include "work.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = 0, ACTIVE = 1, VOID = 2 };

static __thread int mode; /* of this thread: what it may not do while others capture */

static struct work *copy_of(const struct work *work) {
    struct work *copy = malloc(sizeof *copy);
    void *data = malloc(work->data_size + 1);
    if (copy == NULL || data == NULL) abort();
    *copy = *work;
    if (work->data != NULL) memcpy(data, work->data, work->data_size);
    copy->data = data;
    copy->waits = NULL;
    copy->wait_count = 0;
    copy->next = NULL;
    return copy;
}

static void add(struct graph *graph, const struct work *work) {
    struct work *copy = copy_of(work);
    if (graph->last != NULL) graph->last->next = copy;
    else graph->first = copy;
    graph->last = copy;
    graph->nodes++;
}

static void clear(struct graph *graph) {
    for (struct work *work = graph->first, *next; work != NULL; work = next) {
        next = work->next;
        free(work->data);
        free(work);
    }
    *graph = (struct graph){NULL, NULL, 0};
}

int fake_capture_work(struct capture *capture, const struct work *work) {
    if (capture->spoilt) return STREAM_CAPTURE_INVALIDATED;
    add(capture->graph, work);
    return SUCCESS;
}

/* Work of the legacy stream would have to wait for work that is not being done. */
int fake_capture_forbids_legacy(const struct stream *stream) {
    int result = SUCCESS;
    for (struct stream *other = fake_streams; stream->legacy && other != NULL; other = other->next_stream)
        if (other->capture != NULL && other->ordinal == stream->ordinal && !(other->flags & NON_BLOCKING)) {
            other->capture->spoilt = 1;
            result = STREAM_CAPTURE_IMPLICIT;
        }
    return result;
}

int fake_capture_forbids_waiting(int ordinal) {
    int result = SUCCESS;
    pthread_mutex_lock(&fake_queues);
    for (struct stream *stream = fake_streams; stream != NULL; stream = stream->next_stream)
        if (stream->capture != NULL && stream->ordinal == ordinal) {
            stream->capture->spoilt = 1;
            result = STREAM_CAPTURE_UNSUPPORTED;
        }
    pthread_mutex_unlock(&fake_queues);
    return result;
}

/* cudaThreadExchangeStreamCaptureMode says who may not do what is "potentially unsafe", which allocating memory is. */
int fake_capture_forbids_memory(void) {
    int result = SUCCESS;
    pthread_mutex_lock(&fake_queues);
    for (struct stream *stream = fake_streams; stream != NULL && mode != RELAXED; stream = stream->next_stream) {
        struct capture *capture = stream->capture;
        if (capture == NULL || capture->mode == RELAXED) continue;
        if (!pthread_equal(capture->thread, pthread_self()) && (mode == THREAD_LOCAL || capture->mode != GLOBAL)) continue;
        capture->spoilt = 1;
        result = STREAM_CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_unlock(&fake_queues);
    return result;
}

int fake_capture_forbids_copying(int ordinal) {
    int result = fake_capture_forbids_memory();
    pthread_mutex_lock(&fake_queues);
    struct stream legacy = {.legacy = 1, .ordinal = ordinal};
    if (result == SUCCESS) result = fake_capture_forbids_legacy(&legacy);
    pthread_mutex_unlock(&fake_queues);
    return result;
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *wanted) {
    if (wanted == NULL || *wanted < GLOBAL || *wanted > RELAXED) return INVALID_VALUE;
    int before = mode;
    mode = *wanted;
    *wanted = before;
    return SUCCESS;
}

EXPORT int cuStreamBeginCapture_v2(struct stream *handle, int wanted) {
    int result = fake_enter("cuStreamBeginCapture");
    if (result != SUCCESS) return result;
    pthread_mutex_lock(&fake_queues);
    struct stream *stream = fake_ordinal() < 0 ? NULL : fake_stream(handle);
    if (stream == NULL) result = INVALID_HANDLE;
    else if (stream->legacy) result = STREAM_CAPTURE_UNSUPPORTED;
    else if (stream->capture != NULL || wanted < GLOBAL || wanted > RELAXED) result = stream->capture != NULL ? ILLEGAL_STATE : INVALID_VALUE;
    else {
        struct capture *capture = calloc(1, sizeof *capture);
        struct graph *graph = calloc(1, sizeof *graph);
        if (capture == NULL || graph == NULL) abort();
        *capture = (struct capture){.graph = graph, .origin = stream, .mode = wanted, .thread = pthread_self()};
        stream->capture = capture;
    }
    pthread_mutex_unlock(&fake_queues);
    fake_leave();
    return result;
}

/* The capture itself is not freed: events that were recorded in it still name it. */
static int end_capture(struct stream *stream, struct graph **graph) {
    struct capture *capture = stream->capture;
    if (capture == NULL) return ILLEGAL_STATE;
    if (capture->origin != stream) return STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != RELAXED && !pthread_equal(capture->thread, pthread_self())) return STREAM_CAPTURE_WRONG_THREAD;
    for (struct stream *other = fake_streams; other != NULL; other = other->next_stream)
        if (other->capture == capture) other->capture = NULL;
    if (!capture->spoilt) *graph = capture->graph;
    return capture->spoilt ? STREAM_CAPTURE_INVALIDATED : SUCCESS;
}

EXPORT int cuStreamEndCapture(struct stream *handle, struct graph **graph) {
    int result = fake_enter("cuStreamEndCapture");
    if (result != SUCCESS) return result;
    *graph = NULL;
    pthread_mutex_lock(&fake_queues);
    struct stream *stream = fake_ordinal() < 0 ? NULL : fake_stream(handle);
    result = stream == NULL ? INVALID_HANDLE : end_capture(stream, graph);
    pthread_mutex_unlock(&fake_queues);
    fake_leave();
    return result;
}

static int status_of(struct stream *handle, int *status, struct capture **capture) {
    if (!fake_initialized()) return NOT_INITIALIZED;
    pthread_mutex_lock(&fake_queues);
    struct stream *stream = fake_ordinal() < 0 ? NULL : fake_stream(handle);
    int result = stream == NULL ? INVALID_HANDLE : fake_capture_forbids_legacy(stream);
    *capture = stream == NULL ? NULL : stream->capture;
    *status = *capture == NULL ? NONE : (*capture)->spoilt ? VOID : ACTIVE;
    pthread_mutex_unlock(&fake_queues);
    return result;
}

EXPORT int cuStreamIsCapturing(struct stream *stream, int *status) {
    struct capture *capture;
    return status_of(stream, status, &capture);
}

EXPORT int cuStreamGetCaptureInfo_v2(struct stream *stream, int *status, uint64_t *identity, struct graph **graph,
                                     const void **dependencies, size_t *count) {
    struct capture *capture;
    int result = status_of(stream, status, &capture);
    if (identity != NULL) *identity = (uint64_t)(uintptr_t)capture;
    if (graph != NULL) *graph = capture != NULL ? capture->graph : NULL;
    if (dependencies != NULL) *dependencies = NULL;
    if (count != NULL) *count = 0;
    return result;
}

EXPORT int cuStreamGetCaptureInfo_v3(struct stream *stream, int *status, uint64_t *identity, struct graph **graph,
                                     const void **dependencies, const void **edges, size_t *count) {
    if (edges != NULL) *edges = NULL;
    return cuStreamGetCaptureInfo_v2(stream, status, identity, graph, dependencies, count);
}

EXPORT int cuGraphCreate(struct graph **graph, unsigned flags) {
    if (!fake_initialized()) return NOT_INITIALIZED;
    *graph = flags == 0 ? calloc(1, sizeof **graph) : NULL;
    return *graph != NULL ? SUCCESS : flags == 0 ? OUT_OF_MEMORY : INVALID_VALUE;
}

EXPORT int cuGraphGetNodes(struct graph *graph, struct work **nodes, size_t *count) {
    size_t room = nodes == NULL ? 0 : *count, index = 0;
    for (struct work *work = graph->first; work != NULL && index < room; work = work->next) nodes[index++] = work;
    *count = graph->nodes;
    return SUCCESS;
}

EXPORT int cuGraphDestroy(struct graph *graph) {
    int result = fake_enter("cuGraphDestroy");
    if (result != SUCCESS) return result;
    clear(graph);
    free(graph);
    fake_leave();
    return SUCCESS;
}

/* An executable graph is a graph of its own, so that the first may go. Both forms of the call begin with the same arguments. */
EXPORT int cuGraphInstantiateWithFlags(struct graph **made, struct graph *graph, unsigned long long flags) {
    (void)flags;
    int result = fake_enter("cuGraphInstantiate");
    if (result != SUCCESS) return result;
    *made = calloc(1, sizeof **made);
    if (*made == NULL) result = OUT_OF_MEMORY;
    for (struct work *work = graph->first; result == SUCCESS && work != NULL; work = work->next) add(*made, work);
    fake_leave();
    return result;
}

static int run_all(struct work *work) {
    struct graph *graph = work->pointer;
    int result = SUCCESS;
    for (struct work *node = graph->first; node != NULL && result == SUCCESS; node = node->next) result = fake_run(node);
    return SUCCESS; /* a node that failed has already ended the context */
}

EXPORT int cuGraphLaunch(struct graph *graph, struct stream *stream) {
    return fake_submit("cuGraphLaunch", stream, (struct work){.run = run_all, .pointer = graph});
}

EXPORT int cuGraphUpload(struct graph *graph, struct stream *stream) {
    (void)graph;
    return fake_submit("cuGraphUpload", stream, (struct work){.run = NULL});
}

/* It may be under way: it stays until the process ends. */
EXPORT int cuGraphExecDestroy(struct graph *graph) {
    (void)graph;
    int result = fake_enter("cuGraphExecDestroy");
    if (result == SUCCESS) fake_leave();
    return result;
}
