/* What a reshard is made of: what was asked for, the compiled problem, and the transfers that carry it out. */
#ifndef HD_PLAN_H
#define HD_PLAN_H

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/move/device_push.h"
#include "runtime/move/device_staging.h"
#include "runtime/move/move.h"
#include "runtime/reshard/compile.h"

/* --- what every rank tells every other at creation (agree.c) ------------------------------------------------------ */

/* What may differ between ranks. */
typedef struct hd_facts {
    int64_t src_stride_elems[HEDDLE_MAX_DIMS], dst_stride_elems[HEDDLE_MAX_DIMS];
    int64_t src_bytes, dst_bytes;
} hd_facts;

typedef struct hd_request {
    heddle_reshard_line line;
    heddle_reshard_options options;
    int64_t src_stride_elems[HEDDLE_MAX_DIMS], dst_stride_elems[HEDDLE_MAX_DIMS]; /* always filled */
    int64_t src_bytes, dst_bytes;
    int64_t dst_len[HEDDLE_MAX_DIMS]; /* in memory order */
    int is_dst_dense;                 /* no strides were asked for */
    const hd_kernels *kernels;
    const hd_copy_kernel *kernel; /* forced, or NULL */
} hd_request;

/* A caller's options over the defaults. */
heddle_status hd_reshard_options_take(heddle_reshard_options *out, const heddle_reshard_options *options);
heddle_status hd_request_take(hd_request *out, const heddle_comm *comm, const heddle_reshard_line *line,
                              const heddle_reshard_options *options);
/* Bytes of both arrays, to compare with caches: of each at most 2^45 count, so that sums over ranks stay in 64 bits
 * where strides reach far. */
static inline int64_t hd_footprint_bytes(int64_t src_bytes, int64_t dst_bytes)
{
    const int64_t most = (int64_t)1 << 45;
    return (src_bytes < most ? src_bytes : most) + (dst_bytes < most ? dst_bytes : most);
}

/* Collective: facts[nranks]. Returns `mine` when that failed; HEDDLE_ERR_MISMATCH on every rank names the first rank
 * and field that differ. */
heddle_status hd_facts_agree(hd_facts *facts, heddle_comm *comm, const hd_request *request, heddle_status mine);

/* --- the plan ----------------------------------------------------------------------------------------------------- */

/* Memory between two phases, and dense copies of strided arrays for phases that see flat ones. */
typedef struct hd_workspace {
    char *memory; /* peers can reach it */
    int64_t bytes, offset[2];
    int64_t src_offset, dst_offset; /* of the dense copies; -1: flat phases read src and write dst as they are */
    hd_local before, after;         /* that make the one and read the other */
} hd_workspace;

/* Phases as lists of parts (parts.c): what hd_transfers_create takes. */
typedef struct hd_phase_parts {
    hd_transfer_spec spec;
    hd_copy clear;
} hd_phase_parts;

/* What a plan of a device's arrays does, on one wire. The communicator's wire chooses when a plan is made (wire.c). */
typedef struct hd_wire_ops {
    const char *name; /* heddle_reshard_info.wire */
    int owns_work;    /* memory between phases is allocated by create */
    /* Not collective; before the line is compiled. NULL: nothing. */
    heddle_status (*prepare)(heddle_reshard *plan);
    /* Collective: makes what carries the phases out. parts: one per phase; mine: the status of what this rank has done
     * so far. hd_plan_make_transfers, where the phases run as transfers. */
    heddle_status (*create)(heddle_reshard *plan, const hd_phase_parts *parts, heddle_status mine);
    /* Fills in path, kernel_name and why. */
    void (*explain)(heddle_reshard *plan);
    heddle_status (*execute)(heddle_reshard *plan, const void *src, void *dst, heddle_stream stream);
    heddle_status (*start)(heddle_reshard *plan, const void *src, void *dst, heddle_stream stream);
    heddle_status (*test)(heddle_reshard *plan, int *done);
    heddle_status (*wait)(heddle_reshard *plan);
    heddle_status (*wait_on)(heddle_reshard *plan, heddle_stream stream);
    int64_t (*measured)(const heddle_reshard *plan); /* NULL: counted before execute returns */
    /* Over what is known of plan and transfers: bytes by way, memory, counters. */
    void (*inform)(heddle_reshard_info *info, const heddle_reshard *plan);
    void (*destroy)(heddle_reshard *plan); /* after the transfers, also of a plan that was not finished */
} hd_wire_ops;

typedef struct hd_mailed hd_mailed;

struct heddle_reshard {
    heddle_comm *comm;
    hd_device *const *device; /* of comm, attached by now or NULL */
    int rank, nranks;
    hd_request request;
    hd_problem problem;
    hd_facts *facts; /* [nranks] */
    size_t elem_bytes;
    hd_channel *channel;
    hd_transfer *transfer[HD_MAX_LEGS]; /* one per phase */
    int nphases;
    hd_workspace work;
    const hd_wire_ops *wire; /* NULL: arrays of the host */
    hd_staging *staging;     /* wire host: the plan works on images in host memory */
    hd_mailed *mailed;       /* wire nccl */
    void *staged;            /* dst of the execution under way */
    int is_staged;           /* its image is still to be copied there */
    hd_push *push;           /* wire peer */
    int64_t *pushed_to;      /* [nranks] counted by the device */

