/* The list of methods, groups of ranks, and prices. */
#include "runtime/method/method.h"

#include "runtime/base/base.h"
#include "runtime/layout/algebra.h"

#include <stdio.h>
#include <string.h>

static const hd_method *const softmax_methods[] = {&hd_method_local, &hd_method_ulysses,   &hd_method_usp,
                                                   &hd_method_ring,  &hd_method_gather_kv, &hd_method_rsa};
static const hd_method *const linear_methods[] = {&hd_method_local, &hd_method_lasp, &hd_method_scan, &hd_method_lasp2};

/* A kind that mixes no dim, and a cross stage, has one way: local. */
const hd_method *hd_method_at(heddle_stage_kind kind, int index)
{
    int count = kind == HEDDLE_STAGE_ATTENTION ? (int)(sizeof softmax_methods / sizeof softmax_methods[0])
                : kind == HEDDLE_STAGE_LINEAR  ? (int)(sizeof linear_methods / sizeof linear_methods[0])
                                               : 1;
    return index < 0 || index >= count   ? NULL
           : kind == HEDDLE_STAGE_LINEAR ? linear_methods[index]
                                         : softmax_methods[index];
}

const hd_method *hd_method_find(heddle_stage_kind kind, const char *name)
{
    const hd_method *method = NULL;
    for (int i = 0; (method = hd_method_at(kind, i)) != NULL; i++) {
        if (strcmp(method->name, name) == 0) {
            return method;
        }
    }
    return NULL;
}

