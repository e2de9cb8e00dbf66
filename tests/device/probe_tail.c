/* The end of a stage and the switch behind it, on ranks that share a device: gate and residual and then the switch, and
 * both by one kernel (tests/device/probe.c, blocks.py).
 */
#include "kernels/table_device.h"
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/reshard/plan.h"

#include <heddle/heddle.h>
#include <string.h>

enum { APART, FUSED, WAYS, VECTORS = 6, BLOCK_ELEMS = 1 << 18 };

typedef struct tail_task {
    const char *line;
    int rounds, calls;
    double *ms; /* [WAYS][rounds], by rank 0 */
} tail_task;

/* Of one rank. */
typedef struct tail {
    heddle_comm *comm;
    const hd_device *device;
    heddle_reshard *reshard;
    heddle_stream stream;
    int64_t bytes; /* of its part */
    hd_device_gate gate;
    void *start, *x, *dst[WAYS];
    float *y, *vector;
} tail;

static heddle_status copy(const tail *t, void *dst, const void *src, int64_t bytes)
{
    return t->device->library->copy(dst, bytes, src, bytes, bytes, 1, t->device->number, t->stream);
}

static heddle_status settle(const tail *t)
{
    const heddle_device *library = t->device->library;
    void *event = NULL;
    int done = 0;
    heddle_status st = library->event_create(&event, t->device->number);
    st = st == HEDDLE_OK ? library->event_record(event, t->device->number, t->stream) : st;
    while (st == HEDDLE_OK && !done) {
        st = library->event_test(event, t->device->number, &done);
        st = st == HEDDLE_OK ? heddle_comm_poll(t->comm) : st;
    }
    library->event_destroy(event, t->device->number);
    return st;
}

/* Numbers around 0 of f32 or bf16, the same ones again and again. */
static heddle_status fill(const tail *t, void *to, int64_t bytes, heddle_dtype dtype, uint32_t seed)
{
    heddle_status st = HEDDLE_OK;
    const int64_t elem = (int64_t)heddle_dtype_bytes(dtype), most = BLOCK_ELEMS * elem;
    char *block = NULL;
    HD_TRY(hd_alloc((void **)&block, BLOCK_ELEMS, (size_t)elem, "numbers"));
    for (int64_t i = 0; i < BLOCK_ELEMS; i++) {
        const float value = (float)((uint32_t)(i + 1) * 2654435761U * (seed + 1) >> 8) / 16777216.0F - 0.5F;
        uint32_t bits = 0;
        memcpy(&bits, &value, sizeof bits);
        bits = dtype == HEDDLE_BF16 ? bits >> 16 : bits;
        memcpy(block + i * elem, &bits, (size_t)elem);
    }
    for (int64_t at = 0; at < bytes; at += most) {
        HD_TRY(copy(t, (char *)to + at, block, bytes - at < most ? bytes - at : most));
    }
    st = settle(t);
out:
    hd_free(block);
    return st;
}

static heddle_status alloc(const tail *t, void *out, int64_t bytes)
{
    return heddle_buffer_alloc(out, t->comm, (size_t)bytes, HEDDLE_SPACE_DEVICE);
}

static heddle_status make(tail *t, heddle_comm *comm, const tail_task *task)
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_line line;
    heddle_reshard_options options;
    heddle_box box;
    t->comm = comm;
    t->device = hd_comm_device(comm);
    HD_TRY(heddle_reshard_parse(&line, task->line));
    HD_TRY(heddle_layout_box(&box, &line.shape, &line.mesh, &line.from, heddle_comm_rank(comm)));
    const int64_t c = box.len[box.ndim - 1], rows = heddle_box_elems(&box) / c;
    t->bytes = rows * c * (int64_t)heddle_dtype_bytes(line.shape.dtype);
    HD_TRY(t->device->library->stream_create(&t->stream, t->device->number));
    HD_TRY(alloc(t, &t->start, t->bytes));
    HD_TRY(alloc(t, &t->x, t->bytes));
    HD_TRY(alloc(t, &t->dst[APART], t->bytes));
    HD_TRY(alloc(t, &t->dst[FUSED], t->bytes));
    HD_TRY(alloc(t, &t->y, rows * c * (int64_t)sizeof *t->y));
    HD_TRY(alloc(t, &t->vector, box.len[0] * VECTORS * c * (int64_t)sizeof *t->vector));
    heddle_reshard_options_init(&options);
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = t->device->number;
    HD_TRY(heddle_reshard_create_line(&t->reshard, comm, &line, &options));
    t->gate = (hd_device_gate){
        .rows = {line.shape.dtype, rows, c, rows / box.len[0], VECTORS * c}, .y = t->y, .gate = t->vector + 2 * c};
    HD_TRY(fill(t, t->start, t->bytes, line.shape.dtype, 3 + (uint32_t)heddle_comm_rank(comm)));
    HD_TRY(fill(t, t->y, rows * c * (int64_t)sizeof *t->y, HEDDLE_F32, 77 + (uint32_t)heddle_comm_rank(comm)));
    st = fill(t, t->vector, box.len[0] * VECTORS * c * (int64_t)sizeof *t->vector, HEDDLE_F32, 1);
