/* One rank's way back: from a seeded gradient of the output through all stages in reverse, and the sum of the
 * parameters' gradients over the ranks. */
#include "runtime/verify/judge_array.h"
#include "runtime/verify/run_pass.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SEED_LOSS = 301, VECTOR_ROWS = 6 };

/* --- preparing --- */

static int64_t vector_elems(const run_pass *f)
{
    return f->task->info.shape.dim[0].extent * VECTOR_ROWS * f->task->info.shape.dim[f->task->info.channel_dim].extent;
}

static int64_t text_elems(const run_pass *f)
{
    return f->task->info.shape.dim[0].extent * f->task->info.text_tokens *
           f->task->info.shape.dim[f->task->info.channel_dim].extent;
}

/* The parameters of all blocks, then the two parts of the conditioning, whose gradients are sums over rows too. */
static heddle_status list_parts(run_pass *f, heddle_bucket_part *part)
{
    int count = 0;
    for (int i = 0; heddle_executor_block(f->executor, i) != NULL; i++) {
        heddle_block *block = heddle_executor_block(f->executor, i);
        for (int j = 0; j < heddle_block_nparams(block); j++) {
            heddle_param param = HEDDLE_EMPTY(heddle_param), gradient = HEDDLE_EMPTY(heddle_param);
            heddle_status st = heddle_block_param(&param, block, j);
            st = st == HEDDLE_OK ? heddle_block_gradient(&gradient, block, j) : st;
            if (st != HEDDLE_OK) {
                return st;
            }
            const int64_t elems = param.extent[0] * (param.ndim > 1 ? param.extent[1] : 1);
            if (f->back->grad_there != NULL) {
                f->back->grad_there[count] = gradient.data;
                gradient.data = malloc((size_t)elems * sizeof(float));
                if (gradient.data == NULL) {
                    return run_no_memory("gradients", elems * (int64_t)sizeof(float));
                }
            }
            part[count++] = (heddle_bucket_part){param.data, gradient.data, elems, 1};
        }
    }
    part[count++] = (heddle_bucket_part){f->vector, f->back->dvector, vector_elems(f), 0};
    part[count++] = (heddle_bucket_part){f->text, f->back->dtext, text_elems(f), 0};
    return HEDDLE_OK;
}

static heddle_status make_bucket(run_pass *f, const heddle_mesh *mesh)
{
    heddle_bucket_options options;
    f->back->nparts = 2;
    for (int i = 0; heddle_executor_block(f->executor, i) != NULL; i++) {
        f->back->nparts += heddle_block_nparams(heddle_executor_block(f->executor, i));
    }
    f->back->part = calloc((size_t)f->back->nparts, sizeof(heddle_bucket_part));
    f->back->dvector = calloc((size_t)vector_elems(f) + 1, sizeof(float));
    f->back->dtext = calloc((size_t)text_elems(f) + 1, sizeof(float));
    if (f->back->part == NULL || f->back->dvector == NULL || f->back->dtext == NULL) {
        return run_no_memory("gradients of the conditioning", text_elems(f) * (int64_t)sizeof(float));
    }
    if (run_is_there(f)) {
        f->back->grad_there = calloc((size_t)f->back->nparts, sizeof(void *));
        heddle_status placed = f->back->grad_there == NULL ? run_no_memory("gradients", f->back->nparts) : HEDDLE_OK;
        placed = placed == HEDDLE_OK
                     ? run_place(&f->back->dvector_there, f, f->back->dvector, (size_t)vector_elems(f) * sizeof(float))
                     : placed;
        placed = placed == HEDDLE_OK
                     ? run_place(&f->back->dtext_there, f, f->back->dtext, (size_t)text_elems(f) * sizeof(float))
                     : placed;
        if (placed != HEDDLE_OK) {
            return placed;
        }
    }
    heddle_status st = list_parts(f, f->back->part);
    if (st != HEDDLE_OK) {
        return st;
    }
    heddle_bucket_options_init(&options);
    options.sum_axes = (1U << mesh->naxes) - 1; /* whatever an axis shards, the loss is a sum over its rows */
    return heddle_bucket_create(&f->back->bucket, f->comm, mesh, f->back->part, f->back->nparts, &options);
}

/* A loss on the output as it is: where that is replicated every rank has the same gradient. */
static heddle_status make_loss(run_pass *f, const heddle_schedule *schedule, const heddle_schedule_info *info)
{
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    heddle_box box;
    const heddle_shape *shape = &info->shape;
    const int rank = heddle_comm_rank(f->comm);
    heddle_status st = heddle_schedule_edge_at(&edge, schedule, info->nedges - 1);
    if (st != HEDDLE_OK) {
        return st;
    }
    for (int a = 0; a < HEDDLE_MAX_AXES; a++) {
        if (edge.to.dim_of_axis[a] == HEDDLE_PARTIAL) {
            edge.to.dim_of_axis[a] = HEDDLE_REPLICATED;
        }
    }
    st = heddle_layout_box(&box, shape, &info->mesh, &edge.to, rank);
    if (st == HEDDLE_OK && f->back->loss == NULL) {
        const size_t bytes = (size_t)heddle_box_elems(&box) * heddle_dtype_bytes(shape->dtype);
        f->back->loss_bytes = (int64_t)bytes;
        st = heddle_buffer_alloc(&f->back->loss, f->comm, bytes + 1, HEDDLE_SPACE_HOST);
    }
    for (int64_t i = 0; st == HEDDLE_OK && i < heddle_box_elems(&box); i++) {
        int64_t rest = i, global = 0, step = 1;
        for (int d = box.ndim - 1; d >= 0; d--) {
            global += (box.lo[d] + rest % box.len[d]) * step;
            rest /= box.len[d];
            step *= shape->dim[d].extent;
        }
        judge_store((char *)f->back->loss + i * (int64_t)heddle_dtype_bytes(shape->dtype), shape->dtype,
                    feed_uniform(f->task->feed->seed + SEED_LOSS, (uint64_t)global));
    }
    st = st == HEDDLE_OK ? heddle_tensor_init(&f->back->dx, f->back->loss, shape, &info->mesh, &edge.to, NULL, rank)
                         : st;
    return st == HEDDLE_OK && run_is_there(f) ? run_place_tensor(&f->back->dx, &f->back->loss_there, f) : st;
}

