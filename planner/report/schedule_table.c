/* A schedule as a table: equal repetitions folded, totals, published methods beside it. */
#include "planner/report/schedule_table.h"
#include "planner/report/text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { CYCLE_MAX = 8, TEXT_BYTES = 512 };

static const char *layout_text(char *out, size_t out_bytes, const schedule_view *v, const heddle_layout *layout)
{
    if (heddle_layout_format(out, out_bytes, layout, &v->info.shape, &v->info.mesh) != HEDDLE_OK) {
        snprintf(out, out_bytes, "...");
    }
    return out;
}

/* What the ranks together do more than an even split would. */
static double waste_percent(const schedule_view *v, const heddle_layout *layout)
{
    heddle_box box;
    if (v->elems <= 0 || heddle_layout_box(&box, &v->info.shape, &v->info.mesh, layout, 0) != HEDDLE_OK) {
        return 0.0;
    }
    return ((double)heddle_box_elems(&box) * v->nranks / v->elems - 1.0) * 100.0;
}

static void print_edge(const schedule_view *v, const char *stage, const heddle_layout *layout,
                       const heddle_schedule_edge *edge, int with_waste)
{
    char to[TEXT_BYTES];
    char from[TEXT_BYTES];
    char sent[16] = "-";
    char received[16] = "-";
    char total[16] = "-";
    char messages[24] = "-";
    char waste[16] = "";
    int moves = edge->bytes_total > 0;
    if (moves) {
        report_si(sent, sizeof sent, (double)edge->bytes_per_rank_max);
        report_si(received, sizeof received, (double)edge->bytes_received_max);
        report_si(total, sizeof total, (double)edge->bytes_total);
        snprintf(messages, sizeof messages, "%" PRId64, edge->messages);
    }
    if (with_waste) {
        snprintf(waste, sizeof waste, "%5.1f%%", waste_percent(v, layout));
    }
    layout_text(from, sizeof from, v, &edge->from);
    printf("  %-14s %-13s %-8s %-13s %9s %9s %9s %8s%s%s\n", stage, layout_text(to, sizeof to, v, layout), edge->kind,
           strcmp(edge->kind, "keep") == 0 || strcmp(edge->kind, "free") == 0 ? "" : from, sent, received, total,
           messages, with_waste ? " " : "", waste);
}

/* Below a stage that runs by a method: what that sends inside the stage. */
static void print_method_row(const heddle_schedule_stage *stage)
{
    char sent[16] = "-";
    char total[16] = "-";
    char messages[24] = "-";
    if (strcmp(stage->method, "local") == 0) {
        return;
    }
    if (stage->forward_bytes_total > 0) {
        report_si(sent, sizeof sent, (double)stage->forward_bytes_per_rank_max);
        report_si(total, sizeof total, (double)stage->forward_bytes_total);
        snprintf(messages, sizeof messages, "%" PRId64, stage->forward_messages);
    }
    printf("    by %-9s  %-13s %-8s %-13s %9s %9s %9s %8s\n", stage->method, "", "inside", "", sent, "", total,
           messages);
    printf("      a rank keeps %s for backward and works in %s, %.3g GFLOP forward, %.3g backward\n",
           report_si(sent, sizeof sent, (double)stage->saved_bytes),
           report_si(total, sizeof total, (double)stage->workspace_bytes), (double)stage->forward_flops * 1e-9,
           (double)stage->backward_flops * 1e-9);
}

static int print_repetition(const schedule_view *v, int repetition)
{
    for (int i = 0; i < v->info.period; i++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
        int index = repetition * v->info.period + i;
        if (heddle_schedule_stage_at(&stage, v->schedule, index) != HEDDLE_OK ||
            heddle_schedule_edge_at(&edge, v->schedule, index) != HEDDLE_OK) {
            return 0;
        }
        print_edge(v, stage.name, &stage.layout, &edge, 1);
        print_method_row(&stage);
    }
    return 1;
}

