/* What a reshard plan is made of. One step per phase of the problem; a step holds everything this rank copies, sums,
 * sends and receives in it. Nothing here is allocated after creation. */
#ifndef HD_PLAN_H
#define HD_PLAN_H

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/move/lanes.h"
#include "runtime/reshard/compile.h"

/* --- what every rank tells every other at creation (agree.c) ------------------------------------------------------ */

enum { HD_NFIELDS = 12 };

typedef struct hd_facts {
    uint64_t field[HD_NFIELDS];
    int64_t src_stride_elems[HEDDLE_MAX_DIMS], dst_stride_elems[HEDDLE_MAX_DIMS];
    int64_t src_bytes, dst_bytes;
} hd_facts;

typedef struct hd_request {
    heddle_reshard_line line;
    heddle_reshard_options options;
    int64_t src_stride_elems[HEDDLE_MAX_DIMS], dst_stride_elems[HEDDLE_MAX_DIMS]; /* always filled */
    int64_t src_bytes, dst_bytes;
    const hd_kernels *kernels;
    const hd_copy_kernel *kernel; /* forced, or NULL */
} hd_request;

/* A caller's options over the defaults. */
heddle_status hd_reshard_options_take(heddle_reshard_options *out, const heddle_reshard_options *options);
heddle_status hd_request_take(hd_request *out, const heddle_comm *comm, const heddle_reshard_line *line,
                              const heddle_reshard_options *options);
/* Collective: facts[nranks]. HEDDLE_ERR_MISMATCH on every rank names the first rank and field that differ. */
heddle_status hd_facts_agree(hd_facts *facts, heddle_comm *comm, const hd_request *request);
/* An allgather that tells the others when this rank cannot take part. */
heddle_status hd_gather(heddle_comm *comm, const void *send, void *recv, size_t bytes);

/* --- sums (sum.c) ---------------------------------------------------------------------------------------------------
 */

typedef enum hd_source { HD_SOURCE_DIRECT, HD_SOURCE_STAGED } hd_source;

typedef struct hd_sum_term {
    int peer;
    int64_t offset_bytes;                  /* in the peer's array, or in own memory for a message */
    int64_t stride_bytes[HEDDLE_MAX_DIMS]; /* in the peer's array */
    int is_message;                        /* lies dense at offset_bytes of the mail's receive staging */
} hd_sum_term;

/* Pieces with the same box, added in rank order. */
typedef struct hd_sum {
    int first, nterms; /* in hd_sums.term */
    int nloops;
    int64_t count[HEDDLE_MAX_DIMS], dst_stride_bytes[HEDDLE_MAX_DIMS], dense_stride_bytes[HEDDLE_MAX_DIMS];
    int64_t dst_offset_bytes, run_elems, bytes;
} hd_sum;

typedef struct hd_sums {
    hd_sum *sum;
    hd_sum_term *term;
    const void **row; /* scratch, one per term of the largest sum */
    int nsums, nterms;
} hd_sums;

/* --- a step ------------------------------------------------------------------------------------------------------- */

/* Messages of a step to and from ranks that cannot be reached. */
typedef struct hd_mail {
    int is_packed;
    int nmessages, nsends;
    heddle_message *message; /* sends first */
    int64_t *message_bytes;
    int64_t *recv_offset; /* [step.recv.count] in recv_stage */
    hd_exchange *exchange;
    char *send_stage, *recv_stage; /* NULL: in place */
    int64_t stage_bytes;
    hd_lanes pack, unpack;
} hd_mail;

/* Private memory (HEDDLE_MEMORY_ANY): how peers get what they cannot read. */
typedef enum hd_reach { HD_REACH_DIRECT, HD_REACH_STAGED, HD_REACH_READV } hd_reach;

typedef struct hd_private {
    int used;
    hd_lanes pack;         /* own src -> staging in the plan's buffer */
    int64_t *piece_offset; /* [nranks] of the piece for a peer; NULL: nobody reads here */
    int *from, nfrom;      /* peers this rank reads */
    hd_lanes *direct;      /* [nfrom] one copy each */
    hd_lanes *staged;      /* [nfrom] likewise, from the peer's staging */
    hd_copy *copy;         /* [nfrom] for process_vm_readv */
} hd_private;

enum { HD_ROLE_READ = 1, HD_ROLE_WRITE = 2 }; /* this rank reads from / writes to that one */

