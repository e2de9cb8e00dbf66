/* What a reshard is made of: what was asked for, the compiled problem, and the transfers that carry it out. */
#ifndef HD_PLAN_H
#define HD_PLAN_H

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
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
    const hd_kernels *kernels;
    const hd_copy_kernel *kernel; /* forced, or NULL */
} hd_request;

/* A caller's options over the defaults. */
heddle_status hd_reshard_options_take(heddle_reshard_options *out, const heddle_reshard_options *options);
heddle_status hd_request_take(hd_request *out, const heddle_comm *comm, const heddle_reshard_line *line,
                              const heddle_reshard_options *options);
/* Collective: facts[nranks]. Returns `mine` when that failed; HEDDLE_ERR_MISMATCH on every rank names the first rank
 * and field that differ. */
heddle_status hd_facts_agree(hd_facts *facts, heddle_comm *comm, const hd_request *request, heddle_status mine);

/* --- the plan ----------------------------------------------------------------------------------------------------- */

/* Memory between two phases, and dense copies of strided arrays for phases that see flat ones. */
typedef struct hd_work {
    char *memory; /* peers can reach it */
    int64_t bytes, offset[2];
    int64_t src_offset, dst_offset; /* of the dense copies; -1: flat phases read src and write dst as they are */
    hd_copy src_dense, dst_dense;
    hd_copy_by src_by, dst_by;
} hd_work;

struct heddle_reshard {
    heddle_comm *comm;
    int rank, nranks;
    hd_request request;
    hd_problem problem;
    hd_facts *facts; /* [nranks] */
    size_t elem_bytes;
    hd_channel *channel;
    hd_transfer *transfer[HD_MAX_LEGS]; /* one per phase */
    int nphases;
    int rule_direction; /* push + 2 * walk_src of phase 0 before trials */
    hd_work work;
    hd_staging *staging; /* arrays of a device: the plan works on their images in host memory. NULL: it works on them */
    void *staged;        /* dst of the execution under way */
    int is_staged;       /* its image is still to be copied there */

    /* one execution */
    const void *src; /* accepted when is_checked */
    void *dst;
    hd_leg leg[HD_MAX_LEGS]; /* on them */
    int is_checked;
    int is_unfinished; /* dst is still to be filled from its dense copy */

    /* information */
    int64_t executions;
    int64_t *bytes_to, *bytes_from; /* [nranks] */
    int64_t plan_bytes;
    char path[32], kernel_name[32], trials[640], line_text[HEDDLE_LINE_BYTES], why[1152];
};

/* Phases as lists of parts (parts.c): what hd_transfers_create takes. */
typedef struct hd_phase_parts {
    hd_transfer_spec spec;
    hd_copy clear;
} hd_phase_parts;

heddle_status hd_parts_make(hd_phase_parts *out, heddle_reshard *plan, int phase);
void hd_parts_free(hd_phase_parts *parts);

/* Bytes this rank has sent so far, counted while moving. */
int64_t hd_reshard_measured_bytes(const heddle_reshard *plan);
heddle_status hd_plan_run(heddle_reshard *plan, const void *src, void *dst);
heddle_status hd_plan_tune(heddle_reshard *plan); /* collective */
void hd_plan_explain(heddle_reshard *plan);
/* Any phase, any rank. */
int hd_plan_any_near(const heddle_reshard *plan);
int hd_plan_any_messages(const heddle_reshard *plan);
/* Collective; every rank comes to the same result. The twin takes the request of the plan, dense and by rule; *out is
 * the plan itself when that is small enough, and *possible 0 when trials make no sense. */
heddle_status hd_twin_create(heddle_reshard **out, heddle_reshard *plan, int *possible);

/* Where what the plan works on lies. */
static inline heddle_space hd_plan_space(const heddle_reshard *plan)
{
    return plan->staging != NULL ? HEDDLE_SPACE_HOST : plan->request.options.space;
}

/* --- arrays of a device (staged.c); with staging only ------------------------------------------------------------ */

heddle_status hd_staged_create(heddle_reshard *plan); /* not collective */
/* src to its image: an execution on the images may begin. */
heddle_status hd_staged_begin(heddle_reshard *plan, const void *src, void *dst, heddle_stream stream);
/* st: how the execution went. Its image to dst, in the order of the stream, once. */
heddle_status hd_staged_end(heddle_reshard *plan, heddle_status st);

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
    HD_REFUSED_COUNT
};

extern const char *const hd_refusals[HD_REFUSED_COUNT];

/* What is wrong with arrays that lie, or should lie, in `space`, without asking who reaches them. */
heddle_status hd_refusal_of(int *reason, const heddle_reshard *plan, heddle_space space, const void *src,
                            const void *dst);
/* Nothing is in flight, or HEDDLE_ERR_ARG. */
heddle_status hd_plan_check_free(heddle_reshard *plan);

#endif
