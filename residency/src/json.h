/* One JSON object on a line: values are texts, numbers, true, false, null, and lists of texts or numbers. */
#ifndef CARREL_RESIDENCY_JSON_H
#define CARREL_RESIDENCY_JSON_H

#include <stdbool.h>
#include <stddef.h>

/* Reading. The line is checked as a whole and kept as it is; what is nested deeper than a list is passed over. */
struct reading {
    const char *line, *end;
};
bool json_read(struct reading *object, const char *line, size_t size); /* false: not an object of JSON */
/* Each of these: false where there is no such name, or it is of another kind. Of a name that comes twice the last one counts. */
bool json_text(const struct reading *object, const char *name, char *text, size_t room); /* false too where it does not fit */
bool json_number(const struct reading *object, const char *name, double *number);
bool json_whole(const struct reading *object, const char *name, long long *number);
bool json_truth(const struct reading *object, const char *name, bool *truth);
/* The list's elements one after the other: *position is NULL at first. False at the end, and for an element of another kind. */
bool json_next_text(const struct reading *object, const char *name, const char **position, char *text, size_t room);
bool json_next_whole(const struct reading *object, const char *name, const char **position, long long *number);

/* Writing. What does not fit is left out, and `full` says so. */
struct writing {
    char *line;
    size_t room, used;
    bool full, first;
};
void json_begin(struct writing *object, char *line, size_t room);
void json_put_text(struct writing *object, const char *name, const char *text);
void json_put_whole(struct writing *object, const char *name, long long number);
void json_put_number(struct writing *object, const char *name, double number);
void json_put_truth(struct writing *object, const char *name, bool truth);
void json_list(struct writing *object, const char *name);
void json_add_text(struct writing *object, const char *text);
void json_add_whole(struct writing *object, long long number);
void json_list_end(struct writing *object);
void json_end(struct writing *object); /* with the newline */

#endif
