/* heddle_comm_from_nccl: a communicator of the ranks that a communicator of NCCL has, and what goes wrong while it is
 * made. What is borrowed is left alone. */
#include "nccl_sim.h"
#include "time_limit.h"

#include <sched.h>

enum { RANKS = 2 };

typedef struct lender {
    nccl_sim sim;
    nccl_id id;
    heddle_comm_options options; /* of heddle_comm_from_nccl */
    int *device;                 /* [ranks] */
    int64_t fails_at;            /* a call of NCCL from then on */
    const char *by;              /* how ranks reach one another besides */
    int late;                    /* comes when all others wait; -1: none */
} lender;

static lender get_lender(int *device)
{
    lender out = {.sim = get_sim(), .device = device, .by = "", .late = -1};
    out.options = by_nccl(10);
    out.options.device = NULL;
    out.options.wire = HEDDLE_WIRE_AUTO;
    assert_int_equal(out.sim.get_id(&out.id), 0);
    return out;
}

/* Of the ranks of `launched`, which know nothing of devices. */
static heddle_status begin(struct ncclComm **out, const lender *l, const heddle_comm *launched)
{
    heddle_status st = HEDDLE_OK;
    int rank = heddle_comm_rank(launched);
    CHECK(l->sim.set_device(l->device[rank]) == 0);
    CHECK(l->sim.init(out, heddle_comm_size(launched), l->id, rank) == 0);
out:
    return st;
}

/* Found on its device although another one is the thread's. */
static heddle_status borrows(heddle_comm *launched, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const lender *l = arg;
    int rank = heddle_comm_rank(launched);
    struct ncclComm *nccl = NULL;
    heddle_comm *comm = NULL;
    device_fixture f = {0};
    HD_TRY(begin(&nccl, l, launched));
    CHECK(l->sim.set_device(0) == 0);
    usleep(rank == l->late ? 30000 : 0);
    HD_TRY(heddle_comm_from_nccl(&comm, nccl, &l->options));
    CHECK(heddle_comm_rank(comm) == rank && heddle_comm_size(comm) == heddle_comm_size(launched));
    CHECK(heddle_comm_device(comm) == l->device[rank]);
    CHECK(strstr(heddle_comm_describe(comm), "wire nccl (as asked for)") != NULL);
    CHECK(strstr(heddle_comm_describe(comm), l->by) == heddle_comm_describe(comm) || l->by[0] == 0);
    HD_TRY(device_set_up(&f, comm, 0));
    HD_TRY(three_rounds(&f));
out:
    device_tear_down(&f);
    heddle_comm_destroy(comm);
    return st == HEDDLE_OK ? take_back(&l->sim, nccl, rank) : st;
}

HD_CASE(ranks_are_those_of_nccl)
{
    lender l = get_lender((int[]){3, 1});
    HD_OK(heddle_run_ranks(RANKS, "shm", borrows, &l));
    HD_OK(heddle_run_ranks(RANKS, "threads", borrows, &l));
    HD_OK(heddle_run_ranks(1, "threads", borrows, &l));
    assert_int_equal(l.sim.comms(), 0);
}

