/* What the broker is told: carrel.node.leases.protocol, "A process with the residency library". */
#define _GNU_SOURCE
#include "agent.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define VERSION 1

static char answer[LONGEST];
struct writing out;
static pthread_mutex_t status_lock = PTHREAD_MUTEX_INITIALIZER;
static struct { /* what other threads may ask about */
    char lease[64], message[512];
    bool paused, aside;
} told;
atomic_bool moving_now;

void tell_forked(void) {
    pthread_mutex_init(&status_lock, NULL);
    memset(&told, 0, sizeof told);
    atomic_store(&moving_now, false);
}

void answer_with(const char *op) {
    json_begin(&out, answer, sizeof answer);
    json_put_text(&out, "op", op);
}

/* A connection that fails here is found to be over by the next look at it. */
static void send_with(const int *files, size_t count) {
    json_end(&out);
    link_send(&agent.link, out.line, out.used, files, count);
}

void answer_send(void) { send_with(NULL, 0); }

static void put_reasons(struct writing *object, unsigned kinds) {
    json_list(object, "reasons");
    for (int why = 0; why < STAYS; why++)
        if (kinds >> why & 1) json_add_text(object, stay_names[why]);
    json_list_end(object);
}

/* What there is on each device that the process sees. Three lists of the same length, and the reasons. */
void put_sizes(struct writing *object) {
    size_t movable[MOST_DEVICES], stays[MOST_DEVICES];
    unsigned kinds = 0;
    char uuid[64];
    int count = device_count();
    if (count > MOST_DEVICES) count = MOST_DEVICES;
    json_list(object, "devices");
    for (int device = 0; device < count; device++) {
        unsigned some;
        memory_sizes(device, &movable[device], &stays[device], &some);
        kinds |= some;
        json_add_text(object, device_uuid(device, uuid) ? uuid : "");
    }
    json_list_end(object);
    json_list(object, "movable");
    for (int device = 0; device < count; device++) json_add_whole(object, (long long)movable[device]);
    json_list_end(object);
    json_list(object, "stays");
    for (int device = 0; device < count; device++) json_add_whole(object, (long long)stays[device]);
    json_list_end(object);
    put_reasons(object, kinds);
    json_put_whole(object, "leaked", (long long)memory_leaked());
}

const char *request_name(void) {
    static char name[64];
    snprintf(name, sizeof name, "r%d-%lld", (int)getpid(), agent.request);
    return name;
}

void greet(void) {
    int files[MOST_FILES];
    size_t count = 0, size;
    long long id;
    answer_with("hello");
    json_put_whole(&out, "v", VERSION);
    json_put_text(&out, "role", "residency");
    json_put_text(&out, "token", job_token);
    const char *attempt = getenv("CARREL_ATTEMPT_DIR");
    if (attempt != NULL && *attempt != 0) json_put_text(&out, "attempt", attempt);
    json_put_text(&out, "gate", atomic_load(&gate_closed) ? "closed" : "open");
    json_put_text(&out, "place", place_names[memory_place()]);
    json_put_truth(&out, "paused", agent.paused);
    json_put_truth(&out, "waiting", gate_waiting() > 0);
    if (agent.pending) json_put_text(&out, "request", request_name());
    if (agent.lease[0] != 0) {
        json_put_text(&out, "lease", agent.lease);
        json_put_whole(&out, "fence", agent.fence);
    }
    put_sizes(&out);
    json_list(&out, "pieces");
    for (size_t number = 0; number < pool_count() && number < MOST_FILES; number++) {
        if (pool_piece(number, &id, &size, &files[count])) count++;
        json_add_whole(&out, id);
    }
    json_list_end(&out);
    json_list(&out, "sizes");
    for (size_t number = 0; number < count && pool_piece(number, &id, &size, &files[number]); number++)
        json_add_whole(&out, (long long)size);
    json_list_end(&out);
    send_with(files, count);
}

/* A request that was not answered on one connection is the same request on the next. */
void tell_acquire(void) {
    if (!agent.pending) agent.request++;
    answer_with("acquire");
    json_put_text(&out, "request", request_name());
    answer_send();
    agent.asked = agent.pending = true;
}

void tell_cancel(void) {
    if (agent.asked) {
        answer_with("cancel");
        json_put_text(&out, "request", request_name());
        answer_send();
    }
    agent.asked = agent.pending = false;
}

void tell_release(const char *lease, long long fence) {
    answer_with("release");
    json_put_text(&out, "lease", lease);
    json_put_whole(&out, "fence", fence);
    json_put_text(&out, "place", place_names[memory_place()]);
    put_sizes(&out);
    answer_send();
}

void tell_status(void) {
    pthread_mutex_lock(&status_lock);
    memcpy(told.lease, agent.lease, sizeof told.lease);
    memcpy(told.message, agent.message, sizeof told.message);
    told.paused = agent.paused;
    told.aside = agent.aside;
    pthread_mutex_unlock(&status_lock);
}

/* For the kernel: one line of JSON. It never waits for a move: while there is one, it says only that. Returns its length. */
EXPORT size_t carrel_residency_status(char *text, size_t room) {
    struct writing object;
    size_t movable, stays;
    unsigned kinds;
    bool moving = atomic_load(&moving_now);
    if (room < 64) return 0;
    json_begin(&object, text, room);
    json_put_text(&object, "gate", !active ? "off" : atomic_load(&gate_closed) ? "closed" : "open");
    json_put_truth(&object, "moving", moving);
    json_put_whole(&object, "waiting", gate_waiting());
    if (!moving) {
        memory_sizes(-1, &movable, &stays, &kinds);
        json_put_text(&object, "place", place_names[memory_place()]);
        json_put_whole(&object, "movable", (long long)movable);
        json_put_whole(&object, "stays", (long long)stays);
        put_reasons(&object, kinds);
    }
    pthread_mutex_lock(&status_lock);
    json_put_text(&object, "lease", told.lease);
    json_put_truth(&object, "paused", told.paused);
    json_put_truth(&object, "aside", told.aside);
    json_put_text(&object, "message", told.message);
    pthread_mutex_unlock(&status_lock);
    json_end(&object);
    return object.used;
}
