/* The wire peer between processes: whose memory peers have mapped and whose not, graphs, ranks that die, and calls that
 * fail on one rank. */
#include "left_over.h"
#include "own_stream.h"
#include "time_limit.h"

#include <heddle/peers.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REPLAYS = 20, MOST_CALLS = 120, STEP = 2, LACKS_NAMESPACE = 77 };

/* --- whose memory ------------------------------------------------------------------------------------------------- */

/* Buffers that were there before the plan are stored to; later ones, and memory of the caller's own, get a copy. Both
 * by turns, and differently on both ranks. */
HD_RANK_CASE(any_memory_will_do, "2 shm cuda peer", "2 shm cuda:0 peer")
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0}, late = {0};
    const hd_device *device = hd_comm_device(comm);
    void *own = NULL;
    HD_TRY(device_set_up(&late, comm, 0));
    HD_TRY(device->library->alloc(&own, device->number, sizeof f.got));
    for (int round = 0; round < 3; round++) {
        HD_TRY(whole(&late, round));
        HD_TRY(says_why(late.reshard, lands));
    }
    HD_TRY(device_set_up(&f, comm, 0)); /* now those of `late` are mapped */
    HD_TRY(whole(&late, 3));
    HD_TRY(says_why(late.reshard, direct)); /* although it is the same dst as before */
    int32_t *const dst[3] = {late.dst, f.dst, own};
    for (int round = 0; round < 9; round++) {
        const int which = (round + heddle_comm_rank(comm)) % 3;
        device_fixture g = f;
        g.dst = dst[which];
        HD_TRY(whole(&g, round));
        HD_TRY(says_why(g.reshard, which == 0 ? direct : lands));
    }
    void *const mapped = late.dst;
    heddle_buffer_free(comm, late.dst); /* others have it mapped: it is kept for the next one */
    HD_TRY(heddle_buffer_alloc((void **)&late.dst, comm, sizeof late.got, HEDDLE_SPACE_DEVICE));
    CHECK(late.dst == mapped);
    st = heddle_comm_barrier(comm);
out:
    device->library->free(own, device->number);
    device_tear_down(&f);
    device_tear_down(&late);
    return st;
}

/* --- memory that the program has mapped --------------------------------------------------------------------------- */

enum { PIECE = 4096, OFFSET = 512, BEYOND = PIECE - 64 };

/* As a framework does: a piece of its own on every rank, which all others have mapped, until the process ends. at: [2].
 */
static heddle_status map_pieces(void **at, heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    const hd_device *device = hd_comm_device(comm);
    const int rank = heddle_comm_rank(comm);
    heddle_device_name own, all[2];
    HD_TRY(device->library->alloc(&at[rank], device->number, 2 * PIECE));
    HD_TRY(device->library->share(&own, at[rank], device->number));
    HD_TRY(heddle_comm_allgather(comm, &own, all, sizeof own));
    st = device->library->map(&at[1 - rank], &all[1 - rank], device->number);
out:
    return st;
}

static heddle_status refuses(heddle_comm *comm, void *const *at)
{
    heddle_status st = HEDDLE_OK;
    const int rank = heddle_comm_rank(comm);
    int32_t on_host = 0;
    void *wrong[2] = {at[0], at[1]};
    CHECK(heddle_comm_lend_peers(comm, at, PIECE + (size_t)rank) == HEDDLE_ERR_MISMATCH && says("4096") &&
          says("4097"));
    CHECK(heddle_comm_lend_peers(comm, at, rank == 0 ? 0 : PIECE) == (rank == 0 ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER));
    CHECK(says("no bytes are lent"));
    wrong[rank] = &on_host;
    CHECK(heddle_comm_lend_peers(comm, rank == 0 ? wrong : at, PIECE) ==
          (rank == 0 ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER));
    CHECK(says("rank 0: what it lends as rank 0's, 4096 bytes at ") && says("is not memory of its device cuda:0"));
    wrong[rank] = at[rank];
    wrong[1 - rank] = NULL;
    CHECK(heddle_comm_lend_peers(comm, rank == 1 ? wrong : at, PIECE) ==
          (rank == 1 ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER));
    CHECK(says("rank 1: what it lends as rank 0's, 4096 bytes at (nil), is not memory of a device"));
    CHECK(heddle_comm_lend_peers(comm, at, (size_t)-1) == HEDDLE_ERR_ARG);
    CHECK(says("what it lends as rank 0's, 18446744073709551615 bytes at ") && says("ends in what is not memory of"));
    CHECK(heddle_comm_lend_peers(comm, at, (size_t)1 << 40) == HEDDLE_ERR_ARG && says("1099511627776 bytes"));
out:
    return st;
}

