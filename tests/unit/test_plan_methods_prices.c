/* Prices of methods against the public traffic functions, for random shapes, meshes and layouts. */
#include "case.h"
#include "draw_layout.h"
#include "method_judge.h"

#include "runtime/base/base.h"

static heddle_layout random_layout(const heddle_shape *shape, const heddle_mesh *mesh, int dim)
{
    heddle_layout layout = heddle_layout_replicated();
    for (int a = 0; a < mesh->naxes; a++) {
        layout.dim_of_axis[a] = below(2) == 0 ? dim : below(shape->ndim) - 1;
    }
    draw_blocks(&layout, shape, mesh);
    return layout;
}

static int try_price(int trial)
{
    static const heddle_dtype dtypes[] = {HEDDLE_BF16, HEDDLE_F32, HEDDLE_F64};
    heddle_shape shape = {.dtype = dtypes[below(3)], .ndim = 2 + below(3)};
    heddle_mesh mesh = {.naxes = 1 + below(3)};
    char reason[HD_METHOD_REASON_BYTES];
    hd_method_group group;
    const hd_method *method = NULL;
    int priced = 0;
    draw_extents(&shape, &mesh);
    hd_method_stage stage = {.kind = below(2) ? HEDDLE_STAGE_LINEAR : HEDDLE_STAGE_ATTENTION,
                             .dim = below(shape.ndim - 1),
                             .heads = 1 + below(6),
                             .causal = below(2),
                             .decays = below(2)};
    shape.dim[shape.ndim - 1].extent = stage.heads * (1 + below(3));
    heddle_layout layout = random_layout(&shape, &mesh, stage.dim);
    HD_OK(heddle_layout_check(&layout, &shape, &mesh));
    HD_OK(hd_method_group_make(&group, &shape, &mesh, &layout, &stage));
    for (int i = 0; (method = hd_method_at(stage.kind, i)) != NULL; i++) {
        hd_method_cost mine;
        hd_method_cost theirs;
        if (hd_method_why_not(reason, method, &group) != NULL) {
            continue;
        }
        hd_method_price(&mine, method, &group);
        if (method == &hd_method_local) {
            memset(&theirs, 0, sizeof theirs);
        } else {
            HD_OK(judge(&theirs, method->name, &stage, &shape, &mesh, &layout));
            priced++;
        }
        if (memcmp(&mine.forward, &theirs.forward, sizeof mine.forward) != 0 ||
            memcmp(&mine.backward, &theirs.backward, sizeof mine.backward) != 0) {
            char text[512];
            HD_OK(heddle_layout_format(text, sizeof text, &layout, &shape, &mesh));
            fail_msg(
                "trial %d, %s over dim %d in %s: forward %lld %lld %lld, the function says %lld %lld %lld; backward "
                "%lld %lld %lld, the function says %lld %lld %lld",
                trial, method->name, stage.dim, text, (long long)mine.forward.bytes_per_rank_max,
                (long long)mine.forward.bytes_total, (long long)mine.forward.messages,
                (long long)theirs.forward.bytes_per_rank_max, (long long)theirs.forward.bytes_total,
                (long long)theirs.forward.messages, (long long)mine.backward.bytes_per_rank_max,
                (long long)mine.backward.bytes_total, (long long)mine.backward.messages,
                (long long)theirs.backward.bytes_per_rank_max, (long long)theirs.backward.bytes_total,
                (long long)theirs.backward.messages);
        }
    }
    hd_method_group_free(&group);
    return priced;
}

HD_CASE(prices_as_the_runtime_plans)
{
    int priced = 0;
    for (int trial = 0; trial < 2000; trial++) {
        priced += try_price(trial);
    }
    assert_true(priced > 2000);
}

/* --- by level --------------------------------------------------------------------------------------------------- */

enum { RANKS = 64 };

typedef struct peer_list {
    int64_t sent[2][RANKS][HD_LEVELS], received[2][RANKS][HD_LEVELS];
} peer_list;

