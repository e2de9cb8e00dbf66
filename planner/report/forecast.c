/* A forecast part by part: memory, seconds, bytes by link class. */
#include "planner/report/forecast.h"

#include "planner/report/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 128 };

/* Front of every report; json: the outermost object is open behind it. */
static void print_front(const schedule_view *v, const char *schema, int json)
{
    char mesh[HEDDLE_LINE_BYTES] = "";
    heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &v->info.mesh));
    if (!json) {
        printf("%s on %s, machine %s, %s\n\n", v->info.model, mesh, v->on.name, v->machine_from);
        return;
    }
    printf("{");
    report_json_string("schema", schema, ", ");
    report_json_string("model", v->info.model, ", ");
    report_json_string("mesh", mesh, ", ");
    report_json_string("machine", v->on.name, ",\n ");
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* The most that is held while stage k of any repetition, or the edge into it, runs. */
static int64_t most_held(const schedule_view *v, int k)
{
    int64_t most = 0;
    for (int i = k; i < v->info.nstages; i += v->info.period) {
        heddle_forecast_step stage = HEDDLE_EMPTY(heddle_forecast_step), edge = HEDDLE_EMPTY(heddle_forecast_step);
        heddle_ignore(heddle_forecast_stage(&stage, v->forecast, i));
        heddle_ignore(heddle_forecast_edge(&edge, v->forecast, i));
        most = stage.memory_bytes > most ? stage.memory_bytes : most;
        most = edge.memory_bytes > most ? edge.memory_bytes : most;
    }
    return most;
}

/* What stage k keeps for the way back, all repetitions together. */
static int64_t kept_by(const schedule_view *v, int k)
{
    int64_t sum = 0;
    for (int i = k; i < v->info.nstages; i += v->info.period) {
        heddle_forecast_step stage = HEDDLE_EMPTY(heddle_forecast_step);
        heddle_ignore(heddle_forecast_stage(&stage, v->forecast, i));
        sum += stage.kept_bytes;
    }
    return sum;
}

static const char *stage_name(char *out, const schedule_view *v, int i)
{
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    const int is_stage = i < v->info.nstages && heddle_schedule_stage_at(&stage, v->schedule, i) == HEDDLE_OK;
    snprintf(out, NAME_BYTES, "%s", is_stage ? stage.name : "the end");
    return out;
}

static void print_part(const char *name, int64_t bytes, int64_t total)
{
    char text[16];
    printf("  %-12s %9s %6.1f %%\n", name, report_si(text, sizeof text, (double)bytes),
           total > 0 ? (double)bytes * 100 / (double)total : 0.0);
}

/* "s.attn=t@sp/local;t.attn=s@sp/local": what mixes, in the first repetition, as --force takes it. */
static const char *plan_name(char *out, size_t out_bytes, const schedule_view *v)
{
    size_t used = 0;
    out[0] = '\0';
    for (int k = 0; k < v->info.period && used < out_bytes; k++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        char layout[128];
        if (heddle_schedule_stage_at(&stage, v->schedule, k) == HEDDLE_OK && stage.mixed_dim >= 0) {
            used += (size_t)snprintf(out + used, out_bytes - used, "%s%s=%s/%s", used > 0 ? ";" : "", stage.name,
                                     report_layout(layout, sizeof layout, v, &stage.layout), stage.method);
        }
    }
    return out;
}

static void print_longest(const schedule_view *v, int json)
{
    char text[16], plan[1024];
    plan_name(plan, sizeof plan, v);
    if (json) {
        printf("\"longest\": {");
        report_json_string("dim", v->longest_dim, ", ");
        report_json_string("plan", plan, ", ");
        printf("\"extent\": %" PRId64 ", \"fits_bytes\": %" PRId64 "},\n ", v->longest, v->longest_bytes);
        return;
    }
    printf("longest %s whose best plan fits %s of a rank: %" PRId64 "\n  by %s\n\n", v->longest_dim,
           report_si(text, sizeof text, (double)v->longest_bytes), v->longest, plan);
}

