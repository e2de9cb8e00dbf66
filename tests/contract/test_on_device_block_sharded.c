/* A block on the emulated device whose mixed dim is sharded, beside one of the CPU that holds everything: the part of
 * every rank is that of the whole, forward, backward and again from an older tape; what is sent is what was planned. */
#include "block_model.h"
#include "on_device.h"
#include "runtime/block/inner.h"

#include <heddle/train/tape.h>
#include <stdio.h>

typedef struct job {
    const char *shape, *mesh, *layout, *method;
    heddle_stage_kind kind;
    int mixed_dim, flags; /* 1 rope, 2 qk_norm or causal, 4 no modulation, 8 recompute */
    int64_t most_workspace_bytes;
} job;

/* What all ranks compare with: a block of the CPU that holds everything. */
typedef struct judge {
    job j;
    problem p;
    float *x, *dx; /* its results; f32 whatever the device's block has */
} judge;

typedef struct world {
    const judge *w;
    heddle_comm *comm;
    heddle_stream stream;
    heddle_block *mine;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_box box;
    heddle_conditioning there;
    size_t bytes;
} world;

static heddle_block_options options_of(const job *j)
{
    heddle_block_options options;
    heddle_block_options_init(&options);
    options.kind = j->kind;
    options.mixed_dim = j->mixed_dim;
    options.heads = 2;
    options.rope = j->flags & 1;
    options.qk_norm = j->kind == HEDDLE_STAGE_ATTENTION && (j->flags & 2) != 0;
    options.causal = j->kind == HEDDLE_STAGE_LINEAR && (j->flags & 2) != 0;
    options.decay = j->kind == HEDDLE_STAGE_LINEAR ? 0.9 : 0;
    options.modulate = (j->flags & 4) == 0;
    return options;
}

static heddle_status place(void **out, const world *w, const void *host, size_t bytes)
{
    heddle_status st = heddle_buffer_alloc(out, w->comm, bytes + 1, HEDDLE_SPACE_DEVICE);
    st = st == HEDDLE_OK && bytes > 0 ? device_copy(w->comm, *out, host, bytes, w->stream) : st;
    return st == HEDDLE_OK ? device_settle(w->comm, w->stream) : st;
}

/* The same weights as the whole's. */
static heddle_status copy_weights(const world *w)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < heddle_block_nparams(w->mine); i++) {
        heddle_param of = HEDDLE_EMPTY(heddle_param), to = HEDDLE_EMPTY(heddle_param);
        HD_TRY(heddle_block_param(&of, w->w->p.block, i));
        HD_TRY(heddle_block_param(&to, w->mine, i));
        memcpy(to.data, of.data, sizeof(float) * (size_t)(of.extent[0] * (of.ndim == 2 ? of.extent[1] : 1)));
    }
    st = heddle_block_commit(w->mine);
out:
    return st;
}

static heddle_status open_world(world *w, const judge *of, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    memset(w, 0, sizeof *w);
    w->w = of;
    w->comm = comm;
    heddle_block_options options = options_of(&of->j);
    HD_TRY(hd_comm_device(comm)->library->stream_create(&w->stream, heddle_comm_device(comm)));
    HD_TRY(heddle_shape_parse(&options.shape, of->j.shape));
    HD_TRY(heddle_mesh_parse(&w->mesh, of->j.mesh));
    HD_TRY(heddle_layout_parse(&w->layout, of->j.layout, &options.shape, &w->mesh));
    HD_TRY(heddle_layout_box(&w->box, &options.shape, &w->mesh, &w->layout, heddle_comm_rank(comm)));
    options.space = HEDDLE_SPACE_DEVICE;
    options.comm = comm;
    options.most_workspace_bytes = of->j.most_workspace_bytes;
    HD_TRY(heddle_block_create(&w->mine, &options));
    HD_TRY(copy_weights(w));
    HD_TRY(heddle_block_shard_attention(w->mine, comm, &w->mesh, &w->layout, of->j.method));
    w->bytes = (size_t)heddle_box_elems(&w->box) * heddle_dtype_bytes(options.shape.dtype);
    w->there = of->p.conditioning;
    void *vector = NULL;
    HD_TRY(place(&vector, w, of->p.conditioning.vector,
                 options.modulate ? (size_t)(options.shape.dim[0].extent * VECTOR_ROWS * of->p.c) * sizeof(float) : 0));
    w->there.vector = vector;
    st = heddle_comm_barrier(comm);
out:
    return st;
}

