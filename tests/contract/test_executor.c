/* An executor on threads, forward and back, against one rank: the same bits, the schedule's bytes; and what it refuses.
 * With HEDDLE_TEST_DEVICE switches are done there. */
#include "executor_fixture.h"

/* Are the local parts of x those of the one rank's? */
static heddle_status compare(bench *many, const heddle_tensor *x, const float *whole)
{
    heddle_box box;
    heddle_status st;
    HD_TRY(heddle_layout_box(&box, &many->info.shape, &many->info.mesh, &x->layout, heddle_comm_rank(many->comm)));
    for (int64_t i = 0; i < heddle_box_elems(&box); i++) {
        CHECK(((const float *)x->data)[i] == whole[place(many, &box, i)]);
    }
out:
    return st;
}

static heddle_status pass(bench *b, float *output, float *gradient)
{
    heddle_status st;
    float whole[ELEMS];
    heddle_tensor dx;
    const heddle_conditioning_gradient dconditioning = {b->dvector, b->dtext};
    HD_TRY(fill(b));
    HD_TRY(heddle_executor_forward(b->executor, &b->x, &b->conditioning, placed_stream));
    if (output != NULL) {
        memcpy(output, b->x.data, ELEMS * sizeof(float)); /* the epilogue is replicated */
    }
    for (int64_t i = 0; i < ELEMS; i++) {
        whole[i] = value(i, 4);
    }
    HD_TRY(
        heddle_tensor_init(&dx, whole, &b->info.shape, &b->info.mesh, &b->x.layout, NULL, heddle_comm_rank(b->comm)));
    HD_TRY(heddle_executor_backward(b->executor, &dx, &b->conditioning, &dconditioning, placed_stream));
    if (gradient != NULL) {
        memcpy(gradient, dx.data, ELEMS * sizeof(float));
    } else {
        memcpy(b->data, dx.data, dx.capacity_bytes);
        b->x = dx;
        b->x.data = b->data;
    }
out:
    return st;
}

static heddle_status check_steps(bench *b)
{
    heddle_executor_info info = HEDDLE_EMPTY(heddle_executor_info);
    heddle_status st;
    int64_t sent[2] = {0, 0}, copied[2] = {0, 0};
    HD_TRY(heddle_executor_get_info(&info, b->executor));
    CHECK(info.nsteps == STEPS + 1 && info.forward_ns > 0 && info.backward_ns > 0);
    CHECK((info.wire[0] != 0) == placed_on_device(b->comm));
    for (int backward = 0; backward < 2; backward++) {
        for (int i = 0; i < info.nsteps; i++) {
            heddle_executor_step step = HEDDLE_EMPTY(heddle_executor_step);
            HD_TRY(heddle_executor_step_at(&step, b->executor, i, backward));
            CHECK(step.sent == step.planned);
            CHECK(i == STEPS || backward || step.kept_bytes > 0);
            sent[backward] += step.sent;
            copied[backward] += step.copied_bytes;
        }
    }
    HD_TRY(heddle_comm_allreduce_sum(b->comm, sent, 2, HEDDLE_I64));
    HD_TRY(heddle_comm_allreduce_sum(b->comm, copied, 2, HEDDLE_I64));
    CHECK(sent[0] == b->info.bytes_total && sent[1] == b->info.backward_bytes_total && sent[0] > 0);
    /* Three switches and the gather take the whole once; the gather gives it to every rank. */
    const int64_t whole_bytes = ELEMS * (int64_t)sizeof(float);
    CHECK(copied[0] == (placed_on_device(b->comm) ? (7 + RANKS) * whole_bytes : 0) && copied[1] == copied[0]);
out:
    return st;
}

