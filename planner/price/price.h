/* What one stage or one edge costs on a machine. The search minimises sums of these; a forecast lists them. Seconds are
 * whole picoseconds, so that sums do not depend on their order; they saturate at INT64_MAX. */
#ifndef HD_PRICE_H
#define HD_PRICE_H

#include "planner/machine/machine.h"
#include "planner/model/model.h"
#include "runtime/schedule/schedule_internal.h"

typedef struct hd_price {
    int64_t time_ps; /* compute + transfer - hidden */
    int64_t compute_ps, transfer_ps, hidden_ps;
    hd_edge_cost moved;                       /* of the pass that is priced: forward, and backward where that counts */
    hd_link_bytes link[HEDDLE_MACHINE_LINKS]; /* by level of the machine, the innermost first */
    int64_t input_bytes;     /* of the rank that has most: what the stage works on; what an edge moves from */
    int64_t kept_bytes;      /* from forward to backward, of the same rank */
    int64_t workspace_bytes; /* while it runs, besides its input; of an edge what it moves to */
    int64_t method_bytes;    /* of these the object of its method */
} hd_price;

/* What stages and edges are priced for. machine NULL: bytes and messages alone, seconds are 0. */
typedef struct hd_pricer {
    const heddle_model *model;
    const heddle_machine *machine;
    const heddle_mesh *mesh;
    int backward;         /* the way back counts, too */
    int recompute;        /* and runs the stages again */
    int64_t in_parts;     /* as workspace_bytes of heddle_forecast_options */
    int64_t channels;     /* of the activation on an edge; 0: those of the model's shape */
    hd_edge_parts *parts; /* of edges without the channels; NULL: none are kept */
    int of_few;           /* with parts: seconds and bytes of the busiest of an edge are a bound from below */
} hd_pricer;

/* The machine's levels for a mesh: the last of them holds all ranks. */
hd_levels hd_price_levels(const heddle_machine *machine, const heddle_mesh *mesh);
/* Makes the parts, which the caller frees; model, machine and mesh are set. */
heddle_status hd_pricer_keep(hd_pricer *pricer);
/* Are ranks that share a host a box of coordinates, at every level? Then edges are priced in closed form. */
int hd_pricer_nests(const hd_pricer *pricer);
/* Stage k of the model's list in `layout` by `method`, which may run there. */
heddle_status hd_price_stage(hd_price *out, const hd_pricer *pricer, int k, const heddle_layout *layout,
                             const hd_method *method);
/* is_last: the edge behind the last stage, whose gradient is another one (hd_edge_backward_cost_of). */
heddle_status hd_price_edge(hd_price *out, const hd_pricer *pricer, const heddle_layout *from, const heddle_layout *to,
                            int is_last);
/* Picoseconds in which the ranks add up the gradients of whole weights; 0 without backward, machine or other ranks. The
 * number of ranks alone decides. */
int64_t hd_price_gradients_ps(const hd_pricer *pricer);
/* Bytes of a rank that do not depend on the schedule: weights, and with backward gradients and optimiser state. */
heddle_status hd_price_resident(int64_t *bytes, const hd_pricer *pricer);
/* Text and conditioning of the samples, which every rank holds all the time. */
int64_t hd_price_conditioning(const heddle_model *model);
/* Seconds and bytes of the model's ends (tokens in, final layer out), where the stages begin and end in these
 * layouts. */
heddle_status hd_price_ends(hd_price *out, const hd_pricer *pricer, const heddle_layout *first,
                            const heddle_layout *last);

#endif
