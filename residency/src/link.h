/* The connection to the node's broker: lines of JSON, and descriptors that come or go with them. */
#ifndef CARREL_RESIDENCY_LINK_H
#define CARREL_RESIDENCY_LINK_H

#include <stdbool.h>
#include <stddef.h>

#define LONGEST ((size_t)1 << 16) /* of what a broker says to this role; more is no message */
#define MOST_FILES 250            /* SCM_MAX_FD is 253 */

struct link {
    int socket; /* -1: none */
    size_t filled, taken;
    char data[LONGEST];
    int files[2 * MOST_FILES];
    size_t file_count;
};

bool link_open(struct link *link, const char *path);
void link_close(struct link *link);
bool link_send(struct link *link, const char *line, size_t size, const int *files, size_t count);
bool link_receive(struct link *link);                               /* what there is; false: the connection is over */
bool link_line(struct link *link, const char **line, size_t *size); /* the next line, until the next link_receive */
int link_file(struct link *link);                                   /* the next descriptor that came, or -1 */

#endif
