/* Stores of peers' kernels that do not arrive, on the emulated device: the wire peer is refused while it is attached,
 * not by the deadline of the first execution. */
#include "left_over.h"
#include "on_device.h"
#include "time_limit.h"

#include <stdio.h>

enum { WORKS, LOSES, STALLS };

static device_sim loaded(void)
{
    device_sim sim;
    heddle_comm_destroy(alone());
    HD_OK(device_sim_get(&sim));
    return sim;
}

static heddle_status attached(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const char *wanted = arg;
    device_fixture f = {0};
    CHECK(strstr(heddle_comm_describe(comm), wanted) != NULL);
    HD_TRY(device_set_up(&f, comm, 0));
    st = three_rounds(&f);
out:
    device_tear_down(&f);
    return st;
}

static heddle_status never(heddle_comm *comm, void *arg)
{
    (void)comm;
    (void)arg;
    return heddle_set_error(HEDDLE_ERR_INTERNAL, "the wire was taken");
}

/* The rank that finds it says more than that another one has. */
static int is_refused(heddle_status st)
{
    return st == HEDDLE_ERR_UNSUPPORTED || st == HEDDLE_ERR_PEER;
}

/* Either direction. */
HD_CASE(lost_stores_between_devices)
{
    const device_sim sim = loaded();
    char fastest[] = "wire peer (the fastest)", taken[] = "wire host (not peer: ";
    heddle_comm_options options = device_options("cuda", HEDDLE_WIRE_AUTO);
    HD_OK(heddle_run_ranks_with(2, "threads", &options, attached, fastest));
    const holdings before = holdings_now();
    for (int device = 0; device < 2; device++) {
        char wanted[160];
        options.wire = HEDDLE_WIRE_PEER;
        snprintf(wanted, sizeof wanted,
                 "of 4096 bytes that kernels of rank %d stored in memory of rank %d's device cuda:%d, 4096 are not",
                 device, 1 - device, 1 - device);
        sim.set_link(device, LOSES);
        assert_true(is_refused(heddle_run_ranks_with(2, "threads", &options, never, NULL)));
        assert_true(says("wire peer: ") && says(wanted));
        options.wire = HEDDLE_WIRE_AUTO;
        HD_OK(heddle_run_ranks_with(2, "threads", &options, attached, taken));
        sim.set_link(device, WORKS);
        HD_OK(heddle_run_ranks_with(2, "threads", &options, attached, fastest));
        assert_int_equal(holdings_now().maps, before.maps); /* a descriptor may be of NCCL, which auto asks */
        assert_int_equal(sim.device_bytes(), 0);
    }
}

/* Of one device, too. */
HD_CASE(lost_stores_between_processes)
{
    char taken[] = "wire host (not peer: ";
    setenv("HEDDLE_CUDASIM_LOSES", "0", 1);
    for (int i = 0; i < 2; i++) {
        heddle_comm_options options = device_options(i == 0 ? "cuda" : "cuda:0", HEDDLE_WIRE_AUTO);
        HD_OK(heddle_run_ranks_with(2, "shm", &options, attached, taken));
        options.wire = HEDDLE_WIRE_PEER;
        assert_true(is_refused(heddle_run_ranks_with(2, "shm", &options, never, NULL)));
        assert_true(says("of 4096 bytes that kernels of rank ") && says(" stored in memory of rank "));
    }
}

/* A device that all ranks have in one process is not on the way to anywhere. */
HD_CASE(one_device_is_not_asked)
{
    const device_sim sim = loaded();
    char fastest[] = "wire peer (the fastest)";
    const heddle_comm_options options = device_options("cuda:0", HEDDLE_WIRE_AUTO);
    sim.set_link(0, LOSES);
    HD_OK(heddle_run_ranks_with(2, "threads", &options, attached, fastest));
}

/* They are waited for no longer than half of the deadline. What they may still touch stays. */
HD_CASE(stores_that_do_not_end)
{
    const device_sim sim = loaded();
    char taken[] = "wire host (not peer: ";
    heddle_comm_options options = device_options("cuda", HEDDLE_WIRE_PEER);
    options.deadline_ms = (int)(hd_test_missed_ns(2) / 1000000);
    hd_leaves("memory that kernels may still store to, and what they look at");
    sim.set_link(1, STALLS);
    const int64_t begin = hd_now_ns();
    const heddle_status st = heddle_run_ranks_with(2, "threads", &options, never, NULL);
    assert_true(st == HEDDLE_ERR_TIMEOUT || st == HEDDLE_ERR_PEER);
    assert_true(hd_now_ns() - begin < hd_test_limit_ns(2));
    assert_true(says("what kernels store in memory of other ranks did not end on device cuda:1 in"));
    assert_true(sim.device_bytes() > 0);
    options.wire = HEDDLE_WIRE_AUTO;
    HD_OK(heddle_run_ranks_with(2, "threads", &options, attached, taken));
    sim.set_link(1, WORKS);
}
