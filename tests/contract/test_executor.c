/* An executor on threads, forward and back, against one rank: the same bits, the schedule's bytes; and what it refuses.
 */
#include "case.h"
#include "check.h"

#include "runtime/base/base.h"

#include <heddle/heddle.h>
#include <heddle/train/executor.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char model_text[] = "model: small\n"
                                 "dtype: f32\n"
                                 "dims:\n"
                                 "  b: {size: 1, role: batch}\n"
                                 "  t: {size: 5, role: seq}\n"
                                 "  s: {size: 7, role: seq}\n"
                                 "  c: {size: 12, role: channel}\n"
                                 "  text: {size: 3, role: text}\n"
                                 "tensors:\n"
                                 "  x: [b, t, s, c]\n"
                                 "  y: {dims: [b, text, c], const: true}\n"
                                 "repeat: 2\n"
                                 "stages:\n"
                                 "  - {name: s.attn, kind: attention, over: s, heads: 2}\n"
                                 "  - {name: cross, kind: cross, reads: y, heads: 2}\n"
                                 "  - {name: t.attn, kind: attention, over: t, heads: 2}\n"
                                 "  - {name: mlp, kind: mlp, ratio: 2}\n";
enum { RANKS = 3, STAGES = 4, STEPS = 8, CHANNELS = 12, ELEMS = 5 * 7 * CHANNELS, TEXT = 3 };

typedef struct bench {
    heddle_comm *comm;
    heddle_model *model;
    heddle_schedule *schedule;
    heddle_schedule_info info;
    heddle_block_options stage[STAGES];
    heddle_executor *executor;
    float vector[6 * CHANNELS], text[TEXT * CHANNELS];
    float dvector[6 * CHANNELS], dtext[TEXT * CHANNELS];
    heddle_conditioning conditioning;
    float *data; /* of x */
    heddle_tensor x;
    heddle_layout first;
} bench;

/* An element of any array, by its place in the whole one. */
static float value(int64_t at, int salt)
{
    return (float)((at * 37 + salt * 11) % 101) / 101.0F - 0.5F;
}

static heddle_status describe_stages(bench *b)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < STAGES; i++) {
        heddle_stage_info stage = {.struct_bytes = sizeof stage};
        heddle_block_options *o = &b->stage[i];
        HD_TRY(heddle_model_stage(&stage, b->model, i));
        heddle_block_options_init(o);
        o->kind = stage.kind;
        o->shape = b->info.shape;
        o->mixed_dim = stage.mixed_dim;
        o->heads = stage.heads;
        o->mlp_channels = stage.mlp_channels;
        o->text_tokens = TEXT;
        o->modulate = stage.modulate;
    }
out:
    return st;
}

static heddle_status make_bench(bench *b, heddle_comm *comm)
{
    char text[32];
    heddle_mesh mesh;
    heddle_status st;
    memset(b, 0, sizeof *b);
    b->comm = comm;
    b->info.struct_bytes = sizeof b->info;
    snprintf(text, sizeof text, "[sp=%d]", heddle_comm_size(comm));
    HD_TRY(heddle_model_parse(&b->model, model_text, strlen(model_text), "small.yaml"));
    HD_TRY(heddle_mesh_parse(&mesh, text));
    HD_TRY(heddle_plan(&b->schedule, b->model, &mesh, NULL));
    HD_TRY(heddle_schedule_get_info(&b->info, b->schedule));
    HD_TRY(describe_stages(b));
    for (int i = 0; i < 6 * CHANNELS; i++) {
        b->vector[i] = value(i, 1);
    }
    for (int i = 0; i < TEXT * CHANNELS; i++) {
        b->text[i] = value(i, 2);
    }
    b->conditioning = (heddle_conditioning){b->vector, b->text, NULL};
    b->data = calloc(ELEMS, sizeof *b->data);
out:
    return st;
}

static void free_bench(bench *b)
{
    heddle_executor_destroy(b->executor);
    heddle_schedule_destroy(b->schedule);
    heddle_model_destroy(b->model);
    free(b->data);
}

/* Place in the whole array of element i of the box. */
static int64_t place(const bench *b, const heddle_box *box, int64_t i)
{
    int64_t global = 0, step = 1;
    for (int d = box->ndim - 1; d >= 0; d--) {
        global += (box->lo[d] + i % box->len[d]) * step;
        i /= box->len[d];
        step *= b->info.shape.dim[d].extent;
    }
    return global;
}