static void close_world(world *w)
{
    heddle_block_destroy(w->mine);
    heddle_buffer_free(w->comm, (void *)(uintptr_t)w->there.vector);
    hd_comm_device(w->comm)->library->stream_destroy(w->stream, heddle_comm_device(w->comm));
}

static heddle_tensor tensor_of(const world *w, void *data, size_t bytes)
{
    heddle_tensor x = box_tensor(w->mine, data, &w->box);
    x.space = HEDDLE_SPACE_DEVICE;
    x.device = heddle_comm_device(w->comm);
    x.capacity_bytes = bytes;
    return x;
}

/* This rank's part of whole f32 rows as its block has them, on the device. */
static heddle_status part_there(void **out, const world *w, float *all)
{
    const heddle_dtype dtype = w->mine->options.shape.dtype;
    const int64_t n = heddle_box_elems(&w->box);
    float *part = must_alloc(n + 1, sizeof *part);
    part_of(&w->w->p, &w->box, (char *)all, (char *)part, 0);
    void *narrow = stored(part, n, dtype);
    heddle_status st = place(out, w, narrow, w->bytes);
    free(narrow);
    free(part);
    return st;
}

static double tolerance(const world *w, int is_back)
{
    const heddle_dtype dtype = w->mine->options.shape.dtype;
    const double factor = (is_back ? 4 : 1) * (w->w->j.kind == HEDDLE_STAGE_LINEAR ? 3 : 1); /* a norm behind it */
    return factor * (dtype == HEDDLE_BF16 ? 3e-2 : dtype == HEDDLE_F16 ? 4e-3 : 2e-5);
}

static heddle_status compare(const world *w, const void *there, float *all, int is_back)
{
    heddle_status st = HEDDLE_OK;
    const int64_t n = heddle_box_elems(&w->box);
    float *wanted = must_alloc(n + 1, sizeof *wanted);
    char *got = must_alloc((int64_t)w->bytes + 1, 1);
    double worst = 0, largest = 1e-30;
    part_of(&w->w->p, &w->box, (char *)all, (char *)wanted, 0);
    for (int64_t i = 0; i < w->w->p.elems; i++) {
        largest = fmax(largest, fabs((double)all[i]));
    }
    HD_TRY(w->bytes > 0 ? device_copy(w->comm, got, there, w->bytes, w->stream) : HEDDLE_OK);
    HD_TRY(device_settle(w->comm, w->stream));
    for (int64_t i = 0; i < n; i++) {
        const double error = fabs((double)value_at(got, w->mine->options.shape.dtype, i) - (double)wanted[i]);
        worst = error > worst || isnan(error) ? error : worst;
    }
    if (!(worst <= tolerance(w, is_back) * largest)) {
        st = heddle_set_error(HEDDLE_ERR_INTERNAL, "%s by %s of %s%s: off by %g of %g", w->w->j.layout, w->w->j.method,
                              w->w->j.shape, is_back ? ", back" : "", worst, largest);
    }
out:
    free(wanted);
    free(got);
    return st;
}

static heddle_status check_counts(const world *w, int forwards, int backwards)
{
    heddle_block_traffic t = HEDDLE_EMPTY(heddle_block_traffic);
    heddle_status st = heddle_block_get_traffic(&t, w->mine);
    const int64_t planned = forwards * t.planned_forward_bytes + backwards * t.planned_backward_bytes;
    return st == HEDDLE_OK && t.measured_bytes != planned
               ? heddle_set_error(HEDDLE_ERR_INTERNAL, "rank %d sent %lld bytes, planned were %lld",
                                  heddle_comm_rank(w->comm), (long long)t.measured_bytes, (long long)planned)
               : st;
}

