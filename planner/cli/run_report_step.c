/* The report of a training step: what comes behind that of its forward pass. */
#include "planner/report/text.h"
#include "run_rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* The way back as a report of its own, for the functions that add up. */
typedef struct way_back {
    run_result result;
    run_report report;
} way_back;

static const run_report *make_way_back(way_back *w, const run_report *report)
{
    w->result = *report->mine;
    w->result.step = report->mine->back;
    w->result.path = report->mine->back_path;
    w->report = *report;
    w->report.mine = &w->result;
    w->report.steps = report->back;
    return &w->report;
}

typedef struct step_totals {
    int64_t backward_ns, reduce_ns;                                   /* of the slowest rank */
    int64_t reduce_planned, reduce_sent, reduce_max, reduce_plan_max; /* of all ranks; of the one that sends most */
} step_totals;

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static step_totals sum_totals(const run_report *report)
{
    step_totals t = {0};
    for (int rank = 0; rank < report->nranks; rank++) {
        const int64_t *total = &report->totals[rank * RUN_TOTALS];
        t.backward_ns = larger(t.backward_ns, total[RUN_TOTAL_BACKWARD_NS]);
        t.reduce_ns = larger(t.reduce_ns, total[RUN_TOTAL_REDUCE_NS]);
        t.reduce_planned += total[RUN_TOTAL_REDUCE_PLANNED];
        t.reduce_sent += total[RUN_TOTAL_REDUCE_SENT];
        t.reduce_plan_max = larger(t.reduce_plan_max, total[RUN_TOTAL_REDUCE_PLANNED]);
        t.reduce_max = larger(t.reduce_max, total[RUN_TOTAL_REDUCE_SENT]);
    }
    return t;
}

static double ms(int64_t ns)
{
    return (double)ns * 1e-6;
}

void run_print_step_table(const run_report *report)
{
    way_back way;
    int count = 0, kept_count = 0;
    const run_report *back = make_way_back(&way, report);
    const run_sum forward = run_sum_all(report), t = run_sum_all(back);
    const step_totals s = sum_totals(report);
    run_row *rows = run_make_rows(&count, back), *kept = run_make_rows(&kept_count, report);
    printf("\n%-10s %4s %-12s %-7s %13s %13s %10s %10s %10s\n", "backward", "runs", "layout", "method", "sent, planned",
           "measured", "switch ms", "block ms", "kept MB");
    for (int i = count - 1; i >= 0 && rows != NULL && kept != NULL; i--) {
        const run_row *r = &rows[i];
        printf("%-10s %4d %-12s %-7s %13" PRId64 " %13" PRId64 " %10.3f %10.3f %10.3f\n", r->name, r->runs, r->layout,
               r->method, r->planned, r->sent, ms(r->switch_ns), ms(r->compute_ns), (double)kept[i].kept_bytes * 1e-6);
    }
    printf("%-10s %4s %-12s %-7s %13" PRId64 " %13" PRId64 " %10.3f\n", "gradients", "", "", "", s.reduce_plan_max,
           s.reduce_max, ms(s.reduce_ns));
    printf("%-10s %4d %-12s %-7s %13" PRId64 " %13" PRId64 " %10.3f %10.3f %10.3f\n\n", "total", report->mine->nsteps,
           "", "", t.planned_max + s.reduce_plan_max, t.sent_max + s.reduce_max, ms(t.switch_ns + s.reduce_ns),
           ms(t.compute_ns), (double)forward.kept_max * 1e-6);
    printf("step, all ranks: %" PRId64 " bytes planned, %" PRId64 " measured: forward %" PRId64 ", backward %" PRId64
           ", gradients %" PRId64 "\n",
           forward.planned + t.planned + s.reduce_planned, forward.sent + t.sent + s.reduce_sent, forward.sent, t.sent,
           s.reduce_sent);
    printf("backward %.3f ms, %.2f of forward; gradients of %" PRId64 " parameters added up in %.3f ms\n",
           ms(s.backward_ns), forward.forward_ns > 0 ? (double)s.backward_ns / (double)forward.forward_ns : 0.0,
           report->mine->reduction.elems, ms(s.reduce_ns));
    printf("activations kept for the backward: %.3f MB on the rank that keeps most%s\n",
           (double)forward.kept_max * 1e-6,
           report->job->options->recompute ? " (inputs of the stages; the rest is computed again)" : "");
    free(rows);
    free(kept);
}

void run_print_step_json(const run_report *report, const run_verdict *verdict)
{
    way_back way;
    int count = 0;
    const run_report *back = make_way_back(&way, report);
    const run_sum forward = run_sum_all(report), t = run_sum_all(back);
    const step_totals s = sum_totals(report);
    run_row *rows = run_make_rows(&count, back);
    printf(
        ",\n \"backward\": {\"backward_ms\": %.6f, \"reduce_ms\": %.6f, \"recompute\": %s, \"kept_bytes_max\": %" PRId64
        ", \"parameters\": %" PRId64 ",\n",
        ms(s.backward_ns), ms(s.reduce_ns), report->job->options->recompute ? "true" : "false", forward.kept_max,
        report->mine->reduction.elems);
    printf("  \"bytes_planned_per_rank_max\": %" PRId64 ", \"bytes_sent_per_rank_max\": %" PRId64
           ", \"bytes_planned\": %" PRId64 ", \"bytes_sent\": %" PRId64 ", \"bytes_messages\": %" PRId64 ",\n",
           t.planned_max, t.sent_max, t.planned, t.sent, t.messages);
    printf("  \"gradient_bytes_planned\": %" PRId64 ", \"gradient_bytes_sent\": %" PRId64
           ", \"step_bytes_planned\": %" PRId64 ", \"step_bytes_sent\": %" PRId64 ",\n  \"stages\": [",
           s.reduce_planned, s.reduce_sent, forward.planned + t.planned + s.reduce_planned,
           forward.sent + t.sent + s.reduce_sent);
    for (int i = count - 1; i >= 0 && rows != NULL; i--) {
        const run_row *r = &rows[i];
        printf("%s\n   {", i + 1 < count ? "," : "");
        report_json_string("stage", r->name, ", ");
        report_json_string("layout", r->layout, ", ");
        report_json_string("method", r->method, ", ");
        report_json_string("path", r->path, ", ");
        printf("\"runs\": %d, \"bytes_planned\": %" PRId64 ", \"bytes_sent\": %" PRId64
               ", \"switch_ms\": %.6f, \"block_ms\": %.6f}",
               r->runs, r->planned, r->sent, ms(r->switch_ns), ms(r->compute_ns));
    }
    printf("]");
    if (verdict->back_bytes[0] != '\0') {
        printf(",\n  ");
        report_json_string("check_bytes", verdict->back_bytes, ", ");
        report_json_string("check_input_gradient", verdict->dx, ", ");
        report_json_string("check_gradients", verdict->gradients, ", ");
        printf("\"gradient_error\": %.6g", verdict->gradient_error);
    }
    printf("}");
    free(rows);
}
