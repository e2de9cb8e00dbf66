/* A plan beside its run: what `heddle plan --analyze` prints. */
#ifndef HD_REPORT_ANALYSIS_H
#define HD_REPORT_ANALYSIS_H

#include "planner/report/run.h"
#include "planner/report/schedule_table.h"

/* A row for each stage, layout and method, and the end; bytes are of the rank that sends most, seconds measured of the
 * slowest one. */
void report_analysis(const run_report *report, const schedule_view *plan);
/* heddle-analysis-1 (docs/formats.md). */
void report_analysis_json(const run_report *report, const schedule_view *plan);
/* Have all ranks sent the bytes that were planned, in every step? */
int report_analysis_agrees(const run_report *report);

#endif
