/* Blocks against a naive fp64 model of the same formulas, odd values and wrong arguments. */
#include "block_model.h"

#include "runtime/base/base.h"

/* Largest error against the model, relative to the largest value. f32: sums of up to a few thousand terms of size 1;
 * bf16: three roundings to 8 bits on the way (normed, qkv or hidden, mixed) and one at the end. */
static double tolerance(heddle_dtype dtype)
{
    return dtype == HEDDLE_BF16 ? 2e-2 : 2e-6;
}

static void check_against_model(problem *p)
{
    heddle_dtype dtype = p->options.shape.dtype;
    model_values v;
    model m = model_of(p, &v);
    double *wanted = must_alloc(p->elems, sizeof *wanted);
    void *x = stored(p->x, p->elems, dtype);
    heddle_box box = whole_box(&p->options.shape);
    model_run(&m, &v, wanted, NULL, NULL);
    HD_OK(forward_on(p->block, x, &box, &p->conditioning));
    double largest = 1;
    double worst = 0;
    for (int64_t i = 0; i < p->elems; i++) {
        double error = fabs(value_at(x, dtype, i) - wanted[i]);
        assert_true(isfinite(error));
        worst = error > worst ? error : worst;
        largest = fabs(wanted[i]) > largest ? fabs(wanted[i]) : largest;
    }
    if (worst > tolerance(dtype) * largest) {
        fail_msg("error %g of values up to %g: %s kind %d", worst, largest, heddle_dtype_name(dtype),
                 (int)p->options.kind);
    }
    free(wanted);
    free(x);
    model_free(&m, &v);
}

static void check_options_against_model(const heddle_block_options *options)
{
    problem p;
    open_problem(&p, options);
    check_against_model(&p);
    close_problem(&p);
}

HD_CASE(attention_follows_the_model)
{
    for (int bits = 0; bits < 16; bits++) {
        heddle_block_options options = options_by_bits(HEDDLE_STAGE_ATTENTION, bits);
        for (options.mixed_dim = 1; options.mixed_dim <= 2; options.mixed_dim++) {
            check_options_against_model(&options);
        }
    }
}

HD_CASE(cross_follows_the_model)
{
    for (int bits = 0; bits < 4; bits++) {
        heddle_block_options options = options_by_bits(HEDDLE_STAGE_CROSS, bits);
        check_options_against_model(&options);
    }
}

HD_CASE(mlp_follows_the_model)
{
    for (int bits = 0; bits < 4; bits++) {
        heddle_block_options options = options_by_bits(HEDDLE_STAGE_MLP, bits);
        check_options_against_model(&options);
    }
}

HD_CASE(attention_takes_every_short_length)
{
    for (int64_t t = 1; t <= 70; t++) {
        const int64_t extent[] = {1, t, 2, 36};
        heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, dtypes[t & 1], 4, extent);
        options.rope = 1;
        check_options_against_model(&options);
    }
}

HD_CASE(attention_takes_every_head_width)
{
    static const int64_t width[] = {1, 2, 3, 16, 24, 32, 40, 64, 72, 80, 96, 100, 128, 130};
    static const int64_t length[] = {6, 65, 200};
    for (size_t w = 0; w < sizeof width / sizeof width[0]; w++) {
        for (size_t l = 0; l < sizeof length / sizeof length[0]; l++) {
            if (l > 0 && !hd_goes("width %d, length %d", (int)width[w], (int)length[l])) {
                continue;
            }
            const int64_t extent[] = {1, length[l], 2 * width[w]};
            heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, dtypes[(w + l) & 1], 3, extent);
            options.qk_norm = width[w] > 8; /* narrower heads amplify rounding without bound */
            check_options_against_model(&options);
        }
    }
}

/* --- odd values, odd arguments, odd callers ----------------------------------------------------------------------- */

HD_CASE(nan_stays_in_its_fibre)
{
    static const int64_t extent[] = {1, 6, 5, 32};
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < 2; i++) {
            problem p;
            heddle_block_options options = options_for((heddle_stage_kind)kind, dtypes[i], 4, extent);
            open_problem(&p, &options);
            int64_t bad = 2 * 5 + 3; /* t = 2, s = 3 */
            p.x[bad * 32 + 1] = NAN;
            void *x = stored(p.x, p.elems, dtypes[i]);
            heddle_box box = whole_box(&options.shape);
            HD_OK(forward_on(p.block, x, &box, &p.conditioning));
            for (int64_t e = 0; e < p.elems; e++) {
                int64_t row = e / 32;
                int reached = kind == HEDDLE_STAGE_ATTENTION ? row % 5 == 3 : row == bad;
                assert_int_equal(!!isnan(value_at(x, dtypes[i], e)), reached);
            }
            free(x);
            close_problem(&p);
        }
    }
}

