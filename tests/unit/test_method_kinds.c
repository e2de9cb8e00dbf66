/* Members by kinds against every member by itself: groups large enough for sets and segments to come again. */
#include "case.h"
#include "draw_layout.h"

#include "runtime/base/base.h"
#include "runtime/method/method.h"

#include <string.h>

/* What all members of a group do, each one with the sets of the levels that it is in. */
typedef struct every {
    hd_link_bytes forward[HD_LEVELS], backward[HD_LEVELS];
    hd_edge_cost cost;
    __int128 saved, workspace, flops;
} every;

static void raise_to(int64_t *most, __int128 value)
{
    *most = value > *most ? (int64_t)value : *most;
}

static void add_member(every *sum, const hd_method *method, const hd_method_group *g, const hd_levels *levels, int m)
{
    const int spread = hd_group_spread(method, g), rank = m * g->stride;
    hd_sends all, below = {0, 0, 0, 0, 0, 0};
    hd_memory memory;
    hd_flops flops;
    hd_method_sends(&all, method, g, m, hd_group_all(g));
    hd_method_memory(&memory, method, g, m);
    hd_method_flops(&flops, method, g, m, (__int128)hd_group_rows(g, m / spread * spread, spread) * g->sequence);
    raise_to(&sum->cost.bytes_per_rank_max, all.forward_bytes * g->fibres_max);
    sum->cost.bytes_total += (int64_t)(all.forward_bytes * g->fibres_total);
    sum->cost.messages += all.forward_messages * g->busy_groups;
    sum->saved = memory.saved_bytes > sum->saved ? memory.saved_bytes : sum->saved;
    sum->workspace = memory.workspace_bytes > sum->workspace ? memory.workspace_bytes : sum->workspace;
    sum->flops = flops.backward > sum->flops ? flops.backward : sum->flops;
    for (int level = 0; level < levels->count; level++) {
        hd_sends here;
        int first = m, end = m + 1;
        const int set = rank / levels->within[level];
        while (first > 0 && (first - 1) * g->stride / levels->within[level] == set) {
            first--;
        }
        while (end < g->n && end * g->stride / levels->within[level] == set) {
            end++;
        }
        hd_method_sends(&here, method, g, m, (hd_members){first, end - first});
        raise_to(&sum->forward[level].sent_max, (here.forward_bytes - below.forward_bytes) * g->fibres_max);
        raise_to(&sum->forward[level].received_max, (here.forward_received - below.forward_received) * g->fibres_max);
        sum->forward[level].total += (int64_t)((here.forward_bytes - below.forward_bytes) * g->fibres_total);
        raise_to(&sum->backward[level].sent_max, (here.backward_bytes - below.backward_bytes) * g->fibres_max);
        raise_to(&sum->backward[level].received_max,
                 (here.backward_received - below.backward_received) * g->fibres_max);
        sum->backward[level].total += (int64_t)((here.backward_bytes - below.backward_bytes) * g->fibres_total);
        below = here;
    }
}

static void compare(int trial, const hd_method *method, const hd_method_group *g, const heddle_mesh *mesh,
                    const heddle_layout *layout, const hd_levels *levels)
{
    every sum;
    hd_link_bytes forward[HD_LEVELS], backward[HD_LEVELS];
    hd_method_cost cost;
    memset(&sum, 0, sizeof sum);
    for (int m = 0; m < g->n; m++) {
        add_member(&sum, method, g, levels, m);
    }
    hd_method_price(&cost, method, g);
    hd_method_links(forward, backward, method, g, mesh, layout, levels);
    const size_t bytes = (size_t)levels->count * sizeof *forward;
    const int is_same = cost.forward.bytes_per_rank_max == sum.cost.bytes_per_rank_max &&
                        cost.forward.bytes_total == sum.cost.bytes_total &&
                        cost.forward.messages == sum.cost.messages &&
                        cost.saved_bytes == (int64_t)(sum.saved * g->fibres_max) &&
                        cost.workspace_bytes == (int64_t)(sum.workspace * g->fibres_max) &&
                        cost.backward_flops == (int64_t)(sum.flops * g->fibres_max);
    if (!is_same || memcmp(forward, sum.forward, bytes) != 0 || memcmp(backward, sum.backward, bytes) != 0) {
        char text[512], ranks[128];
        HD_OK(heddle_layout_format(text, sizeof text, layout, g->shape, mesh));
        HD_OK(heddle_mesh_format(ranks, sizeof ranks, mesh));
        fail_msg("trial %d, %s of %d members in %s on %s, sets of %d and %d: all send %lld, one by one %lld; by the "
                 "first links %lld, one by one %lld; busiest %lld, one by one %lld",
                 trial, method->name, g->n, text, ranks, levels->within[0], levels->within[1],
                 (long long)cost.forward.bytes_total, (long long)sum.cost.bytes_total, (long long)forward[0].total,
                 (long long)sum.forward[0].total, (long long)forward[0].sent_max, (long long)sum.forward[0].sent_max);
    }
}