/* Every pair of members by itself, in every group. */
static void list_peers(peer_list *out, const hd_method *method, const hd_method_group *g, const heddle_mesh *mesh,
                       const heddle_layout *layout, const hd_levels *levels)
{
    memset(out, 0, sizeof *out);
    for (int rank = 0; rank < heddle_mesh_size(mesh); rank++) {
        int member = rank / g->stride % g->n, base = rank - member * g->stride;
        heddle_box box;
        int64_t fibres = 1;
        HD_OK(heddle_layout_box(&box, g->shape, mesh, layout, rank));
        for (int d = 0; d < g->shape->ndim - 1; d++) {
            unsigned mixed = g->stage.dims != 0 ? g->stage.dims : 1U << g->stage.dim;
            fibres *= (mixed >> d & 1) != 0 ? 1 : box.len[d];
        }
        hd_sends all, sum = {0, 0, 0, 0, 0, 0};
        hd_method_sends(&all, method, g, member, hd_group_all(g));
        for (int j = 0; j < g->n; j++) {
            int peer = base + j * g->stride, level = 0;
            hd_sends one;
            hd_method_sends(&one, method, g, member, (hd_members){j, 1});
            while (rank / levels->within[level] != peer / levels->within[level]) {
                level++;
            }
            int64_t bytes[2] = {(int64_t)one.forward_bytes * fibres, (int64_t)one.backward_bytes * fibres};
            for (int way = 0; way < 2; way++) {
                out->sent[way][rank][level] += bytes[way];
                out->received[way][peer][level] += bytes[way];
            }
            sum.forward_bytes += one.forward_bytes;
            sum.backward_bytes += one.backward_bytes;
            sum.forward_received += one.forward_received;
            sum.forward_messages += one.forward_messages;
            sum.backward_messages += one.backward_messages;
            assert_true(j != member || (one.forward_bytes == 0 && one.forward_messages == 0));
        }
        assert_true(sum.forward_bytes == all.forward_bytes && sum.backward_bytes == all.backward_bytes);
        assert_true(sum.forward_received == all.forward_received);
        assert_int_equal(sum.forward_messages, all.forward_messages);
        assert_int_equal(sum.backward_messages, all.backward_messages);
    }
}

static void compare_levels(int trial, const hd_method *method, const hd_method_group *g, const heddle_mesh *mesh,
                           const heddle_layout *layout, const hd_levels *levels)
{
    static peer_list list;
    hd_link_bytes mine[2][HD_LEVELS];
    hd_method_links(mine[0], mine[1], method, g, mesh, layout, levels);
    list_peers(&list, method, g, mesh, layout, levels);
    for (int i = 0; i < 2 * levels->count; i++) {
        hd_link_bytes wanted = {0, 0, 0};
        int way = i % 2, level = i / 2;
        for (int rank = 0; rank < heddle_mesh_size(mesh); rank++) {
            int64_t sent = list.sent[way][rank][level], received = list.received[way][rank][level];
            wanted.sent_max = sent > wanted.sent_max ? sent : wanted.sent_max;
            wanted.received_max = received > wanted.received_max ? received : wanted.received_max;
            wanted.total += sent;
        }
        if (memcmp(&wanted, &mine[way][level], sizeof wanted) != 0) {
            fail_msg("trial %d, %s of %d members, %s, level of %d ranks: %lld %lld %lld, listed %lld %lld %lld", trial,
                     method->name, g->n, way == 0 ? "forward" : "backward", levels->within[level],
                     (long long)mine[way][level].sent_max, (long long)mine[way][level].received_max,
                     (long long)mine[way][level].total, (long long)wanted.sent_max, (long long)wanted.received_max,
                     (long long)wanted.total);
        }
    }
}

