/* What is said of one stage: its part, its layout, why it runs as it does. */
#include "planner/report/schedule_table.h"
#include "planner/report/text.h"

#include <stdio.h>
#include <string.h>

const char *report_layout(char *out, size_t out_bytes, const schedule_view *v, const heddle_layout *layout)
{
    if (heddle_layout_format(out, out_bytes, layout, &v->info.shape, &v->info.mesh) != HEDDLE_OK) {
        snprintf(out, out_bytes, "...");
    }
    return out;
}

double report_waste(const schedule_view *v, const heddle_layout *layout)
{
    heddle_box box;
    if (v->elems <= 0 || heddle_layout_box(&box, &v->info.shape, &v->info.mesh, layout, 0) != HEDDLE_OK) {
        return 0.0;
    }
    return ((double)heddle_box_elems(&box) * v->nranks / v->elems - 1.0) * 100.0;
}

/* Ranks that share dim d. */
static int64_t sharing(const schedule_view *v, const heddle_layout *layout, int d)
{
    int64_t ranks = 1;
    for (int a = 0; a < v->info.mesh.naxes; a++) {
        ranks *= layout->dim_of_axis[a] == d ? v->info.mesh.axis[a].size : 1;
    }
    return ranks;
}

/* What the busiest rank does over an even share, in per cent of that. */
static double idle_percent(int64_t extent, int64_t ranks)
{
    return ((double)((extent + ranks - 1) / ranks) * (double)ranks / (double)extent - 1) * 100;
}

static void add(char *out, size_t out_bytes, const char *what, int64_t extent, int64_t ranks)
{
    const size_t used = strlen(out);
    if (ranks > 1 && extent % ranks != 0) {
        snprintf(out + used, out_bytes - used, "%s%lld %s over %lld ranks: %.*f %% of the work idle",
                 used > 0 ? "; " : "", (long long)extent, what, (long long)ranks,
                 idle_percent(extent, ranks) < 2 ? 1 : 0, idle_percent(extent, ranks));
    }
}

const char *report_idle(char *out, size_t out_bytes, const schedule_view *v, int k, const heddle_layout *layout,
                        const char *method)
{
    heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
    int64_t replicated = 1;
    out[0] = '\0';
    if (heddle_model_stage(&stage, v->model, k) != HEDDLE_OK) {
        return out;
    }
    for (int d = 0; d < v->info.shape.ndim; d++) {
        const int is_mixed = d < 32 && (stage.mixed_dims >> d & 1) != 0;
        const int64_t ranks = sharing(v, layout, d);
        add(out, out_bytes, v->info.shape.dim[d].name, v->info.shape.dim[d].extent, ranks);
        if (is_mixed && strcmp(method, "ulysses") == 0) {
            add(out, out_bytes, "heads", stage.heads, ranks);
        }
        for (int a = v->info.mesh.naxes - 1; is_mixed && strcmp(method, "usp") == 0 && a >= 0; a--) {
            if (layout->dim_of_axis[a] == d) { /* the last of them has the heads */
                add(out, out_bytes, "heads", stage.heads, v->info.mesh.axis[a].size);
                break;
            }
        }
    }
    for (int a = 0; a < v->info.mesh.naxes; a++) {
        replicated *= layout->dim_of_axis[a] < 0 ? v->info.mesh.axis[a].size : 1;
    }
    if (replicated > 1) {
        const size_t used = strlen(out);
        snprintf(out + used, out_bytes - used, "%s%lld ranks do the same work", used > 0 ? "; " : "",
                 (long long)replicated);
    }
    return out;
}

const char *report_left_out(const char *method)
{
    return strcmp(method, "rsa") == 0
               ? "the planner takes rsa, which keeps whole rows of scores, only where it is asked for"
               : "the methods or layouts that were asked for leave it out";
}

/* The dims that a stage mixes, with commas. */
static const char *mixed_names(char *out, size_t out_bytes, const schedule_view *v, const heddle_stage_info *stage)
{
    size_t used = 0;
    out[0] = '\0';
    for (int d = 0; d < v->info.shape.ndim && used < out_bytes; d++) {
        if ((stage->mixed_dims >> d & 1) != 0) {
            used +=
                (size_t)snprintf(out + used, out_bytes - used, "%s%s", used > 0 ? "," : "", v->info.shape.dim[d].name);
        }
    }
    return out;
}

const char *report_reason(char *out, size_t out_bytes, const schedule_view *v, int i)
{
    heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
    heddle_schedule_stage runs = HEDDLE_EMPTY(heddle_schedule_stage);
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    char mixed[128], bytes[16], idle[256];
    const int k = v->info.period > 0 ? i % v->info.period : 0;
    out[0] = '\0';
    if (heddle_model_stage(&stage, v->model, k) != HEDDLE_OK ||
        heddle_schedule_stage_at(&runs, v->schedule, i) != HEDDLE_OK ||
        heddle_schedule_edge_at(&edge, v->schedule, i) != HEDDLE_OK) {
        return out;
    }
    mixed_names(mixed, sizeof mixed, v, &stage);
    int used = 0;
    if (mixed[0] == '\0') {
        used = snprintf(out, out_bytes, "token-wise, any layout does");
    } else if (strcmp(runs.method, "local") == 0) {
        used = snprintf(out, out_bytes, "attends over %s, which every rank has whole", mixed);
    } else {
        used = snprintf(out, out_bytes, "attends over %s, which is sharded; %s sends %s of a rank", mixed, runs.method,
                        report_si(bytes, sizeof bytes, (double)runs.forward_bytes_per_rank_max));
    }
    if (used > 0 && (size_t)used < out_bytes) {
        used += edge.bytes_total > 0
                    ? snprintf(out + used, out_bytes - (size_t)used, "; the %s before it sends %s", edge.kind,
                               report_si(bytes, sizeof bytes, (double)edge.bytes_per_rank_max))
                    : snprintf(out + used, out_bytes - (size_t)used, "; nothing moves before it");
    }
    report_idle(idle, sizeof idle, v, k, &runs.layout, runs.method);
    if (idle[0] != '\0' && used > 0 && (size_t)used < out_bytes) {
        used += snprintf(out + used, out_bytes - (size_t)used, "; %s", idle);
    }
    if (v->left_out[0] != '\0' && v->left_out_of == k && used > 0 && (size_t)used < out_bytes) {
        snprintf(out + used, out_bytes - (size_t)used, "; %s", v->left_out);
    }
    return out;
}
