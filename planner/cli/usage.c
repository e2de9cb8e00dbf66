/* What is said of the table: usages, the manual page, and what shells complete. */
#include "launch.h"
#include "planner/report/text.h"
#include "table.h"

#include <stdio.h>
#include <string.h>

enum { HELP_COLUMN = 24, NAME_BYTES = 64, HELP_BYTES = 1024 };

/* The help of an option, with its default. */
static const char *help_of(char *out, const cli_option *o)
{
    snprintf(out, HELP_BYTES, "%s%s%s%s", o->help, o->unasked != NULL ? " (" : "", o->unasked != NULL ? o->unasked : "",
             o->unasked != NULL ? ")" : "");
    return out;
}

void cli_print_usage(const cli_command *command)
{
    printf("%s\n", command->action->synopsis);
    for (const cli_option *o = cli_options; o->name != NULL; o++) {
        char name[NAME_BYTES], help[HELP_BYTES];
        if ((o->commands & command->bit) == 0) {
            continue;
        }
        int n = snprintf(name, sizeof name, "  --%s%s%s", o->name, o->value != NULL ? " " : "",
                         o->value != NULL ? o->value : "");
        n = printf("%s%*s", name, n < HELP_COLUMN ? HELP_COLUMN - n : 1, "");
        report_wrap(stdout, help_of(help, o), n, HELP_COLUMN, REPORT_COLUMNS);
        printf("\n");
    }
    printf("%s%s", command->action->notes[0] != '\0' ? "\n" : "", command->action->notes);
}

/* --- the manual page ---------------------------------------------------------------------------------------------- */

/* Text for troff, which reads its own signs from it. */
static void print_troff(const char *text)
{
    for (int first = 1; *text != '\0'; first = *text++ == '\n') {
        printf(first && (*text == '.' || *text == '\'') ? "\\&%c"
               : *text == '\\'                          ? "\\e"
               : *text == '-'                           ? "\\-"
                                                        : "%c",
               *text);
    }
}

static void print_as_is(const char *heading, const char *text)
{
    printf(".SH %s\n.nf\n", heading);
    print_troff(text);
    printf(".fi\n");
}

static void print_manual(void)
{
    printf(".TH HEDDLE 1 \"\" \"heddle %s\"\n.SH NAME\nheddle \\- sequence parallelism: plan, run, time and verify\n",
           heddle_version());
    print_as_is("SYNOPSIS", cli_overview);
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        printf(".SH \"heddle %s\"\n.nf\n", command->name);
        print_troff(command->action->synopsis);
        printf(".fi\n");
        for (const cli_option *o = cli_options; o->name != NULL; o++) {
            char help[HELP_BYTES];
            if ((o->commands & command->bit) != 0) {
                printf(".TP\n.B \\-\\-");
                print_troff(o->name);
                printf(" %s\n", o->value != NULL ? o->value : "");
                print_troff(help_of(help, o));
                printf("\n");
            }
        }
        printf(".PP\n.nf\n");
        print_troff(command->action->notes);
        printf(".fi\n");
    }
}

/* --- completion --------------------------------------------------------------------------------------------------- */

static void print_commands(int is_second)
{
    const char *before = "";
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        const char *space = strchr(command->name, ' ');
        if (!is_second && space == NULL) {
            printf("%s%s", before, command->name);
            before = " ";
        } else if (is_second && space != NULL &&
                   strncmp(command->name, "verify", 6) == 0) { /* those of bench and simulate, too */
            printf("%s%s", before, space + 1);
            before = " ";
        }
    }
}

/* The command and the option as a pattern; an option's name may mean another thing to another command. */
static void print_where(const cli_option *option)
{
    int rows = 0;
    for (const cli_option *o = cli_options; o->name != NULL; o++) {
        rows += strcmp(o->name, option->name) == 0;
    }
    if (rows == 1) {
        printf("*:--%s", option->name);
        return;
    }
    const char *before = "";
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        if ((option->commands & command->bit) != 0) {
            printf("%s\"%s\":--%s", before, command->name, option->name);
            before = "|";
        }
    }
}

/* Names of models, for commands that want a model or a name. */
static void print_models(const cli_command *command)
{
    heddle_preset_info preset = HEDDLE_EMPTY(heddle_preset_info);
    const char *wanted = command->operand != NULL ? command->operand : "";
    if (strstr(wanted, "model") == NULL && strcmp(wanted, "name") != 0) {
        return;
    }
    for (int i = 0; i < heddle_model_presets() && heddle_model_preset(&preset, i) == HEDDLE_OK; i++) {
        printf("%s ", preset.name);
    }
}

static void print_machines(void)
{
    for (int i = 0; heddle_machine_preset_name(i) != NULL; i++) {
        printf("%s%s", i > 0 ? " " : "", heddle_machine_preset_name(i));
    }
}

/* The same lines for both shells: `all` becomes the words that may stand at the cursor, by the word before it and the
 * command, `first`, with the word behind it, `second`. */
static void print_choice(void)
{
    printf("case $second in attention | linear-attention) first=\"$first $second\" ;; esac\n"
           "case $first:$before in\n*:heddle) all=\"");
    print_commands(0);
    printf(" help --help --version\" ;;\nhelp:*) all=\"");
    print_commands(0);
    printf("\" ;;\n");
    for (const cli_option *o = cli_options; o->name != NULL; o++) {
        if (o->kind != FLAG) {
            print_where(o);
            if (o->kind == CHOICE) {
                printf(") all='%s' all=${all//|/ } ;;\n", o->value);
            } else { /* of a text nothing is known, perhaps it is a file */
                printf(") all=\"%s", o->kind == TRANSPORT ? CLI_TRANSPORTS : "");
                if (strcmp(o->name, "machine") == 0) {
                    print_machines();
                }
                printf("\" ;;\n");
            }
        }
    }
    for (const cli_command *command = cli_commands; command->name != NULL; command++) {
        printf("\"%s\":*) all=\"", command->name);
        for (const cli_option *o = cli_options; o->name != NULL; o++) {
            if ((o->commands & command->bit) != 0) {
                printf("--%s ", o->name);
            }
        }
        if (strcmp(command->name, "verify") == 0 || strcmp(command->name, "bench") == 0 ||
            strcmp(command->name, "simulate") == 0) {
            print_commands(1);
        }
        print_models(command);
        printf("\" ;;\n");
    }
    printf("esac\n");
}

static void print_bash(void)
{
    printf("_heddle() {\n"
           "local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} all=\n"
           "local first=${COMP_WORDS[1]} second=${COMP_WORDS[2]}\n"
           "[ \"$COMP_CWORD\" != 1 ] || before=heddle\n");
    print_choice();
    printf("COMPREPLY=($(compgen -W \"$all\" -- \"$word\"))\n}\ncomplete -o default -F _heddle heddle\n");
}

static void print_zsh(void)
{
    printf("#compdef heddle\n"
           "local before=$words[CURRENT-1] first=$words[2] second=$words[3] all=\n"
           "(( CURRENT != 2 )) || before=heddle\n");
    print_choice();
    printf("compadd -- ${=all} || _files\n");
}

int cli_print_page(const char *name)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } pages[] = {{"man", print_manual}, {"bash", print_bash}, {"zsh", print_zsh}};
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        if (strcmp(name, pages[i].name) == 0) {
            pages[i].print();
            return 1;
        }
    }
    return 0;
}
