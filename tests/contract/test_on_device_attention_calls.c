/* Calls of attention on the emulated device: the same bits in every run, eager and replayed, what is refused on every
 * rank, calls of CUDA that fail, and a rank that does not come. */
#include "on_device.h"
#include "time_limit.h"

#include <heddle/heddle.h>
#include <stdio.h>
#include <unistd.h>

enum { BATCH = 2, ROWS = 19, HEADS = 4, WIDTH = 16, ROW = HEADS * WIDTH, ARRAYS = 8 };

/* An object and its arrays on one rank, bf16: q, k, v, d_o; o, dq, dk, dv. */
typedef struct part {
    heddle_comm *comm;
    heddle_attention *attention;
    heddle_attention_array x[ARRAYS];
    size_t bytes; /* of each */
    heddle_stream stream;
} part;

static heddle_status parse(heddle_shape *shape, heddle_mesh *mesh, heddle_layout *layout, const char *text, int ranks)
{
    heddle_status st = HEDDLE_OK;
    char mesh_text[32];
    snprintf(mesh_text, sizeof mesh_text, "[sp=%d]", ranks);
    HD_TRY(heddle_shape_parse(shape, text));
    HD_TRY(heddle_mesh_parse(mesh, mesh_text));
    st = heddle_layout_parse(layout, "s@sp", shape, mesh);
out:
    return st;
}

static heddle_attention_options options_of(const heddle_comm *comm, heddle_attention_method method)
{
    heddle_attention_options options;
    heddle_attention_options_init(&options);
    options.method = method;
    options.causal = 1;
    options.placement = HEDDLE_PLACEMENT_ZIGZAG;
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(comm);
    return options;
}

static heddle_status create(heddle_attention **out, heddle_comm *comm, const char *text,
                            const heddle_attention_options *options)
{
    heddle_status st = HEDDLE_OK;
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    HD_TRY(parse(&shape, &mesh, &layout, text, heddle_comm_size(comm)));
    st = heddle_attention_create(out, comm, &shape, &mesh, &layout, options);
out:
    return st;
}

static const char *const problem_text = "bf16[b=2 s=19 h=4 d=16]";

static heddle_status set_up_with(part *p, heddle_comm *comm, heddle_attention_method method, int64_t deadline_ms)
{
    heddle_status st = HEDDLE_OK;
    uint16_t host[BATCH * ROWS * ROW];
    heddle_attention_info info = HEDDLE_EMPTY(heddle_attention_info);
    heddle_attention_options options = options_of(comm, method);
    options.deadline_ms = deadline_ms;
    memset(p, 0, sizeof *p);
    p->comm = comm;
    HD_TRY(hd_comm_device(comm)->library->stream_create(&p->stream, heddle_comm_device(comm)));
    HD_TRY(create(&p->attention, comm, problem_text, &options));
    HD_TRY(heddle_attention_get_info(&info, p->attention));
    CHECK(info.planned_saved_bytes == 0 && info.planned_workspace_bytes == 0 && info.saved_bytes > 0);
    p->bytes = sizeof host;
    for (int i = 0; i < ARRAYS; i++) {
        for (int k = 0; k < BATCH * ROWS * ROW; k++) {
            host[k] = (uint16_t)(0x3e00 + (k * 37 + i * 11 + heddle_comm_rank(comm)) % 0x180 + (k % 3 == 0) * 0x8000);
        }
        HD_TRY(heddle_buffer_alloc(&p->x[i].data, comm, p->bytes, HEDDLE_SPACE_DEVICE));
        HD_TRY(device_copy(comm, p->x[i].data, host, p->bytes, p->stream));
        HD_TRY(device_settle(comm, p->stream));
    }
    st = heddle_comm_barrier(comm);
out:
    return st;
}

static heddle_status set_up(part *p, heddle_comm *comm, heddle_attention_method method)
{
    return set_up_with(p, comm, method, 0);
}

static void tear_down(part *p)
{
    heddle_attention_destroy(p->attention);
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
    HD_TRY(heddle_attention_forward(p->attention, &x[0], &x[1], &x[2], &x[4], NULL, p->stream));
    st = heddle_attention_backward(p->attention, &x[3], &x[5], &x[6], &x[7], p->stream);
out:
    return st;
}

/* The results, when all is done. */
static heddle_status fetch(part *p, char *out)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 4; i < ARRAYS; i++) {
        HD_TRY(device_copy(p->comm, out + (size_t)(i - 4) * p->bytes, p->x[i].data, p->bytes, p->stream));
    }
    HD_TRY(device_settle(p->comm, p->stream));
    st = heddle_comm_poll(p->comm);
