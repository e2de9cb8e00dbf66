/* heddle volume: what a reshard moves between which ranks. Nothing is run. */
#include "options.h"
#include "planner/report/volume.h"

static int run(const cli_arguments *a)
{
    heddle_reshard_line line;
    heddle_status st = heddle_reshard_parse(&line, a->operand);
    return cli_report(st == HEDDLE_OK ? report_volume(&line, a->json) : st);
}

const cli_action cli_volume = {
    .synopsis = "usage: heddle volume 'RESHARD LINE' [--json]\n"
                "\n"
                "  heddle volume 'bf16[b=2 t=30 s=1590 c=1152] on [sp=4]: t@sp -> s@sp'\n"
                "\n"
                "Bytes that every rank sends to every other, what it sends to itself not counted. Up to 16 ranks as a "
                "table.\n",
    .notes = "JSON: bytes[from][to], messages, bytes_total, bytes_per_rank_max (sent by the busiest rank),\n"
             "bytes_received_max.\n",
    .run = run,
};
