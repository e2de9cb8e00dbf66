/* A plan as JSON: heddle-plan-1, what the planner says of a schedule, with the schedule in it. */
#include "planner/report/schedule_table.h"
#include "planner/report/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void print_number(const char *key, double value, const char *behind)
{
    if (value >= 1e15 || value < 1) { /* more digits than seconds have are of no use, of bytes all are */
        printf("\"%s\": %.12g%s", key, value, behind);
    } else {
        printf("\"%s\": %.15g%s", key, value, behind);
    }
}

static void print_objective(const heddle_schedule_info *s)
{
    printf(" \"objective\": {");
    report_json_string("name", s->objective != NULL ? s->objective : "bytes", ", ");
    print_number("value", s->value, ", ");
    print_number("lower_bound", s->lower_bound, ", ");
    if (s->runner_up > 0) {
        print_number("runner_up", s->runner_up, "},\n");
    } else {
        printf("\"runner_up\": null},\n");
    }
}

void report_at_once_json(const schedule_view *v)
{
    char mesh[HEDDLE_LINE_BYTES] = "";
    if (v->at_once[0] == '\0') {
        printf("\"at_once\": null,\n");
        return;
    }
    printf("\"at_once\": {");
    report_json_string("size", v->at_once, ", ");
    if (v->at_once_s > 0) {
        heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &v->at_once_mesh));
        report_json_string("mesh", mesh, ", ");
        printf("\"sample_s\": %.12g},\n", v->at_once_s);
    } else {
        printf("\"mesh\": null, \"sample_s\": null},\n");
    }
}

static void print_links(const schedule_view *v)
{
    printf(" \"links\": [");
    for (int i = 0; i < v->of.nlinks; i++) {
        heddle_forecast_link link = HEDDLE_EMPTY(heddle_forecast_link);
        heddle_ignore(heddle_forecast_link_at(&link, v->forecast, i));
        printf("%s{", i > 0 ? ", " : "");
        report_json_string("class", link.name != NULL ? link.name : "", ", ");
        printf("\"sent_max\": %" PRId64 ", \"received_max\": %" PRId64 ", \"total\": %" PRId64 "}", link.sent_max,
               link.received_max, link.total);
    }
    printf("],\n");
}

/* Neighbouring repetitions that are alike are one, with their number. */
static int is_alike(const schedule_view *v, int a, int b)
{
    heddle_schedule_stage one = HEDDLE_EMPTY(heddle_schedule_stage), other = HEDDLE_EMPTY(heddle_schedule_stage);
    for (int k = 0; k < v->info.period; k++) {
        if (heddle_schedule_stage_at(&one, v->schedule, a * v->info.period + k) != HEDDLE_OK ||
            heddle_schedule_stage_at(&other, v->schedule, b * v->info.period + k) != HEDDLE_OK ||
            strcmp(one.method, other.method) != 0 || !heddle_layout_equal(&one.layout, &other.layout, &v->info.mesh)) {
            return 0;
        }
    }
    return 1;
}

/* The seconds of stage k, its edge included, of the repetitions first .. last - 1. */
static double seconds_of(const schedule_view *v, int k, int first, int last)
{
    double seconds = 0;
    for (int r = first; r < last; r++) {
        heddle_forecast_step stage = HEDDLE_EMPTY(heddle_forecast_step), edge = HEDDLE_EMPTY(heddle_forecast_step);
        heddle_ignore(heddle_forecast_stage(&stage, v->forecast, r * v->info.period + k));
        heddle_ignore(heddle_forecast_edge(&edge, v->forecast, r * v->info.period + k));
        seconds += stage.time_s + edge.time_s;
    }
    return seconds;
}

static void print_stages(const schedule_view *v)
{
    const char *before = "\n  {";
    printf(" \"stages\": [");
    for (int r = 0, next = 0; r < v->info.repeat; r = next) {
        for (next = r + 1; next < v->info.repeat && is_alike(v, r, next);) {
            next++;
        }
        for (int k = 0; k < v->info.period; k++) {
            heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
            char text[1024];
            heddle_ignore(heddle_schedule_stage_at(&stage, v->schedule, r * v->info.period + k));
            printf("%s", before);
            before = ",\n  {";
            report_json_string("name", stage.name, ", ");
            printf("\"first\": %d, \"repeat\": %d, ", r, next - r);
            report_json_string("layout", report_layout(text, sizeof text, v, &stage.layout), ", ");
            report_json_string("method", stage.method, ", ");
            printf("\"time_s\": %.9g, ", seconds_of(v, k, r, next));
            report_json_string("reason", report_reason(text, sizeof text, v, r * v->info.period + k), "}");
        }
    }
    printf("]}\n");
}

heddle_status report_schedule_json(const schedule_view *v)
{
    char mesh[HEDDLE_LINE_BYTES] = "";
    const heddle_forecast_info *f = &v->of;
    heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &v->info.mesh));
    printf("{\"schema\": \"heddle-plan-1\", ");
    report_json_string("model", v->info.model, ", ");
    report_json_string("mesh", mesh, ",\n ");
    report_json_string("machine", v->on.name, ", ");
    report_json_string("machine_from", v->machine_from, ",\n");
    printf(" ");
    report_at_once_json(v);
    print_objective(&v->info);
    printf(" \"time_s\": %.12g, \"compute_s\": %.12g, \"transfer_s\": %.12g, \"hidden_s\": %.12g, \"serial_s\": "
           "%.12g, \"sample_s\": %.12g,\n",
           f->time_s, f->compute_s, f->transfer_s, f->hidden_s, f->serial_s, f->sample_s);
    printf(" \"memory_bytes_per_rank\": %" PRId64 ", \"bytes_per_rank_max\": %" PRId64 ", \"bytes_total\": %" PRId64
           ",\n \"weights_gathered_bytes_per_rank\": %.0f, \"end_bytes_per_rank_max\": %" PRId64
           ", \"end_s\": %.12g,\n",
           f->memory.total, v->info.bytes_per_rank_max, v->info.bytes_total, report_gathered_bytes(v),
           f->end_bytes_per_rank_max, f->end_s);
    print_links(v);
    printf(" \"schedule\": ");
    heddle_status st = heddle_schedule_save(v->schedule, "-");
    printf(" ,\n");
    print_stages(v);
    return st;
}
