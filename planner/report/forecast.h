/* A forecast, to standard output: what `heddle memory`, `heddle simulate` and `heddle volume` of a model print. */
#ifndef HD_REPORT_FORECAST_H
#define HD_REPORT_FORECAST_H

#include "planner/report/schedule_table.h"

heddle_status report_memory(const schedule_view *view, int json);
heddle_status report_simulation(const schedule_view *view, int json);
/* Bytes of every edge and of every method, by link class. */
heddle_status report_edges(const schedule_view *view, int json);

#endif