static heddle_status as_one_rank(heddle_comm *comm, void *arg)
{
    bench many, one;
    heddle_comm *self = NULL;
    heddle_executor_options options;
    heddle_status st;
    float output[ELEMS], mine[ELEMS], gradient[ELEMS];
    (void)arg;
    memset(&one, 0, sizeof one);
    HD_TRY(make_bench(&many, comm));
    HD_TRY(heddle_comm_open(&self, "self", NULL));
    HD_TRY(make_bench(&one, self));
    heddle_executor_options_init(&options);
    options.backward = 1;
    options.seed = 7;
    HD_TRY(heddle_executor_create(&one.executor, self, one.schedule, one.stage, &options));
    HD_TRY(pass(&one, output, gradient));
    options = options_on(comm);
    options.backward = 1;
    options.seed = 7;
    options.timed = 1;
    HD_TRY(heddle_executor_create(&many.executor, comm, many.schedule, many.stage, &options));
    for (int again = 0; again < 2; again++) { /* weights are made once */
        HD_TRY(pass(&many, mine, NULL));
        CHECK(memcmp(mine, output, sizeof output) == 0);
        HD_TRY(compare(&many, &many.x, gradient));
        CHECK(heddle_layout_equal(&many.x.layout, &many.first, &many.info.mesh));
        HD_TRY(check_steps(&many));
    }
    CHECK(heddle_executor_block(many.executor, 0) != heddle_executor_block(many.executor, STAGES));
    CHECK(heddle_executor_block(many.executor, STEPS) == NULL);
out:
    free_bench(&many);
    free_bench(&one);
    heddle_comm_destroy(self);
    return st;
}

HD_CASE(equals_one_rank_there_and_back)
{
    HD_OK(heddle_run_ranks(RANKS, "threads", as_one_rank, NULL));
}

typedef struct calls {
    int weights, steps, fails_on;
    heddle_comm *comm;
} calls;

static heddle_status count_weights(void *ctx, heddle_block *block, int stage, int repetition)
{
    calls *c = ctx;
    c->weights++;
    return heddle_comm_rank(c->comm) == c->fails_on
               ? heddle_set_error(HEDDLE_ERR_IO, "no weights today")
               : heddle_block_seed(block, 7 * 1000003U + (uint64_t)(repetition * STAGES + stage));
}

static void count_steps(void *ctx, int step, int backward)
{
    calls *c = ctx;
    c->steps += step == c->steps % (STEPS + 1) && !backward;
}

/* Forward only: one block for all repetitions, whose weights come one after the other. */
static heddle_status forward_only(heddle_comm *comm, void *arg)
{
    const int fails_on = *(const int *)arg;
    bench b, with_tapes;
    calls c = {.fails_on = fails_on, .comm = comm};
    heddle_executor_options options;
    heddle_status st;
    float output[ELEMS];
    options = options_on(comm);
    HD_TRY(make_bench(&with_tapes, comm));
    HD_TRY(make_bench(&b, comm));
    options.weights = count_weights;
    options.before = count_steps;
    options.ctx = &c;
    HD_TRY(heddle_executor_create(&b.executor, comm, b.schedule, b.stage, &options));
    CHECK(heddle_executor_block(b.executor, 0) == heddle_executor_block(b.executor, STAGES));
    HD_TRY(fill(&b));
    HD_TRY(heddle_executor_forward(b.executor, &b.x, &b.conditioning, placed_stream));
    HD_TRY(fill(&b));
    HD_TRY(heddle_executor_forward(b.executor, &b.x, &b.conditioning, placed_stream));
    CHECK(c.weights == 2 * STEPS && c.steps == 2 * (STEPS + 1));
    options = options_on(comm);
    options.seed = 7;
    options.backward = 1;
    HD_TRY(heddle_executor_create(&with_tapes.executor, comm, with_tapes.schedule, with_tapes.stage, &options));
    HD_TRY(pass(&with_tapes, output, NULL));
    CHECK(memcmp(output, b.x.data, sizeof output) == 0);
out:
    free_bench(&b);
    free_bench(&with_tapes);
    return st;
}

HD_CASE(shares_blocks_between_repetitions)
{
    int nobody = -1;
    HD_OK(heddle_run_ranks(RANKS, "threads", forward_only, &nobody));
}

HD_CASE(a_rank_without_weights_ends_the_pass)
{
    int one = 1;
    HD_FAILS(HEDDLE_ERR_IO, heddle_run_ranks(RANKS, "threads", forward_only, &one));
    assert_non_null(strstr(heddle_last_error(), "stage 'weights' of layer 0: no weights today"));
}

/* A program that begins passes of its executor from `before` and `weights` of a pass. */
typedef struct meddler {
    bench b;
    int meddles, asked, refused;
} meddler;

