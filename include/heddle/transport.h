/* Bring your own message transport: fill in a table, get a communicator.
 *
 * A transport moves strided boxes between ranks as messages and gathers small data. Everything else (peer memory
 * between ranks of one host, path choice, deadlines above a call, plans) is heddle's. docs/extending.md walks through
 * adding one; libheddle_mpi is itself written against this header.
 */
#ifndef HEDDLE_TRANSPORT_H
#define HEDDLE_TRANSPORT_H

#include <heddle/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { HEDDLE_MAX_LOOPS = HEDDLE_MAX_DIMS };

/* One message of an exchange: rows of run_bytes, walked by nloops loops, loop 0 outermost. offset_bytes and strides
 * count from the src buffer (send) or the dst buffer (receive). A sender's and its receiver's rows may be cut
 * differently; the total bytes are equal. Between one pair of ranks messages of one exchange match in order. */
typedef struct heddle_message {
    int peer;
    int is_send;
    int64_t offset_bytes;
    int64_t run_bytes;
    int nloops; /* 0: one run */
    int64_t count[HEDDLE_MAX_LOOPS];
    int64_t stride_bytes[HEDDLE_MAX_LOOPS];
} heddle_message;

/* All functions return heddle_status; on failure they may describe it with heddle_transport_fail. Deadlines are
 * absolute CLOCK_MONOTONIC nanoseconds. */
typedef struct heddle_transport {
    size_t struct_bytes;
    const char *name;
    int rank;
    int size;
    /* recv gets size * bytes in rank order. Must return HEDDLE_ERR_TIMEOUT at the deadline. */
    heddle_status (*allgather)(void *ctx, const void *send, void *recv, size_t bytes, int64_t deadline_ns);
    /* A persistent set of messages; `tag` is equal on all ranks for the same exchange. Called collectively. */
    heddle_status (*exchange_create)(void *ctx, void **exchange, const heddle_message *messages, int nmessages,
                                     int tag);
    heddle_status (*exchange_start)(void *ctx, void *exchange, const void *src, void *dst);
    heddle_status (*exchange_test)(void *ctx, void *exchange, int *done);
    void (*exchange_destroy)(void *ctx, void *exchange);
    /* One message each way, blocking; to or from may be -1 for none. */
    heddle_status (*sendrecv)(void *ctx, const void *send, size_t send_bytes, int to, void *recv, size_t recv_bytes,
                              int from, int64_t deadline_ns);
    /* Tell the other ranks; and look whether somebody told us (*aborted_by = rank or -1, why 0-terminated). */
    heddle_status (*abort_send)(void *ctx, const char *why);
    heddle_status (*abort_poll)(void *ctx, int *aborted_by, char *why, size_t why_bytes);
    void (*destroy)(void *ctx); /* the transport's own state, never what was borrowed */
} heddle_transport;

/* Collective over the transport's ranks. Copies the table; ctx is borrowed until heddle_comm_destroy, which calls
 * destroy(ctx). Ranks on one host (same boot id, user and network namespace) set up shared memory between them unless
 * options->force_messages. HEDDLE_ERR_ARG: a slot is NULL or struct_bytes is wrong. */
HEDDLE_API heddle_status heddle_comm_from_callbacks(heddle_comm **out, const heddle_transport *transport, void *ctx,
                                                    const heddle_comm_options *options);

/* For transports: set heddle_last_error of this thread (printf-like) and return `status`. */
HEDDLE_API heddle_status heddle_transport_fail(heddle_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif

#endif
