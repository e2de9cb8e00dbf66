/* What a reshard is made of: what was asked for, the compiled problem, and the route that carries it out. */
#ifndef HD_PLAN_H
#define HD_PLAN_H

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/move/carrier.h"
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

/* --- the plan ----------------------------------------------------------------------------------------------------- */

struct heddle_reshard {
    heddle_comm *comm;
    hd_device *const *device; /* of comm, attached by now or NULL */
    int rank, nranks;
    hd_request request;
    hd_problem problem;
    hd_facts *facts; /* [nranks] */
    size_t elem_bytes;
    int nphases;
    hd_route *route;
    hd_route *bare; /* of it: transfers that are chosen and timed; NULL: there is nothing to choose */

    /* one execution */
    const void *src; /* accepted when is_checked */
    void *dst;
    int is_checked;
    int is_started; /* by heddle_reshard_start, and nobody has heard of its end: no other one may begin */
    int64_t resets; /* of the communicator when it was started */

    /* information */
    int64_t *bytes_to, *bytes_from;    /* [nranks] */
    int64_t plan_bytes, largest_bytes; /* sent by this rank; src and dst of the rank that has most */
    char path[32], kernel_name[32], trials[640], line_text[HEDDLE_LINE_BYTES], why[1152];
};

/* Collective: fills plan->facts; plan is NULL where `mine`, which is returned, has failed. HEDDLE_ERR_MISMATCH on every
 * rank names the first rank and field that differ. */
heddle_status hd_facts_agree(heddle_reshard *plan, heddle_comm *comm, heddle_status mine);
/* A phase as items (items.c), and where its zeros go. The lists are freed with hd_items_free. */
heddle_status hd_items_make(hd_transfer_spec *out, hd_copy *clear, heddle_reshard *plan, int phase);
void hd_items_free(hd_transfer_spec *spec);

/* Bytes this rank has sent so far, counted while moving. */
int64_t hd_reshard_measured_bytes(const heddle_reshard *plan);
/* 1: they are counted when the device gets to it, which may be after execute has returned. */
int hd_reshard_counts_late(const heddle_reshard *plan);
/* Executions that change what they move (hd_route_run_gated). */
int hd_reshard_takes_gate(const heddle_reshard *plan);
heddle_status hd_reshard_execute_gated(heddle_reshard *plan, const void *src, const hd_device_gate *gate, void *dst,
                                       heddle_stream stream);
heddle_status hd_plan_tune(heddle_reshard *plan); /* collective */
/* before: what the sentence begins with. */
void hd_plan_explain(heddle_reshard *plan, const char *before);
/* In any phase, of any rank: ways that its bytes take. */
enum { HD_WAY_NEAR = 1, HD_WAY_MESSAGES = 2 };
int hd_plan_ways(const heddle_reshard *plan);
/* Collective; every rank comes to the same result. The twin takes the request of the plan, dense and by rule; *out is
 * the plan itself when that is small enough, and *possible 0 when it cannot be made smaller. */
heddle_status hd_twin_create(heddle_reshard **out, heddle_reshard *plan, int *possible);

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
    HD_REFUSED_COUNT
};

/* Refused for one of these reasons, or HEDDLE_OK: src and dst are known to be good, until others come. */
heddle_status hd_reshard_accept(heddle_reshard *plan, const void *src, void *dst);
/* Until somebody has heard of its end, which every rank does at the same place of its program: whether it has come to
 * its end is a matter of time, and another one on each rank (started.c). */
heddle_status hd_reshard_check_free(heddle_reshard *plan);

#endif
