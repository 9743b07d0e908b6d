/* The end of all work that was submitted: cuCtxSynchronize of every context, in a thread of its own.
 *
 * That may take as long as a kernel runs, and the agent has to hear what the broker says meanwhile. It is asked for only while
 * the gate is closed, nobody is inside and nothing captures: a context that is synchronised invalidates its captures.
 */
#define _GNU_SOURCE
#include "residency.h"

#include <pthread.h>
#include <signal.h>

#define MOST_CONTEXTS 256

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t asked_for = PTHREAD_COND_INITIALIZER;
static bool running, asked;
static atomic_bool busy;
static atomic_int last;

static void *work(void *unused) {
    (void)unused;
    gate_depth = 1;
    static void *all[MOST_CONTEXTS];
    for (;;) {
        pthread_mutex_lock(&mutex);
        while (!asked) pthread_cond_wait(&asked_for, &mutex);
        asked = false;
        pthread_mutex_unlock(&mutex);
        int result = SUCCESS;
        size_t count = contexts_all(all, MOST_CONTEXTS);
        for (size_t number = 0; number < count && result == SUCCESS; number++) {
            result = real_cuCtxSetCurrent()(all[number]);
            if (result == SUCCESS) result = real_cuCtxSynchronize()();
        }
        if (count > 0) real_cuCtxSetCurrent()(NULL);
        atomic_store(&last, result);
        atomic_store(&busy, false);
        agent_wake();
    }
    return NULL;
}

static bool started(void) {
    pthread_t thread;
    sigset_t all, before;
    if (running) return true;
    sigfillset(&all); /* signals are the program's own threads' */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    running = pthread_create(&thread, NULL, work, NULL) == 0;
    if (running) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return running;
}

bool quiet_ask(void) {
    if (atomic_load(&busy) || !started()) return false;
    atomic_store(&busy, true);
    pthread_mutex_lock(&mutex);
    asked = true;
    pthread_cond_signal(&asked_for);
    pthread_mutex_unlock(&mutex);
    return true;
}

bool quiet_busy(void) { return atomic_load(&busy); }
int quiet_result(void) { return atomic_load(&last); }

void quiet_forked(void) {
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&asked_for, NULL);
    running = asked = false;
    atomic_store(&busy, false);
}
