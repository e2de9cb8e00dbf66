/* Modules of which rows of neighbours or sums are all that they want of other ranks: what `halo` and `sums` send. */
#include "case.h"
#include "draw_layout.h"

#include "runtime/base/base.h"
#include "runtime/method/method.h"

#include <string.h>

static void make(hd_method_group *g, heddle_shape *shape, heddle_mesh *mesh, heddle_layout *layout,
                 const char *const *text, const hd_method_stage *stage)
{
    HD_OK(heddle_shape_parse(shape, text[0]));
    HD_OK(heddle_mesh_parse(mesh, text[1]));
    HD_OK(heddle_layout_parse(layout, text[2], shape, mesh));
    HD_OK(hd_method_group_make(g, shape, mesh, layout, stage));
}

static int try_halo(int trial)
{
    char reason[HD_METHOD_REASON_BYTES];
    heddle_shape shape = {.dtype = HEDDLE_F32, .ndim = 3 + below(2)};
    heddle_mesh mesh = {.naxes = 1 + below(2)};
    hd_method_group g;
    draw_extents(&shape, &mesh);
    hd_method_stage stage = {.kind = HEDDLE_STAGE_MODULE, .dim = below(shape.ndim - 1), .heads = 1};
    stage.dims = 1U << stage.dim;
    for (int d = 0; d < shape.ndim - 1; d++) {
        stage.dims |= below(3) == 0 ? 1U << d : 0;
        stage.dim = (stage.dims >> d & 1) != 0 && d < stage.dim ? d : stage.dim;
        stage.window[d] = below(4);
    }
    heddle_layout layout = heddle_layout_replicated();
    unsigned missing = 0;
    for (int a = 0; a < mesh.naxes; a++) {
        const int dim = layout.dim_of_axis[a] = below(shape.ndim - 1);
        missing |= (stage.dims >> dim & 1) != 0 && mesh.axis[a].size > 1 && stage.window[dim] == 0;
    }
    draw_blocks(&layout, &shape, &mesh);
    HD_OK(heddle_layout_check(&layout, &shape, &mesh));
    HD_OK(hd_method_group_make(&g, &shape, &mesh, &layout, &stage));
    const int runs = hd_method_why_not(reason, &hd_method_gather_kv, &g) == NULL;
    const char *why = hd_method_why_not(reason, &hd_method_halo, &g);
    if (runs && missing) {
        assert_non_null(why);
        assert_non_null(strstr(why, "halo wants the 'window'"));
    }
    if (runs && !missing) { /* the same rows: keys and values are two arrays of them */
        hd_method_cost halo, both;
        assert_null(why);
        hd_method_price(&halo, &hd_method_halo, &g);
        hd_method_price(&both, &hd_method_gather_kv, &g);
        if (2 * halo.forward.bytes_total != both.forward.bytes_total ||
            2 * halo.forward.bytes_per_rank_max != both.forward.bytes_per_rank_max ||
            2 * halo.backward.bytes_total != both.backward.bytes_total ||
            halo.forward.messages != both.forward.messages || halo.forward_flops != 0) {
            fail_msg("trial %d: %lld bytes, keys and values are %lld", trial, (long long)halo.forward.bytes_total,
                     (long long)both.forward.bytes_total);
        }
    }
    hd_method_group_free(&g);
    return runs && !missing;
}

HD_CASE(a_halo_is_half_of_keys_and_values)
{
    int priced = 0;
    for (int trial = 0; trial < 2000; trial++) {
        priced += try_halo(trial);
    }
    assert_in_range(priced, 300, INT32_MAX);
}

/* 12 rows of 8 channels in blocks of 5 4 3, and 2 samples: each side of a border 2 rows, of bf16. */
HD_CASE(counted_by_hand)
{
    static const char *const text[] = {"bf16[b=2 s=12 c=8]", "[sp=3]", "s@sp(5 4 3)"};
    hd_method_stage stage = {.kind = HEDDLE_STAGE_MODULE, .dim = 1, .heads = 4};
    char reason[HD_METHOD_REASON_BYTES];
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    hd_method_group g;
    hd_method_cost cost;
    stage.window[1] = 2;
    make(&g, &shape, &mesh, &layout, text, &stage);
    hd_method_price(&cost, &hd_method_halo, &g);
    assert_int_equal(cost.forward.bytes_total, 2 * 4 * 2 * 8 * 2);
    assert_int_equal(cost.forward.bytes_per_rank_max, 2 * 2 * 2 * 8 * 2);
    assert_int_equal(cost.forward.messages, 4);
    assert_int_equal(cost.backward.bytes_total, cost.forward.bytes_total);
    assert_int_equal(cost.saved_bytes, 2 * 4 * 8 * 2); /* of the one in the middle, of both samples */
    hd_method_price(&cost, &hd_method_sums, &g);       /* a mean and squares of 4 groups, f32, to 2 others */
    assert_int_equal(cost.forward.bytes_per_rank_max, 2 * 4 * 4 * 2 * 2);
    assert_int_equal(cost.forward.bytes_total, 3 * 2 * 4 * 4 * 2 * 2);
    assert_int_equal(cost.forward.messages, 6);
    hd_method_group_free(&g);
    stage.window[1] = 0;
    make(&g, &shape, &mesh, &layout, text, &stage);
    assert_non_null(strstr(hd_method_why_not(reason, &hd_method_halo, &g), "rows that the module reaches"));
    assert_null(hd_method_why_not(reason, &hd_method_sums, &g));
    hd_method_group_free(&g);
    stage.joined_rows = 3;
    stage.window[1] = 2;
    make(&g, &shape, &mesh, &layout, text, &stage);
    assert_non_null(strstr(hd_method_why_not(reason, &hd_method_halo, &g), "text joins them"));
    hd_method_group_free(&g);
}
