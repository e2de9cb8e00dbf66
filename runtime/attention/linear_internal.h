/* Linear attention: the problem as one rank sees it, the flows that carry states, and the object. */
#ifndef HD_LINEAR_INTERNAL_H
#define HD_LINEAR_INTERNAL_H

#include "kernels/table.h"
#include "runtime/attention/inner.h"
#include "runtime/attention/object.h"
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/method/method.h"
#include "runtime/move/move.h"
#include <heddle/linear_attention.h>

/* --- the problem (linear_problem.c) ------------------------------------------------------------------------------- */

typedef struct hd_linear_problem {
    heddle_linear_attention_options options; /* decay NULL; dv and threads filled in */
    const hd_method *method;
    heddle_shape shape;
    heddle_dtype real;                  /* F32 or F64 */
    int64_t batch, heads, rows, dk, dv; /* this rank's */
    int64_t head_lo;
    int64_t chunk_rows, nchunks;
    double *decay;                    /* [heads of the shape] */
    int all_ones;                     /* nothing decays */
    int nranks, me;                   /* of the ranks that share the sequence, in its order */
    hd_method_group members;          /* the same ranks as methods see them */
    int *rank;                        /* [nranks] */
    int64_t *member_rows;             /* [nranks] */
    int64_t state_elems, state_bytes; /* all samples and heads of this rank */
} hd_linear_problem;

heddle_status hd_linear_problem_make(hd_linear_problem *out, const heddle_shape *shape, const heddle_mesh *mesh,
                                     const heddle_layout *layout, const heddle_linear_attention_options *options,
                                     int rank);
void hd_linear_problem_free(hd_linear_problem *problem);

/* --- flows: states of the ranks before this one, in one direction (linear_flow_make.c, linear_flow.c, and one file per
 * method) ---------------------------------------------------------------------------------------------------------- */

/* Rank at position p of a flow is before those at p+1, ...; a leftward flow begins at the end of the sequence. All
 * states are dense reals [batch][heads][dk][dv]. */
typedef struct hd_flow hd_flow;

typedef struct hd_flow_method {
    const char *name;
    int64_t (*serial_steps)(int n);
    heddle_status (*create)(hd_flow *flow); /* collective; n > 1 */
    heddle_status (*begin)(hd_flow *flow);  /* of a call: what can be done without the own state */
    heddle_status (*test)(hd_flow *flow);   /* without waiting; sets ready and done */
} hd_flow_method;

extern const hd_flow_method hd_flow_lasp;
extern const hd_flow_method hd_flow_lasp2;
extern const hd_flow_method hd_flow_scan;
const hd_flow_method *hd_flow_method_of(heddle_linear_method method); /* NULL: local */

/* Two transfers may be in flight at once. */
enum { HD_FLOW_CHANNELS = 2, HD_FLOW_TRANSFERS = 16 };

struct hd_flow {
    const hd_flow_method *method;
    const hd_linear_problem *problem;
    const hd_linear_kernels *kernels;
    heddle_comm *comm;
    int leftward, p, n;
    hd_channel *channel[HD_FLOW_CHANNELS];
    hd_transfer *transfer[HD_FLOW_TRANSFERS];
    void *own; /* this rank's rows alone: what it contributes */
    void *in;  /* everything before this rank; valid when ready */
    void *out; /* sent on */
    void *all; /* lasp2: of all ranks, by member */
    hd_room_user *user;
    int64_t allocated_bytes; /* in its room */
    hd_flow *twin;           /* lasp2: the flow that gathers the same states */
    int lends;               /* lasp: executions are loans */

    int given; /* own is there (or, out_given, what is to be sent on) */
    int out_given;
    int ready, done; /* in is complete; nothing is in flight */
    int receiving, sending, step;
    int waits_for; /* rank */
    int64_t sent_messages;
};

/* Collective. */
heddle_status hd_flow_create(hd_flow **out, heddle_linear_attention *of, int leftward, hd_flow *twin);
void hd_flow_destroy(hd_flow *flow);
heddle_status hd_flow_begin(hd_flow *flow);
/* The own state is complete (out: the state to be sent on). */
heddle_status hd_flow_give(hd_flow *flow, int out_given);
heddle_status hd_flow_test(hd_flow *flow);

/* For methods: rank and rows at a position; dst = g^rows state + add per head (dst may be state); memory. */
int hd_flow_rank(const hd_flow *flow, int position);
int64_t hd_flow_rows(const hd_flow *flow, int position);
void hd_flow_fold(const hd_flow *flow, void *dst, int64_t rows, const void *state, const void *add);
heddle_status hd_flow_alloc(void **out, hd_flow *flow, int64_t bytes);
/* One state to or from a rank. */
hd_item hd_flow_item(const hd_flow *flow, int peer, int64_t dst_offset);
/* Collective: transfers first, first+1, ... on a channel of their own. Where states are empty nothing moves. */
heddle_status hd_flow_open(hd_flow *flow, int channel, int first, hd_transfer_spec *spec, int ntransfers);
heddle_status hd_flow_start(hd_flow *flow, int channel, int transfer, const void *src, void *dst, int messages);

