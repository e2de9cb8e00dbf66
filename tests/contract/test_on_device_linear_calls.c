/* Calls of linear attention on the emulated device: the same bits in every run, eager and replayed, and what is refused
 * on every rank. */
#include "on_device.h"
#include "time_limit.h"

#include <heddle/heddle.h>
#include <heddle/linear_attention.h>
#include <unistd.h>

enum { BATCH = 1, ROWS = 19, HEADS = 2, WIDTH = 16, ELEMS_EACH = BATCH * ROWS * HEADS * WIDTH, ARRAYS = 8 };

/* An object and its arrays on one rank of three, bf16: q, k, v, d_o; o, dq, dk, dv. */
typedef struct part {
    heddle_comm *comm;
    heddle_linear_attention *attention;
    heddle_attention_array x[ARRAYS];
    heddle_stream stream;
} part;

typedef uint16_t results[4][ELEMS_EACH];

static const char *const problem_text = "bf16[b=1 s=19 h=2 d=16]";

static heddle_linear_attention_options options_of(const heddle_comm *comm, heddle_linear_method method)
{
    static const double decay[HEADS] = {0.9, 1};
    heddle_linear_attention_options options;
    heddle_linear_attention_options_init(&options);
    options.method = method;
    options.decay = decay;
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(comm);
    return options;
}

static heddle_status create(heddle_linear_attention **out, heddle_comm *comm, const char *text,
                            const heddle_linear_attention_options *options)
{
    heddle_status st = HEDDLE_OK;
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    char mesh_text[32];
    snprintf(mesh_text, sizeof mesh_text, "[sp=%d]", heddle_comm_size(comm));
    HD_TRY(heddle_shape_parse(&shape, text));
    HD_TRY(heddle_mesh_parse(&mesh, mesh_text));
    HD_TRY(heddle_layout_parse(&layout, "s@sp", &shape, &mesh));
    st = heddle_linear_attention_create(out, comm, &shape, &mesh, &layout, options);
out:
    return st;
}

static heddle_status set_up(part *p, heddle_comm *comm, heddle_linear_method method)
{
    heddle_status st = HEDDLE_OK;
    uint16_t host[ELEMS_EACH];
    const heddle_linear_attention_options options = options_of(comm, method);
    memset(p, 0, sizeof *p);
    p->comm = comm;
    HD_TRY(hd_comm_device(comm)->library->stream_create(&p->stream, heddle_comm_device(comm)));
    HD_TRY(create(&p->attention, comm, problem_text, &options));
    for (int i = 0; i < ARRAYS; i++) {
        for (int k = 0; k < ELEMS_EACH; k++) {
            host[k] = (uint16_t)(0x3e00 + (k * 37 + i * 11 + heddle_comm_rank(comm)) % 0x180 + (k % 3 == 0) * 0x8000);
        }
        HD_TRY(heddle_buffer_alloc(&p->x[i].data, comm, sizeof host, HEDDLE_SPACE_DEVICE));
        HD_TRY(device_copy(comm, p->x[i].data, host, sizeof host, p->stream));
        HD_TRY(device_settle(comm, p->stream));
    }
    st = heddle_comm_barrier(comm);
out:
    return st;
}

static void tear_down(part *p)
{
    heddle_linear_attention_destroy(p->attention);
    for (int i = 0; i < ARRAYS; i++) {
        heddle_buffer_free(p->comm, p->x[i].data);
    }
    if (p->stream != HEDDLE_NO_STREAM && heddle_comm_poll(p->comm) == HEDDLE_OK) {
        hd_comm_device(p->comm)->library->stream_destroy(p->stream, heddle_comm_device(p->comm));
    }
}

static heddle_status both_ways(part *p)
{
    heddle_status st = HEDDLE_OK;
    heddle_attention_array *x = p->x;
    HD_TRY(heddle_linear_attention_forward(p->attention, &x[0], &x[1], &x[2], &x[4], p->stream));
    st = heddle_linear_attention_backward(p->attention, &x[0], &x[1], &x[2], &x[3], &x[5], &x[6], &x[7], p->stream);
out:
    return st;
}

