/* A run as a table. */
#include "planner/report/run_memory.h"
#include "planner/report/run_rows.h"
#include "planner/report/text.h"

#include <inttypes.h>
#include <stdio.h>

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

/* Nobody waits between stages. */
static void print_in_one_go(const run_report *report, int back)
{
    const run_time *go = &report->time[RUN_IN_ONE_GO][back], *graph = &report->time[RUN_BY_GRAPH][back];
    const int passes = report->task->passes > 1;
    if (report->mine.hows <= RUN_IN_ONE_GO) {
        return;
    }
    printf("%s in one go %.3f ms", back ? "backward" : "forward", go->fastest_ms);
    if (passes) {
        printf(" (the fastest of %" PRId64 " passes; median %.3f ms)", report->task->passes, go->median_ms);
    }
    if (report->mine.hows <= RUN_BY_GRAPH) {
        printf(", by no graph: wire %s waits on the host\n", report->mine.wire);
    } else {
        printf(passes ? ", by a graph %.3f ms (median %.3f ms)\n" : ", by a graph %.3f ms\n", graph->fastest_ms,
               graph->median_ms);
    }
}

static void print_forward(const run_report *report, const run_way *way)
{
    const run_task *task = report->task;
    const run_sum *t = &way->sum;
    printf("%-10s %4s %-12s %-9s %13s %13s %10s %10s  %s\n", "stage", "runs", "layout", "method", "sent, planned",
           "measured", "switch ms", "block ms", "path");
    for (int i = 0; i < way->rows; i++) {
        const run_row *r = &way->row[i];
        printf("%-10s %4d %-12s %-9s %13" PRId64 " %13" PRId64 " %10.3f %10.3f%s%s\n", r->name, r->runs, r->layout,
               r->method, r->planned, r->sent, run_ms(r->switch_ns), run_ms(r->compute_ns), r->path[0] != 0 ? "  " : "",
               r->path);
    }
    printf("%-10s %4d %-12s %-9s %13" PRId64 " %13" PRId64 " %10.3f %10.3f\n\n", "total", report->mine.nsteps, "", "",
           t->planned_max, t->sent_max, run_ms(t->switch_ns), run_ms(t->compute_ns));
    printf("bytes are of the rank that sends most; all ranks: %" PRId64 " planned, %" PRId64 " measured, %" PRId64
           " in switch messages\n",
           t->planned, t->sent, t->messages);
    printf("forward %.3f ms", run_ms(t->forward_ns));
    if (task->passes > 1) {
        printf(" (the fastest of %" PRId64 " passes; median %.3f ms)", task->passes,
               report->time[RUN_BY_STEPS][0].median_ms);
    }
    printf(", %d thread%s per rank\n", task->threads, report_s(task->threads));
    print_in_one_go(report, 0);
    printf("times are of the slowest rank, of every row and of the total its own: rows may add up to more\n");
}

static void print_back(const run_report *report, const run_way *forward, const run_way *way)
{
    const run_sum *t = &way->sum, *f = &forward->sum;
    const run_step_sum s = run_sum_step(report);
    printf("\n%-10s %4s %-12s %-7s %13s %13s %10s %10s %10s\n", "backward", "runs", "layout", "method", "sent, planned",
           "measured", "switch ms", "block ms", "kept MB");
    for (int i = way->rows - 1; i >= 0 && forward->row != NULL; i--) {
        const run_row *r = &way->row[i];
        printf("%-10s %4d %-12s %-7s %13" PRId64 " %13" PRId64 " %10.3f %10.3f %10.3f\n", r->name, r->runs, r->layout,
               r->method, r->planned, r->sent, run_ms(r->switch_ns), run_ms(r->compute_ns),
               (double)forward->row[i].kept_bytes * 1e-6);
    }
    printf("%-10s %4s %-12s %-7s %13" PRId64 " %13" PRId64 " %10.3f\n", "gradients", "", "", "", s.reduce_plan_max,
           s.reduce_max, run_ms(s.reduce_ns));
    printf("%-10s %4d %-12s %-7s %13" PRId64 " %13" PRId64 " %10.3f %10.3f %10.3f\n\n", "total", report->mine.nsteps,
           "", "", t->planned_max + s.reduce_plan_max, t->sent_max + s.reduce_max, run_ms(t->switch_ns + s.reduce_ns),
           run_ms(t->compute_ns), (double)f->kept_max * 1e-6);
    printf("step, all ranks: %" PRId64 " bytes planned, %" PRId64 " measured: forward %" PRId64 ", backward %" PRId64
           ", gradients %" PRId64 "\n",
           f->planned + t->planned + s.reduce_planned, f->sent + t->sent + s.reduce_sent, f->sent, t->sent,
           s.reduce_sent);
    printf("backward %.3f ms, %.2f of forward; gradients of %" PRId64 " parameters added up in %.3f ms\n",
           run_ms(s.backward_ns), f->forward_ns > 0 ? (double)s.backward_ns / (double)f->forward_ns : 0.0,
           report->mine.reduction.elems, run_ms(s.reduce_ns));
    print_in_one_go(report, 1);
    printf("activations kept for the backward: %.3f MB on the rank that keeps most%s\n", (double)f->kept_max * 1e-6,
           report->task->recompute ? " (inputs of the stages; the rest is computed again)" : "");
}

