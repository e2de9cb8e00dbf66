/* Sessions: every element is where the schedule says after every enter, whatever memory and layout x came in. */
#include "case.h"
#include "session_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two passes from private memory, counters and records. */
static heddle_status passes(heddle_comm *comm, void *arg)
{
    fixture f = {0};
    heddle_tensor x = {0};
    heddle_session_counters counters = HEDDLE_EMPTY(heddle_session_counters);
    heddle_session_record record = HEDDLE_EMPTY(heddle_session_record);
    const int rank = heddle_comm_rank(comm);
    void *mine = NULL;
    int64_t sent = 0;
    heddle_status st;
    HD_TRY(set_up(&f, comm, 0, 0));
    for (int pass = 0; pass < 2; pass++) {
        float bias = 0;
        HD_TRY(make_x(&x, &f, arg, rank));
        placed_free(comm, mine);
        mine = x.data;
        HD_TRY(heddle_session_rewind(f.session));
        HD_TRY(enter_all(&f, &x, rank, &bias));
        HD_TRY(heddle_session_enter(f.session, "end", &x, NULL, placed_stream));
        HD_TRY(check_stamps(&x, &f, rank, bias));
    }
    HD_TRY(heddle_session_get_counters(&counters, f.session));
    CHECK(counters.enters == 2 * (STAGES * REPEAT + 1));
    CHECK(counters.bytes_sent == counters.bytes_planned);
    CHECK(heddle_comm_size(comm) == 1 || counters.bytes_sent > 0);
    for (int i = 0; i < counters.enters; i++) {
        HD_TRY(heddle_session_record_at(&record, f.session, i));
        CHECK(record.bytes_sent == record.bytes_planned);
        CHECK((record.line[0] == '\0') == (record.path[0] == '\0'));
        sent += record.bytes_sent;
    }
    CHECK(sent == counters.bytes_sent);
    CHECK(heddle_session_record_at(&record, f.session, (int)counters.enters) == HEDDLE_ERR_ARG);
    st = HEDDLE_OK;
out:
    placed_free(comm, mine);
    tear_down(&f);
    return st;
}

HD_CASE(follows_schedule)
{
    static const char *const from[] = {"*", "t@sp", "s@sp", "c@sp", "t@sp"};
    for (int ranks = 1; ranks <= 4; ranks++) {
        HD_OK(heddle_run_ranks(ranks, "threads", passes, (void *)from[ranks]));
        HD_OK(heddle_run_ranks(ranks, "shm", passes, (void *)from[ranks]));
        HD_OK(heddle_run_ranks(ranks, "shm", passes, (void *)from[ranks - 1]));
    }
    HD_OK(heddle_run_ranks(6, "shm", passes, "t@sp")); /* more ranks than frames: empty boxes */
}

/* Strides with gaps and another order of dims; the caller's memory is left alone. */
HD_RANK_CASE(takes_any_strides, "3 threads", "3 shm")
{
    fixture f = {0};
    heddle_tensor x = {0};
    heddle_box box;
    const int rank = heddle_comm_rank(comm);
    void *memory = NULL, *copy = NULL;
    heddle_status st;
    HD_TRY(set_up_x(&f, &x, comm, 0, "s@sp"));
    placed_free(comm, x.data);
    HD_TRY(heddle_layout_box(&box, &f.info.shape, &f.info.mesh, &x.layout, rank));
    const int64_t gap = 3, rows = box.len[1] * box.len[2];
    x.stride_elems[3] = gap * rows; /* c is the slowest */
    x.stride_elems[1] = gap;
    x.stride_elems[2] = gap * box.len[1];
    x.stride_elems[0] = 0;
    x.capacity_bytes = (size_t)(gap * rows * box.len[3]) * sizeof(float);
    memory = x.data = placed_alloc(comm, x.capacity_bytes);
    copy = malloc(x.capacity_bytes + 1);
    const heddle_tensor image = look_at(&x, &f);
    memset(image.data, 0x3c, x.capacity_bytes);
    look_away(&x, &image, &f);
    stamp(&x, &box, &f);
    const heddle_tensor stamped = look_at(&x, &f);
    memcpy(copy, stamped.data, x.capacity_bytes);
    look_away(&x, &stamped, &f);
    heddle_tensor too_small = x;
    if (heddle_box_elems(&box) > 0) { /* to the end of the last element, and not to it */
        too_small.capacity_bytes = (size_t)(gap * (rows * box.len[3] - 1)) * sizeof(float);
        CHECK(heddle_session_enter(f.session, "s.attn", &too_small, NULL, placed_stream) == HEDDLE_ERR_ARG);
        too_small.capacity_bytes += sizeof(float) - 1;
        CHECK(heddle_session_enter(f.session, "s.attn", &too_small, NULL, placed_stream) == HEDDLE_ERR_ARG);
        x.capacity_bytes = too_small.capacity_bytes + 1;
    }
    heddle_tensor twin = x;
    HD_TRY(heddle_session_enter(f.session, "s.attn", &x, NULL, placed_stream));
    HD_TRY(check_stamps(&x, &f, rank, 0));
    const heddle_tensor left = look_at(&twin, &f);
    CHECK(memcmp(left.data, copy, twin.capacity_bytes) == 0);
    look_away(&twin, &left, &f);
    CHECK(x.data != memory);
    st = HEDDLE_OK;
out:
    placed_free(comm, memory);
    free(copy);
    tear_down(&f);
    return st;
}

