/* A schedule as a table: equal repetitions folded, totals, published methods beside it. */
#include "planner/report/schedule_table.h"
#include "planner/report/text.h"

#include <stdio.h>
#include <string.h>

enum { CYCLE_MAX = 8, TEXT_BYTES = 512 };

/* A cell: "-" where there is nothing. */
static const char *bytes_cell(char *out, int64_t bytes)
{
    return bytes > 0 ? report_si(out, 16, (double)bytes) : "-";
}

static const char *time_cell(char *out, double seconds)
{
    return seconds > 0 ? report_seconds(out, 16, seconds) : "-";
}

/* The column behind the layout, and by how much it may be exceeded; behind a longer one the row goes on in the next. */
enum { LAYOUT_END = 30, SPARE = 3 };

static void print_row(const schedule_view *v, const char *name, int i)
{
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    heddle_forecast_step at = HEDDLE_EMPTY(heddle_forecast_step), into = HEDDLE_EMPTY(heddle_forecast_step);
    char layout[TEXT_BYTES], sent[16], total[16], compute[16], transfer[16], waste[16] = "";
    const int is_end = i == v->info.nstages;
    heddle_ignore(heddle_schedule_edge_at(&edge, v->schedule, i));
    heddle_ignore(is_end ? HEDDLE_OK : heddle_schedule_stage_at(&stage, v->schedule, i));
    if (v->forecast != NULL) {
        heddle_ignore(heddle_forecast_edge(&into, v->forecast, i));
        heddle_ignore(is_end ? HEDDLE_OK : heddle_forecast_stage(&at, v->forecast, i));
    }
    if (!is_end) {
        snprintf(waste, sizeof waste, "%.1f%%", report_waste(v, &stage.layout));
    }
    if (printf("  %-14s %-13s", name, report_layout(layout, sizeof layout, v, &edge.to)) > LAYOUT_END + SPARE) {
        printf("\n%*s", LAYOUT_END, "");
    }
    printf(" %-9s %-8s %9s %9s %7s %9s %9s\n", is_end ? "" : stage.method, edge.kind,
           bytes_cell(sent, edge.bytes_per_rank_max + (is_end ? 0 : stage.forward_bytes_per_rank_max)),
           bytes_cell(total, edge.bytes_total + (is_end ? 0 : stage.forward_bytes_total)), waste,
           time_cell(compute, at.compute_s + into.compute_s),
           time_cell(transfer, at.transfer_s - at.hidden_s + into.transfer_s - into.hidden_s));
}

static void print_repetition(const schedule_view *v, int repetition)
{
    for (int i = 0; i < v->info.period; i++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        const int index = repetition * v->info.period + i;
        if (heddle_schedule_stage_at(&stage, v->schedule, index) == HEDDLE_OK) {
            print_row(v, stage.name, index);
        }
    }
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
    printf("  %-14s %-13s %-9s %-8s %9s %9s %7s %9s %9s\n", "stage", "layout", "method", "incoming", "sent max",
           "total", "waste", "compute", "transfer");
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
    printf("end\n");
    print_row(v, "(epilogue)", v->info.nstages);
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
    report_totals(v);
    report_comparison(v);
}
