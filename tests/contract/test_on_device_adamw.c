/* AdamW on a device has the bits of the host's, whatever becomes of gradients before: the same bucket in either memory,
 * by every wire. */
#include "adamw_twin.h"

#include <stdatomic.h>

static const heddle_wire wires[] = {HEDDLE_WIRE_PEER, HEDDLE_WIRE_NCCL, HEDDLE_WIRE_HOST};

enum { STEPS = 3, MANY = 66 };

static heddle_status check_same(twin *t, const char *what, const float *here, const float *there)
{
    heddle_status st;
    HD_TRY(device_copy_now(t->comm, t->got, there, sizeof t->got));
    for (int64_t i = 0; i < VALUES; i++) {
        if (memcmp(&t->got[i], &here[i], sizeof *here) != 0) {
            return heddle_set_error(HEDDLE_ERR_INTERNAL, "%s %lld is %a on the device, %a on the host", what,
                                    (long long)i, (double)t->got[i], (double)here[i]);
        }
    }
out:
    return st;
}

static heddle_status one_step(twin *t, int turn, int64_t *copied)
{
    heddle_status st;
    double norm[2] = {0, 0};
    for (int64_t i = 0; i < VALUES; i++) {
        t->grad[i] = value_of(turn, heddle_comm_rank(t->comm), i);
    }
    HD_TRY(device_copy_now(t->comm, t->grad_there, t->grad, sizeof t->grad));
    *copied = 0;
    HD_TRY(copied_since(copied, t->comm));
    HD_TRY(heddle_bucket_reduce(t->bucket[1], t->stream));
    HD_TRY(heddle_adamw_step(t->adamw[1], 1e-2, t->stream));
    HD_TRY(device_settle(t->comm, t->stream));
    HD_TRY(copied_since(copied, t->comm));
    HD_TRY(heddle_bucket_reduce(t->bucket[0], HEDDLE_NO_STREAM));
    HD_TRY(heddle_adamw_step(t->adamw[0], 1e-2, HEDDLE_NO_STREAM));
    HD_TRY(check_same(t, "gradient", t->grad, t->grad_there));
    HD_TRY(check_same(t, "parameter", t->param, t->param_there));
    for (int k = 0; k < 2; k++) {
        HD_TRY(heddle_bucket_norm(&norm[k], t->bucket[k], t->stream));
    }
    CHECK(norm[0] == norm[1] && norm[0] > 0);
out:
    return st;
}

static heddle_status steps(heddle_comm *comm, void *arg)
{
    const way *of = arg;
    twin t;
    int64_t copied = 0;
    heddle_status st = twin_make(&t, comm, of);
    for (int turn = 0; turn < STEPS && st == HEDDLE_OK; turn++) {
        st = one_step(&t, turn, &copied);
        const int by_host = strcmp(hd_comm_wire_name(comm), "host") == 0 || heddle_comm_size(comm) == MANY;
        if (st == HEDDLE_OK && copied != 0 && !by_host) {
            st = heddle_set_error(HEDDLE_ERR_INTERNAL, "step %d copied %lld bytes", turn, (long long)copied);
        }
    }
    CHECK(heddle_adamw_state_bytes(t.adamw[0]) == heddle_adamw_state_bytes(t.adamw[1]));
    st = st == HEDDLE_OK ? heddle_comm_barrier(comm) : st;
out:
    twin_free(&t);
    return st;
}

static void on_wires(heddle_rank_main does, void *arg, int ranks)
{
    heddle_comm_options options = by_nccl(20);
    for (int i = 0; i < 3; i++) {
        options.wire = wires[i];
        HD_OK(heddle_run_ranks_with(ranks, "threads", &options, does, arg));
    }
}

HD_CASE(steps_have_the_bits_of_the_host)
{
    static const way ways[] = {{"[sp=2]", 1, 0, 0, -1, 0},
                               {"[sp=2]", 1, 0, 0, 0, 0.5},
                               {"[dp=3]", 0, 1, 0, 0, 0.2},
                               {"[dp=2]", 0, 1, 0, -1, 100},
                               {"[pp=2 sp=2]", 2, 0, 1, 1, 0.3}};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        way of = ways[i];
        heddle_mesh mesh;
        HD_OK(heddle_mesh_parse(&mesh, of.mesh));
        on_wires(steps, &of, heddle_mesh_size(&mesh));
    }
}

/* More than a device's kernels add up. */
HD_CASE(norms_of_many_ranks)
{
    way of = {"[pp=66]", 0, 0, 1, -1, 0.3};
    const heddle_comm_options options = by_nccl(120);
#ifdef __SANITIZE_THREAD__
    hd_skip("sanitizer", "kernels of many ranks, of which ThreadSanitizer knows too few threads");
#endif
    HD_OK(heddle_run_ranks_with(MANY, "threads", &options, steps, &of));
}

