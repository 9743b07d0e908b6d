/* The gate in front of the device. Open, it costs a load and two additions; closed, the calling thread waits.
 *
 * Whoever closes it sets `gate_closed` and then looks at the counters; whoever enters counts itself and then looks at
 * `gate_closed`. Both orders are sequentially consistent, so no call can be inside without being seen.
 */
#define _GNU_SOURCE
#include "residency.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SHARDS 64
#define ROUNDS 16

static struct shard shards[SHARDS];
static atomic_uint next_shard, news; /* news: a futex that changes when who waits may look again */
static atomic_int waiting[ROUNDS]; /* by the refusals that there had been: who was refused asks for nothing any more */
static atomic_ulong refusals;
static atomic_int refusal;
static atomic_bool lost;
atomic_int gate_closed;
atomic_bool memory_away;
_Thread_local struct shard *my_shard;
_Thread_local int gate_depth;

struct shard *pick_shard(void) {
    start();
    return my_shard = &shards[atomic_fetch_add(&next_shard, 1) % SHARDS];
}

void gate_news(void) {
    atomic_fetch_add(&news, 1);
    syscall(SYS_futex, &news, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Back out of a gate that is closed. The agent may be waiting for this thread to have left. */
static void back(void) {
    atomic_fetch_add(&my_shard->left, 1);
    agent_wake();
}

int gate_wait(void) {
    unsigned long refused = atomic_load(&refusals);
    unsigned interrupted = atomic_load(&interrupts);
    int result = -1;
    atomic_fetch_add(&waiting[refused % ROUNDS], 1);
    back();
    agent_need();
    while (result < 0) {
        unsigned seen = atomic_load(&news);
        if (!atomic_load(&gate_closed)) {
            atomic_fetch_add(&my_shard->entered, 1);
            if (!atomic_load(&gate_closed)) result = SUCCESS;
            else back();
        } else if (atomic_load(&lost)) result = CONTEXT_IS_DESTROYED;
        else if (atomic_load(&refusals) != refused) result = atomic_load(&refusal);
        else if (atomic_load(&interrupts) != interrupted && on_main_thread()) result = NOT_PERMITTED;
        else syscall(SYS_futex, &news, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0); /* a signal ends it, and it looks again */
    }
    if (result != SUCCESS) gate_depth--;
    if (atomic_fetch_sub(&waiting[refused % ROUNDS], 1) == 1 && result != SUCCESS) agent_wake(); /* nobody wants the lease any more */
    return result;
}

void gate_left(void) { agent_wake(); }

/* Away is said before the gate is looked at to be empty, so a look that has seen memory here is waited for. */
int gate_look(void) {
    if (gate_depth++ > 0) return SUCCESS;
    struct shard *shard = my_shard != NULL ? my_shard : pick_shard();
    atomic_fetch_add(&shard->entered, 1);
    return atomic_load(&memory_away) && atomic_load(&gate_closed) ? gate_wait() : SUCCESS;
}

void gate_close(void) { atomic_store(&gate_closed, 1); }

void gate_open(void) {
    if (atomic_load(&lost)) return;
    atomic_store(&gate_closed, 0);
    gate_news();
}

bool gate_empty(void) {
    unsigned long left = 0, entered = 0;
    /* In this order: a call that comes between the two sums counts as inside, and none is missed. */
    for (int number = 0; number < SHARDS; number++) left += atomic_load(&shards[number].left);
    for (int number = 0; number < SHARDS; number++) entered += atomic_load(&shards[number].entered);
    return entered == left;
}

unsigned long gate_activity(void) {
    unsigned long entered = 0;
    for (int number = 0; number < SHARDS; number++) entered += atomic_load(&shards[number].entered);
    return entered;
}

int gate_waiting(void) { return atomic_load(&waiting[atomic_load(&refusals) % ROUNDS]); }

void gate_refuse(int code) {
    atomic_store(&refusal, code);
    atomic_fetch_add(&refusals, 1);
    gate_news();
}

void gate_lose(void) {
    atomic_store(&gate_closed, 1);
    atomic_store(&lost, true);
    gate_news();
}

void gate_forked(void) {
    for (int number = 0; number < SHARDS; number++) {
        atomic_store(&shards[number].entered, 0);
        atomic_store(&shards[number].left, 0);
    }
    gate_depth = 0;
    for (int round = 0; round < ROUNDS; round++) atomic_store(&waiting[round], 0);
    atomic_store(&lost, false);
    atomic_store(&memory_away, false);
    atomic_store(&gate_closed, 1);
}
