#include "launch.h"
#include "planner/report/text.h"
#include "table.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- values ------------------------------------------------------------------------------------------------------- */

enum { OPTIONS_AT_MOST = 128 };

static int take_number(long long *out, const cli_option *o, const char *text)
{
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (((*text < '0' || *text > '9') && *text != '-') || end == text || *end != '\0' || errno != 0 || value < o->low ||
        value > o->high) {
        return cli_usage_error("--%s wants a whole number from %lld to %lld, not '%s'", o->name, o->low, o->high, text);
    }
    *out = value;
    return CLI_OK;
}

/* "512M": K, M, G, T are powers of 1024. */
static int take_bytes(long long *out, const cli_option *o, const char *text)
{
    static const char letters[] = "KMGT";
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    const char *letter = end == text || *end == '\0' ? NULL : strchr(letters, *end);
    const int shift = letter == NULL ? 0 : 10 * (int)(letter - letters + 1);
    if (end == text || *(end + (letter != NULL)) != '\0' || errno != 0 || value < 1 || value > LLONG_MAX >> shift) {
        return cli_usage_error("--%s wants a number of bytes, perhaps with K, M, G or T behind it, not '%s'", o->name,
                               text);
    }
    *out = value << shift;
    return CLI_OK;
}

static int take_choice(int *out, const cli_option *o, const char *text)
{
    char words[256] = "";
    const char *word = o->value;
    for (int number = 1, used = 0; *word != '\0'; number++) {
        const int length = (int)strcspn(word, "|"), is_last = word[length] == '\0';
        if (strlen(text) == (size_t)length && memcmp(text, word, (size_t)length) == 0) {
            *out = number;
            return CLI_OK;
        }
        used += snprintf(words + used, sizeof words - (size_t)used, "%s'%.*s'",
                         number == 1 ? ""
                         : is_last   ? " or "
                                     : ", ",
                         length, word);
        word += length + !is_last;
    }
    return cli_usage_error("--%s wants %s, not '%s'", o->name, words, text);
}

/* --method adds to those before it; later entries win. */
static int take_methods(char *methods, const char *text)
{
    const size_t used = strlen(methods);
    if (text[0] == '\0') {
        return cli_usage_error("--method wants STAGE=METHOD, for example s.attn=ring or '*=local'");
    }
    if (used + 1 + strlen(text) >= CLI_METHODS_BYTES) {
        return cli_usage_error("--method: more than %d characters of methods", CLI_METHODS_BYTES - 1);
    }
    snprintf(methods + used, CLI_METHODS_BYTES - used, "%s%s", used > 0 ? "," : "", text);
    return CLI_OK;
}

static int take(cli_arguments *out, const cli_option *o, const char *text)
{
    void *at = (char *)out + o->at;
    switch (o->kind) {
    case FLAG:
        *(int *)at = 1;
        return CLI_OK;
    case NUMBER:
        return take_number(at, o, text);
    case BYTES:
        return take_bytes(at, o, text);
    case CHOICE:
        return take_choice(at, o, text);
    case METHODS:
        return take_methods(at, text);
    case TRANSPORT:
    case TEXT:
        *(const char **)at = text;
        return o->kind == TRANSPORT ? cli_check_transport(text) : CLI_OK;
    }
    return CLI_BAD_INPUT;
}

/* --- a command's line --------------------------------------------------------------------------------------------- */

/* The command's rows in getopt's form; val tells the row. */
static void list_options(struct option *out, const cli_command *command)
{
    int n = 0;
    for (int i = 0; cli_options[i].name != NULL; i++) {
        if ((cli_options[i].commands & command->bit) != 0 && n < OPTIONS_AT_MOST) {
            out[n++] =
                (struct option){cli_options[i].name, cli_options[i].kind == FLAG ? no_argument : required_argument,
                                NULL, CHAR_MAX + 1 + i};
        }
    }
    out[n] = (struct option){NULL, 0, NULL, 0};
}

