/* How a mixing stage may run when the dim it mixes is sharded: one file per method: whether it may and why not, what it
 * sends, what it holds, and the products it takes.
 *
 * A stage over dim t of x[b, t, s, c] attends along every fibre of t. The ranks that share all coordinates but those of
 * the axes that shard t form a group; a group works on [its fibres, t, heads, c / heads], so what a rank sends is the
 * number of its fibres times what its place in the group sends for one. Both are closed forms here. The planner makes
 * groups from layouts of the activation, an attention object its own from its problem; tests hold both against lists of
 * transfers, and what is measured while moving equals them.
 */
#ifndef HD_METHOD_H
#define HD_METHOD_H

#include <heddle/block.h>
#include <heddle/layout.h>

enum { HD_METHOD_REASON_BYTES = 256, HD_METHODS_MAX = 8 /* of one kind of stage */, HD_LINEAR_WIDTH_MAX = 65536 };

/* What an edge or a method moves. Sums saturate at INT64_MAX, which the planner refuses. */
typedef struct hd_edge_cost {
    int64_t bytes_per_rank_max, bytes_total, messages;
    int64_t bytes_received_max; /* of an edge: by the rank that receives most */
} hd_edge_cost;

/* What moves by the links of one level, in all. */
typedef struct hd_link_bytes {
    int64_t sent_max, received_max, total; /* of the rank that sends most, of the one that receives most */
} hd_link_bytes;

enum { HD_LEVELS = 4 };

/* Sets of consecutive ranks in one another, the innermost first: rank / within[i] is the set. Two ranks exchange bytes
 * by the links of the innermost level that has both in a set; the last level has all ranks in one. */
typedef struct hd_levels {
    int count;
    int within[HD_LEVELS];
} hd_levels;

typedef struct hd_method_cost {
    hd_edge_cost forward, backward; /* of one call */
    /* of the rank that has most */
    int64_t saved_bytes, workspace_bytes, forward_flops, backward_flops;
} hd_method_cost;

/* What a method has to know of a stage. */
typedef struct hd_method_stage {
    heddle_stage_kind kind;
    int dim;             /* mixed, -1: token-wise */
    int64_t heads;       /* 0: not known */
    int causal;          /* a token sees itself and those before it */
    int decays;          /* LINEAR: some head's decay is not 1 */
    unsigned dims;       /* all that are mixed, a bit each; 0: `dim` alone */
    int64_t kv_heads;    /* 0: as many as heads */
    int64_t joined_rows; /* of text, sharded with the sequence */
    /* By dim: tokens that a query sees each way, which is what gather-kv fetches then; 0: all */
    int64_t window[HEDDLE_MAX_DIMS];
    unsigned methods; /* MODULE: that it admits besides local, a bit each by index of hd_method_at; else not read */
} hd_method_stage;

/* Why no block runs such a stage: it is planned alone; NULL: one does. Static, and fits behind "has". */
const char *hd_method_stage_refusal(const hd_method_stage *stage);

/* Query heads q_lo..q_lo+nq of a group's heads, and the key heads they use. */
typedef struct hd_head_part {
    int64_t q_lo, nq, kv_lo, nkv;
} hd_head_part;

/* How the ranks of a group share the sharded dims of a stage with a window: the parts that have tokens, of one dim or
 * of two, each over an axis of its own. */
typedef struct hd_halo {
    int count; /* dims; 0: no window, or none along a sharded dim */
    struct {
        int parts, full;     /* and how many of them have tokens */
        int64_t *start;      /* [full + 1] their first tokens */
        int *place;          /* [parts + 1] how many of the parts before have tokens */
        int64_t back, ahead; /* tokens that a query sees before and behind itself */
        int reach;           /* parts before and behind that it may see, the rest of one with it */
    } along[2];
    int64_t rest; /* tokens of the other mixed dims, which are whole */
} hd_halo;

