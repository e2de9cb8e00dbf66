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

#include "runtime/base/base.h"
#include "runtime/comm/arena_limits.h"
#include "runtime/comm/comm_internal.h"

#include <poll.h>
#include <sched.h>
#include <stdatomic.h>

enum {
    HD_LINE_BYTES = 128,         /* two cache lines: the adjacent-line prefetcher shares pairs */
    HD_OUTBOX_BYTES = 32768,     /* one half of a rank's outbox in a hub */
    HD_WHY_BYTES = 1024,         /* sentence of an abort */
    HD_RECORD_BYTES = 256,       /* what every rank tells the others when something is made collectively */
    HD_PEER_CHECK_NS = 20000000, /* how often a waiting rank looks whether its peers live */
    HD_SLEEP_NS = 20000000       /* longest sleep without looking around */
};

/* --- shared memory of one rank ----------------------------------------------------------------------------------- */

/* What a rank does in a round of group operations, as one word that all ranks compare: see hd_call_word. */
typedef enum hd_call { HD_CALL_BARRIER, HD_CALL_ALLGATHER, HD_CALL_ALLREDUCE, HD_CALL_AGREE } hd_call;

typedef struct hd_outbox {
    uint64_t call;
    unsigned char data[HD_OUTBOX_BYTES];
} hd_outbox;

/* Meeting point of the ranks of one communicator. Every rank has one; the counters of rank 0's are the ones that count.
 * Arriving at round k+1 proves that the outboxes of round k were read, so two halves are enough. Barriers and gathers
 * have a counter each: a rank in the one and a rank in the other do not let each other through. */
typedef struct hd_hub_memory {
    _Alignas(HD_LINE_BYTES) _Atomic uint64_t counter[2]; /* arrivals since the beginning, all ranks */
    _Alignas(HD_LINE_BYTES) _Atomic uint64_t arrived;    /* 2 * rounds this rank has entered + 1 for a gather */
    _Alignas(HD_LINE_BYTES) hd_outbox outbox[2];
} hd_hub_memory;

typedef enum hd_rank_state { HD_RANK_RUNS = 0, HD_RANK_LEFT = 1 } hd_rank_state;

typedef struct hd_control {
    _Alignas(HD_LINE_BYTES) _Atomic uint32_t doorbell; /* futex */
    _Atomic uint32_t sleeping;                         /* 1: ring after posting */
    _Alignas(HD_LINE_BYTES) _Atomic int alarm;         /* 1 + group index of the rank that gave up; 0: none */
    _Atomic int state;                                 /* hd_rank_state */
    _Atomic int why_state;                             /* 0 free, 1 being written, 2 readable (wait.c) */
    _Atomic int moving;                                /* 1: this rank may be copying to or from its peers' memory */
    cpu_set_t cpus;                                    /* where this rank may run; written before anybody else looks */
    char why[HD_WHY_BYTES];
    hd_hub_memory hub;
} hd_control;

/* --- the ranks of one host: this rank's handle ----------------------------------------------------------------------
 */

typedef struct hd_team hd_team; /* threads: what they share, freed by the last */

/* HELD: given back after an abort, when a peer may still be in the middle of a copy. */
typedef enum hd_block_use { HD_BLOCK_FREE = 0, HD_BLOCK_USED = 1, HD_BLOCK_HELD = 2 } hd_block_use;

/* A piece of peer-reachable memory; private bookkeeping. */
typedef struct hd_block {
    struct hd_block *next;
    unsigned char *memory;
    size_t bytes;
    int used;            /* hd_block_use; blocks of an arena lie in order of address and cover it */
    uint64_t generation; /* link inboxes only */
} hd_block;

