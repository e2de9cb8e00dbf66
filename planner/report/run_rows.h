/* Sums for the reports of a run, forward and back. */
#ifndef HD_REPORT_RUN_ROWS_H
#define HD_REPORT_RUN_ROWS_H

#include "planner/report/run.h"

enum { RUN_TEXT_BYTES = 128 };

/* Steps of the same stage, layout and method. */
typedef struct run_row {
    char name[RUN_TEXT_BYTES], layout[RUN_TEXT_BYTES], method[16], path[RUN_PATH_BYTES];
    int runs;
    int64_t planned, sent;         /* by the rank that sends most */
    int64_t switch_ns, compute_ns; /* of the slowest rank */
    int64_t kept_bytes;            /* of the rank that keeps most */
} run_row;

/* Over all steps. */
typedef struct run_sum {
    int64_t planned_max, sent_max, planned, sent, messages, copied;
    int64_t forward_ns, switch_ns, compute_ns;
    int64_t kept_max;
} run_sum;

/* A way through the stages, and what is told of it. */
typedef struct run_way {
    run_row *row; /* in the order in which they first appear; NULL: no memory */
    int rows;
    run_sum sum;
} run_way;

/* back 0: forward, 1: the way back. run_way_free in any case. */
run_way run_way_of(const run_report *report, int back);
void run_way_free(run_way *way);
/* Is the step one of this row? */
int run_row_has(const run_report *report, const run_row *row, int step);

/* The sum of the gradients, and the way back's time: of all ranks, of the slowest, of the one that sends most. */
typedef struct run_step_sum {
    int64_t backward_ns, reduce_ns;
    int64_t reduce_planned, reduce_sent, reduce_max, reduce_plan_max;
} run_step_sum;

run_step_sum run_sum_step(const run_report *report);

/* "cuda:0, cuda:1": the devices that switches are done on; 0: they are in host memory. */
int run_devices(char *out, size_t out_bytes, const run_report *report);

static inline double run_ms(int64_t ns)
{
    return (double)ns * 1e-6;
}

#endif
