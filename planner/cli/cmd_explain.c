/* heddle explain: a line of reason for every stage and what else it might do; --why-not: one other way of one stage. */
#include "changes.h"
#include "planner/report/text.h"
#include "why_not.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALTERNATIVES = 100, STEPS_AT_MOST = 10000000 /* of alternatives; some seconds */ };

/* One sentence, its further lines indented. */
static void print_verdict(const schedule_view *plan, const why_not *w)
{
    char value[32], other[32], regret[32], line[sizeof w->asked + sizeof w->reason + 512];
    const char *objective = plan->info.objective;
    int n = snprintf(line, sizeof line, "%s: %s", w->asked, cli_verdict_name(w->verdict));
    if (w->verdict == VERDICT_ELSEWHERE) {
        n += snprintf(line + n, sizeof line - (size_t)n, ": %s instead of %s, regret %s (%.1f %%)",
                      report_value(value, sizeof value, objective, w->value),
                      report_value(other, sizeof other, objective, plan->info.value),
                      report_value(regret, sizeof regret, objective, w->regret),
                      plan->info.value > 0 ? w->regret / plan->info.value * 100 : 0.0);
    } else if (w->verdict == VERDICT_LEFT_OUT) {
        n += snprintf(line + n, sizeof line - (size_t)n, ": %s instead of %s, %s (%.1f %%) less",
                      report_value(value, sizeof value, objective, w->value),
                      report_value(other, sizeof other, objective, plan->info.value),
                      report_value(regret, sizeof regret, objective, -w->regret),
                      plan->info.value > 0 ? -w->regret / plan->info.value * 100 : 0.0);
    } else if (w->verdict == VERDICT_TIE) {
        n += snprintf(line + n, sizeof line - (size_t)n, ": the same %s",
                      report_value(value, sizeof value, objective, w->value));
    }
    if (w->chosen > 0 && w->chosen < w->repeats) {
        n += snprintf(line + n, sizeof line - (size_t)n, "; the plan does so in %d of %d repetitions", w->chosen,
                      w->repeats);
    }
    snprintf(line + n, sizeof line - (size_t)n, "%s%s",
             w->reason[0] == '\0'                ? ""
             : w->verdict == VERDICT_UNAVAILABLE ? ": "
                                                 : "; ",
             w->reason);
    report_wrap(stdout, line, 0, 4, REPORT_COLUMNS);
    printf("\n");
}

static void print_verdict_json(const why_not *w, const char *front)
{
    printf("%s{", front);
    report_json_string("asked", w->asked, ", ");
    report_json_string("verdict", cli_verdict_name(w->verdict), ", ");
    if (w->verdict == VERDICT_UNAVAILABLE) {
        printf("\"value\": null, \"regret\": null, \"layout\": null, \"method\": null, ");
    } else {
        printf("\"value\": %.15g, \"regret\": %.15g, ", w->value, w->regret);
        report_json_string("layout", w->layout, ", ");
        report_json_string("method", w->method, ", ");
    }
    report_json_string("reason", w->reason, "}");
}

