/* What the files of the MPI adapter share. The adapter sees public headers only, like any transport from outside. */
#ifndef HEDDLE_MPI_TRANSPORT_H
#define HEDDLE_MPI_TRANSPORT_H

#include <heddle/mpi.h>
#include <heddle/sys/transport.h>

enum { MPI_WHY_BYTES = 240, MPI_TAG_NOTE = 1, MPI_TAG_SENDRECV = 2 };

/* What ranks tell one another when something failed (mpi_giveup.c). */
enum { MPI_NOTE_ABORT = 1, MPI_NOTE_QUIET = 2, MPI_NOTE_KINDS };
typedef struct mpi_note {
    int32_t kind; /* 0: nothing came */
    int32_t rank;
    char why[MPI_WHY_BYTES];
} mpi_note;

typedef struct mpi_end {
    int peer;
    int is_send;
    int was_cancelled; /* a receive that was withdrawn before anything came for it */
} mpi_end;

/* Requests on the caller's memory; in the transport's list while MPI has them. */
typedef struct mpi_flight {
    struct mpi_flight *next;
    int count;
    MPI_Request *requests;
    mpi_end *end; /* of every request */
} mpi_flight;

typedef struct mpi_transport {
    MPI_Comm control; /* allgather, sendrecv, notes: duplicates of the caller's, errors returned */
    MPI_Comm bulk;    /* exchanges only, so that their tags are theirs and others can count what they move */
    int rank, size;
    int tag_max;
    int owns_mpi; /* we called MPI_Init_thread, so we finalise */
    int broken;   /* somebody gave up: nothing is started any more, nothing is freed under requests in flight */
    char *bounce; /* allgather's own send and receive area: survives a wait that was given up */
    size_t bounce_bytes;
    mpi_flight *flights;
    int64_t entered_ns;          /* last time an exchange was started */
    int (*interrupt)(void *arg); /* of the options; NULL: nobody asks */
    void *interrupt_arg;
    int64_t asked_ns;

    mpi_note inbox; /* where the next note comes */
    MPI_Request listening;
    mpi_note heard;                /* the first abort; kind 0: nobody told us to give up */
    mpi_note told[MPI_NOTE_KINDS]; /* by kind: what we told the others; kind 0: not yet */
    MPI_Request *note_requests;    /* one per rank and kind told */
    unsigned char *quiet;          /* [size] ranks that said so */
    int said_quiet;
} mpi_transport;

int64_t mpi_now_ns(void);
/* HEDDLE_ERR_TRANSPORT with MPI's own words for `code`. */
heddle_status mpi_fail(const mpi_transport *t, int code, const char *call);

/* A type of exactly `bytes` bytes, contiguous, any size; *count of it are meant. *made: the caller frees it. */
heddle_status mpi_bytes_type(const mpi_transport *t, int64_t bytes, MPI_Datatype *type, int *count, int *made);

/* Finish all requests by the deadline, looking out for an abort. A request that is given up stays in flight. */
heddle_status mpi_wait(mpi_transport *t, MPI_Request *requests, int count, int64_t deadline_ns, const char *what,
                       int peer);

heddle_status mpi_listen(mpi_transport *t); /* post the receive for notes */
heddle_status mpi_look(mpi_transport *t);   /* let MPI move and take the notes that are there */
/* Has a note come since the last look? Costs a load; for places where MPI moved anyway. */
static inline int mpi_has_note(const mpi_transport *t)
{
    return *(const volatile int32_t *)&t->inbox.kind != 0;
}
heddle_status mpi_heard(const mpi_transport *t); /* HEDDLE_ERR_PEER when somebody gave up */
/* Before memory of the caller is handed to MPI: refused when somebody gave up, also if that was a while ago and this
 * rank comes late. */
heddle_status mpi_enter(mpi_transport *t);
heddle_status mpi_abort_send(void *ctx, const char *why);
heddle_status mpi_abort_poll(void *ctx, int *aborted_by, char *why, size_t why_bytes);

void mpi_flight_begin(mpi_transport *t, mpi_flight *flight);
void mpi_flight_end(mpi_transport *t, mpi_flight *flight); /* also if it has not begun */
/* After a failure, when the others were told: all memory of the caller is taken back from MPI. */
heddle_status mpi_withdraw(void *ctx);

heddle_status mpi_exchange_create(void *ctx, void **exchange, const heddle_message *messages, int nmessages, int tag);
heddle_status mpi_exchange_start(void *ctx, void *exchange, const void *src, void *dst);
heddle_status mpi_exchange_test(void *ctx, void *exchange, int *done);
int mpi_exchange_missing(void *ctx, void *exchange, int *peers, int capacity);
void mpi_exchange_destroy(void *ctx, void *exchange);

/* HEDDLE_TRANSPORT_OPEN: what heddle_comm_open("mpi") calls. */
HEDDLE_API heddle_status heddle_transport_open_v1(heddle_comm **out, const heddle_comm_options *options);

#endif
