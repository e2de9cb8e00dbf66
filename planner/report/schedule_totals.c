/* Below the table of a schedule: bytes, seconds and memory of a pass, and how good the plan is proven to be. */
#include "planner/report/schedule_table.h"
#include "planner/report/text.h"

#include <stdio.h>
#include <string.h>

enum { TEXT_BYTES = 512 };

/* Changes of layout that no schedule with one sequence dim sharded at a time avoids: a layout lasts until every
 * sequence dim has been mixed once (Belady's rule; exact for equal costs). */
static int forced_changes(const schedule_view *v)
{
    heddle_model_info model = HEDDLE_EMPTY(heddle_model_info);
    int changes = 0;
    unsigned mixed = 0;
    unsigned all = 0;
    if (heddle_model_get_info(&model, v->model) != HEDDLE_OK) {
        return 0;
    }
    for (int d = 0; d < v->info.shape.ndim; d++) {
        all |= d != model.batch_dim && d != model.channel_dim ? 1U << d : 0;
    }
    for (int i = 0; i < v->info.nstages; i++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        if (heddle_schedule_stage_at(&stage, v->schedule, i) != HEDDLE_OK || stage.mixed_dim < 0) {
            continue;
        }
        mixed |= 1U << stage.mixed_dim;
        if (mixed == all) {
            mixed = 1U << stage.mixed_dim;
            changes++;
        }
    }
    return changes;
}

/* Interior edges that move bytes. */
static int interior_switches(const schedule_view *v)
{
    int count = 0;
    for (int i = 1; i + 1 < v->info.nedges; i++) {
        heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
        count += heddle_schedule_edge_at(&edge, v->schedule, i) == HEDDLE_OK && edge.bytes_total > 0;
    }
    return count;
}

/* Fewer switches than one sequence dim at a time needs. */
static void print_who_needs_none(const schedule_view *v, int forced)
{
    heddle_model_info model = HEDDLE_EMPTY(heddle_model_info);
    int by_batch = 0;
    heddle_ignore(heddle_model_get_info(&model, v->model));
    for (int i = 0; i < v->info.nstages; i++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        heddle_ignore(heddle_schedule_stage_at(&stage, v->schedule, i));
        by_batch |= model.batch_dim >= 0 && stage.layout.dim_of_axis[0] == model.batch_dim;
    }
    printf("%s: over one sequence dim at a time %d switch%s would be needed\n",
           by_batch ? "the batch takes the mesh" : "some stages run whole on every rank", forced,
           forced == 1 ? "" : "es");
}

static int count_methods(const schedule_view *v)
{
    int count = 0;
    for (int i = 0; i < v->info.nstages; i++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        count += heddle_schedule_stage_at(&stage, v->schedule, i) == HEDDLE_OK && strcmp(stage.method, "local") != 0;
    }
    return count;
}

static void print_bytes(const schedule_view *v)
{
    char max[16];
    char total[16];
    int interior = interior_switches(v);
    int ends = v->info.switches - interior;
    printf("\nforward pass: %d switch%s", interior, interior == 1 ? "" : "es");
    if (ends > 0) {
        printf(" and %d move%s at the ends", ends, report_s(ends));
    }
    printf("; the busiest ranks send %s, all ranks %s\n",
           report_si(max, sizeof max, (double)v->info.bytes_per_rank_max),
           report_si(total, sizeof total, (double)v->info.bytes_total));
    printf("backward pass: the busiest ranks send %s, all ranks %s\n",
           report_si(max, sizeof max, (double)v->info.backward_bytes_per_rank_max),
           report_si(total, sizeof total, (double)v->info.backward_bytes_total));
    int methods = count_methods(v);
    if (methods > 0) {
        printf("%d of %d stage%s by a method over a sharded dim; heddle run compares %s within a tolerance\n", methods,
               v->info.nstages,
               v->info.nstages == 1 ? " runs"
               : methods == 1       ? "s runs"
                                    : "s run",
               methods == 1 ? "it" : "them");
    }
    if (v->info.mesh.naxes == 1 && v->nranks > 1 && methods == 0) {
        int forced = forced_changes(v);
        if (interior >= forced) {
            printf("lower bound: %d switch%s while one sequence dim is sharded at a time%s\n", forced,
                   forced == 1 ? "" : "es", forced == interior ? "; reached" : "");
        } else {
            print_who_needs_none(v, forced);
        }
    }
}