/* A result lives until the second next switch, also when it is what the second next switch reads. */
HD_RANK_CASE(results_stay_valid, "2 threads", "4 shm")
{
    fixture f = {0};
    heddle_tensor x = {0}, first, second;
    const int rank = heddle_comm_rank(comm);
    heddle_status st;
    HD_TRY(set_up_x(&f, &x, comm, 0, "*"));
    void *mine = x.data;
    first = x;
    HD_TRY(heddle_session_enter(f.session, "t.attn", &first, NULL, placed_stream)); /* switch 1 */
    second = x;
    HD_TRY(heddle_session_enter(f.session, "s.attn", &second, NULL, placed_stream)); /* switch 2 */
    CHECK(first.data != second.data);
    HD_TRY(check_stamps(&first, &f, rank, 0));
    heddle_tensor again = first;
    HD_TRY(heddle_session_enter(f.session, "s.attn", &again, NULL, placed_stream)); /* switch 3 reads switch 1's */
    HD_TRY(check_stamps(&again, &f, rank, 0));
    HD_TRY(check_stamps(&second, &f, rank, 0));
    CHECK(again.data != first.data && again.data != second.data);
    placed_free(comm, mine);
out:
    tear_down(&f);
    return st;
}

HD_RANK_CASE(refuses_clearly, "2 threads")
{
    fixture f = {0};
    heddle_tensor x = {0};
    const int rank = heddle_comm_rank(comm);
    heddle_status st;
    HD_TRY(set_up_x(&f, &x, comm, 0, "t@sp"));
    const heddle_tensor before = x;
    CHECK(heddle_session_enter(f.session, "s.atn", &x, NULL, placed_stream) == HEDDLE_ERR_ARG);
    CHECK(strstr(heddle_last_error(), "did you mean 's.attn'") != NULL);
    CHECK(heddle_session_enter(f.session, "", &x, NULL, placed_stream) == HEDDLE_ERR_ARG);
    CHECK(heddle_session_enter(f.session, NULL, &x, NULL, placed_stream) == HEDDLE_ERR_ARG);
    CHECK(heddle_session_enter(f.session, "s.attn", NULL, NULL, placed_stream) == HEDDLE_ERR_ARG);
    CHECK(heddle_session_rewind(NULL) == HEDDLE_ERR_ARG);
    x.shape.dim[1].extent = 6;
    CHECK(heddle_session_enter(f.session, "s.attn", &x, NULL, placed_stream) == HEDDLE_ERR_LAYOUT);
    CHECK(strstr(heddle_last_error(), "t=6") != NULL && strstr(heddle_last_error(), "t=5") != NULL);
    x = before;
    x.layout.dim_of_axis[0] = 9;
    CHECK(heddle_session_enter(f.session, "s.attn", &x, NULL, placed_stream) == HEDDLE_ERR_LAYOUT);
    x = before;
    x.data = NULL;
    CHECK(heddle_session_enter(f.session, "t.attn", &x, NULL, placed_stream) == HEDDLE_ERR_ARG);
    x = before;
    for (int r = 0; r < REPEAT; r++) {
        HD_TRY(heddle_session_enter(f.session, "s.mlp", &x, NULL, placed_stream));
    }
    CHECK(heddle_session_enter(f.session, "s.mlp", &x, NULL, placed_stream) == HEDDLE_ERR_ARG);
    CHECK(strstr(heddle_last_error(), "heddle_session_rewind") != NULL);
    HD_TRY(heddle_session_rewind(f.session));
    if (!placed_on_device(comm)) {
        x.space = HEDDLE_SPACE_DEVICE;
        x.device = 1;
        CHECK(heddle_session_enter(f.session, "s.mlp", &x, NULL, placed_stream) == HEDDLE_ERR_UNSUPPORTED);
        CHECK(strstr(heddle_last_error(), "entering 's.mlp': x: memory of device 1") != NULL);
        CHECK(strstr(heddle_last_error(), "the transport threads") != NULL);
        x = before;
    }
    HD_TRY(heddle_session_enter(f.session, "s.mlp", &x, NULL, placed_stream));
    HD_TRY(check_stamps(&x, &f, rank, 0));
    heddle_session_counters counters = {0};
    CHECK(heddle_session_get_counters(&counters, f.session) == HEDDLE_ERR_ARG);
    placed_free(comm, before.data);
out:
    tear_down(&f);
    return st;
}