static int row_of(const cli_command *command, const char *name)
{
    for (int i = 0; cli_options[i].name != NULL; i++) {
        if ((cli_options[i].commands & command->bit) != 0 && strcmp(cli_options[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

static int refuse(const cli_command *command, int option, const char *text)
{
    const char *what = option == ':'       ? "this option wants a value"
                       : optopt > CHAR_MAX ? "this option takes no value"
                                           : "unknown option";
    return cli_usage_error("heddle %s: '%s': %s (try: heddle %s --help)", command->name, text, what, command->name);
}

static int take_operand(cli_arguments *out, int count, char **operand)
{
    const cli_command *command = out->command;
    const int most = command->operands > 0 ? command->operands : 1;
    const int wanted = out->random > 0 || out->list_kernels || command->operand == NULL ? 0 : most;
    if (count == wanted || (count == 0 && command->may_lack_operand)) {
        out->operand = count > 0 ? operand[0] : NULL;
        out->second = count > 1 ? operand[1] : NULL;
        return CLI_OK;
    }
    if (command->operand == NULL) {
        return cli_usage_error("heddle %s wants nothing but options, found '%s' (try: heddle %s --help)", command->name,
                               operand[0], command->name);
    }
    if (row_of(command, "random") >= 0) {
        return cli_usage_error("heddle %s wants either one %s or --random, found %d %s%s%s (try: heddle %s --help)",
                               command->name, command->operand, count, command->operand, report_s(count),
                               out->random > 0 ? " and --random" : "", command->name);
    }
    return cli_usage_error("heddle %s wants %s %s%s, found %d (try: heddle %s --help)", command->name,
                           wanted == 2 ? "two" : "one", command->operand, report_s(wanted), count, command->name);
}

int cli_parse(cli_arguments *out, const cli_command *command, int first, int argc, char **argv)
{
    struct option options[OPTIONS_AT_MOST + 1];
    const int output = row_of(command, "output"), ranks = row_of(command, "ranks"), help = row_of(command, "help");
    char letters[8] = ":h";
    int code = CLI_OK;
    *out = (cli_arguments){.command = command, .argc = argc, .argv = argv, .seed = -1};
    for (int i = 0; cli_options[i].name != NULL && code == CLI_OK; i++) {
        if ((cli_options[i].commands & command->bit) != 0 && cli_options[i].unasked != NULL) {
            code = take(out, &cli_options[i], cli_options[i].unasked);
        }
    }
    list_options(options, command);
    strcat(letters, output >= 0 ? "o:" : "");
    strcat(letters, ranks >= 0 ? "n:" : "");
    optind = 0;
    opterr = 0;
    argc -= first;
    argv += first;
    while (code == CLI_OK) {
        optopt = 0;
        int option = getopt_long(argc, argv, letters, options, NULL);
        if (option == -1) {
            break;
        }
        if (option == '?' || option == ':') {
            return refuse(command, option, argv[optind - 1]);
        }
        const int row = option == 'h' ? help : option == 'o' ? output : option == 'n' ? ranks : option - CHAR_MAX - 1;
        code = take(out, &cli_options[row], optarg);
    }
    return code != CLI_OK || out->help ? code : take_operand(out, argc - optind, argv + optind);
}

int cli_mesh_ranks(int *ranks, const cli_arguments *a, const heddle_mesh *mesh)
{
    *ranks = heddle_mesh_size(mesh);
    return a->ranks == 0 || a->ranks == *ranks
               ? CLI_OK
               : cli_usage_error("--ranks %lld, but the mesh of the %s has %d", a->ranks, a->command->operand, *ranks);
}

heddle_status cli_parse_mesh(heddle_mesh *out, const char *text)
{
    char bracketed[HEDDLE_LINE_BYTES];
    if (text[0] == '[' || strlen(text) + 3 > sizeof bracketed) {
        return heddle_mesh_parse(out, text);
    }
    snprintf(bracketed, sizeof bracketed, "[%s]", text);
    for (char *p = bracketed; *p != '\0'; p++) {
        *p = *p == ',' ? ' ' : *p;
    }
    return heddle_mesh_parse(out, bracketed);
}
