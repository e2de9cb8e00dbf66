/* The way back through a session: layouts, memory, counting, and what is refused. The map itself is tested with random
 * schedules in tests/property. */
#include "case.h"
#include "session_fixture.h"
#include "time_limit.h"

#include <unistd.h>

static const char *name_of(int i)
{
    return stages[i % STAGES];
}

/* The layout of the schedule's edge into stage i, one side of it. */
static heddle_layout side(const fixture *f, int i, int to)
{
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    heddle_ignore(heddle_schedule_edge_at(&edge, f->schedule, i));
    return to ? edge.to : edge.from;
}

static heddle_status leave_all(fixture *f, heddle_tensor *dx, int rank)
{
    heddle_status st = heddle_session_backward(f->session, "end", dx, NULL, placed_stream);
    for (int i = STAGES * REPEAT - 1; i >= 0 && st == HEDDLE_OK; i--) {
        st = check_stamps(dx, f, rank, 0);
        st = st == HEDDLE_OK ? heddle_session_backward(f->session, name_of(i), dx, NULL, placed_stream) : st;
    }
    return st;
}

/* Two whole steps. The gradient of the whole output comes in on every rank; stages here are all sharded. */
static heddle_status steps(heddle_comm *comm, void *arg)
{
    fixture f = {0};
    heddle_session_counters counters = HEDDLE_EMPTY(heddle_session_counters);
    heddle_session_record record = HEDDLE_EMPTY(heddle_session_record);
    const int rank = heddle_comm_rank(comm);
    int64_t sent[2] = {0, 0}, at = 0;
    heddle_tensor x = {0}, dx = {0};
    void *mine = NULL;
    heddle_status st;
    HD_TRY(set_up(&f, comm, 0, *(const int *)arg));
    for (int step = 0; step < 2; step++) {
        HD_TRY(heddle_session_rewind(f.session));
        HD_TRY(make_x(&x, &f, "s@sp", rank));
        mine = x.data;
        for (int i = 0; i < STAGES * REPEAT; i++) {
            HD_TRY(heddle_session_enter(f.session, name_of(i), &x, NULL, placed_stream));
        }
        HD_TRY(heddle_session_enter(f.session, "end", &x, NULL, placed_stream));
        placed_free(comm, mine);
        HD_TRY(make_x(&dx, &f, "*", rank));
        mine = dx.data;
        HD_TRY(leave_all(&f, &dx, rank));
        HD_TRY(check_stamps(&dx, &f, rank, 0));
        placed_free(comm, mine);
        mine = NULL;
    }
    HD_TRY(placed_on_device(comm) ? device_settle(comm, placed_stream) : HEDDLE_OK); /* empty parts were not copied */
    HD_TRY(heddle_session_get_counters(&counters, f.session));
    CHECK(counters.enters == 2 * f.info.nedges && counters.backward_enters == 2 * f.info.nedges);
    CHECK(counters.bytes_sent == counters.bytes_planned);
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 2 * f.info.nedges; i++) {
            const int back = i >= f.info.nedges, index = back ? 2 * f.info.nedges - 1 - i : i;
            HD_TRY(heddle_session_record_at(&record, f.session, (int)at++));
            CHECK(record.backward == back && record.bytes_sent == record.bytes_planned);
            CHECK(strcmp(record.stage, index == STAGES * REPEAT ? "end" : name_of(index)) == 0);
            CHECK(record.repetition == (index == STAGES * REPEAT ? 0 : index / STAGES));
            sent[back] += record.bytes_sent;
        }
    }
    CHECK(sent[0] + sent[1] == counters.bytes_sent);
    CHECK(heddle_comm_size(comm) == 1 || (sent[0] > sent[1] && sent[1] > 0)); /* no gather of a common gradient */
out:
    placed_free(comm, mine);
    tear_down(&f);
    return st;
}

HD_CASE(goes_back)
{
    for (int made_early = 0; made_early < 2; made_early++) {
        for (int ranks = 1; ranks <= 4; ranks++) {
            HD_OK(heddle_run_ranks(ranks, "threads", steps, &made_early));
            HD_OK(heddle_run_ranks(ranks, "shm", steps, &made_early));
        }
        HD_OK(heddle_run_ranks(6, "shm", steps, &made_early)); /* more ranks than frames: empty boxes */
    }
}

