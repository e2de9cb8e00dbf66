/* heddle memory, heddle simulate: what the forecast of one plan says, part by part. */
#include "ask.h"
#include "planner/report/forecast.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { EXTENT_BITS = 48 };

static int run(const cli_arguments *a, heddle_status (*report)(const schedule_view *view, int json))
{
    cli_question q;
    cli_answer answer = {0};
    int code = cli_ask(&q, a);
    code = code != CLI_OK ? code : cli_answer_to(&answer, &q);
    if (code == CLI_OK && report == report_simulation) {
        cli_tell_at_once(&answer.view, &q);
    }
    code = code != CLI_OK ? code : cli_report(report(&answer.view, a->json));
    cli_answer_end(&answer);
    cli_ask_end(&q);
    return code;
}

/* The plan with so many of the dim, if there is one; *st: why not. */
static int is_planned(cli_answer *out, heddle_status *st, const cli_question *q, const char *dim, int64_t extent)
{
    char size[HEDDLE_NAME_BYTES + 32];
    snprintf(size, sizeof size, "%s=%" PRId64, dim, extent);
    cli_answer_end(out);
    *st = heddle_model_resize(q->model, size, 0);
    *st = *st == HEDDLE_OK ? cli_answer_plan(out, q, &q->options) : *st;
    return *st == HEDDLE_OK;
}

/* By time which layouts a stage may be in does not depend on extents, and what they hold only grows with them. */
static int check_longest(cli_question *q, const cli_arguments *a, heddle_model_info *info)
{
    const char *objective = q->options.objective;
    const int code = cli_report(heddle_model_get_info(info, q->model));
    if (code != CLI_OK) {
        return code;
    }
    int d = 0;
    while (d < info->shape.ndim && strcmp(info->shape.dim[d].name, a->longest) != 0) {
        d++;
    }
    if (d >= info->shape.ndim || d == info->channel_dim) {
        return cli_usage_error("--longest %s: model '%s' has no batch or sequence dim of that name", a->longest,
                               info->name);
    }
    if (a->schedule != NULL || a->max_waste_percent > 0 ||
        (objective != NULL && (strcmp(objective, "bytes") == 0 || strcmp(objective, "slow-bytes") == 0))) {
        return cli_usage_error("--longest plans by time, gpu-seconds or memory, without --schedule and --max-waste: "
                               "else a longer one may be allowed a layout that a shorter one is not");
    }
    q->options.memory_bytes = a->memory_bytes > 0 ? a->memory_bytes : q->on.memory_bytes;
    return q->options.memory_bytes > 0 ? CLI_OK
                                       : cli_usage_error("--longest wants --memory: machine '%s' does not say what a "
                                                         "rank has",
                                                         q->on.name);
}

/* The largest extent with a plan, by halves of what is left. */
static int find_longest(cli_answer *out, const cli_question *q, const char *dim)
{
    heddle_status st = HEDDLE_OK;
    int64_t fits = 0;
    for (int64_t step = INT64_C(1) << EXTENT_BITS; step > 0; step /= 2) {
        fits += is_planned(out, &st, q, dim, fits + step) ? step : 0;
    }
    if (!is_planned(out, &st, q, dim, fits > 0 ? fits : 1)) {
        return cli_report(st);
    }
    snprintf(out->view.longest_dim, sizeof out->view.longest_dim, "%s", dim);
    out->view.longest = fits;
    out->view.longest_bytes = q->options.memory_bytes;
    return CLI_OK;
}

static int run_memory(const cli_arguments *a)
{
    cli_question q;
    cli_answer answer = {0};
    heddle_model_info info = HEDDLE_EMPTY(heddle_model_info);
    if (a->longest == NULL) {
        return run(a, report_memory);
    }
    int code = cli_ask(&q, a);
    code = code != CLI_OK ? code : check_longest(&q, a, &info);
    code = code != CLI_OK ? code : find_longest(&answer, &q, a->longest);
    code = code != CLI_OK ? code : cli_report(report_memory(&answer.view, a->json));
    cli_answer_end(&answer);
    cli_ask_end(&q);
    return code;
}

static int run_simulate(const cli_arguments *a)
{
    return run(a, report_simulation);
}

const cli_action cli_memory = {
    .synopsis = "usage: heddle memory MODEL -n 16 [--machine X] [--training [--recompute]] [options]\n"
                "       heddle memory MODEL --schedule FILE [--machine X] [options]\n"
                "\n"
                "  heddle memory hunyuanvideo -n 16 --machine 2x8xh100-nvlink+ib400\n"
                "\n"
                "What the fullest rank holds under the best plan, and at which stage it holds most.\n",
    .notes = "--memory 76G takes the best plan that fits, or exits with 3 and says what does not. --longest t:\n"
             "the most frames whose best plan fits, and that plan.\n"
             "exit codes: 0 done, 2 bad input, 3 infeasible\n",
    .run = run_memory,
};

const cli_action cli_simulate = {
    .synopsis = "usage: heddle simulate MODEL --mesh sp=8 [--machine X] [--method '*=ulysses'] [options]\n"
                "       heddle simulate MODEL --schedule FILE [--machine X] [options]\n"
                "       heddle simulate attention|linear-attention PROBLEM: one stage by itself\n"
                "\n"
                "  heddle simulate hunyuanvideo --mesh sp=8 --machine 8xh100-nvlink --method '*=ulysses'\n"
                "\n"
                "The seconds of a pass under the best plan, or by the methods that are given, part by part.\n",
    .notes = "exit codes: 0 done, 2 bad input, 3 infeasible\n",
    .run = run_simulate,
};