static int is_of_seconds(const char *objective)
{
    return objective != NULL && (strcmp(objective, "time") == 0 || strcmp(objective, "gpu-seconds") == 0);
}

const char *report_value(char *out, size_t out_bytes, const char *objective, double value)
{
    return is_of_seconds(objective) ? report_seconds(out, out_bytes, value) : report_si(out, out_bytes, value);
}

static void print_at_once(const schedule_view *v)
{
    char seconds[16], mesh[HEDDLE_LINE_BYTES] = "";
    if (v->at_once[0] == '\0') {
        return;
    }
    printf("  its passes with and without the condition are one after the other: --size %s has them at once",
           v->at_once);
    if (v->at_once_s > 0) {
        heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &v->at_once_mesh));
        printf(",\n  %s a sample on %s", report_seconds(seconds, sizeof seconds, v->at_once_s), mesh);
    }
    printf("\n");
}

static void print_seconds(const schedule_view *v)
{
    const heddle_forecast_info *f = &v->of;
    char all[16], work[16], transfer[16], hidden[16];
    printf("time: %s a %s: compute %s, transfer %s, of it %s hidden", report_seconds(all, sizeof all, f->time_s),
           v->is_step ? "step, there and back" : "pass", report_seconds(work, sizeof work, f->compute_s),
           report_seconds(transfer, sizeof transfer, f->transfer_s),
           report_seconds(hidden, sizeof hidden, f->hidden_s));
    if (f->serial_s > 0) {
        printf("\n  and once a sample %s on every rank alike", report_seconds(work, sizeof work, f->serial_s));
    }
    printf("\n");
    if (f->sample_s > 0) {
        printf("a whole sample: %s\n", report_seconds(all, sizeof all, f->sample_s));
        print_at_once(v);
    }
}

double report_gathered_bytes(const schedule_view *v)
{
    heddle_model_info model = HEDDLE_EMPTY(heddle_model_info);
    double bytes = 0;
    if (heddle_model_get_info(&model, v->model) != HEDDLE_OK || !model.weights_sharded || v->nranks < 2) {
        return 0;
    }
    for (int i = 0; i < model.nstages; i++) {
        heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
        heddle_ignore(heddle_model_stage(&stage, v->model, i));
        bytes += (double)((stage.nweights + v->nranks - 1) / v->nranks) * (v->nranks - 1);
    }
    return bytes * (double)heddle_dtype_bytes(v->info.shape.dtype) * (v->info.nstages / model.nstages) *
           (v->is_step ? 3 : 1);
}

static void print_gathered(const schedule_view *v)
{
    const double bytes = report_gathered_bytes(v);
    char sent[16];
    if (bytes > 0) {
        printf("weights gathered: a rank sends %s of its part of them, in the links and not in the above\n",
               report_si(sent, sizeof sent, bytes));
    }
}

static void print_links(const schedule_view *v)
{
    for (int i = 0; i < v->of.nlinks; i++) {
        heddle_forecast_link link = HEDDLE_EMPTY(heddle_forecast_link);
        char sent[16], received[16], total[16];
        if (heddle_forecast_link_at(&link, v->forecast, i) == HEDDLE_OK) {
            printf("link %s: a rank sends at most %s and receives %s, all ranks %s\n", link.name,
                   report_si(sent, sizeof sent, (double)link.sent_max),
                   report_si(received, sizeof received, (double)link.received_max),
                   report_si(total, sizeof total, (double)link.total));
        }
    }
    if (v->of.end_bytes_per_rank_max > 0 || v->of.end_s > 0) {
        char bytes[16], seconds[16];
        printf("ends, once and not in the above: tokens in and result out, %s, %s\n",
               report_si(bytes, sizeof bytes, (double)v->of.end_bytes_per_rank_max),
               report_seconds(seconds, sizeof seconds, v->of.end_s));
    }
}

