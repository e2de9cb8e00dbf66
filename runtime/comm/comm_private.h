/* Inside of a communicator, shared by the files of this folder.
 *
 * A communicator = ranks + a table of operations + the *group*: the ranks of this host, with control memory that all of
 * them can write. Three kinds of communicator are made of these parts:
 *   threads, shm, self    every rank is in the group; a *hub* in the control memory carries the group operations
 *   callbacks (MPI, ...)  some ranks are elsewhere; the table leads to the transport
 *   axis groups           part of the ranks of another one; share its group
 */
#ifndef HD_COMM_PRIVATE_H
#define HD_COMM_PRIVATE_H

#include "runtime/comm/comm_internal.h"
#include "runtime/comm/ground/ground.h"
#include "runtime/comm/watch.h"
#include "runtime/device/enqueued.h"

enum { HD_RECORD_BYTES = 256 /* what every rank tells the others when something is made collectively */ };

/* --- communicator ------------------------------------------------------------------------------------------------- */

/* Where a rank's device is. */
typedef struct hd_device_place {
    uint64_t process;
    int32_t number;
    char id[44]; /* of it, everywhere */
} hd_device_place;

/* What differs between transports; no slot is NULL but check, relax and destroy, and sendrecv and those of exchanges
 * where there is nothing but the memory of one host (hd_local_ops). `exchange` is the transport's own object. */
typedef struct hd_comm_ops {
    const char *name;
    heddle_status (*allgather)(heddle_comm *comm, const void *send, void *recv, size_t bytes);
    heddle_status (*sendrecv)(heddle_comm *comm, const void *send, size_t send_bytes, int to, void *recv,
                              size_t recv_bytes, int from);
    heddle_status (*exchange_create)(heddle_comm *comm, void **out, const heddle_message *messages, int nmessages,
                                     int tag);
    heddle_status (*exchange_start)(heddle_comm *comm, void *exchange, const void *src, void *dst);
    heddle_status (*exchange_test)(heddle_comm *comm, void *exchange, int *done);
    void (*exchange_destroy)(heddle_comm *comm, void *exchange);
    /* Peers with messages under way; returns how many of at most `capacity`. */
    int (*exchange_missing)(heddle_comm *comm, void *exchange, int *peers, int capacity);
    /* After an abort: nothing of the callers' memory is in the transport's hands any more, or the sentence says what.
     */
    heddle_status (*withdraw)(heddle_comm *comm);
    heddle_status (*abort)(heddle_comm *comm, const char *why); /* ranks outside the group; any thread */
    /* Did a rank outside the group give up? Cheap; asked of a communicator without parent; NULL: there are none. */
    heddle_status (*check)(heddle_comm *comm);
    /* Between two looks at an exchange; NULL: hd_group_relax. Transports whose messages ring no bell must not sleep. */
    void (*relax)(heddle_comm *comm, int round);
    void (*destroy)(heddle_comm *comm); /* comm->ctx only, of a communicator without parent; NULL: it has none */
} hd_comm_ops;

/* The group operations (gather.c says what they return): through the hub where all ranks are in the group, else in
 * envelopes that the transport carries. Chosen once, when the communicator is made. */
typedef struct hd_comm_calls {
    heddle_status (*barrier)(heddle_comm *comm);
    heddle_status (*gather)(heddle_comm *comm, hd_call call, const void *send, void *recv, size_t bytes);
    /* Of a sum: everybody's next part of at most part_bytes; then, until the next call, where a rank's lies. */
    size_t part_bytes;
    heddle_status (*swap)(heddle_comm *comm, uint64_t call, const void *send, size_t bytes);
    const void *(*part)(const heddle_comm *comm, int rank);
} hd_comm_calls;
extern const hd_comm_calls hd_hub_calls;
extern const hd_comm_calls hd_envelope_calls;

