#include "rows.h"
#include "planner/report/text.h"

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
    cli_row_weigh(out, q);
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

void cli_row_weigh(plan_row *row, const cli_question *q)
{
    row->is_too_large = q->on.memory_bytes > 0 && row->memory_bytes > q->on.memory_bytes;
}

const char *cli_row_memory(char *out, size_t out_bytes, const plan_row *row)
{
    char text[16];
    snprintf(out, out_bytes, "%s%s",
             row->memory_bytes > 0 ? report_si(text, sizeof text, (double)row->memory_bytes) : "-",
             row->is_too_large ? "*" : "");
    return out;
}

void cli_say_too_large(const cli_question *q, const plan_row *rows, int nrows)
{
    char text[16];
    for (int i = 0; i < nrows; i++) {
        if (rows[i].is_too_large && rows[i].refusal[0] == '\0') {
            printf("*: does not fit, a rank of the machine has %s\n",
                   report_si(text, sizeof text, (double)q->on.memory_bytes));
            return;
        }
    }
}

const char *cli_row_fits(const cli_question *q, const plan_row *row)
{
    return q->on.memory_bytes <= 0 || row->memory_bytes <= 0 ? "null" : row->is_too_large ? "false" : "true";
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