/* Copies between this rank and the ranks it reaches, itself included; at most one per peer and direction. */
typedef struct hd_step {
    const hd_phase *phase;
    int push;               /* the owner of the source moves */
    int walk_src;           /* lanes follow the source's order */
    int is_open;            /* another direction may be faster: trials look */
    int any_sums, any_mail; /* on any rank */
    hd_pieces send, recv;
    int *ready, nready;   /* ranks to which READY is posted, and from which it is awaited */
    unsigned char *role;  /* [nready] HD_ROLE_* */
    int *served, nserved; /* ranks that wait for my DONE */
    int *movers, nmovers; /* ranks whose DONE I wait for */
    hd_lanes lanes;
    hd_copy zero; /* what is cleared first, where pieces do not cover the destination */
    hd_sums sum;
    hd_mail mail, spare; /* spare: while two ways are compared */
    hd_private own;
    size_t src_bytes, dst_bytes; /* of the arrays the step reads and writes here */
} hd_step;

enum { HD_MAX_STEPS = 3 };

typedef enum hd_state { HD_IDLE, HD_COLLECT, HD_MOVE, HD_MAIL, HD_FINISH } hd_state;

struct heddle_reshard {
    heddle_comm *comm;
    int rank, nranks;
    hd_request request;
    hd_problem problem;
    hd_facts *facts; /* [nranks] */
    int64_t src_box_elems, dst_box_elems;
    size_t elem_bytes;
    hd_link *link;
    hd_step step[HD_MAX_STEPS];
    int nsteps;
    int any_peer, any_mail;   /* on any rank */
    unsigned char *component; /* [nranks] 1: connected with this rank by peer copies, over any number of ranks */
    int rule_direction;       /* push + 2 * walk_src of step 0 before trials */
    hd_copy_hint hint;
    char *buffer; /* peer-reachable: work arrays, then staging */
    int64_t buffer_bytes;
    int64_t work_offset[2];
    int64_t src_dense_offset, dst_dense_offset; /* -1: flat phases read src and write dst as they are */
    hd_lanes src_dense, dst_dense;
    hd_reach reach; /* of a private source */

    /* one execution */
    hd_state state;
    int at;     /* step */
    int waited; /* next rank of the present wait */
    int mail_done;
    uint64_t sequence, epoch; /* of steps, of executions */
    int64_t deadline_ns;      /* 0: not looked at the clock yet */
    int is_simple;            /* one step of plain peer copies: hd_plan_execute_simple */
    int is_checked;           /* src and dst were accepted; their names are known */
    int pending;              /* READYs of an execution refused here are still to be collected */
    int refusal;              /* its reason */
    int refused_by;           /* 1 + rank whose refusal was seen in this execution */
    const char *src;
    char *dst;
    const char *step_src;
    char *step_dst;
    const void **src_at;         /* [nranks] */
    void **dst_at;               /* [nranks] */
    int64_t *moved;              /* [nranks] by this rank in the present step */
    unsigned char *reach_of;     /* [nranks] hd_reach of the peer's source in this execution */
    uint64_t src_name, dst_name; /* of the user's arrays, as exported */
    heddle_reshard *next;        /* in flight on the same communicator */
    heddle_status outcome;       /* of an execution that ended while another plan was waited for */
    heddle_status broken;
    char broken_why[1024];

    /* information */
    int64_t executions;
    int64_t *bytes_to, *bytes_from, *measured_to; /* [nranks] */
    int64_t bytes_peer_path, bytes_messages, messages, plan_bytes;
    char path[32], kernel_name[32], trials[640], line_text[HEDDLE_LINE_BYTES], why[1152];
};

/* The array of `rank` that a phase reads (is_dst 0) or writes, strides included. */
heddle_status hd_plan_array(hd_array *out, const heddle_reshard *plan, int phase, int is_dst, int rank);
/* The copy from one rank to another of a piece. */
heddle_status hd_plan_copy(hd_copy *out, const heddle_reshard *plan, int phase, const hd_piece *piece, int from,
                           int to);

int hd_plan_near(const heddle_reshard *plan, int peer); /* reached by loads and stores, itself included */

