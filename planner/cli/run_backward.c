/* One rank's way back: from a seeded gradient of the output through all stages in reverse, and the sum of the
 * parameters' gradients over the ranks. */
#include "run_backward.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEED_LOSS = 301, VECTOR_ROWS = 6 };

/* bf16 by cutting off: any numbers will do, the same everywhere. */
static void store(void *x, int64_t index, float value, heddle_dtype dtype)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    if (dtype == HEDDLE_F32) {
        ((float *)x)[index] = value;
    } else {
        ((uint16_t *)x)[index] = (uint16_t)(bits >> 16);
    }
}

static heddle_block *block_of(const run_pass *f, int step)
{
    return run_block(f, step / f->job->info.nstages, step % f->job->info.nstages);
}

/* --- preparing --- */

static int64_t vector_elems(const run_pass *f)
{
    return f->job->info.shape.dim[0].extent * VECTOR_ROWS * f->job->info.shape.dim[f->job->info.channel_dim].extent;
}

static int64_t text_elems(const run_pass *f)
{
    return f->job->info.shape.dim[0].extent * f->job->info.text_tokens *
           f->job->info.shape.dim[f->job->info.channel_dim].extent;
}

static heddle_status make_tapes(run_pass *f)
{
    heddle_tape_options options;
    heddle_tape_options_init(&options);
    options.recompute = f->job->options->recompute;
    f->back->tape = calloc((size_t)f->nblocks, sizeof(heddle_tape *));
    if (f->back->tape == NULL) {
        return run_no_memory("tapes", f->nblocks * (int64_t)sizeof(heddle_tape *));
    }
    for (int i = 0; i < f->nblocks; i++) { /* they run one after the other: one workspace is enough */
        heddle_status st = i > 0 ? heddle_block_share_workspace(block_of(f, i), block_of(f, 0)) : HEDDLE_OK;
        if (st == HEDDLE_OK) {
            st = heddle_tape_create(&f->back->tape[i], block_of(f, i), &options);
        }
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    return HEDDLE_OK;
}

/* The parameters of all blocks, then the two parts of the conditioning, whose gradients are sums over rows too. */
static heddle_status list_parts(run_pass *f, heddle_bucket_part *part)
{
    int count = 0;
    for (int i = 0; i < f->nblocks; i++) {
        heddle_block *block = block_of(f, i);
        for (int j = 0; j < heddle_block_nparams(block); j++) {
            heddle_param param, gradient;
            heddle_status st = heddle_block_param(&param, block, j);
            st = st == HEDDLE_OK ? heddle_block_gradient(&gradient, block, j) : st;
            if (st != HEDDLE_OK) {
                return st;
            }
            part[count++] = (heddle_bucket_part){param.data, gradient.data,
                                                 param.extent[0] * (param.ndim > 1 ? param.extent[1] : 1), 1};
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
    for (int i = 0; i < f->nblocks; i++) {
        f->back->nparts += heddle_block_nparams(block_of(f, i));
    }
    f->back->part = calloc((size_t)f->back->nparts, sizeof(heddle_bucket_part));
    f->back->dvector = calloc((size_t)vector_elems(f) + 1, sizeof(float));
    f->back->dtext = calloc((size_t)text_elems(f) + 1, sizeof(float));
    if (f->back->part == NULL || f->back->dvector == NULL || f->back->dtext == NULL) {
        return run_no_memory("gradients of the conditioning", text_elems(f) * (int64_t)sizeof(float));
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
    heddle_schedule_edge edge;
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
        st = heddle_buffer_alloc(&f->back->loss, f->comm, bytes + 1, HEDDLE_SPACE_HOST);
    }
    for (int64_t i = 0; st == HEDDLE_OK && i < heddle_box_elems(&box); i++) {
        int64_t rest = i, global = 0, step = 1;
        for (int d = box.ndim - 1; d >= 0; d--) {
            global += (box.lo[d] + rest % box.len[d]) * step;
            rest /= box.len[d];
            step *= shape->dim[d].extent;
        }
        store(f->back->loss, i, run_uniform((uint64_t)f->job->options->seed + SEED_LOSS, (uint64_t)global),
              shape->dtype);
    }
    return st != HEDDLE_OK ? st
                           : heddle_tensor_init(&f->back->dx, f->back->loss, shape, &info->mesh, &edge.to, NULL, rank);
}

heddle_status run_backward_prepare(run_pass *f, const heddle_schedule *schedule, run_result *out)
{
    heddle_schedule_info info = {.struct_bytes = sizeof(info)};
    heddle_status st = heddle_schedule_get_info(&info, schedule);
    f->back = calloc(1, sizeof(*f->back));
    if (st == HEDDLE_OK && f->back != NULL) {
        f->back->step = calloc((size_t)out->nsteps, sizeof(run_step));
        out->back = calloc((size_t)out->nsteps, sizeof(run_step));
        f->back->path = out->back_path = calloc((size_t)out->nsteps, sizeof(*out->back_path));
    }
    if (st == HEDDLE_OK && (f->back == NULL || f->back->step == NULL || out->back == NULL || out->back_path == NULL)) {
        return run_no_memory("timings", out->nsteps * (int64_t)sizeof(run_step));
    }
    st = st == HEDDLE_OK ? make_tapes(f) : st;
    return st == HEDDLE_OK ? make_bucket(f, &info.mesh) : st;
}

void run_backward_release(run_pass *f)
{
    if (f->back == NULL) {
        return;
    }
    for (int i = 0; f->back->tape != NULL && i < f->nblocks; i++) {
        heddle_tape_destroy(f->back->tape[i]);
    }
    heddle_bucket_destroy(f->back->bucket);
    heddle_buffer_free(f->comm, f->back->loss);
    free(f->back->tape);
    free(f->back->part);
    free(f->back->dvector);
    free(f->back->dtext);
    free(f->back->step);
    free(f->back);
}

heddle_status run_forward_keeping(run_pass *f, int step, void *x, const heddle_box *box,
                                  const heddle_conditioning *conditioning)
{
    heddle_status st =
        heddle_block_forward_tape(block_of(f, step), x, box, conditioning, f->back->tape[step], HEDDLE_NO_STREAM);
    f->step[step].kept_bytes = heddle_tape_bytes(f->back->tape[step]);
    return st;
}

/* --- running --- */

static void mark(const run_pass *f, int place)
{
    if (f->job->place != NULL) { /* for the sentence about a rank that cannot speak any more */
        __atomic_store_n(&f->job->place[heddle_comm_rank(f->comm)], place + 1, __ATOMIC_RELAXED);
    }
}

static heddle_status leave(run_pass *f, const char *stage, int index, int nsteps)
{
    heddle_session_record record;
    run_step *step = &f->back->step[index];
    mark(f, nsteps + index);
    heddle_status st = heddle_session_backward(f->session, stage, &f->back->dx, NULL, HEDDLE_NO_STREAM);
    if (st == HEDDLE_OK) {
        st = heddle_session_record_at(&record, f->session, f->entered++);
    }
    if (st == HEDDLE_OK) {
        step->planned += record.bytes_planned;
        step->sent += record.bytes_sent;
        step->messages += record.bytes_messages;
        step->switch_ns = record.ns;
        snprintf(f->back->path[index], RUN_PATH_BYTES, "%s", record.path);
    }
    return st;
}

static int64_t planned_forward(const heddle_block *block)
{
    heddle_block_traffic traffic = {.struct_bytes = sizeof(traffic)};
    return heddle_block_get_traffic(&traffic, block) == HEDDLE_OK ? traffic.planned_forward_bytes : 0;
}

/* A rank without rows has no part in a block that does not communicate. */
static heddle_status back_through(run_pass *f, const heddle_schedule_info *info, int index)
{
    const heddle_conditioning conditioning = {f->vector, f->text, f->text_lengths};
    const heddle_conditioning_gradient gradient = {f->back->dvector, f->back->dtext};
    heddle_block *block = block_of(f, index);
    run_step *step = &f->back->step[index];
    heddle_box box;
    mark(f, info->nedges + index);
    heddle_status st =
        heddle_layout_box(&box, &info->shape, &info->mesh, &f->back->dx.layout, heddle_comm_rank(f->comm));
    const int64_t start_ns = run_now_ns(), sent = run_block_sent(block);
    if (st == HEDDLE_OK && run_takes_part(f, index / f->job->info.nstages, index % f->job->info.nstages, &box)) {
        st = heddle_block_backward(block, f->back->dx.data, &conditioning, &gradient, f->back->tape[index],
                                   HEDDLE_NO_STREAM);
    }
    step->compute_ns = run_now_ns() - start_ns;
    run_add_block_traffic(step, block, sent, 1);
    if (f->job->options->recompute) { /* the forward once more, its attention's messages too */
        step->planned += planned_forward(block);
    }
    return st;
}

static heddle_status reduce(run_pass *f, run_reduction *out, int place)
{
    heddle_bucket_info before = {.struct_bytes = sizeof(before)}, after = {.struct_bytes = sizeof(after)};
    mark(f, place);
    heddle_status st = heddle_bucket_get_info(&before, f->back->bucket);
    const int64_t start_ns = run_now_ns();
    st = st == HEDDLE_OK ? heddle_bucket_reduce(f->back->bucket, HEDDLE_NO_STREAM) : st;
    out->ns = run_now_ns() - start_ns;
    st = st == HEDDLE_OK ? heddle_bucket_get_info(&after, f->back->bucket) : st;
    if (st == HEDDLE_OK) {
        out->planned = after.planned_bytes;
        out->sent = after.measured_bytes - before.measured_bytes;
        out->elems = after.elems;
    }
    return st;
}

heddle_status run_backward_pass(run_pass *f, const heddle_schedule *schedule, int pass, run_reduction *reduction,
                                int64_t *backward_ns)
{
    heddle_schedule_info info = {.struct_bytes = sizeof(info)};
    heddle_status st = heddle_schedule_get_info(&info, schedule);
    st = st == HEDDLE_OK ? make_loss(f, schedule, &info) : st;
    heddle_bucket_zero(f->back->bucket, HEDDLE_NO_STREAM); /* passes are the same step again */
    memset(f->back->step, 0, (size_t)info.nedges * sizeof(run_step));
    st = st == HEDDLE_OK ? heddle_comm_barrier(f->comm) : st;
    const int64_t start_ns = run_now_ns();
    st = st == HEDDLE_OK ? leave(f, "end", info.nstages, info.nedges) : st;
    for (int i = info.nstages - 1; i >= 0 && st == HEDDLE_OK; i--) {
        heddle_schedule_stage stage;
        st = heddle_schedule_stage_at(&stage, schedule, i);
        if (st == HEDDLE_OK) {
            run_show_progress(f, pass, stage.repetition, stage.name);
            st = back_through(f, &info, i);
            st = st != HEDDLE_OK ? run_at_stage(st, stage.name, stage.repetition) : st;
        }
        st = st == HEDDLE_OK ? leave(f, stage.name, i, info.nedges) : st;
    }
    st = st == HEDDLE_OK ? heddle_comm_barrier(f->comm) : st;
    *backward_ns = run_now_ns() - start_ns;
    return st == HEDDLE_OK ? reduce(f, reduction, 2 * info.nedges) : st;
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
