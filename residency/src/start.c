/* Whether the library does anything in this process, and what a forked child begins with. */
#define _GNU_SOURCE
#include "residency.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool active;
const char *broker_path, *job_token;

double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

void say(const char *format, ...) {
    char line[1024] = "carrel: ";
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line + 8, sizeof line - 10, format, arguments);
    va_end(arguments);
    size_t end = 8 + (length < 0 ? 0 : (size_t)length > sizeof line - 11 ? sizeof line - 11 : (size_t)length);
    line[end++] = '\n';
    /* One write(2): lines of several processes do not mix. Where stderr is closed there is nobody to tell. */
    if (write(STDERR_FILENO, line, end) < 0) return;
}

/* CUDA in a child that was forked after its parent's cuInit is refused by the driver; what the child itself begins starts anew. */
static void forked(void) {
    gate_forked();
    interrupt_forked();
    lookup_forked();
    blocks_forked();
    stays_forked();
    contexts_forked();
    pool_forked();
    transfer_forked();
    quiet_forked();
    agent_forked();
}

static bool named(const char *name) {
    const char *value = getenv(name);
    return value != NULL && *value != 0;
}

static void once(void) {
    const char *off = getenv("CARREL_RESIDENCY");
    /* The broker's own helpers look at the driver for the sake of others, and would wait for themselves. */
    if (!named("CARREL_BROKER") || named("CARREL_BROKER_HELPER") || (off != NULL && strcmp(off, "off") == 0)) return;
    /* Copies: a program may change its environment later. Without memory for them there is no use in a gate either. */
    broker_path = strdup(getenv("CARREL_BROKER"));
    job_token = strdup(named("CARREL_TOKEN") ? getenv("CARREL_TOKEN") : "");
    if (broker_path == NULL || job_token == NULL || pthread_atfork(NULL, NULL, forked) != 0) return;
    atomic_store(&gate_closed, 1);
    active = true;
}

void start(void) {
    static pthread_once_t begun = PTHREAD_ONCE_INIT;
    pthread_once(&begun, once);
}

__attribute__((constructor)) static void loaded(void) { start(); }

#ifndef CARREL_RESIDENCY_VERSION
#define CARREL_RESIDENCY_VERSION "0"
#endif
EXPORT const char *carrel_residency_version(void) { return CARREL_RESIDENCY_VERSION; }
