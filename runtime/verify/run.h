/* A model run on the ranks of a communicator and measured, and the same run on one rank, against which it is checked:
 * bytes as integers, values bit for bit where only data moved. */
#ifndef HD_VERIFY_RUN_H
#define HD_VERIFY_RUN_H

#include "runtime/files/feed.h"

#include <heddle/train/executor.h>
#include <limits.h>

/* In the place of a step: a graph of the whole way. */
enum { RUN_REPLAYS = INT_MAX };

/* How a pass is done: with waits behind every step, which are timed; enqueued as a whole; as a captured graph. */
typedef enum run_how { RUN_BY_STEPS, RUN_IN_ONE_GO, RUN_BY_GRAPH, RUN_HOWS } run_how;

/* What is run. */
typedef struct run_task run_task;
struct run_task {
    const heddle_model *model;
    heddle_model_info info;
    heddle_mesh mesh;
    const heddle_schedule *schedule;
    const feed *feed;
    int64_t passes; /* the fastest counts; of the way forward the median, too */
    int threads, backward, recompute;
    int blocks_on_device; /* where comm has a device blocks compute there; 0: switches alone are done there */
    int unfused;          /* of blocks on the device: as in heddle_executor_options */
    int in_one_go;    /* of blocks on the device: behind the passes as many in which nobody waits between stages, and
                             as many replays of a graph, where the wire admits it. Weights of all layers are kept */
    int is_reference; /* 1: the run on one rank that the others' is compared with */
    int *step_of;     /* [ranks] step each is in, from 1, or RUN_REPLAYS; memory shared by forked ranks; may be NULL */
    /* Told of every step that rank 0 begins (by steps; else of step 0 for the pass), and of step -1 at the end; NULL:
     * nobody watches. */
    void (*watch)(const run_task *task, run_how how, int pass, int step);
};

/* One entered stage on this rank, or the epilogue. All int64_t, so that ranks exchange them as they are. */
typedef struct run_step {
    int64_t planned, sent, messages; /* bytes */
    int64_t switch_ns, compute_ns;
    int64_t kept_bytes;   /* for the backward, by the block of this step */
    int64_t copied_bytes; /* to and from the device that the switch was done on */
} run_step;

/* What a rank holds: heddle_executor_memory, and what is the run's own: input, conditioning and their gradients. */
enum {
    RUN_MEMORY_PARAMETERS,
    RUN_MEMORY_GRADIENTS,
    RUN_MEMORY_KEPT,
    RUN_MEMORY_METHODS,
    RUN_MEMORY_BLOCKS,
    RUN_MEMORY_SWITCHES,
    RUN_MEMORY_PRODUCTS,
    RUN_MEMORY_THREADS,
    RUN_MEMORY_MESSAGES,
    RUN_MEMORY_ENDS,
    RUN_MEMORIES
};

enum { RUN_PATH_BYTES = 24 };

/* The sum of the parameters' gradients over the ranks. */
typedef struct run_reduction {
    int64_t elems, planned, sent, ns; /* bytes of this rank */
} run_reduction;

/* What every rank has all of in the end. */
enum { RUN_WHOLE_OUTPUT, RUN_WHOLE_DX, RUN_WHOLE_GRADIENT, RUN_WHOLES };

