/* heddle draw: a schedule as a picture, a report or a timeline. */
#include "options.h"
#include "planner/draw/draw.h"
#include "runtime/files/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum form { FORM_NONE, FORM_PICTURE, FORM_PAGE, FORM_TRACE } form;

typedef struct drawing {
    const cli_arguments *a;
    form form;
    heddle_plan_options options;
    heddle_model *model; /* NULL: a schedule's file alone */
    heddle_machine *machine;
    heddle_schedule *schedule;
    heddle_forecast *forecast;
    draw_plan plan;
    draw_measured measured;
    draw_alternative *alternatives;
    draw_sweep_point *points;
} drawing;

static form form_of(const char *path)
{
    const char *dot = path != NULL ? strrchr(path, '.') : NULL;
    return dot == NULL                 ? FORM_NONE
           : strcmp(dot, ".svg") == 0  ? FORM_PICTURE
           : strcmp(dot, ".html") == 0 ? FORM_PAGE
           : strcmp(dot, ".json") == 0 ? FORM_TRACE
                                       : FORM_NONE;
}

/* Is it a schedule's file? Its first line says so; a model's never does. */
static int is_schedule(const char *path)
{
    char start[256] = "";
    FILE *file = fopen(path, "rb");
    if (file != NULL) {
        start[fread(start, 1, sizeof start - 1, file)] = '\0';
        fclose(file);
    }
    return strstr(start, "\"heddle-schedule-") != NULL;
}

static heddle_status open_model(drawing *d)
{
    const cli_arguments *a = d->a;
    const heddle_status st = heddle_model_load(&d->model, a->operand);
    return st == HEDDLE_OK ? heddle_model_resize(d->model, a->sizes, (int)a->layers) : st;
}

static heddle_status make_plan(drawing *d)
{
    const cli_arguments *a = d->a;
    heddle_mesh mesh;
    d->options.methods = a->methods;
    d->options.prologue = a->prologue != NULL ? a->prologue : d->options.prologue;
    d->options.epilogue = a->epilogue != NULL ? a->epilogue : d->options.epilogue;
    d->options.slack_percent = (int)a->slack_percent;
    d->options.max_waste_percent = (int)a->max_waste_percent;
    d->options.machine = d->machine;
    if (a->schedule != NULL) {
        return heddle_schedule_load(&d->schedule, a->schedule);
    }
    const heddle_status st = cli_parse_mesh(&mesh, a->mesh);
    return st == HEDDLE_OK ? heddle_plan(&d->schedule, d->model, &mesh, &d->options) : st;
}

static heddle_status prepare(drawing *d)
{
    const cli_arguments *a = d->a;
    heddle_status st = HEDDLE_OK;
    heddle_plan_options_init(&d->options);
    if (is_schedule(a->operand)) {
        st = heddle_schedule_load(&d->schedule, a->operand);
    } else {
        st = open_model(d);
        st = st == HEDDLE_OK && a->machine != NULL ? heddle_machine_load(&d->machine, a->machine) : st;
        st = st == HEDDLE_OK ? make_plan(d) : st;
        st = st == HEDDLE_OK && d->machine != NULL
                 ? heddle_forecast_create(&d->forecast, d->model, d->schedule, d->machine, NULL)
                 : st;
    }
    st = st == HEDDLE_OK ? draw_plan_make(&d->plan, d->model, d->schedule, d->machine, d->forecast) : st;
    return st == HEDDLE_OK && a->measured != NULL ? draw_measured_load(&d->measured, a->measured) : st;
}

/* The best plan of every number of ranks up to -n: those that the machine has and that can be planned. */
static heddle_status sweep(drawing *d, draw_extras *extras)
{
    const int most = (int)d->a->draw_ranks;
    d->points = calloc((size_t)most + 1, sizeof *d->points);
    if (d->points == NULL) {
        return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %d plans", most);
    }
    for (int n = 1; n <= most; n++) {
        heddle_schedule *schedule = NULL;
        heddle_forecast *forecast = NULL;
        heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
        heddle_forecast_info cost = HEDDLE_EMPTY(heddle_forecast_info);
        draw_sweep_point *point = &d->points[extras->npoints];
        heddle_status st = heddle_plan_ranks(&schedule, d->model, n, &d->options);
        st = st == HEDDLE_OK ? heddle_forecast_create(&forecast, d->model, schedule, d->machine, NULL) : st;
        st = st == HEDDLE_OK ? heddle_forecast_get_info(&cost, forecast) : st;
        st = st == HEDDLE_OK ? heddle_schedule_get_info(&info, schedule) : st;
        st = st == HEDDLE_OK ? heddle_mesh_format(point->mesh, sizeof point->mesh, &info.mesh) : st;
        if (st == HEDDLE_OK) {
            point->ranks = n;
            point->time_s = cost.time_s;
            point->memory_bytes = (double)cost.memory.total;
            point->bytes = (double)info.bytes_per_rank_max;
            extras->npoints++;
        }
        heddle_forecast_destroy(forecast);
        heddle_schedule_destroy(schedule);
    }
    extras->point = d->points;
    return HEDDLE_OK;
}

