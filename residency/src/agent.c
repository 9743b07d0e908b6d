/* The agent: one thread that asks for the lease when somebody waits at the gate, and gives it back when the device is idle.
 *
 * It begins with the first call that finds the gate closed. Nothing that happens to its connection changes anything in the
 * process: who has the lease computes on, whose state is away stays away, who waits waits on, and a new broker is told all of it.
 */
#define _GNU_SOURCE
#include "agent.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LINGER 0.2     /* seconds; the broker's welcome may say another */
#define LOOK 0.05      /* between two looks at whether the device is idle */
#define BUSY_IDLE 1.0  /* seconds without work in a cell that runs, when somebody waits */
#define MOMENT 0.003   /* in which work that is over is seen to be over */
#define LONGEST_PAUSE 2.0
#define SILENCE 5.0    /* seconds without a broker before a line says so */
#define STACK ((size_t)1 << 20)

struct agent agent = {.link = {.socket = -1}};
static atomic_int bell = -1; /* an eventfd */
static atomic_bool busy, idle_now;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool running;
static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER;
static char devices[4096];
static bool devices_seen;

void agent_wake(void) {
    uint64_t one = 1;
    int file = atomic_load(&bell);
    if (file >= 0 && write(file, &one, sizeof one) < 0) return; /* full: it rings already */
}

bool agent_wait(double until) {
    struct pollfd ring = {.fd = atomic_load(&bell), .events = POLLIN};
    uint64_t rung;
    double left = until - now();
    if (left > 0 && poll(&ring, 1, (int)(left * 1000) + 1) > 0 && read(ring.fd, &rung, sizeof rung) < 0) return true;
    return now() < until;
}

void agent_settle(void) {
    enum place place = memory_place();
    atomic_store(&memory_away, place == OUT || place == SPILLED || place == LOST);
    tell_status(); /* first, so that who comes through the gate reads what let it in */
    if (agent.aside || (agent.lease[0] != 0 && !agent.paused && (place == IN || place == NOWHERE))) gate_open();
    else gate_close();
}

/* -- what the process says */

EXPORT void carrel_residency_busy(int running_cell) {
    atomic_store(&busy, running_cell != 0);
    if (running_cell) atomic_store(&idle_now, false);
}

EXPORT void carrel_residency_idle(void) {
    atomic_store(&busy, false);
    atomic_store(&idle_now, true);
    agent_wake();
}

