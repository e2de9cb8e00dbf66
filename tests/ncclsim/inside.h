/* Inside of the fake NCCL. */
#ifndef HD_NCCLSIM_INSIDE_H
#define HD_NCCLSIM_INSIDE_H

#include "ncclsim.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct transfer {
    struct transfer *next; /* in the order of the calls */
    void *data;
    size_t bytes, done; /* of header and data */
    uint64_t header;    /* the bytes, as they travel */
    int peer, is_send;
} transfer;

/* What a group asks of one communicator. */
typedef struct batch {
    struct batch *next;
    ncclComm_t comm;
    cudaStream_t stream;
    transfer *first, *last;
    int is_kept; /* of a graph, which may run again */
} batch;

struct ncclComm {
    int rank, nranks, device, is_blocking;
    ncclUniqueId id;
    int listener, bell; /* bell: rings for ever once it is aborted */
    int *socket;        /* [nranks] -1: none yet, or this rank */
    pthread_t starter;
    int has_starter;

    pthread_mutex_t lock; /* of all below */
    pthread_cond_t changed;
    ncclResult_t state; /* ncclInProgress: not begun yet */
    char why[256];
    int references, running, graphs; /* graphs: that have work of it */
    int polls;                       /* until what is pending is done */
    batch *pending;                  /* groups not enqueued yet */
    batch *kept;
};

/* control.c */
ncclResult_t ncclsim_begin(void); /* of a call: counted, made to fail */
ncclResult_t ncclsim_begin_group(void);
int ncclsim_is_silent(void);
int ncclsim_version(void);
void ncclsim_count_comm(int more);
void ncclsim_count_abort(void);
/* Where ranks end together: until all those of this process do. */
void ncclsim_await_others(void);
ncclResult_t ncclsim_say(ncclResult_t result, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* comm.c */
void ncclsim_unref(ncclComm_t comm); /* without the lock */
/* The first one stays. */
void ncclsim_fail(ncclComm_t comm, ncclResult_t result, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* meet.c: NULL when all sockets are there; else the communicator has failed. */
void *ncclsim_meet(void *comm);

/* group.c */
ncclResult_t ncclsim_enqueue(batch *b); /* taken over */
void ncclsim_batch_free(batch *b);

#endif
