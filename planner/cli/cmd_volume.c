/* heddle volume: what a reshard moves between which ranks, or a model's plan by link class. Nothing is run. */
#include "ask.h"
#include "planner/report/forecast.h"
#include "planner/report/volume.h"

#include <string.h>

static int run_plan(const cli_arguments *a)
{
    cli_question q;
    cli_answer answer = {0};
    int code = cli_ask(&q, a);
    code = code != CLI_OK ? code : cli_answer_to(&answer, &q);
    code = code != CLI_OK ? code : cli_report(report_edges(&answer.view, a->json));
    cli_answer_end(&answer);
    cli_ask_end(&q);
    return code;
}

static int run(const cli_arguments *a)
{
    heddle_reshard_line line;
    if (strpbrk(a->operand, "[>") == NULL) { /* neither a file's name nor a preset's has these, and every line has */
        return run_plan(a);
    }
    heddle_status st = heddle_reshard_parse(&line, a->operand);
    return cli_report(st == HEDDLE_OK ? report_volume(&line, a->json) : st);
}

const cli_action cli_volume = {
    .synopsis = "usage: heddle volume 'RESHARD LINE' [--json]\n"
                "       heddle volume MODEL -n 16 [--machine X] [--schedule FILE] [options]\n"
                "\n"
                "  heddle volume 'bf16[b=2 t=30 s=1590 c=1152] on [sp=4]: t@sp -> s@sp'\n"
                "  heddle volume stdit3-xl2 --mesh sp=4\n"
                "\n"
                "Bytes that every rank sends to every other, what it sends to itself not counted. Up to 16 ranks as\n"
                "a table. Of a model: of every edge and method of its plan, by class of link.\n",
    .notes = "JSON of a line: bytes[from][to], messages, bytes_total, bytes_per_rank_max (sent by the busiest\n"
             "rank), bytes_received_max.\n",
    .run = run,
};
