/* The ground that communicators stand on: the *group*, the ranks of one host with control memory that all of them can
 * write. How they meet, what memory they reach, how they wait, how they notice one that gave up or died. Nothing here
 * knows of a communicator. */
#ifndef HD_COMM_GROUND_H
#define HD_COMM_GROUND_H

#include "runtime/base/base.h"
#include "runtime/comm/ground/arena_limits.h"

#include <heddle/comm.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/types.h>

enum {
    HD_LINE_PAIR_BYTES = 128,    /* two cache lines: the adjacent-line prefetcher shares pairs */
    HD_OUTBOX_BYTES = 32768,     /* one half of a rank's outbox in a hub */
    HD_WHY_BYTES = 1024,         /* sentence of an abort */
    HD_PEER_CHECK_NS = 20000000, /* how often a waiting rank looks whether its peers live */
    HD_SLEEP_NS = 20000000,      /* longest sleep without looking around */
    HD_STAND_PEERS = 8,          /* ranks that one rank waits for, as far as it says so */
    HD_STAND_BYTES = 384         /* of what it says of the call that it is in */
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
    _Alignas(HD_LINE_PAIR_BYTES) _Atomic uint64_t counter[2]; /* arrivals since the beginning, all ranks */
    _Alignas(HD_LINE_PAIR_BYTES) _Atomic uint64_t arrived;    /* 2 * rounds this rank has entered + 1 for a gather */
    _Alignas(HD_LINE_PAIR_BYTES) hd_outbox outbox[2];
} hd_hub_memory;

/* What a rank that waits says of itself (standing.c). */
typedef struct hd_standing {
    _Alignas(HD_LINE_PAIR_BYTES) _Atomic uint64_t turn; /* odd: being written. Another one when anything has come */
    _Atomic uint64_t looks;                             /* in vain, since the beginning */
    _Atomic int npeers, is_slow;
    _Atomic int peer[HD_STAND_PEERS];
    _Atomic uint64_t text[HD_STAND_BYTES / sizeof(uint64_t)];
} hd_standing;

typedef enum hd_rank_state { HD_RANK_RUNS = 0, HD_RANK_LEFT = 1 } hd_rank_state;

typedef struct hd_control {
    _Alignas(HD_LINE_PAIR_BYTES) _Atomic uint32_t doorbell; /* futex */
    _Atomic uint32_t sleeping;                              /* 1: ring after posting */
    _Alignas(HD_LINE_PAIR_BYTES) _Atomic int alarm;         /* 1 + group index of the rank that gave up; 0: none */
    _Atomic int state;                                      /* hd_rank_state */
    _Atomic int why_state;                                  /* 0 free, 1 being written, 2 readable (lives.c) */
    _Atomic int why_status;  /* HEDDLE_ERR_MISMATCH: `why` is what ranks ask for; HEDDLE_ERR_PEER: one gave up */
    _Atomic int moving;      /* 1: this rank may be copying to or from its peers' memory */
    _Atomic int on_device;   /* likewise a device of its: things that are enqueued there */
    _Atomic int maps;        /* 1: it has device memory of others mapped */
    _Atomic int64_t taken;   /* of the first member's: bytes that members are about to use; see hold in arena.c */
    _Atomic uint64_t resets; /* meet_again.c */
    uint64_t process;        /* this rank's; written before anybody else looks, as is */
    cpu_set_t cpus;          /* where this rank may run */
    char why[HD_WHY_BYTES];
    hd_standing standing;
    hd_hub_memory hub;
} hd_control;

/* --- the ranks of one host: this rank's handle -------------------------------------------------------------------- */

typedef struct hd_team hd_team; /* threads: what they share, freed by the last */

/* HELD: given back after an abort, when a peer may still be in the middle of a copy. */
typedef enum hd_block_use { HD_BLOCK_FREE = 0, HD_BLOCK_USED = 1, HD_BLOCK_HELD = 2 } hd_block_use;

/* What the others reach of a rank's memory, as mapped in this process: its arena, or, between threads, all; 0 bytes:
 * none. */
typedef struct hd_window {
    uintptr_t base;
    size_t bytes;
} hd_window;

