/* heddle_comm_from_callbacks over a transport without MPI: every kind of reach,
 * every way to fail. */
#include "case.h"
#include "fake_transport.h"
#include "switch_check.h"

#include "runtime/base/base.h"

#include <heddle/reshard.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            print_error("%s:%d: rank %d: %s (%s)\n", __FILE__, __LINE__, rank, #condition, heddle_last_error());       \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

enum { PLAIN, FORCED, TWO_HOSTS, MODES };

static fake_run run_with(fake_world *world, int mode, int64_t deadline_ms)
{
    fake_run run = {.world = world};
    heddle_comm_options_init(&run.options);
    run.options.bind = HEDDLE_BIND_NONE;
    run.options.arena_bytes = 64 << 20;
    run.options.deadline_ms = deadline_ms;
    run.options.force_messages = mode == FORCED;
    run.options.pretend_hosts = mode == TWO_HOSTS ? 2 : 0;
    return run;
}

/* --- group operations --------------------------------------------------------------------------------------------- */

/* 2^60, -2^60 and small numbers: any other order than that of the ranks gives other bits. More than travel at a time.
 */
static int sums_in_rank_order(heddle_comm *comm, int rank, int size)
{
    enum { ELEMS = 3001 };
    static const double terms[] = {0x1p60, -0x1p60, 1.25, 2.5};
    double f64[ELEMS];
    float f32[ELEMS];
    for (int i = 0; i < ELEMS; i++) {
        f64[i] = terms[rank % 4] * (i % 7);
        f32[i] = (float)terms[rank % 4] * (float)(i % 5);
    }
    EXPECT(heddle_comm_allreduce_sum(comm, f64, ELEMS, HEDDLE_F64) == HEDDLE_OK);
    EXPECT(heddle_comm_allreduce_sum(comm, f32, ELEMS, HEDDLE_F32) == HEDDLE_OK);
    for (int i = 0; i < ELEMS; i++) {
        double wanted_f64 = terms[0] * (i % 7);
        float wanted_f32 = (float)terms[0] * (float)(i % 5);
        for (int r = 1; r < size; r++) {
            wanted_f64 += terms[r % 4] * (i % 7);
            wanted_f32 += (float)terms[r % 4] * (float)(i % 5);
        }
        EXPECT(f64[i] == wanted_f64 && f32[i] == wanted_f32);
    }
    return 0;
}

/* The way to a peer is data, and a peer that is not reached says why. */
static int peer_says_how(heddle_comm *comm, int rank, int peer, int mode)
{
    heddle_peer says = {.struct_bytes = sizeof says};
    EXPECT(heddle_comm_get_peer(&says, comm, peer) == HEDDLE_OK);
    EXPECT(says.reaches == heddle_comm_reaches(comm, peer));
    EXPECT(says.spaces == 1u << HEDDLE_SPACE_HOST && says.stream_ordered == 0);
    if (says.reaches) {
        EXPECT(says.link == (peer == rank ? HEDDLE_LINK_SELF : HEDDLE_LINK_MEMORY));
        EXPECT(strcmp(says.why, peer == rank ? "it is this rank" : "memory of this host") == 0);
        EXPECT(says.latency_ns == 0 && says.bytes_per_s == 0);
    } else {
        EXPECT(says.link == HEDDLE_LINK_NETWORK && says.latency_ns == 25000 && says.bytes_per_s == 12500000000);
        EXPECT(strstr(says.why, "messages by fake: ") != NULL);
        EXPECT(strstr(says.why, mode == FORCED ? "they are forced (force_messages)" : "pretended host ") != NULL);
    }
    return 0;
}

