/* What the files of the MPI adapter share. The adapter sees public headers only, like any transport from outside. */
#ifndef HEDDLE_MPI_TRANSPORT_H
#define HEDDLE_MPI_TRANSPORT_H

#include <heddle/mpi.h>
#include <heddle/transport.h>

enum { MPI_WHY_BYTES = 240, MPI_TAG_ABORT = 1, MPI_TAG_SENDRECV = 2 };

/* The message that tells another rank to give up. */
typedef struct mpi_abort_note {
    int32_t rank;
    char why[MPI_WHY_BYTES];
} mpi_abort_note;

typedef struct mpi_transport {
    MPI_Comm control; /* allgather, sendrecv, abort: duplicates of the caller's, errors returned */
    MPI_Comm bulk;    /* exchanges only, so that their tags are theirs and others can count what they move */
    int rank, size;
    int tag_max;
    int owns_mpi; /* we called MPI_Init_thread, so we finalise */
    int broken;   /* a wait was given up: requests may still be in flight, nothing is freed under them */
    char *bounce; /* allgather's own send and receive area: survives a wait that was given up */
    size_t bounce_bytes;
    mpi_abort_note *note; /* what we tell the others, with one request per rank; NULL: nothing told */
    MPI_Request *note_requests;
    mpi_abort_note heard; /* rank -1: nobody told us to give up */
} mpi_transport;

/* HEDDLE_ERR_TRANSPORT with MPI's own words for `code`. */
heddle_status mpi_fail(const mpi_transport *t, int code, const char *call);

/* A type of exactly `bytes` bytes, contiguous, any size; *count of it are meant. *made: the caller frees it. */
heddle_status mpi_bytes_type(const mpi_transport *t, int64_t bytes, MPI_Datatype *type, int *count, int *made);

/* Finish all requests by the deadline, looking out for an abort. A request that is given up stays in flight. */
heddle_status mpi_wait(mpi_transport *t, MPI_Request *requests, int count, int64_t deadline_ns, const char *what,
                       int peer);

heddle_status mpi_exchange_create(void *ctx, void **exchange, const heddle_message *messages, int nmessages, int tag);
heddle_status mpi_exchange_start(void *ctx, void *exchange, const void *src, void *dst);
heddle_status mpi_exchange_test(void *ctx, void *exchange, int *done);
void mpi_exchange_destroy(void *ctx, void *exchange);

/* HEDDLE_TRANSPORT_OPEN: what heddle_comm_open("mpi") calls. */
HEDDLE_API heddle_status heddle_transport_open_v1(heddle_comm **out, const heddle_comm_options *options);

#endif
