/* A rank that dies or stops coming while blocks go round: clear errors on every other rank, nobody waits for ever. */
#include "accident.h"
#include "case.h"
#include "check.h"
#include "time_limit.h"

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"

#include <heddle/heddle.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 4, ROWS = 24, ELEMS = ROWS * 4 * 16 };

typedef struct job {
    accident accident;
    heddle_attention_method method;
} job;

/* Over the sequence, on four ranks. */
static heddle_attention *make_attention(heddle_comm *comm, heddle_attention_method method, int64_t deadline_ms)
{
    const int is_usp = method == HEDDLE_ATTENTION_USP;
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_attention *attention = NULL;
    heddle_attention_options options;
    heddle_attention_options_init(&options);
    options.method = method;
    options.deadline_ms = deadline_ms;
    HD_OK(heddle_shape_parse(&shape, "f32[b=1 s=96 h=4 d=16]"));
    HD_OK(heddle_mesh_parse(&mesh, is_usp ? "[a=2 b=2]" : "[sp=4]"));
    HD_OK(heddle_layout_parse(&layout, is_usp ? "s@a,s@b" : "s@sp", &shape, &mesh));
    HD_OK(heddle_attention_create(&attention, comm, &shape, &mesh, &layout, &options));
    return attention;
}

static heddle_status run_until_it_fails(heddle_comm *comm, void *arg)
{
    job *j = arg;
    int rank = heddle_comm_rank(comm);
    heddle_attention *attention = make_attention(comm, j->method, 2000);
    float *data = calloc(8 * ELEMS, sizeof *data);
    heddle_attention_array x[8];
    memset(x, 0, sizeof x);
    for (int i = 0; i < 8; i++) {
        x[i].data = data + i * ELEMS;
    }
    accident_begins(&j->accident, rank);
    heddle_status st = HEDDLE_OK;
    for (int i = 0; st == HEDDLE_OK && accident_lets(&j->accident, rank, i); i++) {
        st = heddle_attention_forward(attention, &x[0], &x[1], &x[2], &x[3], NULL, HEDDLE_NO_STREAM);
        st = st != HEDDLE_OK ? st : heddle_attention_backward(attention, &x[4], &x[5], &x[6], &x[7], HEDDLE_NO_STREAM);
    }
    if (st != HEDDLE_OK) {
        accident_note(&j->accident, rank, st);
        /* broken for good */
        HD_FAILS(st, heddle_attention_forward(attention, &x[0], &x[1], &x[2], &x[3], NULL, HEDDLE_NO_STREAM));
    }
    heddle_attention_destroy(attention);
    free(data);
    return st;
}

static void run(heddle_attention_method method, int kills)
{
    job *j = hd_shared(sizeof *j);
    const accident *a = &j->accident;
    *j = (job){.accident = {.kills = kills}, .method = method};
    assert_int_not_equal(heddle_run_ranks(RANKS, "shm", run_until_it_fails, j), HEDDLE_OK);
    for (int rank = 0; rank < RANKS; rank++) {
        int status = a->seen[rank] - 1;
        if (rank == VICTIM) {
            assert_int_equal(a->seen[rank], 0);
            continue;
        }
        if (status != HEDDLE_ERR_PEER && !(status == HEDDLE_ERR_TIMEOUT && !kills)) {
            fail_msg("rank %d: status %d, %s", rank, status, (const char *)a->why[rank]);
        }
        if (kills) {
            if (strstr((const char *)a->why[rank], "rank 2") == NULL) {
                fail_msg("rank %d does not name rank 2: %s", rank, (const char *)a->why[rank]);
            }
        }
    }
}

HD_CASE(a_rank_dies_in_a_ring)
{
    run(HEDDLE_ATTENTION_RING, 1);
    run(HEDDLE_ATTENTION_RSA, 1);
}

HD_CASE(a_rank_dies_in_an_exchange)
{
    run(HEDDLE_ATTENTION_ULYSSES, 1);
    run(HEDDLE_ATTENTION_USP, 1);
    run(HEDDLE_ATTENTION_GATHER_KV, 1);
}

HD_CASE(a_rank_stops_coming)
{
    run(HEDDLE_ATTENTION_RING, 0);
}

static int others_noted(const accident *a)
{
    int noted = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        noted += rank != VICTIM && a->seen[rank] != 0;
    }
    return noted;
}