typedef struct run_result {
    int nsteps;                   /* stages and the epilogue */
    run_step *step;               /* [nsteps] of the fastest pass */
    char (*path)[RUN_PATH_BYTES]; /* [nsteps] how this rank moved; "" where nothing did */
    int64_t forward_ns;           /* of the fastest pass */
    run_how hows;                 /* how many of them there were: RUN_BY_STEPS + 1 .. RUN_HOWS */
    double *ms;                   /* [RUN_HOWS][2][passes] of the way forward, and back */
    const char *wire;             /* of switches between devices, as in heddle_executor_info */
    void *output;       /* whole activation, row-major, in the model's dtype; NULL where it was not asked for */
    int64_t peak_bytes; /* of this process */
    int64_t memory[RUN_MEMORIES], lent; /* behind the last pass; lent: of methods */
    /* The rest with backward only. */
    run_step *back;                    /* [nsteps] the way back through a stage and its edge */
    char (*back_path)[RUN_PATH_BYTES]; /* [nsteps] */
    int64_t backward_ns;               /* of the fastest pass, without the reduction */
    run_reduction reduction;
    void *dx;                  /* whole gradient of the input, in the model's dtype; NULL where it was not asked for */
    int nparts;                /* parameters of all stages, then the conditioning's vector and text */
    int64_t *part_elems;       /* [nparts] */
    float *gradient;           /* part after part; on rank 0 */
    uint64_t hash[RUN_WHOLES]; /* of this rank's bytes; 0 where it has none */
} run_result;

enum {
    RUN_TOTAL_FORWARD_NS,
    RUN_TOTAL_PEAK_BYTES,
    RUN_TOTAL_PID,
    RUN_TOTAL_BACKWARD_NS,
    RUN_TOTAL_REDUCE_NS,
    RUN_TOTAL_REDUCE_PLANNED,
    RUN_TOTAL_REDUCE_SENT,
    RUN_TOTAL_DEVICE, /* the rank's, where switches are done; -1: none */
    RUN_TOTAL_HASH,   /* RUN_WHOLES of them */
    RUN_TOTAL_LAST_HASH = RUN_TOTAL_HASH + RUN_WHOLES - 1,
    RUN_TOTAL_UNLENT, /* what methods hold, and what more they would if nothing were lent */
    RUN_TOTAL_MEMORY, /* RUN_MEMORIES of them */
    RUN_TOTAL_LAST_MEMORY = RUN_TOTAL_MEMORY + RUN_MEMORIES - 1,
    RUN_TOTALS
};

/* Of the passes, each of its slowest rank. */
typedef struct run_time {
    double fastest_ms, median_ms;
} run_time;

/* What the ranks know of one another. */
typedef struct run_report {
    const run_task *task;
    run_result mine;
    const char *comm;           /* heddle_comm_describe */
    run_time time[RUN_HOWS][2]; /* of the way forward, and back; 0: there was none */
    const char *kind;           /* "cuda": of the devices that switches are done on, NULL: none */
    int nranks;
    run_step *steps; /* all ranks' steps, rank after rank */
    run_step *back;  /* likewise of the way back, NULL without */
    int64_t *totals; /* [nranks][RUN_TOTALS] */
} run_report;

/* Collective. Where comm has a device switches are done there. want_output: every rank gets the whole output (and the
 * input's gradient). run_report_free in any case. */
heddle_status run_task_run(run_report *out, const run_task *task, heddle_comm *comm, int want_output);
void run_report_free(run_report *report);
/* The largest of the ranks' totals; total: RUN_TOTAL_FORWARD_NS ... */
int64_t run_report_most(const run_report *report, int total);

/* What was found, as sentences; "" where nobody looked. */
typedef struct run_verdict {
    int differs;
    char bytes[256], values[512];
    char back_bytes[256], dx[512], gradients[512];
    double gradient_error; /* relative to the largest gradient of the same tensor */
} run_verdict;

/* On one rank that has all of the output: the task again on a communicator of one, and everything compared.
 * *reference_ms is what that took. */
heddle_status run_check(run_verdict *out, double *reference_ms, const run_report *report);

/* "stage 's.attn' of layer 3", "backward of the epilogue": how sentences call a step. */
void run_step_name(char *out, size_t out_bytes, const run_task *task, int step);
/* Has any stage linear attention? */
int run_has_linear(const run_task *task);
/* Of a way through all stages: theirs, and the one to the end. */
static inline int run_steps(const run_task *task)
{
    return task->info.nstages * task->info.repeat + 1;
}
/* Options of the model's stage for its block. */
heddle_status run_block_options(heddle_block_options *options, const run_task *task, int stage);

#endif