out:
    return st;
}

static void end(tail *t)
{
    heddle_reshard_destroy(t->reshard);
    t->device->library->stream_destroy(t->stream, t->device->number);
    void *const memory[] = {t->start, t->x, t->dst[APART], t->dst[FUSED], t->y, t->vector};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
        heddle_buffer_free(t->comm, memory[i]);
    }
}

static heddle_status enqueue(tail *t, int way)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = t->device->library;
    const hd_device_kernels *kernels = library->kernels;
    int before = 0;
    if (way == FUSED) {
        return hd_reshard_execute_gated(t->reshard, t->x, &t->gate, t->dst[way], t->stream);
    }
    HD_TRY(library->enter(&before, t->device->number));
    st = library->status(kernels->gate_residual(&t->gate.rows, t->x, t->y, HEDDLE_F32, t->gate.gate, NULL, t->stream),
                         t->device->number, "gate_residual");
    library->leave(before);
    HD_TRY(st);
    st = heddle_reshard_execute(t->reshard, t->x, t->dst[way], t->stream);
out:
    return st;
}

/* Both ways have the same bits. */
static heddle_status compare(tail *t)
{
    heddle_status st = HEDDLE_OK;
    char *got[WAYS] = {NULL, NULL};
    for (int way = 0; way < WAYS; way++) {
        HD_TRY(hd_alloc((void **)&got[way], 1, (size_t)t->bytes, "results"));
        HD_TRY(copy(t, t->x, t->start, t->bytes));
        HD_TRY(enqueue(t, way));
        HD_TRY(settle(t));
        HD_TRY(copy(t, got[way], t->dst[way], t->bytes));
        HD_TRY(settle(t));
    }
    st = memcmp(got[APART], got[FUSED], (size_t)t->bytes) == 0
             ? HEDDLE_OK
             : heddle_set_error(HEDDLE_ERR_INTERNAL, "the fused switch has other bits");
out:
    hd_free(got[APART]);
    hd_free(got[FUSED]);
    return st;
}

static heddle_status tail_rank(heddle_comm *comm, void *arg)
{
    const tail_task *task = arg;
    heddle_status st = HEDDLE_OK;
    tail t;
    memset(&t, 0, sizeof t);
    HD_TRY(make(&t, comm, task));
    HD_TRY(hd_reshard_takes_gate(t.reshard) ? HEDDLE_OK : heddle_set_error(HEDDLE_ERR_INTERNAL, "no switch to fuse"));
    HD_TRY(compare(&t));
    for (int i = 0; i < task->rounds * WAYS; i++) {
        const int way = i % WAYS, round = i / WAYS;
        HD_TRY(heddle_comm_barrier(comm));
        const int64_t start_ns = hd_now_ns();
        for (int k = 0; k < task->calls; k++) {
            HD_TRY(enqueue(&t, way));
        }
        HD_TRY(settle(&t));
        HD_TRY(heddle_comm_barrier(comm));
        if (heddle_comm_rank(comm) == 0) {
            task->ms[way * task->rounds + round] = (double)(hd_now_ns() - start_ns) * 1e-6 / task->calls;
        }
    }
out:
    if (t.comm != NULL) {
        end(&t);
    }
    return st;
}

/* ms [2][rounds] of a call: apart, fused; of the slowest rank, by the host's clock around many. */
HEDDLE_API int probe_tail(double *ms, const char *line, int ranks, int rounds, int calls, const char *which)
{
    tail_task task = {line, rounds, calls, ms};
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.device = which;
    options.wire = HEDDLE_WIRE_PEER;
    return heddle_run_ranks_with(ranks, "threads", &options, tail_rank, &task);
}
