#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const cli_command commands[] = {
    {"plan", "layout and method of every stage of a model, and what each of them moves", cli_plan, 0},
    {"run", "run a model's blocks on several ranks, switching between stages", cli_run, 1},
    {"bench", "time a reshard against a contiguous copy of the same bytes, or an attention method", cli_bench, 1},
    {"verify", "run a reshard or an attention method, or random ones, and check every element and byte count",
     cli_verify, 1},
    {"volume", "bytes that every rank sends to every other, nothing is run", cli_volume, 0},
    {NULL, NULL, NULL, 0},
};

int cli_exit_code(heddle_status status)
{
    switch (status) {
    case HEDDLE_OK:
        return CLI_OK;
    case HEDDLE_ERR_ARG:
    case HEDDLE_ERR_PARSE:
    case HEDDLE_ERR_LAYOUT:
    case HEDDLE_ERR_IO:
    case HEDDLE_ERR_UNSUPPORTED:
        return CLI_BAD_INPUT;
    case HEDDLE_ERR_INFEASIBLE:
        return CLI_INFEASIBLE;
    default:
        return CLI_FAILED;
    }
}

int cli_parse_int(long long *out, const char *option, const char *text, long long low, long long high)
{
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (((*text < '0' || *text > '9') && *text != '-') || end == text || *end != '\0' || errno != 0 || value < low ||
        value > high) {
        return cli_usage_error("%s wants a whole number from %lld to %lld, not '%s'", option, low, high, text);
    }
    *out = value;
    return CLI_OK;
}

int cli_parse_bytes(long long *out, const char *option, const char *text)
{
    static const char letters[] = "KMGT";
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    const char *letter = end == text || *end == '\0' ? NULL : strchr(letters, *end);
    const int shift = letter == NULL ? 0 : 10 * (int)(letter - letters + 1);
    if (end == text || *(end + (letter != NULL)) != '\0' || errno != 0 || value < 1 || value > LLONG_MAX >> shift) {
        return cli_usage_error("%s wants a number of bytes, perhaps with K, M, G or T behind it, not '%s'", option,
                               text);
    }
    *out = value << shift;
    return CLI_OK;
}

static int help(FILE *to)
{
    fprintf(to, "usage: heddle COMMAND ...   (heddle COMMAND --help for each)\n\n");
    for (const cli_command *c = commands; c->name != NULL; c++) {
        fprintf(to, "  %-8s %s\n", c->name, c->summary);
    }
    fprintf(to, "\nexit codes: 0 done, 1 failed while running, 2 bad input, 3 infeasible, 5 mismatch\n");
    return to == stdout ? cli_printed(CLI_OK) : CLI_BAD_INPUT;
}

/* A standard stream that the caller closed must not be the next file that is opened: its number is taken, and writing
 * there (reading, of the input) fails. */
static void keep_standard_numbers(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
            open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) {
            return;
        }
    }
}

static int run_command(int argc, char **argv)
{
    for (const cli_command *c = commands; c->name != NULL; c++) {
        if (strcmp(argv[1], c->name) == 0) {
            cli_read_job(c->has_ranks);
            return cli_printed(c->run(argc - 1, argv + 1));
        }
    }
    return cli_usage_error("unknown command '%s' (try: heddle help)", argv[1]);
}

int main(int argc, char **argv)
{
    keep_standard_numbers();
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of its write, with a sentence */
    if (argc < 2) {
        return help(stderr);
    }
    if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        return help(stdout);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("heddle %s\n", heddle_version());
        return cli_printed(CLI_OK);
    }
    const int code = run_command(argc, argv);
    cli_linger();
    return code;
}
