/* One rank's forward pass: enter a stage, run its block on the local part, and so on. The one-rank reference is the
 * same code on a communicator of one. run_backward.c has the way back. */
#include "run_backward.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SEED_VECTOR = 201, SEED_TEXT = 202, VECTOR_ROWS = 6 };

int64_t run_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

heddle_status run_no_memory(const char *what, int64_t bytes)
{
    return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %" PRId64 " bytes of %s", bytes, what);
}

heddle_status run_at_stage(heddle_status st, const char *stage, int repetition)
{
    char sentence[1024];
    snprintf(sentence, sizeof(sentence), "%s", heddle_last_error());
    return heddle_set_error(st, "stage '%s' of layer %d: %s", stage, repetition, sentence);
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
    const run_job *job = f->job;
    const int64_t batch = job->info.shape.dim[0].extent;
    const int64_t channels = job->info.shape.dim[job->info.channel_dim].extent, tokens = job->info.text_tokens;
    const uint64_t seed = (uint64_t)job->options->seed;
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
        f->vector[i] = 0.5F * run_uniform(seed + SEED_VECTOR, (uint64_t)i);
    }
    for (int64_t i = 0; i < batch * tokens * channels; i++) {
        f->text[i] = run_uniform(seed + SEED_TEXT, (uint64_t)i);
    }
    for (int64_t b = 0; b < batch; b++) { /* captions of different lengths */
        f->text_lengths[b] = tokens - (b * 7 + 3) % (tokens / 2 + 1);
    }
    return HEDDLE_OK;
}

/* x as the schedule's prologue has it, in memory that peers reach. */
static heddle_status make_first(run_pass *f, const heddle_schedule *schedule)
{
    heddle_schedule_edge edge;
    heddle_box box;
    const heddle_shape *shape = &f->job->info.shape;
    const int rank = heddle_comm_rank(f->comm);
    heddle_schedule_info info = {.struct_bytes = sizeof(info)};
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
        st = heddle_buffer_alloc(&f->first, f->comm, bytes + 1, HEDDLE_SPACE_HOST);
    }
    if (st == HEDDLE_OK) {
        st = run_fill(f->first, f->job, &box);
    }
    return st != HEDDLE_OK ? st : heddle_tensor_init(&f->x, f->first, shape, &info.mesh, &edge.from, NULL, rank);
}

/* --- running --- */

void run_show_progress(const run_pass *f, int pass, int repetition, const char *stage)
{
    if (!f->progress) {
        return;
    }
    fprintf(stderr, "\r\033[K");
    if (f->job->options->passes > 1) {
        fprintf(stderr, "pass %d/%lld  ", pass + 1, f->job->options->passes);
    }
    fprintf(stderr, "layer %d/%d  %s", repetition + 1, f->job->info.repeat, stage);
    fflush(stderr);
}

static heddle_status enter(run_pass *f, const char *stage, run_step *step)
{
    heddle_session_record record;
    if (f->job->place != NULL) { /* for the sentence about a rank that cannot speak any more */
        __atomic_store_n(&f->job->place[heddle_comm_rank(f->comm)], (int)(step - f->step) + 1, __ATOMIC_RELAXED);
    }
    heddle_status st = heddle_session_enter(f->session, stage, &f->x, NULL, HEDDLE_NO_STREAM);
    if (st == HEDDLE_OK) {
        st = heddle_session_record_at(&record, f->session, f->entered++);
    }
    if (st == HEDDLE_OK) {
        step->planned = record.bytes_planned;
        step->sent = record.bytes_sent;
        step->messages = record.bytes_messages;
        step->switch_ns = record.ns;
        snprintf(f->path[step - f->step], RUN_PATH_BYTES, "%s", record.path);
    }
    return st;
}

static heddle_status run_layer(run_pass *f, const heddle_schedule_info *schedule, int pass, int repetition)
{
    const heddle_conditioning conditioning = {f->vector, f->text, f->text_lengths};
    for (int i = 0; i < f->job->info.nstages; i++) {
        heddle_stage_info stage = {0};
        heddle_box box;
        run_step *step = &f->step[repetition * f->job->info.nstages + i];
        heddle_status st = heddle_model_stage(&stage, f->job->model, i);
        if (st != HEDDLE_OK) {
            return st;
        }
        run_show_progress(f, pass, repetition, stage.name);
        st = enter(f, stage.name, step);
        if (st != HEDDLE_OK) {
            return st; /* names rank and stage */
        }
        const int64_t start_ns = run_now_ns();
        st = heddle_layout_box(&box, &f->job->info.shape, &schedule->mesh, &f->x.layout, heddle_comm_rank(f->comm));
        if (st == HEDDLE_OK && run_takes_part(f, repetition, i, &box)) {
            heddle_block *block = run_block(f, repetition, i);
            const int64_t sent = run_block_sent(block);
            st = f->back != NULL
                     ? run_forward_keeping(f, repetition * f->job->info.nstages + i, f->x.data, &box, &conditioning)
                     : heddle_block_forward(block, f->x.data, &box, &conditioning, HEDDLE_NO_STREAM);
            run_add_block_traffic(step, block, sent, 0);
        }
        if (st != HEDDLE_OK) {
            return run_at_stage(st, stage.name, repetition);
        }
        step->compute_ns = run_now_ns() - start_ns;
    }
    return HEDDLE_OK;
}

