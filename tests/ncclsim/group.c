/* Sends, receives and groups of them, as functions on a stream. */
#include "inside.h"

#include "cuda.h"
#include "cudasim.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static _Thread_local int depth;
static _Thread_local batch *open_batches;
static _Thread_local ncclResult_t group_result;

void ncclsim_batch_free(batch *b)
{
    while (b->first != NULL) {
        transfer *t = b->first;
        b->first = t->next;
        free(t);
    }
    free(b);
}

/* --- on the stream's thread --------------------------------------------------------------------------------------- */

static char *view(const transfer *t)
{
    return t->bytes > 0 ? hd_sim_view(t->data, t->bytes) : NULL;
}

/* As much as goes without waiting; 0: the other end is closed. */
static int step(transfer *t, int file)
{
    const size_t header = sizeof t->header, all = header + t->bytes;
    while (t->done < all) {
        int in_header = t->done < header;
        char *at = in_header ? (char *)&t->header + t->done : view(t) + (t->done - header);
        size_t wanted = in_header ? header - t->done : all - t->done;
        ssize_t n = t->is_send ? send(file, at, wanted, MSG_NOSIGNAL) : recv(file, at, wanted, 0);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return 1;
        }
        if (n <= 0) {
            return 0;
        }
        t->done += (size_t)n;
        if (!t->is_send && t->done == header && t->header != t->bytes) {
            return -1;
        }
    }
    return 1;
}

/* Of messages between the same two ranks, the first one that is not done. */
static int is_next(const batch *b, const transfer *t)
{
    for (const transfer *other = b->first; other != t; other = other->next) {
        if (other->peer == t->peer && other->is_send == t->is_send &&
            other->done < other->bytes + sizeof other->header) {
            return 0;
        }
    }
    return 1;
}

/* Those that wait for their socket into on[], behind the bell; -1: the communicator has failed. */
static int step_all(const batch *b, struct pollfd *on)
{
    ncclComm_t comm = b->comm;
    int waiting = 0;
    for (transfer *t = b->first; t != NULL; t = t->next) {
        if (t->peer == comm->rank || t->done == t->bytes + sizeof t->header || !is_next(b, t)) {
            continue;
        }
        int went = step(t, comm->socket[t->peer]);
        if (went < 0) {
            ncclsim_fail(comm, ncclInvalidUsage, "rank %d sends %llu bytes where rank %d receives %zu", t->peer,
                         (unsigned long long)t->header, comm->rank, t->bytes);
            return -1;
        }
        if (went == 0 && !ncclsim_is_silent()) {
            ncclsim_fail(comm, ncclRemoteError, "the connection with rank %d was closed by its end", t->peer);
            return -1;
        }
        if (t->done < t->bytes + sizeof t->header) { /* silent: the bell is all that still rings */
            on[1 + waiting++] =
                (struct pollfd){went == 0 ? -1 : comm->socket[t->peer], t->is_send ? POLLOUT : POLLIN, 0};
        }
    }
    return waiting;
}

/* What a rank sends to itself, in order. */
static void copy_own(batch *b)
{
    const transfer *from = b->first;
    for (transfer *to = b->first; to != NULL; to = to->next) {
        if (to->peer != b->comm->rank || to->is_send) {
            continue;
        }
        while (from != NULL && !(from->peer == b->comm->rank && from->is_send)) {
            from = from->next;
        }
        if (from == NULL || from->bytes != to->bytes) {
            ncclsim_fail(b->comm, ncclInvalidUsage, "what a rank sends to itself is not what it receives");
            return;
        }
        if (to->bytes > 0) {
            memmove(view(to), view(from), to->bytes);
        }
        from = from->next;
    }
}

static void exchange(batch *b)
{
    int n = 1;
    for (transfer *t = b->first; t != NULL; t = t->next, n++) {
        t->done = 0;
        t->header = t->bytes;
    }
    struct pollfd *on = calloc((size_t)n, sizeof *on);
    if (on == NULL) {
        ncclsim_fail(b->comm, ncclSystemError, "no memory for %d messages", n - 1);
        return;
    }
    on[0] = (struct pollfd){b->comm->bell, POLLIN, 0};
    copy_own(b);
    for (int waiting = 1; waiting > 0 && on[0].revents == 0;) {
        waiting = step_all(b, on);
        if (waiting > 0) {
            (void)poll(on, (nfds_t)waiting + 1, -1);
        }
    }
    free(on);
}

static void run(void *user)
{
    batch *b = user;
    ncclComm_t comm = b->comm;
    pthread_mutex_lock(&comm->lock);
    int falls_through = comm->state != ncclSuccess;
    comm->running++;
    pthread_mutex_unlock(&comm->lock);
    ncclResult_t wanted = falls_through ? ncclSuccess : ncclsim_begin_group();
    if (wanted != ncclSuccess) {
        ncclsim_fail(comm, wanted, "a test has made this group fail");
    } else if (!falls_through) {
        exchange(b);
    }
    pthread_mutex_lock(&comm->lock);
    comm->running--;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    if (!b->is_kept) {
        ncclsim_batch_free(b);
        ncclsim_unref(comm);
    }
}

/* --- on the caller's ---------------------------------------------------------------------------------------------- */

