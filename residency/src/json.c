/* Reading one flat object of JSON (RFC 8259). It is fuzzed against Python's json: tests/residency/test_json.py. */
#define _GNU_SOURCE
#include "json.h"

#include <locale.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define DEEPEST 64

static const char *blank(const char *at, const char *end) {
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) at++;
    return at;
}

static int hex(const char *at) {
    int value = 0;
    for (int digit = 0; digit < 4; digit++) {
        char c = at[digit];
        int part = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (part < 0) return -1;
        value = value * 16 + part;
    }
    return value;
}

static bool put(char **to, char *limit, unsigned code) {
    char bytes[4];
    int count = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (int number = count - 1; number > 0; number--, code >>= 6) bytes[number] = (char)(0x80 | (code & 0x3f));
    bytes[0] = (char)(lead[count] | code);
    if (limit - *to < count) return false;
    memcpy(*to, bytes, (size_t)count);
    *to += count;
    return true;
}

/* After the text that begins here, or NULL. With `to` it is copied without its escapes; *fits says whether all of it was. */
static const char *text(const char *at, const char *end, char *to, size_t room, bool *fits) {
    char *limit = to != NULL ? to + room - 1 : NULL;
    bool enough = true;
    if (at == end || *at++ != '"') return NULL;
    while (at < end && *at != '"') {
        if ((unsigned char)*at < 0x20) return NULL;
        unsigned code = (unsigned char)*at;
        bool raw = *at != '\\';
        at++;
        if (!raw) {
            static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
            const char *known = at < end && *at != 0 ? strchr(names, *at) : NULL;
            if (known != NULL) code = (unsigned char)meant[known - names], at++;
            else {
                int high, low;
                if (end - at < 5 || *at != 'u' || (high = hex(at + 1)) < 0) return NULL;
                at += 5;
                code = (unsigned)high;
                if (code >= 0xd800 && code < 0xdc00 && end - at >= 6 && at[0] == '\\' && at[1] == 'u' && (low = hex(at + 2)) >= 0xdc00 &&
                    low < 0xe000) {
                    code = 0x10000 + ((code - 0xd800) << 10) + ((unsigned)low - 0xdc00);
                    at += 6;
                }
            }
        }
        if (to == NULL || !enough) continue;
        if (!raw) enough = put(&to, limit, code);
        else if ((enough = to < limit)) *to++ = (char)code;
    }
    if (at == end) return NULL;
    if (to != NULL) *to = 0;
    if (fits != NULL) *fits = enough;
    return at + 1;
}

static const char *digits(const char *at, const char *end) {
    const char *from = at;
    while (at < end && *at >= '0' && *at <= '9') at++;
    return at > from ? at : NULL;
}

static const char *number(const char *at, const char *end) {
    if (at < end && *at == '-') at++;
    if (at < end && *at == '0') at++;
    else if ((at = digits(at, end)) == NULL) return NULL;
    if (at < end && *at == '.' && (at = digits(at + 1, end)) == NULL) return NULL;
    if (at < end && (*at == 'e' || *at == 'E')) {
        at++;
        if (at < end && (*at == '+' || *at == '-')) at++;
        at = digits(at, end);
    }
    return at;
}

static const char *word(const char *at, const char *end, const char *wanted) {
    size_t length = strlen(wanted);
    return (size_t)(end - at) >= length && memcmp(at, wanted, length) == 0 ? at + length : NULL;
}

static const char *value(const char *at, const char *end, int depth);

static const char *group(const char *at, const char *end, int depth) {
    char close = *at == '{' ? '}' : ']';
    bool named = *at == '{';
    at = blank(at + 1, end);
    if (depth > DEEPEST) return NULL;
    if (at < end && *at == close) return at + 1;
    while (at != NULL) {
        if (named) {
            if ((at = text(at, end, NULL, 0, NULL)) == NULL) return NULL;
            at = blank(at, end);
            if (at == end || *at != ':') return NULL;
            at = blank(at + 1, end);
        }
        if ((at = value(at, end, depth + 1)) == NULL) return NULL;
        at = blank(at, end);
        if (at < end && *at == close) return at + 1;
        if (at == end || *at != ',') return NULL;
        at = blank(at + 1, end);
    }
    return NULL;
}

