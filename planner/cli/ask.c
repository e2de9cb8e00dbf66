#include "ask.h"
#include "planner/report/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum {
    STAGES_SHOWN = 12,  /* that do not fit */
    AT_ONCE_RANKS = 512 /* on more a second search takes too long */
};

const char *cli_objective(const cli_arguments *a)
{
    static const char *const names[] = {NULL, "time", "bytes", "slow-bytes", "memory", "gpu-seconds"};
    return names[a->objective];
}

/* Where heddle calibrate saves; "": nowhere. */
static void calibrated_path(char *out, size_t out_bytes)
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    out[0] = '\0';
    if (config != NULL && config[0] != '\0') {
        snprintf(out, out_bytes, "%s/heddle/machine.yaml", config);
    } else if (home != NULL && home[0] != '\0') {
        snprintf(out, out_bytes, "%s/.config/heddle/machine.yaml", home);
    }
}

int cli_open_machine(heddle_machine **out, char *from, size_t from_bytes, const char *asked)
{
    char path[ASK_TEXT_BYTES];
    if (asked != NULL) {
        snprintf(from, from_bytes, "as asked");
        return cli_report(heddle_machine_load(out, asked));
    }
    calibrated_path(path, sizeof path);
    if (path[0] != '\0' && access(path, F_OK) == 0) {
        snprintf(from, from_bytes, "calibrated, %s", path);
        return cli_report(heddle_machine_load(out, path));
    }
    snprintf(from, from_bytes, "a preset: none was named or calibrated");
    return cli_report(heddle_machine_load(out, "cpu"));
}

/* --links "0.5" or "nvlink=2,ib400=0.25", one after the other. */
static int scale_links(cli_question *q)
{
    cli_list list;
    char *rest = list;
    int code = CLI_OK;
    snprintf(list, sizeof list, "%s", q->a->links);
    if (list[0] == ',' || strstr(list, ",,") != NULL || (list[0] != '\0' && list[strlen(list) - 1] == ',')) {
        return cli_usage_error("--links wants 0.25 or ib400=0.25, not '%s'", q->a->links);
    }
    for (char *one = strtok_r(list, ",", &rest); one != NULL && code == CLI_OK; one = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(one, '='), *end = NULL;
        heddle_machine *scaled = NULL;
        const double factor = strtod(value != NULL ? value + 1 : one, &end);
        if (*end != '\0' || end == one || end[-1] == '=') {
            return cli_usage_error("--links wants 0.25 or ib400=0.25, how many times the bytes per second, not '%s'",
                                   q->a->links);
        }
        if (value != NULL) {
            *value = '\0';
        }
        code = cli_report(heddle_machine_scaled(&scaled, q->machine, value != NULL ? one : NULL, factor));
        if (code == CLI_OK) {
            heddle_machine_destroy(q->machine);
            q->machine = scaled;
        }
    }
    return code;
}

int cli_fit_machine(cli_question *q, int ranks)
{
    if (ranks <= q->on.ranks) {
        return CLI_OK;
    }
    if (q->is_machine_asked && strcasecmp(q->a->machine, "cpu") != 0) { /* which has as many as are asked for */
        return cli_usage_error("machine '%s' has %d ranks, %d are asked for (presets of several hosts look like "
                               "2x8xh100-nvlink+ib400)",
                               q->a->machine, q->on.ranks, ranks);
    }
    heddle_status st = heddle_machine_resize(q->machine, ranks);
    return cli_report(st == HEDDLE_OK ? heddle_machine_get_info(&q->on, q->machine) : st);
}

static void set_options(cli_question *q, const cli_arguments *a)
{
    heddle_plan_options *o = &q->options;
    heddle_model_info model = HEDDLE_EMPTY(heddle_model_info);
    const int has_ends = q->model != NULL && heddle_model_get_info(&model, q->model) == HEDDLE_OK &&
                         (model.final_channels > 0 || model.patch_channels > 0);
    heddle_plan_options_init(o);
    heddle_forecast_options_init(&q->way);
    o->methods = a->methods;
    o->prologue = a->prologue != NULL ? a->prologue : o->prologue;
    o->epilogue = a->epilogue != NULL ? a->epilogue : has_ends ? "any" : NULL; /* its ends are priced apart */
    o->slack_percent = (int)a->slack_percent;
    o->max_waste_percent = (int)a->max_waste_percent;
    o->backward = o->training = q->way.training = a->training;
    o->machine = q->machine;
    o->objective = cli_objective(a);
    o->memory_bytes = a->memory_bytes;
    o->recompute = q->way.recompute = a->recompute;
    o->workspace_bytes = q->way.workspace_bytes = a->workspace_bytes;
    o->force = cli_said(a->force);
}

