/* Calls of linear attention on the emulated device: the same bits in every run, eager and replayed, and what is refused
 * on every rank. */
#include "attention_calls.h"

#include <heddle/linear_attention.h>
#include <stdatomic.h>

enum { ROWS = 19, HEADS = 2, WIDTH = 16, ELEMS_EACH = ROWS * HEADS * WIDTH };

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
    HD_TRY(part_parse(&shape, &mesh, &layout, text, heddle_comm_size(comm)));
    st = heddle_linear_attention_create(out, comm, &shape, &mesh, &layout, options);
out:
    return st;
}

static heddle_status both_ways(part *p)
{
    heddle_status st = HEDDLE_OK;
    heddle_attention_array *x = p->x;
    HD_TRY(heddle_linear_attention_forward(p->object, &x[0], &x[1], &x[2], &x[4], p->stream));
    st = heddle_linear_attention_backward(p->object, &x[0], &x[1], &x[2], &x[3], &x[5], &x[6], &x[7], p->stream);
out:
    return st;
}

static heddle_status set_up(part *p, heddle_comm *comm, heddle_linear_method method)
{
    heddle_status st = HEDDLE_OK;
    heddle_linear_attention *a = NULL;
    const heddle_linear_attention_options options = options_of(comm, method);
    HD_TRY(part_open(p, comm, both_ways));
    HD_TRY(create(&a, comm, problem_text, &options));
    p->object = a;
    st = part_fill(p, ELEMS_EACH);
out:
    return st;
}

static void tear_down(part *p)
{
    heddle_linear_attention_destroy(p->object);
    part_close(p);
}

static heddle_status bits(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    for (int method = HEDDLE_LINEAR_LASP; method < HEDDLE_LINEAR_METHOD_COUNT && st == HEDDLE_OK; method++) {
        part p;
        st = set_up(&p, comm, (heddle_linear_method)method);
        st = st == HEDDLE_OK ? part_keeps_bits(&p, 2, 3) : st;
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
    heddle_status st = set_up(&p, comm, HEDDLE_LINEAR_LASP);
    st = st == HEDDLE_OK ? part_takes_turns(&p) : st;
    tear_down(&p);
    return st;
}

HD_CASE(a_handle_comes_again)
{
    skip_on_card("streams stand still on the emulated device");
    run_on(1, "threads", "cuda", HEDDLE_WIRE_PEER, takes_turns);
}

/* --- what is beside the states' way ----------------------------------------------------------------------------- */

/* Is dq of rank 0 there, or its time over? */
static _Atomic int has_looked;

static heddle_status await_dq(part *p)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = hd_comm_device(p->comm)->library;
    heddle_stream other = HEDDLE_NO_STREAM;
    static uint16_t before[CALL_MOST_ELEMS], now[CALL_MOST_ELEMS];
    const int64_t until_ns = hd_now_ns() + hd_test_limit_ns(20);
    HD_TRY(library->stream_create(&other, heddle_comm_device(p->comm)));
    HD_TRY(device_copy(p->comm, before, p->x[5].data, p->bytes, other));
    HD_TRY(device_settle(p->comm, other));
    HD_TRY(heddle_linear_attention_backward(p->object, &p->x[0], &p->x[1], &p->x[2], &p->x[3], &p->x[5], &p->x[6],
                                            &p->x[7], p->stream));
    do {
        HD_TRY(device_copy(p->comm, now, p->x[5].data, p->bytes, other));
        HD_TRY(device_settle(p->comm, other));
    } while (memcmp(before, now, p->bytes) == 0 && hd_now_ns() < until_ns);
    CHECK(memcmp(before, now, p->bytes) != 0);
out:
    atomic_store(&has_looked, 1);
    library->stream_destroy(other, heddle_comm_device(p->comm));
    return st;
}

/* The state of the last rank's gradients is sent when rank 0 has its dq. */
static heddle_status dq_first(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    part p;
    HD_TRY(set_up(&p, comm, HEDDLE_LINEAR_LASP));
    HD_TRY(heddle_linear_attention_forward(p.object, &p.x[0], &p.x[1], &p.x[2], &p.x[4], p.stream));
    HD_TRY(device_settle(comm, p.stream));
    HD_TRY(device_sim_unseen()); /* dq is looked at while it is written */
    HD_TRY(heddle_comm_barrier(comm));
    if (heddle_comm_rank(comm) == 0) {
        HD_TRY(await_dq(&p));
    } else {
        const int64_t until_ns = hd_now_ns() + 2 * hd_test_limit_ns(20);
        while (!atomic_load(&has_looked) && hd_now_ns() < until_ns) {
            usleep(1000);
        }
        HD_TRY(heddle_linear_attention_backward(p.object, &p.x[0], &p.x[1], &p.x[2], &p.x[3], &p.x[5], &p.x[6], &p.x[7],
                                                p.stream));
    }
    st = device_settle(comm, p.stream);
out:
    tear_down(&p);
    return st;
}

HD_CASE(dq_is_walked_while_states_are_on_their_way)
{
    run_on(2, "threads", "cuda", HEDDLE_WIRE_PEER, dq_first);
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
    heddle_linear_attention *a = p.object;
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

static heddle_status host_arrays(heddle_comm *comm, void *arg)
{
    (void)arg;
    part p;
    heddle_status st = set_up(&p, comm, HEDDLE_LINEAR_LASP);
    st = st == HEDDLE_OK ? part_hears_of(&p, 0, "in host memory; the linear attention") : st;
    tear_down(&p);
    return st;
}

HD_CASE(arrays_of_the_host_are_refused_on_every_rank)
{
    hd_leaves("kernels that a busy machine has not ended in time keep what they use");
    run_on(3, "threads", "cuda", HEDDLE_WIRE_PEER, host_arrays);
}
