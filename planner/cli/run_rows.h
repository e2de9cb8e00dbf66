/* Sums for the reports of a run: forward and, in run_report_step.c, of a training step. */
#ifndef HD_CLI_RUN_ROWS_H
#define HD_CLI_RUN_ROWS_H

#include "run.h"

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
    int64_t planned_max, sent_max, planned, sent, messages;
    int64_t forward_ns, switch_ns, compute_ns;
    int64_t kept_max;
} run_sum;

/* run_report.c */
/* Rows in the order in which they first appear; *count of them. The caller frees. */
run_row *run_make_rows(int *count, const run_report *report);
run_sum run_sum_all(const run_report *report);

#endif
