/* Where another plan is the best one if links are slower or faster than the machine says. */
#ifndef HD_CLI_CHANGES_H
#define HD_CLI_CHANGES_H

#include "ask.h"

enum { CHANGES_MAX = 2 * (HEDDLE_MACHINE_LINKS + 1), CHANGES_RATE = 64 /* times lower and higher, at most */ };

typedef struct cli_change {
    const char *link; /* class whose rate changes; NULL: all of them alike */
    int is_faster;
    double times;     /* as slow or as fast, where another plan begins to be the best; 0: nowhere */
    char change[512]; /* what it does otherwise, "[sp=16] instead of [r=2 u=8]"; "" without one */
} cli_change;

typedef struct cli_changes {
    int count;      /* 0: rates do not count: by bytes, by memory, of one rank */
    int is_of_mesh; /* other meshes were not asked for, or are too many */
    cli_change list[CHANGES_MAX];
} cli_changes;

/* The question is asked again of machines with other rates of links, farther and farther, until another plan is better,
 * then back to the least factor at which any is. HEDDLE_ERR_NOMEM; where rates leave what machines may have, the entry
 * is left out. */
heddle_status cli_find_changes(cli_changes *out, const cli_question *q, const schedule_view *plan);

void cli_print_changes(const cli_changes *changes);
/* A JSON list. */
void cli_print_changes_json(const cli_changes *changes);

#endif
