/* --check of a training step: bytes as integers, the input's gradient bit for bit where only data moved, the
 * parameters' gradients, which are sums over ranks, within a tolerance. */
#include "runtime/verify/judge.h"
#include "runtime/verify/run_pass.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of a tensor's largest gradient. Sums over ranks are in another order than one rank's: at most 2.5e-6 was seen; with a
 * method the gradients that are summed differ in their last bits, too: of the input 6e-7, with bf16 activations, which
 * round them once more, 1.9e-2 of the input and 9.4e-3 of parameters. Small models of one and two layers; deeper ones
 * add up. */
#define TOLERANCE_PARAMETER 2e-5
#define TOLERANCE_INPUT 5e-6
#define TOLERANCE_BF16 0.05
/* The norm behind linear attention divides by what may be little. Half a last bit of the input then comes out 170 times
 * as large, and a method in front of it leaves gradients 8e-4 apart; on a device, which multiplies bf16, 5.7e-2. */
#define TOLERANCE_LINEAR 4e-3
#define TOLERANCE_BF16_LINEAR 0.1

/* 1 when every rank computes the very rows that one rank does: no method, nothing replicated, whose gradient would be
 * in parts. */
static int only_moves(const run_task *task)
{
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    for (int i = 0; heddle_schedule_stage_at(&stage, task->schedule, i) == HEDDLE_OK; i++) {
        if (strcmp(stage.method, "local") != 0) {
            return 0;
        }
        for (int a = 0; a < task->mesh.naxes; a++) {
            if (stage.layout.dim_of_axis[a] < 0 && task->mesh.axis[a].size > 1) {
                return 0;
            }
        }
    }
    return 1;
}

static double tolerance_of(const run_task *task, double of_f32)
{
    const int is_bf16 = task->info.shape.dtype == HEDDLE_BF16, is_linear = run_has_linear(task);
    if (only_moves(task) || (!is_bf16 && !is_linear)) {
        return of_f32;
    }
    return !is_bf16 ? TOLERANCE_LINEAR : is_linear && task->blocks_on_device ? TOLERANCE_BF16_LINEAR : TOLERANCE_BF16;
}

static double relative(const run_span *s)
{
    return s->worst == 0 ? 0 : s->largest > 0 ? s->worst / s->largest : (double)INFINITY;
}

int run_check_input_gradient(char *sentence, size_t sentence_bytes, const run_task *task, const void *dx,
                             const void *reference)
{
    const heddle_shape *shape = &task->info.shape;
    const int64_t elems = judge_elems(shape);
    run_span s = {0};
    if (only_moves(task)) {
        return run_check_values(sentence, sentence_bytes, task, dx, reference);
    }
    for (int64_t i = 0; i < elems; i++) {
        run_span_take(&s, (double)feed_load(dx, i, shape->dtype), (double)feed_load(reference, i, shape->dtype), i);
    }
    const double tolerance = tolerance_of(task, TOLERANCE_INPUT);
    const int code = relative(&s) <= tolerance ? 0 : 1;
    snprintf(sentence, sentence_bytes,
             "%s one rank: the largest difference of %" PRId64 " values is %.3g of the largest, the tolerance %g",
             code == 0 ? "equal within the tolerance to" : "differs from", elems, relative(&s), tolerance);
    return code;
}

/* A gradient that is zero but for rounding (of q and k where attention sees one token) is measured against the others:
 * every tensor's largest counts as at least this part of the largest of all. */
static const double noise = 1e-3;

static double noise_floor(const run_result *reference)
{
    const float *b = reference->gradient;
    run_span s = {0};
    for (int p = 0; p < reference->nparts; p++) {
        for (int64_t i = 0; i < reference->part_elems[p]; i++, b++) {
            run_span_take(&s, (double)*b, (double)*b, i);
        }
    }
    return noise * s.largest;
}

