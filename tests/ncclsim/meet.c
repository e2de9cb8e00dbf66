/* How ranks find one another: each listens under a name made of the id and its rank, and calls those below it. */
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { RETRY_MS = 2 };

static socklen_t name_of(struct sockaddr_un *name, const ncclUniqueId *id, int rank)
{
    memset(name, 0, sizeof *name);
    name->sun_family = AF_UNIX; /* a name that begins with 0 lies in no folder */
    int at = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "heddle-ncclsim-");
    for (int i = 0; i < 16; i++) {
        at += snprintf(name->sun_path + 1 + at, 3, "%02x", (unsigned char)id->internal[i]);
    }
    at += snprintf(name->sun_path + 1 + at, 16, "-%d", rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)at);
}

/* 1: the communicator was aborted. */
static int await(ncclComm_t comm, int file, int timeout_ms)
{
    struct pollfd on[2] = {{comm->bell, POLLIN, 0}, {file, POLLIN, 0}};
    (void)poll(on, file >= 0 ? 2 : 1, timeout_ms);
    return on[0].revents != 0;
}

static int listen_here(ncclComm_t comm)
{
    struct sockaddr_un name;
    socklen_t length = name_of(&name, &comm->id, comm->rank);
    comm->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return comm->listener >= 0 && bind(comm->listener, (struct sockaddr *)&name, length) == 0 &&
           listen(comm->listener, comm->nranks) == 0;
}

/* -1: it was aborted, or there are no sockets. */
static int call(ncclComm_t comm, int peer)
{
    struct sockaddr_un name;
    socklen_t length = name_of(&name, &comm->id, peer);
    for (;;) {
        int file = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (file < 0) {
            return -1;
        }
        if (connect(file, (struct sockaddr *)&name, length) == 0) {
            if (send(file, &comm->rank, sizeof comm->rank, MSG_NOSIGNAL) == sizeof comm->rank) {
                return file;
            }
        }
        close(file);
        if (await(comm, -1, RETRY_MS)) {
            return -1;
        }
    }
}

/* *peer: who called. */
static int answer(ncclComm_t comm, int *peer)
{
    for (;;) {
        if (await(comm, comm->listener, -1)) {
            return -1;
        }
        int file = accept4(comm->listener, NULL, NULL, SOCK_CLOEXEC);
        if (file >= 0 && recv(file, peer, sizeof *peer, MSG_WAITALL) == sizeof *peer) {
            return file;
        }
        if (file >= 0) {
            close(file);
        } else if (errno != EAGAIN && errno != EINTR) {
            return -1;
        }
    }
}

static int meet_all(ncclComm_t comm)
{
    int ok = listen_here(comm);
    for (int r = 0; ok && r < comm->rank; r++) {
        comm->socket[r] = call(comm, r);
        ok = comm->socket[r] >= 0;
    }
    for (int r = comm->rank + 1; ok && r < comm->nranks; r++) {
        int peer = -1, file = answer(comm, &peer);
        ok = file >= 0 && peer > comm->rank && peer < comm->nranks && comm->socket[peer] < 0;
        if (ok) {
            comm->socket[peer] = file;
        } else if (file >= 0) {
            close(file);
        }
    }
    for (int r = 0; r < comm->nranks; r++) {
        if (comm->socket[r] >= 0) {
            (void)fcntl(comm->socket[r], F_SETFL, O_NONBLOCK);
        }
    }
    return ok;
}

void *ncclsim_meet(void *argument)
{
    ncclComm_t comm = argument;
    if (!meet_all(comm)) {
        ncclsim_fail(comm, ncclSystemError, "rank %d could not meet the others: %s", comm->rank, strerror(errno));
        return NULL;
    }
    pthread_mutex_lock(&comm->lock);
    comm->state = comm->state == ncclInProgress ? ncclSuccess : comm->state;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    return NULL;
}