/* Plans of both directions are there after creation: a step from peer-reachable memory makes nothing more. */
HD_RANK_CASE(is_made_on_creation, "3 shm")
{
    fixture f = {0};
    heddle_session_counters before = {.struct_bytes = sizeof(before)}, after = before;
    const int rank = heddle_comm_rank(comm);
    heddle_tensor dx = {0};
    heddle_box box;
    void *memory = NULL;
    heddle_status st;
    HD_TRY(set_up_x(&f, &dx, comm, 1, "*"));
    HD_TRY(heddle_layout_box(&box, &f.info.shape, &f.info.mesh, &dx.layout, rank));
    HD_TRY(placed_buffer(&memory, comm, dx.capacity_bytes));
    placed_free(comm, dx.data);
    dx.data = memory;
    stamp(&dx, &box, &f);
    HD_TRY(heddle_session_get_counters(&before, f.session));
    hd_alloc_fail_at(1);
    st = leave_all(&f, &dx, rank);
    hd_alloc_fail_at(0);
    HD_TRY(st);
    HD_TRY(heddle_session_get_counters(&after, f.session));
    CHECK(before.workspace_bytes == after.workspace_bytes && after.switches > before.switches);
out:
    heddle_buffer_free(comm, memory);
    tear_down(&f);
    return st;
}

/* Memory: what is there already is left alone; strides; results live until the second next switch of either kind. */
HD_RANK_CASE(keeps_memory, "2 threads", "4 shm")
{
    fixture f = {0};
    heddle_tensor dx = {0}, x = {0}, wide = {0};
    heddle_box box;
    const int rank = heddle_comm_rank(comm);
    heddle_status st;
    HD_TRY(set_up_x(&f, &dx, comm, 1, "t@sp")); /* the last stage's */
    void *const mine = dx.data;
    const int64_t stride = dx.stride_elems[0] = 12345; /* of an extent of 1 */
    HD_TRY(heddle_session_backward(f.session, "end", &dx, NULL, placed_stream));
    const heddle_layout last = side(&f, f.info.nedges - 1, 0);
    if (heddle_layout_equal(&dx.layout, &last, &f.info.mesh) && dx.data == mine) {
        CHECK(dx.stride_elems[0] == stride);
    }
    /* Rows with a gap. */
    HD_TRY(make_x(&wide, &f, "*", rank));
    HD_TRY(heddle_layout_box(&box, &f.info.shape, &f.info.mesh, &wide.layout, rank));
    placed_free(comm, wide.data);
    wide.stride_elems[3] = 3;
    wide.stride_elems[2] = 3 * box.len[3];
    wide.stride_elems[1] = 3 * box.len[3] * box.len[2];
    wide.capacity_bytes = (size_t)(3 * box.len[3] * box.len[2] * box.len[1]) * sizeof(float);
    void *const gaps = wide.data = placed_alloc(comm, wide.capacity_bytes);
    stamp(&wide, &box, &f);
    HD_TRY(heddle_session_backward(f.session, "end", &wide, NULL, placed_stream)); /* switch n */
    placed_free(comm, gaps);
    HD_TRY(check_stamps(&wide, &f, rank, 0));
    const heddle_tensor first = wide;
    HD_TRY(make_x(&x, &f, "t@sp", rank));
    void *const active = x.data;
    HD_TRY(heddle_session_enter(f.session, "t.attn", &x, NULL, placed_stream)); /* switch n + 1, forward */
    placed_free(comm, active);
    HD_TRY(check_stamps(&first, &f, rank, 0));
    HD_TRY(check_stamps(&x, &f, rank, 0));
    CHECK(x.data != first.data);
    heddle_tensor again = first;
    HD_TRY(heddle_session_backward(f.session, "s.mlp", &again, NULL, placed_stream)); /* nothing or a switch */
    HD_TRY(check_stamps(&again, &f, rank, 0));
    HD_TRY(check_stamps(&x, &f, rank, 0));
    placed_free(comm, mine);
out:
    tear_down(&f);
    return st;
}

#define REFUSED(call, status, words)                                                                                   \
    do {                                                                                                               \
        CHECK_OR_RETURN((call) == (status));                                                                           \
        CHECK_OR_RETURN(strstr(heddle_last_error(), (words)) != NULL);                                                 \
    } while (0)