/* A piece of peer-reachable memory; private bookkeeping. */
typedef struct hd_block {
    struct hd_block *next;
    unsigned char *memory;
    size_t bytes;
    int used;            /* hd_block_use; blocks of an arena lie in order of address and cover it */
    uint64_t generation; /* link inboxes only */
} hd_block;

/* What waits look at besides the members. */
typedef struct hd_lookout {
    heddle_status (*look)(void *arg); /* NULL: nothing; not HEDDLE_OK ends the wait */
    void *arg;
} hd_lookout;

/* A rank that may be one of those that wait for one another, and what was noted of it. */
typedef struct hd_suspect {
    int index, noted;
    uint64_t turn, looks;
} hd_suspect;

typedef struct hd_group {
    volatile char *awake; /* 0: this rank has left; a page that also reads 0 in a fork of the process that made it */
    pid_t maker;
    int left;            /* hd_group_leave was called */
    _Atomic int holders; /* the communicator, and each buffer of heddle_buffer_alloc that is out */
    int n;
    int me;               /* index of this rank */
    int *rank;            /* rank in the communicator the group was made for (for sentences) */
    hd_control **control; /* of every member, as mapped here */
    hd_window *window;    /* of every member; threads: the whole address space */
    pid_t *pid;
    struct pollfd *life;                /* pidfd of every member, -1: not watched */
    int *lock_fd;                       /* members without pidfd: their arena, whose record lock ends with them; -1 */
    hd_team *team;                      /* threads */
    int arena_fd;                       /* -1: threads */
    char arena_why[HD_ARENA_WHY_BYTES]; /* what made the arena as small as it is */
    hd_block *blocks;                   /* arena: all; threads: buffers given out */
    pthread_mutex_t lock;               /* of blocks: any thread may give one back */
    hd_block *kept;                     /* link inboxes waiting for another link: a late post may still hit them */
    int spins;                          /* turns of spinning before yielding; 0 when the ranks outnumber the cores */
    int armed;                          /* control->sleeping is set */
    uint32_t armed_value;
    int64_t checked_ns; /* last look at the peers' lives */
    int dead;           /* 1 + index of a member that died; 0 */
    uint64_t resets;    /* that this rank has been through */
    int stands;         /* control->standing says so */
    uint64_t stand_key;
    int suspicion;       /* how far standing.c is */
    hd_suspect *suspect; /* [n] */
    hd_lookout lookout;
} hd_group;

/* What ends a wait because the program says so (heddle_comm_options.interrupt). */
typedef struct hd_interrupt {
    int (*ask)(void *arg); /* NULL: nobody */
    void *arg;
    int64_t asked_ns; /* when it was last asked */
} hd_interrupt;