bool devices_wanted(void) {
    const char *how = getenv("CARREL_DEVICES"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    return how != NULL && strcmp(how, "lease") == 0 && (visible == NULL || *visible == 0) && !devices_seen;
}

void agent_devices(const char *all) {
    pthread_mutex_lock(&naming);
    snprintf(devices, sizeof devices, "%s", all);
    pthread_mutex_unlock(&naming);
}

void devices_see(void) {
    pthread_mutex_lock(&naming);
    if (devices[0] != 0 && setenv("CUDA_VISIBLE_DEVICES", devices, 1) == 0) devices_seen = true;
    pthread_mutex_unlock(&naming);
}

/* -- the lease goes back */

static unsigned long seen_activity;
static double idle_since;

static double patience(void) {
    if (atomic_load(&idle_now)) return 0;
    if (!atomic_load(&busy)) return agent.linger;
    return agent.wanted ? BUSY_IDLE : -1;
}

/* With the gate closed for a moment: is everything over that was submitted? Waits for MOMENT at most. */
static bool all_over(void) {
    double until = now() + MOMENT;
    if (captures() > 0 || !gate_empty() || !quiet_ask()) return false;
    while (quiet_busy() && gate_waiting() == 0 && agent_wait(until)) {}
    return !quiet_busy() && quiet_result() == SUCCESS && gate_waiting() == 0;
}

static void maybe_release(void) {
    double wait = patience();
    unsigned long activity = gate_activity();
    if (activity != seen_activity) {
        seen_activity = activity;
        idle_since = now();
    }
    if (agent.lease[0] == 0 || agent.paused || agent.aside || wait < 0 || now() - idle_since < wait || quiet_busy()) return;
    if (captures() > 0 || gate_waiting() > 0) return;
    gate_close();
    bool over = all_over();
    seen_activity = gate_activity(); /* whoever met the closed gate and went back counted itself */
    if (!over) {
        /* A kernel runs, or a call has come in: on they go, and what waits for the end of the work rings when it is over. */
        gate_open();
        return;
    }
    atomic_store(&idle_now, false);
    tell_release(agent.lease, agent.fence);
    agent.lease[0] = 0;
    agent_settle();
}

static void maybe_acquire(void) {
    bool need = gate_waiting() > 0 && agent.lease[0] == 0 && !agent.aside;
    if (need && agent.greeted && !agent.asked) tell_acquire();
    if (!need && agent.pending && agent.lease[0] == 0) tell_cancel();
}

/* -- the thread */

static double pause_length, next_try, silent_since;
static bool told_silence;

static void over(void) {
    link_close(&agent.link);
    agent.greeted = agent.asked = false;
    next_try = now() + pause_length;
    pause_length = pause_length * 2 < LONGEST_PAUSE ? pause_length * 2 : LONGEST_PAUSE;
}

static void connect_again(void) {
    if (agent.link.socket >= 0 || agent.aside || now() < next_try) return;
    if (link_open(&agent.link, broker_path)) {
        greet();
        return;
    }
    if (silent_since == 0) silent_since = now();
    if (!told_silence && now() - silent_since > SILENCE && gate_waiting() > 0) {
        say("waiting for the node's broker, which does not answer at %s; CARREL_RESIDENCY=off starts a program without it", broker_path);
        told_silence = true;
    }
    over();
}

static void hear(void) {
    const char *line;
    size_t size;
    bool good = link_receive(&agent.link);
    while (agent.link.socket >= 0 && link_line(&agent.link, &line, &size)) order(line, size);
    if (!good) over();
    if (agent.greeted) {
        pause_length = 0.02;
        silent_since = 0;
        told_silence = false;
    }
}

static int wait_length(void) {
    double wait = 3600;
    if (agent.link.socket < 0 && !agent.aside) wait = next_try - now();
    if (agent.lease[0] != 0 && !agent.paused && !quiet_busy() && patience() >= 0 && wait > LOOK) wait = LOOK;
    return wait <= 0 ? 0 : (int)(wait * 1000) + 1;
}

static void *work(void *unused) {
    (void)unused;
    gate_depth = 1; /* what we do passes no gate */
    pause_length = 0.02;
    for (;;) {
        struct pollfd both[2] = {{.fd = atomic_load(&bell), .events = POLLIN}, {.fd = agent.link.socket, .events = POLLIN}};
        uint64_t rung;
        connect_again();
        both[1].fd = agent.link.socket;
        maybe_acquire();
        maybe_release();
        poll(both, 2, wait_length());
        if (both[0].revents && read(both[0].fd, &rung, sizeof rung) < 0) continue;
        if (both[1].revents) hear();
    }
    return NULL;
}

static bool begin(void) {
    pthread_t thread;
    pthread_attr_t how;
    sigset_t all, before;
    int file = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (file < 0) return false;
    atomic_store(&bell, file);
    agent.linger = LINGER;
    sigfillset(&all); /* signals are for the program's own threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&how);
    pthread_attr_setstacksize(&how, STACK);
    pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
    bool good = pthread_create(&thread, &how, work, NULL) == 0;
    pthread_attr_destroy(&how);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return good;
}

void agent_need(void) {
    if (!atomic_load(&running)) {
        pthread_mutex_lock(&starting);
        if (!atomic_load(&running)) {
            if (!begin()) {
                say("no thread for the GPU's leases could be started; this program goes on without them");
                agent.aside = true;
                agent_settle();
            }
            atomic_store(&running, true);
        }
        pthread_mutex_unlock(&starting);
    }
    agent_wake();
}

void agent_forked(void) {
    int file = atomic_load(&bell);
    if (file >= 0) close(file);
    atomic_store(&bell, -1);
    link_close(&agent.link); /* this copy; the parent's connection is as it was */
    memset(&agent, 0, sizeof agent);
    agent.link.socket = -1;
    pthread_mutex_init(&starting, NULL);
    pthread_mutex_init(&naming, NULL);
    atomic_store(&running, false);
    atomic_store(&busy, false);
    atomic_store(&idle_now, false);
    pause_length = next_try = silent_since = idle_since = 0;
    seen_activity = 0;
    told_silence = false;
    tell_forked();
}
