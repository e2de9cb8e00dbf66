/* The command line: one file per sub-command, one table in main.c. Uses public headers, runtime/files
 * and runtime/verify only. */
#ifndef HD_CLI_H
#define HD_CLI_H

#include <heddle/heddle.h>
#include <stdio.h>

/* Exit codes, the same for every sub-command. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_BAD_INPUT = 2, CLI_INFEASIBLE = 3, CLI_MISMATCH = 5, CLI_NO_DEVICE = 77 };

typedef struct cli_arguments cli_arguments; /* options.h */

/* Which sub-commands an option is for. */
enum {
    CLI_PLAN = 1 << 0,
    CLI_RUN = 1 << 1,
    CLI_BENCH = 1 << 2,
    CLI_BENCH_ATTENTION = 1 << 3,
    CLI_BENCH_LINEAR = 1 << 4,
    CLI_VERIFY = 1 << 5,
    CLI_VERIFY_ATTENTION = 1 << 6,
    CLI_VERIFY_LINEAR = 1 << 7,
    CLI_VOLUME = 1 << 8,
    CLI_EXPLAIN = 1 << 9,
    CLI_COMPARE = 1 << 10,
    CLI_SWEEP = 1 << 11,
    CLI_MEMORY = 1 << 12,
    CLI_SIMULATE = 1 << 13,
    CLI_DIFF = 1 << 14,
    CLI_SIMULATE_ATTENTION = 1 << 15,
    CLI_PRESETS = 1 << 16,
    CLI_IMPORT = 1 << 17,
    CLI_SIMULATE_LINEAR = 1 << 18,
    CLI_BENCH_PRODUCTS = 1 << 19,
    CLI_TOPO = 1 << 23,
    CLI_DRAW = 1 << 20,
    CLI_CALIBRATE = 1 << 22
};

/* Those that ask the planner (ask.h), of one mesh or of all that so many ranks have. */
#define CLI_ASKS (CLI_PLAN | CLI_EXPLAIN | CLI_COMPARE | CLI_SWEEP | CLI_DRAW | CLI_FORECASTS)
/* Those that take a schedule from a file as well. */
#define CLI_FORECASTS (CLI_VOLUME | CLI_MEMORY | CLI_SIMULATE)

/* Those that run ranks; of others' interest is nothing that a launcher left in the environment. */
#define CLI_RANKS (CLI_RUN | CLI_PROBLEMS | CLI_CALIBRATE)
#define CLI_PROBLEMS (CLI_BENCH | CLI_VERIFY | CLI_ATTENTION | CLI_LINEAR)
#define CLI_ATTENTION (CLI_BENCH_ATTENTION | CLI_VERIFY_ATTENTION)
#define CLI_LINEAR (CLI_BENCH_LINEAR | CLI_VERIFY_LINEAR)
/* Those that price one problem as the planner does. */
#define CLI_STAGES (CLI_SIMULATE_ATTENTION | CLI_SIMULATE_LINEAR)

typedef struct cli_action {
    const char *synopsis, *notes;         /* of its usage, before and behind the options; notes may be "" */
    int (*run)(const cli_arguments *all); /* returns an exit code */
} cli_action;

typedef struct cli_command {
    const char *name; /* "verify", "verify attention" */
    unsigned bit;
    const char *operand; /* what it wants one of: "reshard line"; NULL: nothing */
    const cli_action *action;
    int may_lack_operand;
    int operands; /* how many it wants; 0: one */
} cli_command;

extern const cli_action cli_plan, cli_run, cli_volume;
extern const cli_action cli_explain, cli_compare, cli_sweep, cli_memory, cli_simulate, cli_diff;
extern const cli_action cli_simulate_attention, cli_simulate_linear;
extern const cli_action cli_topo;
extern const cli_action cli_presets, cli_import, cli_draw;
extern const cli_action cli_calibrate;
extern const cli_action cli_bench, cli_bench_attention, cli_bench_linear, cli_bench_products;
extern const cli_action cli_verify, cli_verify_attention, cli_verify_linear;

/* Exit code of a status: bad input for ARG, PARSE, LAYOUT, MISMATCH of requests; infeasible; else failed. */
int cli_exit_code(heddle_status status);
/* say.c. Sentences quote texts that may hold anything: planner/report/text.h makes them fit for a terminal. */
/* Prints "heddle: SENTENCE" to standard error. In a launcher's job with the rank in front, and only the first of the
 * ranks that have the same sentence. */
void cli_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says the sentence of the last error and returns the exit code of `status`. */
int cli_report(heddle_status status);
/* Likewise of a file that was to be written: CLI_FAILED where its bytes did not arrive. */
int cli_report_written(heddle_status status);
/* The same for the command's own complaints; returns CLI_BAD_INPUT. */
int cli_usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* At the end of what prints to standard output: CLI_FAILED (complained, once) when it could not be written, else
 * `code`. */
int cli_printed(int code);

#endif
