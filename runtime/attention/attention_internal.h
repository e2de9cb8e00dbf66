/* What attention methods share: the problem as one rank of the sequence group sees it, the parts every method is made
 * of (heads exchange, core), and rings. */
#ifndef HD_ATTENTION_INTERNAL_H
#define HD_ATTENTION_INTERNAL_H

#include "kernels/table.h"
#include "runtime/attention/inner.h"
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/method/method.h"
#include <heddle/attention.h>
#include <heddle/reshard.h>

/* --- the problem (problem.c) ------------------------------------------------------------------------------------- */

/* Rows at..at+len of a local array are the global rows lo..lo+len. */
typedef struct hd_seg {
    int64_t lo, len, at;
} hd_seg;

typedef struct hd_row_set {
    hd_seg *seg;
    int nsegs;
    int64_t rows;
} hd_row_set;

/* The rows of n members, one behind the other (core_gather.c); out: zeros. */
heddle_status hd_rows_join(hd_row_set *out, const hd_row_set *rows, int n);

typedef struct hd_attn_problem {
    heddle_attention_options options; /* key_lengths NULL; key heads filled in */
    uint64_t key_lengths_hash;        /* of all samples; 0: there are none */
    heddle_shape shape;
    heddle_dtype dtype, real;
    int64_t elem_bytes, real_bytes;
    int64_t batch, sequence, heads, kv_heads, width; /* batch and heads: this rank's */
    int64_t batch_lo, head_lo, kv_lo, group;         /* group: query heads per key head */
    double scale;
    int64_t *key_length; /* [batch] */

    int first_axis, second_axis;        /* of the sequence; -1 */
    int nranks, rank;                   /* of the sequence group */
    heddle_attention_rows *member_rows; /* [nranks] */
    const hd_method *method;
    hd_method_group members; /* the same ranks as methods see them */
    int spread;              /* ranks over which the heads are exchanged: 1, nranks or the second axis */
    int ring;                /* nranks / spread */
    hd_head_part *part;      /* [spread] */
    hd_row_set *held;        /* [ring] rows of a ring member once the heads are exchanged */
    int64_t packed_heads;    /* of q, k and v in all parts together */
} hd_attn_problem;

/* Pure. On failure nothing is left to free. */
heddle_status hd_attn_problem_make(hd_attn_problem *out, const heddle_shape *shape, const heddle_mesh *mesh,
                                   const heddle_layout *layout, const heddle_attention_options *options, int rank);
void hd_attn_problem_free(hd_attn_problem *problem);

/* What this rank is going to send, from the problem alone; never from the plans that do it. */
void hd_attn_plan(heddle_attention_traffic *out, const hd_attn_problem *problem);
/* Pairs of a query of this rank's part and a key that it sees, of all samples. */
int64_t hd_attn_pairs(const hd_attn_problem *problem);

typedef struct hd_moved {
    int64_t bytes, messages;
} hd_moved;

/* --- the core of a method: attention over a ring of ranks that all hold the same heads ---------------------------- */

/* Arrays are dense and head by head: [heads][batch][rows][width]. */
typedef struct hd_core {
    const hd_attn_problem *problem;
    const hd_kernels *table;
    const hd_attn_kernels *kernels; /* of the problem's arithmetic */
    heddle_comm *comm;              /* of the ring; NULL when it has one member */
    heddle_comm *all;               /* the object's */
    int rank, nranks;
    int64_t heads, kv_heads; /* of this rank's part */
    const hd_head_part *part;
    const hd_row_set *rows; /* [nranks] */
    int threads;
    hd_room_user *user;                /* the object's */
    int keeps;                         /* what is saved is its own from call to call; 0: it lies in the room, too */
    void *scratch;                     /* [threads] of the kernels */
    void *wide;                        /* bf16: [threads][2][largest rows][width] keys and values of one head in f32 */
    int64_t scratch_bytes, wide_bytes; /* of one thread */
    int64_t saved_bytes, workspace_bytes;
    int64_t room_bytes;    /* of these: scratch and wide of all threads */
    hd_moved moved[2];     /* sent by the core forward, backward */
    int going_back;        /* 1 in backward */
    struct hd_hop *hop[3]; /* of HD_TRAVEL, HD_SUMS, HD_SPREAD */
    int lends;             /* blocks are read where they lie; those of HD_SPREAD go round */
    void *travel[2];       /* blocks in hand */
    struct hd_held *held;  /* [nranks] scratch: those that are lent */
    void *sum[3];          /* partial sums: the one being made, the next one, the one that arrives */
    void *method;          /* what the method keeps besides, zeroed before create and freed behind destroy */
    const void *e, *f;     /* projections */
    void *de, *df;
} hd_core;

