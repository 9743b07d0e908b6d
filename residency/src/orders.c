/* What the broker says to this role, and what it is told: carrel.leases.protocol, "A process with the residency library". */
#define _GNU_SOURCE
#include "agent.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define VERSION 1
#define PATIENCE 10.0 /* seconds, where an order says nothing */
#define REPORT (64 * MIB)

static char answer[LONGEST];
static struct writing out;
static pthread_mutex_t status_lock = PTHREAD_MUTEX_INITIALIZER;
static struct { /* what other threads may ask about */
    char lease[64], message[512];
    bool paused, aside;
    atomic_bool moving;
} told;

void tell_forked(void) {
    pthread_mutex_init(&status_lock, NULL);
    memset(&told, 0, sizeof told);
}

static void begin(const char *op) {
    json_begin(&out, answer, sizeof answer);
    json_put_text(&out, "op", op);
}

/* A connection that fails here is found to be over by the next look at it. */
static void send_with(const int *files, size_t count) {
    json_end(&out);
    link_send(&agent.link, out.line, out.used, files, count);
}

static void send_it(void) { send_with(NULL, 0); }

static void put_reasons(struct writing *object, unsigned kinds) {
    json_list(object, "reasons");
    for (int why = 0; why < STAYS; why++)
        if (kinds >> why & 1) json_add_text(object, stay_names[why]);
    json_list_end(object);
}

/* What there is on each device that the process sees. Three lists of the same length, and the reasons. */
static void put_sizes(struct writing *object) {
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
    begin("hello");
    json_put_whole(&out, "v", VERSION);
    json_put_text(&out, "role", "residency");
    json_put_text(&out, "token", job_token);
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
    begin("acquire");
    json_put_text(&out, "request", request_name());
    send_it();
    agent.asked = agent.pending = true;
}

void tell_cancel(void) {
    if (agent.asked) {
        begin("cancel");
        json_put_text(&out, "request", request_name());
        send_it();
    }
    agent.asked = agent.pending = false;
}

