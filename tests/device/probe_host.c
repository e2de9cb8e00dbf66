/* What enqueueing costs the host: calls of CUDA and cuBLAS as heddle makes them, stages of blocks, and stages in a
 * graph, by a thread that has no context, as ranks of a program are (tests/device/blocks.py host).
 */
#include "kernels/table_device.h"
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/device/products.h"

#include <heddle/heddle.h>
#include <heddle/sys/device.h>
#include <heddle/train/tape.h>
#include <stdlib.h>
#include <string.h>

enum { KINDS = 4, VECTORS = 6, MOST_ROUNDS = 32, T = 4, S = 64 };

/* Of a call each, then three of each kind of stage (forward, with a tape, backward), and a stage of all kinds in one
 * graph, which CUDA's own call launches and heddle_comm_replay. */
enum {
    CONTEXT,
    LAUNCH,
    PRODUCT,
    RECORD,
    WAIT,
    CAPTURES,
    QUERY,
    LOOK,
    STAGES,
    GRAPH = STAGES + 3 * KINDS,
    REPLAY,
    TIMES
};

typedef struct host_task {
    int64_t heads, d, text;
    int rounds, calls;
    double *us;
} host_task;

typedef struct host {
    const host_task *task;
    heddle_comm *comm;
    const hd_device *device;
    heddle_stream stream;
    void *event, *graph;
    heddle_box box;
    heddle_block *block[KINDS];
    heddle_tape *tape[KINDS];
    heddle_tensor x, dx;
    float *vector, *text;
    hd_products *products;
    const hd_matmul *product;
    void *workspace;
} host;

static heddle_status alloc(const host *h, void *out, int64_t bytes)
{
    return heddle_buffer_alloc(out, h->comm, (size_t)bytes, HEDDLE_SPACE_DEVICE);
}

static heddle_status make_block(host *h, int kind)
{
    heddle_status st = HEDDLE_OK;
    heddle_block_options options;
    heddle_block_options_init(&options);
    options.kind = (heddle_stage_kind)kind;
    options.shape = h->x.shape;
    options.mixed_dim = 1;
    options.heads = (int)h->task->heads;
    options.mlp_channels = 4 * h->task->heads * h->task->d;
    options.text_tokens = h->task->text;
    options.modulate = kind != HEDDLE_STAGE_CROSS;
    options.rope = options.qk_norm = kind == HEDDLE_STAGE_ATTENTION;
    options.space = HEDDLE_SPACE_DEVICE;
    options.comm = h->comm;
    HD_TRY(heddle_block_create(&h->block[kind], &options));
    HD_TRY(heddle_block_seed(h->block[kind], 1 + (uint64_t)kind));
    HD_TRY(heddle_block_share_workspace(h->block[kind], h->block[0]));
    HD_TRY(heddle_tape_create(&h->tape[kind], h->block[kind], NULL));
    st = heddle_tape_reserve(h->tape[kind], &h->box);
out:
    return st;
}

static heddle_status make(host *h, heddle_comm *comm, const host_task *task)
{
    heddle_status st = HEDDLE_OK;
    const int64_t c = task->heads * task->d, extent[] = {1, T, S, c};
    const heddle_product of = {HEDDLE_PRODUCT_FORWARD, HEDDLE_BF16, HEDDLE_BF16, c, c, 0};
    h->task = task;
    h->comm = comm;
    h->device = hd_comm_device(comm);
    HD_TRY(h->device->library->stream_create(&h->stream, h->device->number));
    HD_TRY(h->device->library->event_create(&h->event, h->device->number));
    h->x.shape = (heddle_shape){HEDDLE_BF16, 4, {{"b", 1}, {"t", T}, {"s", S}, {"c", c}}};
    h->x.space = HEDDLE_SPACE_DEVICE;
    h->x.device = h->device->number;
    h->x.capacity_bytes = (size_t)(T * S * c * 2);
    h->box.ndim = 4;
    memcpy(h->box.len, extent, sizeof extent);
    heddle_box_strides(h->x.stride_elems, &h->box, NULL);
    h->dx = h->x;
    HD_TRY(alloc(h, &h->x.data, T * S * c * 2));
    HD_TRY(alloc(h, &h->dx.data, T * S * c * 2));
    HD_TRY(alloc(h, &h->vector, VECTORS * c * 4));
    HD_TRY(alloc(h, &h->text, task->text * c * 4));
    for (int kind = 0; kind < KINDS; kind++) {
        HD_TRY(make_block(h, kind));
    }
    HD_TRY(hd_products_open(&h->products, h->device, NULL));
    HD_TRY(hd_products_take(&h->product, h->products, &of));
    st = alloc(h, &h->workspace, h->product->workspace_bytes + c * c * 2);
out:
    return st;
}

static void end(host *h)
{
    const heddle_device *library = h->device->library;
    void *const memory[] = {h->x.data, h->dx.data, h->vector, h->text, h->workspace};
    for (int kind = 0; kind < KINDS; kind++) {
        heddle_tape_destroy(h->tape[kind]);
    }
    for (int kind = KINDS - 1; kind >= 0; kind--) {
        heddle_block_destroy(h->block[kind]);
    }
    hd_products_close(h->products);
    library->graph_destroy(h->graph, h->device->number);
    library->event_destroy(h->event, h->device->number);
    library->stream_destroy(h->stream, h->device->number);
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        heddle_buffer_free(h->comm, memory[i]);
    }
}

