/* Predicted beside measured. */
#include "planner/report/analysis.h"

#include "planner/report/run_rows.h"
#include "planner/report/text.h"

#include <inttypes.h>
#include <stdio.h>

/* Seconds of all steps of a row: of the stage, and of the edge that leads into it. */
static double predicted_s(const run_report *report, const schedule_view *plan, const run_row *row)
{
    double s = 0;
    for (int i = 0; i < report->mine.nsteps; i++) {
        heddle_forecast_step stage = HEDDLE_EMPTY(heddle_forecast_step), edge = HEDDLE_EMPTY(heddle_forecast_step);
        if (run_row_has(report, row, i)) {
            /* the last step is an edge alone */
            s += heddle_forecast_stage(&stage, plan->forecast, i) == HEDDLE_OK ? stage.time_s : 0;
            s += heddle_forecast_edge(&edge, plan->forecast, i) == HEDDLE_OK ? edge.time_s : 0;
        }
    }
    return s;
}

static double measured_s(const run_row *row)
{
    return (double)(row->switch_ns + row->compute_ns) * 1e-9;
}

int report_analysis_agrees(const run_report *report)
{
    for (int i = 0; i < report->nranks * report->mine.nsteps; i++) {
        if (report->steps[i].planned != report->steps[i].sent) {
            return 0;
        }
    }
    return 1;
}

static void print_line(const char *name, int runs, const char *layout, const char *method, int64_t planned,
                       int64_t sent, double predicted, double measured)
{
    char a[16], b[16];
    printf("%-14s %4d %-14s %-9s %12" PRId64 " %12" PRId64 " %10s %9s %6.2f%s\n", name, runs, layout, method, planned,
           sent, report_seconds(a, sizeof a, predicted), report_seconds(b, sizeof b, measured),
           predicted > 0 ? measured / predicted : 0.0, planned != sent ? "  BYTES DIFFER" : "");
}

/* Of a plan's arrays those of a run, whose repetitions have the same weights. */
static int64_t held_by_run(const run_report *report, const schedule_view *plan)
{
    const heddle_forecast_memory *m = &plan->of.memory;
    return m->total - m->weights + m->weights / report->task->info.repeat;
}

void report_analysis(const run_report *report, const schedule_view *plan)
{
    const run_task *task = report->task;
    char shape[HEDDLE_LINE_BYTES] = "?", mesh[256] = "?", all[16], held[16], peak[16];
    run_way way = run_way_of(report, 0);
    heddle_ignore(heddle_shape_format(shape, sizeof shape, &task->info.shape));
    heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &task->mesh));
    printf("%s: %s on %s, %d layer%s of %d stage%s\n%s\nmachine %s, %s\n\n", task->info.name, shape, mesh,
           task->info.repeat, report_s(task->info.repeat), task->info.nstages, report_s(task->info.nstages),
           report->comm, plan->on.name, plan->machine_from);
    printf("%-14s %4s %-14s %-9s %12s %12s %10s %9s %6s\n", "stage", "runs", "layout", "method", "sent planned",
           "measured", "predicted", "measured", "ratio");
    for (int i = 0; i < way.rows; i++) {
        const run_row *r = &way.row[i];
        print_line(r->name, r->runs, r->layout, r->method, r->planned, r->sent, predicted_s(report, plan, r),
                   measured_s(r));
    }
    print_line("total", report->mine.nsteps, "", "", way.sum.planned_max, way.sum.sent_max, plan->of.time_s,
               (double)way.sum.forward_ns * 1e-9);
    printf("\nbytes are of the rank that sends most, times measured of the slowest one, in the fastest of %" PRId64
           " passes\n"
           "memory predicted for a rank's arrays: %s, and %s of this run, whose layers have the same weights;\n"
           "memory measured: %s at the peak of a process, which holds its program, too\n",
           task->passes, report_si(all, sizeof all, (double)plan->of.memory.total),
           report_si(held, sizeof held, (double)held_by_run(report, plan)),
           report_si(peak, sizeof peak, (double)run_report_most(report, RUN_TOTAL_PEAK_BYTES)));
    if (!plan->on.is_calibrated) {
        printf("the machine was not measured: heddle calibrate makes predictions of this one\n");
    }
    run_way_free(&way);
}

void report_analysis_json(const run_report *report, const schedule_view *plan)
{
    const run_task *task = report->task;
    char mesh[256] = "?";
    run_way way = run_way_of(report, 0);
    heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &task->mesh));
    printf("{\"schema\": \"heddle-analysis-1\", ");
    report_json_string("model", task->info.name, ", ");
    report_json_string("mesh", mesh, ", ");
    report_json_string("machine", plan->on.name, ",\n ");
    printf("\"bytes_agree\": %s, \"bytes_planned\": %" PRId64 ", \"bytes_sent\": %" PRId64
           ", \"predicted_s\": %.12g, \"measured_s\": %.9f,\n \"memory_predicted_bytes\": %" PRId64
           ", \"memory_held_bytes\": %" PRId64 ", \"memory_peak_bytes\": %" PRId64 ",\n \"stages\": [",
           report_analysis_agrees(report) ? "true" : "false", way.sum.planned, way.sum.sent, plan->of.time_s,
           (double)way.sum.forward_ns * 1e-9, plan->of.memory.total, held_by_run(report, plan),
           run_report_most(report, RUN_TOTAL_PEAK_BYTES));
    for (int i = 0; i < way.rows; i++) {
        const run_row *r = &way.row[i];
        printf("%s{", i > 0 ? ",\n  " : "\n  ");
        report_json_string("stage", r->name, ", ");
        report_json_string("layout", r->layout, ", ");
        report_json_string("method", r->method, ", ");
        printf("\"runs\": %d, \"bytes_planned\": %" PRId64 ", \"bytes_sent\": %" PRId64
               ", \"predicted_s\": %.12g, \"measured_s\": %.9f}",
               r->runs, r->planned, r->sent, predicted_s(report, plan, r), measured_s(r));
    }
    printf("]}\n");
    run_way_free(&way);
}
