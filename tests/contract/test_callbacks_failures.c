/* heddle_comm_from_callbacks: wrong use, a transport that fails, a rank that has no memory. */
#include "callbacks_run.h"
#include "case.h"
#include "fake_transport.h"
#include "switch_check.h"

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"

#include <heddle/reshard.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void other_options_on_rank_1(void *ctx, int rank, heddle_comm_options *options)
{
    (void)ctx;
    options->pretend_hosts = rank == 1 ? 2 : 0;
}

static int mismatch_named(heddle_comm *comm, heddle_status opened, int rank, void *arg)
{
    (void)comm, (void)arg;
    EXPECT(opened == HEDDLE_ERR_MISMATCH);
    EXPECT(strstr(heddle_last_error(), "rank 1") != NULL && strstr(heddle_last_error(), "pretend_hosts") != NULL);
    return 0;
}

HD_CASE(options_must_agree)
{
    fake_world *world = fake_world_create(3);
    fake_run run = run_with(world, PLAIN, 20000);
    run.fn = mismatch_named;
    run.before = other_options_on_rank_1;
    assert_int_equal(fake_run_ranks(&run, 3), 0);
    assert_int_equal(fake_alive(world), 0);
    fake_world_destroy(world);
}

static heddle_status not_there(void *ctx)
{
    (void)ctx;
    abort();
}

