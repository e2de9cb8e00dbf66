#include "why_not.h"

#include "planner/report/text.h"

#include <stdio.h>
#include <string.h>

enum { TRIED_AT_MOST = 400 };

const char *cli_verdict_name(verdict v)
{
    static const char *const names[] = {"CHOSEN", "TIE", "CHEAPER ELSEWHERE", "LEFT OUT", "UNAVAILABLE"};
    return names[v];
}

/* Stage and repetition (-1: every one) of "STAGE=..." or "STAGE#3=..."; -1: no such stage. */
static int stage_of(int *repetition, const schedule_view *plan, const char *force)
{
    const size_t length = strcspn(force, "=#");
    *repetition = force[length] == '#' && sscanf(force + length + 1, "%d", repetition) == 1 ? *repetition - 1 : -1;
    for (int k = 0; k < plan->info.period; k++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        if (heddle_schedule_stage_at(&stage, plan->schedule, k) == HEDDLE_OK && strlen(stage.name) == length &&
            strncmp(stage.name, force, length) == 0) {
            return k;
        }
    }
    return -1;
}

/* In how many of the asked repetitions the plan runs stage k as `other` does. */
static void count_chosen(why_not *out, const schedule_view *plan, const schedule_view *other, int k, int repetition)
{
    for (int r = 0; r < plan->info.repeat; r++) {
        heddle_schedule_stage a = HEDDLE_EMPTY(heddle_schedule_stage), b = HEDDLE_EMPTY(heddle_schedule_stage);
        const int i = r * plan->info.period + k;
        if ((repetition < 0 || repetition == r) && heddle_schedule_stage_at(&a, plan->schedule, i) == HEDDLE_OK &&
            heddle_schedule_stage_at(&b, other->schedule, i) == HEDDLE_OK) {
            out->repeats++;
            out->chosen +=
                strcmp(a.method, b.method) == 0 && heddle_layout_equal(&a.layout, &b.layout, &plan->info.mesh);
        }
    }
}

/* Why the plan does without it, though it costs less, and what a rank holds of both. */
static void say_left_out(why_not *out, const schedule_view *plan, const schedule_view *other)
{
    char needs[16], has[16], own[16], room[48] = "";
    if (plan->on.memory_bytes > 0) {
        snprintf(room, sizeof room, ", the machine has %s", report_si(own, sizeof own, (double)plan->on.memory_bytes));
    }
    snprintf(out->reason, sizeof out->reason, "%s; a rank would hold %s, of the plan %s%s",
             report_left_out(out->method), report_si(needs, sizeof needs, (double)other->of.memory.total),
             report_si(has, sizeof has, (double)plan->of.memory.total), room);
}

static void judge(why_not *out, const schedule_view *plan, const schedule_view *other, int k, int repetition)
{
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    const int i = (repetition >= 0 && repetition < plan->info.repeat ? repetition : 0) * plan->info.period + k;
    heddle_ignore(heddle_schedule_stage_at(&stage, other->schedule, i));
    report_layout(out->layout, sizeof out->layout, other, &stage.layout);
    snprintf(out->method, sizeof out->method, "%s", stage.method);
    report_idle(out->reason, sizeof out->reason, other, k, &stage.layout, stage.method);
    count_chosen(out, plan, other, k, repetition);
    out->value = other->info.value;
    out->regret = out->value - plan->info.value;
    out->verdict = out->chosen == out->repeats ? VERDICT_CHOSEN
                   : out->regret > 0           ? VERDICT_ELSEWHERE
                   : out->regret < 0           ? VERDICT_LEFT_OUT
                                               : VERDICT_TIE;
    if (out->verdict == VERDICT_LEFT_OUT) {
        say_left_out(out, plan, other);
    }
}

/* The plan with this forced as well, on the plan's mesh. */
static heddle_status try_force(why_not *out, const cli_question *q, const schedule_view *plan, int k, int repetition)
{
    char force[2 * CLI_LIST_BYTES];
    cli_question same = *q;
    cli_answer other;
    same.ranks = 0;
    same.mesh = plan->info.mesh;
    snprintf(force, sizeof force, "%s%s%s", q->a->force, q->a->force[0] != '\0' ? ";" : "", out->asked);
    same.options.force = force;
    heddle_status st = cli_answer_plan(&other, &same, &same.options);
    if (st == HEDDLE_OK) {
        judge(out, plan, &other.view, k, repetition);
        cli_answer_end(&other);
    } else if (st == HEDDLE_ERR_INFEASIBLE) {
        out->verdict = VERDICT_UNAVAILABLE;
        snprintf(out->reason, sizeof out->reason, "%s", heddle_last_error());
    }
    return st == HEDDLE_ERR_INFEASIBLE ? HEDDLE_OK : st;
}