/* The results, when all is done. */
static heddle_status fetch(part *p, results out)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < 4; i++) {
        HD_TRY(device_copy(p->comm, out[i], p->x[4 + i].data, sizeof out[i], p->stream));
    }
    HD_TRY(device_settle(p->comm, p->stream));
    st = heddle_comm_poll(p->comm);
out:
    return st;
}

static heddle_status differ(const part *p, const void *a, const void *b, const char *what)
{
    return memcmp(a, b, sizeof(results)) == 0
               ? HEDDLE_OK
               : heddle_set_error(HEDDLE_ERR_INTERNAL, "rank %d: other bits %s", heddle_comm_rank(p->comm), what);
}

static heddle_status replay(part *p, results wanted, results got)
{
    heddle_status st = HEDDLE_OK;
    device_sim sim;
    void *graph = NULL;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(sim.capture(p->stream, 1));
    HD_TRY(both_ways(p));
    HD_TRY(sim.record(p->stream, &graph));
    for (int i = 0; i < 3; i++) {
        HD_TRY(sim.replay(graph, p->stream));
        HD_TRY(fetch(p, got));
        HD_TRY(differ(p, wanted, got, "in a replay"));
    }
out:
    device_graph_free(&sim, graph);
    return st;
}

static heddle_status bits_by(heddle_comm *comm, heddle_linear_method method)
{
    heddle_status st = HEDDLE_OK;
    part p;
    results wanted, got;
    HD_TRY(set_up(&p, comm, method));
    HD_TRY(both_ways(&p));
    HD_TRY(fetch(&p, wanted));
    for (int i = 0; i < 2; i++) {
        HD_TRY(both_ways(&p));
        HD_TRY(fetch(&p, got));
        HD_TRY(differ(&p, wanted, got, "in another run"));
    }
    st = replay(&p, wanted, got);
out:
    tear_down(&p);
    return st;
}

static heddle_status bits(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = bits_by(comm, HEDDLE_LINEAR_LASP);
    st = st == HEDDLE_OK ? bits_by(comm, HEDDLE_LINEAR_LASP2) : st;
    return st == HEDDLE_OK ? bits_by(comm, HEDDLE_LINEAR_SCAN) : st;
}

HD_CASE(every_run_and_every_replay_has_the_same_bits)
{
    run_on(3, "threads", "cuda", HEDDLE_WIRE_PEER, bits);
}

/* --- what is refused ---------------------------------------------------------------------------------------------- */

static heddle_status refusals(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_linear_attention *a = NULL;
    heddle_linear_attention_options o = options_of(comm, HEDDLE_LINEAR_LASP);
    REFUSED(HEDDLE_ERR_UNSUPPORTED, "these are f64", create(&a, comm, "f64[b=1 s=19 h=2 d=16]", &o));
    REFUSED(HEDDLE_ERR_UNSUPPORTED, "bf16 of 12 and 12", create(&a, comm, "bf16[b=1 s=19 h=2 d=12]", &o));
    REFUSED(HEDDLE_ERR_UNSUPPORTED, "f32 of 136", create(&a, comm, "f32[b=1 s=19 h=2 d=136]", &o));
    o.dv = 130;
    REFUSED(HEDDLE_ERR_UNSUPPORTED, "f32 of 16 and 130", create(&a, comm, "f32[b=1 s=19 h=2 d=16]", &o));
    o = options_of(comm, HEDDLE_LINEAR_LASP);
    o.receive_first = 1;
    REFUSED(HEDDLE_ERR_UNSUPPORTED, "receive_first", create(&a, comm, problem_text, &o));
    o = options_of(comm, HEDDLE_LINEAR_LASP);
    o.space = heddle_comm_rank(comm) == 1 ? HEDDLE_SPACE_HOST : HEDDLE_SPACE_DEVICE;
    o.device = o.space == HEDDLE_SPACE_HOST ? 0 : heddle_comm_device(comm);
    REFUSED(HEDDLE_ERR_MISMATCH, "space", create(&a, comm, problem_text, &o));
    o.space = HEDDLE_SPACE_HOST;
    o.device = 0;
    REFUSED(HEDDLE_ERR_UNSUPPORTED, "f16 wants a device", create(&a, comm, "f16[b=1 s=19 h=2 d=16]", &o));
    return heddle_comm_poll(comm); /* it is usable after all of them */
}

