/* Operations that a machine is known by, timed on the ranks of a communicator, on their CPUs or devices: blocks on
 * parts of several sizes, copies, switches, hops, gathers and sums among groups of several sizes. Never a model. */
#ifndef HD_VERIFY_CALIBRATE_H
#define HD_VERIFY_CALIBRATE_H

#include <heddle/heddle.h>
#include <heddle/sys/calibrate.h>

enum { CALIBRATE_TURNS = 8, CALIBRATE_MORE_TURNS = 4, CALIBRATE_TURN_TIMES = 12 };
enum { CALIBRATE_MOST_TURNS = CALIBRATE_TURNS + CALIBRATE_MORE_TURNS };
enum {
    CALIBRATE_TIMES = CALIBRATE_MOST_TURNS * CALIBRATE_TURN_TIMES,
    CALIBRATE_WHAT_BYTES = 48,
    CALIBRATE_SAMPLES = 200
};
enum { CALIBRATE_HELD = 3, CALIBRATE_WIRE_BYTES = 16, CALIBRATE_PRODUCTS_BYTES = 512, CALIBRATE_DEVICE_BYTES = 64 };

/* An operation and its times. */
typedef struct calibrate_sample {
    heddle_measured about;                /* what the fit is told */
    const char *kind;                     /* "mlp", "attention" ...: errors are told by kind */
    char what[CALIBRATE_WHAT_BYTES];      /* "bf16 1024 rows x 512" */
    double ms[CALIBRATE_TIMES];           /* on this rank; of an exchange of the slowest */
    int times, turn_times;                /* all of them; those of a turn, */
    int64_t repeats;                      /* each of so many runs */
    double wall_ms, core_ms;              /* of all runs on this rank, and that for which it had a core */
    double own_ms[CALIBRATE_MOST_TURNS];  /* means of the middle of a turn's times on this rank, */
    double turn_ms[CALIBRATE_MOST_TURNS]; /* and of the rank that was slowest then */
    int turns, agrees;
    char wire[CALIBRATE_WIRE_BYTES]; /* of an exchange between devices; else "" */
} calibrate_sample;

typedef struct calibrate_run calibrate_run;

/* Collective, the first three. */
typedef struct calibrate_operation {
    heddle_status (*open)(calibrate_run *run); /* close is called in any case */
    heddle_status (*once)(calibrate_run *run);
    void (*close)(calibrate_run *run);
    /* each `once`, not timed: caches as a pass leaves them; NULL: as they are */
    heddle_status (*before)(calibrate_run *run);
} calibrate_operation;

/* What times on a device want: the rank's own stream, two timers, and a block whose workspace all others share; and
 * which device it is. */
typedef struct calibrate_there {
    heddle_stream stream;
    void *begin, *end;
    heddle_block *keeper;
    int64_t memory_bytes;
    char device[CALIBRATE_DEVICE_BYTES];
} calibrate_there;

/* An operation at one size, and what it holds while it is open. */
struct calibrate_run {
    const calibrate_operation *operation;
    heddle_comm *comm;
    const calibrate_there *there; /* all of it is on the device of comm; NULL: in host memory */
    calibrate_sample *sample;
    char *others; /* data of other stages, as much as caches hold */
    int64_t others_bytes;
    int is_rough;                         /* small operations alone */
    int shares_core;                      /* with other ranks, so that to be without is no exception */
    heddle_stage_kind kind;               /* of a block */
    int64_t rows, length, channels, text; /* of the block's part of the activation; length: of a fibre */
    heddle_dtype dtype;
    int64_t bytes; /* sent by a rank */
    heddle_block *block;
    heddle_attention *attention;
    heddle_tensor x;
    heddle_box box;
    heddle_conditioning conditioning;
    heddle_reshard *reshard;
    heddle_comm *ring;
    void *held[CALIBRATE_HELD];
    int had_core; /* in what was timed last */
};

/* The list; run number `index`, its sample described. 0 behind the last. */
int calibrate_work_at(calibrate_run *run, int index);
int calibrate_exchange_at(calibrate_run *run, int ranks, int index);

/* run->held[which], where the operation is done, with numbers; and all of them free again. */
heddle_status calibrate_hold(calibrate_run *run, int which, heddle_dtype dtype, size_t elems);
void calibrate_let_go(calibrate_run *run);
/* As the host reads through `others` and the activation. */
heddle_status calibrate_there_meet(calibrate_run *run);
/* Behind a barrier, by the device's clock, of one of them. */
heddle_status calibrate_there_time(double *ms, calibrate_run *run, int64_t repeats);

/* Collective, these two. Runs behind a barrier, and what one of them took on this rank. */
heddle_status calibrate_time_runs(double *ms, calibrate_run *run, int64_t repeats);
/* A turn: as many times as fit the budget; of work those in which the rank had its core, where there are such. */
heddle_status calibrate_time_operation(calibrate_run *run, double budget_ms);
/* Of the middle half of the turns, which a while of something else moves little: about.seconds, the mean; about.spread,
 * how far they are apart (of one turn, its times); agrees: they are near each other. */
void calibrate_conclude(calibrate_sample *sample);
/* Collective, behind that: what work takes ranks that wait for the slowest, as times of what it takes one alone. */
heddle_status calibrate_waiting(double *out, const calibrate_sample *sample, int samples, heddle_comm *comm);

/* What is told while it lasts, by rank 0. */
typedef struct calibrate_options {
    double seconds;                                                  /* to spend on times */
    int shares_cores;                                                /* more ranks than cores */
    int64_t cache_bytes;                                             /* of the caches that serve a rank; 0: not known */
    void (*watch)(const calibrate_sample *sample, int done, int of); /* NULL: nobody watches; sample NULL: the end */
} calibrate_options;

typedef struct calibrate_result {
    calibrate_sample *sample;
    int samples;
    double overlap_slowdown, crowding_slowdown; /* as in heddle_calibration; 1 of one rank */
    double coreless; /* the part of work's time in which a rank had no core, of the one that lacked it most */
    /* Of devices; 0 and "": in host memory. */
    int devices, is_rough; /* different ones; small operations alone */
    int64_t memory_bytes;  /* of a rank's share of its device */
    double launch_s;       /* of one of many launches behind one another */
    char wire[CALIBRATE_WIRE_BYTES], products[CALIBRATE_PRODUCTS_BYTES]; /* how products are carried out */
} calibrate_result;

/* Not collective. HEDDLE_ERR_UNSUPPORTED: a device without kernels, or without `memory`. Free in any case. */
heddle_status calibrate_there_make(calibrate_there *out, heddle_comm *comm);
/* Collective: devices and memory_bytes. */
heddle_status calibrate_there_share(calibrate_result *out, const calibrate_there *there, heddle_comm *comm);
void calibrate_there_free(calibrate_there *there, heddle_comm *comm);
/* Collective; the operation is of a block. */
heddle_status calibrate_there_products(calibrate_result *out, calibrate_run *run);

/* Collective, the same on every rank: every operation several times, all ranks at the same time, in several turns
 * through the list, because a machine's speed drifts; in one where there is little time. Where comm has a device it is
 * what is measured, in fewer turns where opening operations takes long. calibrate_free in any case.
 * HEDDLE_ERR_NOMEM or what its device says, on the others HEDDLE_ERR_PEER: a rank lacks memory, or its device what
 * measuring wants, before anything is measured. */
heddle_status calibrate_measure(calibrate_result *out, heddle_comm *comm, const calibrate_options *options);
void calibrate_free(calibrate_result *result);

#endif