/* The step's geometry as the others need it. */
typedef struct hd_geometry {
    int64_t largest_bytes, run_bytes, src_stretch_bytes, dst_stretch_bytes; /* of the largest piece */
    int32_t sums, zero_fill, mail, near;
} hd_geometry;

heddle_status hd_step_compile(hd_geometry *out, heddle_reshard *plan, int phase);
/* all: [nranks][HD_MAX_STEPS]; decides the direction, the same on every rank, then makes the copies. */
heddle_status hd_step_build(heddle_reshard *plan, int phase, const hd_geometry *all);
/* Another direction, on every rank the same. */
heddle_status hd_step_redirect(heddle_reshard *plan, int phase, int push, int walk_src);
void hd_step_free(hd_step *step);

heddle_status hd_sums_build(heddle_reshard *plan, int phase);
void hd_sums_run(hd_sums *sums, heddle_reshard *plan);
void hd_sums_free(hd_sums *sums);

/* Reserves `bytes` in the plan's buffer (before it is allocated) and returns their offset. */
int64_t hd_plan_reserve(heddle_reshard *plan, int64_t bytes);

heddle_status hd_mail_build(heddle_reshard *plan, int phase, int packed);
void hd_mail_free(hd_mail *mail);

heddle_status hd_private_build(heddle_reshard *plan, int phase);
heddle_status hd_private_move(hd_step *step, heddle_reshard *plan);
heddle_status hd_private_probe(heddle_reshard *plan, int *works); /* collective: may peers be read by readv? */
void hd_private_free(hd_private *p);

heddle_status hd_plan_run(heddle_reshard *plan, const void *src, void *dst);
heddle_status hd_plan_tune(heddle_reshard *plan); /* collective */
void hd_plan_explain(heddle_reshard *plan);
/* Collective; every rank comes to the same result. The twin takes the request of the plan, dense and by rule; *out is
 * the plan itself when that is small enough, and *possible 0 when trials make no sense. */
heddle_status hd_twin_create(heddle_reshard **out, heddle_reshard *plan, int *possible);

/* Collective; own: the status of this rank's check of its arguments. */
heddle_status hd_plan_create(heddle_reshard **out, heddle_comm *comm, const hd_request *request, heddle_status own);

/* --- executing ------------------------------------------------------------------------------------------------------
 */

/* Two slots of each kind, used in turn by executions (not steps): a rank starts execution e+2 only when all its peers
 * have come to e+1. */
enum { HD_SLOT_READY = 0, HD_SLOT_DONE = 2 };

static inline int hd_plan_slot(const heddle_reshard *plan, int kind)
{
    return kind + (int)(plan->epoch & 1);
}

heddle_status hd_plan_await(heddle_reshard *plan, int kind, int peer, uint64_t *words, int nwords, int block,
                            int *here);
int64_t hd_plan_deadline(heddle_reshard *plan);
heddle_status hd_plan_begin(heddle_reshard *plan); /* the step plan->at */
/* As far as it goes without waiting (block: for anything but flags). */
heddle_status hd_plan_advance(heddle_reshard *plan, int block, int *stuck);
/* The whole execution of a simple plan in one go, when no other plan is in flight. */
heddle_status hd_plan_execute_simple(heddle_reshard *plan, const void *src, void *dst);
int hd_plan_is_simple(const heddle_reshard *plan);
void hd_plan_leave(heddle_reshard *plan); /* the plans in flight */
/* Says so to everybody who waits, and returns `st` with its sentence. */
heddle_status hd_plan_give_up(heddle_reshard *plan, heddle_status st);

enum {
    HD_REFUSED_NOT = 0,
    HD_REFUSED_OVERLAP,
    HD_REFUSED_SRC,
    HD_REFUSED_DST,
    HD_REFUSED_SRC_NULL,
    HD_REFUSED_DST_NULL,
    HD_REFUSED_UNALIGNED,
    HD_REFUSED_COUNT
};

int hd_refusal_find(heddle_reshard *plan, const void *src, void *dst);
const char *hd_refusal_text(int reason);
/* Tell everybody who might wait for this rank that it does not take part. */
heddle_status hd_refuse(heddle_reshard *plan, int reason);
/* After a refusal: the others have seen it before a mark of this rank is used again. */
heddle_status hd_settle(heddle_reshard *plan);

const void *hd_step_place(const heddle_reshard *plan, hd_place place, const void *src, const void *dst);

#endif