static void see(meddler *m, heddle_status st, const char *function)
{
    m->asked++;
    m->refused += st == HEDDLE_ERR_ARG && strncmp(heddle_last_error(), function, strlen(function)) == 0 &&
                  strstr(heddle_last_error(), ": called from options.before or options.weights of an executor") != NULL;
}

static void meddle(meddler *m)
{
    heddle_tensor x = m->b.x;
    if (m->meddles) {
        m->meddles = 0; /* should it begin */
        see(m, heddle_executor_forward(m->b.executor, &x, &m->b.conditioning, placed_stream),
            "heddle_executor_forward");
        see(m, heddle_executor_backward(m->b.executor, &x, &m->b.conditioning, NULL, placed_stream),
            "heddle_executor_backward");
        m->meddles = 1;
    }
}

static void meddle_before(void *ctx, int step, int backward)
{
    (void)step, (void)backward;
    meddle(ctx);
}

static heddle_status seed_and_meddle(void *ctx, heddle_block *block, int stage, int repetition)
{
    meddle(ctx);
    return heddle_block_seed(block, (uint64_t)(repetition * STAGES + stage));
}

/* On every rank, and what comes out is as without those calls. */
static heddle_status passes_within(heddle_comm *comm, void *arg)
{
    heddle_status st;
    meddler m = {.meddles = 1};
    float output[2][ELEMS], back[2][ELEMS] = {{0}};
    heddle_executor_options options = options_on(comm);
    (void)arg;
    options.backward = 1;
    options.before = meddle_before;
    options.weights = seed_and_meddle;
    options.ctx = &m;
    HD_TRY(make_bench(&m.b, comm));
    HD_TRY(heddle_executor_create(&m.b.executor, comm, m.b.schedule, m.b.stage, &options));
    HD_TRY(pass(&m.b, output[0], NULL));
    memcpy(back[0], m.b.x.data, m.b.x.capacity_bytes);
    CHECK(m.refused == m.asked && m.asked == 2 * (4 * STEPS + 2));
    m.meddles = 0;
    HD_TRY(pass(&m.b, output[1], NULL));
    memcpy(back[1], m.b.x.data, m.b.x.capacity_bytes);
    CHECK(memcmp(output[0], output[1], sizeof output[0]) == 0 && memcmp(back[0], back[1], sizeof back[0]) == 0);
out:
    free_bench(&m.b);
    return st;
}

HD_CASE(a_pass_is_not_begun_from_within_one)
{
    HD_OK(heddle_run_ranks(RANKS, "threads", passes_within, NULL));
}

/* Where the schedule has no layout that is as large. */
static heddle_status comes_whole(heddle_comm *comm, void *arg)
{
    bench b;
    heddle_executor_options options = options_on(comm);
    heddle_status st;
    float whole[ELEMS], from_parts[ELEMS];
    (void)arg;
    HD_TRY(make_bench_to(&b, comm, "any"));
    HD_TRY(heddle_executor_create(&b.executor, comm, b.schedule, b.stage, &options));
    HD_TRY(fill(&b));
    HD_TRY(heddle_executor_forward(b.executor, &b.x, &b.conditioning, placed_stream));
    CHECK(b.x.space == HEDDLE_SPACE_HOST && b.x.capacity_bytes < sizeof whole);
    memcpy(from_parts, b.x.data, b.x.capacity_bytes);
    const heddle_layout everywhere = heddle_layout_replicated();
    for (int64_t i = 0; i < ELEMS; i++) {
        whole[i] = value(i, 3);
    }
    HD_TRY(heddle_tensor_init(&b.x, whole, &b.info.shape, &b.info.mesh, &everywhere, NULL, heddle_comm_rank(comm)));
    HD_TRY(heddle_executor_forward(b.executor, &b.x, &b.conditioning, placed_stream));
    CHECK(memcmp(from_parts, b.x.data, b.x.capacity_bytes) == 0);
out:
    free_bench(&b);
    return st;
}

HD_CASE(takes_other_layouts)
{
    HD_OK(heddle_run_ranks(RANKS, "threads", comes_whole, NULL));
}

