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