typedef struct hd_core_forward {
    const void *q;  /* real [heads][batch][rows][width] */
    const void *kv; /* storage [2][kv_heads][batch][rows][width]; peers can reach it */
    void *o;        /* real, like q */
    /* real [heads][batch][rows]: what finish of the kernels leaves for backward; rsa, which keeps weights, has none */
    void *top, *log_sum;
    void *lse; /* like these; NULL: not wanted */
} hd_core_forward;

typedef struct hd_core_backward {
    const void *q, *kv, *top, *log_sum;
    const void *d_o;   /* real, like q */
    const void *delta; /* real, like top */
    void *dq;          /* real, zeroed */
    void *dkv;         /* real, like kv, zeroed */
} hd_core_backward;

typedef struct hd_core_method {
    heddle_status (*create)(hd_core *core); /* collective over core->comm */
    heddle_status (*forward)(hd_core *core, const hd_core_forward *x);
    heddle_status (*backward)(hd_core *core, const hd_core_backward *x);
    void (*destroy)(hd_core *core);
    heddle_status (*take)(hd_core *core); /* before create: this rank's memory; NULL: create does all */
    size_t method_bytes;                  /* of core->method; 0 without take */
} hd_core_method;

extern const hd_core_method hd_core_ring;
extern const hd_core_method hd_core_rsa;
extern const hd_core_method hd_core_projected;
extern const hd_core_method hd_core_gather;

/* Elements of [heads][batch][rows][width] for member `rank` of the ring. */
int64_t hd_core_elems(const hd_core *core, int64_t heads, int rank);
int64_t hd_core_most_rows(const hd_core *core);
/* Peer-reachable memory of the core's workspace: there when create has returned. */
heddle_status hd_core_buffer(void **out, hd_core *core, int64_t bytes);
/* Of what forward saves for backward; hd_core_unsave frees it. */
heddle_status hd_core_save(void **out, hd_core *core, int64_t bytes);
void hd_core_unsave(const hd_core *core, void *saved);

typedef struct hd_carry_arrays {
    void *acc, *top, *sum; /* real: [heads][batch][rows][width], [heads][batch][rows] twice */
} hd_carry_arrays;

/* Called between pieces of work; NULL: nothing to do. */
typedef heddle_status (*hd_poll_fn)(void *ctx);
typedef struct hd_poll {
    hd_poll_fn poll;
    void *ctx;
} hd_poll;

/* A block of ring member `member`, wherever it lies. */
typedef struct hd_held {
    const void *block;
    int member;
} hd_held;

/* Own queries against the keys of these members, in this order (block.c). */
heddle_status hd_core_forward_blocks(hd_core *core, const void *q, const hd_held *held, int count,
                                     const hd_carry_arrays *carry, hd_poll poll);
void hd_core_start(hd_core *core, const hd_carry_arrays *carry);
void hd_core_finish(hd_core *core, const hd_carry_arrays *carry, void *lse);
/* Adds to x->dq and to dkv, the gradient of kv. */
heddle_status hd_core_backward_block(hd_core *core, const hd_core_backward *x, const hd_held *held, void *dkv,
                                     hd_poll poll);

/* A thread's part of core->scratch and core->wide. */
void *hd_core_scratch(const hd_core *core, int thread);
void *hd_core_wide(const hd_core *core, int thread);
/* core->scratch and core->wide for keys of at most `rows` rows: there when create has returned. */
heddle_status hd_core_take_room(hd_core *core, int64_t rows);

/* A thread's work on one query head of one sample, or on piece `piece` of `pieces` of its queries. */
typedef struct hd_turn {
    int thread;
    int64_t head, kv_head, batch; /* of the local arrays */
    int64_t piece, pieces;
} hd_turn;
typedef void (*hd_turn_fn)(void *ctx, const hd_turn *turn);
/* All heads and samples on all threads; the calling one polls in between. Query heads of one key head are one thread's,
 * one after the other, so that what they add to its keys is added in the same order by any number of threads. by_query:
 * nothing is added to keys, so queries may be cut into pieces where heads are too few. */
heddle_status hd_core_each_head(const hd_core *core, int by_query, hd_turn_fn fn, void *ctx, hd_poll poll);

