/* Run by tests/hosts/tcp.sh: ranks of two hosts that a communicator of the fake NCCL knows (heddle_comm_from_nccl). */
#include "nccl_sim.h"
#include "on_host.h"

enum { RANKS = 2 };

typedef struct lender {
    nccl_sim sim;
    nccl_id id;
    heddle_comm_options options;
} lender;

static heddle_status borrows(heddle_comm *launched, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const lender *l = arg;
    const int rank = heddle_comm_rank(launched);
    struct ncclComm *nccl = NULL;
    heddle_comm *comm = NULL;
    device_fixture f = {0};
    int32_t mine[1000], theirs[1000];
    CHECK(l->sim.set_device(rank) == 0 && l->sim.init(&nccl, RANKS, l->id, rank) == 0);
    HD_TRY(move_to_host(launched)); /* the fake's sockets are there, and stay */
    HD_TRY(heddle_comm_from_nccl(&comm, nccl, &l->options));
    CHECK(strstr(heddle_comm_describe(comm), "tcp") == heddle_comm_describe(comm));
    HD_TRY(device_set_up(&f, comm, 0));
    HD_TRY(three_rounds(&f));
    for (int i = 0; i < 1000; i++) {
        mine[i] = 1000 * rank + i;
    }
    HD_TRY(heddle_comm_sendrecv(comm, mine, sizeof mine, 1 - rank, theirs, sizeof theirs, 1 - rank, HEDDLE_NO_STREAM));
    for (int i = 0; i < 1000; i++) {
        CHECK(theirs[i] == 1000 * (1 - rank) + i);
    }
out:
    device_tear_down(&f);
    heddle_comm_destroy(comm);
    return st == HEDDLE_OK ? take_back(&l->sim, nccl, rank) : st;
}

HD_CASE(ranks_of_nccl_meet_between_hosts)
{
    lender l = {.sim = get_sim()};
    l.options = by_nccl(10);
    l.options.device = NULL;
    l.options.wire = HEDDLE_WIRE_AUTO;
    assert_int_equal(l.sim.get_id(&l.id), 0);
    HD_OK(heddle_run_ranks(RANKS, "shm", borrows, &l));
}
