/* Communicators: from an id, asked about, and ended. */
#include "inside.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    ncclResult_t result = ncclsim_begin();
    memset(id, 0, sizeof *id);
    if (result == ncclSuccess && getrandom(id->internal, 16, 0) != 16) {
        result = ncclSystemError;
    }
    return result;
}

/* --- made and freed ----------------------------------------------------------------------------------------------- */

void ncclsim_unref(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    int left = --comm->references;
    pthread_mutex_unlock(&comm->lock);
    if (left > 0) {
        return;
    }
    for (int r = 0; r < comm->nranks; r++) {
        if (comm->socket[r] >= 0) {
            close(comm->socket[r]);
        }
    }
    if (comm->listener >= 0) {
        close(comm->listener);
    }
    close(comm->bell);
    while (comm->kept != NULL) {
        batch *b = comm->kept;
        comm->kept = b->next;
        ncclsim_batch_free(b);
    }
    pthread_mutex_destroy(&comm->lock);
    pthread_cond_destroy(&comm->changed);
    free(comm->socket);
    free(comm);
}

static ncclComm_t make(int nranks, const ncclUniqueId *id, int rank, int device)
{
    ncclComm_t comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        return NULL;
    }
    *comm = (struct ncclComm){.rank = rank,
                              .nranks = nranks,
                              .device = device,
                              .id = *id,
                              .listener = -1,
                              .bell = eventfd(0, EFD_CLOEXEC),
                              .state = ncclInProgress,
                              .references = 1};
    pthread_mutex_init(&comm->lock, NULL);
    pthread_cond_init(&comm->changed, NULL);
    comm->socket = malloc((size_t)nranks * sizeof *comm->socket);
    if (comm->socket == NULL || comm->bell < 0) {
        comm->nranks = comm->socket != NULL ? comm->nranks : 0;
        ncclsim_unref(comm);
        return NULL;
    }
    memset(comm->socket, -1, (size_t)nranks * sizeof *comm->socket);
    return comm;
}

void ncclsim_fail(ncclComm_t comm, ncclResult_t result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&comm->lock);
    if (comm->state == ncclSuccess || comm->state == ncclInProgress) {
        comm->state = result;
        vsnprintf(comm->why, sizeof comm->why, format, args);
    }
    pthread_cond_broadcast(&comm->changed);
    pthread_mutex_unlock(&comm->lock);
    va_end(args);
    for (int r = 0; r < comm->nranks && !ncclsim_is_silent(); r++) {
        if (comm->socket[r] >= 0) {
            shutdown(comm->socket[r], SHUT_RDWR);
        }
    }
}

static ncclResult_t await_start(ncclComm_t comm)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->state == ncclInProgress) {
        pthread_cond_wait(&comm->changed, &comm->lock);
    }
    ncclResult_t result = comm->state;
    pthread_mutex_unlock(&comm->lock);
    return result;
}

/* Stricter than the real one, which takes what it knows of a config of later headers. */
static int knows(const ncclConfig_t *config)
{
    return config == NULL || (config->size == sizeof *config && (int)config->version <= ncclsim_version());
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    int device = 0;
    ncclResult_t result = ncclsim_begin();
    *out = NULL;
    if (result != ncclSuccess) {
        return result;
    }
    if (nranks < 1 || rank < 0 || rank >= nranks || !knows(config)) {
        return ncclsim_say(ncclInvalidArgument, "rank %d of %d, or a config of a later version", rank, nranks);
    }
    if (cudaGetDevice(&device) != cudaSuccess) {
        return ncclUnhandledCudaError;
    }
    ncclComm_t comm = make(nranks, &id, rank, device);
    if (comm == NULL) {
        return ncclSystemError;
    }
    comm->is_blocking = config == NULL || config->blocking != 0;
    if (pthread_create(&comm->starter, NULL, ncclsim_meet, comm) != 0) {
        ncclsim_unref(comm);
        return ncclSystemError;
    }
    comm->has_starter = 1;
    ncclsim_count_comm(1);
    *out = comm;
    result = ncclsim_begin(); /* the meeting, which is asked for before the call returns */
    if (result != ncclSuccess) {
        return result;
    }
    return comm->is_blocking ? await_start(comm) : ncclInProgress;
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int nranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(out, nranks, id, rank, NULL);
}

/* --- asked about -------------------------------------------------------------------------------------------------- */

/* What is pending is enqueued by the last question that is told so. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out)
{
    batch *ready = NULL;
    pthread_mutex_lock(&comm->lock);
    *out = comm->state;
    if (comm->state == ncclSuccess && comm->pending != NULL) {
        if (comm->polls-- > 0) {
            *out = ncclInProgress;
        } else {
            ready = comm->pending;
            comm->pending = NULL;
        }
    }
    pthread_mutex_unlock(&comm->lock);
    while (ready != NULL) {
        batch *next = ready->next;
        ncclResult_t result = ncclsim_enqueue(ready);
        if (result != ncclSuccess) {
            ncclsim_fail(comm, result, "a group could not be put into its stream");
            *out = result;
        }
        ready = next;
    }
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    ncclResult_t result = ncclsim_begin();
    *count = comm->nranks;
    return result;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    ncclResult_t result = ncclsim_begin();
    *device = comm->device;
    return result;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    ncclResult_t result = ncclsim_begin();
    *rank = comm->rank;
    return result;
}

/* --- ended -------------------------------------------------------------------------------------------------------- */

/* After it nobody else changes the sockets. */
static void join(ncclComm_t comm)
{
    if (comm->has_starter) {
        pthread_join(comm->starter, NULL);
        comm->has_starter = 0;
    }
}

static void end(ncclComm_t comm)
{
    join(comm);
    pthread_mutex_lock(&comm->lock);
    while (comm->running > 0 || comm->graphs > 0) {
        pthread_cond_wait(&comm->changed, &comm->lock);
    }
    batch *pending = comm->pending;
    comm->pending = NULL;
    pthread_mutex_unlock(&comm->lock);
    ncclsim_await_others();
    while (pending != NULL) {
        batch *next = pending->next;
        ncclsim_batch_free(pending);
        pending = next;
    }
    ncclsim_unref(comm);
    ncclsim_count_comm(-1);
}

/* As the real one, both wait until no graph has work of the communicator any more. What is in streams goes on; its last
 * one frees it. */
ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    end(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    uint64_t one = 1;
    ncclsim_count_abort();
    if (write(comm->bell, &one, sizeof one) != sizeof one) {
        return ncclSystemError;
    }
    join(comm);
    ncclsim_fail(comm, ncclInternalError, "the communicator was aborted");
    end(comm);
    return ncclSuccess;
}