static int refuse_form(const schedule_view *plan, const char *force, const char *why)
{
    char names[512] = "", mesh[HEDDLE_LINE_BYTES] = "";
    for (int k = 0, used = 0; k < plan->info.period && used < (int)sizeof names; k++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        heddle_ignore(heddle_schedule_stage_at(&stage, plan->schedule, k));
        used += snprintf(names + used, sizeof names - (size_t)used, "%s%s", k > 0 ? ", " : "", stage.name);
    }
    heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &plan->info.mesh));
    return cli_usage_error(
        "--why-not '%s': %s; it wants STAGE=LAYOUT/METHOD or a part, as STAGE=/ring: STAGE is one of %s, "
        "LAYOUT '*' or DIM@AXIS with commas on %s, METHOD local, ulysses, ring, ...",
        force, why, names, mesh);
}

int cli_why_not(why_not *out, const cli_question *q, const schedule_view *plan, const char *force)
{
    int repetition = -1;
    const int k = stage_of(&repetition, plan, force);
    *out = (why_not){0};
    snprintf(out->asked, sizeof out->asked, "%s", force);
    if (strchr(force, '=') == NULL || strlen(force) >= sizeof out->asked) {
        return refuse_form(plan, force, "there is no '=' in it, or it is very long");
    }
    if (k < 0) {
        return refuse_form(plan, force, "the model has no such stage");
    }
    heddle_status st = try_force(out, q, plan, k, repetition);
    if (st == HEDDLE_ERR_ARG || st == HEDDLE_ERR_PARSE || st == HEDDLE_ERR_LAYOUT) {
        char sentence[512];
        snprintf(sentence, sizeof sentence, "%s", heddle_last_error());
        return refuse_form(plan, force, sentence);
    }
    return cli_report(st);
}

/* --- alternatives ------------------------------------------------------------------------------------------------- */

static int is_known(const why_not *list, int n, const why_not *one)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(list[i].layout, one->layout) == 0 && strcmp(list[i].method, one->method) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Into its place by regret, the last one out. */
static int insert(why_not *list, int n, int most, const why_not *one)
{
    int at = n;
    if (one->verdict == VERDICT_UNAVAILABLE || one->chosen > 0 || is_known(list, n, one)) {
        return n;
    }
    while (at > 0 && list[at - 1].regret > one->regret) {
        at--;
    }
    n = n < most ? n + 1 : n;
    for (int i = n - 1; i > at; i--) {
        list[i] = list[i - 1];
    }
    if (at < n) {
        list[at] = *one;
    }
    return n;
}

int cli_nth_layout(heddle_layout *out, const schedule_view *plan, int batch_and_rows, int channel_dim, int i)
{
    *out = heddle_layout_replicated();
    for (int a = 0; a < plan->info.mesh.naxes; a++, i /= batch_and_rows + 1) {
        int digit = i % (batch_and_rows + 1), d = -1;
        for (int k = 0; k < plan->info.shape.ndim && digit < batch_and_rows; k++) {
            d = k != channel_dim && digit-- == 0 ? k : d;
            if (d >= 0) {
                break;
            }
        }
        out->dim_of_axis[a] = d >= 0 ? d : HEDDLE_REPLICATED;
    }
    return i == 0;
}

#define METHOD_NAME(name, text) text,

int cli_alternatives(why_not *out, int most, const cli_question *q, const schedule_view *plan, int k, int64_t *steps)
{
    const int64_t each = (int64_t)plan->info.period * plan->info.repeat;
    static const char *const methods[] = {HEDDLE_ATTENTION_METHOD_LIST(METHOD_NAME)
                                              HEDDLE_LINEAR_METHOD_LIST(METHOD_NAME)};
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    heddle_model_info model = HEDDLE_EMPTY(heddle_model_info);
    heddle_layout layout;
    int n = 0;
    if (most == 0 || heddle_model_get_info(&model, plan->model) != HEDDLE_OK ||
        heddle_schedule_stage_at(&stage, plan->schedule, k) != HEDDLE_OK) {
        return 0;
    }
    for (int i = 0; i < TRIED_AT_MOST && cli_nth_layout(&layout, plan, model.shape.ndim - 1, model.channel_dim, i);
         i++) {
        char text[128];
        why_not one = {0};
        snprintf(one.asked, sizeof one.asked, "%s=%s", stage.name, report_layout(text, sizeof text, plan, &layout));
        n = try_force(&one, q, plan, k, -1) == HEDDLE_OK ? insert(out, n, most, &one) : n;
        *steps += each;
    }
    for (size_t m = 0; m < sizeof methods / sizeof *methods && stage.mixed_dim >= 0; m++) {
        why_not one = {0};
        snprintf(one.asked, sizeof one.asked, "%s=/%s", stage.name, methods[m]);
        n = try_force(&one, q, plan, k, -1) == HEDDLE_OK ? insert(out, n, most, &one) : n;
        *steps += each;
    }
    return n;
}
