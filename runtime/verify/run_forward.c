/* One rank's passes through an executor. The one-rank reference is the same code on a communicator of one.
 * run_backward.c has what a training step does besides. */
#include "runtime/verify/device_array.h"
#include "runtime/verify/run_pass.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEED_VECTOR = 201, SEED_TEXT = 202, VECTOR_ROWS = 6 };

heddle_status run_no_memory(const char *what, int64_t bytes)
{
    return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %" PRId64 " bytes of %s", bytes, what);
}

static int64_t peak_bytes(void)
{
    char line[256];
    long long kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "VmHWM: %lld kB", &kib) == 1) {
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return (int64_t)kib * 1024;
}

/* --- preparing --- */

static heddle_status make_conditioning(run_pass *f)
{
    const run_task *task = f->task;
    const int64_t batch = task->info.shape.dim[0].extent;
    const int64_t channels = task->info.shape.dim[task->info.channel_dim].extent, tokens = task->info.text_tokens;
    const uint64_t seed = task->feed->seed;
    int64_t text_bytes = 0, vector_bytes = 0;
    if (__builtin_mul_overflow(tokens, (int64_t)sizeof(float), &text_bytes) ||
        __builtin_mul_overflow(batch * channels, text_bytes, &text_bytes) ||
        __builtin_mul_overflow(batch * channels, VECTOR_ROWS * (int64_t)sizeof(float), &vector_bytes)) {
        return heddle_set_error(HEDDLE_ERR_NOMEM, "%" PRId64 " text tokens of %" PRId64 " channels pass 2^63 bytes",
                                tokens, channels);
    }
    f->vector = malloc((size_t)vector_bytes + 1);
    f->text = malloc((size_t)text_bytes + 1);
    f->text_lengths = malloc((size_t)batch * sizeof(*f->text_lengths) + 1);
    if (f->vector == NULL || f->text == NULL || f->text_lengths == NULL) {
        return run_no_memory("conditioning", vector_bytes > text_bytes ? vector_bytes : text_bytes);
    }
    for (int64_t i = 0; i < batch * VECTOR_ROWS * channels; i++) {
        f->vector[i] = 0.5F * feed_uniform(seed + SEED_VECTOR, (uint64_t)i);
    }
    for (int64_t i = 0; i < batch * tokens * channels; i++) {
        f->text[i] = feed_uniform(seed + SEED_TEXT, (uint64_t)i);
    }
    for (int64_t b = 0; b < batch; b++) { /* captions of different lengths */
        f->text_lengths[b] = tokens - (b * 7 + 3) % (tokens / 2 + 1);
    }
    f->conditioning = (heddle_conditioning){f->vector, f->text, f->text_lengths};
    if (!run_is_there(f)) {
        return HEDDLE_OK;
    }
    heddle_status st = run_place(&f->vector_there, f, f->vector, (size_t)vector_bytes);
    st = st == HEDDLE_OK ? run_place(&f->text_there, f, f->text, (size_t)text_bytes) : st;
    f->conditioning = (heddle_conditioning){f->vector_there, f->text_there, f->text_lengths};
    return st;
}

/* x as the schedule's prologue has it, in memory that peers reach. */
static heddle_status make_first(run_pass *f, const heddle_schedule *schedule)
{
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    heddle_box box;
    const heddle_shape *shape = &f->task->info.shape;
    const int rank = heddle_comm_rank(f->comm);
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    heddle_status st = heddle_schedule_get_info(&info, schedule);
    if (st == HEDDLE_OK) {
        st = heddle_schedule_edge_at(&edge, schedule, 0);
    }
    if (st == HEDDLE_OK) {
        st = heddle_layout_box(&box, shape, &info.mesh, &edge.from, rank);
    }
    if (st != HEDDLE_OK) {
        return st;
    }
    if (f->first == NULL) {
        const size_t bytes = (size_t)heddle_box_elems(&box) * heddle_dtype_bytes(shape->dtype);
        f->first_bytes = (int64_t)bytes;
        st = heddle_buffer_alloc(&f->first, f->comm, bytes + 1, HEDDLE_SPACE_HOST);
    }
    if (st == HEDDLE_OK) {
        st = feed_fill(f->first, f->task->feed, &box);
    }
    st = st == HEDDLE_OK ? heddle_tensor_init(&f->x, f->first, shape, &info.mesh, &edge.from, NULL, rank) : st;
    return st == HEDDLE_OK && run_is_there(f) ? run_place_tensor(&f->x, &f->first_there, f) : st;
}