/* The same array before it is lent, which costs a copy, and of another plan after. */
HD_RANK_CASE(memory_may_be_lent, "2 shm cuda peer", "2 shm cuda:0 peer")
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0}, g = {0};
    void *at[2] = {NULL, NULL};
    int32_t *own = NULL;
    HD_TRY(map_pieces(at, comm));
    HD_TRY(device_set_up(&f, comm, 0));
    own = f.dst;
    f.dst = (int32_t *)((char *)at[heddle_comm_rank(comm)] + OFFSET);
    HD_TRY(whole(&f, 0));
    HD_TRY(says_why(f.reshard, lands));
    HD_TRY(refuses(comm, at));
    HD_TRY(heddle_comm_lend_peers(comm, at, PIECE));
    HD_TRY(device_set_up(&g, comm, 0));
    int32_t *const other = g.dst;
    g.dst = f.dst;
    for (int round = 1; round < 4; round++) {
        HD_TRY(whole(&g, round));
        HD_TRY(says_why(g.reshard, direct));
    }
    g.dst = (int32_t *)((char *)at[heddle_comm_rank(comm)] + BEYOND); /* begins in what is lent, and ends behind that */
    HD_TRY(whole(&g, 4));
    HD_TRY(says_why(g.reshard, lands));
    g.dst = other;
    st = heddle_comm_barrier(comm);
out:
    f.dst = own;
    device_tear_down(&f);
    device_tear_down(&g);
    return st;
}

HD_RANK_CASE(by_host_there_is_no_use_for_it, "2 shm cuda host")
{
    heddle_status st = HEDDLE_OK;
    void *at[2] = {&st, &st};
    CHECK(heddle_comm_lend_peers(comm, at, 8) == HEDDLE_ERR_UNSUPPORTED && says("wire host"));
    st = heddle_comm_barrier(comm);
out:
    return st;
}

/* --- graphs ------------------------------------------------------------------------------------------------------- */

/* One into mapped memory on rank 0 and into memory that is not on rank 1; other executions come between. */
HD_RANK_CASE(graphs_stay_valid, "2 shm cuda peer")
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0}, first = {0};
    device_sim sim;
    void *graph = NULL, *stream = NULL;
    HD_TRY(device_sim_get(&sim));
    HD_TRY(device_set_up(&first, comm, 0));
    HD_TRY(device_set_up(&f, comm, 0));
    HD_TRY(sim.stream_create(&stream));
    int32_t *const dst = heddle_comm_rank(comm) == 0 ? first.dst : f.dst;
    HD_TRY(sim.capture(stream, 1));
    HD_TRY(heddle_reshard_execute(f.reshard, f.src, dst, stream));
    HD_TRY(sim.record(stream, &graph));
    for (int round = 0; round < REPLAYS; round++) {
        device_fill(&f, round);
        HD_TRY(device_copy(comm, f.src, f.sent, sizeof f.sent, stream));
        HD_TRY(sim.replay(graph, stream));
        HD_TRY(device_copy(comm, f.got, dst, sizeof f.got, stream));
        HD_TRY(device_settle(comm, stream));
        HD_TRY(check_got(&f, round));
        HD_TRY(round % 4 == 0 ? whole(&f, 100 + round) : HEDDLE_OK);
    }
    HD_TRY(heddle_comm_poll(comm));
    st = heddle_comm_barrier(comm);
out:
    if (stream != NULL) {
        sim.graph_free(graph);
        device_stream_free(&sim, stream);
    }
    device_tear_down(&f);
    device_tear_down(&first);
    return st;
}

/* --- who does not come -------------------------------------------------------------------------------------------- */