static const char *value(const char *at, const char *end, int depth) {
    if (at == end) return NULL;
    switch (*at) {
    case '{':
    case '[': return group(at, end, depth);
    case '"': return text(at, end, NULL, 0, NULL);
    case 't': return word(at, end, "true");
    case 'f': return word(at, end, "false");
    case 'n': return word(at, end, "null");
    default: return number(at, end);
    }
}

bool json_read(struct reading *object, const char *line, size_t size) {
    const char *end = line + size, *at = blank(line, end), *after;
    if (at == end || *at != '{' || (after = group(at, end, 0)) == NULL || blank(after, end) != end) return false;
    *object = (struct reading){.line = at, .end = after};
    return true;
}

static const char *find(const struct reading *object, const char *name) {
    const char *found = NULL, *end = object->end, *at = blank(object->line + 1, end);
    while (at < end && *at == '"') {
        char given[64];
        bool fits;
        at = blank(text(at, end, given, sizeof given, &fits), end);
        at = blank(at + 1, end);
        if (fits && strcmp(given, name) == 0) found = at;
        at = blank(value(at, end, 0), end);
        at = blank(at + 1, end);
    }
    return found;
}

static bool take_text(const char *at, const char *end, char *to, size_t room) {
    bool fits = false;
    return at != NULL && *at == '"' && text(at, end, to, room, &fits) != NULL && fits;
}

/* Whatever the program's locale makes of a comma. */
static bool take_number(const char *at, const char *end, double *result) {
    const char *after = at != NULL && strchr("-0123456789", *at) != NULL ? number(at, end) : NULL;
    char copy[64];
    if (after == NULL || (size_t)(after - at) >= sizeof copy) return false;
    memcpy(copy, at, (size_t)(after - at));
    copy[after - at] = 0;
    static locale_t plain;
    if (plain == NULL) plain = newlocale(LC_ALL_MASK, "C", NULL);
    *result = plain != NULL ? strtod_l(copy, NULL, plain) : strtod(copy, NULL);
    return true;
}

static bool take_whole(const char *at, const char *end, long long *result) {
    double rough;
    if (!take_number(at, end, &rough) || rough >= 9.2e18 || rough <= -9.2e18) return false;
    const char *after = number(at, end);
    for (const char *each = at; each < after; each++)
        if (*each == '.' || *each == 'e' || *each == 'E') return false;
    *result = strtoll(at, NULL, 10);
    return true;
}

bool json_text(const struct reading *object, const char *name, char *to, size_t room) {
    return take_text(find(object, name), object->end, to, room);
}
bool json_number(const struct reading *object, const char *name, double *result) {
    return take_number(find(object, name), object->end, result);
}
bool json_whole(const struct reading *object, const char *name, long long *result) {
    return take_whole(find(object, name), object->end, result);
}
bool json_truth(const struct reading *object, const char *name, bool *truth) {
    const char *at = find(object, name);
    if (at == NULL || (*at != 't' && *at != 'f')) return false;
    *truth = *at == 't';
    return true;
}

static const char *next(const struct reading *object, const char *name, const char **position) {
    const char *end = object->end, *at = *position;
    if (at == NULL) {
        if ((at = find(object, name)) == NULL || *at != '[') return NULL;
        at = blank(at + 1, end);
        if (*at == ']') return NULL;
    } else {
        at = blank(value(at, end, 0), end);
        if (*at != ',') return NULL;
        at = blank(at + 1, end);
    }
    return *position = at;
}

bool json_next_text(const struct reading *object, const char *name, const char **position, char *to, size_t room) {
    return take_text(next(object, name, position), object->end, to, room);
}
bool json_next_whole(const struct reading *object, const char *name, const char **position, long long *result) {
    return take_whole(next(object, name, position), object->end, result);
}
