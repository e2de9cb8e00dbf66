#include "planner/report/bench.h"

#include "planner/report/text.h"

#include <stdio.h>

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static double gb_per_s(int64_t bytes, double ms)
{
    return ms > 0 ? (double)bytes / ms * 1e-6 : 0;
}

static void print_json_of_device(const heddle_bench_result *r)
{
    if (r->device_min_ms > 0) {
        printf(" \"device_min_ms\": %.6f, \"device_median_ms\": %.6f, \"roofline_device_min_ms\": %.6f, "
               "\"roofline_device_median_ms\": %.6f,\n \"device_ratio\": %.4f, \"device_ratio_median\": %.4f,\n",
               r->device_min_ms, r->device_median_ms, r->roofline_device_min_ms, r->roofline_device_median_ms,
               ratio(r->roofline_device_min_ms, r->device_min_ms),
               ratio(r->roofline_device_median_ms, r->device_median_ms));
    }
    if (r->enqueue_min_ms > 0) {
        printf(" \"enqueue_min_ms\": %.6f, \"enqueue_median_ms\": %.6f,\n", r->enqueue_min_ms, r->enqueue_median_ms);
    }
    if (r->graph_min_ms > 0) {
        printf(" \"graph_min_ms\": %.6f, \"graph_median_ms\": %.6f, \"graph_ratio\": %.4f, "
               "\"graph_ratio_median\": %.4f,\n",
               r->graph_min_ms, r->graph_median_ms, ratio(r->roofline_device_min_ms, r->graph_min_ms),
               ratio(r->roofline_device_median_ms, r->graph_median_ms));
    }
}

static void print_json(const heddle_reshard_line *of, const heddle_comm *comm, const heddle_bench_result *r)
{
    char line[HEDDLE_LINE_BYTES];
    if (heddle_reshard_format(line, sizeof(line), of) != HEDDLE_OK) {
        line[0] = '\0';
    }
    printf("{\"schema\": \"heddle-bench-1\", ");
    report_json_string("line", line, "");
    printf(", \"ranks\": %d, ", heddle_comm_size(comm));
    report_json_string("comm", heddle_comm_describe(comm), "");
    printf(",\n \"min_ms\": %.6f, \"median_ms\": %.6f, \"roofline_min_ms\": %.6f, \"roofline_median_ms\": %.6f,\n",
           r->min_ms, r->median_ms, r->roofline_min_ms, r->roofline_median_ms);
    printf(" \"roofline_ratio\": %.4f, \"roofline_ratio_median\": %.4f, \"roofline_is_local\": %s,\n",
           ratio(r->roofline_min_ms, r->min_ms), ratio(r->roofline_median_ms, r->median_ms),
           r->roofline_is_local ? "true" : "false");
    print_json_of_device(r);
    printf(" \"bytes_per_rank\": %lld, \"bytes_sent_per_rank\": %lld, \"bytes_total\": %lld, \"gb_per_s\": %.3f,\n",
           (long long)r->bytes_per_rank, (long long)r->bytes_sent_per_rank, (long long)r->bytes_total,
           gb_per_s(r->bytes_total, r->min_ms));
    printf(" \"samples\": %lld, \"rounds\": %lld, \"repeats\": %lld, ", (long long)r->samples, (long long)r->rounds,
           (long long)r->repeats);
    report_json_string("path", r->path, ", ");
    report_json_string("kernel", r->kernel, ",\n ");
    report_json_string("roofline_kernel", r->roofline_kernel, ", ");
    report_json_string("roofline_way", r->roofline_way, ",\n ");
    report_json_string("why", r->why, "");
    printf("}\n");
}

static void print_row(const char *what, double min_ms, double median_ms, int64_t bytes, const char *how)
{
    printf("%-10s %12.5f %12.5f %9.2f  %s\n", what, min_ms, median_ms, gb_per_s(bytes, min_ms), how);
}

