/* What is noted after a call of calls.def, while it is still inside of the gate: the result, and the arguments as they came.
 *
 * AFTER_name is 0 where there is nothing to note.
 */
#ifndef CARREL_RESIDENCY_AFTER_H
#define CARREL_RESIDENCY_AFTER_H

#include <stdint.h>

#define AFTER(ENTRY) \
    ENTRY(context_made) \
    ENTRY(primary_retained) \
    ENTRY(context_destroyed) \
    ENTRY(primary_released) \
    ENTRY(peer_enabled) \
    ENTRY(capture_began) \
    ENTRY(capture_ended) \
    ENTRY(stays_managed) \
    ENTRY(stays_pitched) \
    ENTRY(stays_pooled) \
    ENTRY(stays_array) \
    ENTRY(stays_array_3d) \
    ENTRY(stays_external) \
    ENTRY(stays_multicast) \
    ENTRY(stays_bound) \
    ENTRY(stay_ended)
#define DECLARE(name) void name(int result, const uintptr_t *arguments);
AFTER(DECLARE)
#undef DECLARE

static inline void nothing(int result, const uintptr_t *arguments) { (void)result, (void)arguments; }
#define AFTER_nothing 0
#define AFTER_context_made 1
#define AFTER_primary_retained 1
#define AFTER_context_destroyed 1
#define AFTER_primary_released 1
#define AFTER_peer_enabled 1
#define AFTER_capture_began 1
#define AFTER_capture_ended 1
#define AFTER_stays_managed 1
#define AFTER_stays_pitched 1
#define AFTER_stays_pooled 1
#define AFTER_stays_array 1
#define AFTER_stays_array_3d 1
#define AFTER_stays_external 1
#define AFTER_stays_multicast 1
#define AFTER_stays_bound 1
#define AFTER_stay_ended 1

#endif
