/* Unix sockets that carry file descriptors. */
#include "runtime/comm/ground/join_socket.h"

#include "runtime/base/base.h"
#include "runtime/base/blake2s.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BACKLOG = 1024, NAME_BYTES = 16, UID_LETTERS = 10, INDEX_LETTERS = 10 };

_Static_assert(sizeof "heddle..." + UID_LETTERS + 2 * NAME_BYTES + INDEX_LETTERS <
                   sizeof(((struct sockaddr_un *)0)->sun_path),
               "no name is ever cut");

socklen_t hd_meeting_address(struct sockaddr_un *address, const hd_secret *secret, int index)
{
    static const char what[] = "name";
    unsigned char hash[NAME_BYTES];
    char text[2 * NAME_BYTES + 1];
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    hd_blake2s(hash, sizeof hash, secret->bytes, sizeof secret->bytes, what, sizeof what);
    for (size_t i = 0; i < sizeof hash; i++) {
        snprintf(text + 2 * i, 3, "%02x", hash[i]);
    }
    const int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "heddle.%lu.%s.%d",
                                (unsigned long)getuid(), text, index);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* --- whose socket it is ------------------------------------------------------------------------------------------- */

/* One of the kernel's list of sockets: the user, when it has this name. */
static int read_owner(const struct nlmsghdr *head, const char *name, size_t bytes, uid_t *owner)
{
    struct unix_diag_msg *one = NLMSG_DATA(head);
    const char *its_name = NULL;
    const uint32_t *its_owner = NULL;
    size_t its_bytes = 0;
    int left = (int)(head->nlmsg_len - NLMSG_LENGTH(sizeof *one));
    for (struct rtattr *a = (struct rtattr *)(one + 1); RTA_OK(a, left); a = RTA_NEXT(a, left)) {
        if (a->rta_type == UNIX_DIAG_NAME) {
            its_name = RTA_DATA(a);
            its_bytes = RTA_PAYLOAD(a);
        } else if (a->rta_type == UNIX_DIAG_UID && RTA_PAYLOAD(a) == sizeof *its_owner) {
            its_owner = RTA_DATA(a);
        }
    }
    if (its_name == NULL || its_owner == NULL || its_bytes != bytes || memcmp(its_name, name, bytes) != 0) {
        return 0;
    }
    *owner = *its_owner;
    return 1;
}

/* As NLMSG_OK, whose comparison mixes signs. */
static int is_whole(const struct nlmsghdr *head, int left)
{
    return left >= (int)sizeof *head && head->nlmsg_len >= sizeof *head && head->nlmsg_len <= (unsigned)left;
}

int hd_meeting_owner(const struct sockaddr_un *address, socklen_t bytes, uid_t *owner)
{
    const struct {
        struct nlmsghdr head;
        struct unix_diag_req which;
    } ask = {
        .head = {.nlmsg_len = sizeof ask, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
        .which = {
            .sdiag_family = AF_UNIX, .udiag_states = (uint32_t)-1, .udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID}};
    const size_t name_bytes = bytes - offsetof(struct sockaddr_un, sun_path);
    _Alignas(struct nlmsghdr) char some[16384];
    int found = 0, is_over = 0;
    int fd = hd_fd_aside(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
    if (fd < 0 || send(fd, &ask, sizeof ask, 0) != (ssize_t)sizeof ask) {
        is_over = 1;
    }
    while (!is_over && !found) {
        const ssize_t got = recv(fd, some, sizeof some, MSG_DONTWAIT); /* the kernel writes as it is read */
        int left = (int)got;
        is_over = got <= 0;
        for (struct nlmsghdr *head = (void *)some; !is_over && !found && is_whole(head, left);
             head = NLMSG_NEXT(head, left)) {
            is_over = head->nlmsg_type == NLMSG_DONE || head->nlmsg_type == NLMSG_ERROR;
            found = !is_over && read_owner(head, address->sun_path, name_bytes, owner);
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    return found;
}

/* --- sockets ------------------------------------------------------------------------------------------------------ */

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
