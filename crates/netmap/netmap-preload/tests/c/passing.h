/* Descriptors that are sent to other processes. */
#ifndef PASSING_H
#define PASSING_H

#include "port.h"

#include <sys/socket.h>

static inline bool send_descriptor(int socket, int fd) {
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    char byte = 0;
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET, part->cmsg_type = SCM_RIGHTS, part->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(part), &fd, sizeof fd);
    return sendmsg(socket, &message, 0) == 1;
}

/* Receives a descriptor. Returns -1 if none comes. */
static inline int received_descriptor(int socket) {
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    char byte;
    struct iovec data = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct pollfd readable = {.fd = socket, .events = POLLIN};
    if (poll(&readable, 1, WAIT) != 1 || recvmsg(socket, &message, 0) != 1)
        return -1;
    struct cmsghdr *part = CMSG_FIRSTHDR(&message);
    int fd = -1;
    if (part && part->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(part), sizeof fd);
    return fd;
}

#endif
