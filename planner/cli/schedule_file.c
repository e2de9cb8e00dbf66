/* Schedules in files: what heddle plan --output saved, or what heddle plan --json printed. */
#include "ask.h"

int cli_load_schedule(heddle_schedule **out, const char *path)
{
    const heddle_status st = heddle_schedule_load(out, path);
    const int code = cli_report(st);
    return st == HEDDLE_ERR_MISMATCH ? CLI_BAD_INPUT : code;
}