typedef struct hd_group {
    volatile char *awake; /* 0: this rank has left; a page that also reads 0 in a fork of the process that made it */
    pid_t maker;
    int left;        /* hd_group_leave was called */
    int buffers_out; /* of heddle_buffer_alloc */
    int n;
    int me;               /* index of this rank */
    int *rank;            /* rank in the communicator the group was made for (for sentences) */
    hd_control **control; /* of every member, as mapped here */
    unsigned char **base; /* arenas as mapped here; NULL: threads */
    size_t *arena_bytes;  /* of every member */
    pid_t *pid;
    struct pollfd *life;                /* pidfd of every member, -1: not watched */
    int *lock_fd;                       /* members without pidfd: their arena, whose record lock ends with them; -1 */
    hd_team *team;                      /* threads */
    int arena_fd;                       /* -1: threads */
    char arena_why[HD_ARENA_WHY_BYTES]; /* what made the arena as small as it is */
    hd_block *blocks;                   /* arena: all; threads: buffers given out */
    hd_block *kept;                     /* link inboxes waiting for another link: a late post may still hit them */
    int spins;                          /* turns of spinning before yielding; 0 when the ranks outnumber the cores */
    int armed;                          /* control->sleeping is set */
    uint32_t armed_value;
    int64_t checked_ns; /* last look at the peers' lives */
    int dead;           /* 1 + index of a member that died; 0 */
} hd_group;

typedef struct hd_join {
    const char *key; /* the same on all members, of nobody else on this host; shorter than HD_KEY_BYTES */
    int n;
    int me;
    const int *ranks;        /* names of the members in sentences; NULL: their index */
    int64_t deadline_ns;     /* absolute */
    int64_t arena_bytes;     /* 0: physical memory */
    const _Atomic int *dead; /* 1 + index of a member that is known to have ended; NULL: nobody looks */
    /* Asked before the members meet, with what this one's own memory came to: whether all are able to. NULL: nobody to
     * ask. */
    heddle_status (*agree)(void *agree_ctx, heddle_status mine);
    void *agree_ctx;
} hd_join;

/* Processes of one host meet and map each other's arenas. Collective over the members. */
heddle_status hd_group_join(hd_group **out, const hd_join *join);
/* Threads: one team, then one handle per rank. */
heddle_status hd_team_create(hd_team **out, int n);
void hd_team_release(hd_team *team); /* the creator's share */
heddle_status hd_group_of_team(hd_group **out, hd_team *team, int me);
/* Not collective; says that this rank left, lets go of its peers' memory and keeps its own. */
void hd_group_leave(hd_group *group);
/* Leaves, and frees all memory. NULL is legal. In a fork of the process that made the group nobody is told anything. */
void hd_group_destroy(hd_group *group);

heddle_status hd_group_new(hd_group **out, int n, int me, const int *ranks); /* parts of the above */
void hd_group_free(hd_group *group);

/* memory */
heddle_status hd_arena_create(hd_group *group, int64_t arena_bytes);
heddle_status hd_arena_map(hd_group *group, int index, int fd);
void hd_arena_leave(hd_group *group); /* keeps this rank's own mapped */
void hd_arena_destroy(hd_group *group);
heddle_status hd_group_alloc(hd_group *group, void **out, size_t bytes);
int hd_group_release(hd_group *group, void *memory); /* 0: no such buffer is out */
uint64_t hd_group_export(const hd_group *group, const void *memory, size_t bytes);
void *hd_group_import(const hd_group *group, int index, uint64_t name);
/* Memory that a peer may still touch a little later is not freed but kept for the next user of the same size. */
heddle_status hd_group_take(hd_group *group, hd_block **out, size_t bytes, int *fresh);
void hd_group_keep(hd_group *group, hd_block *block); /* NULL is legal */
void hd_team_adopt(hd_team *team, hd_block *blocks);  /* frees them when the last thread has left */