static heddle_status refuses(heddle_comm *comm, void *arg)
{
    twin t;
    const way of = {"[sp=1]", 0, 0, 0, -1, 1};
    device_sim sim;
    void *graph = NULL;
    heddle_bucket *bucket = NULL;
    heddle_mesh mesh;
    (void)arg;
    heddle_status st = twin_make(&t, comm, &of);
    HD_TRY(st);
    HD_TRY(device_sim_get(&sim));
    HD_TRY(heddle_mesh_parse(&mesh, of.mesh));
    const heddle_bucket_part there = {t.param_there, t.grad, 5, 0}, here = {t.param, t.grad_there, 5, 0};
    heddle_bucket_options options;
    heddle_bucket_options_init(&options);
    REFUSED(HEDDLE_ERR_ARG, "parts[0].grad is memory of another device or space on rank 0, not of the host",
            heddle_bucket_create(&bucket, comm, &mesh, &here, 1, &options));
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(comm);
    REFUSED(HEDDLE_ERR_ARG, "parts[0].grad is memory of the host on rank 0, not of cuda",
            heddle_bucket_create(&bucket, comm, &mesh, &there, 1, &options));
    REFUSED(HEDDLE_ERR_ARG, "learning rate -1", heddle_adamw_step(t.adamw[1], -1, t.stream));
    HD_TRY(sim.capture(t.stream, 1));
    REFUSED(HEDDLE_ERR_ARG, "its stream is being captured, and an AdamW step counts steps on the host",
            heddle_adamw_step(t.adamw[1], 1e-2, t.stream));
    REFUSED(HEDDLE_ERR_ARG, "its stream is being captured, and bucket norm blocks",
            heddle_bucket_norm(&(double){0}, t.bucket[1], t.stream));
    HD_TRY(sim.record(t.stream, &graph));
    st = heddle_adamw_step(t.adamw[1], 1e-2, t.stream);
out:
    device_graph_free(&sim, graph);
    twin_free(&t);
    return st;
}

HD_CASE(what_cannot_be_stepped_is_refused)
{
    heddle_comm_options options = by_nccl(20);
    options.wire = HEDDLE_WIRE_PEER;
    HD_OK(heddle_run_ranks_with(1, "threads", &options, refuses, NULL));
}

/* --- calls of the device that fail -------------------------------------------------------------------------------- */

typedef struct accident_at {
    int64_t call;
    _Atomic int comes; /* the other rank, to the step */
    int is_last;
} accident_at;

/* A call of rank 1 in a step that clips fails: it says so, and the other one hears of it long before the deadline. */
static heddle_status broken_step(heddle_comm *comm, void *arg)
{
    accident_at *at = arg;
    twin t;
    device_sim sim;
    const way of = {"[sp=2]", 1, 0, 0, 0, 0.5};
    const int is_broken = heddle_comm_rank(comm) == 1;
    int64_t copied = 0;
    heddle_status st = twin_make(&t, comm, &of), broken;
    HD_TRY(st);
    HD_TRY(device_sim_get(&sim));
    HD_TRY(one_step(&t, 0, &copied));
    const int64_t until_ns = hd_now_ns() + hd_test_limit_ns(5);
    atomic_fetch_add(&at->comes, !is_broken);
    for (int turn = 0; atomic_load(&at->comes) == 0 && hd_now_ns() < until_ns; turn++) {
        hd_nap(turn);
    }
    const int64_t start_ns = hd_now_ns(), calls = sim.calls();
    sim.fail_at(is_broken ? at->call : 0, 999);
    broken = heddle_adamw_step(t.adamw[1], 1e-2, t.stream);
    sim.fail_at(0, 0);
    if (is_broken) {
        CHECK(broken == HEDDLE_OK || (broken == HEDDLE_ERR_DEVICE && says("failed with error 999")));
        at->is_last = sim.calls() - calls < at->call;
    }
    broken = broken == HEDDLE_OK ? device_settle(comm, t.stream) : broken;
    broken = broken == HEDDLE_OK ? heddle_comm_barrier(comm) : broken;
    CHECK(is_broken || broken == HEDDLE_OK || broken == HEDDLE_ERR_PEER);
    CHECK(hd_now_ns() - start_ns < hd_test_limit_ns(5));
out:
    twin_free(&t);
    return st;
}

HD_CASE(all_are_told_of_a_device_that_fails)
{
    hd_see_processes();
    accident_at *at = hd_shared(sizeof *at);
    heddle_comm_options options = by_nccl(20);
    options.wire = HEDDLE_WIRE_PEER;
    for (at->call = 1; !at->is_last; at->call += hd_call_step()) {
        at->comes = 0;
        HD_OK(heddle_run_ranks_with(2, "shm", &options, broken_step, at));
    }
    assert_in_range(at->call, 10, 400); /* who looks after the ranks makes some, too */
}