HD_RANK_CASE(refuses_clearly, "2 threads")
{
    fixture f = {0};
    heddle_tensor dx = {0};
    const int rank = heddle_comm_rank(comm);
    heddle_status st;
    HD_TRY(set_up_x(&f, &dx, comm, 1, "s@sp"));
    const heddle_tensor before = dx;
    const heddle_stream none = placed_stream;
    REFUSED(heddle_session_backward(NULL, "end", &dx, NULL, none), HEDDLE_ERR_ARG, "session is NULL");
    REFUSED(heddle_session_backward(f.session, NULL, &dx, NULL, none), HEDDLE_ERR_ARG, "stage is NULL");
    REFUSED(heddle_session_backward(f.session, "end", NULL, NULL, none), HEDDLE_ERR_ARG, "dx is NULL");
    REFUSED(heddle_session_backward(f.session, "t.atn", &dx, NULL, none), HEDDLE_ERR_ARG, "did you mean 't.attn'");
    dx.shape.dim[1].extent = 6;
    REFUSED(heddle_session_backward(f.session, "t.mlp", &dx, NULL, none), HEDDLE_ERR_LAYOUT,
            "leaving backward from 't.mlp': dx is f32[b=1 t=6");
    dx = before;
    dx.shape.dtype = HEDDLE_BF16;
    REFUSED(heddle_session_backward(f.session, "t.mlp", &dx, NULL, none), HEDDLE_ERR_LAYOUT, "dx is bf16");
    dx = before;
    dx.layout.dim_of_axis[0] = 9;
    REFUSED(heddle_session_backward(f.session, "t.mlp", &dx, NULL, none), HEDDLE_ERR_LAYOUT, "dx's layout");
    dx = before;
    dx.data = NULL;
    dx.layout.dim_of_axis[0] = HEDDLE_REPLICATED;
    REFUSED(heddle_session_backward(f.session, "t.mlp", &dx, NULL, none), HEDDLE_ERR_ARG, "dx->data is NULL");
    dx.data = before.data;
    REFUSED(heddle_session_backward(f.session, "t.mlp", &dx, NULL, none), HEDDLE_ERR_ARG, "dx->capacity_bytes");
    dx = before;
    for (int i = 0; i < 2; i++) { /* stages may be left out, the end be repeated */
        HD_TRY(heddle_session_backward(f.session, "end", &dx, NULL, none));
    }
    HD_TRY(heddle_session_backward(f.session, "s.attn", &dx, NULL, none)); /* of repetition 2 */
    REFUSED(heddle_session_backward(f.session, "s.mlp", &dx, NULL, none), HEDDLE_ERR_ARG,
            "backward from 's.mlp' (repetition 2) cannot follow 's.attn' (repetition 2)");
    REFUSED(heddle_session_backward(f.session, "end", &dx, NULL, none), HEDDLE_ERR_ARG, "backward from 'end'");
    for (int i = 1; i < REPEAT; i++) {
        HD_TRY(heddle_session_backward(f.session, "s.attn", &dx, NULL, none));
    }
    REFUSED(heddle_session_backward(f.session, "s.attn", &dx, NULL, none), HEDDLE_ERR_ARG,
            "left backward for the 4. time, the schedule has 3");
    HD_TRY(heddle_session_enter(f.session, "s.attn", &dx, NULL, none)); /* counted apart */
    HD_TRY(heddle_session_rewind(f.session));
    HD_TRY(heddle_session_backward(f.session, "t.mlp", &dx, NULL, none));
    HD_TRY(check_stamps(&dx, &f, rank, 0));
    placed_free(comm, before.data);
out:
    tear_down(&f);
    return st;
}

/* A dry run plans what the real one moves, backward as forward, and touches nothing. */
HD_RANK_CASE(dry_run_counts, "3 threads")
{
    fixture f = {0};
    heddle_tensor dx = {0};
    const heddle_layout end = {.dim_of_axis = {HEDDLE_PARTIAL, HEDDLE_REPLICATED}};
    heddle_status st;
    HD_TRY(set_up(&f, comm, 1, 1));
    HD_TRY(heddle_tensor_init(&dx, &dx, &f.info.shape, &f.info.mesh, &end, NULL, heddle_comm_rank(comm)));
    dx.data = NULL;
    place(&dx, &f);
    HD_TRY(heddle_session_backward(f.session, "end", &dx, NULL, placed_stream)); /* sums over the ranks */
    for (int i = STAGES * REPEAT - 1; i >= 0; i--) {
        HD_TRY(heddle_session_backward(f.session, name_of(i), &dx, NULL, placed_stream));
    }
    CHECK(dx.data == NULL);
    st = check_dry(&f, comm); /* every edge of this schedule moves as much backward as forward */
out:
    tear_down(&f);
    return st;
}

