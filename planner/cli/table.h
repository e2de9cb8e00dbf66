/* The tables of every sub-command and of every option. What reads a command line, explains it, describes it in a manual
 * page and completes it goes by them. */
#ifndef HD_CLI_TABLE_H
#define HD_CLI_TABLE_H

#include "options.h"

typedef enum option_kind { FLAG, NUMBER, BYTES, TEXT, CHOICE, TRANSPORT, LIST, PARTS } option_kind;

typedef struct cli_option {
    const char *name, *value; /* value: how the usage calls it; of CHOICE and TRANSPORT the words, with bars between */
    unsigned commands;
    option_kind kind;
    size_t at;           /* of int (FLAG, CHOICE), long long (NUMBER, BYTES), const char * or, of LIST and PARTS, a
                * cli_list in cli_arguments, where what is given again is added: behind a comma, behind a semicolon */
    const char *unasked; /* the default as if it were given; NULL: none */
    const char *help;
    long long low, high;
} cli_option;

extern const cli_option cli_options[];   /* in the order in which usages list them; the last has no name */
extern const cli_command cli_commands[]; /* likewise; longer names first: "verify attention" is no "verify" */
extern const char cli_overview[];        /* what `heddle help` says */

/* A name that lacks a letter or two of what was typed, or has them besides. */
int cli_is_near(const char *known, const char *typed);

#endif
