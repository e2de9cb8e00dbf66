/* A model's whole pass in a GPU's memory, forward and back: stages compute there (heddle/block.h), switches go from
 * device to device, and between input and output nothing is copied. Two ranks on one device, then one alone: the same
 * bits.
 *
 *     ./example_06_device_model             on device 0; exit 77 and a sentence where there is none
 *     ./example_06_device_model cuda:1
 */
#include <heddle/heddle.h>
#include <heddle/sys/device.h>
#include <heddle/train/executor.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char model_text[] = "model: small-video\n"
                                 "dtype: f32\n"
                                 "dims: {b: {size: 1, role: batch}, t: {size: 5, role: seq}, s: {size: 12, role: seq}, "
                                 "c: {size: 16, role: channel}}\n"
                                 "tensors: {x: [b, t, s, c]}\n"
                                 "repeat: 2\n"
                                 "stages:\n"
                                 "  - {name: space, kind: attention, over: s, heads: 2}\n"
                                 "  - {name: time, kind: attention, over: t, heads: 2, rope: true}\n"
                                 "  - {name: mlp, kind: mlp, ratio: 4}\n";
enum { STAGES = 3, ELEMS = 5 * 12 * 16 };

/* What comes out: the activation, and the gradient of the input of a loss whose gradient is the input itself. */
typedef struct results {
    float x[ELEMS], dx[ELEMS];
} results;

/* What a program with CUDA does with cudaMemcpyAsync and cudaStreamSynchronize. */
static heddle_status copy(heddle_comm *comm, void *dst, const void *src, size_t bytes, heddle_stream stream)
{
    const heddle_device *table = heddle_comm_device_table(comm);
    const int device = heddle_comm_device(comm);
    void *event = NULL;
    int done = 0;
    heddle_status st = table->copy(dst, 0, src, 0, (int64_t)bytes, 1, device, stream);
    st = st ? st : table->event_create(&event, device);
    st = st ? st : table->event_record(event, device, stream);
    while (st == HEDDLE_OK && !done) {
        st = table->event_test(event, device, &done);
    }
    table->event_destroy(event, device);
    return st;
}

/* The executor's stages are the model's. */
static heddle_status make_executor(heddle_executor **out, heddle_comm *comm, heddle_model *model,
                                   const heddle_schedule *schedule, const heddle_schedule_info *info)
{
    heddle_status st = HEDDLE_OK;
    heddle_block_options stages[STAGES];
    heddle_executor_options options;
    for (int i = 0; i < STAGES && st == HEDDLE_OK; i++) {
        heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
        st = heddle_model_stage(&stage, model, i);
        heddle_block_options_init(&stages[i]);
        stages[i].kind = stage.kind;
        stages[i].shape = info->shape;
        stages[i].mixed_dim = stage.mixed_dim;
        stages[i].heads = stage.heads > 0 ? stage.heads : 1;
        stages[i].mlp_channels = stage.mlp_channels;
        stages[i].rope = stage.rope;
        stages[i].modulate = 0;
    }
    heddle_executor_options_init(&options);
    options.backward = 1;
    options.space = HEDDLE_SPACE_DEVICE;  /* switches, */
    options.blocks = HEDDLE_SPACE_DEVICE; /* and stages */
    options.device = heddle_comm_device(comm);
    return st ? st : heddle_executor_create(out, comm, schedule, stages, &options);
}

/* The input, whole on every rank and on its device; any memory of the device would do. */
static heddle_status make_input(heddle_tensor *x, heddle_comm *comm, const heddle_schedule_info *info,
                                heddle_stream stream)
{
    float values[ELEMS];
    const heddle_layout whole = heddle_layout_replicated();
    for (int i = 0; i < ELEMS; i++) {
        values[i] = (float)(i * 37 % 101) / 101.0F - 0.5F;
    }
    heddle_status st = heddle_tensor_init(x, values, &info->shape, &info->mesh, &whole, NULL, heddle_comm_rank(comm));
    x->space = HEDDLE_SPACE_DEVICE;
    x->device = heddle_comm_device(comm);
    x->data = NULL;
    st = st ? st : heddle_buffer_alloc(&x->data, comm, sizeof values, HEDDLE_SPACE_DEVICE);
    return st ? st : copy(comm, x->data, values, sizeof values, stream);
}

