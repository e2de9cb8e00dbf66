/* heddle draw: a schedule as a picture, a report or a timeline. */
#include "ask.h"
#include "planner/draw/draw.h"
#include "runtime/files/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum form { FORM_NONE, FORM_PICTURE, FORM_PAGE, FORM_TRACE } form;

typedef struct drawing {
    const cli_arguments *a;
    form form;
    cli_question q;           /* empty where a schedule's file alone is drawn */
    cli_answer answer;        /* of the question */
    heddle_schedule *of_file; /* where it is drawn */
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

/* Is it a schedule's file, or what heddle plan --json printed? The first line says so; a model's never does. */
static int is_schedule(const char *path)
{
    char start[256] = "";
    FILE *file = fopen(path, "rb");
    if (file != NULL) {
        start[fread(start, 1, sizeof start - 1, file)] = '\0';
        fclose(file);
    }
    return strstr(start, "\"heddle-schedule-") != NULL || strstr(start, "\"heddle-plan-") != NULL;
}

static int prepare(drawing *d)
{
    int code;
    heddle_status st = HEDDLE_OK;
    if (is_schedule(d->a->operand)) {
        code = cli_load_schedule(&d->of_file, d->a->operand);
        st = code == CLI_OK ? draw_plan_make(&d->plan, NULL, d->of_file, NULL, NULL) : HEDDLE_OK;
    } else {
        code = cli_ask(&d->q, d->a);
        code = code != CLI_OK ? code : cli_answer_to(&d->answer, &d->q);
        st = code == CLI_OK ? draw_plan_make(&d->plan, d->q.model, d->answer.schedule, d->q.machine, d->answer.forecast)
                            : HEDDLE_OK;
    }
    code = code != CLI_OK ? code : cli_report(st);
    return code != CLI_OK || d->a->measured == NULL ? code
                                                    : cli_report(draw_measured_load(&d->measured, d->a->measured));
}

/* The best plan of every number of ranks up to --curves: those that the machine has and that can be planned. */
static heddle_status sweep(drawing *d, draw_extras *extras)
{
    const int most = (int)d->a->curves;
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
        heddle_status st = heddle_plan_ranks(&schedule, d->q.model, n, &d->q.options);
        st = st == HEDDLE_OK ? heddle_forecast_create(&forecast, d->q.model, schedule, d->q.machine, &d->q.way) : st;
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
    if (d->q.model != NULL && d->a->schedule == NULL) {
        st = draw_alternatives(&d->alternatives, &extras.nalternatives, &d->plan, &d->q.options);
        extras.alternative = d->alternatives;
    }
    if (st == HEDDLE_OK && d->q.model != NULL && d->a->curves > 0) {
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
    return cli_report(file_output_check(a->output));
}

static int run(const cli_arguments *a)
{
    drawing d = {.a = a, .form = form_of(a->output)};
    int code = check(&d);
    code = code != CLI_OK ? code : prepare(&d);
    code = code != CLI_OK ? code : write_file(&d);
    free(d.alternatives);
    free(d.points);
    draw_measured_free(&d.measured);
    draw_plan_free(&d.plan);
    heddle_schedule_destroy(d.of_file);
    cli_answer_end(&d.answer);
    cli_ask_end(&d.q);
    return code;
}

const cli_action cli_draw = {
    .synopsis = "usage: heddle draw MODEL -n 16 [--machine 2x8xh100-nvlink+ib400] -o FILE [options]\n"
                "       heddle draw SCHEDULE.json -o FILE\n"
                "\n"
                "What heddle plan found, to look at: FILE.svg is a picture, FILE.html a report in one page,\n"
                "FILE.json a timeline for Perfetto or chrome://tracing. Nothing in them is loaded from elsewhere.\n"
                "SCHEDULE.json is what heddle plan --output saved or --json printed; its times are those that it\n"
                "was planned with.\n",
    .notes = "In the picture a lane is a mesh axis and its colour the dim that it shards, hatched where the\n"
             "activation is replicated. Crossing threads are moves between ranks.\n"
             "exit codes: 0 done, 1 the output could not be written, 2 bad input, 3 infeasible,\n"
             "            5 the run that was measured is of another schedule\n",
    .run = run,
};