static int group_operations(heddle_comm *comm, heddle_status opened, int rank, void *arg)
{
    const int *mode = arg;
    int size = comm != NULL ? heddle_comm_size(comm) : 0;
    EXPECT(opened == HEDDLE_OK && heddle_comm_rank(comm) == rank);
    EXPECT(strstr(heddle_comm_describe(comm), "fake") != NULL);
    for (int peer = 0; peer < size; peer++) {
        int wanted = *mode == PLAIN || peer == rank ||
                     (*mode == TWO_HOSTS && size > 2 && (peer < (size + 1) / 2) == (rank < (size + 1) / 2));
        EXPECT(heddle_comm_reaches(comm, peer) == wanted);
        EXPECT(peer_says_how(comm, rank, peer, *mode) == 0);
    }
    int far = *mode != PLAIN && size > 1;
    EXPECT((strstr(heddle_comm_describe(comm), "messages by network 25 us 12.5 GB/s") != NULL) == far);
    for (int turn = 0; turn < 20; turn++) {
        int64_t mine[3] = {rank, turn, rank * turn};
        int64_t all[3 * 16];
        EXPECT(heddle_comm_barrier(comm) == HEDDLE_OK);
        EXPECT(heddle_comm_allgather(comm, mine, all, sizeof(mine)) == HEDDLE_OK);
        for (int r = 0; r < size; r++) {
            EXPECT(all[3 * r] == r && all[3 * r + 1] == turn && all[3 * r + 2] == r * turn);
        }
        int64_t sum[2] = {rank + 1, turn};
        EXPECT(heddle_comm_allreduce_sum(comm, sum, 2, HEDDLE_I64) == HEDDLE_OK);
        EXPECT(sum[0] == (int64_t)size * (size + 1) / 2 && sum[1] == (int64_t)turn * size);
        int out[2] = {rank, turn};
        int in[2] = {-1, -1};
        int from = (rank + size - 1) % size;
        EXPECT(heddle_comm_sendrecv(comm, out, sizeof(out), (rank + 1) % size, in, sizeof(in), from,
                                    HEDDLE_NO_STREAM) == HEDDLE_OK);
        EXPECT(in[0] == from && in[1] == turn);
    }
    EXPECT(sums_in_rank_order(comm, rank, size) == 0);
    const heddle_mesh mesh = {.naxes = 3, .axis = {{"a", 1}, {"b", size}, {"c", 1}}};
    for (unsigned axes = 0; axes < 8; axes++) {
        heddle_comm *group = NULL;
        int all[16];
        EXPECT(heddle_comm_axes_group(&group, comm, &mesh, axes) == HEDDLE_OK);
        EXPECT(heddle_comm_size(group) == (axes & 2 ? size : 1));
        EXPECT(heddle_comm_allgather(group, &rank, all, sizeof(rank)) == HEDDLE_OK);
        EXPECT(all[heddle_comm_rank(group)] == rank);
        heddle_comm_destroy(group);
    }
    return 0;
}

static void group_operations_in_all_modes(void **state)
{
    (void)state;
    for (int size = 1; size <= 5; size++) {
        for (int mode = 0; mode < MODES; mode++) {
            fake_world *world = fake_world_create(size);
            fake_run run = run_with(world, mode, 20000);
            run.fn = group_operations;
            run.arg = &mode;
            assert_int_equal(fake_run_ranks(&run, size), 0);
            assert_int_equal(fake_alive(world), 0);
            fake_world_destroy(world);
        }
    }
}

/* --- reshards ----------------------------------------------------------------------------------------------------- */

typedef struct totals {
    int64_t to[16][16];
} totals;

static int reshards(heddle_comm *comm, heddle_status opened, int rank, void *arg)
{
    totals *t = arg;
    char room[SWITCH_TEXT_BYTES];
    char text[SWITCH_TEXT_BYTES];
    EXPECT(opened == HEDDLE_OK);
    for (int i = 0; switch_line(i, heddle_comm_size(comm), room) != NULL; i++) {
        if (switch_check(comm, room, t->to[rank], text) != 0) {
            print_error("rank %d: %s\n", rank, text);
            return 1;
        }
    }
    return 0;
}

/* The transport's own count of what exchanges moved must be what we say,
 * between ranks that cannot reach each other. */
static void reshards_in_all_modes(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++) {
        for (int mode = 0; mode < MODES; mode++) {
            fake_world *world = fake_world_create(size);
            fake_run run = run_with(world, mode, 20000);
            totals t = {{{0}}};
            run.fn = reshards;
            run.arg = &t;
            assert_int_equal(fake_run_ranks(&run, size), 0);
            for (int a = 0; a < size; a++) {
                for (int b = 0; b < size; b++) {
                    int messages =
                        mode == FORCED || (mode == TWO_HOSTS && (a < (size + 1) / 2) != (b < (size + 1) / 2));
                    assert_int_equal(fake_bytes(world, a, b), messages ? t.to[a][b] : 0);
                }
            }
            assert_int_equal(fake_alive(world), 0);
            fake_world_destroy(world);
        }
    }
}

/* --- giving up ---------------------------------------------------------------------------------------------------- */

static void *abort_from_outside(void *comm)
{
    usleep(20000);
    heddle_comm_abort(comm, "the oven is off");
    return NULL;
}

