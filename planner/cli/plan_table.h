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
} cli_plan_view;

void cli_print_plan(const cli_plan_view *view);

#endif