/* All of them, before anything is printed. *out is to be freed. */
static int ask_why_not(why_not **out, int *count, const cli_question *q, const schedule_view *plan)
{
    char *list = strdup(q->a->why_not), *rest = NULL;
    int most = 1, code = CLI_OK;
    for (const char *p = q->a->why_not; *p != '\0'; p++) {
        most += *p == ';';
    }
    *out = calloc((size_t)most, sizeof **out);
    *count = 0;
    if (list == NULL || *out == NULL) {
        code = cli_report(heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %d questions", most));
    }
    for (char *one = code == CLI_OK ? strtok_r(list, ";", &rest) : NULL; one != NULL && code == CLI_OK;
         one = strtok_r(NULL, ";", &rest)) {
        code = cli_why_not(&(*out)[(*count)++], q, plan, one);
    }
    free(list);
    return code != CLI_OK || *count > 0 ? code : cli_usage_error("--why-not '%s' names no stage", q->a->why_not);
}

static int has_same_stage(const schedule_view *plan, int i, int before)
{
    heddle_schedule_stage a = HEDDLE_EMPTY(heddle_schedule_stage), b = HEDDLE_EMPTY(heddle_schedule_stage);
    return before >= 0 && heddle_schedule_stage_at(&a, plan->schedule, i) == HEDDLE_OK &&
           heddle_schedule_stage_at(&b, plan->schedule, before) == HEDDLE_OK && strcmp(a.method, b.method) == 0 &&
           heddle_layout_equal(&a.layout, &b.layout, &plan->info.mesh);
}

/* Stage k: how it runs, with the repetitions that differ from the one before. */
static void print_stage(const schedule_view *plan, int k)
{
    for (int r = 0; r < plan->info.repeat; r++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        const int i = r * plan->info.period + k;
        char layout[128], reason[1024];
        if (heddle_schedule_stage_at(&stage, plan->schedule, i) == HEDDLE_OK &&
            (r == 0 || !has_same_stage(plan, i, i - plan->info.period))) {
            const int at = printf("%s%s from repetition %d: %s/%s: ", r > 0 ? "  " : "", stage.name, r + 1,
                                  report_layout(layout, sizeof layout, plan, &stage.layout), stage.method);
            report_wrap(stdout, report_reason(reason, sizeof reason, plan, i), at, 4, REPORT_COLUMNS);
            printf("\n");
        }
    }
}

static void explain_all(const cli_question *q, const schedule_view *plan)
{
    const int asked = q->a->top < ALTERNATIVES ? (int)q->a->top : ALTERNATIVES, json = q->a->json;
    int64_t steps = 0;
    int without = 0;
    why_not *other = calloc(ALTERNATIVES, sizeof *other);
    for (int k = 0; k < plan->info.period && other != NULL; k++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        char text[1024];
        const int most = steps < STEPS_AT_MOST ? asked : 0;
        const int n = cli_alternatives(other, most, q, plan, k, &steps);
        without += most < asked;
        heddle_ignore(heddle_schedule_stage_at(&stage, plan->schedule, k));
        if (!json) {
            print_stage(plan, k);
        } else {
            printf("%s{", k > 0 ? ",\n  " : "\n  ");
            report_json_string("stage", stage.name, ", ");
            report_json_string("layout", report_layout(text, sizeof text, plan, &stage.layout), ", ");
            report_json_string("method", stage.method, ", ");
            report_json_string("reason", report_reason(text, sizeof text, plan, k), ", \"alternatives\": [");
        }
        for (int i = 0; i < n; i++) {
            if (json) {
                print_verdict_json(&other[i], i > 0 ? ", " : "");
            } else {
                snprintf(other[i].asked, sizeof other[i].asked, "  %.127s/%.31s", other[i].layout, other[i].method);
                print_verdict(plan, &other[i]);
            }
        }
        printf("%s", json ? "]}" : "");
    }
    if (without > 0 && !json) {
        printf("alternatives of the last %d stages are left out, they would take long: --why-not STAGE=LAYOUT/METHOD\n",
               without);
    }
    free(other);
}

static int explain(const cli_question *q, const schedule_view *plan)
{
    char mesh[HEDDLE_LINE_BYTES] = "", value[32];
    const heddle_schedule_info *s = &plan->info;
    const int is_asked = q->a->why_not[0] != '\0';
    why_not *answer = NULL;
    int count = 0;
    cli_changes changes;
    const int code = is_asked ? ask_why_not(&answer, &count, q, plan) : cli_report(cli_find_changes(&changes, q, plan));
    heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &s->mesh));
    if (code != CLI_OK) {
        free(answer);
        return code;
    }
    if (!q->a->json) {
        printf("%s on %s: %s %s, machine %s, %s\n", s->model, mesh, s->objective != NULL ? s->objective : "bytes",
               report_value(value, sizeof value, s->objective, s->value), plan->on.name, plan->machine_from);
    } else {
        printf("{\"schema\": \"heddle-explain-1\", ");
        report_json_string("model", s->model, ", ");
        report_json_string("mesh", mesh, ", ");
        report_json_string("machine", plan->on.name, ", ");
        report_json_string("objective", s->objective != NULL ? s->objective : "bytes", ", ");
        printf("\"value\": %.15g,\n \"%s\": [", s->value, is_asked ? "why_not" : "stages");
    }
    for (int i = 0; i < count; i++) {
        if (q->a->json) {
            print_verdict_json(&answer[i], i > 0 ? ",\n  " : "\n  ");
        } else {
            print_verdict(plan, &answer[i]);
        }
    }
    if (!is_asked) {
        explain_all(q, plan);
        if (q->a->json) {
            printf("],\n \"changes\": ");
            cli_print_changes_json(&changes);
        } else {
            cli_print_changes(&changes);
        }
    }
    printf("%s", !q->a->json ? "" : is_asked ? "]}\n" : "}\n");
    free(answer);
    return code;
}

static int run(const cli_arguments *a)
{
    cli_question q;
    cli_answer answer = {0};
    int code = cli_ask(&q, a);
    code = code != CLI_OK ? code : cli_answer_to(&answer, &q);
    code = code != CLI_OK ? code : explain(&q, &answer.view);
    cli_answer_end(&answer);
    cli_ask_end(&q);
    return code;
}

const cli_action cli_explain = {
    .synopsis = "usage: heddle explain MODEL -n 16 [--machine X] [--why-not STAGE=LAYOUT/METHOD] [options]\n"
                "\n"
                "  heddle explain hunyuanvideo --mesh sp=16 --machine 2x8xh100-nvlink+ib400 --why-not attn=/ulysses\n"
                "\n"
                "Why every stage of the plan runs as it does, with the nearest alternatives, and which plan would be\n"
                "the best if links were slower or faster; or what one of the alternatives would cost.\n",
    .notes = "Verdicts: CHOSEN, the plan does so; TIE, another plan of the same value does; CHEAPER ELSEWHERE,\n"
             "with the regret: the best plan that does so less the plan; LEFT OUT, it costs less but was no\n"
             "choice: rsa, or what --method and --force leave no room for; UNAVAILABLE, with the reason.\n"
             "exit codes: 0 done, 2 bad input, 3 infeasible\n",
    .run = run,
};