/* What a way between ranks can do, as data. */
typedef struct hd_traits {
    heddle_link_class link;
    unsigned spaces;    /* bit 1 << heddle_space */
    int stream_ordered; /* moves in the order of a device's stream */
    int64_t latency_ns; /* 0: not known */
    int64_t bytes_per_s;
} hd_traits;
extern const hd_traits hd_memory_traits; /* loads and stores between ranks of one host */

/* This rank's handle of a hub; present when all ranks of the communicator are in the group. */
typedef struct hd_hub {
    hd_hub_memory **of; /* by rank; NULL: the communicator has no hub */
    uint64_t round;
    uint64_t rounds[2]; /* barriers, gathers */
    hd_block *block;    /* parts: of[rank], given back to the group's keep */
} hd_hub;

/* What every rank tells the others when something is made together. */
typedef struct hd_record {
    int32_t status;
    int32_t number;
    uint64_t name;
    uint64_t extra;
    char text[HD_RECORD_BYTES - 24];
} hd_record;

/* The small part of a group operation without hub: always of one size, so that ranks that ask for different things
 * still meet. */
typedef struct hd_envelope {
    uint64_t call;
    unsigned char data[HD_RECORD_BYTES];
} hd_envelope;

/* Somebody who is asked before every call that counts, and may refuse it. The communicator and its axis groups share
 * it; it ends with the communicator. */
typedef struct hd_breaker {
    heddle_status (*call)(struct hd_breaker *breaker, const char *call);
    void (*destroy)(struct hd_breaker *breaker);
} hd_breaker;

typedef struct hd_comm_nccl hd_comm_nccl;
typedef struct hd_mapping hd_mapping;

struct heddle_comm {
    int rank;
    int size;
    const hd_comm_ops *ops;
    const hd_comm_calls *calls;
    void *ctx;           /* of ops */
    hd_traits messages;  /* to ranks that are not reached */
    heddle_comm *parent; /* axis groups */
    heddle_comm *root;   /* the one without parent */
    int *parent_rank;    /* of every rank; NULL: no parent */
    hd_group *group;     /* owned by the communicator without parent */
    int *member;         /* by rank: group index, -1: not on this host */
    int *local;          /* ranks that reach one another, ascending */
    int nlocal;
    hd_window *window; /* by rank; no bytes: messages only */
    heddle_comm_options options;
    hd_interrupt interrupt;
    hd_hub hub;
    hd_pair_ground pair;        /* only with a hub */
    hd_record *records;         /* one per rank */
    const void **terms;         /* [size] of a sum */
    hd_envelope *envelopes;     /* one per rank; NULL: there is a hub */
    hd_breaker *breaker;        /* NULL: nobody */
    hd_device *device;          /* of the communicator without parent; NULL: none */
    heddle_wire wire;           /* between devices, where there is one */
    hd_comm_nccl *nccl;         /* wire nccl; of the communicator without parent */
    void *lent;                 /* by the caller: a handle of the wire's library. NULL: none */
    hd_sharers sharers;         /* of it */
    hd_watch *watch;            /* NULL: no wire on which devices wait */
    hd_enqueued replays;        /* with a watch: of graphs; of the communicator without parent */
    hd_outlook replays_outlook; /* on them */
    hd_mapping *mappings;       /* device memory of other processes; of the communicator without parent */
    void *in_flight;            /* of the transfers: hd_comm_view */
    hd_exchange *exchanges;     /* all of this communicator and its parts; of the communicator without parent */
    int next_tag;               /* of the communicator without parent */
    int broken;                 /* heddle_status of a group operation that failed half way */
    int64_t stood_ns;           /* hd_comm_stand of a transport that rings no bell */
    char makes[HD_STAND_BYTES]; /* hd_comm_makes; empty: nothing. Of the communicator without parent */
    hd_renewal renewal;         /* its own: of a communicator with hub */
    hd_renewal *renewals;       /* of the communicator without parent */
    int closed;                 /* destroyed, but for the buffers that are out */
    int bound;                  /* cpus_before is to be restored */
    cpu_set_t cpus_before;
    const char *name; /* "shm", for the description */
    char describe[1024];
};