/* Key heads, text that joins, several mixed dims, levels that nest and such that do not. */
static int try_levels(int trial)
{
    heddle_shape shape = {.dtype = below(2) ? HEDDLE_BF16 : HEDDLE_F32, .ndim = 3 + below(2)};
    heddle_mesh mesh = {.naxes = 1 + below(3)};
    hd_method_group group;
    char reason[HD_METHOD_REASON_BYTES];
    int priced = 0;
    draw_extents(&shape, &mesh);
    if (mesh.naxes == 1) {
        mesh.axis[0].size = 1 + below(20);
    }
    hd_method_stage stage = {.kind = below(2) ? HEDDLE_STAGE_LINEAR : HEDDLE_STAGE_ATTENTION,
                             .dim = below(shape.ndim - 1),
                             .kv_heads = 1 + below(3),
                             .causal = below(2),
                             .decays = below(2)};
    stage.heads = stage.kind == HEDDLE_STAGE_LINEAR ? stage.kv_heads : stage.kv_heads * (1 + below(4));
    stage.dims = below(3) == 0 ? 1U << stage.dim | 1U << below(shape.ndim - 1) : 0;
    stage.joined_rows = below(2) ? below(9) : 0;
    shape.dim[shape.ndim - 1].extent = stage.heads * (1 + below(3));
    heddle_layout layout = random_layout(&shape, &mesh, stage.dim);
    const int ranks = heddle_mesh_size(&mesh);
    hd_levels levels = {3, {1 + below(4), 0, ranks}};
    levels.within[0] = levels.within[0] < ranks ? levels.within[0] : ranks;
    levels.within[1] = levels.within[0] * (1 + below(4));
    levels.within[1] = levels.within[1] < ranks ? levels.within[1] : ranks;
    HD_OK(heddle_layout_check(&layout, &shape, &mesh));
    HD_OK(hd_method_group_make(&group, &shape, &mesh, &layout, &stage));
    const hd_method *method = NULL;
    for (int i = 1; (method = hd_method_at(stage.kind, i)) != NULL; i++) {
        if (hd_method_why_not(reason, method, &group) == NULL) {
            compare_levels(trial, method, &group, &mesh, &layout, &levels);
            priced++;
        }
    }
    hd_method_group_free(&group);
    return priced;
}

HD_CASE(moves_by_level_what_its_pairs_do)
{
    int priced = 0;
    for (int trial = 0; trial < 3000; trial++) {
        priced += try_levels(trial);
    }
    assert_in_range(priced, 2000, INT32_MAX);
}

/* A ring has one neighbour, a chain its next rank, heads stay within the inner axis. */
HD_CASE(sends_to_whom_it_should)
{
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    hd_method_group g;
    hd_method_stage stage = {.kind = HEDDLE_STAGE_ATTENTION, .dim = 1, .heads = 4};
    hd_sends s;
    HD_OK(heddle_shape_parse(&shape, "bf16[b=1 s=48 c=16]"));
    HD_OK(heddle_mesh_parse(&mesh, "[r=3 u=4]"));
    HD_OK(heddle_layout_parse(&layout, "s@r,s@u", &shape, &mesh));
    HD_OK(hd_method_group_make(&g, &shape, &mesh, &layout, &stage));
    for (int m = 0; m < 12; m++) {
        for (int j = 0; j < 12; j++) {
            hd_method_sends(&s, &hd_method_ring, &g, m, (hd_members){j, 1});
            assert_int_equal(s.forward_bytes > 0, j == (m + 1) % 12);
            hd_method_sends(&s, &hd_method_usp, &g, m, (hd_members){j, 1});
            assert_int_equal(s.forward_bytes > 0, j == (m + 4) % 12 || (j != m && j / 4 == m / 4));
            g.stage.causal = 1;
            hd_method_sends(&s, &hd_method_lasp, &g, m, (hd_members){j, 1});
            assert_int_equal(s.forward_bytes > 0, j == m + 1);
            assert_int_equal(s.backward_bytes > 0, j == m - 1);
            hd_method_sends(&s, &hd_method_scan, &g, m, (hd_members){j, 1});
            assert_int_equal(s.forward_bytes > 0, j - m == 1 || j - m == 2 || j - m == 4 || j - m == 8);
        }
    }
    hd_method_group_free(&g);
}
