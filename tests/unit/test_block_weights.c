/* Weights change between steps, as they do in training: nothing of the old ones may be left in what a block packed,
 * kept or computed before. A block whose weights came late is held against one that never had others, bit for bit. */
#include "block_problem.h"

#include <heddle/train/tape.h>

enum { KINDS = 4, LATE_SEED = 77 };

typedef struct step {
    heddle_tape *tape;
    void *x, *dx;
    size_t bytes;
} step;

static void open_step(step *s, problem *p, const heddle_block_options *options, int recompute)
{
    heddle_tape_options tape;
    heddle_tape_options_init(&tape);
    tape.recompute = recompute;
    HD_OK(heddle_tape_create(&s->tape, p->block, &tape));
    s->bytes = (size_t)p->elems * heddle_dtype_bytes(options->shape.dtype);
    s->x = must_alloc(p->elems, sizeof(float));
    s->dx = must_alloc(p->elems, sizeof(float));
}

static void close_step(step *s)
{
    heddle_tape_destroy(s->tape);
    free(s->x);
    free(s->dx);
}

static void forward(step *s, problem *p)
{
    heddle_box box = whole_box(&p->options.shape);
    void *start = stored(p->x, p->elems, p->options.shape.dtype);
    memcpy(s->x, start, s->bytes);
    memcpy(s->dx, start, s->bytes);
    free(start);
    HD_OK(forward_tape_on(p->block, s->x, &box, &p->conditioning, s->tape));
}

static heddle_status backward(step *s, problem *p)
{
    return backward_on(p->block, s->dx, &p->conditioning, NULL, s->tape);
}

static void same_gradients(heddle_block *a, heddle_block *b)
{
    for (int i = 0; i < heddle_block_nparams(a); i++) {
        heddle_param ga = HEDDLE_EMPTY(heddle_param), gb = HEDDLE_EMPTY(heddle_param);
        HD_OK(heddle_block_gradient(&ga, a, i));
        HD_OK(heddle_block_gradient(&gb, b, i));
        assert_memory_equal(ga.data, gb.data,
                            (size_t)(ga.extent[0] * (ga.ndim == 2 ? ga.extent[1] : 1)) * sizeof(float));
    }
}

/* `late` has made a whole step with other weights; `fresh` has not. */
static void compare(const heddle_block_options *options, int recompute)
{
    problem late, fresh;
    step a, b;
    open_problem(&late, options);
    fresh = late;
    HD_OK(heddle_block_create(&fresh.block, options));
    open_step(&a, &late, options, recompute);
    open_step(&b, &fresh, options, recompute);
    HD_OK(heddle_block_seed(late.block, 5));
    forward(&a, &late);
    HD_OK(backward(&a, &late));
    heddle_block_zero_gradients(late.block, HEDDLE_NO_STREAM);
    forward(&a, &late);
    HD_OK(heddle_block_seed(late.block, LATE_SEED));
    HD_FAILS(HEDDLE_ERR_ARG, backward(&a, &late)); /* what it kept is of the old weights */
    assert_non_null(strstr(heddle_last_error(), "committed 1 times"));
    HD_OK(heddle_block_seed(fresh.block, LATE_SEED));
    forward(&a, &late);
    forward(&b, &fresh);
    assert_memory_equal(a.x, b.x, a.bytes);
    HD_OK(backward(&a, &late));
    HD_OK(backward(&b, &fresh));
    assert_memory_equal(a.dx, b.dx, a.bytes);
    same_gradients(late.block, fresh.block);
    close_step(&a);
    close_step(&b);
    heddle_block_destroy(fresh.block);
    close_problem(&late);
}

HD_CASE(nothing_of_the_old_weights_is_left)
{
    for (int kind = 0; kind < KINDS; kind++) {
        for (int i = 0; i < 4; i++) {
            heddle_block_options options = small_options((heddle_stage_kind)kind, dtypes[i & 1]);
            if (kind == HEDDLE_STAGE_LINEAR) {
                options.mixed_dim = 1;
                options.causal = 1;
            }
            compare(&options, i >> 1);
        }
    }
}