heddle_status report_memory(const schedule_view *v, int json)
{
    const heddle_forecast_memory *m = &v->of.memory;
    char name[NAME_BYTES], text[16];
    print_front(v, "heddle-memory-1", json);
    if (v->longest > 0) {
        print_longest(v, json);
    }
    if (json) {
        printf("\"memory_bytes_per_rank\": %" PRId64 ", \"weights\": %" PRId64 ", \"activations\": %" PRId64
               ", \"workspace\": %" PRId64 ", \"rank_has\": %" PRId64 ",\n \"peak_stage\": %d, \"stages\": [",
               m->total, m->weights, m->activations, m->workspace, v->on.memory_bytes, m->peak_stage);
        for (int k = 0; k < v->info.period; k++) {
            printf("%s{", k > 0 ? ", " : "");
            report_json_string("name", stage_name(name, v, k), ", ");
            printf("\"memory_bytes\": %" PRId64 ", \"kept_bytes\": %" PRId64 "}", most_held(v, k), kept_by(v, k));
        }
        printf("]}\n");
        return HEDDLE_OK;
    }
    printf("held by the fullest rank%s\n", v->is_step ? ", in a training step" : "");
    print_part("weights", m->weights, m->total);
    print_part("activations", m->activations, m->total);
    print_part("workspace", m->workspace, m->total);
    print_part("peak", m->total, m->total);
    printf("the peak is at %s", stage_name(name, v, m->peak_stage));
    if (v->info.period > 0 && m->peak_stage < v->info.nstages) {
        printf(" of repetition %d", m->peak_stage / v->info.period + 1);
    }
    if (v->on.memory_bytes > 0) {
        printf("; a rank has %s: %s", report_si(text, sizeof text, (double)v->on.memory_bytes),
               m->total > v->on.memory_bytes ? "it does NOT fit" : "it fits");
    }
    printf("\n\n  %-16s %9s%s\n", "stage", "held", v->is_step ? "      kept" : "");
    for (int k = 0; k < v->info.period; k++) {
        printf("  %-16s %9s", stage_name(name, v, k), report_si(text, sizeof text, (double)most_held(v, k)));
        printf(v->is_step ? " %9s\n" : "\n", report_si(text, sizeof text, (double)kept_by(v, k)));
    }
    return HEDDLE_OK;
}

/* --- seconds ------------------------------------------------------------------------------------------------------ */

typedef struct part {
    double time_s, compute_s, transfer_s, hidden_s;
} part;

static void add(part *sum, const heddle_forecast_step *step)
{
    sum->time_s += step->time_s;
    sum->compute_s += step->compute_s;
    sum->transfer_s += step->transfer_s;
    sum->hidden_s += step->hidden_s;
}

/* Stage k of all repetitions, or (edges 1) the edges into it. */
static part sum_of(const schedule_view *v, int k, int edges)
{
    part sum = {0};
    for (int i = k; i < v->info.nstages + edges; i += v->info.period) {
        heddle_forecast_step step = HEDDLE_EMPTY(heddle_forecast_step);
        if (i == v->info.nstages) {
            continue; /* the epilogue is its own */
        }
        heddle_ignore(edges ? heddle_forecast_edge(&step, v->forecast, i)
                            : heddle_forecast_stage(&step, v->forecast, i));
        add(&sum, &step);
    }
    return sum;
}

static void print_part_json(const char *kind, const char *name, const part *p, const char *front)
{
    printf("%s{", front);
    report_json_string("kind", kind, ", ");
    report_json_string("name", name, ", ");
    printf("\"time_s\": %.12g, \"compute_s\": %.12g, \"transfer_s\": %.12g, \"hidden_s\": %.12g}", p->time_s,
           p->compute_s, p->transfer_s, p->hidden_s);
}

static void print_part_text(const schedule_view *v, const char *kind, const char *name, const part *p)
{
    char time[16], work[16], transfer[16], hidden[16];
    if (p->time_s > 0 || kind[0] == 's') {
        printf("  %-7s %-16s %9s %9s %9s %9s %6.1f %%\n", kind, name, report_seconds(time, 16, p->time_s),
               report_seconds(work, 16, p->compute_s), report_seconds(transfer, 16, p->transfer_s),
               report_seconds(hidden, 16, p->hidden_s), v->of.time_s > 0 ? p->time_s * 100 / v->of.time_s : 0.0);
    }
}