/* "fc1.weight of stage 's.mlp' of layer 0" */
static void part_name(char *out, size_t out_bytes, const run_task *task, int part)
{
    const int nstages = task->info.nstages * task->info.repeat;
    for (int i = 0; i < nstages; i++) {
        heddle_block *block = NULL;
        heddle_block_options options;
        heddle_param param = {.struct_bytes = sizeof param, .name = "?"};
        int count = 0;
        char stage[128];
        if (run_block_options(&options, task, i % task->info.nstages) == HEDDLE_OK &&
            heddle_block_create(&block, &options) == HEDDLE_OK) {
            count = heddle_block_nparams(block);
        }
        if (part < count) {
            heddle_ignore(heddle_block_param(&param, block, part));
            run_step_name(stage, sizeof(stage), task, i);
            snprintf(out, out_bytes, "%s of %s", param.name, stage);
        }
        heddle_block_destroy(block);
        if (part < count) {
            return;
        }
        part -= count;
    }
    snprintf(out, out_bytes, "the conditioning's %s", part == 0 ? "vector" : "text");
}

int run_check_gradients(char *sentence, size_t sentence_bytes, double *error, const run_task *task,
                        const run_result *mine, const run_result *reference)
{
    const double tolerance = tolerance_of(task, TOLERANCE_PARAMETER);
    const float *a = mine->gradient, *b = reference->gradient;
    const double least = noise_floor(reference);
    char name[256];
    int worst = 0;
    *error = 0;
    for (int p = 0; p < mine->nparts; p++) {
        run_span s = {.largest = least};
        for (int64_t i = 0; i < mine->part_elems[p]; i++) {
            run_span_take(&s, (double)*a++, (double)*b++, i);
        }
        if (relative(&s) > *error) {
            *error = relative(&s);
            worst = p;
        }
    }
    const int code = *error <= tolerance ? 0 : 1;
    part_name(name, sizeof(name), task, worst);
    snprintf(sentence, sentence_bytes,
             "gradients of %d parameters %s one rank: the largest difference is %.3g of a tensor's largest gradient "
             "(%s), the tolerance %g",
             mine->nparts, code == 0 ? "equal within the tolerance to" : "differ from", *error, name, tolerance);
    return code;
}

/* What the schedule says: with --recompute methods run forward once more. -1: it cannot be asked. */
static int64_t scheduled_bytes(const run_task *task)
{
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    if (heddle_schedule_get_info(&info, task->schedule) != HEDDLE_OK) {
        return -1;
    }
    for (int i = 0; i < info.nstages && task->recompute; i++) {
        if (heddle_schedule_stage_at(&stage, task->schedule, i) == HEDDLE_OK) {
            info.backward_bytes_total += stage.forward_bytes_total;
        }
    }
    return info.backward_bytes_total;
}

int run_check_backward_bytes(char *sentence, size_t sentence_bytes, const run_report *r)
{
    const run_task *task = r->task;
    const int nsteps = r->mine.nsteps;
    const int64_t scheduled = scheduled_bytes(task);
    char name[128];
    int64_t moved = 0, reduced = 0;
    for (int rank = 0; rank < r->nranks; rank++) {
        const int64_t *total = &r->totals[rank * RUN_TOTALS];
        for (int i = 0; i < nsteps; i++) {
            const run_step *s = &r->back[rank * nsteps + i];
            moved += s->sent;
            if (s->sent != s->planned) {
                run_step_name(name, sizeof(name), task, i);
                snprintf(sentence, sentence_bytes,
                         "backward: rank %d sent %" PRId64 " bytes at %s, planned were %" PRId64, rank, s->sent, name,
                         s->planned);
                return 1;
            }
        }
        reduced += total[RUN_TOTAL_REDUCE_SENT];
        if (total[RUN_TOTAL_REDUCE_SENT] != total[RUN_TOTAL_REDUCE_PLANNED]) {
            snprintf(sentence, sentence_bytes,
                     "rank %d sent %" PRId64 " bytes of parameter gradients, planned were %" PRId64, rank,
                     total[RUN_TOTAL_REDUCE_SENT], total[RUN_TOTAL_REDUCE_PLANNED]);
            return 1;
        }
    }
    if (moved != scheduled) {
        snprintf(sentence, sentence_bytes, "backward: the ranks sent %" PRId64 " bytes, the schedule says %" PRId64,
                 moved, scheduled);
        return 1;
    }
    snprintf(sentence, sentence_bytes,
             "backward: bytes sent = bytes planned for %d rank%s x %d edge%s (%" PRId64
             " bytes) and the gradients (%" PRId64 " bytes)",
             r->nranks, judge_s(r->nranks), nsteps, judge_s(nsteps), moved, reduced);
    return 0;
}
