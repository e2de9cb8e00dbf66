/* Memory of a run, as planned and as held. */
#include "planner/report/run_memory.h"

#include <heddle/forecast.h>

heddle_status run_memory_of(run_memory out[RUN_MEMORIES], const run_report *report)
{
    static const run_memory kinds[RUN_MEMORIES] = {
        [RUN_MEMORY_PARAMETERS] = {"parameters", "in f32", 0, 0, 0},
        [RUN_MEMORY_GRADIENTS] = {"gradients", "of parameters, in f32", 0, 0, 0},
        [RUN_MEMORY_KEPT] = {"kept", "for the way back", 0, 0, 0},
        [RUN_MEMORY_METHODS] = {"methods", "of attention over sharded dims", 0, 0, 0},
        [RUN_MEMORY_BLOCKS] = {"blocks", "rows that stages work in", 0, 0, 0},
        [RUN_MEMORY_SWITCHES] = {"switches", "results of switches", 0, 0, 0},
        [RUN_MEMORY_PRODUCTS] = {"products", "weights as products want them", -1, 0, 0},
        [RUN_MEMORY_THREADS] = {"threads", "scratch, whatever the rows", -1, 0, 0},
        [RUN_MEMORY_MESSAGES] = {"messages", "packed for ranks out of reach", -1, 0, 0},
        [RUN_MEMORY_ENDS] = {"ends", "input, conditioning, sums of gradients", -1, 0, 0}};
    const run_task *task = report->task;
    heddle_forecast_executor plan = HEDDLE_EMPTY(heddle_forecast_executor);
    heddle_forecast_options options;
    heddle_forecast_options_init(&options);
    options.training = task->backward;
    options.recompute = task->recompute;
    const heddle_status st = heddle_forecast_of_executor(&plan, task->model, task->schedule, &options);
    if (st != HEDDLE_OK) {
        return st;
    }
    const int64_t planned[] = {[RUN_MEMORY_PARAMETERS] = plan.parameters,
                               [RUN_MEMORY_GRADIENTS] = plan.gradients,
                               [RUN_MEMORY_KEPT] = plan.kept,
                               [RUN_MEMORY_METHODS] = plan.methods,
                               [RUN_MEMORY_BLOCKS] = plan.blocks,
                               [RUN_MEMORY_SWITCHES] = plan.switches};
    for (int i = 0; i < RUN_MEMORIES; i++) {
        out[i] = kinds[i];
        out[i].planned = kinds[i].planned < 0 ? -1 : planned[i];
        out[i].held = run_report_most(report, RUN_TOTAL_MEMORY + i);
    }
    out[RUN_MEMORY_METHODS].lent = run_report_most(report, RUN_TOTAL_UNLENT) - out[RUN_MEMORY_METHODS].held;
    return HEDDLE_OK;
}

int64_t run_memory_held(const run_report *report)
{
    int64_t most = 0;
    for (int rank = 0; rank < report->nranks; rank++) {
        int64_t all = 0;
        for (int i = 0; i < RUN_MEMORIES; i++) {
            all += report->totals[rank * RUN_TOTALS + RUN_TOTAL_MEMORY + i];
        }
        most = all > most ? all : most;
    }
    return most;
}
