/* heddle plan --analyze: the plan is run as heddle run does it, and stands beside what was predicted. */
#include "analyze.h"

#include "launch.h"
#include "planner/report/analysis.h"
#include "run.h"

#include <stdio.h>

enum { PASSES = 5 };

typedef struct analysis {
    run_job job; /* first: what is run */
    const schedule_view *plan;
} analysis;

static heddle_status run_main(heddle_comm *comm, void *arg)
{
    const analysis *of = arg;
    run_report all;
    const heddle_status st = run_task_run(&all, &of->job.task, comm, 0);
    if (st == HEDDLE_OK && heddle_comm_rank(comm) == 0) {
        (of->job.options->json ? report_analysis_json : report_analysis)(&all, of->plan);
        fflush(stdout);
        cli_verdict(report_analysis_agrees(&all) ? CLI_OK : CLI_MISMATCH);
    }
    run_report_free(&all);
    return st;
}

static int check(const cli_question *q)
{
    const cli_arguments *a = q->a;
    const char *other = a->training ? "--training (--backward)" : a->output != NULL ? "--output" : NULL;
    if (other != NULL) {
        return cli_usage_error("--analyze runs a forward pass and prints it, so it goes without %s; heddle run "
                               "--backward measures the way back",
                               other);
    }
    return CLI_OK;
}

int cli_analyze(const cli_question *q, cli_answer *answer)
{
    cli_arguments options = *q->a;
    analysis of = {.job = {.options = &options, .schedule = answer->schedule}, .plan = &answer->view};
    int ranks = heddle_mesh_size(&answer->view.info.mesh), code = check(q);
    if (code != CLI_OK || q->a->candidates > 0) {
        return code != CLI_OK ? code : cli_candidates(q, answer);
    }
    options.passes = PASSES;
    options.threads = 1;
    options.seed = 1;
    answer->schedule = NULL; /* the job's now */
    code = cli_rank_count(&ranks, options.transport, ranks);
    code = code != CLI_OK ? code : run_prepare(&of.job, ranks);
    code = code != CLI_OK ? code : run_on_ranks(&of.job, ranks, run_main);
    run_release_job(&of.job);
    return code;
}