/* Members one behind the other that have as many rows each. */
typedef struct hd_run {
    int first;
    int full_before;     /* members before it that have rows */
    int64_t rows_before; /* of those members */
    int64_t rows;        /* of each */
} hd_run;

/* The ranks of one group, in the order of the sequence, and how many groups do the same. */
typedef struct hd_method_group {
    const heddle_shape *shape;
    hd_method_stage stage;
    int naxes, axis[2];                                     /* that shard the dims; 0: they are whole */
    unsigned cut;                                           /* the mixed dims that are sharded, a bit each */
    int n, inner;                                           /* members; of the inner axis: 1 with one axis */
    int stride;                                             /* from the rank of a member to the next one's */
    int64_t sequence, heads, width, elem_bytes, real_bytes; /* real: of sums and states */
    int64_t kv_heads;                                       /* key heads of these heads */
    int64_t head_lo, kv_lo;                                 /* where both begin among the heads of the whole problem */
    int64_t heads_a_kv_head;                                /* of the whole problem */
    int64_t fibres;                  /* that `sends` counts: 1 of the planner's, all of an object's */
    int log_sum_exp, all_reduce;     /* heddle_attention_options */
    int forward_only;                /* likewise */
    int64_t projected_length;        /* likewise */
    int lends;                       /* blocks of a ring are read where they lie; 0 of the planner's */
    int64_t width_v, padded_width_v; /* LINEAR: of v and o; of a state's row in memory */
    int64_t chunk_rows;              /* LINEAR: wanted; 0: chosen */
    int nruns, runs_capacity;
    hd_run *run;                          /* [nruns + 1] the last one stands behind all members */
    int64_t rows_most, segment_rows_most; /* of a member; of a segment of `inner` members */
    hd_halo halo;                         /* of a window */
    int full_segments;                    /* segments of `inner` members that have rows */
    int64_t fibres_max;                   /* of one group */
    __int128 fibres_total;                /* of all groups; replicas count each */
    int64_t busy_groups;                  /* that have fibres */
    char why_not[HD_METHOD_REASON_BYTES]; /* no method but local may run in this layout; "" */
} hd_method_group;

/* What an object holds on one member, for the group's `fibres`: from forward to backward; the rest. Without the room
 * that kernels work in, which is theirs to say. */
typedef struct hd_memory {
    __int128 saved_bytes, workspace_bytes;
} hd_memory;

/* Of the products of one call on one member: two for a multiplication and an addition. */
typedef struct hd_flops {
    __int128 forward, backward;
} hd_flops;

/* A run of members, in the group's order. */
typedef struct hd_members {
    int first, count;
} hd_members;

/* What one member sends to some members and gets from them per call for the group's `fibres`. */
typedef struct hd_sends {
    __int128 forward_bytes, backward_bytes;
    __int128 forward_received, backward_received;
    int64_t forward_messages, backward_messages;
} hd_sends;

typedef struct hd_method {
    const char *name;
    heddle_stage_kind kind;                          /* ATTENTION or LINEAR; local serves both; or MODULE alone */
    int is_near;                                     /* MODULE: it brings rows or sums, and attends to nothing */
    int only_named;                                  /* never chosen, runs when asked for */
    int (*heads_over)(const hd_method_group *group); /* ranks the heads are dealt to; NULL: none */
    /* NULL when it may run, else one sentence; static or in `reason`. NULL pointer: may always. */
    const char *(*why_not)(char *reason, const hd_method_group *group);
    /* ATTENTION: adds to *out; there are fibres. NULL: nothing. */
    void (*sends)(hd_sends *out, const hd_method_group *group, int member, hd_members among);
    /* LINEAR: states that a member of n sends to those `among` towards the end of the sequence; as many as its mirror
     * image sends towards the beginning. NULL: none. */
    int64_t (*states)(int member, int n, hd_members among);
    int gathers; /* LINEAR: without decay what is sent one way serves the other, too */
    /* LINEAR: states that a flow holds besides its own, the one that comes and the one that goes. NULL: none. */
    int64_t (*held)(int n);
    int keeps_weights; /* ATTENTION: backward takes them from memory, it does not make them anew */
    void (*holds)(hd_memory *out, const hd_method_group *group, int member); /* ATTENTION: adds; NULL: nothing more */
    /* ATTENTION; NULL: scores and values, in backward five products. */
    void (*works)(hd_flops *out, const hd_method_group *group, int member, __int128 pairs);
} hd_method;

