/* What the two halves of the agent share: agent.c (its thread, leases) and orders.c (what the broker says). */
#ifndef CARREL_RESIDENCY_AGENT_H
#define CARREL_RESIDENCY_AGENT_H

#include "json.h"
#include "link.h"
#include "residency.h"

struct agent { /* its thread's own */
    struct link link;
    bool greeted, aside; /* aside: the broker does not take us in, so nothing is asked and nothing waits */
    bool asked, pending; /* asked for a lease on this connection; on this or an earlier one */
    long long request;   /* its number */
    char lease[64];      /* "": none */
    long long fence;
    bool paused;         /* closed by the broker's word, until it says go */
    bool wanted;         /* somebody waits for the device */
    double linger;       /* seconds without work after which a lease goes back */
    char message[512];   /* why we wait, in the broker's words */
};

extern struct agent agent;

void agent_settle(void);             /* opens or closes the gate, as the lease and the memory's place say */
bool agent_wait(double until);       /* for something to happen in the process; false: it is late */
void agent_devices(const char *all); /* what the first grant says */
void order(const char *line, size_t size);
void greet(void);                    /* the first message of a connection */
void tell_release(const char *lease, long long fence);
void tell_acquire(void);
void tell_cancel(void);
void tell_status(void);              /* keeps what carrel_residency_status may say */
void tell_forked(void);
const char *request_name(void);

#endif
