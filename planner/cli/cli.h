/* The command line: one file per sub-command, one table in main.c. Uses public headers, runtime/files
 * and runtime/verify only. */
#ifndef HD_CLI_H
#define HD_CLI_H

#include <heddle/heddle.h>
#include <stdio.h>

/* Exit codes, the same for every sub-command. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_BAD_INPUT = 2, CLI_INFEASIBLE = 3, CLI_MISMATCH = 5 };

typedef struct cli_command {
    const char *name;
    const char *summary;               /* one line for `heddle help` */
    int (*run)(int argc, char **argv); /* argv[0] is the sub-command's name; returns an exit code */
    int has_ranks;                     /* 0: what a launcher left in the environment is of no interest */
} cli_command;

int cli_plan(int argc, char **argv);
int cli_run(int argc, char **argv);
int cli_verify(int argc, char **argv);
int cli_verify_attention(int argc, char **argv); /* argv[1] is "attention" */
int cli_bench_attention(int argc, char **argv);  /* likewise */
int cli_verify_linear(int argc, char **argv);    /* argv[1] is "linear-attention" */
int cli_bench_linear(int argc, char **argv);     /* likewise */
int cli_volume(int argc, char **argv);
int cli_bench(int argc, char **argv);

/* Exit code of a status: bad input for ARG, PARSE, LAYOUT, MISMATCH of requests; infeasible; else failed. */
int cli_exit_code(heddle_status status);
/* say.c. Texts from files and arguments may hold anything, and a terminal obeys control bytes: in sentences and tables
 * they are shown as \xNN, and so is what is no UTF-8. */
/* Prints "heddle: SENTENCE" to standard error. In a launcher's job with the rank in front, and only the first of the
 * ranks that have the same sentence. */
void cli_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says the sentence of the last error and returns the exit code of `status`. */
int cli_report(heddle_status status);
/* Likewise of a file that was to be written: CLI_FAILED where its bytes did not arrive. */
int cli_report_written(heddle_status status);
/* The same for the command's own complaints; returns CLI_BAD_INPUT. */
int cli_usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* `text` made fit for a table, cut to fit; returns `out`. */
const char *cli_shown(char *out, size_t out_bytes, const char *text);
/* `text` as a JSON string in its quotes. */
void cli_put_json_text(FILE *to, const char *text);

/* At the end of what prints to standard output: CLI_FAILED (complained, once) when it could not be written, else
 * `code`. */
int cli_printed(int code);

/* "" or "s" behind a counted word. */
static inline const char *cli_s(long long count)
{
    return count == 1 ? "" : "s";
}

/* Whole number within low..high, nothing behind it; CLI_OK or CLI_BAD_INPUT (complained). */
int cli_parse_int(long long *out, const char *option, const char *text, long long low, long long high);

/* Bytes, "512M" (K, M, G, T: powers of 1024); CLI_OK or CLI_BAD_INPUT (complained). */
int cli_parse_bytes(long long *out, const char *option, const char *text);

#endif
