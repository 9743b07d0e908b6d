/* Writing one flat object of JSON. */
#include "json.h"

#include <stdio.h>
#include <string.h>

static void raw(struct writing *object, const char *text, size_t size) {
    if (object->full || object->room - object->used < size + 3) { /* room for what ends a line */
        object->full = true;
        return;
    }
    memcpy(object->line + object->used, text, size);
    object->used += size;
}

static void quoted(struct writing *object, const char *text) {
    raw(object, "\"", 1);
    for (; *text; text++) {
        char escaped[8];
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') raw(object, "\\", 1);
        if (c < 0x20) raw(object, escaped, (size_t)snprintf(escaped, sizeof escaped, "\\u%04x", c));
        else raw(object, text, 1);
    }
    raw(object, "\"", 1);
}

static void next(struct writing *object) {
    if (!object->first) raw(object, ",", 1);
    object->first = false;
}

static void named(struct writing *object, const char *name) {
    next(object);
    quoted(object, name);
    raw(object, ":", 1);
}

void json_begin(struct writing *object, char *line, size_t room) {
    *object = (struct writing){.line = line, .room = room, .first = true};
    raw(object, "{", 1);
}

void json_put_text(struct writing *object, const char *name, const char *text) {
    named(object, name);
    quoted(object, text);
}

static void whole(struct writing *object, long long number) {
    char text[32];
    raw(object, text, (size_t)snprintf(text, sizeof text, "%lld", number));
}

void json_put_whole(struct writing *object, const char *name, long long number) {
    named(object, name);
    whole(object, number);
}

/* Microseconds; no "%f", which asks the program's locale for its comma. */
void json_put_number(struct writing *object, const char *name, double number) {
    char text[64];
    long long micro = (long long)(number * 1e6);
    named(object, name);
    raw(object, text, (size_t)snprintf(text, sizeof text, "%s%lld.%06lld", micro < 0 ? "-" : "", (micro < 0 ? -micro : micro) / 1000000,
                                       (micro < 0 ? -micro : micro) % 1000000));
}

void json_put_truth(struct writing *object, const char *name, bool truth) {
    named(object, name);
    raw(object, truth ? "true" : "false", truth ? 4 : 5);
}

void json_list(struct writing *object, const char *name) {
    named(object, name);
    raw(object, "[", 1);
    object->first = true;
}

void json_add_text(struct writing *object, const char *text) {
    next(object);
    quoted(object, text);
}

void json_add_whole(struct writing *object, long long number) {
    next(object);
    whole(object, number);
}

void json_list_end(struct writing *object) {
    raw(object, "]", 1);
    object->first = false;
}

void json_end(struct writing *object) {
    memcpy(object->line + object->used, "}\n", 3);
    object->used += 2;
}