out:
    return st;
}

static heddle_status differ(const part *p, const char *a, const char *b, const char *what)
{
    return memcmp(a, b, 4 * p->bytes) == 0
               ? HEDDLE_OK
               : heddle_set_error(HEDDLE_ERR_INTERNAL, "rank %d: other bits %s", heddle_comm_rank(p->comm), what);
}

enum { RUNS = 3, REPLAYS = 5 };

static heddle_status replay(part *p, const char *wanted, char *got)
{
    heddle_status st = HEDDLE_OK;
    device_sim sim;
    void *graph = NULL;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(sim.capture(p->stream, 1));
    HD_TRY(both_ways(p));
    HD_TRY(sim.record(p->stream, &graph));
    for (int i = 0; i < hd_rounds(REPLAYS); i++) {
        HD_TRY(sim.replay(graph, p->stream));
        HD_TRY(fetch(p, got));
        HD_TRY(differ(p, wanted, got, "in a replay"));
    }
out:
    device_graph_free(&sim, graph);
    return st;
}

static heddle_status bits_by(heddle_comm *comm, heddle_attention_method method)
{
    heddle_status st = HEDDLE_OK;
    part p;
    char *results = NULL;
    HD_TRY(set_up(&p, comm, method));
    results = calloc(2, 4 * p.bytes);
    HD_TRY(both_ways(&p));
    HD_TRY(fetch(&p, results));
    for (int i = 0; i < hd_rounds(RUNS); i++) {
        HD_TRY(both_ways(&p));
        HD_TRY(fetch(&p, results + 4 * p.bytes));
        HD_TRY(differ(&p, results, results + 4 * p.bytes, "in another run"));
    }
    st = replay(&p, results, results + 4 * p.bytes);
out:
    free(results);
    tear_down(&p);
    return st;
}

static heddle_status bits(heddle_comm *comm, void *arg)
{
    (void)arg;
    static const heddle_attention_method methods[] = {HEDDLE_ATTENTION_ULYSSES, HEDDLE_ATTENTION_RING,
                                                      HEDDLE_ATTENTION_GATHER_KV};
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < 3 && st == HEDDLE_OK; i++) {
        st = bits_by(comm, methods[i]);
    }
    return st;
}

HD_CASE(every_run_and_every_replay_has_the_same_bits)
{
    run_on(3, "threads", "cuda", HEDDLE_WIRE_PEER, bits);
}

/* --- what is refused ---------------------------------------------------------------------------------------------- */

static heddle_status refusals(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_attention *a = NULL;
    heddle_attention_options o = options_of(comm, HEDDLE_ATTENTION_RING);
    REFUSED(HEDDLE_ERR_UNSUPPORTED, "these are f64", create(&a, comm, "f64[b=2 s=19 h=4 d=16]", &o));
    REFUSED(HEDDLE_ERR_UNSUPPORTED, "bf16 of 12", create(&a, comm, "bf16[b=2 s=19 h=4 d=12]", &o));
    REFUSED(HEDDLE_ERR_UNSUPPORTED, "f32 of 136", create(&a, comm, "f32[b=2 s=19 h=4 d=136]", &o));
    o.method = HEDDLE_ATTENTION_RSA;
    REFUSED(HEDDLE_ERR_UNSUPPORTED, "method rsa", create(&a, comm, problem_text, &o));
    o = options_of(comm, HEDDLE_ATTENTION_RING);
    o.space = heddle_comm_rank(comm) == 1 ? HEDDLE_SPACE_HOST : HEDDLE_SPACE_DEVICE;
    o.device = o.space == HEDDLE_SPACE_HOST ? 0 : heddle_comm_device(comm);
    REFUSED(HEDDLE_ERR_MISMATCH, "space", create(&a, comm, problem_text, &o));
    o.space = HEDDLE_SPACE_HOST;
    o.device = 0;
    REFUSED(HEDDLE_ERR_UNSUPPORTED, "f16 wants a device", create(&a, comm, "f16[b=2 s=19 h=4 d=16]", &o));
    return heddle_comm_poll(comm); /* it is usable after all of them */
}

HD_CASE(what_no_device_does_is_refused_on_every_rank)
{
    run_on(3, "threads", "cuda", HEDDLE_WIRE_PEER, refusals);
}

static heddle_status no_device(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_attention *a = NULL;
    heddle_attention_options o = options_of(comm, HEDDLE_ATTENTION_RING);
    o.device = 0;
    REFUSED(HEDDLE_ERR_UNSUPPORTED, "device", create(&a, comm, problem_text, &o));
    return HEDDLE_OK;
}

