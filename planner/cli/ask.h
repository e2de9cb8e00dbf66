/* What the planner is asked, from a command's options: the model, the machine, the mesh or the number of ranks, the
 * objective. Everything that can be wrong is complained of here. */
#ifndef HD_CLI_ASK_H
#define HD_CLI_ASK_H

#include "options.h"
#include "planner/report/schedule_table.h"

enum { ASK_TEXT_BYTES = 512 };

typedef struct cli_question {
    const cli_arguments *a;
    heddle_model *model;
    heddle_machine *machine;
    heddle_machine_info on;
    char machine_from[ASK_TEXT_BYTES]; /* why this machine, for footers */
    int is_machine_asked;
    heddle_mesh mesh;
    int ranks; /* 0: of the mesh alone; else the best of all meshes of so many; -1: of neither, which sweeps set */
    heddle_plan_options options;
    heddle_forecast_options way;
} cli_question;

/* CLI_OK or complained. cli_ask_end in any case. */
int cli_ask(cli_question *q, const cli_arguments *a);
/* The same of a model that is there, which the question takes. */
int cli_ask_of(cli_question *q, heddle_model *model, const cli_arguments *a);
void cli_ask_end(cli_question *q);
/* The machine of --machine, else the calibrated one, else the preset `cpu`; `from` says which. */
int cli_open_machine(heddle_machine **out, char *from, size_t from_bytes, const char *asked);
/* CLI_BAD_INPUT, complained: the machine that was asked for has fewer ranks. One that was not asked for grows. */
int cli_fit_machine(cli_question *q, int ranks);
heddle_status cli_ask_plan(heddle_schedule **out, const cli_question *q, const heddle_plan_options *options);

/* A schedule, planned or read, with its forecast. */
typedef struct cli_answer {
    heddle_schedule *schedule;
    heddle_forecast *forecast;
    schedule_view view;
} cli_answer;

/* --schedule, or the plan that was asked for: an exit code, complained. A machine that nobody asked for has as many
 * ranks as the schedule. */
int cli_answer_to(cli_answer *out, cli_question *q);
/* The plan by other options than the question's. */
heddle_status cli_answer_plan(cli_answer *out, const cli_question *q, const heddle_plan_options *options);
/* Where the passes of guidance are one after the other: what a sample takes with them in one batch, which an axis may
 * have. Nothing beside --schedule, which is of one batch. The model stays as it is. */
void cli_tell_at_once(schedule_view *view, const cli_question *q);
void cli_answer_end(cli_answer *answer);

/* schedule_file.c: a schedule's file, or what heddle plan --json printed, which has one in it. A mismatch within the
 * file is bad input. */
int cli_load_schedule(heddle_schedule **out, const char *path);

/* Name of the objective that was asked for; NULL: none was. */
const char *cli_objective(const cli_arguments *a);

#endif
