/* Calls of attention on the emulated device: the same bits in every run, eager and replayed, what is refused on every
 * rank, calls of CUDA that fail, and a rank that does not come. */
#include "attention_calls.h"

static const char *const problem_text = "bf16[b=2 s=19 h=4 d=16]";
enum { ELEMS_EACH = 2 * 19 * 4 * 16 };

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
    HD_TRY(part_parse(&shape, &mesh, &layout, text, heddle_comm_size(comm)));
    st = heddle_attention_create(out, comm, &shape, &mesh, &layout, options);
out:
    return st;
}

static heddle_status both_ways(part *p)
{
    heddle_status st = HEDDLE_OK;
    heddle_attention_array *x = p->x;
    HD_TRY(heddle_attention_forward(p->object, &x[0], &x[1], &x[2], &x[4], NULL, p->stream));
    st = heddle_attention_backward(p->object, &x[3], &x[5], &x[6], &x[7], p->stream);
out:
    return st;
}

static heddle_status set_up_with(part *p, heddle_comm *comm, heddle_attention_method method, int64_t deadline_ms)
{
    heddle_status st = HEDDLE_OK;
    heddle_attention *a = NULL;
    heddle_attention_info info = HEDDLE_EMPTY(heddle_attention_info);
    heddle_attention_options options = options_of(comm, method);
    options.deadline_ms = deadline_ms;
    HD_TRY(part_open(p, comm, both_ways));
    HD_TRY(create(&a, comm, problem_text, &options));
    p->object = a;
    HD_TRY(heddle_attention_get_info(&info, a));
    CHECK(info.planned_saved_bytes == 0 && info.planned_workspace_bytes == 0 && info.saved_bytes > 0);
    st = part_fill(p, ELEMS_EACH);
out:
    return st;
}

static heddle_status set_up(part *p, heddle_comm *comm, heddle_attention_method method)
{
    return set_up_with(p, comm, method, 0);
}

static void tear_down(part *p)
{
    heddle_attention_destroy(p->object);
    part_close(p);
}

static heddle_status bits(heddle_comm *comm, void *arg)
{
    (void)arg;
    static const heddle_attention_method methods[] = {HEDDLE_ATTENTION_ULYSSES, HEDDLE_ATTENTION_RING,
                                                      HEDDLE_ATTENTION_GATHER_KV};
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < 3 && st == HEDDLE_OK; i++) {
        part p;
        st = set_up(&p, comm, methods[i]);
        st = st == HEDDLE_OK ? part_keeps_bits(&p, 3, 5) : st;
        tear_down(&p);
    }
    return st;
}

HD_CASE(every_run_and_every_replay_has_the_same_bits)
{
    run_on(3, "threads", "cuda", HEDDLE_WIRE_PEER, bits);
    nothing_is_left_behind(bits);
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

static heddle_status takes_turns(heddle_comm *comm, void *arg)
{
    (void)arg;
    part p;
    heddle_status st = set_up(&p, comm, HEDDLE_ATTENTION_ULYSSES);
    st = st == HEDDLE_OK ? part_takes_turns(&p) : st;
    tear_down(&p);
    return st;
}

HD_CASE(a_handle_comes_again)
{
    skip_on_card("streams stand still on the emulated device");
    run_on(1, "threads", "cuda", HEDDLE_WIRE_PEER, takes_turns);
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

static heddle_status host_arrays(heddle_comm *comm, void *arg)
{
    (void)arg;
    part p;
    heddle_status st = set_up(&p, comm, HEDDLE_ATTENTION_RING);
    st = st == HEDDLE_OK ? part_hears_of(&p, 1, "in host memory; the attention works on") : st;
    tear_down(&p);
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
    results out_of_it;
    part p;
    HD_TRY(set_up(&p, comm, HEDDLE_ATTENTION_RING));
    HD_TRY(both_ways(&p));
    st = part_fetch(&p, out_of_it);
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
    skip_on_card("CUDA's calls fail on request in the emulator");
    HD_OK(run_life());
    HD_OK(device_sim_get(&sim));
    sim.spare_looks(1); /* they are most of the calls, and the next look asks again */
    int64_t calls = -sim.calls(), failed = 0;
    HD_OK(run_life());
    calls += sim.calls();
    for (int64_t n = calls / 5; n <= calls; n += (calls / 24 + 1) * hd_call_step()) {
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
    assert_true(failed > 0 ||
                hd_call_step() > 1); /* few of them may all be ends of what was made, which nobody hears of */
    HD_OK(run_life());
}

enum { DEADLINE_S = 2 };

static heddle_status one_stays_away(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    part p;
    HD_TRY(set_up_with(&p, comm, HEDDLE_ATTENTION_RING, hd_test_wait_ns(DEADLINE_S) / 1000000));
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

/* What an attention has enqueued is waited for until the deadline, and then neither it nor its communicator is held up
 * by the stream. */
HD_CASE(a_stream_that_does_not_come_holds_up_nobody)
{
    hd_leaves("memory that a stream uses which does not come to its end");
    skip_on_card("streams stand still on the emulated device");
    heddle_comm_options options = device_options("cuda:1", HEDDLE_WIRE_PEER);
    heddle_comm *comm = NULL;
    device_sim sim;
    part p;
    options.deadline_ms = hd_test_limit_ns(0.5) / 1000000;
    HD_OK(heddle_comm_open(&comm, "self", &options));
    HD_OK(device_sim_get(&sim));
    HD_OK(set_up(&p, comm, HEDDLE_ATTENTION_ULYSSES));
    sim.hold(p.stream);
    HD_OK(both_ways(&p));
    const int64_t start_ns = hd_now_ns();
    heddle_attention_destroy(p.object);
    heddle_comm_destroy(comm);
    assert_true(hd_now_ns() - start_ns < hd_test_limit_ns(8));
    sim.release();
}
