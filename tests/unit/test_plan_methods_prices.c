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