/* The dry run plans what the real one moves, and touches nothing. */
HD_RANK_CASE(dry_run_counts, "3 threads")
{
    fixture f = {0};
    heddle_tensor x = {0};
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    heddle_status st;
    HD_TRY(set_up(&f, comm, 1, 0));
    HD_TRY(heddle_schedule_edge_at(&edge, f.schedule, 0));
    HD_TRY(heddle_tensor_init(&x, &x, &f.info.shape, &f.info.mesh, &edge.from, NULL, heddle_comm_rank(comm)));
    x.data = NULL;
    place(&x, &f);
    for (int i = 0; i < STAGES * REPEAT; i++) {
        HD_TRY(heddle_session_enter(f.session, stages[i % STAGES], &x, NULL, placed_stream));
    }
    HD_TRY(heddle_session_enter(f.session, "end", &x, NULL, placed_stream));
    CHECK(x.data == NULL);
    st = check_dry(&f, comm);
out:
    tear_down(&f);
    return st;
}

/* Rank 2 has another schedule; and a schedule for another number of ranks. */
static heddle_status disagree(heddle_comm *comm, void *arg)
{
    fixture f = {0};
    const char *wanted = heddle_comm_rank(comm) >= 0 ? "rank 2" : "";
    heddle_status st;
    (void)arg;
    HD_TRY(make_schedule(&f, 3, heddle_comm_rank(comm) == 2 ? "s=8" : "s=7"));
    CHECK(heddle_session_create(&f.session, comm, f.schedule, NULL) == HEDDLE_ERR_MISMATCH);
    CHECK(strstr(heddle_last_error(), wanted) != NULL && strstr(heddle_last_error(), "shape") != NULL);
    CHECK(f.session == NULL);
    tear_down(&f);
    HD_TRY(make_schedule(&f, 4, "s=7"));
    CHECK(heddle_session_create(&f.session, comm, f.schedule, NULL) == HEDDLE_ERR_LAYOUT);
    CHECK(strstr(heddle_last_error(), "the schedule is for a mesh of 4 ranks, the communicator has 3") != NULL);
    CHECK(heddle_session_create(NULL, comm, f.schedule, NULL) == HEDDLE_ERR_ARG);
    heddle_session_options options = {0};
    CHECK(heddle_session_create(&f.session, comm, f.schedule, &options) == HEDDLE_ERR_ARG);
out:
    tear_down(&f);
    return st;
}

/* Rank 1's schedule leads its last edge elsewhere, and is the same up to there. */
HD_RANK_CASE(schedules_agree_to_their_end, "3 threads", "3 shm")
{
    fixture f = {0}, other = {0};
    heddle_plan_options options;
    heddle_schedule_edge last = {.struct_bytes = sizeof last}, kept = last;
    heddle_status st;
    HD_TRY(make_schedule(&f, 3, "s=7"));
    HD_TRY(make_schedule(&other, 3, "s=7"));
    heddle_schedule_destroy(other.schedule);
    other.schedule = NULL;
    heddle_plan_options_init(&options);
    options.epilogue = "any";
    HD_TRY(heddle_plan(&other.schedule, other.model, &f.info.mesh, &options));
    HD_TRY(heddle_schedule_edge_at(&last, f.schedule, f.info.nedges - 1));
    HD_TRY(heddle_schedule_edge_at(&kept, other.schedule, f.info.nedges - 1));
    CHECK(heddle_layout_equal(&last.from, &kept.from, &f.info.mesh)); /* or this is no such pair */
    CHECK(!heddle_layout_equal(&last.to, &kept.to, &f.info.mesh));
    st = heddle_session_create(&f.session, comm, heddle_comm_rank(comm) == 1 ? other.schedule : f.schedule, NULL);
    CHECK(st == HEDDLE_ERR_MISMATCH && f.session == NULL);
    CHECK(strstr(heddle_last_error(), "rank 1 asks for another session: its sequence of layouts") != NULL);
    st = HEDDLE_OK;
out:
    tear_down(&f);
    tear_down(&other);
    return st;
}

HD_CASE(schedules_must_agree)
{
    HD_OK(heddle_run_ranks(3, "threads", disagree, NULL));
    HD_OK(heddle_run_ranks(3, "shm", disagree, NULL));
    heddle_session_destroy(NULL);
}
