/* The calls about streams and events. */
#define _GNU_SOURCE
#include "work.h"

#include <stdlib.h>

EXPORT int cuStreamCreateWithPriority(struct stream **made, unsigned flags, int priority) {
    int result = fake_enter("cuStreamCreate");
    if (result != SUCCESS) return result;
    pthread_mutex_lock(&fake_queues);
    if (fake_ordinal() < 0) result = INVALID_CONTEXT;
    else if (made == NULL || flags > NON_BLOCKING) result = INVALID_VALUE;
    else if ((*made = fake_new_stream(flags, priority)) == NULL) result = OUT_OF_MEMORY;
    pthread_mutex_unlock(&fake_queues);
    fake_leave();
    return result;
}

EXPORT int cuStreamCreate(struct stream **made, unsigned flags) { return cuStreamCreateWithPriority(made, flags, 0); }

/* What it still has is done; then its thread ends. */
EXPORT int cuStreamDestroy_v2(struct stream *handle) {
    int result = fake_enter("cuStreamDestroy");
    if (result != SUCCESS) return result;
    pthread_mutex_lock(&fake_queues);
    struct stream *stream = (uintptr_t)handle <= 2 ? NULL : fake_stream(handle);
    result = stream == NULL ? INVALID_HANDLE : SUCCESS;
    if (stream != NULL) stream->used = 0;
    pthread_cond_broadcast(&fake_progress);
    pthread_mutex_unlock(&fake_queues);
    fake_leave();
    return result;
}

/* The moment after all that the stream has, or why nobody may wait for it; the capture of its work is void then. */
static int last_of(struct stream *handle, struct moment *moment) {
    pthread_mutex_lock(&fake_queues);
    struct stream *stream = fake_ordinal() < 0 ? NULL : fake_stream(handle);
    int result = stream == NULL ? INVALID_HANDLE : SUCCESS;
    if (stream != NULL && stream->capture != NULL) {
        stream->capture->spoilt = 1;
        result = STREAM_CAPTURE_UNSUPPORTED;
    } else if (stream != NULL) result = fake_capture_forbids_legacy(stream);
    if (result == SUCCESS) *moment = (struct moment){stream, stream->submitted};
    pthread_mutex_unlock(&fake_queues);
    return result;
}

static int is_reached(struct moment moment) {
    pthread_mutex_lock(&fake_queues);
    int done = moment.stream == NULL || moment.stream->done >= moment.number;
    pthread_mutex_unlock(&fake_queues);
    return done;
}

/* The legacy stream has done all when the streams that it waits for have. */
static int legacy_also(struct moment moment, int wait) {
    if (!moment.stream->legacy) return 1;
    if (wait) fake_drain(moment.stream->ordinal, 0);
    int done = 1;
    pthread_mutex_lock(&fake_queues);
    for (struct stream *stream = fake_streams; stream != NULL; stream = stream->next_stream)
        if (stream->ordinal == moment.stream->ordinal && !(stream->flags & NON_BLOCKING)) done &= stream->done == stream->submitted;
    pthread_mutex_unlock(&fake_queues);
    return done;
}

int fake_synchronize(const char *call, struct stream *handle) {
    struct moment moment;
    int result = fake_enter(call);
    if (result != SUCCESS) return result;
    result = last_of(handle, &moment);
    if (result == SUCCESS) {
        fake_await(moment);
        legacy_also(moment, 1);
        result = fake_broken;
    }
    fake_leave();
    return result;
}

EXPORT int cuStreamSynchronize(struct stream *stream) { return fake_synchronize("cuStreamSynchronize", stream); }

EXPORT int cuStreamQuery(struct stream *handle) {
    struct moment moment;
    int result = fake_enter("cuStreamQuery");
    if (result != SUCCESS) return result;
    result = last_of(handle, &moment);
    if (result == SUCCESS && fake_broken) result = fake_broken;
    else if (result == SUCCESS) result = is_reached(moment) && legacy_also(moment, 0) ? SUCCESS : NOT_READY;
    fake_leave();
    return result;
}

enum { CONTEXT, DEVICE, PRIORITY, FLAGS, IDENTITY };

static int tell(struct stream *handle, void *value, int what) {
    if (!fake_initialized()) return NOT_INITIALIZED;
    pthread_mutex_lock(&fake_queues);
    struct stream *stream = fake_ordinal() < 0 ? NULL : fake_stream(handle);
    if (stream == NULL) value = NULL;
    else if (what == CONTEXT) *(void **)value = stream->context;
    else if (what == IDENTITY) *(uint64_t *)value = stream->identity;
    else *(int *)value = what == DEVICE ? stream->ordinal : what == PRIORITY ? stream->priority : (int)stream->flags;
    pthread_mutex_unlock(&fake_queues);
    return value == NULL ? INVALID_HANDLE : SUCCESS;
}

EXPORT int cuStreamGetCtx(struct stream *stream, void **context) { return tell(stream, context, CONTEXT); }
EXPORT int cuStreamGetDevice(struct stream *stream, int *device) { return tell(stream, device, DEVICE); }
EXPORT int cuStreamGetPriority(struct stream *stream, int *priority) { return tell(stream, priority, PRIORITY); }
EXPORT int cuStreamGetFlags(struct stream *stream, unsigned *flags) { return tell(stream, flags, FLAGS); }
EXPORT int cuStreamGetId(struct stream *stream, uint64_t *identity) { return tell(stream, identity, IDENTITY); }

EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (least != NULL) *least = 0;
    if (greatest != NULL) *greatest = -5;
    return fake_ordinal() < 0 ? INVALID_CONTEXT : SUCCESS;
}

EXPORT int cuEventCreate(struct event **event, unsigned flags) {
    int result = fake_enter("cuEventCreate");
    if (result != SUCCESS) return result;
    *event = calloc(1, sizeof **event);
    if (*event == NULL) result = OUT_OF_MEMORY;
    else **event = (struct event){.used = 1, .flags = flags};
    fake_leave();
    return result;
}

/* Not freed: work that records it may still be under way. */
EXPORT int cuEventDestroy_v2(struct event *event) {
    int result = fake_enter("cuEventDestroy");
    if (result != SUCCESS) return result;
    result = event == NULL || !event->used ? INVALID_HANDLE : SUCCESS;
    if (result == SUCCESS) event->used = 0;
    fake_leave();
    return result;
}

static int stamp(struct work *work) {
    struct event *event = work->pointer;
    event->at = fake_now();
    return SUCCESS;
}

EXPORT int cuEventRecordWithFlags(struct event *event, struct stream *handle, unsigned flags) {
    (void)flags;
    int result = fake_enter("cuEventRecord"), queued = 0;
    if (result != SUCCESS) return result;
    pthread_mutex_lock(&fake_queues);
    struct stream *stream = fake_ordinal() < 0 || event == NULL || !event->used ? NULL : fake_stream(handle);
    result = stream == NULL ? INVALID_HANDLE : stream->capture != NULL ? SUCCESS : fake_capture_forbids_legacy(stream);
    if (result == SUCCESS && stream->capture == NULL) {
        result = fake_enqueue(stream, (struct work){.run = stamp, .call = "cuEventRecord", .pointer = event});
        queued = result == SUCCESS;
    }
    if (result == SUCCESS) {
        event->recorded = 1;
        event->moment = (struct moment){stream, stream->submitted};
        event->capture = stream->capture;
    }
    pthread_mutex_unlock(&fake_queues);
    if (!queued) fake_leave();
    return result;
}

EXPORT int cuEventRecord(struct event *event, struct stream *stream) { return cuEventRecordWithFlags(event, stream, 0); }

static int about(struct event *event, struct moment *moment) {
    if (event == NULL || !event->used) return INVALID_HANDLE;
    pthread_mutex_lock(&fake_queues);
    int captured = event->capture != NULL;
    if (captured) event->capture->spoilt = 1;
    else *moment = event->moment;
    pthread_mutex_unlock(&fake_queues);
    return captured ? CAPTURED_EVENT : SUCCESS;
}

EXPORT int cuEventSynchronize(struct event *event) {
    struct moment moment;
    int result = fake_enter("cuEventSynchronize");
    if (result != SUCCESS) return result;
    result = about(event, &moment);
    if (result == SUCCESS) {
        fake_await(moment);
        result = fake_broken;
    }
    fake_leave();
    return result;
}

EXPORT int cuEventQuery(struct event *event) {
    struct moment moment;
    int result = fake_enter("cuEventQuery");
    if (result != SUCCESS) return result;
    result = about(event, &moment);
    if (result == SUCCESS) result = fake_broken ? fake_broken : is_reached(moment) ? SUCCESS : NOT_READY;
    fake_leave();
    return result;
}

EXPORT int cuEventElapsedTime_v2(float *milliseconds, struct event *begin, struct event *end) {
    struct moment first, second;
    if (!fake_initialized()) return NOT_INITIALIZED;
    if (about(begin, &first) != SUCCESS || about(end, &second) != SUCCESS || !begin->recorded || !end->recorded) return INVALID_HANDLE;
    if (!is_reached(first) || !is_reached(second)) return NOT_READY;
    *milliseconds = (float)((end->at - begin->at) * 1000);
    return SUCCESS;
}

/* A stream that waits for an event of a capture joins it; work that waits for an event waits for the work before that one. */
EXPORT int cuStreamWaitEvent(struct stream *handle, struct event *event, unsigned flags) {
    (void)flags;
    int result = fake_enter("cuStreamWaitEvent"), queued = 0;
    if (result != SUCCESS) return result;
    pthread_mutex_lock(&fake_queues);
    struct stream *stream = fake_ordinal() < 0 || event == NULL || !event->used ? NULL : fake_stream(handle);
    if (stream == NULL) result = INVALID_HANDLE;
    else if (event->capture != NULL) {
        if (stream->capture == NULL && !stream->legacy) stream->capture = event->capture;
        if (stream->capture != event->capture) result = STREAM_CAPTURE_ISOLATION;
    } else if (stream->capture != NULL) {
        stream->capture->spoilt = event->recorded;
        result = event->recorded ? STREAM_CAPTURE_ISOLATION : SUCCESS;
    } else if (event->recorded) {
        result = fake_enqueue(stream, (struct work){.call = "cuStreamWaitEvent", .waits = &event->moment, .wait_count = 1});
        queued = result == SUCCESS;
    }
    pthread_mutex_unlock(&fake_queues);
    if (!queued) fake_leave();
    return result;
}
