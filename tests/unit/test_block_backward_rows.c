/* Backward of blocks: parts of the activation give the bits of the whole, threads and recomputing change nothing. */
#include "block_model.h"

/* All that one backward gives. */
typedef struct outcome {
    int64_t elems, vector_elems, text_elems;
    char *dx;
    heddle_conditioning_gradient wanted;
    heddle_param gradient[MODEL_PARAMS]; /* copies */
    int nparams;
} outcome;

static int64_t elems_of(const heddle_param *param)
{
    return param->extent[0] * (param->ndim == 2 ? param->extent[1] : 1);
}

static void free_outcome(outcome *o)
{
    free(o->dx);
    free(o->wanted.vector);
    free(o->wanted.text);
    for (int i = 0; i < o->nparams; i++) {
        free(o->gradient[i].data);
    }
}

/* Forward and backward over the boxes one after the other, gradients added up as they come. */
static outcome train(const problem *p, heddle_block *block, const float *dy, const heddle_box *box, int boxes,
                     int recompute)
{
    const heddle_shape *shape = &p->options.shape;
    size_t elem = heddle_dtype_bytes(shape->dtype);
    outcome o = {.elems = p->elems, .vector_elems = shape->dim[0].extent * VECTOR_ROWS * p->c};
    o.text_elems = shape->dim[0].extent * p->options.text_tokens * p->c;
    o.dx = stored(dy, p->elems, shape->dtype);
    o.wanted.vector = must_alloc(o.vector_elems, sizeof(float));
    o.wanted.text = must_alloc(o.text_elems, sizeof(float));
    o.nparams = heddle_block_nparams(block);
    heddle_block_zero_gradients(block, HEDDLE_NO_STREAM);
    char *x = stored(p->x, p->elems, shape->dtype);
    for (int i = 0; i < boxes; i++) {
        heddle_tape *tape = NULL;
        heddle_tape_options options;
        heddle_tape_options_init(&options);
        options.recompute = recompute;
        HD_OK(heddle_tape_create(&tape, block, &options));
        char *part = part_of(p, &box[i], x, must_alloc(p->elems, elem), 0);
        char *dpart = part_of(p, &box[i], o.dx, must_alloc(p->elems, elem), 0);
        HD_OK(forward_tape_on(block, part, &box[i], &p->conditioning, tape));
        HD_OK(backward_on(block, dpart, &p->conditioning, &o.wanted, tape));
        part_of(p, &box[i], o.dx, dpart, 1);
        free(part);
        free(dpart);
        heddle_tape_destroy(tape);
    }
    free(x);
    for (int i = 0; i < o.nparams; i++) {
        o.gradient[i].struct_bytes = sizeof o.gradient[i];
        HD_OK(heddle_block_gradient(&o.gradient[i], block, i));
        int64_t elems = elems_of(&o.gradient[i]);
        o.gradient[i].data =
            memcpy(must_alloc(elems, sizeof(float)), o.gradient[i].data, (size_t)elems * sizeof(float));
    }
    return o;
}

static void near(const char *what, const float *a, const float *b, int64_t elems, double allowed)
{
    double worst = 0, largest = 0.1;
    for (int64_t i = 0; i < elems; i++) {
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
        largest = fmax(largest, fabs((double)a[i]));
        assert_true(isfinite(a[i]) && isfinite(b[i]));
    }
    if (worst > allowed * largest) {
        fail_msg("%s: differs by %g of %g", what, worst, largest);
    }
}

static void same_bits(const char *what, const void *a, const void *b, size_t bytes)
{
    if (memcmp(a, b, bytes) != 0) {
        fail_msg("%s: other bits", what);
    }
}

/* allowed 0: gradients of parameters have the same bits too */
static void compare(const problem *p, const outcome *a, const outcome *b, double allowed)
{
    same_bits("dx", a->dx, b->dx, (size_t)a->elems * heddle_dtype_bytes(p->options.shape.dtype));
    for (int i = 0; i < a->nparams; i++) {
        int64_t elems = elems_of(&a->gradient[i]);
        near(a->gradient[i].name, a->gradient[i].data, b->gradient[i].data, elems, allowed);
    }
    near("vector", a->wanted.vector, b->wanted.vector, a->vector_elems, allowed);
    near("text", a->wanted.text, b->wanted.text, a->text_elems, allowed);
}

