/* Backward of blocks: odd values, wrong calls, memory. */
#include "block_model.h"

#include "runtime/base/base.h"

typedef struct training {
    problem p;
    heddle_tape *tape;
    heddle_box box;
    void *x, *dx;
    heddle_conditioning_gradient wanted;
} training;

static void open_training(training *t, const heddle_block_options *options, int recompute)
{
    heddle_tape_options tape_options;
    open_problem(&t->p, options);
    heddle_tape_options_init(&tape_options);
    tape_options.recompute = recompute;
    HD_OK(heddle_tape_create(&t->tape, t->p.block, &tape_options));
    t->box = whole_box(&options->shape);
    t->x = stored(t->p.x, t->p.elems, options->shape.dtype);
    t->dx = stored(t->p.x, t->p.elems, options->shape.dtype);
    t->wanted.vector = must_alloc(options->shape.dim[0].extent * VECTOR_ROWS * t->p.c, sizeof(float));
    t->wanted.text = must_alloc(options->shape.dim[0].extent * options->text_tokens * t->p.c, sizeof(float));
}

static void close_training(training *t)
{
    heddle_tape_destroy(t->tape);
    free(t->x);
    free(t->dx);
    free(t->wanted.vector);
    free(t->wanted.text);
    close_problem(&t->p);
}

static heddle_status forward(training *t)
{
    return forward_tape_on(t->p.block, t->x, &t->box, &t->p.conditioning, t->tape);
}

static heddle_status backward(training *t)
{
    return backward_on(t->p.block, t->dx, &t->p.conditioning, &t->wanted, t->tape);
}

static void expect_sentence(const char *part)
{
    if (strstr(heddle_last_error(), part) == NULL) {
        fail_msg("\"%s\" does not contain \"%s\"", heddle_last_error(), part);
    }
}

/* --- odd values --------------------------------------------------------------------------------------------------- */

HD_CASE(nan_stays_in_its_fibre)
{
    static const int64_t extent[] = {1, 6, 5, 32};
    for (int kind = 0; kind < 3; kind++) {
        for (int i = 0; i < 4; i++) {
            training t;
            heddle_dtype dtype = dtypes[i & 1];
            heddle_block_options options = options_for((heddle_stage_kind)kind, dtype, 4, extent);
            options.qk_norm = i & 1;
            open_training(&t, &options, 0);
            int64_t bad = 2 * 5 + 3; /* t = 2, s = 3 */
            float nan = NAN;
            void *broken = stored(&nan, 1, dtype);
            size_t elem = heddle_dtype_bytes(dtype);
            memcpy((char *)(i < 2 ? t.x : t.dx) + (size_t)(bad * 32 + 1) * elem, broken, elem);
            HD_OK(forward(&t));
            HD_OK(backward(&t));
            for (int64_t e = 0; e < t.p.elems; e++) {
                int64_t row = e / 32;
                int reached = kind == HEDDLE_STAGE_ATTENTION ? row % 5 == 3 : row == bad;
                assert_int_equal(!!isnan(value_at(t.dx, dtype, e)), reached);
            }
            free(broken);
            close_training(&t);
        }
    }
}

HD_CASE(no_text_changes_nothing)
{
    for (int i = 0; i < 2; i++) {
        training t;
        heddle_block_options options = small_options(HEDDLE_STAGE_CROSS, dtypes[i]);
        open_training(&t, &options, i);
        const int64_t none[] = {0, 0};
        heddle_conditioning conditioning = t.p.conditioning;
        conditioning.text_lengths = none;
        size_t bytes = (size_t)t.p.elems * heddle_dtype_bytes(dtypes[i]);
        void *before = must_alloc(1, bytes);
        memcpy(before, t.dx, bytes);
        HD_OK(forward_tape_on(t.p.block, t.x, &t.box, &conditioning, t.tape));
        HD_OK(backward_on(t.p.block, t.dx, &conditioning, &t.wanted, t.tape));
        assert_memory_equal(before, t.x, bytes);
        assert_memory_equal(before, t.dx, bytes);
        for (int p = 0; p < heddle_block_nparams(t.p.block); p++) {
            heddle_param gradient = HEDDLE_EMPTY(heddle_param);
            HD_OK(heddle_block_gradient(&gradient, t.p.block, p));
            for (int64_t j = 0; j < gradient.extent[0]; j++) {
                assert_true(gradient.data[j] == 0);
            }
        }
        conditioning.text_lengths = NULL; /* all tokens */
        HD_OK(forward_tape_on(t.p.block, t.x, &t.box, &conditioning, t.tape));
        HD_OK(backward_on(t.p.block, t.dx, &conditioning, &t.wanted, t.tape));
        free(before);
        close_training(&t);
    }
}