static heddle_status write_page(FILE *to, drawing *d)
{
    draw_extras extras = {0};
    heddle_status st = HEDDLE_OK;
    if (d->model != NULL && d->a->schedule == NULL) {
        st = draw_alternatives(&d->alternatives, &extras.nalternatives, &d->plan, &d->options);
        extras.alternative = d->alternatives;
    }
    if (st == HEDDLE_OK && d->machine != NULL && d->model != NULL && d->a->draw_ranks > 0) {
        st = sweep(d, &extras);
    }
    return st == HEDDLE_OK ? draw_page(to, &d->plan, &extras) : st;
}

static int write_file(drawing *d)
{
    file_output out;
    heddle_status st = file_output_open(&out, d->a->output);
    if (st != HEDDLE_OK) {
        return cli_report(st);
    }
    st = d->form == FORM_PICTURE ? draw_picture(out.file, &d->plan)
         : d->form == FORM_PAGE  ? write_page(out.file, d)
                                 : draw_trace(out.file, &d->plan, d->a->measured != NULL ? &d->measured : NULL);
    st = file_output_close(&out, st);
    return st == HEDDLE_ERR_MISMATCH ? (cli_report(st), CLI_MISMATCH) : cli_report_written(st);
}

static int check(drawing *d)
{
    const cli_arguments *a = d->a;
    if (d->form == FORM_NONE) {
        return cli_usage_error("heddle draw wants -o FILE, which ends in .svg (a picture), .html (a report) or .json "
                               "(a timeline)%s%s%s",
                               a->output != NULL ? ", not '" : "", a->output != NULL ? a->output : "",
                               a->output != NULL ? "'" : "");
    }
    if (a->measured != NULL && d->form != FORM_TRACE) {
        return cli_usage_error("--measured is for a timeline: -o FILE.json");
    }
    if (a->mesh == NULL && a->schedule == NULL && !is_schedule(a->operand)) {
        return cli_usage_error("heddle draw wants the --mesh of a model, for example --mesh sp=4, or a --schedule");
    }
    return cli_report(file_output_check(a->output));
}

static int run(const cli_arguments *a)
{
    drawing d = {.a = a, .form = form_of(a->output)};
    int code = check(&d);
    if (code == CLI_OK) {
        const heddle_status st = prepare(&d);
        code = st == HEDDLE_ERR_MISMATCH ? (cli_report(st), CLI_BAD_INPUT) : cli_report(st);
        code = code == CLI_OK ? write_file(&d) : code;
    }
    free(d.alternatives);
    free(d.points);
    draw_measured_free(&d.measured);
    draw_plan_free(&d.plan);
    heddle_forecast_destroy(d.forecast);
    heddle_schedule_destroy(d.schedule);
    heddle_machine_destroy(d.machine);
    heddle_model_destroy(d.model);
    return code;
}

const cli_action cli_draw = {
    .synopsis =
        "usage: heddle draw MODEL --mesh sp=4 -o FILE [options]\n"
        "       heddle draw SCHEDULE.json -o FILE\n\n"
        "What heddle plan found, to look at: FILE.svg is a picture, FILE.html a report in one page, FILE.json a "
        "timeline for\n"
        "Perfetto or chrome://tracing. Nothing in them is loaded from elsewhere. Times want --machine, or a schedule "
        "that was\n"
        "planned for one.\n",
    .notes = "In the picture a lane is a mesh axis and its colour the dim that it shards, hatched where the activation "
             "is replicated.\n"
             "Crossing threads are moves between ranks.\n"
             "exit codes: 0 done, 1 the output could not be written, 2 bad input, 3 infeasible, 5 the run that was "
             "measured is of\n"
             "            another schedule\n",
    .run = run,
};