/* waiting */
void hd_group_set_spins(hd_group *group);
void hd_group_relax(hd_group *group, int round);
void hd_group_disarm(hd_group *group);
void hd_group_ring(hd_group *group, int index); /* after a seq_cst store that `index` may be waiting for */
/* HEDDLE_ERR_PEER when a member gave up or died; looks at lives at most every HD_PEER_CHECK_NS. */
heddle_status hd_group_check(hd_group *group);
/* HEDDLE_ERR_PEER for a wait (`what`) on a member that has left: names who gave up or died before that, else it. */
heddle_status hd_group_closed(hd_group *group, int index, const char *what);
void hd_group_raise(hd_group *group, const char *why); /* any thread */
void hd_group_quiesce(hd_group *group);                /* hd_comm_quiesce */
/* A fork of the process that made the group? Asks the kernel. */
int hd_group_is_fork(const hd_group *group);
/* HEDDLE_ERR_ARG in a fork, and when this rank has left. Costs a read. */
heddle_status hd_group_disowned(const hd_group *group, const char *call);
static inline heddle_status hd_group_owned(const hd_group *group, const char *call)
{
    return __builtin_expect(*group->awake != 0, 1) ? HEDDLE_OK : hd_group_disowned(group, call);
}
static inline int hd_group_left(const hd_group *group, int index)
{
    return atomic_load(&group->control[index]->state) == HD_RANK_LEFT;
}

/* --- communicator ----------------------------------------------------------------------------------------------------
 */

/* What differs between transports; no slot but relax is NULL. `exchange` is the transport's own object. */
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
    heddle_status (*check)(heddle_comm *comm);                  /* did a rank outside the group give up? cheap */
    /* Between two looks at an exchange; NULL: hd_group_relax. Transports whose messages ring no bell must not sleep. */
    void (*relax)(heddle_comm *comm, int round);
    void (*destroy)(heddle_comm *comm); /* comm->ctx only */
} hd_comm_ops;

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

typedef struct hd_fault hd_fault;

