/* The wire nccl: whatever is in streams ends at the deadline where a rank does not come, however much was enqueued
 * behind it or beside it; what is lent is the lender's to end. */
#include "nccl_sim.h"
#include "time_limit.h"

enum { LATE_MS = 300, MANY = 30 };

static _Atomic int is_over;

/* A plan's deadline, which creating it has, too. */
static int64_t late_ms(void)
{
    return hd_test_missed_ns(LATE_MS / 1e3) / 1000000;
}

/* The stream ends, and heddle says why. */
static heddle_status ends_late(heddle_comm *comm, void *stream)
{
    heddle_status st = HEDDLE_OK;
    int64_t began_ns = hd_now_ns();
    HD_TRY(device_settle(comm, stream));
    CHECK(hd_now_ns() - began_ns < hd_test_limit_ns(4));
    CHECK(heddle_comm_poll(comm) == HEDDLE_ERR_TIMEOUT && says("did not come before the deadline"));
out:
    is_over = 1;
    return st;
}

static void await_the_end(void)
{
    while (!is_over) {
        usleep(1000);
    }
}

/* Two executions at once; the plan of a sum into a replicated array has two phases. */
static heddle_status several_wait(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    HD_TRY(own_set_up_line(&o, comm, arg, late_ms()));
    HD_TRY(heddle_comm_barrier(comm));
    if (heddle_comm_rank(comm) == 0) {
        for (int i = 0; i < 2; i++) {
            HD_TRY(heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream));
        }
        HD_TRY(ends_late(comm, o.stream));
    }
    await_the_end();
out:
    is_over = 1;
    own_tear_down(&o);
    return st;
}

HD_CASE(what_waits_behind_hides_nothing)
{
    static char *const lines[] = {"i32[t=6 s=8] on [sp=2]: t@sp -> s@sp", "i32[t=6 s=8] on [sp=2]: sum@sp -> *"};
    for (int i = 0; i < 2; i++) {
        is_over = 0;
        run_by_nccl(2, several_wait, lines[i]);
    }
}

/* Rank 0 waits for rank 2 in one stream, and for rank 1, which comes, in another. */
static heddle_status two_streams(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    int rank = heddle_comm_rank(comm);
    heddle_comm *group[2] = {NULL, NULL};
    heddle_mesh mesh;
    own_stream o[2] = {{.device = NULL}, {.device = NULL}};
    (void)arg;
    HD_TRY(heddle_mesh_parse(&mesh, "[a=2 b=2]"));
    for (int i = 0; i < 2; i++) {
        HD_TRY(heddle_comm_axis_group(&group[i], comm, &mesh, i));
        HD_TRY(own_set_up(&o[i], group[i], i == 0 ? late_ms() : 0));
    }
    HD_TRY(heddle_comm_barrier(comm));
    if (rank == 0) {
        HD_TRY(heddle_reshard_execute(o[0].f.reshard, o[0].f.src, o[0].f.dst, o[0].stream));
    }
    if (rank < 2) {
        HD_TRY(heddle_reshard_execute(o[1].f.reshard, o[1].f.src, o[1].f.dst, o[1].stream));
        HD_TRY(heddle_reshard_wait(o[1].f.reshard));
    }
    HD_TRY(rank == 0 ? ends_late(comm, o[0].stream) : HEDDLE_OK);
    await_the_end();
out:
    is_over = 1;
    for (int i = 0; i < 2; i++) {
        own_tear_down(&o[i]);
        heddle_comm_destroy(group[i]);
    }
    return st;
}

HD_CASE(another_stream_hides_nothing)
{
    is_over = 0;
    run_by_nccl(4, two_streams, NULL);
}

/* More of them than events were made for; the deadline of each begins with itself. */
static heddle_status many_wait(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    const int64_t within_ms = late_ms(); /* each has to be in time */
    (void)arg;
    HD_TRY(own_set_up(&o, comm, within_ms));
    device_fill(&o.f, 5);
    HD_TRY(device_copy_now(comm, o.f.src, o.f.sent, sizeof o.f.sent));
    o.sim.hold(o.stream);
    for (int i = 0; i < MANY; i++) {
        HD_TRY(heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream));
    }
    usleep(2 * (useconds_t)within_ms * 1000);
    HD_TRY(heddle_comm_poll(comm));
    HD_TRY(heddle_comm_barrier(comm));
    o.sim.release();
    HD_TRY(device_settle(comm, o.stream));
    HD_TRY(device_copy_now(comm, o.f.got, o.f.dst, sizeof o.f.got));
    HD_TRY(check_got(&o.f, 5));
    st = heddle_comm_poll(comm);
out:
    o.sim.release();
    own_tear_down(&o);
    return st;
}

HD_CASE(many_may_be_under_way)
{
    run_by_nccl(2, many_wait, NULL);
}

/* --- a communicator of NCCL that is the program's --------- */

typedef struct lender {
    nccl_sim sim;
    nccl_id id;
    const char *line;
    int fails_half_way; /* rank 0: of what it enqueues the end is missing */
} lender;

/* What rank 0 has enqueued waits on; its thread does not, whatever it frees, until it ends that itself. */
static heddle_status is_left(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const lender *l = arg;
    struct ncclComm *nccl = NULL;
    own_stream o = {.device = NULL};
    int rank = heddle_comm_rank(comm);
    CHECK(l->sim.set_device(rank) == 0 && l->sim.init(&nccl, 2, l->id, rank) == 0);
    HD_TRY(heddle_comm_lend_nccl(comm, "cuda:current", nccl));
    HD_TRY(own_set_up_line(&o, comm, l->line, l->fails_half_way ? 0 : late_ms())); /* it may wait for a better reason */
    HD_TRY(heddle_comm_barrier(comm));
    int64_t began_ns = hd_now_ns();
    if (rank == 0 && l->fails_half_way) {
        HD_TRY(heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream));
        l->sim.fail_at(2, 3);
        st = heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream);
        CHECK(st == HEDDLE_ERR_TRANSPORT);
        st = HEDDLE_OK;
    } else if (rank == 0) {
        HD_TRY(heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream));
        CHECK(heddle_reshard_wait(o.f.reshard) == HEDDLE_ERR_TIMEOUT);
    }
    if (l->fails_half_way) { /* in either order */
        heddle_reshard_destroy(o.f.reshard);
        o.f.reshard = NULL;
    }
    heddle_buffer_free(comm, o.f.src);
    heddle_buffer_free(comm, o.f.dst);
    o.f.src = o.f.dst = NULL;
    heddle_reshard_destroy(o.f.reshard);
    o.f.reshard = NULL;
    CHECK(hd_now_ns() - began_ns < hd_test_limit_ns(5));
out:
    is_over |= rank == 0;
    await_the_end();
    l->sim.fail_at(0, 0);
    l->sim.abort(nccl);
    own_tear_down(&o);
    return st;
}

HD_CASE(what_is_lent_is_left_to_its_owner)
{
    static const char *const lines[] = {"i32[t=6 s=8] on [sp=2]: t@sp -> s@sp", "i32[t=6 s=8] on [sp=2]: sum@sp -> *"};
    for (int i = 0; i < 2; i++) {
        lender l = {.sim = get_sim(), .line = lines[i], .fails_half_way = i};
        (void)by_nccl(0);
        is_over = 0;
        assert_int_equal(l.sim.get_id(&l.id), 0);
        HD_OK(heddle_run_ranks(2, "threads", is_left, &l));
        assert_int_equal(l.sim.comms(), 0);
    }
}
