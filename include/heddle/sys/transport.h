/* Bring your own message transport: fill in a table, get a communicator.
 *
 * A transport moves strided boxes between ranks as messages and gathers small data. Everything else (peer memory
 * between ranks of one host, path choice, plans, byte counts) is heddle's. docs/extending.md walks through adding one;
 * libheddle_mpi is itself written against this header and no other.
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
 * differently; the total bytes are equal, and bytes travel in the order the loops walk them. Between two ranks
 * messages of one exchange match in order. A message of zero bytes is no message, on both ends alike. */
typedef struct heddle_message {
    int peer;
    int is_send;
    int64_t offset_bytes;
    int64_t run_bytes;
    int nloops; /* 0: one run */
    int64_t count[HEDDLE_MAX_LOOPS];
    int64_t stride_bytes[HEDDLE_MAX_LOOPS];
} heddle_message;

/* The table. All functions return heddle_status; on failure they describe it with heddle_set_error. Deadlines are
 * absolute CLOCK_MONOTONIC nanoseconds. All functions are called by the thread that uses the communicator, one at a
 * time; heddle passes an abort from another thread on by itself. A function that blocks looks out for an abort itself
 * and then returns HEDDLE_ERR_PEER naming the rank; it also asks options->interrupt itself, as heddle cannot meanwhile
 * (heddle/comm.h), and on "yes" returns HEDDLE_ERR_INTERRUPTED. After an error of waiting only abort_send, abort_poll,
 * exchange_destroy and destroy are called again. */
typedef struct heddle_transport {
    size_t struct_bytes; /* set to sizeof(heddle_transport), see heddle/status.h */
    const char *name;    /* one word, for heddle_comm_describe; copied */
    int rank;            /* 0 <= rank < size */
    int size;            /* 1..HEDDLE_COMM_MAX_RANKS */

    /* recv gets size * bytes in rank order; blocking, collective, also a barrier. Small data: kilobytes per rank.
     * Returns HEDDLE_ERR_TIMEOUT at the deadline and does not touch recv afterwards. */
    heddle_status (*allgather)(void *ctx, const void *send, void *recv, size_t bytes, int64_t deadline_ns);

    /* A persistent set of messages, this rank's sends and receives in any order; `messages` is only valid during the
     * call. `tag` (0..32767) is equal on all ranks for the same exchange and keeps exchanges apart. Called
     * collectively, but must not wait for other ranks. All that is slow (types, registration, memory) belongs here. */
    heddle_status (*exchange_create)(void *ctx, void **exchange, const heddle_message *messages, int nmessages,
                                     int tag);
    /* Start all messages and return at once. src and dst stay valid until exchange_test says done. Several exchanges
     * may be in flight, one execution of each. Never allocates. A rank may start the next execution before its peers
     * have finished this one: executions of one exchange match in order. */
    heddle_status (*exchange_start)(void *ctx, void *exchange, const void *src, void *dst);
    /* Make progress; *done = 1 when src may be overwritten and dst is complete. Called in a loop, without waiting. */
    heddle_status (*exchange_test)(void *ctx, void *exchange, int *done);
    /* Not collective. After a failure messages may still be in flight: withdraw them, or make sure that dst is not
     * touched any more. */
    void (*exchange_destroy)(void *ctx, void *exchange);

    /* One message each way, blocking; to or from may be -1 for none, and either may be this rank itself. Sizes are not
     * limited to int; heddle has compared them: both sides name the same. A send of up to 1 KiB returns without waiting
     * for its receiver. Messages between two ranks match in order, apart from those of exchanges. After a
     * failure neither memory is touched any more. */
    heddle_status (*sendrecv)(void *ctx, const void *send, size_t send_bytes, int to, void *recv, size_t recv_bytes,
                              int from, int64_t deadline_ns);

    /* Tell all other ranks that this one gives up; must not wait for them. */
    heddle_status (*abort_send)(void *ctx, const char *why);
    /* Has somebody told us? *aborted_by = its rank or -1, why 0-terminated. Cheap: called in wait loops. */
    heddle_status (*abort_poll)(void *ctx, int *aborted_by, char *why, size_t why_bytes);

    void (*destroy)(void *ctx); /* the transport's own state, never what was borrowed */

    /* Optional from here on: NULL, or a struct_bytes that ends before. */

    /* After a failure and after abort_send: take src and dst of all exchanges in flight back. When it returns HEDDLE_OK
     * they are neither read nor written any more. Bounded by a few seconds; where a message that has half arrived
     * cannot be withdrawn it fails, and the sentence says whose. Afterwards only abort_poll, exchange_destroy and
     * destroy are called. NULL: exchange_destroy is called instead. */
    heddle_status (*withdraw)(void *ctx);
    /* Peers with which the exchange still has messages under way, for sentences; at most `capacity` are written.
     * Returns how many. */
    int (*exchange_missing)(void *ctx, void *exchange, int *peers, int capacity);

    /* What the messages of exchanges can do, for heddle_comm_get_peer; 0: not known. Figures are the author's: heddle
     * measures none, and chooses nothing by them. */
    heddle_link_class link;
    unsigned spaces; /* bit 1 << heddle_space: where src and dst may lie; 0: host memory. Without it: refused */
    int stream_ordered;
    int64_t latency_ns;
    int64_t bytes_per_s;
} heddle_transport;

/* Collective over the transport's ranks. Copies the table; ctx belongs to the communicator from success on:
 * heddle_comm_destroy calls destroy(ctx). On failure ctx is still the caller's and destroy has not been called. Ranks
 * on one host (same boot id, user and network namespace) set up shared memory between them unless
 * options->force_messages; options->pretend_hosts splits them into that many blocks first. options may be NULL.
 * HEDDLE_ERR_ARG: a slot is NULL, rank, size, struct_bytes or what the messages can do is wrong. HEDDLE_ERR_TIMEOUT:
 * not all ranks came. */
HEDDLE_CHECKED heddle_status heddle_comm_from_callbacks(heddle_comm **out, const heddle_transport *transport, void *ctx,
                                                        const heddle_comm_options *options);

/* What heddle_comm_open(NAME) looks for in the adapter library libheddle_NAME: open the communicator that this process
 * was started into. */
#define HEDDLE_TRANSPORT_OPEN "heddle_transport_open_v1"
typedef heddle_status (*heddle_transport_open_fn)(heddle_comm **out, const heddle_comm_options *options);

#ifdef __cplusplus
}
#endif

#endif