int64_t hd_add_saturated(int64_t a, int64_t b)
{
    int64_t sum = 0;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static int64_t saturated(__int128 value)
{
    return value > INT64_MAX ? INT64_MAX : (int64_t)value;
}

/* Axes of more than one rank that shard `dim`, the major one first; how many. */
static int axes_of(int *axes, const heddle_mesh *mesh, const heddle_layout *layout, int dim)
{
    int count = 0;
    for (int a = 0; a < mesh->naxes; a++) {
        if (layout->dim_of_axis[a] == dim && mesh->axis[a].size > 1) {
            axes[count++] = a;
        }
    }
    return count;
}

/* The length of `dim` on the ranks with coordinate `index` on its axes taken together, 0 on all others. */
/* Axes that shard nothing of `dim` stay at coordinate 0: they do not change its length. */
static int64_t length_at(const hd_method_group *g, const heddle_mesh *mesh, const heddle_layout *layout, int dim,
                         int index)
{
    int axes[HEDDLE_MAX_AXES];
    int coords[HEDDLE_MAX_AXES] = {0};
    heddle_box box;
    for (int i = axes_of(axes, mesh, layout, dim) - 1; i >= 0; i--) {
        coords[axes[i]] = index % mesh->axis[axes[i]].size;
        index /= mesh->axis[axes[i]].size;
    }
    hd_layout_box(&box, g->shape, mesh, layout, coords);
    return box.len[dim];
}

static int ranks_over(const heddle_mesh *mesh, const heddle_layout *layout, int dim)
{
    int axes[HEDDLE_MAX_AXES];
    int n = 1;
    for (int i = axes_of(axes, mesh, layout, dim) - 1; i >= 0; i--) {
        n *= mesh->axis[axes[i]].size;
    }
    return n;
}

/* A fibre for every combination of the other dims: sums, largest and non-empty blocks are products over the dims. */
static void count_fibres(hd_method_group *g, const heddle_mesh *mesh, const heddle_layout *layout)
{
    __int128 most = 1;
    __int128 busy = heddle_mesh_size(mesh) / g->n;
    g->fibres_total = 1;
    for (int d = 0; d < g->shape->ndim - 1; d++) {
        int64_t longest = 0;
        int full = 0;
        int n = ranks_over(mesh, layout, d);
        if (d == g->stage.dim) {
            continue;
        }
        for (int i = 0; i < n; i++) {
            int64_t length = length_at(g, mesh, layout, d, i);
            longest = length > longest ? length : longest;
            full += length > 0;
        }
        most *= longest;
        g->fibres_total *= g->shape->dim[d].extent;
        busy = busy / n * full;
    }
    g->fibres_max = saturated(most);
    g->busy_groups = (int64_t)busy;
    for (int a = 0; a < mesh->naxes; a++) {
        g->fibres_total *= layout->dim_of_axis[a] == HEDDLE_REPLICATED ? mesh->axis[a].size : 1;
    }
}

/* rows_before and full_before get n + 1 places: prefix sums, so that the rows of any run of members are one
 * difference. */
heddle_status hd_method_group_members(hd_method_group *out, int n, int inner)
{
    heddle_status st = HEDDLE_OK;
    out->n = n;
    out->inner = inner;
    HD_TRY(hd_alloc((void **)&out->rows_before, (size_t)n + 1, sizeof *out->rows_before, "rows of a group"));
    HD_TRY(hd_alloc((void **)&out->full_before, (size_t)n + 1, sizeof *out->full_before, "rows of a group"));
out:
    return st;
}

/* Comes with the rows of member m in rows_before[m + 1], leaves prefix sums there. A segment is `inner` members:
 * what one Ulysses group of a 2-D method holds. */
void hd_method_group_count(hd_method_group *group)
{
    for (int m = 0; m < group->n; m++) {
        int64_t rows = group->rows_before[m + 1];
        group->rows_most = rows > group->rows_most ? rows : group->rows_most;
        group->full_before[m + 1] = group->full_before[m] + (rows > 0);
        group->rows_before[m + 1] += group->rows_before[m];
    }
    for (int first = 0; first < group->n; first += group->inner) {
        int64_t rows = hd_group_rows(group, first, group->inner);
        group->segment_rows_most = rows > group->segment_rows_most ? rows : group->segment_rows_most;
        group->full_segments += rows > 0;
    }
    group->sequence = group->rows_before[group->n];
}

/* What rules out every method but local. */
static void judge(hd_method_group *g, const heddle_mesh *mesh, const heddle_layout *layout)
{
    const heddle_shape *shape = g->shape;
    int64_t channels = shape->dim[shape->ndim - 1].extent;
    size_t size = sizeof g->why_not;
    if (g->naxes == 0) {
        snprintf(g->why_not, size, "dim '%s' is whole on every rank", shape->dim[g->stage.dim].name);
    } else if (g->stage.heads < 1 || channels % g->stage.heads != 0) {
        snprintf(g->why_not, size, "%lld heads do not divide %lld channels", (long long)g->stage.heads,
                 (long long)channels);
    } else if (g->stage.kind == HEDDLE_STAGE_LINEAR && channels / g->stage.heads > HD_LINEAR_WIDTH_MAX) {
        snprintf(g->why_not, size, "heads of width %lld; linear attention takes up to %d",
                 (long long)(channels / g->stage.heads), HD_LINEAR_WIDTH_MAX);
    } else if (hd_method_takes_axes(g->why_not, shape->dim[g->stage.dim].name, mesh, g->axis, g->naxes) == HEDDLE_OK) {
        heddle_ignore(hd_method_takes_arrays(g->why_not, shape, mesh, layout, 2));
    }
}

/* A stage on a layout, as its methods see it. Where no method can run (why_not) only what local needs is filled in. */
heddle_status hd_method_group_make(hd_method_group *out, const heddle_shape *shape, const heddle_mesh *mesh,
                                   const heddle_layout *layout, const hd_method_stage *stage)
{
    heddle_status st = HEDDLE_OK;
    memset(out, 0, sizeof *out);
    out->shape = shape;
    out->stage = *stage;
    out->n = 1;
    if (stage->dim < 0) {
        return HEDDLE_OK;
    }
    out->naxes = hd_method_axes(out->axis, mesh, layout, stage->dim, 2);
    out->n = ranks_over(mesh, layout, stage->dim);
    judge(out, mesh, layout);
    if (out->why_not[0] != '\0') {
        return HEDDLE_OK;
    }
    out->heads = out->kv_heads = stage->heads;
    out->heads_a_kv_head = out->fibres = 1;
    out->width = shape->dim[shape->ndim - 1].extent / stage->heads;
    out->width_v = out->padded_width_v = out->width;
    out->elem_bytes = (int64_t)heddle_dtype_bytes(shape->dtype);
    out->real_bytes = shape->dtype == HEDDLE_F64 ? 8 : 4;
    HD_TRY(hd_method_group_members(out, out->n, out->naxes == 2 ? mesh->axis[out->axis[1]].size : 1));
    for (int m = 0; m < out->n; m++) {
        out->rows_before[m + 1] = length_at(out, mesh, layout, stage->dim, m);
    }
    hd_method_group_count(out);
    count_fibres(out, mesh, layout);
out:
    if (st != HEDDLE_OK) {
        hd_method_group_free(out);
    }
    return st;
}

void hd_method_group_free(hd_method_group *group)
{
    hd_free(group->rows_before);
    hd_free(group->full_before);
    memset(group, 0, sizeof *group);
}

/* NULL: it may run. First what rules out all methods, then what the method itself says. */
const char *hd_method_why_not(char *reason, const hd_method *method, const hd_method_group *group)
{
    if (method != &hd_method_local && group->why_not[0] != '\0') {
        return group->why_not;
    }
    return method->why_not != NULL ? method->why_not(reason, group) : NULL;
}

static void add(hd_edge_cost *cost, const hd_method_group *g, __int128 busiest, __int128 bytes, int64_t messages)
{
    /* A factor beyond 2^63 saturates; products of two that are not fit in 126 bits. */
    cost->bytes_per_rank_max = saturated((__int128)g->fibres_max * saturated(busiest));
    cost->bytes_total = saturated((__int128)saturated(g->fibres_total) * saturated(bytes));
    cost->messages = saturated((__int128)g->busy_groups * messages);
}

void hd_method_sends(hd_sends *out, const hd_method *method, const hd_method_group *group, int member)
{
    *out = (hd_sends){0, 0, 0, 0};
    if (group->fibres > 0 && method->states != NULL) {
        hd_sends_states(out, group, member, method);
    } else if (group->fibres > 0 && method->sends != NULL) {
        method->sends(out, group, member);
    }
}

static int64_t of_all_fibres(const hd_method_group *g, __int128 a_fibre)
{
    return saturated((__int128)g->fibres_max * saturated(a_fibre));
}

static __int128 larger(__int128 a, __int128 b)
{
    return a > b ? a : b;
}

/* What the busiest rank holds and does. */
static void price_work(hd_method_cost *out, const hd_method *method, const hd_method_group *group)
{
    int spread = hd_group_spread(method, group);
    hd_memory most = {0, 0};
    hd_flops longest = {0, 0};
    for (int m = 0; m < group->n; m++) {
        hd_memory memory;
        hd_flops flops;
        __int128 queries = hd_group_rows(group, m / spread * spread, spread);
        hd_method_memory(&memory, method, group, m);
        hd_method_flops(&flops, method, group, m, queries * group->sequence);
        most.saved_bytes = larger(most.saved_bytes, memory.saved_bytes);
        most.workspace_bytes = larger(most.workspace_bytes, memory.workspace_bytes);
        longest.forward = larger(longest.forward, flops.forward);
        longest.backward = larger(longest.backward, flops.backward);
    }
    out->saved_bytes = of_all_fibres(group, most.saved_bytes);
    out->workspace_bytes = of_all_fibres(group, most.workspace_bytes);
    out->forward_flops = of_all_fibres(group, longest.forward);
    out->backward_flops = of_all_fibres(group, longest.backward);
}

/* The busiest rank's bytes are those of the busiest member and the fullest fibres: the two are independent, since
 * members are cut along the mixed dim and fibres along all others. */
void hd_method_price(hd_method_cost *out, const hd_method *method, const hd_method_group *group)
{
    hd_sends most = {0, 0, 0, 0};
    hd_sends all = {0, 0, 0, 0};
    memset(out, 0, sizeof *out);
    if (method == &hd_method_local) {
        return;
    }
    for (int m = 0; m < group->n; m++) {
        hd_sends one;
        hd_method_sends(&one, method, group, m);
        most.forward_bytes = one.forward_bytes > most.forward_bytes ? one.forward_bytes : most.forward_bytes;
        most.backward_bytes = one.backward_bytes > most.backward_bytes ? one.backward_bytes : most.backward_bytes;
        all.forward_bytes += one.forward_bytes;
        all.backward_bytes += one.backward_bytes;
        all.forward_messages += one.forward_messages;
        all.backward_messages += one.backward_messages;
    }
    add(&out->forward, group, most.forward_bytes, all.forward_bytes, all.forward_messages);
    add(&out->backward, group, most.backward_bytes, all.backward_bytes, all.backward_messages);
    price_work(out, method, group);
}

int hd_group_spread(const hd_method *method, const hd_method_group *group)
{
    return method->heads_over != NULL ? method->heads_over(group) : 1;
}

/* Heads that do not divide leave some ranks idle: the work of the fullest rank against an even part. */
double hd_method_head_waste_percent(const hd_method *method, const hd_method_group *group)
{
    int64_t over = hd_group_spread(method, group);
    int64_t most = over > 0 ? (group->heads + over - 1) / over : group->heads;
    return group->heads > 0 ? ((double)(most * over) / (double)group->heads - 1.0) * 100.0 : 0.0;
}
