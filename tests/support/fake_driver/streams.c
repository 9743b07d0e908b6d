/* Streams: each has a queue and a thread that does its work in order; launches return at once.
 *
 * The legacy default stream (NULL) is one per device: its work waits for what all blocking streams of the device have got
 * before, and their later work waits for it. The per-thread default stream is a blocking stream of its own. A piece of work
 * counts as a call under way until it is done, so that cuCheckpointProcessLock waits for it.
 */
#define _GNU_SOURCE
#include "work.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

pthread_mutex_t fake_queues = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_progress = PTHREAD_COND_INITIALIZER;
struct stream *fake_streams;
_Atomic int fake_broken;

static uint64_t generation, identities;
static __thread struct stream *own[MAX_DEVICES];
static __thread uint64_t own_generation;

/* What was inherited by a fork has no threads: it is forgotten. */
void fake_forget_streams(void) {
    pthread_mutex_init(&fake_queues, NULL);
    pthread_cond_init(&fake_progress, NULL);
    fake_streams = NULL;
    fake_broken = 0;
    generation++;
}

static void break_context(const char *call, int code, uint64_t address) {
    char path[4096], line[256];
    snprintf(path, sizeof path, "%s/broken", directory);
    int size = snprintf(line, sizeof line, "%d %d %s 0x%llx\n", getpid(), code, call, (unsigned long long)address);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file >= 0 && write(file, line, (size_t)size) != size) perror(path);
    if (file >= 0) close(file);
    fake_broken = code;
}

/* Nothing that comes after a failure is done. */
int fake_run(struct work *work) {
    if (fake_broken || work->run == NULL) return fake_broken;
    int result = work->run(work);
    if (result == INVALID_VALUE) result = ILLEGAL_ADDRESS; /* there was memory when the work was given */
    if (result != SUCCESS) break_context(work->call, result, work->arguments[0]);
    return result;
}

static int reached(struct moment moment) { return moment.stream == NULL || moment.stream->done >= moment.number; }

static int ready(const struct work *work) {
    for (int index = 0; index < work->wait_count; index++)
        if (!reached(work->waits[index])) return 0;
    return 1;
}

static void *serve(void *argument) {
    struct stream *stream = argument;
    pthread_mutex_lock(&fake_queues);
    for (;;) {
        struct work *work = stream->first;
        if (work == NULL && !stream->used) break;
        if (work == NULL || !ready(work)) {
            pthread_cond_wait(&fake_progress, &fake_queues);
            continue;
        }
        stream->first = work->next;
        if (stream->first == NULL) stream->last = NULL;
        pthread_mutex_unlock(&fake_queues);
        fake_run(work);
        free(work->data);
        free(work->waits);
        free(work);
        fake_leave();
        pthread_mutex_lock(&fake_queues);
        stream->done++;
        pthread_cond_broadcast(&fake_progress);
    }
    stream->running = 0;
    pthread_mutex_unlock(&fake_queues);
    return NULL;
}

/* Signals are for the program's own threads. */
static int start(struct stream *stream) {
    pthread_t thread;
    sigset_t all, before;
    if (stream->running) return SUCCESS;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int bad = pthread_create(&thread, NULL, serve, stream);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (bad) return OUT_OF_MEMORY;
    pthread_detach(thread);
    stream->running = 1;
    return SUCCESS;
}

/* Streams are never freed, but used again, with their counts: events and work of other streams may still refer to them. */
struct stream *fake_new_stream(unsigned flags, int priority) {
    struct stream *stream = fake_streams;
    while (stream != NULL && (stream->used || stream->running || stream->capture != NULL)) stream = stream->next_stream;
    if (stream == NULL) {
        stream = calloc(1, sizeof *stream);
        if (stream == NULL) return NULL;
        stream->next_stream = fake_streams;
        fake_streams = stream;
    }
    stream->context = fake_context();
    stream->ordinal = fake_ordinal();
    stream->used = 1;
    stream->flags = flags;
    stream->priority = priority;
    stream->identity = ++identities;
    return stream;
}