/* Asked of the library itself, which is the last to look. */
HD_CASE(another_ranks_communicator_is_refused)
{
    static const struct {
        int rank, nranks, device;
        heddle_status wanted;
    } asked[] = {{0, 1, 1, HEDDLE_OK},
                 {1, 1, 1, HEDDLE_ERR_MISMATCH},
                 {0, 2, 1, HEDDLE_ERR_MISMATCH},
                 {0, 1, 2, HEDDLE_ERR_MISMATCH}};
    lender l = get_lender((int[]){1, 2});
    const heddle_device_messages *library = NULL;
    struct ncclComm *nccl = NULL;
    heddle_device_messages_fn open_library = NULL;
    void *handle = dlopen(HEDDLE_NCCL_SIM "/libheddle_nccl.so", RTLD_NOW | RTLD_LOCAL);
    assert_non_null(handle);
    *(void **)&open_library = dlsym(handle, HEDDLE_DEVICE_MESSAGES_LIBRARY);
    assert_non_null(open_library);
    HD_OK(open_library(&library, heddle_set_error));
    assert_int_equal(l.sim.set_device(1), 0);
    assert_int_equal(l.sim.init(&nccl, 1, l.id, 0), 0);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        char wanted[160];
        void *made = NULL;
        snprintf(wanted, sizeof wanted, "NCCL is rank 0 of 1 on cuda:1, heddle's is rank %d of %d on cuda:%d",
                 asked[i].rank, asked[i].nranks, asked[i].device);
        HD_FAILS(asked[i].wanted, library->borrow(&made, nccl, asked[i].rank, asked[i].nranks, asked[i].device));
        assert_true((asked[i].wanted == HEDDLE_OK) == (made != NULL));
        assert_true(made != NULL || says(wanted));
        if (made != NULL) {
            library->end(made, 0);
        }
    }
    assert_int_equal(l.sim.destroy(nccl), 0);
    assert_int_equal(l.sim.comms(), 0);
}

/* Rank 0 comes alone. What it had begun waits on until its NCCL is aborted, as the header says. */
static heddle_status comes_alone(heddle_comm *launched, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const lender *l = arg;
    const int is_stopped = l->options.interrupt != NULL;
    struct ncclComm *nccl = NULL;
    heddle_comm *comm = NULL;
    int64_t began_ns = hd_now_ns();
    HD_TRY(begin(&nccl, l, launched));
    if (heddle_comm_rank(launched) == 0) {
        CHECK(heddle_comm_from_nccl(&comm, nccl, &l->options) ==
              (is_stopped ? HEDDLE_ERR_INTERRUPTED : HEDDLE_ERR_TIMEOUT));
        CHECK(comm == NULL);
        CHECK(says(is_stopped ? "rank 0: interrupted while ranks met"
                              : "rank 0 of 2: not all ranks of the communicator of NCCL came before the deadline "
                                "(300 ms)"));
        CHECK(hd_now_ns() - began_ns < hd_test_limit_ns(4));
    }
    HD_TRY(heddle_comm_barrier(launched));
    CHECK(l->sim.abort(nccl) == 0);
out:
    return st;
}

HD_CASE(a_rank_that_does_not_come_is_said)
{
    lender l = get_lender((int[]){0, 1});
    l.options.deadline_ms = 300;
    HD_OK(heddle_run_ranks(RANKS, "shm", comes_alone, &l));
}

static int yes(void *arg)
{
    (void)arg;
    return 1;
}

/* Ctrl-C, while rank 0 waits for the others of NCCL. */
HD_CASE(waiting_for_ranks_can_be_interrupted)
{
    lender l = get_lender((int[]){0, 1});
    l.options.interrupt = yes;
    HD_OK(heddle_run_ranks(RANKS, "shm", comes_alone, &l));
}

/* Rank 1 moves to another namespace of users, so it shares no memory with rank 0. */
static heddle_status elsewhere(heddle_comm *launched, void *arg)
{
    heddle_status st = HEDDLE_OK;
    int moved = heddle_comm_rank(launched) == 0 || unshare(CLONE_NEWUSER) == 0, all[RANKS];
    HD_TRY(heddle_comm_allgather(launched, &moved, all, sizeof moved));
    st = all[1] ? borrows(launched, arg) : HEDDLE_OK; /* not allowed here */
out:
    return st;
}

HD_CASE(ranks_of_several_hosts_meet_by_tcp)
{
    lender l = get_lender((int[]){2, 0});
    l.by = "tcp";
    HD_OK(heddle_run_ranks(RANKS, "shm", elsewhere, &l));
    l.options.pretend_hosts = 2;
    HD_OK(heddle_run_ranks(RANKS, "shm", borrows, &l));
    for (l.late = 0; l.late < RANKS; l.late++) { /* one rank begins on the other's device, which may wait for it */
        HD_OK(heddle_run_ranks(RANKS, "threads", borrows, &l));
    }
}

