#include "launch.h"
#include "planner/report/text.h"
#include "table.h"

#include <ctype.h>
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

/* "512M", "512 MiB": powers of 1024; "512MB" of 1000. A small b would be bits. */
static int take_bytes(long long *out, const cli_option *o, const char *text)
{
    static const char letters[] = "KMGT";
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    const int is_number = end != text && errno == 0 && value >= 1;
    end += *end == ' ';
    const char *letter = *end == '\0' ? NULL : strchr(letters, toupper((unsigned char)*end));
    end += letter != NULL;
    const int is_decimal = strcmp(end, "B") == 0 && letter != NULL;
    int is_whole = *end == '\0' || is_decimal || strcmp(end, letter != NULL ? "iB" : "B") == 0;
    for (long i = letter != NULL ? letter - letters + 1 : 0; i > 0; i--) {
        is_whole &= !__builtin_mul_overflow(value, is_decimal ? 1000 : 1024, &value);
    }
    if (!is_number || !is_whole) {
        return cli_usage_error("--%s wants a number of bytes, as 80G (of 1024) or 80GB (of 1000); K, M, T likewise, "
                               "not '%s'",
                               o->name, text);
    }
    *out = value;
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

/* Adds to those before it; later entries win. */
static int take_part(char *list, const cli_option *o, const char *text)
{
    const size_t used = strlen(list);
    if (text[0] == '\0' && used == 0 && o->at == offsetof(cli_arguments, methods)) {
        return cli_usage_error("--method wants STAGE=METHOD, for example s.attn=ring or '*=local'");
    }
    if (used + 1 + strlen(text) >= CLI_LIST_BYTES) {
        return cli_usage_error("--%s: more than %d characters", o->name, CLI_LIST_BYTES - 1);
    }
    snprintf(list + used, CLI_LIST_BYTES - used, "%s%s", used == 0 ? "" : o->kind == LIST ? "," : ";", text);
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
    case LIST:
    case PARTS:
        return take_part(at, o, text);
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

/* The letters of `part` stand in `whole`, in their order. */
static int stands_in(const char *part, const char *whole)
{
    for (; *whole != '\0' && *part != '\0'; whole++) {
        part += *part == *whole;
    }
    return *part == '\0';
}

int cli_is_near(const char *known, const char *typed)
{
    const int more = (int)strlen(known) - (int)strlen(typed);
    return typed[0] == known[0] && strlen(typed) > 1 && more >= -2 && more <= 2 &&
           (stands_in(typed, known) || stands_in(known, typed));
}

/* What other programs call it. */
static const char *other_name(const cli_command *command, const char *typed)
{
    static const char *const names[][2] = {
        {"ranks",
         " nproc np gpus num-gpus ngpus n-gpus nproc-per-node nproc_per_node world-size num-ranks processes N "},
        {"memory", " mem gpu-memory vram "},
        {"mesh", " topology devices shape n ranks "},
        {"machine", " m cluster hardware hw "},
        {"output", " out O "},
        {"size", " sizes dims s "},
    };
    char word[40];
    snprintf(word, sizeof word, " %s ", typed);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strstr(names[i][1], word) != NULL && row_of(command, names[i][0]) >= 0) {
            return names[i][0];
        }
    }
    return NULL;
}

/* An option of the command that lacks a letter or two of what was typed, or has them besides; NULL: none. */
static const char *near_option(const cli_command *command, const char *text)
{
    const char *typed = text + strspn(text, "-");
    const size_t length = strcspn(typed, "=");
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)length, typed);
    for (int i = 0; cli_options[i].name != NULL; i++) {
        if ((cli_options[i].commands & command->bit) != 0 && cli_is_near(cli_options[i].name, name)) {
            return cli_options[i].name;
        }
    }
    return other_name(command, name);
}

static int refuse(const cli_command *command, int option, const char *text)
{
    const char *near = option == ':' || optopt > CHAR_MAX ? NULL : near_option(command, text);
    if (near != NULL) {
        return cli_usage_error("heddle %s: '%s': unknown option; did you mean --%s%s?", command->name, text, near,
                               strcmp(near, "ranks") == 0 ? ", or -n" : "");
    }
    if (strcmp(text, "--json") == 0 && row_of(command, "output") >= 0) {
        return cli_usage_error("heddle %s: '--json': what it makes is the file of --output; heddle plan --json prints "
                               "figures",
                               command->name);
    }
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
    const char *ranks = count == wanted + 1 ? operand[wanted] : "x";
    if (ranks[strspn(ranks, "0123456789")] == '\0' && row_of(command, "ranks") >= 0) {
        return cli_usage_error("heddle %s: a number of ranks is said as -n %s", command->name, ranks);
    }
    if (count == wanted + 1 && strchr(ranks, '=') != NULL && row_of(command, "mesh") >= 0) {
        return cli_usage_error("heddle %s: a mesh is said as --mesh %s, an extent as --size %s", command->name, ranks,
                               ranks);
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
        optarg = option == 'n' && *optarg == '=' ? optarg + 1 : optarg; /* -n=8 */
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
    heddle_status st = heddle_mesh_parse(out, bracketed);
    if (st != HEDDLE_OK && strchr(text, '=') == NULL) { /* 16, 2x8, sp16 */
        st = heddle_set_error(
            st, "a mesh names its axes, as sp=16 or 'node=2 gpu=8', found '%.60s'; -n 16 takes the best", text);
    } else if (st == HEDDLE_ERR_PARSE) {
        snprintf(bracketed, sizeof bracketed, "%s", heddle_last_error());
        st = heddle_set_error(st, "%.400s; a mesh is written sp=16 or 'node=2 gpu=8'", bracketed);
    }
    return st;
}