HD_CASE(without_a_device_it_is_refused_on_every_rank)
{
    HD_OK(heddle_run_ranks(2, "threads", no_device, NULL));
}

static const char held_up[] = "kernels that a busy machine has not ended in time keep what they use";

/* A rank that brings arrays of the host says so, and the others hear of it. */
static heddle_status host_arrays(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    part p;
    uint16_t here[BATCH * ROWS * ROW] = {0};
    device_sim sim;
    HD_TRY(set_up(&p, comm, HEDDLE_ATTENTION_RING));
    HD_TRY(device_sim_get(&sim));
    sim.set_unseen(1);
    void *const there = p.x[1].data;
    p.x[1].data = heddle_comm_rank(comm) == 1 ? here : there;
    st = both_ways(&p);
    if (heddle_comm_rank(comm) == 1) {
        REFUSED(HEDDLE_ERR_ARG, "k at ", st);
    }
    const int64_t until_ns = hd_now_ns() + hd_test_limit_ns(10);
    while (st == HEDDLE_OK && hd_now_ns() < until_ns) { /* it was enqueued before the other one gave up */
        st = heddle_comm_poll(comm);
        usleep(5000);
    }
    REFUSED(heddle_comm_rank(comm) == 1 ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER, "in host memory; the attention works on",
            st);
    p.x[1].data = there;
    tear_down(&p);
    return HEDDLE_OK;
out:
    return st;
}

HD_CASE(arrays_of_the_host_are_refused_on_every_rank)
{
    hd_leaves(held_up);
    run_on(3, "threads", "cuda", HEDDLE_WIRE_PEER, host_arrays);
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

static heddle_status whole_life(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    char results[4 * BATCH * ROWS * ROW * 2];
    part p;
    HD_TRY(set_up(&p, comm, HEDDLE_ATTENTION_RING));
    HD_TRY(both_ways(&p));
    st = fetch(&p, results);
out:
    tear_down(&p);
    return st;
}

static heddle_status run_life(void)
{
    heddle_comm_options options = device_options("cuda", HEDDLE_WIRE_PEER);
    options.deadline_ms = hd_test_limit_ns(20) / 1000000;
    return heddle_run_ranks_with(2, "threads", &options, whole_life, NULL);
}

/* Calls of two ranks are counted together, so which one fails differs from run to run; it always says so. */
HD_CASE(calls_of_cuda_that_fail_say_so)
{
    hd_leaves(held_up);
    device_sim sim;
    HD_OK(run_life());
    HD_OK(device_sim_get(&sim));
    int64_t calls = INT64_MAX, failed = 0;
    for (int i = 0; i < 3; i++) { /* who has to wait asks more often */
        const int64_t before = sim.calls();
        HD_OK(run_life());
        calls = sim.calls() - before < calls ? sim.calls() - before : calls;
    }
    for (int64_t n = calls / 5; n <= calls; n += (calls / 24 + 1) * hd_step()) {
        sim.set_unseen(1);
        sim.fail_at(n, 999);
        const heddle_status st = run_life();
        sim.fail_at(0, 0);
        sim.set_unseen(0);
        if (st != HEDDLE_OK && !says("failed with error 999")) {
            fail_msg("call %d: %s", (int)n, heddle_last_error());
        }
        failed += st != HEDDLE_OK;
    }
    assert_true(failed > 0 || hd_step() > 1); /* few of them may all be looks at events, and the next look asks again */
    HD_OK(run_life());
}

enum { DEADLINE_S = 2 };

static heddle_status one_stays_away(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    part p;
    HD_TRY(set_up_with(&p, comm, HEDDLE_ATTENTION_RING, hd_test_limit_ns(DEADLINE_S) / 1000000));
    if (heddle_comm_rank(comm) == 0) {
        st = both_ways(&p);
    }
    const int64_t until_ns = hd_now_ns() + 2 * hd_test_limit_ns(DEADLINE_S);
    while (hd_now_ns() < until_ns && st == HEDDLE_OK) {
        st = heddle_comm_poll(comm);
        usleep(5000);
    }
    if (heddle_comm_rank(comm) == 0) {
        REFUSED(HEDDLE_ERR_TIMEOUT, "rank 1", st);
    }
    tear_down(&p);
    return HEDDLE_OK;
out:
    return st;
}

HD_CASE(a_rank_that_does_not_come_is_waited_for_until_the_deadline)
{
    hd_leaves(held_up);
    run_on(2, "threads", "cuda", HEDDLE_WIRE_PEER, one_stays_away);
}
