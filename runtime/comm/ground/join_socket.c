/* Unix sockets that carry file descriptors. */
#include "runtime/comm/ground/join_socket.h"

#include "runtime/base/base.h"
#include "runtime/comm/ground/launcher.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BACKLOG = 1024, UID_LETTERS = 10, INDEX_LETTERS = 10 };

_Static_assert(sizeof "heddle..." + UID_LETTERS + INDEX_LETTERS + HD_KEY_BYTES <
                   sizeof(((struct sockaddr_un *)0)->sun_path),
               "no key is ever cut");

socklen_t hd_meeting_address(struct sockaddr_un *address, const char *key, int index)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "heddle.%lu.%s.%d",
                          (unsigned long)getuid(), key, index);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

int hd_peer_of(int fd, struct ucred *who)
{
    socklen_t bytes = sizeof *who;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, who, &bytes) == 0;
}

static int seqpacket(int flags)
{
    return hd_fd_aside(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
}

static int close_failed(int fd)
{
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

int hd_meeting_connect(const struct sockaddr_un *address, socklen_t bytes)
{
    int fd = seqpacket(SOCK_NONBLOCK);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)address, bytes) != 0) {
        return close_failed(fd);
    }
    return fd;
}

int hd_meeting_listen(const struct sockaddr_un *address, socklen_t bytes)
{
    int fd = seqpacket(SOCK_NONBLOCK);
    if (fd >= 0 && (bind(fd, (const struct sockaddr *)address, bytes) != 0 || listen(fd, BACKLOG) != 0)) {
        return close_failed(fd);
    }
    return fd;
}

ssize_t hd_send_fds(int socket_fd, const void *data, size_t bytes, const int *fds, int nfds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * HD_MEETING_FDS)];
    } control;
    struct iovec part = {.iov_base = (void *)data, .iov_len = bytes};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (nfds > 0) {
        memset(&control, 0, sizeof control);
        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)nfds);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)nfds);
        memcpy(CMSG_DATA(head), fds, sizeof(int) * (size_t)nfds);
    }
    return sendmsg(socket_fd, &message, MSG_NOSIGNAL);
}

void hd_close_fds(const int *fds, int nfds)
{
    for (int i = 0; i < nfds; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
}

ssize_t hd_receive_fds(int socket_fd, void *data, size_t bytes, int *fds, int *nfds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * HD_MEETING_FDS)];
    } control;
    struct iovec part = {.iov_base = data, .iov_len = bytes};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(socket_fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    *nfds = 0;
    if (got < 0) {
        return got;
    }
    for (struct cmsghdr *head = CMSG_FIRSTHDR(&message); head != NULL; head = CMSG_NXTHDR(&message, head)) {
        if (head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
            *nfds = (int)((head->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(fds, CMSG_DATA(head), sizeof(int) * (size_t)*nfds);
        }
    }
    int complete = (message.msg_flags & MSG_CTRUNC) == 0;
    for (int i = 0; i < *nfds; i++) {
        fds[i] = hd_fd_aside(fds[i]);
        complete &= fds[i] >= 0;
    }
    if (!complete) {
        hd_close_fds(fds, *nfds);
        *nfds = -1;
    }
    return got;
}
