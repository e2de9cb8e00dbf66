/* Attaching by the wire nccl where a call fails on one rank: the others hear of it, nobody waits until the
 * communicator's deadline, and that stays usable. */
#include "nccl_sim.h"
#include "time_limit.h"

enum { RANKS = 2, MOST_CALLS = 300 };

typedef struct attempt {
    nccl_sim nccl;
    void (*fail_at)(int64_t n, int error); /* of NCCL, or of the device */
    int64_t n;
    int error, failed;
} attempt;

static heddle_status attaches(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    attempt *a = arg;
    int64_t began_ns = hd_now_ns();
    heddle_status all[RANKS], mine;
    HD_TRY(heddle_comm_barrier(comm));
    if (heddle_comm_rank(comm) == 0) {
        a->fail_at(a->n, a->error);
    }
    HD_TRY(heddle_comm_barrier(comm));
    mine = heddle_comm_attach_device(comm, "cuda", HEDDLE_WIRE_NCCL);
    HD_TRY(heddle_comm_allgather(comm, &mine, all, sizeof mine)); /* it is usable */
    CHECK((all[0] == HEDDLE_OK) == (all[1] == HEDDLE_OK));
    CHECK((heddle_comm_device(comm) >= 0) == (mine == HEDDLE_OK));
    CHECK(hd_now_ns() - began_ns < hd_test_limit_ns(2.5));
    if (heddle_comm_rank(comm) == 0 && mine != HEDDLE_OK) {
        a->failed++;
    }
out:
    return st;
}

static void try_all(attempt *a, int64_t first, int64_t last, int64_t step)
{
    heddle_comm_options options = by_nccl(3);
    options.device = NULL;
    options.wire = HEDDLE_WIRE_AUTO;
    for (a->n = first; a->n <= last; a->n += step) {
        HD_OK(heddle_run_ranks_with(RANKS, "threads", &options, attaches, a));
        a->fail_at(0, 0);
        assert_int_equal(a->nccl.comms(), 0);
    }
}

static attempt get_attempt(void)
{
    heddle_comm *comm = NULL;
    attempt out = {.nccl = get_sim(), .error = 999};
    heddle_comm_options options = by_nccl(3);
    device_sim sim;
    HD_OK(heddle_comm_open(&comm, "self", &options)); /* loads the libraries */
    HD_OK(device_sim_get(&sim));
    heddle_comm_destroy(comm);
    out.fail_at = sim.fail_at;
    return out;
}

HD_CASE(every_call_of_the_device_may_fail)
{
    attempt a = get_attempt();
    device_sim sim;
    HD_OK(device_sim_get(&sim));
    const int64_t before = sim.calls();
    try_all(&a, 0, 0, 1);
    int64_t calls = sim.calls() - before, events = calls / 2; /* so many only make one event after another */
    calls = calls < MOST_CALLS ? calls : MOST_CALLS;          /* some only ask whether an event has happened */
    try_all(&a, 1, events, 3);
    try_all(&a, events + 1, calls, 1);
    assert_true(a.failed > 20);
}

/* The greeting: rank 1 hears nothing of rank 0's failure from NCCL. */
HD_CASE(a_silent_nccl_may_fail)
{
    attempt a = get_attempt();
    a.fail_at = a.nccl.fail_at;
    a.error = 3;
    setenv("HEDDLE_NCCLSIM_SILENT", "1", 1);
    try_all(&a, 6, 9, 1);
    assert_true(a.failed > 2);
}
