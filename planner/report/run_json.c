/* A run as JSON. */
#include "planner/report/run_memory.h"
#include "planner/report/run_rows.h"
#include "planner/report/text.h"

#include <inttypes.h>
#include <stdio.h>

/* kept_bytes: for the way back, -1: there is none. */
static void print_row(const run_row *r, const char *front, int64_t kept_bytes)
{
    printf("%s{", front);
    report_json_string("stage", r->name, ", ");
    report_json_string("layout", r->layout, ", ");
    report_json_string("method", r->method, ", ");
    report_json_string("path", r->path, ", ");
    printf("\"runs\": %d, \"bytes_planned\": %" PRId64 ", \"bytes_sent\": %" PRId64
           ", \"switch_ms\": %.6f, \"block_ms\": %.6f",
           r->runs, r->planned, r->sent, run_ms(r->switch_ns), run_ms(r->compute_ns));
    if (kept_bytes >= 0) {
        printf(", \"kept_bytes\": %" PRId64, kept_bytes);
    }
    printf("}");
}

static void print_sum(const run_sum *t, const char *front)
{
    printf("%s\"bytes_planned_per_rank_max\": %" PRId64 ", \"bytes_sent_per_rank_max\": %" PRId64
           ", \"bytes_planned\": %" PRId64 ", \"bytes_sent\": %" PRId64 ", \"bytes_messages\": %" PRId64
           ", \"bytes_copied\": %" PRId64 ",\n",
           front, t->planned_max, t->sent_max, t->planned, t->sent, t->messages, t->copied);
}

/* Nothing where passes were timed by steps alone. */
static void print_in_one_go(const run_report *report, int back, const char *front)
{
    const run_time *go = &report->time[RUN_IN_ONE_GO][back], *graph = &report->time[RUN_BY_GRAPH][back];
    if (report->mine.hows > RUN_IN_ONE_GO) {
        printf("%s\"in_one_go_ms\": %.6f, \"in_one_go_median_ms\": %.6f", front, go->fastest_ms, go->median_ms);
    }
    if (report->mine.hows > RUN_BY_GRAPH) {
        printf(", \"graph_ms\": %.6f, \"graph_median_ms\": %.6f", graph->fastest_ms, graph->median_ms);
    }
    printf("%s", report->mine.hows > RUN_IN_ONE_GO ? ",\n" : "");
}

static void print_back(const run_report *report, const run_way *there, const run_verdict *verdict)
{
    const run_sum *forward = &there->sum;
    run_way way = run_way_of(report, 1);
    const run_sum *t = &way.sum;
    const run_step_sum s = run_sum_step(report);
    printf(",\n \"backward\": {\"backward_ms\": %.6f, \"reduce_ms\": %.6f, \"recompute\": %s, "
           "\"kept_bytes_max\": %" PRId64 ", \"parameters\": %" PRId64 ",\n",
           run_ms(s.backward_ns), run_ms(s.reduce_ns), report->task->recompute ? "true" : "false", forward->kept_max,
           report->mine.reduction.elems);
    print_in_one_go(report, 1, "  ");
    print_sum(t, "  ");
    printf("  \"gradient_bytes_planned\": %" PRId64 ", \"gradient_bytes_sent\": %" PRId64
           ", \"step_bytes_planned\": %" PRId64 ", \"step_bytes_sent\": %" PRId64 ",\n  \"stages\": [",
           s.reduce_planned, s.reduce_sent, forward->planned + t->planned + s.reduce_planned,
           forward->sent + t->sent + s.reduce_sent);
    for (int i = way.rows - 1; i >= 0; i--) {
        print_row(&way.row[i], i + 1 < way.rows ? ",\n   " : "\n   ", there->row[i].kept_bytes);
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
    run_way_free(&way);
}

static void print_memory(const run_report *report)
{
    run_memory kind[RUN_MEMORIES];
    if (report->task->blocks_on_device || run_memory_of(kind, report) != HEDDLE_OK) {
        return;
    }
    printf(" \"memory\": {");
    for (int i = 0; i < RUN_MEMORIES; i++) {
        printf("\"%s\": {", kind[i].name);
        if (kind[i].planned >= 0) {
            printf("\"planned_bytes\": %" PRId64 ", ", kind[i].planned);
        }
        if (i == RUN_MEMORY_METHODS) {
            printf("\"lent_bytes\": %" PRId64 ", ", kind[i].lent);
        }
        printf("\"held_bytes\": %" PRId64 "},\n  ", kind[i].held);
    }
    printf("\"held_bytes_max\": %" PRId64 "},\n", run_memory_held(report));
}

void report_run_json(const run_report *report, const run_verdict *verdict)
{
    char shape[HEDDLE_LINE_BYTES] = "?", mesh[256] = "?", devices[256];
    const run_task *task = report->task;
    run_way way = run_way_of(report, 0);
    heddle_ignore(heddle_shape_format(shape, sizeof(shape), &task->info.shape));
    heddle_ignore(heddle_mesh_format(mesh, sizeof(mesh), &task->mesh));
    printf("{\"schema\": \"heddle-run-1\", ");
    report_json_string("model", task->info.name, ", ");
    report_json_string("shape", shape, ", ");
    report_json_string("mesh", mesh, ",\n ");
    report_json_string("comm", report->comm, ",\n ");
    if (run_devices(devices, sizeof devices, report)) {
        report_json_string("switches_on", devices, ", ");
        report_json_string("blocks_on", task->blocks_on_device ? devices : "cpu", ", ");
        report_json_string("wire", report->mine.wire, ",\n ");
    }
    printf("\"layers\": %d, \"ranks\": %d, \"threads\": %d, \"passes\": %" PRId64
           ", \"forward_ms\": %.6f, \"forward_median_ms\": %.6f,\n",
           task->info.repeat, report->nranks, task->threads, task->passes, run_ms(way.sum.forward_ns),
           report->time[RUN_BY_STEPS][0].median_ms);
    print_in_one_go(report, 0, " ");
    print_sum(&way.sum, " ");
    printf(" \"peak_bytes\": [");
    for (int rank = 0; rank < report->nranks; rank++) {
        printf("%s%" PRId64, rank > 0 ? ", " : "", report->totals[rank * RUN_TOTALS + RUN_TOTAL_PEAK_BYTES]);
    }
    printf("],\n");
    print_memory(report);
    printf(" \"stages\": [");
    for (int i = 0; i < way.rows; i++) {
        print_row(&way.row[i], i > 0 ? ",\n  " : "\n  ", -1);
    }
    printf("]");
    if (report->back != NULL) {
        print_back(report, &way, verdict);
    }
    if (verdict->bytes[0] != '\0') {
        printf(",\n \"check\": %s, ", verdict->differs ? "false" : "true");
        report_json_string("check_bytes", verdict->bytes, ", ");
        report_json_string("check_values", verdict->values, "");
    }
    printf("}\n");
    run_way_free(&way);
}
