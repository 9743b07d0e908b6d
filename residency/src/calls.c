/* The functions of calls.def, as programs see them.
 *
 * Every argument is passed on as a whole register (or slot of the stack): those of the driver API are integers, pointers or
 * structs of 8 bytes, and what a narrower one leaves in the rest of its register means nothing to whoever receives it.
 */
#include "residency.h"

#include "after.h"

#define P1 uintptr_t a
#define P2 P1, uintptr_t b
#define P3 P2, uintptr_t c
#define P4 P3, uintptr_t d
#define P5 P4, uintptr_t e
#define P6 P5, uintptr_t f
#define P8 P6, uintptr_t g, uintptr_t h
#define P9 P8, uintptr_t i
#define P10 P9, uintptr_t j
#define P11 P10, uintptr_t k
#define A1 a
#define A2 A1, b
#define A3 A2, c
#define A4 A3, d
#define A5 A4, e
#define A6 A5, f
#define A8 A6, g, h
#define A9 A8, i
#define A10 A9, j
#define A11 A10, k

enum kind { WORK, LOOK, PASS };

static inline int enter(enum kind kind) {
    if (kind == PASS) gate_depth++; /* whatever the driver calls in turn is part of this call */
    return kind == WORK ? gate_enter() : kind == LOOK ? gate_look() : SUCCESS;
}

static inline void leave(enum kind kind) {
    if (kind == PASS) gate_depth--;
    else gate_leave();
}

#define BODY(name, symbol, real, count, kind, after) \
    { \
        void *function = late(&real, symbol); \
        if (function == NULL) return NOT_INITIALIZED; /* there is no driver here */ \
        int result = active ? enter(kind) : SUCCESS; \
        if (result != SUCCESS) return result; \
        result = ((int (*)(P##count))function)(A##count); \
        if (active && AFTER_##after && gate_depth == 1) after(result, (const uintptr_t[]){A##count}); \
        if (active) leave(kind); \
        return result; \
    }

#define CALL(name, symbol, count, kind, after) \
    static _Atomic(void *) function_##symbol; \
    EXPORT int symbol(P##count); \
    EXPORT int symbol(P##count) BODY(name, #symbol, function_##symbol, count, kind, after)

/* A driver may answer cuGetProcAddress with a function that it exports under no name. */
#define FAMILY(name, count, kind, after) \
    static _Atomic(void *) function_0_##name, function_1_##name; \
    static int spare_0_##name(P##count) BODY(name, NULL, function_0_##name, count, kind, after) \
    static int spare_1_##name(P##count) BODY(name, NULL, function_1_##name, count, kind, after)

#include "calls.def"

#undef CALL
#undef FAMILY
#define CALL(name, symbol, count, kind, after) {#name, #symbol, (void *)symbol, &function_##symbol, 0},
#define FAMILY(name, count, kind, after) \
    {#name, NULL, (void *)spare_0_##name, &function_0_##name, 0}, {#name, NULL, (void *)spare_1_##name, &function_1_##name, 0},

const struct slot gated_slots[] = {
#include "calls.def"
};
const size_t gated_count = sizeof gated_slots / sizeof *gated_slots;