heddle_status report_simulation(const schedule_view *v, int json)
{
    const heddle_forecast_info *f = &v->of;
    heddle_forecast_step step = HEDDLE_EMPTY(heddle_forecast_step);
    char name[NAME_BYTES];
    const char *front = "\n  ";
    part last = {0};
    print_front(v, "heddle-simulation-1", json);
    if (json) {
        report_at_once_json(v);
        printf(" \"time_s\": %.12g, \"compute_s\": %.12g, \"transfer_s\": %.12g, \"hidden_s\": %.12g, \"serial_s\": "
               "%.12g,\n "
               "\"sample_s\": %.12g, \"memory_bytes_per_rank\": %" PRId64 ", \"bytes_per_rank_max\": %" PRId64
               ", \"bytes_total\": %" PRId64 ",\n \"breakdown\": [",
               f->time_s, f->compute_s, f->transfer_s, f->hidden_s, f->serial_s, f->sample_s, f->memory.total,
               v->info.bytes_per_rank_max, v->info.bytes_total);
    } else {
        printf("  %-7s %-16s %9s %9s %9s %9s %8s\n", "", "all repetitions", "time", "compute", "transfer", "hidden",
               "of all");
    }
    for (int k = 0; k < 2 * v->info.period; k++) {
        const part p = sum_of(v, k / 2, k % 2 == 0);
        const char *kind = k % 2 == 0 ? "edge" : "stage";
        stage_name(name, v, k / 2);
        if (json) {
            print_part_json(kind, name, &p, front);
            front = ",\n  ";
        } else {
            print_part_text(v, kind, name, &p);
        }
    }
    heddle_ignore(heddle_forecast_edge(&step, v->forecast, v->info.nstages));
    add(&last, &step);
    if (json) {
        print_part_json("edge", "(epilogue)", &last, front);
        printf("]}\n");
    } else {
        print_part_text(v, "edge", "(epilogue)", &last);
        printf("\n");
        report_totals(v);
    }
    return HEDDLE_OK;
}

/* --- bytes -------------------------------------------------------------------------------------------------------- */

static void print_bytes_row(const schedule_view *v, const char *kind, const char *name,
                            const heddle_forecast_step *step, int json, const char **front)
{
    int64_t moved = 0;
    for (int l = 0; l < v->of.nlinks; l++) {
        moved += step->link_total[l];
    }
    if (json) {
        printf("%s{", *front);
        *front = ",\n  ";
        report_json_string("kind", kind, ", ");
        report_json_string("name", name, ", \"links\": [");
    }
    for (int l = 0; l < v->of.nlinks && (json || moved > 0); l++) {
        if (json) {
            printf("%s{", l > 0 ? ", " : "");
            report_json_string("class", l < v->on.nlinks ? v->on.link[l] : "", ", ");
            printf("\"sent_max\": %" PRId64 ", \"received_max\": %" PRId64 ", \"total\": %" PRId64 "}",
                   step->link_sent_max[l], step->link_received_max[l], step->link_total[l]);
        } else if (step->link_total[l] > 0) {
            printf("  %-9s %-20s %-8s %14" PRId64 " %14" PRId64 " %16" PRId64 "\n", kind, name,
                   l < v->on.nlinks ? v->on.link[l] : "", step->link_sent_max[l], step->link_received_max[l],
                   step->link_total[l]);
        }
    }
    printf("%s", json ? "]}" : "");
}

heddle_status report_edges(const schedule_view *v, int json)
{
    const char *front = "\n  ";
    print_front(v, "heddle-volume-1", json);
    if (json) {
        printf("\"moves\": [");
    } else {
        printf("  %-9s %-20s %-8s %14s %14s %16s\n", "", "", "link", "sent max", "received max", "total");
    }
    for (int i = 0; i < v->info.nedges; i++) {
        heddle_forecast_step step = HEDDLE_EMPTY(heddle_forecast_step);
        heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        char name[NAME_BYTES], where[NAME_BYTES + 16];
        heddle_ignore(heddle_schedule_edge_at(&edge, v->schedule, i));
        snprintf(where, sizeof where, "%s #%d", stage_name(name, v, i),
                 v->info.period > 0 ? i / v->info.period + 1 : 1);
        heddle_ignore(heddle_forecast_edge(&step, v->forecast, i));
        print_bytes_row(v, edge.kind, where, &step, json, &front);
        if (i < v->info.nstages && heddle_schedule_stage_at(&stage, v->schedule, i) == HEDDLE_OK &&
            strcmp(stage.method, "local") != 0) {
            step = HEDDLE_EMPTY(heddle_forecast_step);
            heddle_ignore(heddle_forecast_stage(&step, v->forecast, i));
            print_bytes_row(v, stage.method, where, &step, json, &front);
        }
    }
    if (json) {
        printf("]}\n");
    } else {
        printf("\n");
        report_totals(v);
    }
    return HEDDLE_OK;
}