/* All of x, of which each rank has its part. */
static heddle_status gather(float *whole, heddle_comm *comm, const heddle_tensor *x, const heddle_mesh *mesh,
                            heddle_stream stream)
{
    heddle_box box;
    float part[ELEMS];
    heddle_status st = heddle_layout_box(&box, &x->shape, mesh, &x->layout, heddle_comm_rank(comm));
    const int64_t n = st ? 0 : heddle_box_elems(&box);
    st = st ? st : copy(comm, part, x->data, (size_t)n * sizeof *part, stream);
    for (int64_t i = 0; st == HEDDLE_OK && i < n; i++) {
        int64_t rest = i, step = 1, at = 0;
        for (int d = box.ndim - 1; d >= 0; d--) { /* dense, row-major */
            at += (box.lo[d] + rest % box.len[d]) * step;
            rest /= box.len[d];
            step *= x->shape.dim[d].extent;
        }
        whole[at] = part[i];
    }
    return st ? st : heddle_comm_allreduce_sum(comm, whole, ELEMS, HEDDLE_F32); /* of others' parts there are zeros */
}

/* Forward and back are enqueued as a whole each; the copies wait for them. The way back writes over x. */
static heddle_status pass(results *out, heddle_comm *comm, heddle_executor *executor, const heddle_schedule_info *info,
                          heddle_stream stream)
{
    const heddle_conditioning none = {NULL, NULL, NULL}; /* these stages are not modulated, and read no text */
    heddle_tensor input = {.data = NULL}, gradient = {.data = NULL}, x, dx;
    heddle_status st = make_input(&input, comm, info, stream);
    st = st ? st : make_input(&gradient, comm, info, stream);
    x = input;
    dx = gradient;
    st = st ? st : heddle_executor_forward(executor, &x, &none, stream);
    st = st ? st : copy(comm, out->x, x.data, sizeof out->x, stream);
    st = st ? st : heddle_executor_backward(executor, &dx, &none, NULL, stream);
    st = st ? st : gather(out->dx, comm, &dx, &info->mesh, stream);
    st = st ? st : heddle_comm_poll(comm);    /* what has gone wrong on the way is said here */
    st = st ? st : heddle_comm_barrier(comm); /* nobody uses this rank's memory any more */
    heddle_buffer_free(comm, input.data);
    heddle_buffer_free(comm, gradient.data);
    return st;
}

static heddle_status rank_main(heddle_comm *comm, void *arg)
{
    heddle_model *model = NULL;
    heddle_schedule *schedule = NULL;
    heddle_executor *executor = NULL;
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    heddle_stream stream = HEDDLE_NO_STREAM; /* ranks that share a device need streams of their own */
    results mine = {{0}, {0}};
    const heddle_mesh mesh = {.naxes = 1, .axis = {{.name = "sp", .size = heddle_comm_size(comm)}}};
    const heddle_device *table = heddle_comm_device_table(comm);
    heddle_status st = table->stream_create(&stream, heddle_comm_device(comm));
    st = st ? st : heddle_model_parse(&model, model_text, strlen(model_text), "small-video");
    st = st ? st : heddle_plan(&schedule, model, &mesh, NULL);
    st = st ? st : heddle_schedule_get_info(&info, schedule);
    st = st ? st : make_executor(&executor, comm, model, schedule, &info);
    st = st ? st : pass(&mine, comm, executor, &info, stream);
    if (st == HEDDLE_OK && heddle_comm_rank(comm) == 0) {
        printf("%d rank(s) on %s: %d stages forward and back\n", heddle_comm_size(comm), heddle_comm_describe(comm),
               info.nstages);
        *(results *)arg = mine;
    }
    heddle_executor_destroy(executor);
    heddle_schedule_destroy(schedule);
    heddle_model_destroy(model);
    if (stream != HEDDLE_NO_STREAM) {
        table->stream_destroy(stream, heddle_comm_device(comm));
    }
    return st;
}

int main(int argc, char **argv)
{
    static results together, alone;
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.device = argc > 1 ? argv[1] : "cuda:0";
    heddle_status st = heddle_run_ranks_with(2, "threads", &options, rank_main, &together);
    st = st ? st : heddle_run_ranks_with(1, "threads", &options, rank_main, &alone);
    if (st != HEDDLE_OK) {
        fprintf(stderr, "%s: %s\n", heddle_status_name(st), heddle_last_error());
        return st == HEDDLE_ERR_UNSUPPORTED ? 77 : 1;
    }
    const int is_same = memcmp(&together, &alone, sizeof alone) == 0;
    printf("two ranks are %s one\n", is_same ? "bitwise equal to" : "DIFFERENT from");
    return !is_same;
}