/* What cannot be copied as one, and a pass that goes on after it. */
HD_RANK_CASES(on_a_device_dense_host_memory_is_taken, 5, "1 threads")
{
    bench b;
    heddle_executor_options options = options_on(comm);
    heddle_status st = HEDDLE_OK;
    memset(&b, 0, sizeof b);
    if (!placed_on_device(comm)) {
        return HEDDLE_OK;
    }
    const int wrong = nth;
    static const char *const says[] = {"entering 's.attn': elements of x along dim s lie 13 apart", "dim c lie 2 apart",
                                       "x is on a device", "x is NULL", "with room for 8 bytes, its part has 1680"};
    HD_TRY(make_bench(&b, comm));
    HD_TRY(heddle_executor_create(&b.executor, comm, b.schedule, b.stage, &options));
    HD_TRY(fill(&b));
    heddle_tensor x = b.x;
    x.stride_elems[wrong == 0 ? 2 : 3] += wrong < 2;
    x.space = wrong == 2 ? HEDDLE_SPACE_DEVICE : HEDDLE_SPACE_HOST;
    x.data = wrong == 3 ? NULL : b.data;
    x.capacity_bytes = wrong == 4 ? 8 : x.capacity_bytes;
    st = heddle_executor_forward(b.executor, &x, &b.conditioning, placed_stream);
    CHECK(st == (wrong < 2 ? HEDDLE_ERR_LAYOUT : HEDDLE_ERR_ARG));
    CHECK(strstr(heddle_last_error(), says[wrong]) != NULL);
    st = HEDDLE_OK;
out:
    free_bench(&b);
    return st;
}

static void refuses(const char *what, heddle_status wanted, heddle_status got)
{
    if (got != wanted || strstr(heddle_last_error(), what) == NULL) {
        fail_msg("'%s': %s: %s", what, heddle_status_name(got), heddle_last_error());
    }
}

HD_CASE(refuses_what_is_not_the_schedules)
{
    heddle_comm *comm = NULL;
    bench b;
    heddle_tensor x;
    for (int wrong = 0; wrong < 4; wrong++) {
        HD_OK(heddle_comm_open(&comm, "self", NULL));
        HD_OK(make_bench(&b, comm));
        if (wrong == 0) {
            b.stage[3].kind = HEDDLE_STAGE_CROSS;
            refuses("stage 'mlp' is of kind 1", HEDDLE_ERR_MISMATCH,
                    heddle_executor_create(&b.executor, comm, b.schedule, b.stage, NULL));
        } else if (wrong == 1) {
            b.stage[1].shape.dim[1].extent = 6;
            refuses("stage 'cross' is of f32[b=1 t=6", HEDDLE_ERR_MISMATCH,
                    heddle_executor_create(&b.executor, comm, b.schedule, b.stage, NULL));
        } else if (wrong == 2) {
            b.stage[2].mixed_dim = 2;
            refuses("over dim 2, the schedule", HEDDLE_ERR_MISMATCH,
                    heddle_executor_create(&b.executor, comm, b.schedule, b.stage, NULL));
        } else {
            HD_OK(heddle_executor_create(&b.executor, comm, b.schedule, b.stage, NULL));
            HD_OK(fill(&b));
            x = b.x;
            HD_OK(heddle_executor_forward(b.executor, &x, &b.conditioning, HEDDLE_NO_STREAM));
            refuses("forward only", HEDDLE_ERR_ARG,
                    heddle_executor_backward(b.executor, &x, &b.conditioning, NULL, HEDDLE_NO_STREAM));
            heddle_executor_step step = HEDDLE_EMPTY(heddle_executor_step);
            refuses("forward step -1 of an executor with ", HEDDLE_ERR_ARG,
                    heddle_executor_step_at(&step, b.executor, -1, 0));
            refuses("forward step 99 of an executor with ", HEDDLE_ERR_ARG,
                    heddle_executor_step_at(&step, b.executor, 99, 0));
            refuses("backward step 0 of an executor with ", HEDDLE_ERR_ARG,
                    heddle_executor_step_at(&step, b.executor, 0, 1));
        }
        free_bench(&b);
        heddle_comm_destroy(comm);
    }
}