extern const hd_method hd_method_local, hd_method_ulysses, hd_method_usp, hd_method_ring, hd_method_gather_kv,
    hd_method_rsa, hd_method_halo, hd_method_sums, hd_method_lasp, hd_method_lasp2, hd_method_scan;

/* Methods of a kind of stage in the order in which they are preferred, local first; NULL behind the last. Token-wise
 * stages have local only. */
const hd_method *hd_method_at(heddle_stage_kind kind, int index);
const hd_method *hd_method_find(heddle_stage_kind kind, const char *name); /* NULL: none of that name */
/* The same of those that a stage admits: of a module only those it names. */
const hd_method *hd_method_of(const hd_method_stage *stage, int index);
const hd_method *hd_method_find_of(const hd_method_stage *stage, const char *name);

/* The planner's: `shape` is borrowed. The layout must be valid and without partial sums. */
heddle_status hd_method_group_make(hd_method_group *out, const heddle_shape *shape, const heddle_mesh *mesh,
                                   const heddle_layout *layout, const hd_method_stage *stage);
/* As far as it says which methods may run, and over how many ranks heads are dealt: without rows, nothing to free. */
void hd_method_group_begin(hd_method_group *out, const heddle_shape *shape, const heddle_mesh *mesh,
                           const heddle_layout *layout, const hd_method_stage *stage);
void hd_method_group_free(hd_method_group *group);
/* `count` more members with so many rows each (members.c). */
heddle_status hd_method_group_add(hd_method_group *group, int64_t rows, int count);
/* All n members were added: what follows from their rows. inner: see above. */
void hd_method_group_count(hd_method_group *group, int n, int inner);
/* NULL when the method may run in the group's layout, else why not. `reason`: HD_METHOD_REASON_BYTES. */
const char *hd_method_why_not(char *reason, const hd_method *method, const hd_method_group *group);
/* Between `member` and the others among `among`. */
void hd_method_sends(hd_sends *out, const hd_method *method, const hd_method_group *group, int member,
                     hd_members among);
hd_members hd_group_all(const hd_method_group *group);
void hd_method_memory(hd_memory *out, const hd_method *method, const hd_method_group *group, int member);
/* pairs: of a query of the member's segment and a key that it sees, per head, of all `fibres`; ATTENTION. */
void hd_method_flops(hd_flops *out, const hd_method *method, const hd_method_group *group, int member, __int128 pairs);
/* What one call costs; the method may run. */
void hd_method_price(hd_method_cost *out, const hd_method *method, const hd_method_group *group);
/* Visits one member of each kind with the number of them: members of a kind hold, do and send the same. With levels,
 * which begin at the rank of member 0, `base`, they also send the same by the links of each; NULL: without. */
typedef void hd_member_visit(void *context, int member, int count);
void hd_method_kinds(const hd_method *method, const hd_method_group *group, const hd_levels *levels, int base,
                     hd_member_visit *visit, void *context);
/* What one call moves by the links of every level: forward[levels->count], backward likewise. */
void hd_method_links(hd_link_bytes *forward, hd_link_bytes *backward, const hd_method *method,
                     const hd_method_group *group, const heddle_mesh *mesh, const heddle_layout *layout,
                     const hd_levels *levels);
/* How much more attention the busiest rank does than an even share of heads would be, in percent. */
double hd_method_head_waste_percent(const hd_method *method, const hd_method_group *group);

