/* What the broker says, and the answers: carrel.node.leases.protocol, "A process with the residency library". */
#define _GNU_SOURCE
#include "agent.h"

#include <stdio.h>
#include <string.h>

#define PATIENCE 10.0 /* seconds, where an order says nothing */
#define REPORT (64 * MIB)

/* -- orders. Each has an id, which comes back in its answer. */

static long long number_of(const struct reading *message) {
    long long id = 0;
    json_whole(message, "id", &id);
    return id;
}

static double seconds_of(const struct reading *message, const char *name) {
    double seconds = PATIENCE;
    json_number(message, name, &seconds);
    return seconds;
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
        if (agent.lease[0] != 0) gate_open(); /* one began in the last moment; it must be able to end */
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
    bool good = quiesce(now() + seconds_of(message, "timeout"), why, sizeof why);
    agent.paused = good;
    agent_settle();
    answer_with("quiet");
    json_put_whole(&out, "id", number_of(message));
    json_put_truth(&out, "ok", good);
    json_put_text(&out, "why", why);
    json_put_number(&out, "seconds", now() - began);
    json_put_text(&out, "place", place_names[memory_place()]);
    json_put_whole(&out, "reach", (long long)memory_reach());
    put_sizes(&out);
    answer_send();
}

static long long moving;
static size_t reported;

static void progress(size_t done, size_t of) {
    if (done < reported + REPORT && done < of) return;
    reported = done;
    answer_with("progress");
    json_put_whole(&out, "id", moving);
    json_put_whole(&out, "done", (long long)done);
    json_put_whole(&out, "of", (long long)of);
    answer_send();
}

static void on_move(const struct reading *message, bool away) {
    struct move move = {.progress = progress, .patience = seconds_of(message, "patience")};
    double began = now();
    bool good = agent.paused;
    moving = number_of(message);
    reported = 0;
    atomic_store(&moving_now, true);
    if (!good) snprintf(move.why, sizeof move.why, "it is not paused");
    else {
        /* Questions about addresses may still be inside; from now on they wait as well. */
        atomic_store(&memory_away, true);
        while (!gate_empty() && good)
            if (!agent_wait(began + move.patience)) good = too_late(move.why, sizeof move.why, "a call to the driver does not return");
        if (good) good = away ? memory_out(&move) : memory_in(&move);
    }
    atomic_store(&moving_now, false);
    agent_settle();
    answer_with("moved");
    json_put_whole(&out, "id", moving);
    json_put_truth(&out, "ok", good);
    json_put_text(&out, "place", place_names[memory_place()]);
    json_put_text(&out, "why", move.why);
    json_put_whole(&out, "bytes", (long long)move.done);
    json_put_number(&out, "seconds", now() - began);
    json_put_whole(&out, "leaked", (long long)memory_leaked());
    answer_send();
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
    answer_with("pieces");
    json_put_whole(&out, "id", number_of(message));
    json_put_truth(&out, "ok", good && result == SUCCESS);
    json_put_text(&out, "why", !good ? "a piece could not be mapped" : result != SUCCESS ? "registering host memory failed" : "");
    json_put_whole(&out, "result", result);
    json_put_whole(&out, "bytes", (long long)pool_size());
    json_put_number(&out, "seconds", now() - began);
    answer_send();
}

/* The broker and we must mean the same pieces in the same order when it says what is in them. */
static bool are_ours(const struct reading *message, char *why, size_t room) {
    long long ids[MOST_FILES], id;
    const char *at = NULL;
    size_t count = 0;
    while (json_next_whole(message, "pieces", &at, &id))
        if (count < MOST_FILES) ids[count++] = id;
    if (pool_is(ids, count)) return true;
    snprintf(why, room, "it has other pieces");
    return false;
}

static void answer_pieces(const char *op, const struct reading *message, bool good, const char *why) {
    answer_with(op);
    json_put_whole(&out, "id", number_of(message));
    json_put_truth(&out, "ok", good);
    json_put_text(&out, "why", why);
    json_put_text(&out, "place", place_names[memory_place()]);
    json_put_whole(&out, "bytes", (long long)pool_size());
    answer_send();
}

/* With "spilled" the broker has on the disk what lies in them: then, and only then, they go although the state is out. */
static void on_pieces_back(const struct reading *message) {
    const char *at = NULL;
    char why[256] = "";
    long long id, bytes;
    int result = SUCCESS;
    enum place place = memory_place();
    bool used = place == OUT || place == LOST, good = !used;
    if (json_whole(message, "spilled", &bytes)) {
        if (!(good = agent.paused && bytes >= 0)) snprintf(why, sizeof why, "it is not paused");
        else if (place == SPILLED || are_ours(message, why, sizeof why)) good = memory_spilled((size_t)bytes, why, sizeof why);
        else good = false;
    } else if (used) snprintf(why, sizeof why, "the state lies in them");
    else {
        while (result == SUCCESS && json_next_whole(message, "pieces", &at, &id)) result = pool_remove(id);
        if (!(good = result == SUCCESS)) snprintf(why, sizeof why, "unregistering host memory failed");
    }
    answer_pieces("pieces_back", message, good, why);
}

/* What was on the disk is in the pieces again. */
static void on_filled(const struct reading *message) {
    char why[256] = "";
    long long bytes = 0;
    json_whole(message, "bytes", &bytes);
    if (bytes < 0) bytes = 0;
    bool good = memory_place() != SPILLED || (are_ours(message, why, sizeof why) && memory_filled((size_t)bytes, why, sizeof why));
    answer_pieces("filled", message, good, why);
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
        answer_with("going");
        json_put_whole(&out, "id", number_of(&message));
        json_put_truth(&out, "ok", !atomic_load(&gate_closed));
        json_put_text(&out, "place", place_names[memory_place()]);
        answer_send();
    } else if (strcmp(op, "pieces") == 0) on_pieces(&message);
    else if (strcmp(op, "pieces_back") == 0) on_pieces_back(&message);
    else if (strcmp(op, "filled") == 0) on_filled(&message);
    else if (strcmp(op, "wanted") == 0) agent.wanted = true;
    else if (strcmp(op, "lost") == 0) {
        json_text(&message, "message", text, sizeof text);
        say("the GPU state of this process is lost: %s", text);
        gate_lose();
    }
    tell_status();
}