/* A call that is refused as one from within an executor's pass: the others need not come, and hear of nothing. */
static heddle_status check_held(world *w, void *there)
{
    heddle_status st = HEDDLE_OK;
    const heddle_tensor x = tensor_of(w, there, w->bytes);
    hd_block_hold(w->mine, 1);
    CHECK(heddle_block_forward(w->mine, &x, &w->box, &w->there, w->stream) == HEDDLE_ERR_ARG);
    CHECK(says("heddle_block_forward: called from options.before or options.weights of an executor"));
out:
    hd_block_hold(w->mine, 0);
    return st;
}

/* Two forwards with tapes of their own, backward of the older one: the object runs its attention again. */
static heddle_status check(world *w)
{
    heddle_status st = HEDDLE_OK;
    const judge *of = w->w;
    const heddle_tape_options options = {.struct_bytes = sizeof options, .recompute = (of->j.flags & 8) != 0};
    heddle_tape *tape[2] = {NULL, NULL};
    void *at[2] = {NULL, NULL}, *back = NULL;
    HD_TRY(part_there(&back, w, of->p.x));
    HD_TRY(heddle_comm_rank(w->comm) == 0 ? check_held(w, back) : HEDDLE_OK);
    for (int i = 0; i < 2; i++) {
        HD_TRY(part_there(&at[i], w, i == 0 ? of->p.x : of->x));
        const heddle_tensor there = tensor_of(w, at[i], w->bytes);
        HD_TRY(heddle_tape_create(&tape[i], w->mine, &options));
        HD_TRY(heddle_block_forward_tape(w->mine, &there, &w->box, &w->there, tape[i], w->stream));
    }
    const heddle_tensor there = tensor_of(w, back, w->bytes);
    HD_TRY(heddle_block_backward(w->mine, &there, &w->there, NULL, tape[0], w->stream));
    HD_TRY(compare(w, at[0], of->x, 0));
    HD_TRY(compare(w, back, of->dx, 1));
    HD_TRY(heddle_comm_barrier(w->comm));
    st = check_counts(w, 3, 1);
out:
    for (int i = 0; i < 2; i++) {
        heddle_tape_destroy(tape[i]);
        heddle_buffer_free(w->comm, at[i]);
    }
    heddle_buffer_free(w->comm, back);
    return st;
}

static const job jobs[] = {
    {"f32[b=1 t=3 s=11 c=16]", "[sp=2]", "s@sp", "ring", HEDDLE_STAGE_ATTENTION, 2, 3, 0},
    {"f32[b=2 t=7 s=2 c=16]", "[sp=3]", "t@sp", "ulysses", HEDDLE_STAGE_ATTENTION, 1, 9, 0},
    {"bf16[b=1 t=9 s=2 c=16]", "[sp=3]", "t@sp(4 0 5)", "ring", HEDDLE_STAGE_ATTENTION, 1, 1, 0},
    {"f16[b=1 t=2 s=9 c=32]", "[dp=1 sp=2]", "b@dp,s@sp", "gather-kv", HEDDLE_STAGE_ATTENTION, 2, 14, 0},
    {"bf16[b=1 t=2 s=13 c=16]", "[r=2 u=2]", "s@r,s@u", "usp", HEDDLE_STAGE_ATTENTION, 2, 0, 0},
    {"f32[b=2 t=6 s=3 c=16]", "[tp=2 sp=2]", "s@tp,t@sp", "ring", HEDDLE_STAGE_ATTENTION, 1, 1, 0},
    {"f32[b=1 t=3 s=11 c=16]", "[sp=2]", "s@sp", "lasp", HEDDLE_STAGE_LINEAR, 2, 3, 0},
    {"f16[b=2 t=9 s=2 c=16]", "[sp=3]", "t@sp(4 0 5)", "lasp2", HEDDLE_STAGE_LINEAR, 1, 8, 0},
    {"bf16[b=2 t=7 s=2 c=16]", "[sp=4]", "t@sp", "lasp", HEDDLE_STAGE_LINEAR, 1, 10, 0},
    {"f32[b=1 t=2 s=9 c=32]", "[dp=1 sp=3]", "b@dp,s@sp", "scan", HEDDLE_STAGE_LINEAR, 2, 4, 0},
};