heddle_status run_block_options(heddle_block_options *options, const run_task *task, int stage)
{
    heddle_stage_info info = HEDDLE_EMPTY(heddle_stage_info);
    heddle_status st = heddle_model_stage(&info, task->model, stage);
    if (st != HEDDLE_OK) {
        return st;
    }
    heddle_block_options_init(options);
    options->kind = info.kind;
    options->shape = task->info.shape;
    options->mixed_dim = info.mixed_dim;
    options->heads = info.heads;
    options->mlp_channels = info.mlp_channels;
    options->text_tokens = task->info.text_tokens;
    options->modulate = info.modulate;
    options->rope = info.rope;
    options->qk_norm = info.qk_norm;
    options->causal = info.causal;
    options->decay = info.decay;
    options->threads = task->threads;
    return HEDDLE_OK;
}

/* --- running --- */

/* Told by the executor: where this rank is, for the sentence about one that cannot speak any more, and for who watches.
 */
static void begin_step(void *ctx, int step, int backward)
{
    const run_pass *f = ctx;
    const run_task *task = f->task;
    const int nstages = task->info.nstages * task->info.repeat;
    if (task->step_of != NULL) {
        __atomic_store_n(&task->step_of[heddle_comm_rank(f->comm)], (backward ? nstages + 1 : 0) + step + 1,
                         __ATOMIC_RELAXED);
    }
    if (f->is_watched && f->how == RUN_BY_STEPS) {
        task->watch(task, f->how, f->pass, step);
    }
}

/* A device without room for the weights of all layers: what asks for them, and what runs fewer. */
static heddle_status say_layers(const run_pass *f, heddle_status st)
{
    const run_task *task = f->task;
    char why[HEDDLE_LINE_BYTES];
    if (st != HEDDLE_ERR_NOMEM || !run_is_there(f) || task->info.repeat == 1 || (!task->in_one_go && !task->backward)) {
        return st;
    }
    snprintf(why, sizeof why, "%s", heddle_last_error());
    return heddle_set_error(st, "%s; for %s the weights of all %d layers lie there, --layers runs fewer", why,
                            task->backward ? "--backward" : "--passes above 1", task->info.repeat);
}

static heddle_status make_weights(void *ctx, heddle_block *block, int stage, int repetition)
{
    const run_pass *f = ctx;
    const run_task *task = f->task;
    heddle_stage_info info = HEDDLE_EMPTY(heddle_stage_info);
    heddle_status st = heddle_model_stage(&info, task->model, stage);
    return st != HEDDLE_OK ? st
                           : say_layers(f, feed_set_weights(task->feed, block, info.name, repetition,
                                                            repetition * task->info.nstages + stage));
}

heddle_status run_take_steps(run_step *step, char (*path)[RUN_PATH_BYTES], const run_pass *f, int nsteps, int backward)
{
    for (int i = 0; i < nsteps; i++) {
        heddle_executor_step s = HEDDLE_EMPTY(heddle_executor_step);
        heddle_status st = heddle_executor_step_at(&s, f->executor, i, backward);
        if (st != HEDDLE_OK) {
            return st;
        }
        step[i] = (run_step){s.planned, s.sent, s.messages, s.switch_ns, s.block_ns, s.kept_bytes, s.copied_bytes};
        snprintf(path[i], RUN_PATH_BYTES, "%s", s.path);
    }
    return HEDDLE_OK;
}

