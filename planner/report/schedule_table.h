/* A schedule as a table, to standard output: what `heddle plan` prints. */
#ifndef HD_REPORT_SCHEDULE_TABLE_H
#define HD_REPORT_SCHEDULE_TABLE_H

#include <heddle/heddle.h>

/* The schedule with everything the table wants to know about it. */
typedef struct schedule_view {
    const heddle_model *model;
    const heddle_schedule *schedule;
    heddle_schedule_info info;
    int nranks;
    double elems, bytes; /* of the whole tensor */
    /* The same plan with enough repetitions for a steady state, for comparisons; NULL: none could be made. */
    const heddle_schedule *long_run;
    int is_stages_alone; /* repetitions are alike whose stages are, whatever leads into the first of them */
} schedule_view;

enum { REPORT_LONG_RUN = 24 /* repetitions */ };

void report_schedule(const schedule_view *view);

/* schedule_compare.c: the schedule beside published methods, where these have formulas. */
void report_comparison(const schedule_view *view);

/* The shortest cycle among those that cover most repetitions from `first` on, and how often it follows on itself. */
void report_find_cycle(int *cycle, int *count, const schedule_view *view, int first);

#endif