static void print_memory(const run_report *report)
{
    run_memory kind[RUN_MEMORIES];
    if (report->task->blocks_on_device || run_memory_of(kind, report) != HEDDLE_OK) {
        return;
    }
    printf("\n%-10s %13s %13s  %s\n", "memory", "MB, planned", "held", "");
    for (int i = 0; i < RUN_MEMORIES; i++) {
        char planned[32] = "";
        if (kind[i].planned >= 0) {
            snprintf(planned, sizeof planned, "%.6f", (double)kind[i].planned * 1e-6);
        }
        printf("%-10s %13s %13.6f  %s", kind[i].name, planned, (double)kind[i].held * 1e-6, kind[i].meaning);
        printf(kind[i].lent > 0 ? "; %.6f less, for what is read where it lies\n" : "\n", (double)kind[i].lent * 1e-6);
    }
    printf("each of the rank that has most of it; the rank that holds most in all: %.3f MB\n",
           (double)run_memory_held(report) * 1e-6);
}

static void print_device(const run_report *report, int64_t copied)
{
    char devices[256];
    if (run_devices(devices, sizeof devices, report) && report->task->blocks_on_device) {
        printf("blocks and switches on %s by wire %s, copied to and from host memory: %" PRId64 " bytes\n", devices,
               report->mine.wire, copied);
    } else if (devices[0] != '\0') {
        printf("blocks on the CPU; switches on %s by wire %s, copied at both ends: %" PRId64 " bytes of all ranks\n",
               devices, report->mine.wire, copied);
    }
}

void report_run(const run_report *report)
{
    char shape[HEDDLE_LINE_BYTES] = "?", mesh[256] = "?";
    const run_task *task = report->task;
    run_way forward = run_way_of(report, 0);
    int64_t copied = forward.sum.copied;
    heddle_ignore(heddle_shape_format(shape, sizeof(shape), &task->info.shape));
    heddle_ignore(heddle_mesh_format(mesh, sizeof(mesh), &task->mesh));
    printf("%s: %s on %s, %d layer%s of %d stage%s\n%s\n\n", task->info.name, shape, mesh, task->info.repeat,
           report_s(task->info.repeat), task->info.nstages, report_s(task->info.nstages), report->comm);
    print_forward(report, &forward);
    if (report->back != NULL) {
        run_way back = run_way_of(report, 1);
        print_back(report, &forward, &back);
        copied += back.sum.copied;
        run_way_free(&back);
    }
    run_way_free(&forward);
    print_device(report, copied);
    print_memory(report);
    print_peaks(report);
}

void report_run_check(const run_verdict *v, double reference_ms)
{
    printf("check: %s\ncheck: %s; one rank took %.3f ms\n", v->bytes, v->values, reference_ms);
    if (v->back_bytes[0] != '\0') {
        printf("check: %s\ncheck: gradient of the input: %s\ncheck: %s\n", v->back_bytes, v->dx, v->gradients);
    }
}