/* The same executions by another clock, and replays. */
static void print_on_device(const heddle_bench_result *r)
{
    const char *clock = "by the device's clock";
    print_row("reshard", r->device_min_ms, r->device_median_ms, r->bytes_total, clock);
    if (r->graph_min_ms > 0) {
        print_row("graph", r->graph_min_ms, r->graph_median_ms, r->bytes_total, "by the device's clock, replays");
    }
    printf("%-10s %12.5f %12.5f %9s  the host's, until a call returns\n", "enqueue", r->enqueue_min_ms,
           r->enqueue_median_ms, "");
    print_row("roofline", r->roofline_device_min_ms, r->roofline_device_median_ms, r->bytes_total, clock);
    printf("%-10s %12.3f %12.3f\n", "ratio", ratio(r->roofline_device_min_ms, r->device_min_ms),
           ratio(r->roofline_device_median_ms, r->device_median_ms));
}

static void print_table(const heddle_comm *comm, const heddle_bench_result *r)
{
    printf("%s\n", heddle_comm_describe(comm));
    printf("%-10s %12s %12s %9s  %s\n", "", "min ms", "median ms", "GB/s", "how");
    printf("%-10s %12.5f %12.5f %9.2f  %s, %s\n", "reshard", r->min_ms, r->median_ms,
           gb_per_s(r->bytes_total, r->min_ms), r->path, r->kernel);
    printf("%-10s %12.5f %12.5f %9.2f  %s, %s%s\n", "roofline", r->roofline_min_ms, r->roofline_median_ms,
           gb_per_s(r->bytes_total, r->roofline_min_ms), r->roofline_kernel, r->roofline_way,
           r->roofline_is_local ? " (part of it inside own memory: ranks are out of reach)" : "");
    printf("%-10s %12.3f %12.3f\n", "ratio", ratio(r->roofline_min_ms, r->min_ms),
           ratio(r->roofline_median_ms, r->median_ms));
    if (r->device_min_ms > 0) {
        print_on_device(r);
    }
    printf("%lld bytes per rank, %lld of them sent; %lld samples of %lld executions each\n",
           (long long)r->bytes_per_rank, (long long)r->bytes_sent_per_rank, (long long)r->samples,
           (long long)r->repeats);
    printf("why: %s\n", r->why);
}

void report_bench_reshard(const heddle_reshard_line *line, const heddle_comm *comm, const heddle_bench_result *r,
                          int json)
{
    if (json) {
        print_json(line, comm, r);
    } else {
        print_table(comm, r);
    }
}

void report_bench_attention(const heddle_comm *comm, const attention_bench *b, int json)
{
    const attention_pass *f = &b->forward, *w = &b->backward;
    const heddle_attention_info *info = &b->info;
    const char *format =
        json ? "{\"schema\": \"heddle-method-1\", \"method\": \"%s\", \"ranks\": %d, \"kernel\": \"%s\",\n \"min_ms\": "
               "%.4f, \"median_ms\": %.4f, "
               "\"local_min_ms\": %.4f, \"moving_min_ms\": %.4f,\n \"backward_min_ms\": %.4f, "
               "\"backward_median_ms\": %.4f, \"backward_local_min_ms\": %.4f, \"backward_moving_min_ms\": %.4f,\n "
               "\"bytes_per_rank\": %lld, \"messages_per_rank\": %lld, \"backward_bytes_per_rank\": %lld, "
               "\"backward_messages_per_rank\": %lld,\n \"flops_per_rank\": %lld, "
               "\"backward_flops_per_rank\": %lld,\n \"peak_bytes\": %lld, \"overlap\": %.3f, "
               "\"backward_overlap\": %.3f, \"samples\": %d,\n "
               "\"times_longer_min\": %.3f, \"times_longer_median\": %.3f, \"backward_times_longer_min\": %.3f, "
               "\"backward_times_longer_median\": %.3f}\n"
             : "%s on %d ranks, kernel %s\nforward   min %.4f  median %.4f  local %.4f  moving %.4f ms\n"
               "backward  min %.4f  median %.4f  local %.4f  moving %.4f ms\n"
               "rank 0 sends forward %lld bytes in %lld messages, backward %lld in %lld\n"
               "rank 0 does %lld products and sums forward, %lld backward\n"
               "%lld bytes held, overlap %.3f forward, %.3f backward, %d samples\n"
               "times the longer: forward %.3f of minima, %.3f median; backward %.3f, %.3f\n";
    printf(format, b->method, heddle_comm_size(comm), b->kernel, f->min_ms, f->median_ms, f->local_min_ms,
           f->moving_min_ms, w->min_ms, w->median_ms, w->local_min_ms, w->moving_min_ms,
           (long long)info->planned.forward_bytes, (long long)info->planned.forward_messages,
           (long long)info->planned.backward_bytes, (long long)info->planned.backward_messages,
           (long long)info->forward_flops, (long long)info->backward_flops,
           (long long)(info->saved_bytes + info->workspace_bytes), f->overlap, w->overlap, b->samples, f->longer_min,
           f->longer_median, w->longer_min, w->longer_median);
}

