/* The socket. */
#define _GNU_SOURCE
#include "link.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

bool link_open(struct link *link, const char *path) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    /* A broker that takes nothing for so long is as good as gone: the connection is made again. */
    struct timeval patience = {.tv_sec = 10};
    if (strlen(path) >= sizeof at.sun_path) return false;
    strcpy(at.sun_path, path);
    link->filled = link->taken = link->file_count = 0;
    link->socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (link->socket < 0) return false;
    setsockopt(link->socket, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(link->socket, (struct sockaddr *)&at, sizeof at) == 0) return true;
    link_close(link);
    return false;
}

void link_close(struct link *link) {
    if (link->socket >= 0) close(link->socket);
    for (size_t number = 0; number < link->file_count; number++) close(link->files[number]);
    link->socket = -1;
    link->filled = link->taken = link->file_count = 0;
}

bool link_send(struct link *link, const char *line, size_t size, const int *files, size_t count) {
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * MOST_FILES)];
    if (link->socket < 0 || count > MOST_FILES) return false;
    while (size > 0) {
        struct iovec piece = {.iov_base = (void *)line, .iov_len = size};
        struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
        if (count > 0) {
            memset(control, 0, sizeof control);
            message.msg_control = control;
            message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
            struct cmsghdr *header = CMSG_FIRSTHDR(&message);
            header->cmsg_level = SOL_SOCKET;
            header->cmsg_type = SCM_RIGHTS;
            header->cmsg_len = CMSG_LEN(sizeof(int) * count);
            memcpy(CMSG_DATA(header), files, sizeof(int) * count);
        }
        ssize_t sent = sendmsg(link->socket, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        line += sent;
        size -= (size_t)sent;
        count = 0; /* they went with the first byte */
    }
    return true;
}

bool link_receive(struct link *link) {
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int) * MOST_FILES)];
    memmove(link->data, link->data + link->taken, link->filled - link->taken);
    link->filled -= link->taken;
    link->taken = 0;
    if (link->filled == sizeof link->data) return false; /* no line ends in it */
    struct iovec piece = {.iov_base = link->data + link->filled, .iov_len = sizeof link->data - link->filled};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t got = recvmsg(link->socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(&message); header != NULL; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t number = 0; number < count; number++) {
            int file;
            memcpy(&file, CMSG_DATA(header) + number * sizeof(int), sizeof file);
            if (link->file_count < sizeof link->files / sizeof *link->files) link->files[link->file_count++] = file;
            else close(file);
        }
    }
    link->filled += (size_t)got;
    return got > 0;
}

bool link_line(struct link *link, const char **line, size_t *size) {
    char *from = link->data + link->taken, *end = memchr(from, '\n', link->filled - link->taken);
    if (end == NULL) return false;
    *line = from;
    *size = (size_t)(end - from);
    link->taken += *size + 1;
    return true;
}

int link_file(struct link *link) {
    if (link->file_count == 0) return -1;
    int file = link->files[0];
    link->file_count--;
    memmove(link->files, link->files + 1, link->file_count * sizeof(int));
    return file;
}