/* x: this rank's part of an array of values, as the schedule begins. */
static heddle_status fill(bench *b)
{
    heddle_schedule_edge edge = {.struct_bytes = sizeof edge};
    heddle_box box;
    heddle_status st;
    const int rank = heddle_comm_rank(b->comm);
    HD_TRY(heddle_schedule_edge_at(&edge, b->schedule, 0));
    HD_TRY(heddle_layout_box(&box, &b->info.shape, &b->info.mesh, &edge.from, rank));
    for (int64_t i = 0; i < heddle_box_elems(&box); i++) {
        b->data[i] = value(place(b, &box, i), 3);
    }
    b->first = edge.from;
    HD_TRY(heddle_tensor_init(&b->x, b->data, &b->info.shape, &b->info.mesh, &edge.from, NULL, rank));
out:
    return st;
}

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
    HD_TRY(heddle_executor_forward(b->executor, &b->x, &b->conditioning, HEDDLE_NO_STREAM));
    if (output != NULL) {
        memcpy(output, b->x.data, ELEMS * sizeof(float)); /* the epilogue is replicated */
    }
    for (int64_t i = 0; i < ELEMS; i++) {
        whole[i] = value(i, 4);
    }
    HD_TRY(
        heddle_tensor_init(&dx, whole, &b->info.shape, &b->info.mesh, &b->x.layout, NULL, heddle_comm_rank(b->comm)));
    HD_TRY(heddle_executor_backward(b->executor, &dx, &b->conditioning, &dconditioning, HEDDLE_NO_STREAM));
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
    heddle_executor_info info = {.struct_bytes = sizeof info};
    heddle_status st;
    int64_t sent[2] = {0, 0};
    HD_TRY(heddle_executor_get_info(&info, b->executor));
    CHECK(info.nsteps == STEPS + 1 && info.forward_ns > 0 && info.backward_ns > 0);
    for (int backward = 0; backward < 2; backward++) {
        for (int i = 0; i < info.nsteps; i++) {
            heddle_executor_step step = {.struct_bytes = sizeof step};
            HD_TRY(heddle_executor_step_at(&step, b->executor, i, backward));
            CHECK(step.sent == step.planned);
            CHECK(i == STEPS || backward || step.kept_bytes > 0);
            sent[backward] += step.sent;
        }
    }
    HD_TRY(heddle_comm_allreduce_sum(b->comm, sent, 2, HEDDLE_I64));
    CHECK(sent[0] == b->info.bytes_total && sent[1] == b->info.backward_bytes_total && sent[0] > 0);
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

static void equals_one_rank_there_and_back(void **state)
{
    (void)state;
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
    heddle_executor_options_init(&options);
    HD_TRY(make_bench(&with_tapes, comm));
    HD_TRY(make_bench(&b, comm));
    options.weights = count_weights;
    options.before = count_steps;
    options.ctx = &c;
    HD_TRY(heddle_executor_create(&b.executor, comm, b.schedule, b.stage, &options));
    CHECK(heddle_executor_block(b.executor, 0) == heddle_executor_block(b.executor, STAGES));
    HD_TRY(fill(&b));
    HD_TRY(heddle_executor_forward(b.executor, &b.x, &b.conditioning, HEDDLE_NO_STREAM));
    HD_TRY(fill(&b));
    HD_TRY(heddle_executor_forward(b.executor, &b.x, &b.conditioning, HEDDLE_NO_STREAM));
    CHECK(c.weights == 2 * STEPS && c.steps == 2 * (STEPS + 1));
    heddle_executor_options_init(&options);
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

static void shares_blocks_between_repetitions(void **state)
{
    (void)state;
    int nobody = -1;
    HD_OK(heddle_run_ranks(RANKS, "threads", forward_only, &nobody));
}

static void a_rank_without_weights_ends_the_pass(void **state)
{
    (void)state;
    int one = 1;
    HD_FAILS(HEDDLE_ERR_IO, heddle_run_ranks(RANKS, "threads", forward_only, &one));
    assert_non_null(strstr(heddle_last_error(), "stage 'weights' of layer 0: no weights today"));
}

static void refuses(const char *what, heddle_status wanted, heddle_status got)
{
    if (got != wanted || strstr(heddle_last_error(), what) == NULL) {
        fail_msg("'%s': %s: %s", what, heddle_status_name(got), heddle_last_error());
    }
}

static void refuses_what_is_not_the_schedules(void **state)
{
    (void)state;
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
        }
        free_bench(&b);
        heddle_comm_destroy(comm);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(equals_one_rank_there_and_back),
        cmocka_unit_test(shares_blocks_between_repetitions),
        cmocka_unit_test(a_rank_without_weights_ends_the_pass),
        cmocka_unit_test(refuses_what_is_not_the_schedules),
    };
    return HD_RUN_CASES(cases, argc, argv);
}
