#include "launch.h"
#include "table.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

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

static int help(FILE *to)
{
    fputs(cli_overview, to);
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

/* How many of the words are the command's name; 0: it is another. */
static int names(const cli_command *command, int count, char **word)
{
    const char *rest = strchr(command->name, ' ');
    const size_t length = rest == NULL ? strlen(command->name) : (size_t)(rest - command->name);
    if (strncmp(word[0], command->name, length) != 0 || word[0][length] != '\0') {
        return 0;
    }
    return rest == NULL ? 1 : count > 1 && strcmp(word[1], rest + 1) == 0 ? 2 : 0;
}

/* `words`: what is behind "help". */
static int help_on(int argc, char **words)
{
    if (argc == 0 || strcmp(words[0], "--help") == 0) {
        return help(stdout);
    }
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        if (names(command, argc, words) == argc) {
            cli_print_usage(command);
            return cli_printed(CLI_OK);
        }
    }
    if (argc == 1 && cli_print_page(words[0])) {
        return cli_printed(CLI_OK);
    }
    return cli_usage_error("no help on '%s%s%s' (try: heddle help)", words[0], argc > 1 ? " " : "",
                           argc > 1 ? words[1] : "");
}

/* heddle plan has ranks where it runs what it planned; a launcher's others are not asked. */
static int has_ranks(const cli_command *command, int argc, char **argv)
{
    int is_run = (command->bit & CLI_RANKS) != 0;
    for (int i = 0; i < argc && command->bit == CLI_PLAN; i++) {
        is_run |= strcmp(argv[i], "--analyze") == 0;
    }
    return is_run;
}

static int refuse_command(const char *typed)
{
    int index = 0;
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        if (strcasecmp(command->name, typed) == 0 || cli_is_near(command->name, typed)) {
            return cli_usage_error("unknown command '%s': did you mean %s? (try: heddle help)", typed, command->name);
        }
    }
    return heddle_model_find_preset(&index, typed) == HEDDLE_OK
               ? cli_usage_error("unknown command '%s', which is a model: heddle plan %s -n 8", typed, typed)
               : cli_usage_error("unknown command '%s' (try: heddle help)", typed);
}

static int run_command(int argc, char **argv)
{
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        const int words = names(command, argc, argv);
        if (words > 0) {
            static cli_arguments arguments; /* large, and ranks' stacks begin here */
            cli_read_job(has_ranks(command, argc, argv));
            int code = cli_parse(&arguments, command, words - 1, argc, argv);
            if (code == CLI_OK && arguments.help) {
                cli_print_usage(command);
            } else if (code == CLI_OK) {
                code = command->action->run(&arguments);
            }
            return cli_printed(code);
        }
    }
    return refuse_command(argv[0]);
}

/* Ranks that are threads wait for one another on a device; streams that share one of its connections would keep back
 * what the others wait for (docs/gpu.md). CUDA reads this when it begins. */
static void ask_for_connections(void)
{
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

int main(int argc, char **argv)
{
    keep_standard_numbers();
    ask_for_connections();
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of its write, with a sentence */
    if (argc < 2) {
        return help(stderr);
    }
    if (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        return help_on(argc - 2, argv + 2);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("heddle %s\n", heddle_version());
        return cli_printed(CLI_OK);
    }
    const int code = run_command(argc - 1, argv + 1);
    cli_linger();
    return code;
}
