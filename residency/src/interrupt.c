/* SIGINT ends the main thread's wait at the gate.
 *
 * Python notes a SIGINT in its own handler and raises KeyboardInterrupt in the main thread when that comes back to Python's code.
 * A thread that waits in C never does. So a handler that a program sets for SIGINT is called by one of ours, which counts first;
 * the waiting call then returns NOT_PERMITTED (800), and what raises an exception of it finds KeyboardInterrupt pending.
 */
#define _GNU_SOURCE
#include "residency.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int (*setter)(int, const struct sigaction *, struct sigaction *);
static _Atomic(setter) real_sigaction;
atomic_uint interrupts;

/* What the program has set, in two copies: the handler reads the one that `current` names while the other is written. */
static struct sigaction handlers[2];
static atomic_int current;
static atomic_bool ours;
static pthread_mutex_t setting = PTHREAD_MUTEX_INITIALIZER;

bool on_main_thread(void) { return syscall(SYS_gettid) == getpid(); }

static void interrupted(int number, siginfo_t *about, void *context) {
    int kept = errno;
    struct sigaction program = handlers[atomic_load(&current)];
    atomic_fetch_add(&interrupts, 1);
    gate_news(); /* a futex: allowed in a handler; the signal may have met another thread than the one that waits */
    errno = kept;
    if (program.sa_flags & SA_SIGINFO) program.sa_sigaction(number, about, context);
    else program.sa_handler(number);
}

static setter find(void) {
    setter real = atomic_load(&real_sigaction);
    if (real == NULL) {
        *(void **)&real = dlsym(RTLD_NEXT, "sigaction");
        atomic_store(&real_sigaction, real);
    }
    return real;
}

EXPORT int sigaction(int number, const struct sigaction *restrict wanted, struct sigaction *restrict before) {
    setter real = find();
    if (real == NULL) {
        errno = ENOSYS;
        return -1;
    }
    start();
    if (!active || number != SIGINT) return real(number, wanted, before);
    pthread_mutex_lock(&setting);
    struct sigaction found, known = handlers[atomic_load(&current)], set;
    bool was_ours = atomic_load(&ours), handled = false;
    if (wanted != NULL) {
        set = *wanted;
        /* "Ignore" and "default" stay what they are: children inherit them over exec(3). */
        handled = (set.sa_flags & SA_SIGINFO) || (set.sa_handler != SIG_IGN && set.sa_handler != SIG_DFL);
        if (handled) {
            int other = 1 - atomic_load(&current);
            handlers[other] = set;
            atomic_store(&current, other);
            set.sa_sigaction = interrupted;
            set.sa_flags |= SA_SIGINFO;
        }
    }
    int result = real(number, wanted != NULL ? &set : NULL, &found);
    if (result == 0) {
        if (before != NULL) *before = was_ours ? known : found;
        if (wanted != NULL) atomic_store(&ours, handled);
    }
    pthread_mutex_unlock(&setting);
    return result;
}

/* The C library's own does not come by the name above. */
EXPORT sighandler_t signal(int number, sighandler_t handler) {
    sighandler_t (*real)(int, sighandler_t) = NULL;
    start();
    if (!active || number != SIGINT) {
        *(void **)&real = dlsym(RTLD_NEXT, "signal");
        return real != NULL ? real(number, handler) : SIG_ERR;
    }
    struct sigaction set, before;
    memset(&set, 0, sizeof set);
    set.sa_handler = handler;
    set.sa_flags = SA_RESTART;
    return sigaction(number, &set, &before) == 0 ? before.sa_handler : SIG_ERR;
}

void interrupt_forked(void) { pthread_mutex_init(&setting, NULL); }