HD_CASE(huge_scores_stay_finite)
{
    static const int64_t extent[] = {1, 40, 32};
    problem p;
    heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, HEDDLE_F32, 3, extent);
    open_problem(&p, &options);
    heddle_param param = HEDDLE_EMPTY(heddle_param);
    HD_OK(heddle_block_param(&param, p.block, 0));
    for (int64_t i = 0; i < param.extent[0] * param.extent[1]; i++) {
        param.data[i] *= 300;
    }
    HD_OK(heddle_block_commit(p.block));
    heddle_box box = whole_box(&options.shape);
    HD_OK(forward_on(p.block, p.x, &box, &p.conditioning));
    for (int64_t i = 0; i < p.elems; i++) {
        assert_true(isfinite(p.x[i]));
    }
    close_problem(&p);
}

static void expect_sentence(const char *part)
{
    if (strstr(heddle_last_error(), part) == NULL) {
        fail_msg("\"%s\" does not contain \"%s\"", heddle_last_error(), part);
    }
}

HD_CASE(wrong_options_are_refused)
{
    static const int64_t extent[] = {1, 6, 5, 30};
    heddle_block *block = NULL;
    const heddle_block_options good = options_for(HEDDLE_STAGE_ATTENTION, HEDDLE_F32, 4, extent);
    heddle_block_options bad = good;
    bad.heads = 7;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &bad));
    expect_sentence("30 channels cannot be divided into 7 heads");
    bad = good;
    bad.rope = 1;
    bad.heads = 2;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &bad));
    expect_sentence("15");
    for (bad = good, bad.mixed_dim = -1; bad.mixed_dim < 5; bad.mixed_dim += bad.mixed_dim == 0 ? 3 : 1) {
        HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &bad));
        expect_sentence("mixed_dim");
    }
    bad = good;
    bad.shape.dtype = HEDDLE_F16;
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_block_create(&block, &bad));
    expect_sentence("f16");
    bad = good;
    bad.struct_bytes = 3;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &bad));
    bad = good;
    bad.threads = -1;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &bad));
    bad = good;
    bad.kind = HEDDLE_STAGE_CROSS;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &bad));
    expect_sentence("text_tokens");
    bad = good;
    bad.kind = HEDDLE_STAGE_MLP;
    bad.mlp_channels = 0;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &bad));
    expect_sentence("mlp_channels");
    bad = good;
    bad.kind = (heddle_stage_kind)9;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, &bad));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_create(&block, NULL));
    assert_null(block);
    float one = 0;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_dense_forward(&one, &one, 1, 0, &one, NULL, 1, 1, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_dense_forward(&one, &one, -1, 1, &one, NULL, 1, 1, HEDDLE_NO_STREAM));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_dense_forward(&one, NULL, 1, 1, &one, NULL, 1, 1, HEDDLE_NO_STREAM));
    HD_OK(heddle_dense_forward(NULL, NULL, 0, 1, NULL, NULL, 1, 1, HEDDLE_NO_STREAM));
}

/* Returns the box of all of it. */
static heddle_box open_small(problem *p, heddle_stage_kind kind)
{
    heddle_block_options options = small_options(kind, HEDDLE_F32);
    open_problem(p, &options);
    return whole_box(&options.shape);
}

HD_CASE(wrong_calls_are_refused)
{
    problem p;
    heddle_box box = open_small(&p, HEDDLE_STAGE_ATTENTION);
    box.len[1] = 3;
    HD_FAILS(HEDDLE_ERR_LAYOUT, forward_on(p.block, p.x, &box, &p.conditioning));
    expect_sentence("0..3 of 6");
    box = whole_box(&p.options.shape);
    box.len[3] = 16;
    HD_FAILS(HEDDLE_ERR_LAYOUT, forward_on(p.block, p.x, &box, &p.conditioning));
    box = whole_box(&p.options.shape);
    box.lo[2] = 1;
    HD_FAILS(HEDDLE_ERR_LAYOUT, forward_on(p.block, p.x, &box, &p.conditioning));
    box = whole_box(&p.options.shape);
    HD_FAILS(HEDDLE_ERR_ARG, forward_on(p.block, p.x, &box, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, forward_on(p.block, NULL, &box, &p.conditioning));
    box.len[2] = 0;
    HD_OK(forward_on(p.block, NULL, &box, &p.conditioning));
    heddle_block *fresh = NULL;
    heddle_param param = HEDDLE_EMPTY(heddle_param);
    HD_OK(heddle_block_create(&fresh, &p.options));
    HD_FAILS(HEDDLE_ERR_ARG, forward_on(fresh, p.x, &box, &p.conditioning));
    expect_sentence("heddle_block_commit");
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_param(&param, fresh, heddle_block_nparams(fresh)));
    heddle_block_destroy(fresh);
    heddle_block_destroy(NULL);
    close_problem(&p);
}