static float *random_dy(const problem *p)
{
    float *dy = must_alloc(p->elems, sizeof *dy);
    for (int64_t i = 0; i < p->elems; i++) {
        dy[i] = symmetric();
    }
    rounded(dy, p->elems, p->options.shape.dtype);
    return dy;
}

static int cut(heddle_box *box, const heddle_shape *shape, int dim, int parts)
{
    int64_t lo = 0;
    for (int i = 0; i < parts; i++) {
        box[i] = whole_box(shape);
        box[i].lo[dim] = lo;
        box[i].len[dim] = shape->dim[dim].extent * (i + 1) / parts - lo;
        lo += box[i].len[dim];
    }
    return parts;
}

static void check_parts(const heddle_block_options *options)
{
    problem p;
    heddle_box box[4];
    open_problem(&p, options);
    float *dy = random_dy(&p);
    box[0] = whole_box(&options->shape);
    outcome whole = train(&p, p.block, dy, box, 1, 0);
    outcome other = train(&p, p.block, dy, box, 1, 1);
    compare(&p, &whole, &other, 0);
    free_outcome(&other);
    for (int threads = 2; threads <= 3; threads++) {
        heddle_block *block = NULL;
        heddle_block_options more = *options;
        more.threads = threads;
        HD_OK(heddle_block_create(&block, &more));
        HD_OK(heddle_block_seed(block, 7));
        other = train(&p, block, dy, box, 1, threads & 1);
        compare(&p, &whole, &other, 0);
        free_outcome(&other);
        heddle_block_destroy(block);
    }
    for (int dim = 0; dim < options->shape.ndim - 1; dim++) {
        for (int parts = 2; parts <= 4 && dim != options->mixed_dim; parts++) {
            other = train(&p, p.block, dy, box, cut(box, &options->shape, dim, parts), parts & 1);
            compare(&p, &whole, &other, 1e-5);
            free_outcome(&other);
        }
    }
    free_outcome(&whole);
    free(dy);
    close_problem(&p);
}

static void check_attention(int mixed_dim)
{
    static const int64_t extent[] = {2, 13, 83, 32};
    for (int i = 0; i < 2; i++) {
        heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, dtypes[i], 4, extent);
        options.mixed_dim = mixed_dim;
        options.rope = 1;
        options.qk_norm = 1;
        check_parts(&options);
    }
}

HD_CASE(temporal_rows_are_independent)
{
    check_attention(1);
}

HD_CASE(spatial_rows_are_independent)
{
    check_attention(2);
}

HD_CASE(long_fibres_are_independent)
{
    static const int64_t extent[] = {1, 300, 9, 36};
    heddle_block_options options = options_for(HEDDLE_STAGE_ATTENTION, HEDDLE_F32, 4, extent);
    options.modulate = 0;
    check_parts(&options);
}

HD_CASE(rows_of_cross_and_mlp_are_independent)
{
    static const int64_t extent[] = {3, 9, 127, 48};
    for (int i = 0; i < 4; i++) {
        heddle_block_options options =
            options_for(i < 2 ? HEDDLE_STAGE_CROSS : HEDDLE_STAGE_MLP, dtypes[i % 2], 4, extent);
        options.text_tokens = 120;
        options.mlp_channels = 200;
        check_parts(&options);
    }
}