static int one_gives_up(heddle_comm *comm, heddle_status opened, int rank, void *arg)
{
    const int *other_thread = arg;
    EXPECT(opened == HEDDLE_OK);
    if (rank == 1 && !*other_thread) {
        usleep(20000);
        EXPECT(heddle_comm_abort(comm, "the oven is off") == HEDDLE_OK);
        return 0;
    }
    pthread_t thread;
    if (rank == 1) {
        pthread_create(&thread, NULL, abort_from_outside, comm);
        usleep(100000);
        pthread_join(thread, NULL);
        return 0; /* destroying the communicator passes it on at the latest */
    }
    EXPECT(heddle_comm_barrier(comm) == HEDDLE_ERR_PEER);
    EXPECT(strstr(heddle_last_error(), "rank 1") != NULL && strstr(heddle_last_error(), "the oven is off") != NULL);
    return 0;
}

static void an_abort_reaches_everybody(void **state)
{
    (void)state;
    for (int mode = 0; mode < MODES; mode++) {
        for (int other_thread = 0; other_thread < 2; other_thread++) {
            fake_world *world = fake_world_create(3);
            fake_run run = run_with(world, mode, 20000);
            run.fn = one_gives_up;
            run.arg = &other_thread;
            assert_int_equal(fake_run_ranks(&run, 3), 0);
            fake_world_destroy(world);
        }
    }
}

static int64_t now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static int one_is_missing(heddle_comm *comm, heddle_status opened, int rank, void *arg)
{
    (void)arg;
    EXPECT(opened == HEDDLE_OK);
    if (rank == 2) {
        usleep(900000);
        return 0;
    }
    int64_t begin = now_ms();
    EXPECT(heddle_comm_barrier(comm) == HEDDLE_ERR_TIMEOUT);
    EXPECT(now_ms() - begin >= 250 && now_ms() - begin < 850);
    return 0;
}

static void a_wait_ends_at_its_deadline(void **state)
{
    (void)state;
    for (int mode = 0; mode < MODES; mode++) {
        fake_world *world = fake_world_create(3);
        fake_run run = run_with(world, mode, 300);
        run.fn = one_is_missing;
        assert_int_equal(fake_run_ranks(&run, 3), 0);
        fake_world_destroy(world);
    }
}

static int nobody_opens(heddle_comm *comm, heddle_status opened, int rank, void *arg)
{
    (void)comm;
    const heddle_status *wanted = arg;
    EXPECT(opened == *wanted);
    return 0;
}

static void a_rank_that_never_comes(void **state)
{
    (void)state;
    heddle_status wanted = HEDDLE_ERR_TIMEOUT;
    fake_world *world = fake_world_create(3);
    fake_run run = run_with(world, PLAIN, 300);
    run.fn = nobody_opens;
    run.arg = &wanted;
    assert_int_equal(fake_run_ranks(&run, 2), 0); /* two of three */
    fake_world_destroy(world);
}

/* --- wrong use and failures --------------------------------------------------------------------------------------- */

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

static void options_must_agree(void **state)
{
    (void)state;
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

static void the_table_is_checked(void **state)
{
    (void)state;
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
            heddle_comm_abort(comm, text);
            failed = 1;
        }
    }
    EXPECT(now_ms() - begin < 8000);
    __atomic_fetch_add(told, failed, __ATOMIC_RELAXED);
    return 0;
}

static void a_failing_transport_ends_every_rank(void **state)
{
    (void)state;
    static const failure plan[] = {{"allgather", 1},       {"allgather", 2},      {"allgather", 5},
                                   {"exchange_create", 1}, {"exchange_start", 1}, {"exchange_start", 3},
                                   {"exchange_test", 1},   {"exchange_test", 4}};
    for (size_t i = 0; i < sizeof(plan) / sizeof(plan[0]); i++) {
        fake_world *world = fake_world_create(3);
        fake_run run = run_with(world, FORCED, 3000);
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
static void a_rank_short_of_memory_is_told_to_all(void **state)
{
    (void)state;
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
            assert_true(now_ms() - begin < 15000);
            fake_world_destroy(world);
        }
        assert_true(n > 10 && n < 300);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(the_table_is_checked),
        cmocka_unit_test(group_operations_in_all_modes),
        cmocka_unit_test(reshards_in_all_modes),
        cmocka_unit_test(an_abort_reaches_everybody),
        cmocka_unit_test(a_wait_ends_at_its_deadline),
        cmocka_unit_test(a_rank_that_never_comes),
        cmocka_unit_test(options_must_agree),
        cmocka_unit_test(a_failing_transport_ends_every_rank),
        cmocka_unit_test(a_rank_short_of_memory_is_told_to_all),
    };
    return HD_RUN_CASES(cases, argc, argv);
}