/* --mesh, else -n, else the ranks of the machine that was asked for. */
static int set_ranks(cli_question *q, const cli_arguments *a)
{
    if (a->mesh != NULL) {
        heddle_status st = cli_parse_mesh(&q->mesh, a->mesh);
        int ranks = 0;
        const int code = st == HEDDLE_OK ? cli_mesh_ranks(&ranks, a, &q->mesh) : cli_report(st);
        return code != CLI_OK ? code : cli_fit_machine(q, ranks);
    }
    if (a->ranks == 0 && !q->is_machine_asked) {
        return cli_usage_error("heddle %s wants --mesh, for example --mesh sp=4, or -n 4: the best mesh of 4 ranks",
                               a->command->name);
    }
    q->ranks = a->ranks > 0 ? (int)a->ranks : q->on.ranks;
    return cli_fit_machine(q, q->ranks);
}

/* What a schedule's file has, or what only a search heeds. */
static int refuse_beside_schedule(const cli_arguments *a)
{
    const char *other = a->mesh != NULL            ? "--mesh"
                        : a->objective != 0        ? "--objective"
                        : a->methods[0] != '\0'    ? "--method"
                        : a->force[0] != '\0'      ? "--force"
                        : a->prologue != NULL      ? "--prologue"
                        : a->epilogue != NULL      ? "--epilogue"
                        : a->memory_bytes > 0      ? "--memory"
                        : a->max_waste_percent > 0 ? "--max-waste"
                                                   : NULL;
    return other == NULL ? CLI_OK : cli_usage_error("--schedule is a plan that is made: it goes without %s", other);
}

int cli_ask_of(cli_question *q, heddle_model *model, const cli_arguments *a)
{
    *q = (cli_question){
        .a = a, .model = model, .on = HEDDLE_EMPTY(heddle_machine_info), .is_machine_asked = a->machine != NULL};
    if (a->recompute && !a->training) {
        return cli_usage_error("--recompute is of --training: without a way back nothing is kept");
    }
    int code = a->schedule != NULL && a->longest == NULL ? refuse_beside_schedule(a) : CLI_OK;
    code = code != CLI_OK ? code : cli_open_machine(&q->machine, q->machine_from, ASK_TEXT_BYTES, a->machine);
    code = code != CLI_OK ? code : scale_links(q);
    code = code != CLI_OK ? code : cli_report(heddle_machine_get_info(&q->on, q->machine));
    set_options(q, a);
    if (a->command->bit == CLI_SWEEP) { /* its ranges are its own matter */
        q->ranks = -1;
        return code != CLI_OK ? code : cli_report(heddle_model_resize(q->model, NULL, (int)a->layers));
    }
    code = code != CLI_OK ? code : cli_report(heddle_model_resize(q->model, cli_said(a->sizes), (int)a->layers));
    return code != CLI_OK || a->schedule != NULL ? code : set_ranks(q, a);
}

int cli_ask(cli_question *q, const cli_arguments *a)
{
    heddle_model *model = NULL;
    *q = (cli_question){.a = a};
    const int code = cli_report(heddle_model_load(&model, a->operand));
    return code != CLI_OK ? code : cli_ask_of(q, model, a);
}

void cli_ask_end(cli_question *q)
{
    heddle_machine_destroy(q->machine);
    heddle_model_destroy(q->model);
}

heddle_status cli_ask_plan(heddle_schedule **out, const cli_question *q, const heddle_plan_options *options)
{
    return q->ranks > 0 ? heddle_plan_ranks(out, q->model, q->ranks, options)
                        : heddle_plan(out, q->model, &q->mesh, options);
}

/* Takes the schedule, also where this fails. */
static heddle_status describe(cli_answer *out, heddle_schedule *schedule, const cli_question *q,
                              const heddle_plan_options *options)
{
    schedule_view *v = &out->view;
    *out = (cli_answer){.schedule = schedule};
    *v = (schedule_view){.model = q->model,
                         .schedule = schedule,
                         .info = HEDDLE_EMPTY(heddle_schedule_info),
                         .of = HEDDLE_EMPTY(heddle_forecast_info),
                         .on = q->on,
                         .machine_from = q->machine_from,
                         .of_ranks = q->ranks,
                         .is_forced =
                             options->force != NULL || (options->methods != NULL && options->methods[0] != '\0'),
                         .is_step = options->backward};
    heddle_status st = heddle_schedule_get_info(&v->info, schedule);
    st = st == HEDDLE_OK ? heddle_forecast_create(&out->forecast, q->model, schedule, q->machine, &q->way) : st;
    st = st == HEDDLE_OK ? heddle_forecast_get_info(&v->of, out->forecast) : st;
    if (st != HEDDLE_OK) {
        cli_answer_end(out);
        return st;
    }
    v->forecast = out->forecast;
    v->nranks = heddle_mesh_size(&v->info.mesh);
    v->elems = 1;
    for (int d = 0; d < v->info.shape.ndim; d++) {
        v->elems *= (double)v->info.shape.dim[d].extent;
    }
    v->bytes = v->elems * (double)heddle_dtype_bytes(v->info.shape.dtype);
    return HEDDLE_OK;
}