/* Layers are timed between barriers, so that making weights is not taken for waiting in a switch. */
static heddle_status forward_pass(run_pass *f, const heddle_schedule *schedule, int pass, int64_t *forward_ns)
{
    heddle_schedule_info info = {.struct_bytes = sizeof(info)};
    heddle_status st = heddle_schedule_get_info(&info, schedule);
    if (st == HEDDLE_OK) {
        st = make_first(f, schedule);
    }
    if (st == HEDDLE_OK) {
        st = heddle_session_rewind(f->session);
    }
    *forward_ns = 0;
    for (int r = 0; r < f->job->info.repeat && st == HEDDLE_OK; r++) {
        for (int i = 0; i < f->job->info.nstages && st == HEDDLE_OK; i++) {
            st = pass > 0 && f->job->options->backward ? HEDDLE_OK : run_set_weights(run_block(f, r, i), f->job, i, r);
        }
        if (st == HEDDLE_OK) {
            st = heddle_comm_barrier(f->comm);
        }
        if (st != HEDDLE_OK) {
            return run_at_stage(st, "weights", r);
        }
        const int64_t start_ns = run_now_ns();
        st = run_layer(f, &info, pass, r);
        if (st == HEDDLE_OK && r + 1 == f->job->info.repeat) {
            run_show_progress(f, pass, r, "end");
            st = enter(f, "end", &f->step[info.nstages]);
        }
        if (st == HEDDLE_OK) {
            st = heddle_comm_barrier(f->comm);
            st = st == HEDDLE_OK ? st : run_at_stage(st, "end", r);
        }
        *forward_ns += run_now_ns() - start_ns;
    }
    return st;
}

heddle_status run_gather(void **out, const run_pass *f, const heddle_tensor *x, const heddle_mesh *mesh)
{
    const heddle_shape *shape = &f->job->info.shape;
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
        memcpy(*out, x->data, bytes);
        return HEDDLE_OK;
    }
    heddle_reshard_options options;
    heddle_reshard_options_init(&options);
    options.memory = HEDDLE_MEMORY_ANY;
    options.tuning = HEDDLE_TUNING_RULES;
    st = heddle_reshard_create(&reshard, f->comm, shape, mesh, &x->layout, &whole, &options);
    if (st == HEDDLE_OK) {
        st = heddle_reshard_execute(reshard, x->data, *out, HEDDLE_NO_STREAM);
    }
    heddle_reshard_destroy(reshard);
    return st;
}

static heddle_status prepare(run_pass *f, const heddle_schedule *schedule)
{
    heddle_status st = make_conditioning(f);
    if (st == HEDDLE_OK) {
        st = run_make_blocks(f, schedule);
    }
    heddle_session_options options;
    heddle_session_options_init(&options);
    options.backward = f->job->options->backward;
    return st != HEDDLE_OK ? st : heddle_session_create(&f->session, f->comm, schedule, &options);
}

static void release(run_pass *f)
{
    run_backward_release(f);
    heddle_session_destroy(f->session);
    heddle_buffer_free(f->comm, f->first);
    run_release_blocks(f);
    free(f->vector);
    free(f->text);
    free(f->text_lengths);
    free(f->step);
}

/* Keeps the times of the fastest pass, and with a mesh the output, which the way back writes over. */
static heddle_status one_pass(run_result *out, run_pass *f, const heddle_schedule *schedule, int pass,
                              const heddle_mesh *mesh)
{
    int64_t forward_ns = 0, backward_ns = 0;
    run_reduction reduction = {0};
    heddle_status st = forward_pass(f, schedule, pass, &forward_ns);
    if (st == HEDDLE_OK && mesh != NULL) {
        st = run_gather(&out->output, f, &f->x, mesh);
    }
    if (st == HEDDLE_OK && f->back != NULL) {
        st = run_backward_pass(f, schedule, pass, &reduction, &backward_ns);
    }
    if (st == HEDDLE_OK && (pass == 0 || forward_ns + backward_ns < out->forward_ns + out->backward_ns)) {
        out->forward_ns = forward_ns;
        out->backward_ns = backward_ns;
        out->reduction = reduction;
        memcpy(out->step, f->step, (size_t)out->nsteps * sizeof(run_step));
        if (f->back != NULL) {
            memcpy(out->back, f->back->step, (size_t)out->nsteps * sizeof(run_step));
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

heddle_status run_forward(run_result *out, const run_job *job, heddle_comm *comm, const heddle_schedule *schedule,
                          int want_output)
{
    run_pass f = {.job = job, .comm = comm};
    heddle_schedule_info info = {.struct_bytes = sizeof(info)};
    memset(out, 0, sizeof(*out));
    f.progress = heddle_comm_rank(comm) == 0 && isatty(STDERR_FILENO);
    heddle_status st = heddle_schedule_get_info(&info, schedule);
    out->nsteps = info.nstages + 1;
    if (st == HEDDLE_OK) {
        f.step = calloc((size_t)out->nsteps, sizeof(run_step));
        out->step = calloc((size_t)out->nsteps, sizeof(run_step));
        out->path = calloc((size_t)out->nsteps, sizeof(*out->path));
        f.path = out->path;
        st = f.step == NULL || out->step == NULL || out->path == NULL
                 ? run_no_memory("timings", out->nsteps * (int64_t)sizeof(run_step))
                 : prepare(&f, schedule);
    }
    if (st == HEDDLE_OK && job->options->backward) {
        st = run_backward_prepare(&f, schedule, out);
    }
    for (int pass = 0; pass < job->options->passes && st == HEDDLE_OK; pass++) {
        const int keep = want_output && pass + 1 == job->options->passes;
        st = one_pass(out, &f, schedule, pass, keep ? &info.mesh : NULL);
    }
    if (f.progress) {
        fprintf(stderr, "\r\033[K");
    }
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
    free(result->output);
    free(result->back);
    free(result->back_path);
    free(result->dx);
    free(result->part_elems);
    free(result->gradient);
    memset(result, 0, sizeof(*result));
}
