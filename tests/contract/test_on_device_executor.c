/* An executor whose switches are done on an emulated device: a pass tells what went wrong in its very last switch. */
#include "device_sim.h"
#include "executor_fixture.h"
#include "runtime/device/enqueued.h"
#include "time_limit.h"

#include <stdatomic.h>
#include <time.h>

heddle_status __real_hd_enqueued_await(int *done, hd_enqueued *e, int64_t deadline_ns, hd_device_look_fn look,
                                       void *arg);
heddle_status __wrap_hd_enqueued_await(int *done, hd_enqueued *e, int64_t deadline_ns, hd_device_look_fn look,
                                       void *arg);

/* Streams end between two looks of a wait. */
heddle_status __wrap_hd_enqueued_await(int *done, hd_enqueued *e, int64_t deadline_ns, hd_device_look_fn look,
                                       void *arg)
{
    (void)look;
    return __real_hd_enqueued_await(done, e, deadline_ns, NULL, arg);
}

static atomic_int has_returned; /* rank 0, from its pass */

/* Rank 1 does not come to the end before the deadline. */
static void come_late(void *ctx, int step, int backward)
{
    const int64_t end_ns = hd_now_ns() + hd_test_limit_ns(20);
    const int is_late = *(const int *)ctx == 1 && step == STEPS && !backward;
    while (is_late && !atomic_load(&has_returned) && hd_now_ns() < end_ns) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* Nothing is asked of the device behind the last switch: its stream has come to the end, and dst is not complete. */
static heddle_status last_switch_rank(heddle_comm *comm, void *arg)
{
    bench b;
    int me = heddle_comm_rank(comm);
    heddle_executor_options options = options_on(comm);
    heddle_status st = HEDDLE_OK, got;
    (void)arg;
    options.before = come_late;
    options.ctx = &me;
    HD_TRY(make_bench(&b, comm));
    HD_TRY(heddle_executor_create(&b.executor, comm, b.schedule, b.stage, &options));
    HD_TRY(fill(&b));
    got = heddle_executor_forward(b.executor, &b.x, &b.conditioning, placed_stream);
    if (me == 0) {
        atomic_store(&has_returned, 1);
        CHECK(got == HEDDLE_ERR_TIMEOUT);
        CHECK(strstr(heddle_last_error(), "entering 'end'") != NULL);
        CHECK(strstr(heddle_last_error(), "overdue, missing: rank 1") != NULL);
    } else {
        CHECK(got == HEDDLE_ERR_PEER);
    }
out:
    free_bench(&b);
    return st;
}

HD_CASE(the_last_switch_is_looked_at)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.device = "cuda";
    options.wire = HEDDLE_WIRE_PEER;
    options.deadline_ms = hd_test_limit_ns(3) / 1000000; /* attaching has it, too */
    HD_OK(heddle_run_ranks_with(2, "threads", &options, last_switch_rank, NULL));
}
