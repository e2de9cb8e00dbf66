/* heddle plan: the schedule of a model on a mesh, as a table or as JSON. */
#include "ask.h"
#include "runtime/files/output.h"

#include <stdio.h>
#include <string.h>

/* The model repeated often enough for a steady state; NULL where that is more than the planner takes. */
static heddle_schedule *plan_long_run(const heddle_plan_options *options, heddle_model *model,
                                      const heddle_schedule_info *info)
{
    heddle_schedule *schedule = NULL;
    if (heddle_model_resize(model, NULL, REPORT_LONG_RUN) != HEDDLE_OK ||
        heddle_plan(&schedule, model, &info->mesh, options) != HEDDLE_OK) {
        return NULL;
    }
    return schedule;
}

static int saves(const cli_arguments *a)
{
    return a->output != NULL && strcmp(a->output, "-") != 0;
}

static int show(const cli_question *q, schedule_view *v)
{
    const cli_arguments *a = q->a;
    heddle_status st = saves(a) ? heddle_schedule_save(v->schedule, a->output) : HEDDLE_OK;
    if (st != HEDDLE_OK) {
        return cli_report_written(st);
    }
    if (a->json || (a->output != NULL && !saves(a))) {
        st = a->json ? report_schedule_json(v) : heddle_schedule_save(v->schedule, "-");
        return st == HEDDLE_OK ? CLI_OK : cli_printed(CLI_FAILED);
    }
    heddle_schedule *long_run =
        v->info.repeat < REPORT_LONG_RUN ? plan_long_run(&q->options, q->model, &v->info) : NULL;
    v->long_run = v->info.repeat < REPORT_LONG_RUN ? long_run : v->schedule;
    report_schedule(v);
    heddle_schedule_destroy(long_run);
    return CLI_OK;
}

static int run(const cli_arguments *a)
{
    cli_question q;
    cli_answer answer = {0};
    int code = saves(a) ? cli_report(file_output_check(a->output)) : CLI_OK;
    if (code != CLI_OK) {
        return code;
    }
    code = cli_ask(&q, a);
    code = code != CLI_OK ? code : cli_answer_to(&answer, &q);
    code = code != CLI_OK ? code : show(&q, &answer.view);
    cli_answer_end(&answer);
    cli_ask_end(&q);
    return code;
}

const cli_action cli_plan = {
    .synopsis =
        "usage: heddle plan MODEL -n 16 [--machine 2x8xh100-nvlink+ib400] [options]\n"
        "       heddle plan MODEL --mesh sp=4 [options]\n"
        "\n"
        "  heddle plan hunyuanvideo -n 16 --machine 2x8xh100-nvlink+ib400\n"
        "\n"
        "The layout of the activation in every stage of MODEL (a preset's name, or a YAML file, docs/formats.md) and "
        "the\n"
        "method of every attention that take the least time on the machine, and what each of them moves and takes.\n",
    .notes =
        "The column 'waste' says by how much the busiest rank's part is larger than an even one; 'sent max' is of\n"
        "the busiest rank, what its method sends inside the stage included; 'transfer' is what no work hides.\n"
        "exit codes: 0 done, 1 the output could not be written, 2 bad input, 3 infeasible\n",
    .run = run,
};
