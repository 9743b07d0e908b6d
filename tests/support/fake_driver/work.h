/* Work for the device: a piece of it, the streams that it waits in, and the graphs that it is captured into. */
#ifndef CARREL_FAKE_WORK_H
#define CARREL_FAKE_WORK_H

#include "cuda.h"

#include <pthread.h>

#define MAX_ARGUMENTS 6
#define NON_BLOCKING 1u

struct moment { /* reached when the stream has done that many pieces of work; stream NULL: at once */
    struct stream *stream;
    uint64_t number;
};

struct work {
    int (*run)(struct work *work); /* a CUresult: any but SUCCESS ends the context. NULL: it only waits */
    const char *call;
    uint64_t arguments[MAX_ARGUMENTS];
    void *pointer;
    void *data; /* goes with it */
    size_t data_size;
    struct moment *waits;
    int wait_count;
    struct work *next;
};

struct graph {
    struct work *first, *last;
    size_t nodes;
};

struct capture {
    struct graph *graph;
    struct stream *origin;
    int mode, spoilt;
    pthread_t thread;
};

struct stream {
    struct stream *next_stream;
    void *context;
    int ordinal, priority, legacy, used, running;
    unsigned flags;
    uint64_t identity, submitted, done;
    struct work *first, *last;
    struct capture *capture;
};

struct event {
    int used, recorded;
    unsigned flags;
    struct moment moment;
    struct capture *capture; /* recorded in it: whoever waits for the event joins it */
    double at;
};

enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };

/* streams.c */
extern pthread_mutex_t fake_queues;
extern pthread_cond_t fake_progress;
extern struct stream *fake_streams;
extern _Atomic int fake_broken;                             /* what every call returns from then on */
struct stream *fake_stream(struct stream *handle);           /* with the queues locked; NULL: no such stream */
struct stream *fake_new_stream(unsigned flags, int priority); /* likewise */
int fake_submit(const char *call, struct stream *handle, struct work work);
int fake_enqueue(struct stream *stream, struct work work); /* with the queues locked, between fake_enter and its fake_leave */
void fake_await(struct moment moment);
void fake_drain(int ordinal, int every); /* every: also streams that do not wait for the legacy one */
int fake_run(struct work *work);
void fake_forget_streams(void);

/* stream_calls.c: waits for what the stream has; `call` names the faults, "" has none */
int fake_synchronize(const char *call, struct stream *handle);

/* graphs.c: why something that waits for work cannot be done while work is captured, which then is void; or SUCCESS */
int fake_capture_forbids_waiting(int ordinal);
int fake_capture_forbids_copying(int ordinal);
int fake_capture_forbids_memory(void);
int fake_capture_work(struct capture *capture, const struct work *work); /* with the queues locked, as the next */
int fake_capture_forbids_legacy(const struct stream *stream);

/* copies.c */
int fake_between(const char *call, uint64_t to, uint64_t from, size_t size);
int fake_fill(const char *call, uint64_t address, unsigned value, size_t width, size_t count);

#endif
