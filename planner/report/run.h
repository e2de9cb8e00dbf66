/* A run of a model, to standard output: what `heddle run` prints. */
#ifndef HD_REPORT_RUN_H
#define HD_REPORT_RUN_H

#include "runtime/verify/run.h"

/* Stages of the same name, layout and method in one line, and behind them the way back. */
void report_run(const run_report *report);
/* The same and, where there was a check, what it found. */
void report_run_json(const run_report *report, const run_verdict *verdict);
void report_run_check(const run_verdict *verdict, double reference_ms);

#endif
