/* A schedule beside published methods: bytes of one repetition within a long run of them. A single layer is no measure:
 * its schedule begins in the layout it likes and never pays for the way back to it, which the next layer needs. */
#include "planner/report/schedule_table.h"
#include "planner/report/text.h"

#include <stdio.h>

/* The longest run of equal cycles. */
static void steady_cycle(int *first, int *cycle, const schedule_view *v)
{
    int most = 0;
    *first = 0;
    *cycle = 1;
    for (int r = 0; r < v->info.repeat;) {
        int c = 1;
        int n = 1;
        report_find_cycle(&c, &n, v, r);
        if (c * n >= most) { /* of equal ones the later: the first repetition has the free choice of where to begin */
            most = c * n;
            *first = r;
            *cycle = c;
        }
        r += c * n;
    }
}

/* Mean bytes that a rank sends in one repetition of the steady part. *ranks: how many share one sequence there, over
 * all axes but those that only ever shard the batch; the published methods have no more to share it. */
static double steady_bytes(int *ranks, const schedule_view *v)
{
    heddle_model_info model = HEDDLE_EMPTY(heddle_model_info);
    unsigned sequence_axes = 0;
    int first = 0;
    int cycle = 1;
    double bytes = 0;
    steady_cycle(&first, &cycle, v);
    int batch_dim = heddle_model_get_info(&model, v->model) == HEDDLE_OK ? model.batch_dim : -1;
    for (int i = first * v->info.period; i < (first + cycle) * v->info.period; i++) {
        heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        if (heddle_schedule_edge_at(&edge, v->schedule, i) == HEDDLE_OK) {
            bytes += (double)edge.bytes_total;
        }
        if (heddle_schedule_stage_at(&stage, v->schedule, i) == HEDDLE_OK) {
            bytes += (double)stage.forward_bytes_total;
            for (int a = 0; a < v->info.mesh.naxes; a++) {
                int dim = stage.layout.dim_of_axis[a];
                sequence_axes |= dim >= 0 && dim != batch_dim ? 1U << a : 0;
            }
        }
    }
    *ranks = 1;
    for (int a = 0; a < v->info.mesh.naxes; a++) {
        *ranks *= (sequence_axes >> a & 1) != 0 ? v->info.mesh.axis[a].size : 1;
    }
    return bytes / cycle / v->nranks;
}

/* Two attention stages over different dims: the form that the published formulas are for. *heads: of the first. */
static int is_pair_model(const schedule_view *v, int *heads)
{
    int dims[2] = {-1, -1};
    int count = 0;
    for (int i = 0; i < v->info.period; i++) {
        heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
        if (heddle_model_stage(&stage, v->model, i) == HEDDLE_OK && stage.kind == HEDDLE_STAGE_ATTENTION) {
            if (count < 2) {
                dims[count] = stage.mixed_dim;
                *heads = count == 0 ? stage.heads : *heads;
            }
            count++;
        }
    }
    return count == 2 && dims[0] != dims[1];
}

static void print_method(const char *name, double bytes, double own, const char *remark)
{
    char text[16];
    report_si(text, sizeof text, bytes);
    printf("  %-42s %10s", name, text);
    if (own > 0) {
        printf(" %7.2fx", bytes / own);
    }
    printf("%s%s\n", remark[0] != '\0' ? "  " : "", remark);
}

void report_comparison(const schedule_view *v)
{
    schedule_view steady = *v;
    int heads = 0;
    int ranks = 1;
    char remark[64] = "";
    if (v->nranks < 2 || v->long_run == NULL || !is_pair_model(v, &heads)) {
        return;
    }
    steady.schedule = v->long_run;
    if (heddle_schedule_get_info(&steady.info, v->long_run) != HEDDLE_OK) {
        return;
    }
    double own = steady_bytes(&ranks, &steady);
    double f = (double)(ranks - 1) / ranks;
    double shard = v->bytes / v->nranks;
    if (heads % ranks != 0) {
        snprintf(remark, sizeof remark, "uneven: %d heads, %d ranks", heads, ranks);
    }
    printf("\na pair of attention blocks among many: sent per rank (mean), forward, even split\n");
    print_method("this schedule, the baseline", own, own, "");
    print_method("Ulysses where the sharded dim is attended", 4 * shard * f, own, remark);
    print_method("Ulysses in both blocks", 8 * shard * f, own, remark);
    print_method("ring attention where the dim is attended", 2 * shard * ranks * f, own, "overlaps with compute");
    print_method("Megatron-SP", 8 * shard * ranks * f, own, "weights are sharded too");
}