/* Rank 1 is killed; rank 0 waits for its stream, and asks heddle nothing until that has ended. */
static heddle_status one_dies(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    own_stream o;
    (void)arg;
    HD_TRY(own_set_up(&o, comm, 0));
    for (int round = 0; round < 3; round++) {
        HD_TRY(heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream));
        HD_TRY(device_settle(comm, o.stream));
    }
    if (heddle_comm_rank(comm) == 1) {
        raise(SIGKILL);
    }
    const int64_t began_ns = hd_now_ns();
    HD_TRY(heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream));
    HD_TRY(device_settle(comm, o.stream));
    CHECK(hd_now_ns() - began_ns < hd_test_limit_ns(2));
    CHECK(heddle_reshard_wait(o.f.reshard) == HEDDLE_ERR_PEER && says("rank 1 died"));
    CHECK(heddle_reshard_execute(o.f.reshard, o.f.src, o.f.dst, o.stream) == HEDDLE_ERR_PEER);
out:
    own_tear_down(&o);
    return st;
}

HD_CASE(a_rank_that_dies_is_named)
{
    heddle_comm_options options = device_options("cuda", HEDDLE_WIRE_PEER);
    const int64_t began_ns = hd_now_ns();
    const holdings before = holdings_now();
    assert_int_equal(heddle_run_ranks_with(2, "shm", &options, one_dies, NULL), HEDDLE_ERR_PEER);
    assert_true(says("rank 1 was killed by signal 9"));
    assert_nothing_left(before);
    assert_true(hd_now_ns() - began_ns < hd_test_limit_ns(5));
}

static heddle_status has_no_events(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    device_fixture f = {0};
    (void)arg;
    CHECK(device_set_up(&f, comm, 0) == HEDDLE_ERR_UNSUPPORTED);
    CHECK(says("HEDDLE_DEVICE_SYNC=events is for ranks that are threads of one process"));
    st = heddle_comm_barrier(comm);
out:
    return st;
}

HD_CASE(events_are_for_threads)
{
    setenv("HEDDLE_DEVICE_SYNC", "events", 1);
    run_on(2, "shm", "cuda", HEDDLE_WIRE_PEER, has_no_events);
    unsetenv("HEDDLE_DEVICE_SYNC");
}

/* --- failures ----------------------------------------------------------------------------------------------------- */

/* Call `first` from the beginning fails, or call `then` from where the device is attached; 0: none. */
static heddle_status attaches_and_moves(heddle_comm *comm, const char *where, const device_sim *sim, int first,
                                        int then)
{
    device_fixture f = {0}, g = {0};
    if (sim != NULL) {
        sim->fail_at(first, 999);
    }
    heddle_status st = heddle_comm_attach_device(comm, where, HEDDLE_WIRE_AUTO);
    if (sim != NULL) {
        sim->fail_at(st == HEDDLE_OK ? then : 0, 999);
    }
    st = st == HEDDLE_OK ? device_set_up(&g, comm, 0) : st;
    st = st == HEDDLE_OK ? device_set_up(&f, comm, 0) : st;
    if (st == HEDDLE_OK) {
        int32_t *const own = f.dst;
        f.dst = g.dst;
        st = whole(&f, 1);
        f.dst = own;
        if (st == HEDDLE_ERR_DEVICE) { /* also of a copy that is not heddle's */
            heddle_ignore(heddle_comm_abort(comm, heddle_last_error()));
        } else if (st == HEDDLE_ERR_INTERNAL && heddle_comm_poll(comm) != HEDDLE_OK) {
            st = HEDDLE_ERR_PEER; /* nothing came, because somebody gave up meanwhile */
        }
    }
    st = st == HEDDLE_OK ? heddle_comm_barrier(comm) : st;
    if (f.comm != NULL) {
        device_tear_down(&f);
    }
    if (g.comm != NULL) {
        device_tear_down(&g);
    }
    return st;
}

/* The n-th call of rank 1 fails, of a communicator of its own each time, by turns of attaching and of what comes then
 * (attaching asks the device as often as there is time): both ranks hear of it or take another wire. */