HD_CASE(wrong_tensors_are_refused)
{
    problem p;
    heddle_box box = open_small(&p, HEDDLE_STAGE_ATTENTION);
    const heddle_tensor right = box_tensor(p.block, p.x, &box);
    heddle_tensor x = right;
    x.space = HEDDLE_SPACE_DEVICE;
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_block_forward(p.block, &x, &box, &p.conditioning, HEDDLE_NO_STREAM));
    expect_sentence("x is in the memory of device 0");
    x = right;
    x.capacity_bytes--;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_forward(p.block, &x, &box, &p.conditioning, HEDDLE_NO_STREAM));
    expect_sentence("room for 7679 bytes, the box has 7680");
    x = right;
    x.stride_elems[1]++;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_block_forward(p.block, &x, &box, &p.conditioning, HEDDLE_NO_STREAM));
    expect_sentence("lie 161 apart, dense is 160");
    x = right;
    x.shape.dtype = HEDDLE_BF16;
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_block_forward(p.block, &x, &box, &p.conditioning, HEDDLE_NO_STREAM));
    expect_sentence("the block works on f32");
    x = right;
    x.data = NULL;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_forward(p.block, &x, &box, &p.conditioning, HEDDLE_NO_STREAM));
    HD_OK(heddle_block_forward(p.block, &right, &box, &p.conditioning, HEDDLE_NO_STREAM));
    close_problem(&p);
}

HD_CASE(wrong_text_lengths_are_refused)
{
    problem p;
    heddle_box box = open_small(&p, HEDDLE_STAGE_CROSS);
    const int64_t lengths[] = {3, 12};
    p.conditioning.text_lengths = (free((void *)(uintptr_t)p.conditioning.text_lengths), NULL);
    heddle_conditioning bad = p.conditioning;
    bad.text_lengths = lengths;
    HD_FAILS(HEDDLE_ERR_ARG, forward_on(p.block, p.x, &box, &bad));
    expect_sentence("text length 12 of sample 1");
    HD_OK(forward_on(p.block, p.x, &box, &p.conditioning)); /* NULL: all tokens */
    close_problem(&p);
}

HD_CASE(steady_state_keeps_the_workspace)
{
    static const int64_t extent[] = {1, 40, 30, 32};
    for (int kind = 0; kind < 3; kind++) {
        problem p;
        heddle_block_options options = options_for((heddle_stage_kind)kind, HEDDLE_BF16, 4, extent);
        open_problem(&p, &options);
        void *x = stored(p.x, p.elems, HEDDLE_BF16);
        heddle_box box = whole_box(&options.shape);
        HD_OK(forward_on(p.block, x, &box, &p.conditioning));
        int64_t bytes = heddle_block_workspace_bytes(p.block);
        assert_true(bytes > 0);
        box.len[2] = 7;
        HD_OK(forward_on(p.block, x, &box, &p.conditioning));
        assert_int_equal(heddle_block_workspace_bytes(p.block), bytes);
        free(x);
        close_problem(&p);
    }
}

/* Every allocation in turn fails: an error, no crash, and the block still works (or was never made). */
HD_CASE(lost_allocations_are_reported)
{
    static const int64_t extent[] = {1, 4, 5, 32};
    for (int kind = 0; kind < 3; kind++) {
        int failed = 1;
        for (long n = 1; failed; n++) {
            heddle_block_options options = options_for((heddle_stage_kind)kind, HEDDLE_BF16, 4, extent);
            options.threads = 2;
            options.rope = 1;
            heddle_block *block = NULL;
            uint16_t x[4 * 5 * 32] = {0};
            float ones[11 * 32 + 6 * 32] = {1};
            heddle_conditioning conditioning = {ones, ones, NULL};
            heddle_box box = whole_box(&options.shape);
            hd_alloc_fail_at(n);
            heddle_status st = heddle_block_create(&block, &options);
            st = st == HEDDLE_OK ? heddle_block_seed(block, 1) : st;
            st = st == HEDDLE_OK ? forward_on(block, x, &box, &conditioning) : st;
            hd_alloc_fail_at(0);
            failed = st != HEDDLE_OK;
            if (failed) {
                assert_int_equal(st, HEDDLE_ERR_NOMEM);
            }
            if (block != NULL) {
                HD_OK(heddle_block_commit(block));
                HD_OK(forward_on(block, x, &box, &conditioning));
            }
            heddle_block_destroy(block);
        }
    }
}