/* --- the object --------------------------------------------------------------------------------------------------- */

/* States at the border of every chunk: [batch][heads][chunks][dk][padded dv]. */
enum { HD_STATES_KV_LEFT, HD_STATES_KV_RIGHT, HD_STATES_G_RIGHT, HD_STATES_G_LEFT, HD_STATES };

struct heddle_linear_attention {
    hd_linear_problem problem;
    struct hd_linear_on *on; /* what it has on its device, instead of all below (linear_on.h); NULL: it is the host's */
    const hd_linear_kernels *kernels;
    heddle_comm *comm;
    hd_flow *flow[2]; /* rightward, leftward */
    hd_linear_dims dims;
    int64_t padded_elems; /* of one state */
    hd_room_user user;    /* of all below but for the states that are saved, and of the flows */
    int keeps;            /* these are the object's own; 0: they are in the room, too */
    unsigned char *states[HD_STATES];
    unsigned char *scratch; /* [threads] */
    int64_t scratch_bytes;
    unsigned char *carry;   /* [threads][3] states in hand */
    unsigned char *part[2]; /* bf16: o or dv, and dk, of the first half, in f32 [batch][heads][rows][width] */
    unsigned char *last;    /* dense states behind this rank's rows */
    int64_t workspace_bytes, saved_bytes;
    int64_t room_bytes; /* of workspace_bytes: scratch and carry */
    heddle_attention_traffic planned, measured;
    int64_t forwards, backwards, wait_ns;
    int has_forward; /* what backward needs of it */
    hd_broken broken;

    /* of the call in progress */
    int going_back; /* 1 in backward */
    int uses[2];    /* flows */
    heddle_attention_array q, k, v, o, d_o, dq, dk, dv;
};

/* The flows in use: moved on by thread 0; until all of them are ready, or done. (linear_flow.c) */
heddle_status hd_linear_poll(heddle_linear_attention *a, int thread);
heddle_status hd_linear_wait(heddle_linear_attention *a, int done);
/* After a failure: no state is lent any more. Returns `st` with the sentence of the moment. */
heddle_status hd_linear_forgo(heddle_linear_attention *a, heddle_status st);

/* (linear_chunks.c) */
int64_t hd_linear_chunk_len(const heddle_linear_attention *a, int64_t chunk);
void hd_linear_chunk_views(hd_linear_chunk *out, const heddle_linear_attention *a, int64_t sample_head, int64_t chunk);
unsigned char *hd_linear_state(heddle_linear_attention *a, int which, int64_t sample_head, int64_t chunk);
void *hd_linear_scratch(heddle_linear_attention *a, int thread, int64_t sample_head); /* begun for the head */
unsigned char *hd_linear_carry(heddle_linear_attention *a, int thread, int which);
double hd_linear_decay(const heddle_linear_attention *a, int64_t sample_head);
void hd_linear_widen(heddle_linear_attention *a, void *padded, const void *dense, int64_t sample_head);
void hd_linear_narrow(heddle_linear_attention *a, void *dense, const void *padded, int64_t sample_head);
/* own = the chunks' contributions together */
void hd_linear_total(heddle_linear_attention *a, int thread, int which, int64_t sample_head, void *own);
/* Contributions become the states before each chunk, from `in` on. */
void hd_linear_spread(heddle_linear_attention *a, int thread, int which, int64_t sample_head, const void *in);
/* The state of `which` at a chunk, NULL where nothing comes before it. */
const void *hd_linear_before(heddle_linear_attention *a, int which, int64_t sample_head, int64_t chunk);

/* On a device (linear_on_make.c, linear_on.c). check: the same on all ranks, but for a device that is missing. take:
 * what
 * this rank does alone; what it has made is attention->on, also where it failed. make: collective. */
heddle_status hd_linear_on_check(const hd_linear_problem *problem, const heddle_comm *comm);
heddle_status hd_linear_on_take_all(heddle_linear_attention *a);
heddle_status hd_linear_on_make(heddle_linear_attention *a);
void hd_linear_on_free(heddle_linear_attention *a);
void hd_linear_on_inform(heddle_linear_attention_info *out, const heddle_linear_attention *a);
/* One of a caller's arrays, which has all its strides. */
heddle_status hd_linear_on_check_array(const heddle_linear_attention *a, const heddle_attention_array *array,
                                       const char *name, const char *function);
/* On the arrays of the call in progress. */
heddle_status hd_linear_on_call(heddle_linear_attention *a, int is_back, heddle_stream stream);
heddle_status hd_linear_on_state(void *out, const heddle_linear_attention *a, int is_decayed, heddle_stream stream);

#endif
