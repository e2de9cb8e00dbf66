/* A message transport without MPI: the ranks are threads of one process, messages are heap copies in queues. It does
 * what heddle/sys/transport.h asks and nothing more, so that heddle_comm_from_callbacks can be tested anywhere. */
#ifndef FAKE_TRANSPORT_H
#define FAKE_TRANSPORT_H

#include <heddle/sys/transport.h>

enum { FAKE_RANKS = 16 }; /* at most */

typedef struct fake_world fake_world;

fake_world *fake_world_create(int size);
void fake_world_destroy(fake_world *world);

/* Rank `rank`'s table and context; the context is freed by the table's destroy. */
void *fake_rank(fake_world *world, int rank, heddle_transport *table);
/* The n-th call of this slot on this rank fails with HEDDLE_ERR_TRANSPORT (1 = the next); slot "allgather",
 * "exchange_create", "exchange_start", "exchange_test" or "sendrecv". */
void fake_fail_at(void *ctx, const char *slot, int n);

/* What went from rank to rank in exchanges since the beginning. */
int64_t fake_bytes(const fake_world *world, int from, int to);
/* Contexts not yet destroyed, exchanges not yet destroyed: 0 at the end. */
int fake_alive(const fake_world *world);

/* Run fn on `size` ranks, each with its communicator (NULL if opening failed: `opened` says why). Returns the number of
 * ranks whose fn returned other than 0. */
typedef int (*fake_rank_main)(heddle_comm *comm, heddle_status opened, int rank, void *arg);
typedef struct fake_run {
    fake_world *world;
    heddle_comm_options options;
    fake_rank_main fn;
    void (*before)(void *ctx, int rank, heddle_comm_options *options); /* may be NULL */
    void *arg;
} fake_run;
int fake_run_ranks(const fake_run *run, int size);

#endif
