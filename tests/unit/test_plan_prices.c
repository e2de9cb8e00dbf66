/* What the planner takes an edge to cost, against the list of everything that its ranks send. */
#include "case.h"
#include "draw_layout.h"

#include "runtime/schedule/schedule_internal.h"

#include <heddle/reshard.h>
#include <string.h>

static heddle_layout random_layout(const heddle_shape *shape, const heddle_mesh *mesh, int with_partial)
{
    heddle_layout layout = heddle_layout_replicated();
    for (int a = 0; a < mesh->naxes; a++) {
        int d = below(shape->ndim + 1 + with_partial) - 1 - with_partial;
        layout.dim_of_axis[a] = d;
    }
    draw_blocks(&layout, shape, mesh);
    return layout;
}

HD_CASE(prices_edges_exactly)
{
    for (int trial = 0; trial < 3000; trial++) {
        heddle_shape shape = {.dtype = HEDDLE_BF16, .ndim = 1 + below(3)};
        heddle_mesh mesh = {.naxes = 1 + below(3)};
        char from[256];
        char to[256];
        hd_edge_cost closed;
        hd_edge_cost listed;
        draw_extents(&shape, &mesh);
        int with_partial = below(3) == 0;
        heddle_layout a = random_layout(&shape, &mesh, with_partial);
        heddle_layout b = random_layout(&shape, &mesh, with_partial && below(2) == 0);
        HD_OK(heddle_layout_check(&a, &shape, &mesh));
        HD_OK(hd_edge_cost_of(&closed, &shape, &mesh, &a, &b));
        HD_OK(hd_edge_links_listed(&listed, NULL, NULL, &shape, &mesh, &a, &b));
        if (memcmp(&closed, &listed, sizeof closed) != 0) {
            HD_OK(heddle_layout_format(from, sizeof from, &a, &shape, &mesh));
            HD_OK(heddle_layout_format(to, sizeof to, &b, &shape, &mesh));
            fail_msg("trial %d, %s -> %s: %lld %lld %lld %lld, listed %lld %lld %lld %lld", trial, from, to,
                     (long long)closed.bytes_per_rank_max, (long long)closed.bytes_total, (long long)closed.messages,
                     (long long)closed.bytes_received_max, (long long)listed.bytes_per_rank_max,
                     (long long)listed.bytes_total, (long long)listed.messages, (long long)listed.bytes_received_max);
        }
    }
}

/* Sets of ranks in one another, of any sizes; two times in three such as the axes have. */
static hd_levels random_levels(const heddle_mesh *mesh)
{
    hd_levels levels = {1 + below(HD_LEVELS), {0}};
    int ranks = heddle_mesh_size(mesh), within = 1;
    int axis = mesh->naxes - 1;
    for (int l = 0; l + 1 < levels.count; l++) {
        int times = 1 + below(3);
        if (axis >= 0 && below(3) > 0) {
            times = mesh->axis[axis--].size;
        }
        within = within * times < ranks ? within * times : ranks;
        levels.within[l] = within;
    }
    levels.within[levels.count - 1] = ranks;
    return levels;
}

static void compare_links(int trial, const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *a,
                          const heddle_layout *b, const hd_levels *levels)
{
    hd_link_bytes closed[HD_LEVELS], listed[HD_LEVELS];
    hd_edge_cost cost, list;
    int64_t total = 0;
    HD_OK(hd_edge_links_of(&cost, closed, levels, shape, mesh, a, b));
    HD_OK(hd_edge_links_listed(&list, listed, levels, shape, mesh, a, b));
    assert_memory_equal(&cost, &list, sizeof cost);
    for (int l = 0; l < levels->count; l++) {
        total += closed[l].total;
        if (memcmp(&closed[l], &listed[l], sizeof closed[l]) != 0) {
            char from[HEDDLE_LINE_BYTES], to[HEDDLE_LINE_BYTES];
            HD_OK(heddle_layout_format(from, sizeof from, a, shape, mesh));
            HD_OK(heddle_layout_format(to, sizeof to, b, shape, mesh));
            fail_msg("trial %d, %s -> %s, level %d of %d ranks: %lld %lld %lld, listed %lld %lld %lld", trial, from, to,
                     l, levels->within[l], (long long)closed[l].sent_max, (long long)closed[l].received_max,
                     (long long)closed[l].total, (long long)listed[l].sent_max, (long long)listed[l].received_max,
                     (long long)listed[l].total);
        }
    }
    assert_int_equal(total, cost.bytes_total);
}