static void print_memory(const schedule_view *v)
{
    const heddle_forecast_memory *m = &v->of.memory;
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    char total[16], weights[16], kept[16], work[16], own[16];
    const char *at =
        m->peak_stage < v->info.nstages && heddle_schedule_stage_at(&stage, v->schedule, m->peak_stage) == HEDDLE_OK
            ? stage.name
            : "the end";
    printf("memory: %s of a rank, at %s: weights %s, activations %s,\n  workspace %s",
           report_si(total, 16, (double)m->total), at, report_si(weights, 16, (double)m->weights),
           report_si(kept, 16, (double)m->activations), report_si(work, 16, (double)m->workspace));
    if (v->on.memory_bytes > 0) {
        printf("; it has %s%s", report_si(own, 16, (double)v->on.memory_bytes),
               m->total > v->on.memory_bytes ? ": DOES NOT FIT" : "");
    }
    printf("\n");
}

/* Whether there may be cheaper plans among those that are not searched: rsa keeps its weights for the way back, which
 * so takes less work. */
static int may_leave_out(const schedule_view *v)
{
    for (int i = 0; i < v->info.period && v->is_step && is_of_seconds(v->info.objective) && v->nranks > 1; i++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        if (heddle_schedule_stage_at(&stage, v->schedule, i) == HEDDLE_OK && stage.mixed_dim >= 0 &&
            stage.kind == HEDDLE_STAGE_ATTENTION) {
            return 1;
        }
    }
    return 0;
}

/* The search is exact, where work has no price of what the slack admits. What is proven without it is another number,
 * where that says something. */
static void print_proof(const schedule_view *v)
{
    const heddle_schedule_info *s = &v->info;
    char value[16], bound[16], second[16], meshes[64] = "this mesh", sentence[256];
    if (s->objective == NULL) {
        return;
    }
    if (v->of_ranks > 0) {
        snprintf(meshes, sizeof meshes, "any mesh of %d ranks%s", v->of_ranks,
                 strcmp(s->objective, "gpu-seconds") == 0 ? " or of a divisor" : "");
    }
    snprintf(sentence, sizeof sentence, "objective %.32s: %s, the least of all plans %son %s%s%s", s->objective,
             report_value(value, 16, s->objective, s->value), v->is_forced ? "that run as asked " : "", meshes,
             is_of_seconds(s->objective) ? "" : " within the slack",
             may_leave_out(v) ? ", with rsa only where it is asked for" : "");
    report_wrap(stdout, sentence, 0, 2, REPORT_COLUMNS - 1);
    if (s->lower_bound < s->value) {
        printf(";\n  without a search proven to be at least %s", report_value(bound, 16, s->objective, s->lower_bound));
    }
    if (s->runner_up > 0) {
        printf(";\n  the runner-up %s", report_value(second, 16, s->objective, s->runner_up));
        if (s->value > 0) {
            printf(" (+%.1f %%)", (s->runner_up / s->value - 1) * 100);
        }
    }
    printf("\n");
    if (v->left_out[0] != '\0') {
        printf("%s\n", v->left_out);
    }
}

void report_totals(const schedule_view *v)
{
    print_bytes(v);
    if (v->forecast == NULL) {
        return;
    }
    print_gathered(v);
    print_links(v);
    print_seconds(v);
    print_memory(v);
    print_proof(v);
    printf("machine %s, %s:\n  %s\n", v->on.name, v->machine_from,
           v->on.is_calibrated ? "measured by heddle calibrate" : "not measured, these figures rank plans");
}