static heddle_status settle(const host *h)
{
    int done = 0;
    heddle_status st = h->device->library->event_record(h->event, h->device->number, h->stream);
    while (st == HEDDLE_OK && !done) {
        st = h->device->library->event_test(h->event, h->device->number, &done);
    }
    return st;
}

static heddle_status stage(const host *h, int kind, int how)
{
    const heddle_conditioning given = {h->vector, h->text, NULL};
    return how == 0   ? heddle_block_forward(h->block[kind], &h->x, &h->box, &given, h->stream)
           : how == 1 ? heddle_block_forward_tape(h->block[kind], &h->x, &h->box, &given, h->tape[kind], h->stream)
                      : heddle_block_backward(h->block[kind], &h->dx, &given, NULL, h->tape[kind], h->stream);
}

static heddle_status launch(const host *h)
{
    const hd_device_kernels *kernels = h->device->library->kernels;
    const hd_device_rows of = {HEDDLE_BF16, T * S, h->task->heads * h->task->d, 0, 0};
    return h->device->library->status(kernels->norm_modulate(&of, h->dx.data, h->x.data, NULL, NULL, h->stream),
                                      h->device->number, "norm_modulate");
}

static heddle_status multiply(const host *h)
{
    const heddle_product_call call = {.dst = h->dx.data,
                                      .src = h->x.data,
                                      .with = h->workspace,
                                      .rows = T * S,
                                      .workspace = (char *)h->workspace + 2 * h->product->of.n * h->product->of.k};
    return hd_matmul_run(h->product, &call, h->stream);
}

static heddle_status once(const host *h, int what)
{
    const heddle_device *library = h->device->library;
    const int number = h->device->number;
    heddle_space space;
    heddle_status st = HEDDLE_OK;
    int any = 0;
    switch (what) {
    case CONTEXT:
        st = library->enter(&any, number);
        library->leave(any);
        return st;
    case LAUNCH:
        return launch(h);
    case PRODUCT:
        return multiply(h);
    case RECORD:
        return library->event_record(h->event, number, h->stream);
    case WAIT:
        return library->stream_wait(h->stream, h->event, number);
    case CAPTURES:
        return library->stream_captures(&any, number, h->stream);
    case QUERY:
        return library->event_test(h->event, number, &any);
    case LOOK:
        return library->look(&space, &any, h->x.data);
    case GRAPH:
        return library->graph_launch(h->graph, number, h->stream);
    case REPLAY:
        return heddle_comm_replay(h->comm, h->graph, h->stream);
    default:
        return stage(h, (what - STAGES) / 3, (what - STAGES) % 3);
    }
}

/* Calls of CUDA find the device entered, as within a stage. */
static int is_within(int what)
{
    return what != CONTEXT && (what < STAGES || what == GRAPH);
}

/* us of a call, of `calls` that the device has room for. */
static heddle_status time_round(double *us, const host *h, int what)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = h->device->library;
    int before = 0;
    HD_TRY(settle(h));
    HD_TRY(is_within(what) ? library->enter(&before, h->device->number) : HEDDLE_OK);
    const int64_t start_ns = hd_now_ns();
    for (int i = 0; i < h->task->calls && st == HEDDLE_OK; i++) {
        st = once(h, what);
    }
    *us = (double)(hd_now_ns() - start_ns) * 1e-3 / h->task->calls;
    if (is_within(what)) {
        library->leave(before);
    }
out:
    return st;
}

static int is_less(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static heddle_status time_it(double *us, const host *h, int what)
{
    heddle_status st = HEDDLE_OK;
    double round[MOST_ROUNDS];
    HD_TRY(time_round(&round[0], h, what)); /* what is done once alone */
    for (int i = 0; i < h->task->rounds; i++) {
        HD_TRY(time_round(&round[i], h, what));
    }
    qsort(round, (size_t)h->task->rounds, sizeof round[0], is_less);
    *us = round[h->task->rounds / 2];
out:
    return st;
}

/* A stage of each kind, forward. */
static heddle_status capture(host *h)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = h->device->library;
    HD_TRY(library->capture_begin(h->device->number, h->stream));
    for (int kind = 0; kind < KINDS && st == HEDDLE_OK; kind++) {
        st = stage(h, kind, 0);
    }
    const heddle_status ended = library->capture_end(&h->graph, h->device->number, h->stream);
    st = st == HEDDLE_OK ? ended : st;
out:
    return st;
}

static heddle_status host_rank(heddle_comm *comm, void *arg)
{
    const host_task *task = arg;
    heddle_status st = HEDDLE_OK;
    host h;
    memset(&h, 0, sizeof h);
    HD_TRY(make(&h, comm, task));
    for (int what = 0; what < TIMES; what++) {
        HD_TRY(what == GRAPH ? capture(&h) : HEDDLE_OK);
        HD_TRY(time_it(&task->us[what], &h, what));
    }
    task->us[GRAPH] /= KINDS;
    task->us[REPLAY] /= KINDS;
    st = settle(&h);
out:
    if (h.comm != NULL) {
        end(&h);
    }
    return st;
}

/* us [8 + 3 * 4 + 2], medians. */
HEDDLE_API int probe_host(double *us, int64_t heads, int64_t d, int64_t text, int rounds, int calls, const char *which)
{
    host_task task = {heads, d, text, rounds < MOST_ROUNDS ? rounds : (int)MOST_ROUNDS, calls, us};
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.device = which;
    options.wire = HEDDLE_WIRE_PEER;
    return heddle_run_ranks_with(1, "threads", &options, host_rank, &task);
}