/* <dy, J v> by finite differences of the block itself, against <J^T dy, v>. */
HD_CASE(backward_is_the_adjoint_of_forward)
{
    const float step = 1e-2f;
    for (int kind = 0; kind < 3; kind++) {
        training t;
        heddle_block_options options = small_options((heddle_stage_kind)kind, HEDDLE_F32);
        options.rope = 1;
        open_training(&t, &options, 0);
        float *direction = must_alloc(t.p.elems, sizeof *direction), *dy = must_alloc(t.p.elems, sizeof *dy);
        double wanted = 0, measured = 0;
        for (int64_t i = 0; i < t.p.elems; i++) {
            direction[i] = symmetric();
            dy[i] = symmetric();
            ((float *)t.dx)[i] = dy[i];
        }
        HD_OK(forward(&t));
        HD_OK(backward(&t));
        for (int sign = 1; sign >= -1; sign -= 2) {
            for (int64_t i = 0; i < t.p.elems; i++) {
                ((float *)t.x)[i] = t.p.x[i] + (float)sign * step * direction[i];
            }
            HD_OK(forward_on(t.p.block, t.x, &t.box, &t.p.conditioning));
            for (int64_t i = 0; i < t.p.elems; i++) {
                measured += sign * (double)dy[i] * (double)((float *)t.x)[i] / (2 * (double)step);
            }
        }
        for (int64_t i = 0; i < t.p.elems; i++) {
            wanted += (double)direction[i] * (double)((float *)t.dx)[i];
        }
        if (fabs(measured - wanted) > 2e-3 * (1 + fabs(wanted))) {
            fail_msg("kind %d: %g by differences, %g by backward", kind, measured, wanted);
        }
        free(direction);
        free(dy);
        close_training(&t);
    }
}

/* --- calls -------------------------------------------------------------------------------------------------------- */

static void wrong_tapes_are_refused(heddle_block *block)
{
    heddle_tape *other = NULL;
    heddle_tape_options bad = {0};
    HD_FAILS(HEDDLE_ERR_ARG, heddle_tape_create(&other, block, &bad));
    expect_sentence("heddle_tape_options");
    heddle_tape_options_init(&bad);
    bad.recompute = 2;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_tape_create(&other, block, &bad));
    expect_sentence("recompute 2 of a tape must be 0 or 1");
    HD_FAILS(HEDDLE_ERR_ARG, heddle_tape_create(&other, NULL, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_tape_create(NULL, block, NULL));
    assert_null(other);
}