typedef struct hd_join {
    const char *key; /* the same on all members, of nobody else on this host */
    int n;
    int me;
    const int *ranks;        /* names of the members in sentences; NULL: their index */
    int64_t deadline_ns;     /* absolute */
    int64_t arena_bytes;     /* 0: physical memory */
    const _Atomic int *dead; /* 1 + index of a member that is known to have ended; NULL: nobody looks */
    hd_interrupt interrupt;  /* while the members meet */
    /* Has one of them given up? Asked while they meet. NULL: nobody would hear of it. */
    heddle_status (*look)(void *ctx);
    void *ctx;
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
void hd_group_release_held(hd_group *group);         /* no peer copies any more */
/* Memory that a peer may still touch a little later is not freed but kept for the next user of the same size. */
heddle_status hd_group_take(hd_group *group, hd_block **out, size_t bytes, int *fresh);
void hd_group_keep(hd_group *group, hd_block *block); /* NULL is legal */
void hd_team_adopt(hd_team *team, hd_block *blocks);  /* frees them when the last thread has left */

/* waiting, and looking around meanwhile (wait.c) */
void hd_group_set_spins(hd_group *group);
void hd_group_relax(hd_group *group, int round);
void hd_group_disarm(hd_group *group);
void hd_group_ring(hd_group *group, int index); /* after a seq_cst store that `index` may be waiting for */
void hd_group_wake(hd_group *group, int index); /* whether it sleeps or not */
/* 1: turn `round` of a wait looks around for ranks that gave up, died or are late. */
int hd_group_looks(const hd_group *group, int round);
int hd_group_left(const hd_group *group, int index); /* it has closed */
/* HEDDLE_ERR_PEER when a member gave up or died; looks at lives at most every HD_PEER_CHECK_NS. */
heddle_status hd_group_check(hd_group *group);
/* What such a turn looks at: the members, the group's lookout, the clock. *deadline_ns 0: limit_ms from now. */
heddle_status hd_group_look(hd_group *group, int64_t limit_ms, int64_t *deadline_ns, int *late);
/* 1: the wait is to end. Asks at most every 10 ms. */
int hd_interrupted(hd_interrupt *interrupt);

/* who is still there (lives.c) */
void hd_group_look_at_lives(hd_group *group);
heddle_status hd_group_end(const hd_group *group); /* HEDDLE_ERR_PEER: who gave up or died; somebody has */
/* 1: a member gave up or died. For another thread than the rank's, whose copies `life` are. */
int hd_group_is_over(const hd_group *group, struct pollfd *life);
heddle_status hd_group_copy_lives(struct pollfd **out, const hd_group *group);
void hd_group_free_lives(struct pollfd *life, const hd_group *group); /* NULL is legal */
/* HEDDLE_ERR_PEER for a wait (`what`) on a member that has left: names who gave up or died before that, else it. */
heddle_status hd_group_closed(hd_group *group, int index, const char *what);
/* Any thread. HEDDLE_ERR_PEER: this rank gives up, and `why`; HEDDLE_ERR_MISMATCH: `why` is all that is said. */
void hd_group_raise(hd_group *group, heddle_status status, const char *why);
void hd_group_quiesce(hd_group *group);        /* hd_comm_quiesce */
int hd_group_quiesce_devices(hd_group *group); /* hd_comm_quiesce_devices */
int hd_group_await_unmapped(hd_group *group);  /* a second at most. 1: no other member maps anything any more */
/* A fork of the process that made the group? Asks the kernel. */
int hd_group_is_fork(const hd_group *group);
/* HEDDLE_ERR_ARG in a fork, and when this rank has left. Costs a read. */
heddle_status hd_group_disowned(const hd_group *group, const char *call);
static inline heddle_status hd_group_owned(const hd_group *group, const char *call)
{
    return __builtin_expect(*group->awake != 0, 1) ? HEDDLE_OK : hd_group_disowned(group, call);
}

/* Collective over the members, after a failure: tells all that wait; when nobody is in a call any more each sets back
 * its own, and then all go on, without alarm. HEDDLE_ERR_PEER: one died or has left. May be called again after a
 * failure. (meet_again.c) */
heddle_status hd_group_meet_again(hd_group *group, int64_t deadline_ns, void (*set_back)(void *arg), void *arg);

/* who waits for whom (standing.c) */
typedef struct hd_stand {
    uint64_t key;             /* of a wait: another one when anything has come since */
    int peer[HD_STAND_PEERS]; /* members, one of which must come before this rank goes on in any way */
    int npeers;               /* 0: it may go on by itself */
    int is_slow;              /* what they have sent may be on its way for some time */
    char text[HD_STAND_BYTES];
} hd_stand;
/* A turn of a wait that has looked in vain, and asks for sleep. HEDDLE_ERR_MISMATCH, on all ranks: some wait for one
 * another for ever. Over with the next hd_group_disarm. */
heddle_status hd_group_stand(hd_group *group, const hd_stand *stand);
void hd_group_move_on(hd_group *group);
int hd_group_stands(hd_group *group, int index); /* at this moment, as far as it says so */
/* "; rank 2 is in ..."; nothing where that is not known. */
void hd_group_say_standing(char *out, size_t bytes, hd_group *group, int index);

/* machine */
void hd_topology_load(void); /* once per process; tens of milliseconds */
size_t hd_topology_shared_cache_bytes(void);
/* Restrict the calling thread to its share of the cores it may use. Returns the number of cores, 0: left alone. */
int hd_topology_bind(heddle_bind bind, int index, int n, cpu_set_t *before);

#endif
