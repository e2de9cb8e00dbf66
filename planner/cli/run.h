/* heddle run: from its options to a task whose ranks runtime/verify runs. Everything that can be wrong is found before
 * ranks start: exit codes, complained. */
#ifndef HD_CLI_RUN_H
#define HD_CLI_RUN_H

#include "launch.h"
#include "options.h"
#include "runtime/verify/run.h"

typedef struct run_job {
    const cli_arguments *options;
    heddle_model *model;
    heddle_schedule *schedule;
    feed feed;
    run_task task; /* on model, schedule and feed */
} run_job;

/* cmd_run.c: an exit code, complained; where ranks fail it is said in which stage. */
int run_on_ranks(run_job *job, int ranks, heddle_rank_main fn);

/* run_prepare.c; a schedule that is there already is taken */
/* --ranks, else the ranks of the mesh or the schedule, else the launcher's. */
int run_count_ranks(int *ranks, const cli_arguments *options);
int run_prepare(run_job *job, int ranks); /* run_release_job afterwards in any case */
void run_release_job(run_job *job);

/* run_input.c */
int run_open_input(run_job *job);
int run_fit_model(run_job *job); /* extents of the input and of the options go into the model */

#endif