typedef struct hd_comm_parts {
    const char *name; /* "threads", ...; static */
    const char *why;  /* end of the description; copied */
    int rank;
    int size;
    const hd_comm_ops *ops;
    void *ctx;
    const hd_traits *messages;          /* NULL: through memory */
    hd_group *group;                    /* taken over, also on failure */
    const int *member;                  /* by rank; NULL: the group has all ranks in order */
    const heddle_comm_options *options; /* NULL: defaults */
} hd_comm_parts;

/* Collective over the group when all ranks are in it (the hub), otherwise local. On failure ctx stays the caller's. */
heddle_status hd_comm_new(heddle_comm **out, const hd_comm_parts *parts);
heddle_status hd_comm_arrays(heddle_comm *comm); /* parts of making one */
heddle_status hd_hub_arrays(heddle_comm *comm);
void hd_comm_find_local(heddle_comm *comm);
int hd_comm_all_members(const heddle_comm *comm);
heddle_status hd_options_check(heddle_comm_options *out, const heddle_comm_options *options);
int64_t hd_options_deadline_ms(const heddle_comm_options *options); /* while ranks meet */
int64_t hd_comm_deadline_ms(const heddle_comm *comm);
static inline hd_interrupt hd_options_interrupt(const heddle_comm_options *options)
{
    return (hd_interrupt){.ask = options->interrupt, .arg = options->interrupt_arg};
}

extern const hd_comm_ops hd_local_ops; /* all ranks in the group; ctx unused */
extern const hd_comm_ops hd_axis_ops;  /* axis group of a communicator without hub */

/* HEDDLE_ERR_PEER when a rank outside the group gave up; root: a communicator without parent. */
heddle_status hd_comm_check_outside(heddle_comm *root);
/* Waits of its group look at ranks outside and ask its interrupt, where there are such; likewise. */
void hd_comm_set_lookout(heddle_comm *root);

/* The rank's number in the communicator that the user opened: what sentences name. */
static inline int hd_comm_root_rank(const heddle_comm *comm, int rank)
{
    for (; comm->parent != NULL; comm = comm->parent) {
        rank = comm->parent_rank[rank];
    }
    return rank;
}

/* Collective: heddle_comm_attach_device; folder: of its library, NULL: as ever. mine: how this rank's check of its
 * arguments went. */
heddle_status hd_comm_attach(heddle_comm *comm, const char *device, heddle_wire wire, const char *folder,
                             heddle_status mine);

/* A wire, of HD_WIRES. */
typedef struct hd_wire {
    /* Can this rank take part? place: of every rank's device. Any failure means no, and its sentence says why. Not
     * collective. NULL: it can. */
    heddle_status (*check)(const heddle_comm *comm, const hd_device *device, const hd_device_place *place);
    /* Collective: what it stands on, which ends with the communicator. NULL: nothing. */
    heddle_status (*open)(heddle_comm *comm, hd_device *device);
    /* Has anybody given up? Never waits. */
    heddle_status (*look)(heddle_comm *comm);
    int devices_wait; /* for one another: no thread of the host could end that */
} hd_wire;
const hd_wire *hd_comm_wire_of(const heddle_comm *comm); /* without a device that of the host */
#define HD_WIRE_OF(name, wire) extern const hd_wire hd_wire_##wire;
HD_WIRES(HD_WIRE_OF)
#undef HD_WIRE_OF

void hd_comm_close_nccl(heddle_comm *comm); /* of the wire nccl */
/* Collective. *place: of every rank, the caller's to free. */
heddle_status hd_comm_gather_places(hd_device_place **place, hd_sharers *sharers, heddle_comm *comm,
                                    const hd_device *device);
/* In this process, where addresses are the same. Not by pids, which two containers may have in common. */
int hd_comm_is_here(const heddle_comm *comm, int rank);
/* Collective: can every rank map the device memory of all others, and do its kernels' stores arrive there? Otherwise
 * the sentence says where they do not. The device is left where they did not end. */