heddle_status run_backward_prepare(run_pass *f, const heddle_schedule *schedule, run_result *out)
{
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    heddle_status st = heddle_schedule_get_info(&info, schedule);
    f->back = calloc(1, sizeof(*f->back));
    out->back = calloc((size_t)out->nsteps, sizeof(run_step));
    out->back_path = calloc((size_t)out->nsteps, sizeof(*out->back_path));
    if (st == HEDDLE_OK && (f->back == NULL || out->back == NULL || out->back_path == NULL)) {
        return run_no_memory("timings", out->nsteps * (int64_t)sizeof(run_step));
    }
    st = st == HEDDLE_OK && run_is_there(f) ? make_loss(f, schedule, &info) : st; /* its memory, before ranks meet */
    return st == HEDDLE_OK ? make_bucket(f, &info.mesh) : st;
}

void run_backward_release(run_pass *f)
{
    if (f->back == NULL) {
        return;
    }
    heddle_bucket_destroy(f->back->bucket);
    heddle_buffer_free(f->comm, f->back->loss);
    heddle_buffer_free(f->comm, f->back->loss_there);
    heddle_buffer_free(f->comm, f->back->dvector_there);
    heddle_buffer_free(f->comm, f->back->dtext_there);
    for (int i = 0; f->back->grad_there != NULL && f->back->part != NULL && i < f->back->nparts - 2; i++) {
        free(f->back->part[i].grad);
    }
    free(f->back->grad_there);
    free(f->back->part);
    free(f->back->dvector);
    free(f->back->dtext);
    free(f->back);
}

/* --- running --- */

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static heddle_status reduce(run_pass *f, run_reduction *out, int nsteps)
{
    heddle_bucket_info before = HEDDLE_EMPTY(heddle_bucket_info), after = HEDDLE_EMPTY(heddle_bucket_info);
    if (f->task->step_of != NULL) { /* behind all steps, forward and back */
        __atomic_store_n(&f->task->step_of[heddle_comm_rank(f->comm)], 2 * nsteps + 1, __ATOMIC_RELAXED);
    }
    heddle_status st = heddle_bucket_get_info(&before, f->back->bucket);
    const int64_t start_ns = now_ns();
    st = st == HEDDLE_OK ? heddle_bucket_reduce(f->back->bucket, HEDDLE_NO_STREAM) : st;
    out->ns = now_ns() - start_ns;
    st = st == HEDDLE_OK ? heddle_bucket_get_info(&after, f->back->bucket) : st;
    if (st == HEDDLE_OK) {
        out->planned = after.planned_bytes;
        out->sent = after.measured_bytes - before.measured_bytes;
        out->elems = after.elems;
    }
    return st;
}

heddle_status run_backward_pass(double *ms, run_pass *f, const heddle_schedule *schedule, run_reduction *reduction)
{
    const int is_there = run_is_there(f);
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    heddle_status st = heddle_schedule_get_info(&info, schedule);
    st = st == HEDDLE_OK ? make_loss(f, schedule, &info) : st;
    heddle_bucket_zero(f->back->bucket, HEDDLE_NO_STREAM); /* passes are the same step again */
    st = st == HEDDLE_OK && is_there ? run_back_there(f, 1) : st;
    st = st == HEDDLE_OK ? run_way(ms, f, 1) : st;
    st = st == HEDDLE_OK && is_there ? run_back_there(f, 0) : st;
    return st == HEDDLE_OK ? reduce(f, reduction, info.nedges) : st;
}

/* --- what comes out --- */

heddle_status run_backward_result(run_result *out, run_pass *f, const heddle_mesh *mesh)
{
    int64_t elems = 0;
    heddle_status st = run_gather(&out->dx, f, &f->back->dx, mesh);
    for (int i = 0; i < f->back->nparts; i++) {
        const heddle_bucket_part *part = &f->back->part[i];
        elems += part->elems;
        out->hash[RUN_WHOLE_GRADIENT] =
            run_hash(out->hash[RUN_WHOLE_GRADIENT], part->grad, (size_t)part->elems * sizeof(float));
    }
    if (st != HEDDLE_OK || heddle_comm_rank(f->comm) != 0) {
        return st;
    }
    out->nparts = f->back->nparts;
    out->part_elems = malloc((size_t)f->back->nparts * sizeof(int64_t));
    out->gradient = malloc((size_t)elems * sizeof(float) + 1);
    if (out->part_elems == NULL || out->gradient == NULL) {
        return run_no_memory("gradients", elems * (int64_t)sizeof(float));
    }
    float *to = out->gradient;
    for (int i = 0; i < f->back->nparts; i++) {
        out->part_elems[i] = f->back->part[i].elems;
        memcpy(to, f->back->part[i].grad, (size_t)f->back->part[i].elems * sizeof(float));
        to += f->back->part[i].elems;
    }
    return HEDDLE_OK;
}
