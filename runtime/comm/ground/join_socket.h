/* Unix sockets that carry file descriptors, for the meeting of the ranks of a host. */
#ifndef HD_COMM_JOIN_SOCKET_H
#define HD_COMM_JOIN_SOCKET_H

#include "runtime/comm/ground/proof.h"

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

enum { HD_MEETING_FDS = 128 }; /* descriptors in one message at most; the kernel takes 253 */

/* An abstract address (no name in any file system) of member `index` of this user's job. Everybody can read it in
 * /proc/net/unix, so it is a hash of the secret. */
socklen_t hd_meeting_address(struct sockaddr_un *address, const hd_secret *secret, int index);
/* The user whose socket listens there. 0: nobody's, or the kernel does not say. */
int hd_meeting_owner(const struct sockaddr_un *address, socklen_t bytes, uid_t *owner);
/* The process that listens or connected at the other end. */
int hd_peer_of(int fd, struct ucred *who);
/* Without waiting, also where the other end's queue is full: then -1, errno EAGAIN. Else the descriptor or -1. */
int hd_meeting_connect(const struct sockaddr_un *address, socklen_t bytes);
/* A socket that listens there without blocking, or -1: errno EADDRINUSE, or another. */
int hd_meeting_listen(const struct sockaddr_un *address, socklen_t bytes);
ssize_t hd_send_fds(int socket_fd, const void *data, size_t bytes, const int *fds, int nfds);
/* Without waiting. fds has room for HD_MEETING_FDS, *nfds says how many came; -1: this process may not have that many.
 */
ssize_t hd_receive_fds(int socket_fd, void *data, size_t bytes, int *fds, int *nfds);
void hd_close_fds(const int *fds, int nfds);

#endif
