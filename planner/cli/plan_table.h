/* The table that `heddle plan` prints. */
#ifndef HD_CLI_PLAN_TABLE_H
#define HD_CLI_PLAN_TABLE_H

#include "cli.h"

/* The schedule with everything the table wants to know about it. */
typedef struct cli_plan_view {
    const heddle_model *model;
    const heddle_schedule *schedule;
    heddle_schedule_info info;
    int nranks;
    double elems, bytes; /* of the whole tensor */
    /* The same plan with enough repetitions for a steady state, for comparisons; NULL: none could be made. */
    const heddle_schedule *long_run;
} cli_plan_view;

enum { CLI_LONG_RUN = 24 /* repetitions */ };

void cli_print_plan(const cli_plan_view *view);

/* plan_compare.c: the schedule beside published methods, where these have formulas. */
void cli_print_comparison(const cli_plan_view *view);

/* The shortest cycle among those that cover most repetitions from `first` on, and how often it follows on itself. */
void cli_find_cycle(int *cycle, int *count, const cli_plan_view *view, int first);
/* Three figures and an SI unit; whole bytes below 1 kB. Returns `out`. */
const char *cli_si(char *out, size_t out_bytes, double bytes);

#endif
