/* A way through the stages, forward or back: step by step, or in one go, nobody waiting in between, whose time is what
 * a program has that enqueues its passes; and the same as a graph. */
#include "runtime/verify/device_array.h"
#include "runtime/verify/run_pass.h"
#include "runtime/verify/samples.h"

#include <heddle/sys/device.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEP_MS = 60000 /* a device that has not done a way within that for every step will not */ };

/* May what a wire moves be captured? The same on all ranks. */
static heddle_status ask_wire(int *is_capturable, heddle_comm *comm)
{
    char text[96];
    const int size = heddle_comm_size(comm);
    heddle_reshard *reshard = NULL;
    heddle_reshard_line line;
    heddle_reshard_options options;
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    snprintf(text, sizeof text, "u8[t=%d s=%d] on [sp=%d]: t@sp -> s@sp", size, size, size);
    heddle_reshard_options_init(&options);
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(comm);
    options.tuning = HEDDLE_TUNING_RULES;
    heddle_status st = heddle_reshard_parse(&line, text);
    st = st == HEDDLE_OK ? heddle_reshard_create_line(&reshard, comm, &line, &options) : st;
    st = st == HEDDLE_OK ? heddle_reshard_get_info(&info, reshard) : st;
    double refuses = !info.is_capturable;
    st = st == HEDDLE_OK ? samples_slowest(&refuses, 1, comm) : st;
    heddle_reshard_destroy(reshard);
    *is_capturable = refuses == 0;
    return st;
}

heddle_status run_way_prepare(run_pass *f)
{
    int is_capturable = 0;
    f->hows = RUN_BY_STEPS + 1;
    if (!run_is_there(f) || !f->task->in_one_go) {
        return HEDDLE_OK;
    }
    heddle_status st = ask_wire(&is_capturable, f->comm);
    f->hows = is_capturable ? RUN_BY_GRAPH + 1 : RUN_IN_ONE_GO + 1;
    return st;
}

void run_way_release(run_pass *f)
{
    for (int back = 0; back < 2; back++) {
        if (f->graph[back] != NULL) {
            heddle_comm_device_table(f->comm)->graph_destroy(f->graph[back], heddle_comm_device(f->comm));
        }
    }
}

static heddle_status enqueue(run_pass *f, int back)
{
    if (!back) {
        return heddle_executor_forward(f->executor, &f->x, &f->conditioning, f->stream);
    }
    const int is_there = run_is_there(f);
    const heddle_conditioning_gradient gradient = {is_there ? f->back->dvector_there : f->back->dvector,
                                                   is_there ? f->back->dtext_there : f->back->dtext};
    return heddle_executor_backward(f->executor, &f->back->dx, &f->conditioning, &gradient, f->stream);
}

static heddle_status by_steps(double *ms, run_pass *f, int back)
{
    heddle_executor_info info = HEDDLE_EMPTY(heddle_executor_info);
    heddle_status st = enqueue(f, back);
    st = st == HEDDLE_OK ? heddle_executor_get_info(&info, f->executor) : st;
    *ms = (double)(back ? info.backward_ns : info.forward_ns) * 1e-6;
    return st;
}

/* All that the stream has. Without naps, which would be longer than a small model's pass. */
static heddle_status await(const run_pass *f)
{
    const heddle_device *table = heddle_comm_device_table(f->comm);
    const int device = heddle_comm_device(f->comm);
    const double start_ms = samples_now_ms();
    const double most_ms = (double)STEP_MS * run_steps(f->task);
    void *event = NULL;
    int done = 0;
    heddle_status st = table->event_create(&event, device);
    st = st == HEDDLE_OK ? table->event_record(event, device, f->stream) : st;
    while (st == HEDDLE_OK && (st = table->event_test(event, device, &done)) == HEDDLE_OK && !done) {
        st = heddle_comm_poll(f->comm);
        if (st == HEDDLE_OK && samples_now_ms() - start_ms > most_ms) {
            st = heddle_set_error(HEDDLE_ERR_TIMEOUT, "device %d has not done a pass within %.0f s", device,
                                  most_ms * 1e-3);
        }
        sched_yield();
    }
    table->event_destroy(event, device);
    return st == HEDDLE_OK ? heddle_comm_poll(f->comm) : st;
}

