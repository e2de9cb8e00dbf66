/* The report of a run: stages of the same name and layout in one line. */
#include "planner/report/text.h"
#include "run_rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 512 };

static void stage_texts(run_row *out, const run_report *report, int step)
{
    const run_job *job = report->job;
    heddle_schedule_stage stage = {.struct_bytes = sizeof stage};
    heddle_schedule_edge edge = {.struct_bytes = sizeof edge};
    heddle_layout layout = heddle_layout_replicated();
    memset(out, 0, sizeof(*out));
    if (heddle_schedule_stage_at(&stage, job->schedule, step) == HEDDLE_OK) {
        snprintf(out->name, sizeof(out->name), "%s", stage.name);
        snprintf(out->method, sizeof(out->method), "%s", stage.method);
        layout = stage.layout;
    } else {
        snprintf(out->name, sizeof(out->name), "end");
        if (heddle_schedule_edge_at(&edge, job->schedule, step) == HEDDLE_OK) {
            layout = edge.to;
        }
    }
    if (heddle_layout_format(out->layout, sizeof(out->layout), &layout, &job->info.shape, &job->mesh) != HEDDLE_OK) {
        snprintf(out->layout, sizeof(out->layout), "?");
    }
}

static int in_row(const run_report *report, const run_row *r, int step)
{
    run_row other;
    stage_texts(&other, report, step);
    return strcmp(other.name, r->name) == 0 && strcmp(other.layout, r->layout) == 0 &&
           strcmp(other.method, r->method) == 0;
}

/* Sums over the steps of a row, of the rank where the sum is largest. */
static void sum_row(run_row *r, const run_report *report)
{
    const int nsteps = report->mine->nsteps;
    for (int rank = 0; rank < report->nranks; rank++) {
        run_step sum = {0};
        r->runs = 0;
        for (int i = 0; i < nsteps; i++) {
            const run_step *s = &report->steps[rank * nsteps + i];
            if (!in_row(report, r, i)) {
                continue;
            }
            sum.planned += s->planned;
            sum.sent += s->sent;
            sum.switch_ns += s->switch_ns;
            sum.compute_ns += s->compute_ns;
            sum.kept_bytes += s->kept_bytes;
            r->runs++;
            if (report->mine->path[i][0] != '\0') {
                memcpy(r->path, report->mine->path[i], sizeof(r->path));
            }
        }
        r->planned = sum.planned > r->planned ? sum.planned : r->planned;
        r->sent = sum.sent > r->sent ? sum.sent : r->sent;
        r->switch_ns = sum.switch_ns > r->switch_ns ? sum.switch_ns : r->switch_ns;
        r->compute_ns = sum.compute_ns > r->compute_ns ? sum.compute_ns : r->compute_ns;
        r->kept_bytes = sum.kept_bytes > r->kept_bytes ? sum.kept_bytes : r->kept_bytes;
    }
}

run_row *run_make_rows(int *count, const run_report *report)
{
    run_row *rows = calloc(MAX_ROWS, sizeof(*rows));
    *count = 0;
    for (int i = 0; rows != NULL && i < report->mine->nsteps && *count < MAX_ROWS; i++) {
        int known = 0;
        for (int j = 0; j < *count && !known; j++) {
            known = in_row(report, &rows[j], i);
        }
        if (!known) {
            stage_texts(&rows[*count], report, i);
            sum_row(&rows[(*count)++], report);
        }
    }
    return rows;
}

run_sum run_sum_all(const run_report *report)
{
    run_sum t = {0};
    const int nsteps = report->mine->nsteps;
    for (int rank = 0; rank < report->nranks; rank++) {
        run_step sum = {0};
        for (int i = 0; i < nsteps; i++) {
            const run_step *s = &report->steps[rank * nsteps + i];
            sum.planned += s->planned;
            sum.sent += s->sent;
            sum.messages += s->messages;
            sum.switch_ns += s->switch_ns;
            sum.compute_ns += s->compute_ns;
            sum.kept_bytes += s->kept_bytes;
        }
        const int64_t forward_ns = report->totals[rank * RUN_TOTALS + RUN_TOTAL_FORWARD_NS];
        t.planned += sum.planned;
        t.sent += sum.sent;
        t.messages += sum.messages;
        t.planned_max = sum.planned > t.planned_max ? sum.planned : t.planned_max;
        t.sent_max = sum.sent > t.sent_max ? sum.sent : t.sent_max;
        t.switch_ns = sum.switch_ns > t.switch_ns ? sum.switch_ns : t.switch_ns;
        t.compute_ns = sum.compute_ns > t.compute_ns ? sum.compute_ns : t.compute_ns;
        t.kept_max = sum.kept_bytes > t.kept_max ? sum.kept_bytes : t.kept_max;
        t.forward_ns = forward_ns > t.forward_ns ? forward_ns : t.forward_ns;
    }
    return t;
}

static double ms(int64_t ns)
{
    return (double)ns * 1e-6;
}

