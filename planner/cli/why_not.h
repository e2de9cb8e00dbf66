/* One stage run otherwise: the plan with that forced, against the plan. */
#ifndef HD_CLI_WHY_NOT_H
#define HD_CLI_WHY_NOT_H

#include "ask.h"

typedef enum verdict { VERDICT_CHOSEN, VERDICT_TIE, VERDICT_ELSEWHERE, VERDICT_LEFT_OUT, VERDICT_UNAVAILABLE } verdict;

typedef struct why_not {
    verdict verdict;
    char asked[256];     /* "s.attn=s@sp/ring" */
    double value;        /* of the best plan in which it is so; 0 where there is none */
    double regret;       /* value less that of the plan; below 0: left out */
    char layout[128];    /* as it runs there */
    char method[32];     /* likewise */
    char reason[512];    /* why it is unavailable or left out, or what it leaves idle; "" */
    int chosen, repeats; /* repetitions of the plan in which it is so, and all */
} why_not;

/* `force` is one entry. CLI_OK, or CLI_BAD_INPUT, complained: it names no stage, no layout or no method. */
int cli_why_not(why_not *out, const cli_question *q, const schedule_view *plan, const char *force);
/* "CHEAPER ELSEWHERE" ... */
const char *cli_verdict_name(verdict verdict);
/* Other layouts of stage k, and other methods in any layout, the cheapest first, at most `most`; unavailable ones are
 * left out. The number. *steps: grows by the stages of the plans that were made for it. */
int cli_alternatives(why_not *out, int most, const cli_question *q, const schedule_view *plan, int k, int64_t *steps);

/* Layout number i of all that put every axis on a dim that may be sharded, or on none; 0: there are no more. */
int cli_nth_layout(heddle_layout *out, const schedule_view *plan, int batch_and_rows, int channel_dim, int i);

#endif