static void leave_graph(void *user)
{
    ncclComm_t comm = user;
    pthread_mutex_lock(&comm->lock);
    comm->graphs--;
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
}

static ncclResult_t enqueue(batch *b)
{
    ncclComm_t comm = b->comm;
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(b->stream, &status) != cudaSuccess) {
        ncclsim_batch_free(b);
        return ncclUnhandledCudaError;
    }
    b->is_kept = status == cudaStreamCaptureStatusActive;
    pthread_mutex_lock(&comm->lock);
    if (b->is_kept) {
        b->next = comm->kept;
        comm->kept = b;
        comm->graphs++;
    } else {
        comm->references++;
    }
    pthread_mutex_unlock(&comm->lock);
    if (b->is_kept && !hd_sim_when_gone(b->stream, leave_graph, comm)) {
        leave_graph(comm);
        return ncclUnhandledCudaError;
    }
    if (cudaLaunchHostFunc(b->stream, run, b) == cudaSuccess) {
        return ncclSuccess;
    }
    if (!b->is_kept) {
        ncclsim_batch_free(b);
        ncclsim_unref(comm);
    }
    return ncclUnhandledCudaError;
}

/* The default stream is the one of the communicator's device, whichever is current. */
ncclResult_t ncclsim_enqueue(batch *b)
{
    CUcontext own = NULL, gone = NULL;
    ncclResult_t result = ncclUnhandledCudaError;
    if (cuDevicePrimaryCtxRetain(&own, b->comm->device) == CUDA_SUCCESS && cuCtxPushCurrent(own) == CUDA_SUCCESS) {
        result = enqueue(b);
        (void)cuCtxPopCurrent(&gone);
    } else {
        ncclsim_batch_free(b);
    }
    return result;
}

static ncclResult_t close_batch(batch *b)
{
    ncclComm_t comm = b->comm;
    if (comm->is_blocking) {
        return ncclsim_enqueue(b);
    }
    pthread_mutex_lock(&comm->lock);
    batch **last = &comm->pending;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    b->next = NULL;
    *last = b;
    comm->polls = 1;
    pthread_mutex_unlock(&comm->lock);
    return ncclInProgress;
}

static ncclResult_t close_group(void)
{
    ncclResult_t result = group_result;
    while (open_batches != NULL) {
        batch *b = open_batches;
        open_batches = b->next;
        if (group_result != ncclSuccess) {
            ncclsim_batch_free(b);
            continue;
        }
        ncclResult_t closed = close_batch(b);
        result = closed != ncclSuccess ? closed : result;
    }
    group_result = ncclSuccess;
    return result;
}

static ncclResult_t add(const transfer *what, ncclComm_t comm, cudaStream_t stream)
{
    batch *b = open_batches;
    while (b != NULL && b->comm != comm) {
        b = b->next;
    }
    if (b == NULL) {
        b = calloc(1, sizeof *b);
        if (b == NULL) {
            return ncclSystemError;
        }
        *b = (batch){.next = open_batches, .comm = comm, .stream = stream};
        open_batches = b;
    }
    transfer *t = malloc(sizeof *t);
    if (t == NULL || b->stream != stream) {
        free(t);
        return ncclsim_say(ncclInvalidUsage, "one group on two streams");
    }
    *t = *what;
    if (b->first == NULL) {
        b->first = t;
    } else {
        b->last->next = t;
    }
    b->last = t;
    return ncclSuccess;
}

static ncclResult_t message(void *data, size_t count, ncclDataType_t type, int peer, int is_send, ncclComm_t comm,
                            cudaStream_t stream)
{
    static const size_t size_of[] = {
        [ncclInt8] = 1, [ncclUint8] = 1, [ncclInt32] = 4, [ncclInt64] = 8, [ncclFloat32] = 4};
    ncclResult_t result = ncclsim_begin();
    depth++;
    if (result == ncclSuccess && (peer < 0 || peer >= comm->nranks || type < 0 || type > ncclFloat32)) {
        result = ncclsim_say(ncclInvalidArgument, "peer %d of %d ranks, type %d", peer, comm->nranks, (int)type);
    }
    if (result == ncclSuccess) {
        transfer t = {.data = data, .bytes = count * size_of[type], .peer = peer, .is_send = is_send};
        result = add(&t, comm, stream);
    }
    group_result = result != ncclSuccess ? result : group_result;
    if (--depth == 0) {
        ncclResult_t closed = close_group();
        result = result == ncclSuccess ? closed : result;
    }
    return result;
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return message((void *)(uintptr_t)data, count, type, peer, 1, comm, stream);
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return message(data, count, type, peer, 0, comm, stream);
}

ncclResult_t ncclGroupStart(void)
{
    ncclResult_t result = ncclsim_begin();
    depth += result == ncclSuccess;
    return result;
}

/* The group ends, whatever comes of it. */
ncclResult_t ncclGroupEnd(void)
{
    ncclResult_t result = ncclsim_begin();
    if (depth < 1) {
        return ncclsim_say(ncclInvalidUsage, "no group was begun");
    }
    group_result = result != ncclSuccess ? result : group_result;
    return --depth == 0 ? close_group() : ncclSuccess;
}