/* Blocks that go round as messages: the wait for them ends at the deadline, not when the late rank comes. */
static heddle_status one_is_late(heddle_comm *comm, void *arg)
{
    accident *a = arg;
    int rank = heddle_comm_rank(comm);
    heddle_attention *attention = make_attention(comm, HEDDLE_ATTENTION_RING, hd_test_missed_ns(0.4) / 1000000);
    static _Thread_local float data[4 * ELEMS];
    heddle_attention_array x[4];
    memset(x, 0, sizeof x);
    for (int i = 0; i < 4; i++) {
        x[i].data = data + i * ELEMS;
    }
    HD_OK(heddle_comm_barrier(comm));
    for (int64_t start_ns = hd_now_ns(); rank == VICTIM && others_noted(a) < RANKS - 1;) {
        CHECK_OR_RETURN(hd_now_ns() - start_ns < hd_test_limit_ns(8)); /* nobody gives up without it */
        usleep(1000);
    }
    heddle_status st = heddle_attention_forward(attention, &x[0], &x[1], &x[2], &x[3], NULL, HEDDLE_NO_STREAM);
    accident_note(a, rank, st);
    heddle_attention_destroy(attention);
    return HEDDLE_OK;
}

HD_CASE(a_rank_is_late_in_a_ring_of_messages)
{
    accident *a = hd_shared(sizeof *a);
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.force_messages = 1;
    HD_OK(heddle_run_ranks_with(RANKS, "shm", &options, one_is_late, a));
    int late = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        int status = a->seen[rank] - 1;
        if (status != HEDDLE_ERR_PEER && status != HEDDLE_ERR_TIMEOUT) {
            fail_msg("rank %d: status %d, %s", rank, status, (const char *)a->why[rank]);
        }
        late += status == HEDDLE_ERR_TIMEOUT && strstr((const char *)a->why[rank], "ring transfer") != NULL;
    }
    assert_true(late > 0);
}

/* Rank 1 is in the middle of a copy when rank 0's call fails: its memory is its own again only after that. */
static heddle_status softmax_call(heddle_comm *comm, int is_failing)
{
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_attention *attention = NULL;
    heddle_attention_array none[4];
    heddle_attention_options options;
    heddle_attention_options_init(&options);
    options.method = HEDDLE_ATTENTION_RING;
    memset(none, 0, sizeof none);
    HD_OK(heddle_shape_parse(&shape, "f32[b=1 s=8 h=1 d=8]"));
    HD_OK(heddle_mesh_parse(&mesh, "[sp=2]"));
    HD_OK(heddle_layout_parse(&layout, "s@sp", &shape, &mesh));
    HD_OK(heddle_attention_create(&attention, comm, &shape, &mesh, &layout, &options));
    HD_OK(heddle_comm_barrier(comm));
    heddle_status st =
        is_failing ? heddle_attention_forward(attention, &none[0], &none[1], &none[2], &none[3], NULL, HEDDLE_NO_STREAM)
                   : HEDDLE_OK;
    heddle_attention_destroy(attention);
    return st;
}

static heddle_status linear_call(heddle_comm *comm, int is_failing)
{
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout layout;
    heddle_linear_attention *attention = NULL;
    heddle_attention_array none;
    heddle_linear_attention_options options;
    heddle_linear_attention_options_init(&options);
    options.method = HEDDLE_LINEAR_LASP;
    memset(&none, 0, sizeof none);
    HD_OK(heddle_shape_parse(&shape, "f32[b=1 s=8 h=1 d=8]"));
    HD_OK(heddle_mesh_parse(&mesh, "[sp=2]"));
    HD_OK(heddle_layout_parse(&layout, "s@sp", &shape, &mesh));
    HD_OK(heddle_linear_attention_create(&attention, comm, &shape, &mesh, &layout, &options));
    HD_OK(heddle_comm_barrier(comm));
    heddle_status st = is_failing
                           ? heddle_linear_attention_forward(attention, &none, &none, &none, &none, HEDDLE_NO_STREAM)
                           : HEDDLE_OK;
    heddle_linear_attention_destroy(attention);
    return st;
}

typedef struct copying {
    heddle_status (*call)(heddle_comm *comm, int is_failing);
    volatile int has_stopped;
} copying;

static heddle_status fails_amid_a_copy(heddle_comm *comm, void *arg)
{
    copying *c = arg;
    int is_copying = heddle_comm_rank(comm) == 1;
    hd_comm_view view;
    hd_comm_get_view(&view, comm);
    atomic_store(view.moving, is_copying);
    heddle_status st = c->call(comm, !is_copying);
    if (is_copying) {
        usleep(200000);
        c->has_stopped = 1;
        atomic_store(view.moving, 0);
        return st;
    }
    assert_int_equal(st, HEDDLE_ERR_ARG);
    assert_int_equal(c->has_stopped, 1);
    return HEDDLE_OK;
}

HD_CASE(a_failing_call_waits_for_copies)
{
    copying softmax = {.call = softmax_call}, linear = {.call = linear_call};
    HD_OK(heddle_run_ranks(2, "threads", fails_amid_a_copy, &softmax));
    HD_OK(heddle_run_ranks(2, "threads", fails_amid_a_copy, &linear));
}