/* What all methods want (refuse.c). Axes of fewer than `smallest` ranks do not count. Else the reason is written:
 * HEDDLE_ERR_UNSUPPORTED or HEDDLE_ERR_LAYOUT. */
heddle_status hd_method_takes_arrays(char *reason, const heddle_shape *shape, const heddle_mesh *mesh,
                                     const heddle_layout *layout, int smallest);
heddle_status hd_method_takes_axes(char *reason, const char *dim, const heddle_mesh *mesh, const int axis[2],
                                   int count);
/* Rows of a member that others among `among` see (sent), their rows that it sees, and of how many ranks. */
typedef struct hd_seen {
    __int128 sent, received;
    int64_t sent_to, received_from;
} hd_seen;
hd_seen hd_halo_seen(const hd_halo *halo, int member, hd_members among);

/* How many axes shard one of the dims, a bit each; the first two of them, -1 where there are fewer. */
int hd_method_axes(int axis[2], const heddle_mesh *mesh, const heddle_layout *layout, unsigned dims, int smallest);
/* What this one wants besides, of an object's group: HEDDLE_ERR_LAYOUT, said. */
heddle_status hd_method_need(const hd_method *method, const hd_method_group *group);

/* Rows of the members first .. first + count - 1, and how many of them have any. */
int64_t hd_group_rows(const hd_method_group *group, int first, int count);
int hd_group_full(const hd_method_group *group, int first, int count);
/* What member `index` of `spread` that share the heads gets. One alone has all key heads, used or not. */
hd_head_part hd_group_part(const hd_method_group *group, int spread, int index);
/* Heads of q, k and v that all members of a segment get together. */
int64_t hd_group_packed_heads(const hd_method_group *group, int spread);
/* LINEAR: of a member with so many rows. */
int64_t hd_group_chunk_rows(const hd_method_group *group, int64_t rows);
/* Ranks that the method deals the heads to. */
int hd_group_spread(const hd_method *method, const hd_method_group *group);

/* The parts that methods are made of. Messages are counted where something is sent. */
/* q, k, v packed to the heads' owners, o back, and both, within segments of `spread` members; the reverse in
 * backward. */
void hd_sends_packed(hd_sends *out, const hd_method_group *group, int member, hd_members among, int spread);
void hd_sends_results(hd_sends *out, const hd_method_group *group, int member, hd_members among, int spread);
void hd_sends_heads(hd_sends *out, const hd_method_group *group, int member, hd_members among, int spread);
/* k and v of a segment of `spread` members through the ring of segments, `turns` transfers of them together (1) or one
 * after the other (2); in backward again, with sums that come home. all_reduce: and go round once more. */
void hd_sends_ring(hd_sends *out, const hd_method_group *group, int member, hd_members among, int spread, int turns);
/* Partial sums of the projected k and v to everybody; of their gradients in backward. */
void hd_sends_projected(hd_sends *out, const hd_method_group *group, int member, hd_members among);
/* k and v to everybody, or to those whose window reaches them; in backward the gradients of them to their owners. */
void hd_sends_gathered(hd_sends *out, const hd_method_group *group, int member, hd_members among);
/* The method's states, one per fibre and message. */
void hd_sends_states(hd_sends *out, const hd_method_group *group, int member, hd_members among,
                     const hd_method *method);
/* Blocks of `arrays` arrays on their way round the ring, unless they are lent, and sums of them. */
void hd_hold_ring(hd_memory *out, const hd_method_group *group, int member, int spread, int arrays);

/* 1: the sets of a level are boxes of coordinates, alike everywhere: what a rank moves by it depends on its place along
 * the axes alone. */
int hd_levels_nest(const hd_levels *levels, const heddle_mesh *mesh);

static inline int64_t hd_smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t hd_larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

int64_t hd_add_saturated(int64_t a, int64_t b);
int64_t hd_saturated(__int128 value);

#endif