HD_RANK_CASE(options_must_agree, "3 threads")
{
    fixture f = {0};
    heddle_session_options options;
    heddle_status st;
    HD_TRY(make_schedule(&f, 3, "s=7"));
    heddle_session_options_init(&options);
    options.backward = heddle_comm_rank(comm) == 1;
    CHECK(heddle_session_create(&f.session, comm, f.schedule, &options) == HEDDLE_ERR_MISMATCH);
    CHECK(strstr(heddle_last_error(), "rank 1") != NULL && strstr(heddle_last_error(), "backward") != NULL);
out:
    tear_down(&f);
    return st;
}

/* --- faults --- */

/* Rank 1 dies between two stages on the way back. *arg: plans made on creation or not. */
static heddle_status dies(heddle_comm *comm, void *arg)
{
    fixture f = {0};
    heddle_tensor dx = {0};
    const int rank = heddle_comm_rank(comm);
    void *mine = NULL;
    heddle_status st;
    HD_TRY(set_up_x(&f, &dx, comm, *(const int *)arg, "*"));
    mine = dx.data;
    const heddle_tensor whole = dx;
    for (int pass = 0; pass < 1000; pass++) {
        dx = whole;
        HD_TRY(heddle_session_rewind(f.session));
        HD_TRY(heddle_session_backward(f.session, "end", &dx, NULL, placed_stream));
        HD_TRY(heddle_session_backward(f.session, "t.mlp", &dx, NULL, placed_stream));
        if (rank == 1 && pass == (*(const int *)arg ? 3 : 0)) {
            _exit(9);
        }
        HD_TRY(heddle_session_backward(f.session, "t.attn", &dx, NULL, placed_stream));
        HD_TRY(heddle_session_backward(f.session, "s.attn", &dx, NULL, placed_stream));
    }
out:
    if (st != HEDDLE_OK && strstr(heddle_last_error(), "leaving backward from") == NULL) {
        st = hd_check_failed(__FILE__, __LINE__, "the sentence says where");
    }
    placed_free(comm, mine);
    tear_down(&f);
    return st;
}

HD_CASE(names_the_dead)
{
    for (int made_early = 0; made_early < 2; made_early++) {
        const int64_t start_ns = hd_now_ns();
        heddle_status st = heddle_run_ranks(3, "shm", dies, &made_early);
        assert_int_equal(st, HEDDLE_ERR_PEER);
        assert_non_null(strstr(heddle_last_error(), "rank 1"));
        assert_true(hd_now_ns() - start_ns < hd_test_limit_ns(4));
    }
}

/* The n-th allocation of rank 1 fails, on creation or on first use: it says so, and nobody waits for it. */
static heddle_status starved(heddle_comm *comm, void *arg)
{
    fixture f = {0};
    heddle_tensor dx = {0};
    const long n = *(const long *)arg;
    const int rank = heddle_comm_rank(comm);
    void *mine = NULL;
    heddle_session_options options;
    heddle_status st = make_schedule(&f, heddle_comm_size(comm), "t=5");
    fixture_options(&options, &f, comm);
    options.backward = n % 2 == 0;
    if (st == HEDDLE_OK && rank == 1) {
        hd_alloc_fail_at(n);
    }
    HD_TRY(heddle_session_create(&f.session, comm, f.schedule, &options));
    HD_TRY(make_x(&dx, &f, "*", rank));
    mine = dx.data;
    HD_TRY(leave_all(&f, &dx, rank));
out:
    hd_alloc_fail_at(0);
    placed_free(comm, mine);
    tear_down(&f);
    return st;
}

HD_CASE(survives_failed_allocations)
{
    int failed = 0, survived = 0;
    for (long n = 1; n < 300 && survived < 2; n += n < 12 ? 1 : 7) {
        const int went_well = run_starved(starved, n) == HEDDLE_OK;
        failed += !went_well;
        survived += went_well;
    }
    assert_true(failed > 5 && survived == 2);
}