struct heddle_comm {
    int rank;
    int size;
    const hd_comm_ops *ops;
    void *ctx;           /* of ops */
    heddle_comm *parent; /* axis groups */
    int *parent_rank;    /* of every rank; NULL: no parent */
    hd_group *group;     /* owned by the communicator without parent */
    int *member;         /* by rank: group index, -1: not on this host */
    int *local;          /* ranks that reach one another, ascending */
    int nlocal;
    int *local_index; /* by rank: position in local, -1: messages only */
    heddle_comm_options options;
    hd_hub hub;
    hd_link *pair;       /* sendrecv between members of the group; only with a hub */
    uint64_t *pair_sent; /* by rank */
    uint64_t *pair_received;
    unsigned char *pair_stage; /* two halves of HD_OUTBOX_BYTES, for memory that peers cannot reach; NULL: threads */
    hd_record *records;        /* one per rank */
    hd_envelope *envelopes;    /* one per rank; NULL: there is a hub */
    hd_fault *fault;
    void *in_flight;        /* of the reshards: hd_comm_in_flight */
    hd_exchange *exchanges; /* all of this communicator and its parts; of the communicator without parent */
    int next_tag;           /* of the communicator without parent */
    int broken;             /* heddle_status of a group operation that failed half way */
    int closed;             /* destroyed, but for the buffers that are out */
    int bound;              /* cpus_before is to be restored */
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

extern const hd_comm_ops hd_local_ops; /* all ranks in the group; ctx unused */
extern const hd_comm_ops hd_part_ops;  /* axis group of a communicator without hub */

static inline heddle_comm *hd_comm_root(heddle_comm *comm)
{
    while (comm->parent != NULL) {
        comm = comm->parent;
    }
    return comm;
}

/* The rank's number in the communicator that the user opened: what sentences name. */
static inline int hd_comm_root_rank(const heddle_comm *comm, int rank)
{
    for (; comm->parent != NULL; comm = comm->parent) {
        rank = comm->parent_rank[rank];
    }
    return rank;
}

/* Allgather of `own` (its status and text are filled in from `mine`). Returns `mine` if that failed; otherwise
 * HEDDLE_ERR_PEER when another rank's failed; comm->records holds everybody's afterwards. */
heddle_status hd_comm_agree_with(heddle_comm *comm, heddle_status mine, hd_record *own);

/* One turn's look around in a wait loop, for turns where hd_wait_looks says so: did a rank give up, die, is it late? */
static inline int hd_wait_looks(const hd_group *group, int round)
{
    return round > 0 && (round >= group->spins || (round & 255) == 255);
}
heddle_status hd_wait_look(heddle_comm *comm, int64_t *deadline_ns, int *late);

/* links over all ranks of a communicator with hub, whatever the options say about reaching */
heddle_status hd_link_create_all(hd_link **out, heddle_comm *comm);

/* A post between linked ranks, not counted as a call of its own (faults). */
void hd_link_put(hd_link *link, int peer, int slot, uint64_t sequence, const uint64_t *words, int nwords);
/* Memory of threads is gone when its owner gave up and freed it, so a reader claims a message before it reads, and a
 * sender that gives up revokes it. Each returns 1 on success: exactly one of the two succeeds per sequence number. */
int hd_link_claim(hd_link *link, int sender, uint64_t sequence);
int hd_link_revoke(hd_link *link, int reader, uint64_t sequence);

/* Group operations (gather.c), with hub or without. HEDDLE_ERR_PEER when somebody has given up, HEDDLE_ERR_MISMATCH on
 * every rank when they do not all do the same. `bytes` in a call's word are those of the whole operation. */
static inline uint64_t hd_call_word(hd_call call, int dtype, size_t bytes)
{
    return (uint64_t)bytes << 12 | (uint64_t)dtype << 4 | (uint64_t)call;
}
heddle_status hd_comm_barrier(heddle_comm *comm);
heddle_status hd_comm_gather(heddle_comm *comm, hd_call call, const void *send, void *recv, size_t bytes);
heddle_status hd_comm_sum(heddle_comm *comm, void *data, size_t elems, heddle_dtype dtype);
/* Fails with the words of two ranks that differ. */
heddle_status hd_calls_differ(const heddle_comm *comm, int rank, uint64_t call, int first, uint64_t first_call);
/* HEDDLE_ERR_PEER when somebody gave up: at the entry of every operation. */
heddle_status hd_comm_enter(heddle_comm *comm);

/* hub */
heddle_status hd_hub_barrier(heddle_comm *comm);
heddle_status hd_hub_gather(heddle_comm *comm, hd_call call, const void *send, void *recv, size_t bytes);
heddle_status hd_hub_sum(heddle_comm *comm, void *data, size_t elems, heddle_dtype dtype);
heddle_status hd_pair_sendrecv(heddle_comm *comm, const void *send, size_t send_bytes, int to, void *recv,
                               size_t recv_bytes, int from);

/* Taken apart although buffers are out: they go as well. */
void hd_comm_end(heddle_comm *comm);

/* opening */
heddle_status hd_open_shm(heddle_comm **out, const heddle_comm_options *options, const char *why);
heddle_status hd_open_self(heddle_comm **out, const heddle_comm_options *options, const char *why);
heddle_status hd_open_module(heddle_comm **out, const char *name, const heddle_comm_options *options);

/* machine */
void hd_topology_load(void); /* once per process; tens of milliseconds */
size_t hd_topology_cache_bytes(int shared);
/* Restrict the calling thread to its share of the cores it may use. Returns the number of cores, 0: left alone. */
int hd_topology_bind(heddle_bind bind, int index, int n, cpu_set_t *before);

/* faults */
heddle_status hd_fault_parse(hd_fault **out, const char *where, const char **inner); /* *out NULL: no fault(...) */
void hd_fault_destroy(hd_fault *fault);
heddle_status hd_fault_count(heddle_comm *comm, const char *call);
void hd_fault_attach(heddle_comm *comm, hd_fault *fault); /* takes it over */
static inline heddle_status hd_fault_point(heddle_comm *comm, const char *call)
{
    return __builtin_expect(comm->fault != NULL, 0) ? hd_fault_count(comm, call) : HEDDLE_OK;
}

#endif
