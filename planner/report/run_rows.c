/* Steps of the same stage, layout and method as one row, and all of them as a sum. */
#include "planner/report/run_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 512 };

static void stage_texts(run_row *out, const run_report *report, int step)
{
    const run_task *task = report->task;
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    heddle_layout layout = heddle_layout_replicated();
    memset(out, 0, sizeof(*out));
    if (heddle_schedule_stage_at(&stage, task->schedule, step) == HEDDLE_OK) {
        snprintf(out->name, sizeof(out->name), "%s", stage.name);
        snprintf(out->method, sizeof(out->method), "%s", stage.method);
        layout = stage.layout;
    } else {
        snprintf(out->name, sizeof(out->name), "end");
        if (heddle_schedule_edge_at(&edge, task->schedule, step) == HEDDLE_OK) {
            layout = edge.to;
        }
    }
    if (heddle_layout_format(out->layout, sizeof(out->layout), &layout, &task->info.shape, &task->mesh) != HEDDLE_OK) {
        snprintf(out->layout, sizeof(out->layout), "?");
    }
}

int run_row_has(const run_report *report, const run_row *r, int step)
{
    run_row other;
    stage_texts(&other, report, step);
    return strcmp(other.name, r->name) == 0 && strcmp(other.layout, r->layout) == 0 &&
           strcmp(other.method, r->method) == 0;
}

/* Sums over the steps of a row, of the rank where the sum is largest. */
static void sum_row(run_row *r, const run_report *report, int back)
{
    char(*path)[RUN_PATH_BYTES] = back ? report->mine.back_path : report->mine.path;
    const int nsteps = report->mine.nsteps;
    for (int rank = 0; rank < report->nranks; rank++) {
        run_step sum = {0};
        r->runs = 0;
        for (int i = 0; i < nsteps; i++) {
            const run_step *s = &(back ? report->back : report->steps)[rank * nsteps + i];
            if (!run_row_has(report, r, i)) {
                continue;
            }
            sum.planned += s->planned;
            sum.sent += s->sent;
            sum.switch_ns += s->switch_ns;
            sum.compute_ns += s->compute_ns;
            sum.kept_bytes += s->kept_bytes;
            r->runs++;
            if (path[i][0] != '\0') {
                memcpy(r->path, path[i], sizeof(r->path));
            }
        }
        r->planned = sum.planned > r->planned ? sum.planned : r->planned;
        r->sent = sum.sent > r->sent ? sum.sent : r->sent;
        r->switch_ns = sum.switch_ns > r->switch_ns ? sum.switch_ns : r->switch_ns;
        r->compute_ns = sum.compute_ns > r->compute_ns ? sum.compute_ns : r->compute_ns;
        r->kept_bytes = sum.kept_bytes > r->kept_bytes ? sum.kept_bytes : r->kept_bytes;
    }
}

static run_sum sum_all(const run_report *report, int back)
{
    run_sum t = {0};
    const int nsteps = report->mine.nsteps;
    for (int rank = 0; rank < report->nranks; rank++) {
        run_step sum = {0};
        for (int i = 0; i < nsteps; i++) {
            const run_step *s = &(back ? report->back : report->steps)[rank * nsteps + i];
            sum.planned += s->planned;
            sum.sent += s->sent;
            sum.messages += s->messages;
            sum.switch_ns += s->switch_ns;
            sum.compute_ns += s->compute_ns;
            sum.kept_bytes += s->kept_bytes;
            sum.copied_bytes += s->copied_bytes;
        }
        const int64_t forward_ns = report->totals[rank * RUN_TOTALS + RUN_TOTAL_FORWARD_NS];
        t.planned += sum.planned;
        t.sent += sum.sent;
        t.messages += sum.messages;
        t.copied += sum.copied_bytes;
        t.planned_max = sum.planned > t.planned_max ? sum.planned : t.planned_max;
        t.sent_max = sum.sent > t.sent_max ? sum.sent : t.sent_max;
        t.switch_ns = sum.switch_ns > t.switch_ns ? sum.switch_ns : t.switch_ns;
        t.compute_ns = sum.compute_ns > t.compute_ns ? sum.compute_ns : t.compute_ns;
        t.kept_max = sum.kept_bytes > t.kept_max ? sum.kept_bytes : t.kept_max;
        t.forward_ns = forward_ns > t.forward_ns ? forward_ns : t.forward_ns;
    }
    return t;
}

run_way run_way_of(const run_report *report, int back)
{
    run_way way = {.row = calloc(MAX_ROWS, sizeof(*way.row)), .sum = sum_all(report, back)};
    for (int i = 0; way.row != NULL && i < report->mine.nsteps && way.rows < MAX_ROWS; i++) {
        int known = 0;
        for (int j = 0; j < way.rows && !known; j++) {
            known = run_row_has(report, &way.row[j], i);
        }
        if (!known) {
            stage_texts(&way.row[way.rows], report, i);
            sum_row(&way.row[way.rows++], report, back);
        }
    }
    return way;
}

void run_way_free(run_way *way)
{
    free(way->row);
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

run_step_sum run_sum_step(const run_report *report)
{
    run_step_sum t = {0};
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

/* Has a rank before this one the same? */
static int is_listed(const run_report *report, int rank)
{
    for (int before = 0; before < rank; before++) {
        if (report->totals[before * RUN_TOTALS + RUN_TOTAL_DEVICE] ==
            report->totals[rank * RUN_TOTALS + RUN_TOTAL_DEVICE]) {
            return 1;
        }
    }
    return 0;
}

int run_devices(char *out, size_t out_bytes, const run_report *report)
{
    size_t at = 0;
    out[0] = '\0';
    for (int rank = 0; report->kind != NULL && rank < report->nranks && at < out_bytes; rank++) {
        if (!is_listed(report, rank)) {
            at += (size_t)snprintf(out + at, out_bytes - at, "%s%s:%d", at > 0 ? ", " : "", report->kind,
                                   (int)report->totals[rank * RUN_TOTALS + RUN_TOTAL_DEVICE]);
        }
    }
    return at > 0;
}
