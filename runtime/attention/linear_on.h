/* A linear attention on a device: walks over whole arrays in the order of a stream, and states that go from rank to
 * rank between them by routes. */
#ifndef HD_ATTENTION_LINEAR_ON_H
#define HD_ATTENTION_LINEAR_ON_H

#include "runtime/attention/attention_internal.h"
#include "runtime/attention/linear_internal.h"
#include "runtime/attention/linear_walks.h"
#include "runtime/attention/on_device.h"
#include "runtime/move/carrier.h"

/* States of the ranks before this one, in one direction of forward or of backward, by the steps of a method; f32
 * [batch][heads][dk][dv], in memory that peers reach. */
typedef struct hd_linear_flow {
    int which;       /* the states that begin with what comes */
    int leftward, p; /* this rank's place, from where the states begin */
    float *own;      /* of this rank's rows alone */
    float *in, *out; /* of all before; sent on */
    float *come;     /* scan: by the last step. lasp2: of all ranks, by member */
    hd_route **route;
    int nroutes;
    struct hd_linear_flow *twin; /* lasp2: has gathered the same states */
} hd_linear_flow;

struct hd_linear_on {
    const hd_linear_problem *problem;
    heddle_comm *comm;
    hd_device *device;
    heddle_stream own_stream, beside; /* beside: states go from rank to rank while the call's stream walks */
    void *forked, *joined;            /* events */
    hd_enqueued used;                 /* by the last call */
    hd_linear_walks walks;            /* arrays and stream are those of the call */
    float *last;                      /* the state behind this rank's rows */
    hd_linear_flow flow[2][2];        /* of forward, of backward: rightward, leftward */
    int64_t saved_bytes, workspace_bytes;
};

/* --- linear_on_flows.c */

/* Collective. */
heddle_status hd_linear_flows_make(struct hd_linear_on *on);
void hd_linear_flows_free(struct hd_linear_on *on);
/* flow->in from everybody's flow->own, in the order of the walks' stream; nothing where this rank's place is 0. */
heddle_status hd_linear_flow_go(struct hd_linear_on *on, hd_linear_flow *flow);
void hd_linear_flows_moved(heddle_attention_traffic *out, const struct hd_linear_on *on);

/* --- linear_on_make.c */

/* f32 of the device, which peers reach; counted with those of *bytes. */
heddle_status hd_linear_on_take(float **out, struct hd_linear_on *on, int64_t elems, int64_t *bytes);

/* --- linear_on.c: a call, on arrays of fibres of two dims. *x: outer, inner and the tokens of forward or of backward,
 * which have been looked at. */
heddle_status hd_linear_on_forward(heddle_linear_attention *a, const hd_linear_walks *x, heddle_stream stream);
heddle_status hd_linear_on_backward(heddle_linear_attention *a, const hd_linear_walks *x, heddle_stream stream);

#endif