/* data: this rank's part, on the host. */
static heddle_status gather(void **out, const run_pass *f, const heddle_tensor *x, const void *data,
                            const heddle_mesh *mesh)
{
    const heddle_shape *shape = &f->task->info.shape;
    const heddle_layout whole = heddle_layout_replicated();
    heddle_reshard *reshard = NULL;
    heddle_box box;
    heddle_status st = heddle_layout_box(&box, shape, mesh, &whole, heddle_comm_rank(f->comm));
    if (st != HEDDLE_OK) {
        return st;
    }
    const size_t bytes = (size_t)heddle_box_elems(&box) * heddle_dtype_bytes(shape->dtype);
    *out = malloc(bytes + 1);
    if (*out == NULL) {
        return run_no_memory("output", (int64_t)bytes);
    }
    if (heddle_layout_equal(&x->layout, &whole, mesh)) {
        memcpy(*out, data, bytes);
        return HEDDLE_OK;
    }
    heddle_reshard_options options;
    heddle_reshard_options_init(&options);
    options.memory = HEDDLE_MEMORY_ANY;
    options.tuning = HEDDLE_TUNING_RULES;
    st = heddle_reshard_create(&reshard, f->comm, shape, mesh, &x->layout, &whole, &options);
    if (st == HEDDLE_OK) {
        st = heddle_reshard_execute(reshard, data, *out, HEDDLE_NO_STREAM);
    }
    heddle_reshard_destroy(reshard);
    return st;
}

heddle_status run_gather(void **out, const run_pass *f, const heddle_tensor *x, const heddle_mesh *mesh)
{
    heddle_box box;
    void *part = NULL;
    if (x->space == HEDDLE_SPACE_HOST) {
        return gather(out, f, x, x->data, mesh);
    }
    heddle_status st = heddle_layout_box(&box, &x->shape, mesh, &x->layout, heddle_comm_rank(f->comm));
    st = st == HEDDLE_OK ? run_bring(&part, f, x, (size_t)heddle_box_elems(&box) * heddle_dtype_bytes(x->shape.dtype))
                         : st;
    st = st == HEDDLE_OK ? gather(out, f, x, part, mesh) : st;
    free(part);
    return st;
}

static heddle_status make_executor(run_pass *f, const heddle_schedule *schedule)
{
    const run_task *task = f->task;
    heddle_executor_options options;
    heddle_block_options *stages = calloc((size_t)task->info.nstages, sizeof(*stages));
    if (stages == NULL) {
        return run_no_memory("stages", task->info.nstages * (int64_t)sizeof(*stages));
    }
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < task->info.nstages && st == HEDDLE_OK; i++) {
        st = run_block_options(&stages[i], task, i);
    }
    heddle_executor_options_init(&options);
    options.backward = task->backward;
    options.recompute = task->recompute;
    options.unfused = task->unfused;
    options.timed = 1;
    options.keeps_weights = run_is_there(f) && task->in_one_go;
    options.weights = make_weights;
    options.before = begin_step;
    options.ctx = f;
    if (heddle_comm_device(f->comm) >= 0) {
        options.space = HEDDLE_SPACE_DEVICE;
        options.device = heddle_comm_device(f->comm);
        options.blocks = run_is_there(f) ? HEDDLE_SPACE_DEVICE : HEDDLE_SPACE_HOST;
    }
    st = st == HEDDLE_OK ? heddle_executor_create(&f->executor, f->comm, schedule, stages, &options) : st;
    free(stages);
    return say_layers(f, st);
}

static void release(run_pass *f)
{
    run_backward_release(f);
    run_way_release(f);
    heddle_executor_destroy(f->executor);
    judge_stream_destroy(f->comm, f->stream);
    heddle_buffer_free(f->comm, f->first);
    heddle_buffer_free(f->comm, f->first_there);
    heddle_buffer_free(f->comm, f->vector_there);
    heddle_buffer_free(f->comm, f->text_there);
    free(f->vector);
    free(f->text);
    free(f->text_lengths);
}

/* Keeps the times of the fastest pass, and with a mesh the output, which the way back writes over. */
static heddle_status one_pass(run_result *out, run_pass *f, const heddle_schedule *schedule, const heddle_mesh *mesh)
{
    run_reduction reduction = {0};
    heddle_executor_info info = HEDDLE_EMPTY(heddle_executor_info);
    double *ms = &out->ms[f->how * 2 * f->task->passes + f->pass];
    heddle_status st = make_first(f, schedule);
    st = st == HEDDLE_OK ? run_way(ms, f, 0) : st;
    if (st == HEDDLE_OK && mesh != NULL) {
        st = run_gather(&out->output, f, &f->x, mesh);
    }
    if (st == HEDDLE_OK && f->back != NULL) {
        st = run_backward_pass(&ms[f->task->passes], f, schedule, &reduction);
    }
    if (st != HEDDLE_OK || f->how != RUN_BY_STEPS) {
        return st;
    }
    st = heddle_executor_get_info(&info, f->executor);
    if (st == HEDDLE_OK && (f->pass == 0 || info.forward_ns + info.backward_ns < out->forward_ns + out->backward_ns)) {
        out->forward_ns = info.forward_ns;
        out->backward_ns = info.backward_ns;
        out->wire = info.wire;
        out->reduction = reduction;
        st = run_take_steps(out->step, out->path, f, out->nsteps, 0);
        if (st == HEDDLE_OK && f->back != NULL) {
            st = run_take_steps(out->back, out->back_path, f, out->nsteps, 1);
        }
    }
    return st;
}