/* Between hosts: rank 1 is gone when rank 0 comes to the next agreement. */
static heddle_status goes(heddle_comm *launched, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const lender *l = arg;
    struct ncclComm *nccl = NULL;
    heddle_comm *comm = NULL;
    HD_TRY(begin(&nccl, l, launched));
    HD_TRY(heddle_comm_from_nccl(&comm, nccl, &l->options));
    if (heddle_comm_rank(launched) == 1) {
        heddle_ignore(heddle_comm_abort(comm, "enough of this"));
    } else {
        CHECK(heddle_comm_barrier(comm) == HEDDLE_ERR_PEER && says("rank 1 gave up: enough of this"));
    }
    HD_TRY(heddle_comm_barrier(launched));
    CHECK(l->sim.abort(nccl) == 0);
out:
    heddle_comm_destroy(comm);
    return st;
}

HD_CASE(who_gives_up_on_another_host_is_heard)
{
    lender l = get_lender((int[]){0, 1});
    l.options.pretend_hosts = 2;
    HD_OK(heddle_run_ranks(RANKS, "shm", goes, &l));
}

/* Each rank says which of the others it is unlike. */
static heddle_status differs(heddle_comm *launched, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const lender *l = arg;
    heddle_comm_options options = l->options;
    struct ncclComm *nccl = NULL;
    heddle_comm *comm = NULL;
    HD_TRY(begin(&nccl, l, launched));
    options.pretend_hosts = heddle_comm_rank(launched);
    CHECK(heddle_comm_from_nccl(&comm, nccl, &options) == HEDDLE_ERR_MISMATCH);
    CHECK(says("rank 1 opens the communicator with pretend_hosts = 1, rank 0 with 0"));
    options.pretend_hosts = 0;
    options.device = "cuda:3";
    CHECK(heddle_comm_from_nccl(&comm, nccl, &options) == HEDDLE_ERR_MISMATCH);
    CHECK(says("on cuda:0, heddle's is rank") && says("on cuda:3"));
    options.wire = HEDDLE_WIRE_PEER;
    CHECK(heddle_comm_from_nccl(&comm, nccl, &options) == HEDDLE_ERR_ARG && says("wire is 1, wanted 2 or 0"));
    CHECK(comm == NULL && l->sim.destroy(nccl) == 0);
out:
    return st;
}

HD_CASE(options_that_differ_are_refused)
{
    lender l = get_lender((int[]){0, 0});
    HD_OK(heddle_run_ranks(RANKS, "shm", differs, &l));
}

static heddle_status went[RANKS];

static heddle_status tries(heddle_comm *launched, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const lender *l = arg;
    int rank = heddle_comm_rank(launched);
    struct ncclComm *nccl = NULL;
    heddle_comm *comm = NULL;
    HD_TRY(begin(&nccl, l, launched));
    HD_TRY(heddle_comm_barrier(launched));
    if (rank == 0) {
        l->sim.fail_at(l->fails_at, 3);
    }
    HD_TRY(heddle_comm_barrier(launched));
    went[rank] = heddle_comm_from_nccl(&comm, nccl, &l->options);
    CHECK((went[rank] == HEDDLE_OK) == (comm != NULL));
    heddle_comm_destroy(comm);
    HD_TRY(heddle_comm_barrier(launched));
    CHECK(l->sim.abort(nccl) == 0);
out:
    return st;
}

/* Whichever it is: no rank goes on alone, and what is borrowed is still the caller's to end. */
HD_CASE(every_call_may_fail)
{
    lender l = get_lender((int[]){0, 1});
    l.options.deadline_ms = 150;
    for (l.fails_at = 1; l.fails_at <= 28; l.fails_at += 3) {
        l.options.pretend_hosts = l.fails_at % 2 != 0 ? 0 : 2;
        HD_OK(heddle_run_ranks(RANKS, "threads", tries, &l));
        l.sim.fail_at(0, 0);
        assert_true(went[0] != HEDDLE_OK && went[1] != HEDDLE_OK);
        assert_int_equal(l.sim.comms(), 0);
    }
}