HD_CASE(what_no_device_does_is_refused_on_every_rank)
{
    run_on(3, "threads", "cuda", HEDDLE_WIRE_PEER, refusals);
}

static heddle_status no_device(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_linear_attention *a = NULL;
    heddle_linear_attention_options o = options_of(comm, HEDDLE_LINEAR_LASP);
    o.device = 0;
    REFUSED(HEDDLE_ERR_UNSUPPORTED, "device", create(&a, comm, problem_text, &o));
    return HEDDLE_OK;
}

HD_CASE(without_a_device_it_is_refused_on_every_rank)
{
    HD_OK(heddle_run_ranks(2, "threads", no_device, NULL));
}

/* Alone nobody waits: the object is as it was. */
static heddle_status arrays(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    part p;
    uint16_t here[ELEMS_EACH] = {0};
    HD_TRY(set_up(&p, comm, HEDDLE_LINEAR_LOCAL));
    heddle_attention_array *x = p.x;
    const heddle_attention_array host = {.data = here}, odd = {.data = (char *)x[1].data + 2},
                                 apart = {.data = x[1].data, .stride_elems = {ELEMS_EACH, HEADS * WIDTH, 1, HEADS}},
                                 uneven = {.data = x[1].data, .stride_elems = {ELEMS_EACH, 33, 16, 1}};
    heddle_linear_attention *a = p.attention;
    REFUSED(HEDDLE_ERR_ARG, "in host memory; the linear attention works on",
            heddle_linear_attention_forward(a, &x[0], &host, &x[2], &x[4], p.stream));
    REFUSED(HEDDLE_ERR_ARG, "multiples of 16 bytes",
            heddle_linear_attention_forward(a, &x[0], &odd, &x[2], &x[4], p.stream));
    REFUSED(HEDDLE_ERR_ARG, "lie 2 apart", heddle_linear_attention_forward(a, &x[0], &apart, &x[2], &x[4], p.stream));
    REFUSED(HEDDLE_ERR_ARG, "strides of", heddle_linear_attention_forward(a, &x[0], &uneven, &x[2], &x[4], p.stream));
    HD_TRY(both_ways(&p));
    REFUSED(HEDDLE_ERR_ARG, "out at", heddle_linear_attention_state(here, a, HEDDLE_LINEAR_STATE_PLAIN, p.stream));
    st = device_settle(comm, p.stream);
out:
    tear_down(&p);
    return st;
}

HD_CASE(arrays_that_do_not_fit_are_refused)
{
    run_on(1, "threads", "cuda", HEDDLE_WIRE_PEER, arrays);
}

/* A rank that brings arrays of the host says so, and the others hear of it. */
static heddle_status host_arrays(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    part p;
    uint16_t here[ELEMS_EACH] = {0};
    device_sim sim;
    HD_TRY(set_up(&p, comm, HEDDLE_LINEAR_LASP));
    HD_TRY(device_sim_get(&sim));
    sim.set_unseen(1);
    void *const there = p.x[1].data;
    p.x[1].data = heddle_comm_rank(comm) == 0 ? here : there;
    st = both_ways(&p);
    const int64_t until_ns = hd_now_ns() + hd_test_limit_ns(10);
    while (st == HEDDLE_OK && hd_now_ns() < until_ns) { /* it was enqueued before the other one gave up */
        st = heddle_comm_poll(comm);
        usleep(5000);
    }
    REFUSED(heddle_comm_rank(comm) == 0 ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER, "in host memory; the linear attention", st);
    p.x[1].data = there;
    tear_down(&p);
    return HEDDLE_OK;
out:
    return st;
}

HD_CASE(arrays_of_the_host_are_refused_on_every_rank)
{
    hd_leaves("kernels that a busy machine has not ended in time keep what they use");
    run_on(3, "threads", "cuda", HEDDLE_WIRE_PEER, host_arrays);
}