HD_CASE(prices_links_exactly)
{
    int nested = 0;
    for (int trial = 0; trial < 6000; trial++) {
        heddle_shape shape = {.dtype = HEDDLE_BF16, .ndim = 1 + below(3)};
        heddle_mesh mesh = {.naxes = 1 + below(3)};
        draw_extents(&shape, &mesh);
        for (int a = 0; a < mesh.naxes && trial % 4 == 0; a++) { /* long axes have few kinds of coordinates */
            mesh.axis[a].size = 1 + below(mesh.naxes == 1 ? 50 : mesh.naxes == 2 ? 9 : 4);
        }
        for (int d = 0; d < shape.ndim && trial % 4 == 0; d++) {
            shape.dim[d].extent = 1 + below(120);
        }
        int with_partial = below(3) == 0;
        heddle_layout a = random_layout(&shape, &mesh, with_partial);
        heddle_layout b = random_layout(&shape, &mesh, with_partial && below(2) == 0);
        const hd_levels levels = random_levels(&mesh);
        nested += hd_levels_nest(&levels, &mesh);
        compare_links(trial, &shape, &mesh, &a, &b, &levels);
    }
    assert_in_range(nested, 2000, 5900); /* both ways are taken often */
}

/* Many pairs of layouts by the same kept parts: as without them, and never below what a few ranks show. */
HD_CASE(kept_parts_change_no_price)
{
    int tight = 0;
    for (int trial = 0; trial < 400; trial++) {
        heddle_shape shape = {.dtype = HEDDLE_BF16, .ndim = 1 + below(3)};
        heddle_mesh mesh = {.naxes = 1 + below(3)};
        hd_edge_parts *parts = NULL;
        draw_extents(&shape, &mesh);
        const hd_levels levels = random_levels(&mesh);
        const int64_t last = shape.dim[shape.ndim - 1].extent;
        HD_OK(hd_edge_parts_new(&parts, &mesh, &levels));
        for (int pair = 0; pair < 40; pair++) {
            hd_link_bytes plain[HD_LEVELS], kept[HD_LEVELS], few[HD_LEVELS];
            hd_edge_cost cost, by_parts, of_few;
            int with_partial = below(3) == 0;
            shape.dim[shape.ndim - 1].extent = last + below(2); /* stages that change channels */
            heddle_layout a = random_layout(&shape, &mesh, with_partial);
            heddle_layout b = random_layout(&shape, &mesh, with_partial && below(2) == 0);
            HD_OK(hd_edge_links_of(&cost, plain, &levels, &shape, &mesh, &a, &b));
            HD_OK(hd_edge_links_by(&by_parts, kept, &levels, &shape, &mesh, &a, &b, parts, 0));
            HD_OK(hd_edge_links_by(&of_few, few, &levels, &shape, &mesh, &a, &b, parts, 1));
            assert_memory_equal(&cost, &by_parts, sizeof cost);
            assert_memory_equal(plain, kept, (size_t)levels.count * sizeof *plain);
            for (int l = 0; l < levels.count; l++) {
                assert_true(few[l].sent_max <= plain[l].sent_max && few[l].received_max <= plain[l].received_max);
            }
            assert_true(of_few.bytes_per_rank_max <= cost.bytes_per_rank_max);
            tight += of_few.bytes_per_rank_max == cost.bytes_per_rank_max;
        }
        hd_edge_parts_free(parts);
    }
    assert_in_range(tight, 400 * 40 / 2, 400 * 40); /* a bound that is far off rules nothing out */
}

/* node=2 a=2 gpu=4: of a switch between nodes half the bytes cross, with the batch on the nodes none do. */
HD_CASE(switches_inside_nodes_cross_none)
{
    heddle_shape shape;
    heddle_mesh mesh;
    hd_link_bytes link[2];
    hd_edge_cost cost;
    const hd_levels levels = {2, {8, 16}};
    static const char *const moves[][2] = {{"t@node,t@a,t@gpu", "s@node,s@a,s@gpu"},
                                           {"b@node,t@a,t@gpu", "b@node,s@a,s@gpu"}};
    HD_OK(heddle_shape_parse(&shape, "bf16[b=2 t=64 s=3600 c=1152]"));
    HD_OK(heddle_mesh_parse(&mesh, "[node=2 a=2 gpu=4]"));
    for (int i = 0; i < 2; i++) {
        heddle_layout from, to;
        HD_OK(heddle_layout_parse(&from, moves[i][0], &shape, &mesh));
        HD_OK(heddle_layout_parse(&to, moves[i][1], &shape, &mesh));
        HD_OK(hd_edge_links_of(&cost, link, &levels, &shape, &mesh, &from, &to));
        int64_t part = INT64_C(2) * 64 * 3600 * 1152 * 2 / 16;
        assert_int_equal(link[1].total, i == 0 ? part * 16 / 2 : 0);
        assert_int_equal(link[0].sent_max, i == 0 ? part / 16 * 7 : part / 8 * 7);
    }
}