heddle_status cli_answer_plan(cli_answer *out, const cli_question *q, const heddle_plan_options *options)
{
    heddle_schedule *schedule = NULL;
    *out = (cli_answer){0};
    heddle_status st = cli_ask_plan(&schedule, q, options);
    return st == HEDDLE_OK ? describe(out, schedule, q, options) : st;
}

/* No plan fits: what every stage needs at its fullest in the plan that needs least. */
static void say_what_does_not_fit(const cli_question *q)
{
    heddle_plan_options least = q->options;
    cli_answer answer;
    char need[32], allowed[32];
    least.objective = "memory";
    least.memory_bytes = 0;
    heddle_status st = cli_answer_plan(&answer, q, &least);
    for (int k = 0; st == HEDDLE_OK && k < answer.view.info.period; k++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        int64_t most = 0;
        for (int r = 0; r < answer.view.info.repeat; r++) {
            heddle_forecast_step step = HEDDLE_EMPTY(heddle_forecast_step);
            st = heddle_forecast_stage(&step, answer.forecast, r * answer.view.info.period + k);
            most = step.memory_bytes > most ? step.memory_bytes : most;
        }
        st = st == HEDDLE_OK ? heddle_schedule_stage_at(&stage, answer.schedule, k) : st;
        if (most > q->options.memory_bytes && k < STAGES_SHOWN) {
            fprintf(stderr, "  %-14s needs %s where plans need least, %s are allowed\n", stage.name,
                    report_si(need, sizeof need, (double)most),
                    report_si(allowed, sizeof allowed, (double)q->options.memory_bytes));
        }
    }
    cli_answer_end(&answer);
}

int cli_answer_to(cli_answer *out, cli_question *q)
{
    heddle_schedule *schedule = NULL;
    *out = (cli_answer){0};
    if (q->a->schedule == NULL) {
        const heddle_status st = cli_answer_plan(out, q, &q->options);
        const int code = cli_report(st);
        if (st == HEDDLE_ERR_INFEASIBLE && q->options.memory_bytes > 0) {
            say_what_does_not_fit(q);
        }
        return code;
    }
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    int code = cli_load_schedule(&schedule, q->a->schedule);
    code = code != CLI_OK ? code : cli_report(heddle_schedule_get_info(&info, schedule));
    int ranks = 0;
    code = code != CLI_OK ? code : cli_mesh_ranks(&ranks, q->a, &info.mesh);
    code = code != CLI_OK ? code : cli_fit_machine(q, ranks);
    if (code != CLI_OK) {
        heddle_schedule_destroy(schedule);
        return code;
    }
    return cli_report(describe(out, schedule, q, &q->options));
}

void cli_tell_at_once(schedule_view *v, const cli_question *q)
{
    heddle_model_info m = HEDDLE_EMPTY(heddle_model_info);
    char as_it_is[64];
    cli_answer other = {0};
    if (q->a->schedule != NULL || v->of.sample_s <= 0 || v->nranks < 2 ||
        heddle_model_get_info(&m, q->model) != HEDDLE_OK || m.batch_dim < 0 || m.guidance < 2 ||
        m.shape.dim[m.batch_dim].extent % m.guidance == 0) {
        return;
    }
    const heddle_dim *batch = &m.shape.dim[m.batch_dim];
    snprintf(as_it_is, sizeof as_it_is, "%s=%lld", batch->name, (long long)batch->extent);
    snprintf(v->at_once, sizeof v->at_once, "%s=%lld", batch->name, (long long)batch->extent * m.guidance);
    if (v->nranks > AT_ONCE_RANKS) {
        return;
    }
    if (heddle_model_resize(q->model, v->at_once, 0) == HEDDLE_OK &&
        cli_answer_plan(&other, q, &q->options) == HEDDLE_OK &&
        (v->on.memory_bytes == 0 || other.view.of.memory.total <= v->on.memory_bytes)) {
        v->at_once_s = other.view.of.sample_s;
        v->at_once_mesh = other.view.info.mesh;
    } else { /* it does not fit, say */
        v->at_once[0] = '\0';
    }
    cli_answer_end(&other);
    heddle_ignore(heddle_model_resize(q->model, as_it_is, 0));
}

void cli_answer_end(cli_answer *answer)
{
    heddle_forecast_destroy(answer->forecast);
    heddle_schedule_destroy(answer->schedule);
    answer->forecast = NULL;
    answer->schedule = NULL;
}
