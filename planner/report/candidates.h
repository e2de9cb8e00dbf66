/* Other ways to run a model, predicted and measured: what `heddle plan --candidates` prints. */
#ifndef HD_REPORT_CANDIDATES_H
#define HD_REPORT_CANDIDATES_H

#include "planner/report/run.h"
#include "planner/report/schedule_table.h"

typedef struct candidate {
    char how[512]; /* "t.attn=t@sp/ring;s.attn=t@sp/local" */
    heddle_schedule *schedule;
    double predicted_s, measured_s;
    int is_plan;
} candidate;

/* The fastest measured first; `possible`: how many there are. */
void report_candidates(const candidate *list, int count, int possible, const run_report *report,
                       const schedule_view *plan);
/* heddle-candidates-1 (docs/formats.md). */
void report_candidates_json(const candidate *list, int count, int possible, const run_report *report,
                            const schedule_view *plan);

#endif