/* Calls fn for every pair of a query segment and a key segment of `member` that has something to see. */
typedef struct hd_pair {
    int64_t head, kv_head, batch; /* of the local arrays */
    int64_t q_at, nq, k_at, nk;   /* rows in the local arrays; nk cut to the key length */
    int64_t diagonal;
} hd_pair;
/* What the methods' files share of a pair: its row in [heads][batch][rows] of own queries. */
int64_t hd_core_row(const hd_core *core, const hd_pair *pair);
typedef void (*hd_pair_fn)(void *ctx, const hd_turn *turn, const hd_pair *pair);
void hd_core_pairs(const hd_core *core, const hd_turn *turn, int member, hd_pair_fn fn, void *ctx);

/* --- rings (core_ring.c, ring_make.c) ----------------------------------------------------------------------------- */

/* One turn round the ring. Blocks travel or lie where they are lent, or partial sums of them come home, or both. The
 * visitor gets every member once, own first: its block (NULL when nothing travels), and where the contribution to its
 * sum is to be added (zeroed; own: own_sum). It gets one at a time, or, where blocks are lent and no sums go round, all
 * at once. */
enum { HD_TRAVEL, HD_SUMS, HD_SPREAD, HD_HOPS }; /* blocks in storage type, sums, finished sums in real type */
typedef heddle_status (*hd_visit_fn)(void *ctx, const hd_held *held, int count, void *sum, hd_poll poll);
typedef struct hd_ring_walk {
    const void *block;       /* own block; NULL: nothing travels */
    int kind;                /* of what travels: HD_TRAVEL or HD_SPREAD */
    int index;               /* of the block among those that are lent together */
    int keeps;               /* what is borrowed: the next walk reads there too */
    void *own_sum;           /* own part of the sums; NULL: no sums */
    int64_t sum_elems_a_row; /* reals */
    hd_visit_fn visit;
    void *ctx;
} hd_ring_walk;
heddle_status hd_ring_run(hd_core *core, const hd_ring_walk *walk);
/* Around the walks of HD_TRAVEL, where blocks are lent; elsewhere nothing happens. blocks: the own ones, one after the
 * other. regain waits until nobody reads them any more; st: how it went in between, after a failure no thread of this
 * rank reads blocks of others. */
heddle_status hd_ring_lend(hd_core *core, const void *blocks);
heddle_status hd_ring_regain(hd_core *core, heddle_status st);
/* Hops and buffers: rows of ring members times these. 0: none of the kind. lent: how many blocks together. */
heddle_status hd_ring_create(hd_core *core, const int64_t bytes_a_row[HD_HOPS], int lent);
void hd_ring_destroy(hd_core *core);

/* --- the heads exchange (heads.c): rows to heads and back over `spread` ranks ------------------------------------- */

typedef enum hd_heads_way {
    HD_QKV_TO_HEADS,
    HD_O_TO_ROWS,
    HD_LSE_TO_ROWS,
    HD_O_TO_HEADS,
    HD_QKV_TO_ROWS,
    HD_HEADS_WAYS
} hd_heads_way;

typedef struct hd_heads {
    int count;                          /* spread */
    heddle_reshard *way[HD_HEADS_WAYS]; /* NULL: not wanted */
} hd_heads;

/* Collective over comm, whose rank i holds part i. */
heddle_status hd_heads_create(hd_heads *heads, heddle_comm *comm, const hd_attn_problem *problem);
void hd_heads_destroy(hd_heads *heads);
/* Dense [heads][batch][rows][width] arrays of the storage type (lse: real, no width) in peer-reachable memory. */
heddle_status hd_heads_move(hd_heads *heads, hd_heads_way way, const void *src, void *dst, heddle_stream stream);
/* What has left this rank so far. NULL is legal. */
hd_moved hd_reshard_moved(const heddle_reshard *reshard);
/* A reshard of [x b s d] (d 0: [x b s]) on [sp=n]; a side: lengths of the n blocks of dim `dim`, HEDDLE_REPLICATED or
 * HEDDLE_PARTIAL. of: space and deadline. */
typedef struct hd_side_blocks {
    int dim;
    const int64_t *block;
} hd_side_blocks;
heddle_status hd_reshard_of_heads(heddle_reshard **out, heddle_comm *comm, heddle_dtype dtype, const int64_t extent[4],
                                  const hd_side_blocks *from, const hd_side_blocks *to,
                                  const heddle_attention_options *of);

#endif
