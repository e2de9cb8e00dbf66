/* heddle plan --analyze: the plan is run. */
#ifndef HD_CLI_ANALYZE_H
#define HD_CLI_ANALYZE_H

#include "ask.h"

/* Takes the answer's schedule and runs it on as many ranks as its mesh has: an exit code, complained; CLI_MISMATCH
 * where other bytes were sent than planned. */
int cli_analyze(const cli_question *q, cli_answer *answer);

/* candidates.c: likewise of --candidates so many schedules, the answer's among them. */
int cli_candidates(const cli_question *q, cli_answer *answer);

#endif