/* Zeros over what an earlier pass has left where the graph's will: it has to come out of that again. */
static heddle_status forget(const run_pass *f, const heddle_tensor *x, const void *input)
{
    heddle_box box;
    heddle_status st = heddle_layout_box(&box, &x->shape, &f->task->mesh, &x->layout, heddle_comm_rank(f->comm));
    const size_t bytes = st == HEDDLE_OK ? (size_t)heddle_box_elems(&box) * heddle_dtype_bytes(x->shape.dtype) : 0;
    if (bytes == 0 || x->data == input) {
        return st;
    }
    void *zeros = calloc(bytes, 1);
    st = zeros != NULL ? judge_device_copy(f->comm, x->data, zeros, bytes, f->stream)
                       : run_no_memory("zeros", (int64_t)bytes);
    free(zeros);
    return st;
}

/* What is wrong with the pass is said, not what is wrong with its graph then. */
static heddle_status capture(run_pass *f, int back)
{
    const heddle_device *table = heddle_comm_device_table(f->comm);
    const int device = heddle_comm_device(f->comm);
    char why[HEDDLE_LINE_BYTES];
    heddle_status st = table->capture_begin(device, f->stream);
    if (st != HEDDLE_OK) {
        return st;
    }
    st = enqueue(f, back);
    snprintf(why, sizeof why, "%s", st == HEDDLE_OK ? "" : heddle_last_error());
    const heddle_status ended = table->capture_end(&f->graph[back], device, f->stream);
    f->left[back] = back ? f->back->dx : f->x;
    if (st != HEDDLE_OK || ended != HEDDLE_OK) {
        return st == HEDDLE_OK ? ended : heddle_set_error(st, "%s", why);
    }
    return forget(f, &f->left[back], back ? f->back->loss_there : f->first_there);
}

/* Where this rank is, for the sentence about one that cannot speak any more. */
static void tell_place(const run_pass *f, int place)
{
    if (f->task->step_of != NULL) {
        __atomic_store_n(&f->task->step_of[heddle_comm_rank(f->comm)], place, __ATOMIC_RELAXED);
    }
}

static heddle_status replay(run_pass *f, int back)
{
    *(back ? &f->back->dx : &f->x) = f->left[back];
    tell_place(f, RUN_REPLAYS);
    return heddle_comm_replay(f->comm, f->graph[back], f->stream);
}

heddle_status run_way(double *ms, run_pass *f, int back)
{
    if (f->how == RUN_BY_STEPS) {
        return by_steps(ms, f, back);
    }
    heddle_status st = heddle_executor_set_timed(f->executor, 0);
    st = st == HEDDLE_OK && f->how == RUN_BY_GRAPH && f->graph[back] == NULL ? capture(f, back) : st;
    st = st == HEDDLE_OK ? heddle_comm_barrier(f->comm) : st;
    const double start_ms = samples_now_ms();
    st = st == HEDDLE_OK ? (f->how == RUN_BY_GRAPH ? replay(f, back) : enqueue(f, back)) : st;
    st = st == HEDDLE_OK ? await(f) : st;
    *ms = samples_now_ms() - start_ms;
    if (st == HEDDLE_OK && f->how == RUN_BY_GRAPH) {
        tell_place(f, (back + 1) * run_steps(f->task));
    }
    return st;
}

heddle_status run_give_up(const run_pass *f, heddle_status st)
{
    char why[HEDDLE_LINE_BYTES];
    if (!run_is_there(f)) {
        return st;
    }
    snprintf(why, sizeof why, "%s", heddle_last_error());
    heddle_ignore(heddle_comm_abort(f->comm, why));
    heddle_ignore(judge_device_settle(f->comm, f->stream));
    return heddle_set_error(st, "%s", why);
}