/* Same layouts, methods and incoming edges? */
static int same_repetition(const schedule_view *v, int a, int b)
{
    for (int i = 0; i < v->info.period; i++) {
        heddle_schedule_edge ea = HEDDLE_EMPTY(heddle_schedule_edge);
        heddle_schedule_edge eb = HEDDLE_EMPTY(heddle_schedule_edge);
        heddle_schedule_stage sa = HEDDLE_EMPTY(heddle_schedule_stage);
        heddle_schedule_stage sb = HEDDLE_EMPTY(heddle_schedule_stage);
        const int has_edge = i > 0 || !v->is_stages_alone;
        if (heddle_schedule_stage_at(&sa, v->schedule, a * v->info.period + i) != HEDDLE_OK ||
            heddle_schedule_stage_at(&sb, v->schedule, b * v->info.period + i) != HEDDLE_OK ||
            strcmp(sa.method, sb.method) != 0 || !heddle_layout_equal(&sa.layout, &sb.layout, &v->info.mesh) ||
            heddle_schedule_edge_at(&ea, v->schedule, a * v->info.period + i) != HEDDLE_OK ||
            heddle_schedule_edge_at(&eb, v->schedule, b * v->info.period + i) != HEDDLE_OK ||
            (has_edge && (strcmp(ea.kind, eb.kind) != 0 || !heddle_layout_equal(&ea.from, &eb.from, &v->info.mesh)))) {
            return 0;
        }
    }
    return 1;
}

/* How often the `cycle` repetitions from `first` on follow one another. */
static int count_cycles(const schedule_view *v, int first, int cycle)
{
    int count = 1;
    for (int r = first + cycle; r < v->info.repeat; r++) {
        if (!same_repetition(v, r, r - cycle)) {
            break;
        }
        if ((r - first + 1) % cycle == 0) {
            count++;
        }
    }
    return first + cycle <= v->info.repeat ? count : 0;
}

void report_find_cycle(int *cycle, int *count, const schedule_view *v, int first)
{
    int covered = 1;
    *cycle = 1;
    *count = 1;
    for (int c = 1; c <= CYCLE_MAX; c++) {
        int n = count_cycles(v, first, c);
        if (n >= 2 && n * c > covered) {
            covered = n * c;
            *cycle = c;
            *count = n;
        }
    }
}

static void print_table(const schedule_view *v)
{
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    printf("  %-14s %-13s %-8s %-13s %9s %9s %9s %8s %6s\n", "stage", "layout", "incoming", "from", "sent max",
           "recv max", "total", "messages", "waste");
    for (int r = 0; r < v->info.repeat;) {
        int cycle = 1;
        int count = 1;
        report_find_cycle(&cycle, &count, v, r);
        if (count > 1) {
            printf("repetitions %d to %d: %sx %d\n", r + 1, r + cycle * count, cycle > 1 ? "these, " : "", count);
        } else {
            printf("repetition %d\n", r + 1);
        }
        for (int k = 0; k < cycle; k++) {
            if (k > 0) {
                printf("  -\n");
            }
            print_repetition(v, r + k);
        }
        r += cycle * count;
    }
    if (heddle_schedule_edge_at(&edge, v->schedule, v->info.nedges - 1) == HEDDLE_OK) {
        printf("end\n");
        print_edge(v, "(epilogue)", &edge.to, &edge, 0);
    }
}

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

static int count_methods(const schedule_view *v)
{
    int count = 0;
    for (int i = 0; i < v->info.nstages; i++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        count += heddle_schedule_stage_at(&stage, v->schedule, i) == HEDDLE_OK && strcmp(stage.method, "local") != 0;
    }
    return count;
}

static void print_footer(const schedule_view *v)
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
            printf("the batch takes the mesh: over one sequence dim at a time %d switch%s would be needed\n", forced,
                   forced == 1 ? "" : "es");
        }
    }
}

void report_schedule(const schedule_view *v)
{
    char shape[HEDDLE_LINE_BYTES] = "";
    char mesh[TEXT_BYTES] = "";
    char bytes[16];
    heddle_ignore(heddle_shape_format(shape, sizeof shape, &v->info.shape));
    heddle_ignore(heddle_mesh_format(mesh, sizeof mesh, &v->info.mesh));
    printf("%s: %s on %s\n", v->info.model, shape, mesh);
    printf("%d stage%s x %d; the activation has %s, an even part of it %s\n\n", v->info.period,
           report_s(v->info.period), v->info.repeat, report_si(bytes, sizeof bytes, v->bytes),
           report_si(mesh, sizeof mesh, v->bytes / v->nranks));
    print_table(v);
    print_footer(v);
    report_comparison(v);
}
