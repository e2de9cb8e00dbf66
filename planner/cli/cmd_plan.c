/* heddle plan: the schedule of a model on a mesh, as a table or as JSON. */
#include "analyze.h"
#include "planner/report/text.h"
#include "runtime/files/output.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LEFT_OUT_PERCENT = 100 /* with more work than that fewer bytes are of no interest */ };

/* The model repeated often enough for a steady state; NULL where that is more than the planner takes. The model stays
 * as it is. */
static heddle_schedule *plan_long_run(const heddle_plan_options *options, heddle_model *model,
                                      const heddle_schedule_info *info)
{
    heddle_schedule *schedule = NULL;
    if (heddle_model_resize(model, NULL, REPORT_LONG_RUN) == HEDDLE_OK) {
        heddle_ignore(heddle_plan(&schedule, model, &info->mesh, options));
        heddle_ignore(heddle_model_resize(model, NULL, info->repeat));
    }
    return schedule;
}

/* By how much the busiest rank of a stage works longer in the schedule `b`, at most; *stage: where, of the model's. */
static double most_work(int *stage, const schedule_view *a, const heddle_schedule *b)
{
    double most = 0;
    for (int i = 0; i < a->info.nstages; i++) {
        heddle_schedule_stage one = HEDDLE_EMPTY(heddle_schedule_stage), other = HEDDLE_EMPTY(heddle_schedule_stage);
        heddle_ignore(heddle_schedule_stage_at(&one, a->schedule, i));
        heddle_ignore(heddle_schedule_stage_at(&other, b, i));
        const double more = (100 + report_waste(a, &other.layout)) / (100 + report_waste(a, &one.layout)) - 1;
        if (more > most) {
            most = more;
            *stage = i % a->info.period;
        }
    }
    return most * 100;
}

/* The value of the best plan by other options; that of the plan where there is none. */
static double value_by(heddle_schedule **out, const cli_question *q, const schedule_view *v,
                       const heddle_plan_options *options)
{
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    heddle_schedule_destroy(*out);
    *out = NULL;
    return heddle_plan(out, q->model, &v->info.mesh, options) == HEDDLE_OK &&
                   heddle_schedule_get_info(&info, *out) == HEDDLE_OK
               ? info.value
               : v->info.value;
}

/* By bytes the slack may leave out whole fibres that send less: then this says so, and what takes them. */
static void tell_left_out(schedule_view *v, const cli_question *q)
{
    heddle_plan_options options = q->options;
    heddle_schedule *other = NULL;
    const char *objective = v->info.objective;
    if (objective == NULL || (strcmp(objective, "bytes") != 0 && strcmp(objective, "slow-bytes") != 0)) {
        return;
    }
    options.methods = "*=local";
    if (value_by(&other, q, v, &options) < v->info.value) {
        const double more = most_work(&v->left_out_of, v, other);
        options.methods = q->options.methods;
        options.slack_percent = (int)ceil(more - 1e-9);
        const double least = more > 0 && more <= LEFT_OUT_PERCENT ? value_by(&other, q, v, &options) : v->info.value;
        if (least < v->info.value) {
            heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
            char bytes[16];
            heddle_ignore(heddle_schedule_stage_at(&stage, v->schedule, v->left_out_of));
            snprintf(v->left_out, sizeof v->left_out,
                     "whole fibres: %s, left out by slack %d %%: %.0f %% more work in %s; --slack %d takes them",
                     report_si(bytes, sizeof bytes, least), q->options.slack_percent, more, stage.name,
                     options.slack_percent);
        }
    }
    heddle_schedule_destroy(other);
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
    tell_left_out(v, q);
    cli_tell_at_once(v, q);
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
    if (a->candidates > 0 && !a->analyze) {
        return cli_usage_error("--candidates are measured: it goes with --analyze");
    }
    code = cli_ask(&q, a);
    code = code != CLI_OK ? code : cli_answer_to(&answer, &q);
    code = code != CLI_OK ? code : a->analyze ? cli_analyze(&q, &answer) : show(&q, &answer.view);
    cli_answer_end(&answer);
    cli_ask_end(&q);
    return code;
}

const cli_action cli_plan = {
    .synopsis = "usage: heddle plan MODEL -n 16 [--machine 2x8xh100-nvlink+ib400] [options]\n"
                "       heddle plan MODEL --mesh sp=4 [options]\n"
                "\n"
                "  heddle plan hunyuanvideo -n 16 --machine 2x8xh100-nvlink+ib400\n"
                "\n"
                "The layout of the activation in every stage of MODEL (a preset's name, or a YAML file,\n"
                "docs/formats.md) and the method of every attention that take the least time on the machine, and\n"
                "what each of them moves and takes.\n",
    .notes = "The column 'waste' says by how much the busiest rank's part is larger than an even one; 'sent max'\n"
             "is of the busiest rank, what its method sends inside the stage included; 'transfer' is what no\n"
             "work hides.\n"
             "exit codes: 0 done, 1 the output could not be written, 2 bad input, 3 infeasible\n",
    .run = run,
};
