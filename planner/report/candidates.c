/* Candidates, predicted beside measured. */
#include "planner/report/candidates.h"

#include "planner/report/text.h"

#include <stdio.h>

enum { AT_HOW = 35 };

/* By how much the plan takes longer than the fastest of all. */
static double above_best(const candidate *list, int count)
{
    for (int i = 0; i < count; i++) {
        if (list[i].is_plan && list[0].measured_s > 0) {
            return list[i].measured_s / list[0].measured_s - 1;
        }
    }
    return 0;
}

void report_candidates(const candidate *list, int count, int possible, const run_report *report,
                       const schedule_view *plan)
{
    char mesh[256] = "?", a[16], b[16];
    heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &report->task->mesh));
    printf("%s on %s, %s\nmachine %s, %s\n\n%10s %10s %6s  %s\n", report->task->info.name, mesh, report->comm,
           plan->on.name, plan->machine_from, "predicted", "measured", "ratio", "stages that mix a dim");
    for (int i = 0; i < count; i++) {
        const candidate *c = &list[i];
        printf("%10s %10s %6.2f%s", report_seconds(a, sizeof a, c->predicted_s),
               report_seconds(b, sizeof b, c->measured_s), c->predicted_s > 0 ? c->measured_s / c->predicted_s : 0.0,
               c->is_plan ? "  the plan: " : "  ");
        report_wrap(stdout, c->how, c->is_plan ? AT_HOW + 6 : AT_HOW - 4, AT_HOW, REPORT_COLUMNS);
        printf("\n");
    }
    printf("\n%d of %d ways %s run; the plan takes %.1f %% longer than the fastest\n", count, possible,
           count == 1 ? "was" : "were", above_best(list, count) * 100);
}

void report_candidates_json(const candidate *list, int count, int possible, const run_report *report,
                            const schedule_view *plan)
{
    char mesh[256] = "?";
    heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &report->task->mesh));
    printf("{\"schema\": \"heddle-candidates-1\", ");
    report_json_string("model", report->task->info.name, ", ");
    report_json_string("mesh", mesh, ", ");
    report_json_string("machine", plan->on.name, ",\n ");
    printf("\"possible\": %d, \"above_best\": %.6g,\n \"candidates\": [", possible, above_best(list, count));
    for (int i = 0; i < count; i++) {
        printf("%s{", i > 0 ? ",\n  " : "\n  ");
        report_json_string("how", list[i].how, ", ");
        printf("\"is_plan\": %s, \"predicted_s\": %.12g, \"measured_s\": %.9f}", list[i].is_plan ? "true" : "false",
               list[i].predicted_s, list[i].measured_s);
    }
    printf("]}\n");
}