HD_CASE(wrong_calls_are_refused)
{
    for (int kind = 0; kind < 3; kind++) {
        training t;
        heddle_block *block = NULL;
        heddle_param gradient = HEDDLE_EMPTY(heddle_param);
        heddle_block_options options = small_options((heddle_stage_kind)kind, HEDDLE_F32);
        open_training(&t, &options, 0);
        wrong_tapes_are_refused(t.p.block);
        HD_FAILS(HEDDLE_ERR_ARG, backward(&t));
        expect_sentence("holds no forward");
        HD_FAILS(HEDDLE_ERR_ARG, forward_tape_on(t.p.block, t.x, &t.box, &t.p.conditioning, NULL));
        HD_FAILS(HEDDLE_ERR_ARG, forward_tape_on(t.p.block, t.x, NULL, &t.p.conditioning, t.tape));
        HD_FAILS(HEDDLE_ERR_ARG, forward_tape_on(t.p.block, NULL, &t.box, &t.p.conditioning, t.tape));
        HD_FAILS(HEDDLE_ERR_ARG, forward_tape_on(NULL, t.x, &t.box, &t.p.conditioning, t.tape));
        HD_FAILS(HEDDLE_ERR_ARG, forward_tape_on(t.p.block, t.x, &t.box, NULL, t.tape));
        t.box.len[3] = 16;
        HD_FAILS(HEDDLE_ERR_LAYOUT, forward(&t));
        t.box = whole_box(&options.shape);
        HD_OK(forward(&t));
        assert_true(heddle_tape_bytes(t.tape) > 0);
        HD_FAILS(HEDDLE_ERR_ARG, backward_on(t.p.block, NULL, &t.p.conditioning, NULL, t.tape));
        HD_FAILS(HEDDLE_ERR_ARG, backward_on(t.p.block, t.dx, NULL, NULL, t.tape));
        HD_FAILS(HEDDLE_ERR_ARG, backward_on(NULL, t.dx, &t.p.conditioning, NULL, t.tape));
        HD_FAILS(HEDDLE_ERR_ARG, backward_on(t.p.block, t.dx, &t.p.conditioning, NULL, NULL));
        HD_OK(heddle_block_create(&block, &options));
        HD_OK(heddle_block_seed(block, 1));
        HD_FAILS(HEDDLE_ERR_ARG, backward_on(block, t.dx, &t.p.conditioning, NULL, t.tape));
        expect_sentence("another block");
        HD_FAILS(HEDDLE_ERR_ARG, forward_tape_on(block, t.x, &t.box, &t.p.conditioning, t.tape));
        HD_FAILS(HEDDLE_ERR_ARG, forward_tape_on(t.p.block, NULL, &t.box, &t.p.conditioning, t.tape));
        HD_OK(backward(&t)); /* of the forward before all that */
        HD_OK(heddle_block_commit(t.p.block));
        HD_FAILS(HEDDLE_ERR_ARG, backward(&t));
        expect_sentence("committed");
        HD_FAILS(HEDDLE_ERR_ARG, heddle_block_gradient(&gradient, t.p.block, heddle_block_nparams(t.p.block)));
        HD_FAILS(HEDDLE_ERR_ARG, heddle_block_gradient(&gradient, t.p.block, -1));
        expect_sentence("parameter -1: the block has ");
        HD_FAILS(HEDDLE_ERR_ARG, heddle_block_gradient(&gradient, NULL, 0));
        HD_FAILS(HEDDLE_ERR_ARG, heddle_block_gradient(NULL, t.p.block, 0));
        heddle_block_zero_gradients(NULL, HEDDLE_NO_STREAM);
        heddle_block_zero_gradients(block, HEDDLE_NO_STREAM);
        heddle_tape_destroy(NULL);
        assert_int_equal(heddle_tape_bytes(NULL), 0);
        heddle_block_destroy(block);
        close_training(&t);
    }
}

HD_CASE(an_empty_box_is_legal)
{
    for (int kind = 0; kind < 3; kind++) {
        training t;
        heddle_block_options options = small_options((heddle_stage_kind)kind, HEDDLE_F32);
        open_training(&t, &options, kind & 1);
        HD_OK(forward(&t));
        t.box.len[2] = 0;
        HD_OK(forward_tape_on(t.p.block, NULL, &t.box, NULL, t.tape));
        assert_int_equal(heddle_tape_bytes(t.tape), 0);
        HD_OK(backward_on(t.p.block, NULL, NULL, NULL, t.tape));
        close_training(&t);
    }
}

