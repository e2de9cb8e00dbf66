/* heddle plan: the schedule of a model on a mesh, as a table or as JSON. */
#include "options.h"
#include "planner/report/schedule_table.h"
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

static int show(const cli_arguments *a, const heddle_plan_options *options, heddle_model *model,
                const heddle_schedule *schedule)
{
    schedule_view v = {.model = model, .schedule = schedule, .info = HEDDLE_EMPTY(heddle_schedule_info)};
    const int prints_json = a->json || (a->output != NULL && !saves(a));
    heddle_status st = heddle_schedule_get_info(&v.info, schedule);
    if (st == HEDDLE_OK && saves(a)) {
        st = heddle_schedule_save(schedule, a->output);
    }
    if (st != HEDDLE_OK) {
        const int code = cli_report(st);
        return st == HEDDLE_ERR_IO ? CLI_FAILED : code; /* it could be opened before */
    }
    if (prints_json) {
        return heddle_schedule_save(schedule, "-") == HEDDLE_OK ? CLI_OK : cli_printed(CLI_FAILED);
    }
    v.nranks = heddle_mesh_size(&v.info.mesh);
    v.elems = 1;
    for (int d = 0; d < v.info.shape.ndim; d++) {
        v.elems *= (double)v.info.shape.dim[d].extent;
    }
    v.bytes = v.elems * (double)heddle_dtype_bytes(v.info.shape.dtype);
    heddle_schedule *long_run = v.info.repeat < REPORT_LONG_RUN ? plan_long_run(options, model, &v.info) : NULL;
    v.long_run = v.info.repeat < REPORT_LONG_RUN ? long_run : schedule;
    report_schedule(&v);
    heddle_schedule_destroy(long_run);
    return CLI_OK;
}

static int run(const cli_arguments *a)
{
    heddle_plan_options options;
    heddle_model *model = NULL;
    heddle_schedule *schedule = NULL;
    heddle_mesh mesh;
    int code = saves(a) ? cli_report(file_output_check(a->output)) : CLI_OK;
    if (a->mesh == NULL) {
        return cli_usage_error("heddle plan wants --mesh, for example --mesh sp=4");
    }
    if (code != CLI_OK) {
        return code;
    }
    heddle_plan_options_init(&options);
    options.methods = a->methods;
    options.prologue = a->prologue != NULL ? a->prologue : options.prologue;
    options.epilogue = a->epilogue != NULL ? a->epilogue : options.epilogue;
    options.slack_percent = (int)a->slack_percent;
    options.max_waste_percent = (int)a->max_waste_percent;
    options.backward = a->backward;
    heddle_status st = heddle_model_load(&model, a->operand);
    st = st == HEDDLE_OK ? heddle_model_resize(model, a->sizes, (int)a->layers) : st;
    st = st == HEDDLE_OK ? cli_parse_mesh(&mesh, a->mesh) : st;
    st = st == HEDDLE_OK ? heddle_plan(&schedule, model, &mesh, &options) : st;
    code = st == HEDDLE_OK ? show(a, &options, model, schedule) : cli_report(st);
    heddle_schedule_destroy(schedule);
    heddle_model_destroy(model);
    return code;
}

const cli_action cli_plan = {
    .synopsis = "usage: heddle plan MODEL --mesh sp=4 [options]\n\n"
                "The layout of the activation in every stage of MODEL (a YAML file, docs/formats.md) on a mesh of "
                "ranks, and the\n"
                "method of every attention, with the fewest bytes moved, and what each of them moves.\n",
    .notes = "The column 'waste' says by how much the busiest rank's part is larger than an even one.\n"
             "exit codes: 0 done, 1 the output could not be written, 2 bad input, 3 infeasible\n",
    .run = run,
};
