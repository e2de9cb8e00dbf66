#include "rows.h"

#include <stdio.h>
#include <string.h>

heddle_status cli_row_of(plan_row *out, const cli_question *q, const heddle_plan_options *options, const char *name)
{
    heddle_schedule *plan = NULL;
    const heddle_status st = cli_row_and_plan(out, &plan, q, options, name);
    heddle_schedule_destroy(plan);
    return st;
}

heddle_status cli_row_and_plan(plan_row *out, heddle_schedule **plan, const cli_question *q,
                               const heddle_plan_options *options, const char *name)
{
    cli_answer answer;
    *plan = NULL;
    const heddle_status st = cli_answer_plan(&answer, q, options);
    const schedule_view *v = &answer.view;
    snprintf(out->name, sizeof out->name, "%s", name);
    if (st == HEDDLE_ERR_INFEASIBLE || st == HEDDLE_ERR_UNSUPPORTED) {
        snprintf(out->refusal, sizeof out->refusal, "%s", heddle_last_error());
        return HEDDLE_OK;
    }
    if (st != HEDDLE_OK) {
        return st;
    }
    heddle_ignore(heddle_mesh_format(out->mesh, sizeof out->mesh, &v->info.mesh));
    out->ranks = v->nranks;
    out->sent_max = v->info.bytes_per_rank_max + (v->is_step ? v->info.backward_bytes_per_rank_max : 0);
    out->total = v->info.bytes_total + (v->is_step ? v->info.backward_bytes_total : 0);
    out->memory_bytes = v->of.memory.total;
    out->value = v->info.value;
    out->time_s = v->of.time_s;
    out->compute_s = v->of.compute_s;
    out->nlinks = v->of.nlinks < HEDDLE_MACHINE_LINKS ? v->of.nlinks : HEDDLE_MACHINE_LINKS;
    for (int i = 0; i < out->nlinks; i++) {
        out->link[i] = HEDDLE_EMPTY(heddle_forecast_link);
        heddle_ignore(heddle_forecast_link_at(&out->link[i], v->forecast, i));
        out->link[i].name = i < q->on.nlinks ? q->on.link[i] : ""; /* the forecast's own go with it */
    }
    *plan = answer.schedule;
    answer.schedule = NULL;
    cli_answer_end(&answer);
    return HEDDLE_OK;
}

void cli_print_cell(const char *text)
{
    if (strpbrk(text, ",\"\n") == NULL) {
        printf("%s", text);
        return;
    }
    putchar('"');
    for (; *text != '\0'; text++) {
        printf(*text == '"' ? "\"\"" : "%c", *text);
    }
    putchar('"');
}