HD_CASE(gradients_add_up)
{
    for (int kind = 0; kind < 3; kind++) {
        training t;
        float once[3 * 32];
        heddle_param gradient = HEDDLE_EMPTY(heddle_param);
        heddle_block_options options = small_options((heddle_stage_kind)kind, HEDDLE_F32);
        open_training(&t, &options, 0);
        HD_OK(heddle_block_gradient(&gradient, t.p.block, 0));
        assert_true(gradient.ndim == 2 && gradient.data[0] == 0);
        HD_OK(forward(&t));
        for (int i = 0; i < 2; i++) {
            memcpy(t.dx, t.p.x, (size_t)t.p.elems * sizeof(float));
            HD_OK(backward_on(t.p.block, t.dx, &t.p.conditioning, NULL, t.tape));
            for (int j = 0; j < 32; j++) {
                assert_true(i == 0 || fabsf(gradient.data[j] - 2 * once[j]) <= 1e-5f * (1 + fabsf(once[j])));
            }
            memcpy(once, gradient.data, 32 * sizeof(float));
        }
        heddle_block_zero_gradients(t.p.block, HEDDLE_NO_STREAM);
        assert_true(gradient.data[5] == 0);
        close_training(&t);
    }
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

/* Elements as docs/blocks.md counts them. */
HD_CASE(tapes_keep_what_the_docs_say)
{
    const int64_t rows = 60, c = 32, heads = 2, hidden = 128, text = 11;
    for (int i = 0; i < 12; i++) {
        training t;
        int kind = i % 3, recompute = i / 3 & 1;
        heddle_dtype dtype = dtypes[i / 6];
        int64_t elem = (int64_t)heddle_dtype_bytes(dtype);
        heddle_block_options options = small_options((heddle_stage_kind)kind, dtype);
        open_training(&t, &options, recompute);
        HD_OK(forward(&t));
        int64_t wanted = kind == HEDDLE_STAGE_ATTENTION ? rows * 5 * c * elem + rows * heads * 8
                         : kind == HEDDLE_STAGE_CROSS   ? (rows * 3 * c + 2 * text * 2 * c) * elem + rows * heads * 8
                                                        : rows * (c + hidden) * elem;
        assert_int_equal(heddle_tape_bytes(t.tape), recompute ? rows * c * elem : wanted);
        close_training(&t);
    }
}

HD_CASE(steady_state_allocates_nothing)
{
    static const int64_t extent[] = {1, 40, 30, 32};
    for (int i = 0; i < 6; i++) {
        training t;
        heddle_block_options options = options_for((heddle_stage_kind)(i % 3), dtypes[i & 1], 4, extent);
        options.qk_norm = 1;
        options.threads = 2;
        open_training(&t, &options, i / 3);
        HD_OK(forward(&t));
        HD_OK(backward(&t));
        int64_t bytes = heddle_block_workspace_bytes(t.p.block);
        hd_alloc_fail_at(1);
        HD_OK(forward(&t));
        HD_OK(backward(&t));
        t.box.len[2] = 7;
        HD_OK(forward(&t));
        HD_OK(backward(&t));
        hd_alloc_fail_at(0);
        assert_int_equal(heddle_block_workspace_bytes(t.p.block), bytes);
        close_training(&t);
    }
}

/* Every allocation in turn fails: an error, no crash, and the same objects still work. */
HD_CASE(lost_allocations_are_reported)
{
    static const int64_t extent[] = {1, 4, 5, 32};
    for (int i = 0; i < 6; i++) {
        int failed = 1;
        for (long n = 1; failed; n++) {
            heddle_block_options options = options_for((heddle_stage_kind)(i % 3), HEDDLE_BF16, 4, extent);
            options.threads = 2;
            options.qk_norm = 1;
            training t;
            open_training(&t, &options, i / 3);
            heddle_tape *tape = NULL;
            hd_alloc_fail_at(n);
            heddle_status st = heddle_tape_create(&tape, t.p.block, NULL);
            st = st == HEDDLE_OK ? forward(&t) : st;
            st = st == HEDDLE_OK ? backward(&t) : st;
            hd_alloc_fail_at(0);
            heddle_tape_destroy(tape);
            failed = st != HEDDLE_OK;
            if (failed) {
                assert_int_equal(st, HEDDLE_ERR_NOMEM);
            }
            HD_OK(forward(&t));
            HD_OK(backward(&t));
            close_training(&t);
        }
    }
}