heddle_status hd_comm_prove_stores(heddle_comm *comm, hd_device *device);
/* replay.c: of the communicator without parent, with its watch. close: before that ends; waits until none is under way.
 */
heddle_status hd_replays_open(heddle_comm *comm, const hd_device *device);
void hd_replays_close(heddle_comm *comm);
heddle_status hd_replay(heddle_comm *comm, void *graph, heddle_stream stream);
/* Collective: heddle_comm_lend_peers; mine: how this rank's check of its arguments went. */
heddle_status hd_comm_lend_peers(heddle_comm *comm, void *const *at, size_t bytes, heddle_status mine);
/* Lets go of other processes' device memory, and waits for a moment until they have let go of this one's. */
void hd_comm_close_maps(heddle_comm *comm);

void hd_hub_renew_with(heddle_comm *comm); /* with heddle_comm_reset */
heddle_status hd_comm_reset(heddle_comm *comm);
/* heddle_comm_abort, of a communicator that is one. */
heddle_status hd_comm_abort(heddle_comm *comm, const char *why);

/* Allgather of `own` (its status and text are filled in from `mine`). Returns `mine` if that failed; otherwise
 * HEDDLE_ERR_PEER when another rank's failed; comm->records holds everybody's afterwards. */
heddle_status hd_comm_agree_with(heddle_comm *comm, heddle_status mine, hd_record *own);

/* The name of a place in a window is its offset plus one, the same in every process; 0 names nothing: not all of it
 * lies in the window. Zero bytes lie anywhere. */
uint64_t hd_window_name(hd_window window, const void *memory, size_t bytes);
void *hd_window_at(hd_window window, uint64_t name);

/* A link over all ranks of a communicator with hub, whatever the options say about reaching. It is part of other calls:
 * its posts and waits do not count as calls (faults). */
heddle_status hd_link_create_all(hd_link **out, heddle_comm *comm);

/* Group operations (gather.c), with hub or without. HEDDLE_ERR_PEER when somebody has given up, HEDDLE_ERR_MISMATCH on
 * every rank when they do not all do the same. `bytes` in a call's word are those of the whole operation. */
static inline uint64_t hd_call_word(hd_call call, int dtype, size_t bytes)
{
    return (uint64_t)bytes << 12 | (uint64_t)dtype << 4 | (uint64_t)call;
}
static inline heddle_status hd_comm_gather(heddle_comm *comm, hd_call call, const void *send, void *recv, size_t bytes)
{
    return comm->calls->gather(comm, call, send, recv, bytes);
}
/* "an allgather of 8 bytes" */
void hd_call_say(char *text, size_t bytes, uint64_t call);
/* Fails with the words of two ranks that differ. */
heddle_status hd_calls_differ(const heddle_comm *comm, int rank, uint64_t call, int first, uint64_t first_call);
/* HEDDLE_ERR_PEER when somebody gave up: at the entry of every operation. */
heddle_status hd_comm_enter(heddle_comm *comm);

/* Host of a rank when `hosts` hosts are pretended: blocks of ranks, the first ones one larger. */
int hd_pretended_host(int rank, int size, int hosts);
void hd_comm_bind_and_describe(heddle_comm *comm, const char *why);
/* Why `rank` is reached by loads and stores, or why only by messages. */
void hd_comm_say_reach(char *text, size_t bytes, const heddle_comm *comm, int rank);

/* A buffer, or the communicator itself, has let go of the group: the last one ends both. Any thread; comm is looked at
 * by the last only. */
void hd_comm_drop(heddle_comm *comm, hd_group *group);
/* Taken apart although buffers are out: they go as well. */
void hd_comm_end(heddle_comm *comm);

/* faults: whoever breaks calls on purpose is asked before each */
static inline heddle_status hd_fault_point(heddle_comm *comm, const char *call)
{
    return __builtin_expect(comm->breaker != NULL, 0) ? comm->breaker->call(comm->breaker, call) : HEDDLE_OK;
}

#endif
