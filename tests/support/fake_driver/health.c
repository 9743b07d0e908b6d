/* What libnvidia-ml.so.1 tells of a device's health: events, and what stays until a reset. All of it are faults that a test asks
 * for; their argument is the device's position, of an Xid 1000 times that and the Xid. Signatures follow NVIDIA's nvml.h. */
#define _GNU_SOURCE
#include "state.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, TIMEOUT = 10 };
enum { DOUBLE_BIT = 2, XID = 8, HOT = 0x40, RECOVERY_ACTION = 230 };

struct event {
    struct device *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};
struct field {
    unsigned id, scope;
    long long timestamp, latency;
    int type, result;
    union {
        double real;
        unsigned whole;
        unsigned long long large;
    } value;
};

static int index_of(const struct device *device) {
    ptrdiff_t index = device - config.devices;
    return index >= 0 && index < config.count ? (int)index : -1;
}

/* Whether the test wants this said of the device now; errors first. */
static int wanted(const char *call, const struct device *device, const char *action, int *result) {
    struct fault fault;
    int index = index_of(device), said = 0;
    fake_hold();
    *result = index < 0 ? INVALID_ARGUMENT : SUCCESS;
    if (*result == SUCCESS && fake_take(call, getpid(), "error", &fault)) *result = (int)fault.argument;
    if (*result == SUCCESS && fake_take(call, getpid(), action, &fault)) said = (int)fault.argument == index;
    fake_release();
    return said;
}

EXPORT int nvmlEventSetCreate(void **set) {
    static int one;
    *set = &one;
    return SUCCESS;
}

EXPORT int nvmlEventSetFree(void *set) {
    (void)set;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetSupportedEventTypes(struct device *device, unsigned long long *types) {
    *types = DOUBLE_BIT | XID;
    return index_of(device) < 0 ? INVALID_ARGUMENT : SUCCESS;
}

EXPORT int nvmlDeviceRegisterEvents(struct device *device, unsigned long long types, void *set) {
    (void)types, (void)set;
    return index_of(device) < 0 ? INVALID_ARGUMENT : SUCCESS;
}

EXPORT int nvmlEventSetWait_v2(void *set, struct event *event, unsigned milliseconds) {
    (void)set;
    double until = fake_now() + milliseconds / 1000.0;
    do {
        struct fault fault;
        fake_hold();
        int found = fake_take("nvmlEventSetWait_v2", getpid(), "xid", &fault);
        fake_release();
        if (found) {
            int argument = (int)fault.argument;
            *event = (struct event){.device = &config.devices[argument / 1000], .type = XID, .data = (unsigned)argument % 1000};
            return SUCCESS;
        }
        fake_sleep(0.02);
    } while (fake_now() < until);
    return TIMEOUT;
}

EXPORT int nvmlDeviceGetRemappedRows(struct device *device, unsigned *corrected, unsigned *not_corrected, unsigned *pending, unsigned *failed) {
    int result;
    *corrected = *not_corrected = 0;
    *pending = (unsigned)wanted("nvmlDeviceGetRemappedRows", device, "pending", &result);
    *failed = (unsigned)wanted("nvmlDeviceGetRemappedRows", device, "failed", &result);
    return result;
}

EXPORT int nvmlDeviceGetFieldValues(struct device *device, int count, struct field *fields) {
    for (int number = 0; number < count; number++) {
        int said = fields[number].id == RECOVERY_ACTION;
        fields[number].result = said ? SUCCESS : NOT_SUPPORTED;
        fields[number].value.whole = said ? (unsigned)wanted("nvmlDeviceGetFieldValues", device, "reset", &fields[number].result) : 0;
    }
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTotalEccErrors(struct device *device, int type, int counter, unsigned long long *count) {
    int result;
    (void)type, (void)counter;
    *count = (unsigned long long)wanted("nvmlDeviceGetTotalEccErrors", device, "errors", &result);
    return result;
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(struct device *device, unsigned long long *reasons) {
    int result;
    *reasons = wanted("nvmlDeviceGetCurrentClocksEventReasons", device, "hot", &result) ? HOT : 0;
    return result;
}
