/* Arrays in a GPU's memory: four ranks on one device switch a tensor, and a session switches it through the stages of a
 * model. No CUDA is compiled in: heddle loads libheddle_cuda when a device is asked for.
 *
 *     ./example_05_device             on device 0; exit 77 and a sentence where there is none
 *     ./example_05_device cuda:1
 */
#include <heddle/heddle.h>
#include <heddle/sys/device.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char model_text[] =
    "model: two-axes\n"
    "dtype: f32\n"
    "dims: {b: {size: 1, role: batch}, t: {size: 10, role: seq}, s: {size: 30, role: seq}, "
    "c: {size: 8, role: channel}}\n"
    "tensors: {x: [b, t, s, c]}\n"
    "repeat: 2\n"
    "stages:\n"
    "  - {name: space, kind: attention, over: s, heads: 1}\n"
    "  - {name: time, kind: attention, over: t, heads: 1}\n";

/* Ranks that share a device need streams of their own: on its default stream each would wait for the others' turn. A
 * rank is a thread here, and so has its own of these. */
static _Thread_local heddle_stream stream = HEDDLE_NO_STREAM;

/* What a program with CUDA does with cudaMemcpyAsync and cudaStreamSynchronize. */
static heddle_status copy(heddle_comm *comm, void *dst, const void *src, size_t bytes)
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

/* Every element carries its global number; how many of this rank's part do not? fill 1: write them. */
static heddle_status stamps(int64_t *wrong, heddle_comm *comm, const heddle_tensor *x, const heddle_mesh *mesh,
                            int fill)
{
    heddle_box box;
    float *image = calloc(1, x->capacity_bytes + 1);
    heddle_status st = heddle_layout_box(&box, &x->shape, mesh, &x->layout, heddle_comm_rank(comm));
    if (image == NULL) {
        st = heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %zu bytes", x->capacity_bytes);
    }
    st = st || fill ? st : copy(comm, image, x->data, x->capacity_bytes);
    *wrong = 0;
    for (int64_t i = 0; st == HEDDLE_OK && i < heddle_box_elems(&box); i++) {
        int64_t rest = i, step = 1, global = 0;
        for (int d = box.ndim - 1; d >= 0; d--) { /* dense, row-major */
            global += (box.lo[d] + rest % box.len[d]) * step;
            rest /= box.len[d];
            step *= x->shape.dim[d].extent;
        }
        *wrong += !fill && image[i] != (float)global;
        image[i] = (float)global;
    }
    st = st || !fill ? st : copy(comm, x->data, image, x->capacity_bytes);
    free(image);
    return st;
}

/* A tensor on this rank's device, from heddle_buffer_alloc; any memory of the device would do. */
static heddle_status make(heddle_tensor *x, heddle_comm *comm, const heddle_reshard_line *line, int is_dst)
{
    const heddle_layout *layout = is_dst ? &line->to : &line->from;
    heddle_status st = heddle_tensor_init(x, x, &line->shape, &line->mesh, layout, NULL, heddle_comm_rank(comm));
    x->data = NULL;
    x->space = HEDDLE_SPACE_DEVICE;
    x->device = heddle_comm_device(comm);
    return st ? st : heddle_buffer_alloc(&x->data, comm, x->capacity_bytes + 1, HEDDLE_SPACE_DEVICE);
}

/* A plan of its own: made once, executed in the order of a stream any number of times. */
static heddle_status one_switch(int64_t *wrong, heddle_comm *comm, const heddle_reshard_line *line, heddle_tensor *x,
                                heddle_tensor *y)
{
    heddle_reshard *reshard = NULL;
    heddle_reshard_options options;
    heddle_reshard_options_init(&options);
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(comm);
    heddle_status st = heddle_reshard_create_line(&reshard, comm, line, &options);
    st = st ? st : heddle_reshard_execute(reshard, x->data, y->data, stream);
    st = st ? st : stamps(wrong, comm, y, &line->mesh, 0); /* in the order of the stream, so behind the switch */
    heddle_reshard_destroy(reshard);
    return st;
}

/* A pass: enter brings x into each stage's layout, where a kernel of the program's would work on x.data. */
static heddle_status session_pass(int64_t *wrong, heddle_comm *comm, const heddle_mesh *mesh, heddle_tensor x)
{
    heddle_model *model = NULL;
    heddle_schedule *schedule = NULL;
    heddle_session *session = NULL;
    heddle_session_options options;
    heddle_session_options_init(&options);
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(comm);
    heddle_status st = heddle_model_parse(&model, model_text, strlen(model_text), "two-axes");
    st = st ? st : heddle_plan(&schedule, model, mesh, NULL);
    st = st ? st : heddle_session_create(&session, comm, schedule, &options);
    for (int i = 0; i < 4 && st == HEDDLE_OK; i++) {
        int64_t here = 0;
        st = heddle_session_enter(session, i % 2 == 0 ? "space" : "time", &x, NULL, stream);
        st = st ? st : stamps(&here, comm, &x, mesh, 0);
        *wrong += here;
    }
    heddle_session_destroy(session);
    heddle_schedule_destroy(schedule);
    heddle_model_destroy(model);
    return st;
}

static heddle_status rank_main(heddle_comm *comm, void *arg)
{
    heddle_reshard_line line;
    heddle_tensor x = {.data = NULL}, y = {.data = NULL};
    int64_t wrong = 0, wrong_in_pass = 0;
    const heddle_device *table = heddle_comm_device_table(comm);
    heddle_status st = heddle_reshard_parse(&line, arg);
    if (heddle_comm_rank(comm) == 0) {
        printf("%s\n", heddle_comm_describe(comm));
    }
    st = st || table->stream_create == NULL ? st : table->stream_create(&stream, heddle_comm_device(comm));
    st = st ? st : make(&x, comm, &line, 0);
    st = st ? st : make(&y, comm, &line, 1);
    st = st ? st : stamps(&wrong, comm, &x, &line.mesh, 1);
    st = st ? st : one_switch(&wrong, comm, &line, &x, &y);
    st = st ? st : session_pass(&wrong_in_pass, comm, &line.mesh, y);
    if (st == HEDDLE_OK) {
        printf("rank %d: %lld wrong after the switch, %lld in the pass\n", heddle_comm_rank(comm), (long long)wrong,
               (long long)wrong_in_pass);
    }
    st = st ? st : heddle_comm_barrier(comm); /* nobody uses this rank's memory any more */
    if (stream != HEDDLE_NO_STREAM) {
        table->stream_destroy(stream, heddle_comm_device(comm));
    }
    heddle_buffer_free(comm, x.data);
    heddle_buffer_free(comm, y.data);
    return st || wrong + wrong_in_pass == 0 ? st : heddle_set_error(HEDDLE_ERR_INTERNAL, "elements are wrong");
}

int main(int argc, char **argv)
{
    static char line[] = "f32[b=1 t=10 s=30 c=8] on [sp=4]: t@sp -> s@sp";
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.device = argc > 1 ? argv[1] : "cuda:0";
    heddle_status st = heddle_run_ranks_with(4, "threads", &options, rank_main, line);
    if (st != HEDDLE_OK) {
        fprintf(stderr, "%s: %s\n", heddle_status_name(st), heddle_last_error());
    }
    return st == HEDDLE_ERR_UNSUPPORTED ? 77 : st != HEDDLE_OK;
}