static void print_peaks(const run_report *report)
{
    int shared = report->nranks > 1;
    for (int rank = 1; rank < report->nranks; rank++) {
        shared = shared && report->totals[rank * RUN_TOTALS + RUN_TOTAL_PID] == report->totals[RUN_TOTAL_PID];
    }
    if (shared) {
        printf("peak memory: %.1f MB in one process of %d ranks\n", (double)report->totals[RUN_TOTAL_PEAK_BYTES] * 1e-6,
               report->nranks);
        return;
    }
    printf("peak memory per rank:");
    for (int rank = 0; rank < report->nranks && rank < 16; rank++) {
        printf(" %.1f", (double)report->totals[rank * RUN_TOTALS + RUN_TOTAL_PEAK_BYTES] * 1e-6);
    }
    printf("%s MB\n", report->nranks > 16 ? " ..." : "");
}

void run_print_table(const run_report *report)
{
    char shape[HEDDLE_LINE_BYTES] = "?", mesh[256] = "?";
    int count = 0;
    const run_job *job = report->job;
    const run_sum t = run_sum_all(report);
    run_row *rows = run_make_rows(&count, report);
    heddle_shape_format(shape, sizeof(shape), &job->info.shape);
    heddle_mesh_format(mesh, sizeof(mesh), &job->mesh);
    printf("%s: %s on %s, %d layer%s of %d stage%s\n%s\n\n", job->info.name, shape, mesh, job->info.repeat,
           report_s(job->info.repeat), job->info.nstages, report_s(job->info.nstages), report->comm);
    printf("%-10s %4s %-12s %-9s %13s %13s %10s %10s  %s\n", "stage", "runs", "layout", "method", "sent, planned",
           "measured", "switch ms", "block ms", "path");
    for (int i = 0; i < count && rows != NULL; i++) {
        const run_row *r = &rows[i];
        printf("%-10s %4d %-12s %-9s %13" PRId64 " %13" PRId64 " %10.3f %10.3f%s%s\n", r->name, r->runs, r->layout,
               r->method, r->planned, r->sent, ms(r->switch_ns), ms(r->compute_ns), r->path[0] != 0 ? "  " : "",
               r->path);
    }
    printf("%-10s %4d %-12s %-9s %13" PRId64 " %13" PRId64 " %10.3f %10.3f\n\n", "total", report->mine->nsteps, "", "",
           t.planned_max, t.sent_max, ms(t.switch_ns), ms(t.compute_ns));
    printf("bytes are of the rank that sends most; all ranks: %" PRId64 " planned, %" PRId64 " measured, %" PRId64
           " in switch messages\n",
           t.planned, t.sent, t.messages);
    printf("forward %.3f ms", ms(t.forward_ns));
    if (job->options->passes > 1) {
        printf(" (the fastest of %lld passes)", job->options->passes);
    }
    printf(", %lld thread%s per rank; times are of the slowest rank\n", job->options->threads,
           report_s(job->options->threads));
    free(rows);
    if (report->back != NULL) {
        run_print_step_table(report);
    }
    print_peaks(report);
}

void run_print_json(const run_report *report, const run_verdict *verdict)
{
    char shape[HEDDLE_LINE_BYTES] = "?", mesh[256] = "?";
    int count = 0;
    const run_job *job = report->job;
    const run_sum t = run_sum_all(report);
    run_row *rows = run_make_rows(&count, report);
    heddle_shape_format(shape, sizeof(shape), &job->info.shape);
    heddle_mesh_format(mesh, sizeof(mesh), &job->mesh);
    printf("{");
    report_json_string("model", job->info.name, ", ");
    report_json_string("shape", shape, ", ");
    report_json_string("mesh", mesh, ",\n ");
    report_json_string("comm", report->comm, ",\n ");
    printf("\"layers\": %d, \"ranks\": %d, \"threads\": %lld, \"passes\": %lld, \"forward_ms\": %.6f,\n",
           job->info.repeat, report->nranks, job->options->threads, job->options->passes, ms(t.forward_ns));
    printf(" \"bytes_planned_per_rank_max\": %" PRId64 ", \"bytes_sent_per_rank_max\": %" PRId64
           ", \"bytes_planned\": %" PRId64 ", \"bytes_sent\": %" PRId64 ", \"bytes_messages\": %" PRId64 ",\n",
           t.planned_max, t.sent_max, t.planned, t.sent, t.messages);
    printf(" \"peak_bytes\": [");
    for (int rank = 0; rank < report->nranks; rank++) {
        printf("%s%" PRId64, rank > 0 ? ", " : "", report->totals[rank * RUN_TOTALS + RUN_TOTAL_PEAK_BYTES]);
    }
    printf("],\n \"stages\": [");
    for (int i = 0; i < count && rows != NULL; i++) {
        const run_row *r = &rows[i];
        printf("%s\n  {", i > 0 ? "," : "");
        report_json_string("stage", r->name, ", ");
        report_json_string("layout", r->layout, ", ");
        report_json_string("method", r->method, ", ");
        report_json_string("path", r->path, ", ");
        printf("\"runs\": %d, \"bytes_planned\": %" PRId64 ", \"bytes_sent\": %" PRId64
               ", \"switch_ms\": %.6f, \"block_ms\": %.6f}",
               r->runs, r->planned, r->sent, ms(r->switch_ns), ms(r->compute_ns));
    }
    printf("]");
    if (report->back != NULL) {
        run_print_step_json(report, verdict);
    }
    if (verdict->bytes[0] != '\0') {
        printf(",\n \"check\": %s, ", verdict->code == CLI_OK ? "true" : "false");
        report_json_string("check_bytes", verdict->bytes, ", ");
        report_json_string("check_values", verdict->values, "");
    }
    printf("}\n");
    free(rows);
}
