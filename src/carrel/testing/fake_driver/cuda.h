/* The numbers of CUresult that are used here, and the functions that cuGetProcAddress knows. Written for this project. */
#ifndef CARREL_FAKE_CUDA_H
#define CARREL_FAKE_CUDA_H

#include "state.h"

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    OPERATING_SYSTEM = 304,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    NOT_SUPPORTED = 801,
    UNKNOWN = 999
};

#define FIRST_ADDRESS 0x7d0000000000ull

int fake_initialized(void);           /* cuInit was called in this very process, not in the one it was forked from */
int fake_enter(const char *call);     /* a CUresult; waits while this process is locked */
void fake_leave(void);
int fake_ordinal(void);               /* of the thread's context, or -1 */

#endif