static struct stream *legacy(int ordinal) {
    for (struct stream *stream = fake_streams; stream != NULL; stream = stream->next_stream)
        if (stream->legacy && stream->ordinal == ordinal) return stream;
    struct stream *made = fake_new_stream(0, 0);
    if (made != NULL) made->legacy = 1;
    return made;
}

struct stream *fake_stream(struct stream *handle) {
    int ordinal = fake_ordinal();
    if ((uintptr_t)handle <= 1) return legacy(ordinal);
    if ((uintptr_t)handle == 2) {
        if (own_generation != generation) memset(own, 0, sizeof own);
        own_generation = generation;
        return own[ordinal] != NULL ? own[ordinal] : (own[ordinal] = fake_new_stream(0, 0));
    }
    for (struct stream *stream = fake_streams; stream != NULL; stream = stream->next_stream)
        if (stream == handle) return stream->used ? stream : NULL;
    return NULL;
}

static int waits_for(const struct stream *stream, const struct stream *other) {
    if (other == stream || other->ordinal != stream->ordinal || (other->flags & NON_BLOCKING)) return 0;
    return stream->legacy || (other->legacy && !(stream->flags & NON_BLOCKING));
}

int fake_enqueue(struct stream *stream, struct work work) {
    int count = work.wait_count;
    for (struct stream *other = fake_streams; other != NULL; other = other->next_stream) count += waits_for(stream, other);
    struct work *made = malloc(sizeof *made);
    struct moment *waits = calloc((size_t)count + 1, sizeof *waits);
    if (made == NULL || waits == NULL || start(stream) != SUCCESS) {
        free(made);
        free(waits);
        return OUT_OF_MEMORY;
    }
    *made = work;
    made->waits = waits;
    made->next = NULL;
    if (work.wait_count > 0) memcpy(waits, work.waits, (size_t)work.wait_count * sizeof *waits);
    for (struct stream *other = fake_streams; other != NULL; other = other->next_stream)
        if (waits_for(stream, other)) waits[made->wait_count++] = (struct moment){other, other->submitted};
    if (stream->last != NULL) stream->last->next = made;
    else stream->first = made;
    stream->last = made;
    stream->submitted++;
    pthread_cond_broadcast(&fake_progress);
    return SUCCESS;
}

int fake_submit(const char *call, struct stream *handle, struct work work) {
    work.call = call;
    int result = fake_enter(call), queued = 0;
    if (result == SUCCESS) {
        pthread_mutex_lock(&fake_queues);
        struct stream *stream = fake_ordinal() < 0 ? NULL : fake_stream(handle);
        if (stream == NULL) result = fake_ordinal() < 0 ? INVALID_CONTEXT : INVALID_HANDLE;
        else if (stream->capture != NULL) result = fake_capture_work(stream->capture, &work);
        else result = fake_capture_forbids_legacy(stream);
        if (result == SUCCESS && stream->capture == NULL) {
            result = fake_enqueue(stream, work);
            queued = result == SUCCESS;
        }
        pthread_mutex_unlock(&fake_queues);
        if (!queued) fake_leave();
    }
    if (!queued) free(work.data);
    return result;
}

void fake_await(struct moment moment) {
    pthread_mutex_lock(&fake_queues);
    while (!reached(moment)) pthread_cond_wait(&fake_progress, &fake_queues);
    pthread_mutex_unlock(&fake_queues);
}

void fake_drain(int ordinal, int every) {
    pthread_mutex_lock(&fake_queues);
    int count = 0;
    for (struct stream *stream = fake_streams; stream != NULL; stream = stream->next_stream) count++;
    struct moment *moments = calloc((size_t)count + 1, sizeof *moments);
    struct stream *stream = fake_streams;
    for (int index = 0; moments != NULL && index < count; index++, stream = stream->next_stream)
        if (stream->ordinal == ordinal && (every || !(stream->flags & NON_BLOCKING)))
            moments[index] = (struct moment){stream, stream->submitted};
    pthread_mutex_unlock(&fake_queues);
    for (int index = 0; moments != NULL && index < count; index++) fake_await(moments[index]);
    free(moments);
}