HD_CASE(the_table_is_checked)
{
    fake_world *world = fake_world_create(1);
    heddle_transport table;
    heddle_comm *comm = NULL;
    void *ctx = fake_rank(world, 0, &table);
    heddle_transport bad = table;
    bad.sendrecv = NULL;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_from_callbacks(&comm, &bad, ctx, NULL));
    assert_non_null(strstr(heddle_last_error(), "sendrecv"));
    bad = table;
    bad.struct_bytes--;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_from_callbacks(&comm, &bad, ctx, NULL));
    bad = table;
    bad.rank = 1;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_from_callbacks(&comm, &bad, ctx, NULL));
    bad = table;
    bad.spaces = 1u << HEDDLE_SPACE_DEVICE;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_from_callbacks(&comm, &bad, ctx, NULL));
    assert_non_null(strstr(heddle_last_error(), "spaces 0x2"));
    bad = table;
    bad.latency_ns = -1;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_from_callbacks(&comm, &bad, ctx, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_from_callbacks(&comm, NULL, ctx, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_comm_from_callbacks(NULL, &table, ctx, NULL));
    table.struct_bytes = offsetof(heddle_transport, withdraw); /* of an older header */
    table.withdraw = not_there;
    HD_OK(heddle_comm_from_callbacks(&comm, &table, ctx, NULL));
    heddle_reshard *reshard = NULL;
    heddle_reshard_line line;
    HD_OK(heddle_reshard_parse(&line, "u8[t=4 s=4] on [sp=1]: t@sp -> s@sp"));
    HD_OK(heddle_reshard_create_line(&reshard, comm, &line, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_reshard_execute(reshard, NULL, NULL, HEDDLE_NO_STREAM));
    heddle_reshard_destroy(reshard);
    heddle_comm_destroy(comm);
    assert_int_equal(fake_alive(world), 0);
    fake_world_destroy(world);
}

static const char half_way[] = "a message stopped half way: leave src and dst alone";

static heddle_status stopped_half_way(void *ctx)
{
    (void)ctx;
    return heddle_set_error(HEDDLE_ERR_TRANSPORT, "%s", half_way);
}

/* It comes last, and a plan's line before it may be long. */
HD_CASE(what_must_be_left_alone_is_not_cut)
{
    fake_world *world = fake_world_create(1);
    heddle_transport table;
    heddle_comm *comm = NULL;
    char line[3000], why[512];
    void *ctx = fake_rank(world, 0, &table);
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = '\0';
    table.withdraw = stopped_half_way;
    HD_OK(heddle_comm_from_callbacks(&comm, &table, ctx, NULL));
    heddle_ignore(heddle_set_error(HEDDLE_ERR_TIMEOUT, "rank 0: reshard %s", line));
    assert_int_equal(hd_comm_give_up(comm, HEDDLE_ERR_TIMEOUT, why, sizeof why), HEDDLE_ERR_TIMEOUT);
    assert_string_equal(heddle_last_error(), why);
    assert_int_equal(strlen(why), sizeof why - 1);
    assert_non_null(strstr(why, "xxx...; "));
    assert_string_equal(strstr(why, "; ") + 2, half_way);
    heddle_comm_destroy(comm);
    assert_int_equal(fake_alive(world), 0);
    fake_world_destroy(world);
}

/* The messages of all plans, whichever of them failed. */
HD_CASE(all_messages_are_withdrawn)
{
    enum { PLANS = 3 };
    fake_world *world = fake_world_create(1);
    heddle_transport table;
    heddle_comm *comm = NULL;
    hd_exchange *exchange[PLANS];
    char why[512];
    void *ctx = fake_rank(world, 0, &table);
    HD_OK(heddle_comm_from_callbacks(&comm, &table, ctx, NULL));
    const int alone = fake_alive(world);
    for (int i = 0; i < PLANS; i++) {
        HD_OK(hd_exchange_create(&exchange[i], comm, NULL, 0));
    }
    hd_exchange_destroy(exchange[1]);
    assert_int_equal(fake_alive(world), alone + PLANS - 1);
    heddle_ignore(heddle_set_error(HEDDLE_ERR_TIMEOUT, "the soup is cold"));
    assert_int_equal(hd_comm_give_up(comm, HEDDLE_ERR_TIMEOUT, why, sizeof why), HEDDLE_ERR_TIMEOUT);
    assert_int_equal(fake_alive(world), alone);
    for (int i = 0; i < PLANS; i += 2) {
        int done = 0;
        HD_FAILS(HEDDLE_ERR_PEER, hd_exchange_test(exchange[i], &done));
        assert_non_null(strstr(heddle_last_error(), "the messages were withdrawn"));
        hd_exchange_destroy(exchange[i]);
    }
    heddle_comm_destroy(comm);
    assert_int_equal(fake_alive(world), 0);
    fake_world_destroy(world);
}

typedef struct failure {
    const char *slot;
    int n;
} failure;

static failure failing;

static void fail_on_rank_1(void *ctx, int rank, heddle_comm_options *options)
{
    (void)options;
    if (rank == 1) {
        fake_fail_at(ctx, failing.slot, failing.n);
    }
}

/* A user's program gives up when a call fails; then nobody may hang. */
static int fails_somewhere(heddle_comm *comm, heddle_status opened, int rank, void *arg)
{
    char room[SWITCH_TEXT_BYTES];
    char text[SWITCH_TEXT_BYTES];
    int *told = arg;
    int64_t begin = now_ms();
    int failed = opened != HEDDLE_OK;
    for (int i = 0; !failed && switch_line(i, heddle_comm_size(comm), room) != NULL; i++) {
        if (switch_check(comm, room, NULL, text) != 0) {
            heddle_ignore(heddle_comm_abort(comm, text));
            failed = 1;
        }
    }
    EXPECT(now_ms() - begin < hd_test_limit_ns(8) / 1000000);
    __atomic_fetch_add(told, failed, __ATOMIC_RELAXED);
    return 0;
}

HD_CASE(a_failing_transport_ends_every_rank)
{
    static const failure plan[] = {{"allgather", 1},       {"allgather", 2},      {"allgather", 5},
                                   {"exchange_create", 1}, {"exchange_start", 1}, {"exchange_start", 3},
                                   {"exchange_test", 1},   {"exchange_test", 4}};
    for (size_t i = 0; i < sizeof(plan) / sizeof(plan[0]); i++) {
        fake_world *world = fake_world_create(3);
        fake_run run = run_with(world, FORCED, hd_test_limit_ns(3) / 1000000);
        int told = 0;
        failing = plan[i];
        run.fn = fails_somewhere;
        run.before = fail_on_rank_1;
        run.arg = &told;
        assert_int_equal(fake_run_ranks(&run, 3), 0);
        if (told != 3) {
            print_error("%s %d: %d of 3 ranks noticed\n", failing.slot, failing.n, told);
        }
        assert_int_equal(told, 3);
        assert_int_equal(fake_alive(world), 0);
        fake_world_destroy(world);
    }
}

/* --- memory of their own ------------------------------------------------------------------------------------------ */

static int opens_without_memory(heddle_comm *comm, heddle_status opened, int rank, void *arg)
{
    int *short_of_it = arg;
    (void)comm;
    EXPECT(opened == HEDDLE_OK || opened == HEDDLE_ERR_NOMEM || opened == HEDDLE_ERR_PEER);
    EXPECT(opened == HEDDLE_OK || strstr(heddle_last_error(), "out of memory") != NULL);
    EXPECT(opened != HEDDLE_ERR_PEER || strstr(heddle_last_error(), "rank ") != NULL);
    __atomic_fetch_add(short_of_it, opened == HEDDLE_ERR_NOMEM, __ATOMIC_RELAXED);
    return 0;
}

/* The n-th allocation of all ranks together fails, for every n. */
HD_CASE(a_rank_short_of_memory_is_told_to_all)
{
    for (int mode = 0; mode < MODES; mode++) {
        int short_of_it = 1;
        long n = 0;
        while (short_of_it > 0 && n < 300) {
            fake_world *world = fake_world_create(3);
            fake_run run = run_with(world, mode, 20000);
            int64_t begin = now_ms();
            run.fn = opens_without_memory;
            run.arg = &short_of_it;
            short_of_it = 0;
            hd_alloc_fail_at(++n);
            assert_int_equal(fake_run_ranks(&run, 3), 0);
            hd_alloc_fail_at(0);
            assert_true(now_ms() - begin < hd_test_limit_ns(15) / 1000000);
            fake_world_destroy(world);
        }
        assert_true(n > 10 && n < 300);
    }
}