/* Forward, forward, backward of the first, backward of the second, of different boxes. */
HD_CASE(tapes_in_flight_do_not_mix)
{
    static const int64_t extent[] = {3, 7, 11, 32};
    for (int kind = 0; kind < 3; kind++) {
        problem p;
        heddle_box box[3];
        heddle_tape *tape[3];
        char *dx[3];
        heddle_block_options options = options_for((heddle_stage_kind)kind, dtypes[kind & 1], 4, extent);
        options.qk_norm = 1;
        open_problem(&p, &options);
        float *dy = random_dy(&p);
        int parts = cut(box, &options.shape, 0, 3);
        outcome wanted = train(&p, p.block, dy, box, parts, 0);
        heddle_block_zero_gradients(p.block, HEDDLE_NO_STREAM);
        char *whole = stored(p.x, p.elems, options.shape.dtype), *whole_dy = stored(dy, p.elems, options.shape.dtype);
        char *got = stored(dy, p.elems, options.shape.dtype);
        for (int i = 0; i < parts; i++) {
            char *x = part_of(&p, &box[i], whole, must_alloc(p.elems, 4), 0);
            HD_OK(heddle_tape_create(&tape[i], p.block, NULL));
            HD_OK(forward_tape_on(p.block, x, &box[i], &p.conditioning, tape[i]));
            HD_OK(forward_on(p.block, x, &box[i], &p.conditioning)); /* disturbs nothing */
            free(x);
        }
        for (int i = 0; i < parts; i++) {
            dx[i] = part_of(&p, &box[i], whole_dy, must_alloc(p.elems, 4), 0);
            HD_OK(backward_on(p.block, dx[i], &p.conditioning, NULL, tape[i]));
            part_of(&p, &box[i], got, dx[i], 1);
            heddle_tape_destroy(tape[i]);
            free(dx[i]);
        }
        same_bits("dx", wanted.dx, got, (size_t)p.elems * heddle_dtype_bytes(options.shape.dtype));
        for (int i = 0; i < wanted.nparams; i++) {
            heddle_param gradient = HEDDLE_EMPTY(heddle_param);
            HD_OK(heddle_block_gradient(&gradient, p.block, i));
            same_bits(gradient.name, gradient.data, wanted.gradient[i].data,
                      (size_t)elems_of(&gradient) * sizeof(float));
        }
        free_outcome(&wanted);
        free(whole);
        free(whole_dy);
        free(got);
        free(dy);
        close_problem(&p);
    }
}

/* Blocks of all kinds and two sizes in one workspace. */
HD_CASE(a_shared_workspace_changes_nothing)
{
    static const int64_t extent[2][4] = {{3, 7, 11, 32}, {2, 17, 83, 48}};
    problem p[6];
    float *dy[6];
    outcome wanted[6];
    heddle_box box;
    for (int i = 0; i < 6; i++) {
        heddle_block_options options = options_for((heddle_stage_kind)(i % 3), dtypes[i & 1], 4, extent[i / 3]);
        options.qk_norm = 1;
        open_problem(&p[i], &options);
        dy[i] = random_dy(&p[i]);
        box = whole_box(&options.shape);
        wanted[i] = train(&p[i], p[i].block, dy[i], &box, 1, i & 1);
    }
    for (int i = 1; i < 6; i++) {
        HD_OK(heddle_block_share_workspace(p[i].block, p[i - 1].block));
        HD_OK(heddle_block_share_workspace(p[i].block, p[i - 1].block));
    }
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_share_workspace(p[0].block, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_block_share_workspace(NULL, p[0].block));
    for (int i = 0; i < 6; i++) {
        box = whole_box(&p[i].options.shape);
        outcome got = train(&p[i], p[i].block, dy[i], &box, 1, i & 1);
        compare(&p[i], &wanted[i], &got, 0);
        free_outcome(&got);
        free_outcome(&wanted[i]);
        free(dy[i]);
        close_problem(&p[i]);
    }
}

HD_CASE(new_weights_reach_backward)
{
    static const int64_t extent[] = {1, 6, 5, 32};
    for (int kind = 0; kind < 3; kind++) {
        problem p;
        heddle_block_options options = options_for((heddle_stage_kind)kind, HEDDLE_F32, 4, extent);
        open_problem(&p, &options);
        float *dy = random_dy(&p);
        heddle_box box = whole_box(&options.shape);
        heddle_block *fresh = NULL;
        HD_OK(heddle_block_create(&fresh, &options));
        HD_OK(heddle_block_seed(fresh, 8));
        outcome wanted = train(&p, fresh, dy, &box, 1, 0);
        outcome before = train(&p, p.block, dy, &box, 1, 0);
        assert_true(memcmp(before.dx, wanted.dx, (size_t)p.elems * sizeof(float)) != 0);
        HD_OK(heddle_block_seed(p.block, 8));
        outcome after = train(&p, p.block, dy, &box, 1, 0);
        compare(&p, &wanted, &after, 0);
        free_outcome(&wanted);
        free_outcome(&before);
        free_outcome(&after);
        heddle_block_destroy(fresh);
        free(dy);
        close_problem(&p);
    }
}