void tell_release(const char *lease, long long fence) {
    begin("release");
    json_put_text(&out, "lease", lease);
    json_put_whole(&out, "fence", fence);
    json_put_text(&out, "place", place_names[memory_place()]);
    put_sizes(&out);
    send_it();
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
    bool moving = atomic_load(&told.moving);
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

/* -- orders. Each has an id, which comes back in its answer. */

static long long number_of(const struct reading *message) {
    long long id = 0;
    json_whole(message, "id", &id);
    return id;
}

static double until(const struct reading *message, const char *name) {
    double seconds = PATIENCE;
    json_number(message, name, &seconds);
    return now() + seconds;
}

static bool too_late(char *why, size_t room, const char *what) {
    snprintf(why, room, "%s", what);
    return false;
}

/* The gate closed, nobody inside, no capture, and all work done. */
static bool quiesce(double limit, char *why, size_t room) {
    for (;;) {
        while (captures() > 0)
            if (!agent_wait(limit)) return too_late(why, room, "a stream capture goes on");
        gate_close();
        while (!gate_empty())
            if (!agent_wait(limit)) return too_late(why, room, "a call to the driver does not return");
        if (captures() == 0) break;
        gate_open(); /* one began in the last moment; it must be able to end */
    }
    while (!quiet_ask()) /* an earlier look for the end of the work goes on */
        if (!agent_wait(limit)) return too_late(why, room, "work on the device goes on");
    while (quiet_busy())
        if (!agent_wait(limit)) return too_late(why, room, "work on the device goes on");
    if (quiet_result() == SUCCESS) return true;
    snprintf(why, room, "cuCtxSynchronize: CUresult %d", quiet_result());
    return false;
}

static void on_pause(const struct reading *message) {
    char why[256] = "";
    double began = now();
    agent.paused = true;
    bool good = quiesce(until(message, "timeout"), why, sizeof why);
    agent.paused = good;
    agent_settle();
    begin("quiet");
    json_put_whole(&out, "id", number_of(message));
    json_put_truth(&out, "ok", good);
    json_put_text(&out, "why", why);
    json_put_number(&out, "seconds", now() - began);
    json_put_text(&out, "place", place_names[memory_place()]);
    put_sizes(&out);
    send_it();
}

static long long moving;
static size_t reported;

static void progress(size_t done, size_t of) {
    if (done < reported + REPORT && done < of) return;
    reported = done;
    begin("progress");
    json_put_whole(&out, "id", moving);
    json_put_whole(&out, "done", (long long)done);
    json_put_whole(&out, "of", (long long)of);
    send_it();
}

static void on_move(const struct reading *message, bool away) {
    struct move move = {.progress = progress, .until = until(message, "patience")};
    double began = now();
    bool good = agent.paused;
    moving = number_of(message);
    reported = 0;
    atomic_store(&told.moving, true);
    if (!good) snprintf(move.why, sizeof move.why, "it is not paused");
    else {
        /* Questions about addresses may still be inside; from now on they wait as well. */
        atomic_store(&memory_away, true);
        while (!gate_empty() && good)
            if (!agent_wait(move.until)) good = too_late(move.why, sizeof move.why, "a call to the driver does not return");
        if (good) good = away ? memory_out(&move) : memory_in(&move);
    }
    atomic_store(&told.moving, false);
    agent_settle();
    begin("moved");
    json_put_whole(&out, "id", moving);
    json_put_truth(&out, "ok", good);
    json_put_text(&out, "place", place_names[memory_place()]);
    json_put_text(&out, "why", move.why);
    json_put_whole(&out, "bytes", (long long)move.done);
    json_put_number(&out, "seconds", now() - began);
    json_put_whole(&out, "leaked", (long long)memory_leaked());
    send_it();
}

static void on_go(const struct reading *message, const char *lease) {
    char all[4096] = "", uuid[64];
    const char *position = NULL;
    while (json_next_text(message, "devices", &position, uuid, sizeof uuid))
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", *all ? "," : "", uuid);
    if (*all) agent_devices(all);
    snprintf(agent.lease, sizeof agent.lease, "%s", lease);
    agent.fence = 0;
    json_whole(message, "fence", &agent.fence);
    agent.message[0] = 0;
    agent.asked = agent.pending = agent.wanted = agent.paused = false;
    agent_settle();
}

static void on_pieces(const struct reading *message) {
    const char *at = NULL, *at_size = NULL;
    long long id, size;
    bool good = true;
    double began = now();
    while (json_next_whole(message, "pieces", &at, &id)) {
        int file = link_file(&agent.link);
        if (!json_next_whole(message, "sizes", &at_size, &size) || file < 0 || size <= 0 || pool_add(id, file, (size_t)size) != 0)
            good = false;
    }
    int result = pool_register();
    begin("pieces");
    json_put_whole(&out, "id", number_of(message));
    json_put_truth(&out, "ok", good && result == SUCCESS);
    json_put_text(&out, "why", !good ? "a piece could not be mapped" : result != SUCCESS ? "registering host memory failed" : "");
    json_put_whole(&out, "result", result);
    json_put_whole(&out, "bytes", (long long)pool_size());
    json_put_number(&out, "seconds", now() - began);
    send_it();
}

static void on_pieces_back(const struct reading *message) {
    const char *at = NULL;
    long long id;
    int result = SUCCESS;
    enum place place = memory_place();
    bool used = place == OUT || place == LOST;
    while (!used && result == SUCCESS && json_next_whole(message, "pieces", &at, &id)) result = pool_remove(id);
    begin("pieces_back");
    json_put_whole(&out, "id", number_of(message));
    json_put_truth(&out, "ok", !used && result == SUCCESS);
    json_put_text(&out, "why", used ? "the state lies in them" : result != SUCCESS ? "unregistering host memory failed" : "");
    json_put_whole(&out, "bytes", (long long)pool_size());
    send_it();
}

static void on_refused(const struct reading *message, bool request) {
    char text[512] = "", remedy[512] = "";
    json_text(message, "message", text, sizeof text);
    json_text(message, "remedy", remedy, sizeof remedy);
    if (request) {
        say("no GPU: %s %s", text, remedy);
        agent.asked = agent.pending = false;
        gate_refuse(DEVICE_UNAVAILABLE);
        return;
    }
    /* A broker that does not know this role, or not this job: everything is as without the library. */
    say("the node's broker does not lend to this process, which goes on without a lease: %s %s", text, remedy);
    agent.aside = true;
    agent_settle();
    link_close(&agent.link);
}

void order(const char *line, size_t size) {
    struct reading message;
    char op[32], text[512] = "", request[64] = "";
    if (!json_read(&message, line, size) || !json_text(&message, "op", op, sizeof op)) return; /* of a later version */
    bool about_request = json_text(&message, "request", request, sizeof request);
    bool ours = about_request && agent.asked && strcmp(request, request_name()) == 0;
    if (strcmp(op, "welcome") == 0) {
        agent.greeted = true;
        json_number(&message, "linger", &agent.linger);
    } else if (strcmp(op, "queued") == 0 && ours) json_text(&message, "message", agent.message, sizeof agent.message);
    else if (strcmp(op, "granted") == 0) {
        long long fence = 0;
        json_text(&message, "lease", text, 64);
        json_whole(&message, "fence", &fence);
        if (ours) on_go(&message, text);
        else tell_release(text, fence); /* nobody waits for it any more */
    } else if (strcmp(op, "refused") == 0 && (ours || !about_request)) on_refused(&message, about_request);
    else if (strcmp(op, "pause") == 0) on_pause(&message);
    else if (strcmp(op, "out") == 0) on_move(&message, true);
    else if (strcmp(op, "in") == 0) on_move(&message, false);
    else if (strcmp(op, "go") == 0) {
        snprintf(text, sizeof text, "%s", agent.lease);
        json_text(&message, "lease", text, 64);
        on_go(&message, text);
        begin("going");
        json_put_whole(&out, "id", number_of(&message));
        json_put_truth(&out, "ok", !atomic_load(&gate_closed));
        json_put_text(&out, "place", place_names[memory_place()]);
        send_it();
    } else if (strcmp(op, "pieces") == 0) on_pieces(&message);
    else if (strcmp(op, "pieces_back") == 0) on_pieces_back(&message);
    else if (strcmp(op, "wanted") == 0) agent.wanted = true;
    else if (strcmp(op, "lost") == 0) {
        json_text(&message, "message", text, sizeof text);
        say("the GPU state of this process is lost: %s", text);
        gate_lose();
    }
    tell_status();
}
