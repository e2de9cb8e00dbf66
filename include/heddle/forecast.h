/* What a schedule will cost on a machine: seconds, bytes by link class, memory. Nothing is run.
 *
 * Seconds of a stage are those of the busiest rank: products, attention and passes over memory at the machine's rates,
 * and what its method exchanges, less what that hides behind the rank's own work (a ring's hops). An edge costs its
 * slowest link class: the larger of what any rank sends and receives there, at that class's rate. The seconds of a pass
 * are the sum; the planner minimises the same sum, from the same functions.
 *
 * A forecast is a plain immutable object; any thread. It keeps nothing of model, schedule and machine.
 */
#ifndef HEDDLE_FORECAST_H
#define HEDDLE_FORECAST_H

#include <heddle/machine.h>
#include <heddle/planner.h>
#include <heddle/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct heddle_forecast heddle_forecast;

typedef struct heddle_forecast_options {
    size_t struct_bytes;
    int training;  /* 1: forward, backward, gradients and the optimiser's state; 0: a forward pass */
    int recompute; /* training: 1: stages keep their inputs alone and run again on the way back */
    /* 0: stages work on all of their box. Else blocks whose workspace would be larger go through it in parts, the least
     * of which is a row or a fibre (heddle_block_options.most_workspace_bytes); attention over a sharded dim does not.
     * HEDDLE_ERR_ARG: below 0. */
    int64_t workspace_bytes;
} heddle_forecast_options;

HEDDLE_API void heddle_forecast_options_init(heddle_forecast_options *options);

/* Bytes of one link class, in one pass. */
typedef struct heddle_forecast_link {
    size_t struct_bytes;            /* HEDDLE_EMPTY sets it */
    const char *name;               /* owned by the forecast, like all pointers below */
    int64_t sent_max, received_max; /* of the busiest rank, summed over stages and edges */
    int64_t total;
} heddle_forecast_link;

/* Bytes of the rank that holds most. */
typedef struct heddle_forecast_memory {
    size_t struct_bytes; /* HEDDLE_EMPTY sets it */
    int64_t weights;     /* with gradients and optimiser state when training */
    int64_t activations; /* kept for the way back; of a forward pass the activation itself and its conditioning */
    int64_t workspace;   /* of the stage or edge that needs most */
    int64_t total;       /* at the peak */
    int peak_stage;      /* where it is; nstages: behind the last edge */
} heddle_forecast_memory;

/* A training step makes no sample: serial_s and sample_s are 0. */
typedef struct heddle_forecast_info {
    size_t struct_bytes; /* HEDDLE_EMPTY sets it */
    const char *machine;
    double time_s;     /* of a pass (a training step) */
    double compute_s;  /* the busiest rank's own work, summed over the stages */
    double transfer_s; /* all exchanges, hidden or not; training: sums of the gradients of all ranks, too */
    double hidden_s;   /* of them behind work: time_s = compute_s + transfer_s - hidden_s */
    double serial_s;   /* what every rank does alike once per sample (the model's serial part); not in time_s */
    double sample_s;   /* a whole sample: steps of the model, its guidance and cache, serial parts; 0: no steps given */
    int nlinks;
    heddle_forecast_memory memory;
    /* Ends outside the stages: tokens in, final layer's output gathered; not in time_s, for they are paid once. */
    int64_t end_bytes_per_rank_max;
    double end_s;
} heddle_forecast_info;

/* A stage, or the edge that leads into it. */
typedef struct heddle_forecast_step {
    size_t struct_bytes; /* HEDDLE_EMPTY sets it */
    double time_s, compute_s, transfer_s, hidden_s;
    int64_t memory_bytes;                        /* held by the fullest rank while this runs */
    int64_t link_sent_max[HEDDLE_MACHINE_LINKS]; /* by link class */
    int64_t link_received_max[HEDDLE_MACHINE_LINKS];
    int64_t link_total[HEDDLE_MACHINE_LINKS];
    int64_t kept_bytes; /* training: of memory_bytes what this stage keeps for the way back; of an edge 0 */
} heddle_forecast_step;

/* HEDDLE_ERR_LAYOUT: the schedule is not one of this model. HEDDLE_ERR_ARG: the mesh has more ranks than the machine.
 * options may be NULL. The caller owns *out. */
HEDDLE_CHECKED heddle_status heddle_forecast_create(heddle_forecast **out, const heddle_model *model,
                                                    const heddle_schedule *schedule, const heddle_machine *machine,
                                                    const heddle_forecast_options *options);
/* What an executor (heddle/train/executor.h) of a schedule with blocks in host memory will hold on the rank that holds
 * most of it, in the words of heddle_executor_memory. A forecast's memory is that of any program which runs the
 * schedule; an executor's blocks go through a box in parts, its layers have the same weights without a way back, and no
 * optimiser is its own. */
typedef struct heddle_forecast_executor {
    size_t struct_bytes; /* HEDDLE_EMPTY sets it */
    int64_t parameters, gradients;
    int64_t kept;
    int64_t methods;  /* where nothing is lent: those of heddle_executor_memory with `lent` */
    int64_t blocks;   /* the MLP's rows that are walked together are not among them; they are no more than 1024, or as
                         many for every 8 threads */
    int64_t switches; /* but for 4096 bytes of a rank that has nothing in some layout */
} heddle_forecast_executor;

/* options: `training` stands for the executor's `backward`; NULL: forward. Pure, of no machine. HEDDLE_ERR_ARG: NULL.
 * HEDDLE_ERR_LAYOUT: the schedule is not one of this model. */
HEDDLE_CHECKED heddle_status heddle_forecast_of_executor(heddle_forecast_executor *out, const heddle_model *model,
                                                         const heddle_schedule *schedule,
                                                         const heddle_forecast_options *options);

HEDDLE_API void heddle_forecast_destroy(heddle_forecast *forecast); /* NULL is legal */
/* HEDDLE_ERR_ARG: NULL, an index out of range (stages 0 .. nstages-1, edges 0 .. nstages, links 0 .. nlinks-1). */
HEDDLE_CHECKED heddle_status heddle_forecast_get_info(heddle_forecast_info *out, const heddle_forecast *forecast);
HEDDLE_CHECKED heddle_status heddle_forecast_stage(heddle_forecast_step *out, const heddle_forecast *forecast,
                                                   int stage);
HEDDLE_CHECKED heddle_status heddle_forecast_edge(heddle_forecast_step *out, const heddle_forecast *forecast, int edge);
HEDDLE_CHECKED heddle_status heddle_forecast_link_at(heddle_forecast_link *out, const heddle_forecast *forecast,
                                                     int link);

#ifdef __cplusplus
}
#endif

#endif