    /* one execution */
    const void *src; /* accepted when is_checked */
    void *dst;
    hd_leg leg[HD_MAX_LEGS]; /* on them */
    int is_checked;
    int is_unfinished; /* dst is still to be filled from its dense copy */
    int is_started;    /* by heddle_reshard_start, and nobody has heard of its end: no other one may begin */
    int64_t resets;    /* of the communicator when it was started */

    /* information */
    int64_t executions;
    int64_t *bytes_to, *bytes_from; /* [nranks] */
    int64_t plan_bytes;
    char path[32], kernel_name[32], trials[640], line_text[HEDDLE_LINE_BYTES], why[1152];
};

heddle_status hd_parts_make(hd_phase_parts *out, heddle_reshard *plan, int phase);
void hd_parts_free(hd_phase_parts *parts);

/* Bytes this rank has sent so far, counted while moving. */
int64_t hd_reshard_measured_bytes(const heddle_reshard *plan);
/* 1: they are counted when the device gets to it, which may be after execute has returned. */
int hd_reshard_counts_late(const heddle_reshard *plan);
heddle_status hd_plan_tune(heddle_reshard *plan); /* collective */
/* Collective: hd_wire_ops.create of a plan whose phases run as transfers, tuned. */
heddle_status hd_plan_make_transfers(heddle_reshard *plan, const hd_phase_parts *parts, heddle_status mine);
/* Of transfers; before: what the sentence begins with. */
void hd_plan_explain(heddle_reshard *plan, const char *before);
/* Executions by transfers: on what hd_plan_space says. */
heddle_status hd_plan_run(heddle_reshard *plan, const void *src, void *dst);
heddle_status hd_plan_start(heddle_reshard *plan, const void *src, void *dst);
heddle_status hd_plan_test(heddle_reshard *plan, int *done);
heddle_status hd_plan_wait(heddle_reshard *plan);
/* In any phase, of any rank: ways that its bytes take. */
enum { HD_WAY_NEAR = 1, HD_WAY_MESSAGES = 2 };
int hd_plan_ways(const heddle_reshard *plan);
/* Collective; every rank comes to the same result. The twin takes the request of the plan, dense and by rule; *out is
 * the plan itself when that is small enough, and *possible 0 when trials make no sense. */
heddle_status hd_twin_create(heddle_reshard **out, heddle_reshard *plan, int *possible);

/* Where what the plan works on lies. */
static inline heddle_space hd_plan_space(const heddle_reshard *plan)
{
    return plan->staging != NULL ? HEDDLE_SPACE_HOST : plan->request.options.space;
}

/* --- arrays of a device (wire.c) ---------------------------------------------------------------------------------- */

/* Of the communicator's wire; for a plan of host memory NULL. */
const hd_wire_ops *hd_wire_of(const heddle_comm *comm, heddle_space space);
extern const hd_wire_ops hd_wire_host; /* staged.c */
extern const hd_wire_ops hd_wire_nccl; /* mailed.c */
extern const hd_wire_ops hd_wire_peer; /* peer.c */
/* Arrays of wires without a channel to refuse them by: this rank's plan->src and ->dst from now on, or HEDDLE_ERR_ARG.
 * The others would wait for a rank that cannot take part: it gives up. */
heddle_status hd_plan_take_arrays(heddle_reshard *plan, const void *src, void *dst);
/* The stream is not being captured, or HEDDLE_ERR_ARG. */
heddle_status hd_plan_need_eager(const heddle_reshard *plan, heddle_stream stream);

/* --- arguments of an execution (execute.c) ------------------------------------------------------------------------ */

enum {
    HD_REFUSED_NOT = 0,
    HD_REFUSED_OVERLAP,
    HD_REFUSED_SRC,
    HD_REFUSED_DST,
    HD_REFUSED_SRC_NULL,
    HD_REFUSED_DST_NULL,
    HD_REFUSED_UNALIGNED,
    HD_REFUSED_SRC_SPACE,
    HD_REFUSED_DST_SPACE,
    HD_REFUSED_SRC_DEVICE,
    HD_REFUSED_DST_DEVICE,
    HD_REFUSED_CAPTURE,
    HD_REFUSED_NOT_EXECUTE,
    HD_REFUSED_COUNT
};

extern const char *const hd_refusals[HD_REFUSED_COUNT];

/* What is wrong with arrays that lie, or should lie, in `space`, without asking who reaches them. */
heddle_status hd_refusal_of(int *reason, const heddle_reshard *plan, heddle_space space, const void *src,
                            const void *dst);
/* Where a phase reads or writes, of the arrays taken last. */
void *hd_plan_place(const heddle_reshard *plan, hd_place where);

#endif
