/* How the ranks find one another: each has a socket in SOCKETS_FOLDER, and calls those below it. */
#include "sockets.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { RETRY_NS = 2000000, STEP_MS = 20, DEADLINE_MS = 60000 };

static heddle_status address_of(struct sockaddr_un *address, int rank)
{
    const char *folder = getenv("SOCKETS_FOLDER");
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path, sizeof address->sun_path, "%s/%d", folder != NULL ? folder : "", rank);
    if (folder == NULL || length >= (int)sizeof address->sun_path) {
        return heddle_set_error(HEDDLE_ERR_ARG,
                                "SOCKETS_FOLDER is %s%.60s, wanted the path of a folder, short enough "
                                "for a socket in it (%zu bytes)",
                                folder != NULL ? "too long: " : "not set", folder != NULL ? folder : "",
                                sizeof address->sun_path);
    }
    return HEDDLE_OK;
}

/* Ranks connect to those below them; who is not there yet comes. */
static heddle_status call_rank(sockets *s, int r, int64_t deadline_ns)
{
    struct sockaddr_un address;
    const int32_t me = s->rank;
    heddle_status st = address_of(&address, r);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (st == HEDDLE_OK && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        const struct timespec moment = {.tv_nsec = RETRY_NS};
        nanosleep(&moment, NULL);
        st = post_interrupted(s);
        if (st == HEDDLE_OK && post_now_ns() > deadline_ns) {
            st = heddle_set_error(HEDDLE_ERR_TIMEOUT, "rank %d: rank %d did not come to %s", s->rank, r,
                                  address.sun_path);
        }
    }
    if (st == HEDDLE_OK && send(fd, &me, sizeof me, MSG_NOSIGNAL) != sizeof me) {
        st = heddle_set_error(HEDDLE_ERR_PEER, "rank %d: rank %d hung up", s->rank, r);
    }
    if (st != HEDDLE_OK) {
        close(fd);
        return st;
    }
    s->peer[r].fd = fd;
    return HEDDLE_OK;
}

static heddle_status be_called(sockets *s, int listener, int64_t deadline_ns)
{
    struct pollfd ready = {.fd = listener, .events = POLLIN};
    int32_t who = -1;
    while (poll(&ready, 1, STEP_MS) != 1) {
        heddle_status st = post_interrupted(s);
        if (st == HEDDLE_OK && post_now_ns() > deadline_ns) {
            st = heddle_set_error(HEDDLE_ERR_TIMEOUT, "rank %d: not all of %d ranks came", s->rank, s->size);
        }
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 || recv(fd, &who, sizeof who, MSG_WAITALL) != sizeof who || who <= s->rank || who >= s->size ||
        s->peer[who].fd >= 0) {
        if (fd >= 0) {
            close(fd);
        }
        return heddle_set_error(HEDDLE_ERR_TRANSPORT, "rank %d was called by somebody who says rank %d of %d", s->rank,
                                who, s->size);
    }
    s->peer[who].fd = fd;
    return HEDDLE_OK;
}

static heddle_status meet(sockets *s, int64_t deadline_ns)
{
    struct sockaddr_un address;
    heddle_status st = address_of(&address, s->rank);
    if (st != HEDDLE_OK) {
        return st;
    }
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, s->size) != 0) {
        st = heddle_set_error(HEDDLE_ERR_TRANSPORT, "%s: %s", address.sun_path, strerror(errno));
    }
    for (int r = 0; r < s->rank && st == HEDDLE_OK; r++) {
        st = call_rank(s, r, deadline_ns);
    }
    for (int r = s->rank + 1; r < s->size && st == HEDDLE_OK; r++) {
        st = be_called(s, listener, deadline_ns);
    }
    close(listener);
    unlink(address.sun_path);
    return st;
}

heddle_status post_open(sockets **out, const heddle_comm_options *options)
{
    int64_t deadline_ms = options != NULL && options->deadline_ms > 0 ? options->deadline_ms : DEADLINE_MS;
    const char *launcher = NULL;
    sockets *s = calloc(1, sizeof *s);
    heddle_status st = s == NULL ? heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for sockets")
                                 : heddle_comm_launcher(&launcher, &s->rank, &s->size);
    if (st == HEDDLE_OK && (launcher == NULL || strcmp(launcher, "heddle") != 0)) {
        st = heddle_set_error(HEDDLE_ERR_ARG, "sockets: wanted HEDDLE_RANK, HEDDLE_SIZE and HEDDLE_KEY");
    }
    if (st == HEDDLE_OK) {
        s->aborted_by = -1;
        s->interrupt = options != NULL ? options->interrupt : NULL;
        s->interrupt_arg = options != NULL ? options->interrupt_arg : NULL;
        s->peer = calloc((size_t)s->size, sizeof *s->peer);
        st = s->peer == NULL ? heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %d ranks", s->size) : HEDDLE_OK;
    }
    for (int r = 0; st == HEDDLE_OK && r < s->size; r++) {
        s->peer[r].fd = -1;
        s->peer[r].out_end = &s->peer[r].out;
        s->peer[r].in_end = &s->peer[r].in;
    }
    st = st == HEDDLE_OK ? meet(s, post_now_ns() + deadline_ms * 1000000) : st;
    if (st != HEDDLE_OK && s != NULL) {
        s->aborted_by = s->rank;
        post_close(s);
        return st;
    }
    *out = s;
    return st;
}