/* Samples and fibres could go one after the other; attention with peers has all of them at once. */
static const job too_small = {"f32[b=4 t=5 s=12 c=16]", "[sp=2]", "s@sp", "ring", HEDDLE_STAGE_ATTENTION, 2, 0, 16384};

static heddle_status check_refused(world *w)
{
    heddle_status st = HEDDLE_OK;
    CHECK(heddle_block_reserve(w->mine, &w->box) == HEDDLE_ERR_ARG);
    CHECK(says("for 120 rows, which attention over a sharded dim has at once"));
out:
    return st;
}

static heddle_status run_job(heddle_comm *comm, void *arg)
{
    world w;
    const judge *of = arg;
    heddle_status st = open_world(&w, of, comm);
    st = st != HEDDLE_OK ? st : of->j.most_workspace_bytes > 0 ? check_refused(&w) : check(&w);
    close_world(&w);
    return st;
}

static void judge_open(judge *w, const job *j)
{
    heddle_block_options options = options_of(j);
    heddle_tape *tape = NULL;
    HD_OK(heddle_shape_parse(&options.shape, j->shape));
    options.shape.dtype = HEDDLE_F32;
    w->j = *j;
    open_problem(&w->p, &options);
    const size_t bytes = (size_t)w->p.elems * sizeof(float);
    const heddle_box all = whole_box(&options.shape);
    w->x = must_alloc(w->p.elems, sizeof *w->x);
    w->dx = must_alloc(w->p.elems, sizeof *w->dx);
    memcpy(w->x, w->p.x, bytes);
    memcpy(w->dx, w->p.x, bytes);
    const heddle_tensor x = box_tensor(w->p.block, w->x, &all), dx = box_tensor(w->p.block, w->dx, &all);
    HD_OK(heddle_tape_create(&tape, w->p.block, NULL));
    HD_OK(heddle_block_forward_tape(w->p.block, &x, &all, &w->p.conditioning, tape, HEDDLE_NO_STREAM));
    HD_OK(heddle_block_backward(w->p.block, &dx, &w->p.conditioning, NULL, tape, HEDDLE_NO_STREAM));
    heddle_tape_destroy(tape);
}

static void run_one(const char *transport, heddle_wire wire, const job *j)
{
    const heddle_comm_options options = device_options("cuda", wire);
    heddle_mesh mesh;
    judge w;
    judge_open(&w, j);
    HD_OK(heddle_mesh_parse(&mesh, j->mesh));
    HD_OK(heddle_run_ranks_with(heddle_mesh_size(&mesh), transport, &options, run_job, &w));
    close_problem(&w.p);
    free(w.x);
    free(w.dx);
}

static void run_all(const char *transport, heddle_wire wire, int first, int end)
{
    for (int i = first; i < end; i += hd_step()) { /* ThreadSanitizer has no memory for many ranks in one process */
        run_one(transport, wire, &jobs[i]);
    }
}

HD_CASE(parts_are_those_of_the_whole)
{
    run_all("threads", HEDDLE_WIRE_PEER, 0, 3);
}

HD_CASE(parts_of_more_axes_are_those_of_the_whole)
{
    run_all("threads", HEDDLE_WIRE_PEER, 3, 6);
}

HD_CASE(parts_of_linear_attention_are_those_of_the_whole)
{
    run_all("threads", HEDDLE_WIRE_PEER, 6, 10);
}

HD_CASE(parts_by_way_of_the_host_are_those_of_the_whole)
{
    run_all("threads", HEDDLE_WIRE_HOST, 0, 1);
    run_all("threads", HEDDLE_WIRE_HOST, 6, 7);
}

HD_CASE(rows_that_have_no_room_at_once_are_refused)
{
    run_one("threads", HEDDLE_WIRE_PEER, &too_small);
}