/* One to three axes, of which one or two cut what the stage mixes; windows, key heads and text now and then. */
static int try_group(int trial)
{
    static const heddle_stage_kind kinds[] = {HEDDLE_STAGE_ATTENTION, HEDDLE_STAGE_MODULE, HEDDLE_STAGE_LINEAR};
    static const int sizes[] = {2, 3, 4, 6, 8, 12, 16, 24, 31, 64};
    heddle_shape shape = {.dtype = below(2) ? HEDDLE_BF16 : HEDDLE_F32, .ndim = 4};
    heddle_mesh mesh = {.naxes = 1 + below(3)};
    heddle_layout layout = heddle_layout_replicated();
    hd_method_group g;
    char reason[HD_METHOD_REASON_BYTES];
    const hd_method *method = NULL;
    int priced = 0;
    draw_extents(&shape, &mesh);
    hd_method_stage stage = {.kind = kinds[below(5) % 3], .dim = 1, .kv_heads = 1 + below(3), .methods = ~0U};
    stage.dims = below(2) ? 1U << 1 | 1U << 2 : 0;
    stage.heads = stage.kv_heads * (stage.kind != HEDDLE_STAGE_LINEAR ? 1 + below(9) : 1);
    stage.kv_heads = below(2) ? stage.kv_heads : 0;
    stage.joined_rows = below(4) == 0 ? below(40) : 0;
    stage.causal = below(2);
    shape.dim[1].extent = 1 + below(300);
    shape.dim[2].extent = 1 + below(40);
    shape.dim[3].extent = stage.heads;
    for (int d = 1; d < 3; d++) {
        stage.window[d] = below(2) ? 1 + below(6) : 0;
    }
    for (int a = 0; a < mesh.naxes; a++) {
        mesh.axis[a].size = sizes[below(mesh.naxes == 3 ? 5 : 10)];
        layout.dim_of_axis[a] = below(2) ? 1 : below(4) - 1;
    }
    draw_blocks(&layout, &shape, &mesh);
    const int ranks = heddle_mesh_size(&mesh);
    hd_levels levels = {3, {sizes[below(6)], 0, ranks}};
    levels.within[1] = levels.within[0] * (1 + below(4));
    if (levels.within[1] > ranks) {
        levels = (hd_levels){1, {ranks}};
    }
    HD_OK(heddle_layout_check(&layout, &shape, &mesh));
    HD_OK(hd_method_group_make(&g, &shape, &mesh, &layout, &stage));
    for (int i = 1; hd_levels_nest(&levels, &mesh) && (method = hd_method_of(&stage, i)) != NULL; i++) {
        if (hd_method_why_not(reason, method, &g) == NULL) {
            compare(trial, method, &g, &mesh, &layout, &levels);
            priced++;
        }
    }
    hd_method_group_free(&g);
    return priced;
}

HD_CASE(kinds_are_what_their_members_are)
{
    int priced = 0;
    for (int trial = 0; trial < 3000; trial++) {
        priced += try_group(trial);
    }
    assert_in_range(priced, 1000, INT32_MAX);
}
