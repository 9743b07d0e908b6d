/* What the agent's files share: agent.c (its thread, leases), orders.c (what the broker says), tell.c (what it is told). */
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
void order(const char *line, size_t size); /* one message of the broker's */

/* -- tell.c: one message at a time, written into `out` and sent */
extern struct writing out;
extern atomic_bool moving_now;
void answer_with(const char *op);
void answer_send(void);
void put_sizes(struct writing *object);
void greet(void);                    /* the first message of a connection */
void tell_release(const char *lease, long long fence);
void tell_acquire(void);
void tell_cancel(void);
void tell_status(void);              /* keeps what carrel_residency_status may say */
void tell_forked(void);
const char *request_name(void);

#endif