static heddle_status each_fails(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    int failed = 0, elsewhere = 0;
    device_sim sim;
    heddle_comm_options options;
    const int rank = heddle_comm_rank(comm);
    (void)arg;
    CHECK(dlopen(HEDDLE_DEVICE_SIM "/libheddle_cuda.so", RTLD_NOW) != NULL);
    HD_TRY(device_sim_get(&sim));
    heddle_comm_options_init(&options);
    options.deadline_ms = 20000;
    for (int n = 0; n <= MOST_CALLS; n += STEP * hd_call_step()) { /* 0: none fails */
        char key[40];
        heddle_comm *own = NULL;
        snprintf(key, sizeof key, "fails-%d-%d", (int)getppid(), n);
        HD_TRY(heddle_comm_join(&own, key, rank, 2, &options));
        const int nth = rank == 1 ? n : 0, is_late = n / STEP % 2;
        const int64_t began_ns = hd_now_ns();
        st = attaches_and_moves(own, "cuda", &sim, is_late ? 0 : nth, is_late ? nth : 0);
        sim.fail_at(0, 0);
        failed += st != HEDDLE_OK;
        elsewhere += st == HEDDLE_OK && strstr(heddle_comm_describe(own), "wire host (not peer: ") != NULL;
        heddle_comm_destroy(own);
        CHECK(st == HEDDLE_OK || st == HEDDLE_ERR_PEER || st == HEDDLE_ERR_UNSUPPORTED ||
              (st == HEDDLE_ERR_DEVICE && rank == 1 && says("failed with error 999")));
        CHECK(n > 0 || (st == HEDDLE_OK && sim.device_bytes() == 0));
        CHECK(hd_now_ns() - began_ns < hd_test_limit_ns(5));
        HD_TRY(heddle_comm_barrier(comm));
    }
    CHECK(failed > MOST_CALLS / 15 / hd_call_step() && (elsewhere > 0 || hd_call_step() > 1));
    st = HEDDLE_OK;
out:
    return st;
}

HD_CASE(every_call_can_fail)
{
    HD_OK(heddle_run_ranks_with(2, "shm", NULL, each_fails, NULL));
}

/* --- pids --------------------------------------------------------------------------------------------------------- */

/* In a container of its own, whose first process this is. */
static int in_container(const char *key, int rank, const char *where)
{
    heddle_status st = HEDDLE_OK;
    heddle_comm *comm = NULL;
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.deadline_ms = (int)(hd_test_limit_ns(5) / 1000000);
    CHECK(getpid() == 1);
    HD_TRY(heddle_comm_join(&comm, key, rank, 2, &options));
    st = attaches_and_moves(comm, where, NULL, 0, 0);
out:
    if (st != HEDDLE_OK) {
        fprintf(stderr, "rank %d: %s\n", rank, heddle_last_error());
    }
    heddle_comm_destroy(comm);
    return st == HEDDLE_OK ? 0 : 1;
}

/* Both ranks are process 1, and the other one's addresses are not one's own: its memory is mapped, or another wire is
 * taken. Of ranks of one process that share a device nobody asks whether stores arrive. */
static void in_two_containers(const char *where)
{
    char key[40];
    snprintf(key, sizeof key, "one-%d", (int)getpid());
    for (int rank = 0; rank < 2; rank++) {
        const pid_t outside = fork();
        assert_true(outside >= 0);
        if (outside == 0) {
            int status = LACKS_NAMESPACE << 8;
            const pid_t first = unshare(CLONE_NEWPID) == 0 ? fork() : -1;
            if (first == 0) {
                _exit(in_container(key, rank, where));
            }
            _exit(first > 0 && waitpid(first, &status, 0) != first ? 1 : WIFEXITED(status) ? WEXITSTATUS(status) : 1);
        }
    }
    for (int rank = 0; rank < 2; rank++) {
        int status = -1;
        assert_true(wait(&status) > 0 && WIFEXITED(status));
        if (WEXITSTATUS(status) == LACKS_NAMESPACE) {
            hd_skip("pidns", "a namespace of pids is not permitted here");
        }
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

HD_CASE(equal_pids_are_two_processes)
{
    in_two_containers("cuda");
    in_two_containers("cuda:0");
}