void report_bench_linear(const heddle_comm *comm, const linear_case *c, const linear_bench_options *o,
                         const linear_bench *b, int json)
{
    char text[2048];
    heddle_attention_traffic most, all;
    heddle_ignore(linear_traffic(&most, &all, c)); /* has been planned before: cannot fail */
    long long bytes = o->backward ? most.backward_bytes : most.forward_bytes;
    long long messages = o->backward ? most.backward_messages : most.forward_messages;
    const linear_times *ranks = &b->ranks, *local = &b->local;
    linear_describe(text, sizeof text, c);
    if (json) {
        printf("{\"schema\": \"heddle-method-1\", \"problem\": ");
        report_json_text(stdout, text);
        printf(", \"pass\": \"%s\", \"ranks\": %d, \"comm\": ", o->backward ? "backward" : "forward",
               heddle_comm_size(comm));
        report_json_text(stdout, heddle_comm_describe(comm));
        printf(",\n");
        printf(" \"min_ms\": %.6f, \"median_ms\": %.6f, \"local_min_ms\": %.6f, \"local_median_ms\": %.6f,\n",
               ranks->min_ms, ranks->median_ms, local->min_ms, local->median_ms);
        printf(
            " \"bytes_per_rank\": %lld, \"messages_per_rank\": %lld, \"serial_steps\": %lld, \"peak_bytes\": %lld,\n",
            bytes, messages, (long long)ranks->info.serial_steps, b->peak_bytes);
        printf(" \"saved_bytes\": %lld, \"workspace_bytes\": %lld, \"overlap\": %.4f, \"gflops\": %.3f,\n",
               (long long)ranks->info.saved_bytes, (long long)ranks->info.workspace_bytes, b->overlap, b->gflops);
        printf(" \"samples\": %d, \"chunk_rows\": %lld, \"kernel\": \"%s\", \"why\": ", ranks->samples,
               (long long)ranks->info.chunk_rows, ranks->kernel);
        report_json_text(stdout, ranks->why);
        printf("}\n");
    } else {
        printf("%s\n%s, %s\n", text, heddle_comm_describe(comm), o->backward ? "backward" : "forward");
        printf("%-8s %12s %12s\n", "", "min ms", "median ms");
        printf("%-8s %12.4f %12.4f   %.2f GFLOP/s, chunks of %lld rows, %s\n", "ranks", ranks->min_ms, ranks->median_ms,
               b->gflops, (long long)ranks->info.chunk_rows, ranks->kernel);
        printf("%-8s %12.4f %12.4f\n", "local", local->min_ms, local->median_ms);
        printf(
            "a rank sends up to %lld bytes in %lld messages, %lld follow one another; overlap %.3f; peak %lld bytes\n",
            bytes, messages, (long long)ranks->info.serial_steps, b->overlap, b->peak_bytes);
        printf("why: %s\n", ranks->why);
    }
}
