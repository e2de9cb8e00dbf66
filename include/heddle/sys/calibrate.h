/* From times of operations to a machine: what `heddle calibrate` fits, and what programs that measure by
 * their own means can fit likewise. Nothing is measured here.
 *
 * A time of work is a sum of terms, each so much of one kind of work at one size: a block's projections, its attention,
 * its passes over memory. The fit finds the rate of every kind, dtype and size for which the sums come nearest to the
 * times, by their relative errors; no rate is negative, and what the times do not tell apart is left at one rate. Sizes
 * of terms are the points of the machine's tables, so measure few of them, each in several operations. Times of
 * exchanges become a table for every kind and number of ranks.
 */
#ifndef HEDDLE_CALIBRATE_H
#define HEDDLE_CALIBRATE_H

#include <heddle/machine.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a rank does by itself; what `amount` and `size` of a term are. */
typedef enum heddle_work {
    HEDDLE_WORK_PRODUCT = 0,      /* dense products: flops; rows of the activation */
    HEDDLE_WORK_ATTENTION,        /* softmax attention: flops of scores and values; keys that a query sees */
    HEDDLE_WORK_LINEAR,           /* linear attention: flops of its chunked form; rows of a fibre */
    HEDDLE_WORK_MEMORY,           /* norms, residuals, copies: bytes read and written, twice; no dtype matters */
    HEDDLE_WORK_SHARDED_ATTENTION /* as ATTENTION, by a method for sharded dims; it has other kernels on the CPU */
} heddle_work;

/* What ranks exchange. */
typedef enum heddle_exchange {
    HEDDLE_EXCHANGE_ALL_TO_ALL = 0, /* a switch */
    HEDDLE_EXCHANGE_RING,           /* a hop to the neighbour, everybody at the same time */
    HEDDLE_EXCHANGE_ALL_GATHER,
    HEDDLE_EXCHANGE_REDUCE_SCATTER
} heddle_exchange;

enum { HEDDLE_MEASURED_TERMS = 4, HEDDLE_MEASURED_MAX = 1024 };

typedef struct heddle_measured_term {
    heddle_work work;
    heddle_dtype dtype;
    double amount, size;
} heddle_measured_term;

/* A time. All alike on every rank. */
typedef struct heddle_measured {
    int ranks;  /* 0: work; >= 2: exchange among so many */
    int nterms; /* of work, 1 .. HEDDLE_MEASURED_TERMS */
    heddle_measured_term term[HEDDLE_MEASURED_TERMS];
    heddle_exchange exchange;
    double bytes;   /* that a rank sends in an exchange */
    double seconds; /* measured */
    double spread;  /* of repeated times, relative to them: how far they can be trusted; 0: not known */
    double fitted;  /* seconds by the machine; written by the fit */
} heddle_measured;

typedef struct heddle_calibration {
    size_t struct_bytes;     /* HEDDLE_EMPTY sets it */
    const char *name;        /* of the machine */
    const char *source;      /* a sentence: where and when it was measured */
    const char *link;        /* class of the links that all exchanges went by: "shm" */
    int ranks;               /* of the machine, all at one level */
    int64_t memory_bytes;    /* of a rank; 0: not known */
    double overlap_slowdown; /* what work and a transfer cost each other where both run at once, as times of the shorter
                                one: 1 nothing, 2 all that could be hidden; 0: not known, 1 */
    double crowding_slowdown; /* what work takes where all ranks work at once, as times of what it takes where one works
                                 alone: cores share caches, a power budget or one core's units. Rows of work are of all
                                 ranks at work. Below 1: not known, 1 */
    double launch_s; /* what every term of work begins with, whatever its amount: launches of a device. At most half of
                        what any time has for each of its terms counts; 0: nothing */
    int on_device;   /* 1: by blocks on devices. There the first product of linear attention is of the arrays' type, on
                        a CPU it costs what f32 costs; the planner counts it likewise */
} heddle_calibration;

/* `fitted` of every row is written. The caller owns *out.
 *   HEDDLE_ERR_ARG         NULL, a row out of range (the sentence names row and field), more than HEDDLE_MEASURED_MAX,
 *                          more than 12 sizes of one kind or 8 groups of an exchange
 *   HEDDLE_ERR_INFEASIBLE  no machine of this form explains the times: half of them are off by more than 50 %; or the
 *                          fit did not come to an end
 *   HEDDLE_ERR_NOMEM */
HEDDLE_CHECKED heddle_status heddle_machine_fit(heddle_machine **out, heddle_measured *measured, int count,
                                                const heddle_calibration *about);

#ifdef __cplusplus
}
#endif

#endif
