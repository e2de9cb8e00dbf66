/* Memory of a run, as planned and as held. */
#ifndef HD_REPORT_RUN_MEMORY_H
#define HD_REPORT_RUN_MEMORY_H

#include "planner/report/run.h"

/* Bytes of the rank that has most of the kind. */
typedef struct run_memory {
    const char *name, *meaning;
    int64_t planned; /* -1: no plan has it */
    int64_t held;
    int64_t lent; /* of methods: more would be held if nothing were lent; their plan is held + lent */
} run_memory;

/* The kinds in their order. Blocks on a device hold other things, and there: none. */
heddle_status run_memory_of(run_memory out[RUN_MEMORIES], const run_report *report);
/* Of the rank that holds most in all. */
int64_t run_memory_held(const run_report *report);

#endif