static heddle_status all_passes(run_result *out, run_pass *f, const heddle_schedule *schedule, const heddle_mesh *mesh)
{
    const int64_t passes = f->task->passes;
    heddle_status st = run_way_prepare(f);
    out->hows = f->hows;
    for (f->how = RUN_BY_STEPS; f->how < f->hows && st == HEDDLE_OK; f->how++) {
        for (f->pass = 0; f->pass < passes && st == HEDDLE_OK; f->pass++) {
            const int is_last = f->pass + 1 == passes && f->how + 1 == f->hows;
            if (f->is_watched && f->how != RUN_BY_STEPS) {
                f->task->watch(f->task, f->how, f->pass, 0);
            }
            st = one_pass(out, f, schedule, is_last ? mesh : NULL);
        }
    }
    return st;
}

static void hash_wholes(run_result *out, const heddle_shape *shape)
{
    size_t bytes = heddle_dtype_bytes(shape->dtype);
    for (int d = 0; d < shape->ndim; d++) {
        bytes *= (size_t)shape->dim[d].extent;
    }
    out->hash[RUN_WHOLE_OUTPUT] = run_hash(0, out->output, bytes);
    if (out->dx != NULL) {
        out->hash[RUN_WHOLE_DX] = run_hash(0, out->dx, bytes);
    }
}

heddle_status run_forward(run_result *out, const run_task *task, heddle_comm *comm, const heddle_schedule *schedule,
                          int want_output)
{
    run_pass f = {.task = task, .comm = comm};
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    memset(out, 0, sizeof(*out));
    f.is_watched = heddle_comm_rank(comm) == 0 && task->watch != NULL;
    heddle_status st = heddle_schedule_get_info(&info, schedule);
    out->nsteps = info.nstages + 1;
    if (st == HEDDLE_OK) {
        out->step = calloc((size_t)out->nsteps, sizeof(run_step));
        out->path = calloc((size_t)out->nsteps, sizeof(*out->path));
        out->ms = calloc((size_t)task->passes, 2 * RUN_HOWS * sizeof(*out->ms));
        st = out->step == NULL || out->path == NULL || out->ms == NULL
                 ? run_no_memory("timings", (out->nsteps + task->passes) * (int64_t)sizeof(run_step))
                 : judge_stream_create(&f.stream, comm);
    }
    st = st == HEDDLE_OK ? make_conditioning(&f) : st;
    st = st == HEDDLE_OK && run_is_there(&f) ? make_first(&f, schedule) : st;
    st = st == HEDDLE_OK ? make_executor(&f, schedule) : st;
    if (st == HEDDLE_OK && task->backward) {
        st = run_backward_prepare(&f, schedule, out);
    }
    st = st == HEDDLE_OK ? all_passes(out, &f, schedule, want_output ? &info.mesh : NULL) : st;
    st = st == HEDDLE_OK ? st : run_give_up(&f, st);
    if (f.is_watched) {
        task->watch(task, f.how, f.pass, -1);
    }
    st = st == HEDDLE_OK ? run_take_memory(out, &f) : st;
    if (st == HEDDLE_OK && want_output && f.back != NULL) {
        st = run_backward_result(out, &f, &info.mesh);
    }
    if (st == HEDDLE_OK && want_output) {
        hash_wholes(out, &info.shape);
    }
    out->peak_bytes = peak_bytes();
    release(&f);
    if (st != HEDDLE_OK) {
        run_release(out);
    }
    return st;
}

void run_release(run_result *result)
{
    free(result->step);
    free(result->path);
    free(result->ms);
    free(result->output);
    free(result->back);
    free(result->back_path);
    free(result->dx);
    free(result->part_elems);
    free(result->gradient);
    memset(result, 0, sizeof(*result));
}
