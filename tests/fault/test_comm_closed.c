/* A rank gives up, a second one hears of it and closes its communicator, and only then the third one looks: it is told
 * who gave up and why, not that the second one closed. The alarm to the third one is taken away, so that it is late. */
#include "case.h"

#include "runtime/comm/comm_private.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef enum wait_kind { IN_BARRIER, IN_SENDRECV, IN_LINK, IN_POLL, WAIT_KINDS } wait_kind;

typedef struct shared {
    _Atomic int raised; /* by rank 1, and the alarm to rank 0 is gone */
    wait_kind kind;
    heddle_status status; /* rank 0's */
    char sentence[256];
} shared;

/* For rank 2, which will not come. */
static heddle_status wait_for_it(heddle_comm *comm, wait_kind kind, hd_link *link)
{
    heddle_status st = HEDDLE_OK;
    char data[32];
    int done = 0;
    switch (kind) {
    case IN_BARRIER:
        return heddle_comm_barrier(comm);
    case IN_SENDRECV:
        return heddle_comm_sendrecv(comm, NULL, 0, -1, data, sizeof data, 2, HEDDLE_NO_STREAM);
    case IN_LINK:
        return hd_link_wait(link, 2, 0, 1, NULL, 0, hd_comm_deadline_ns(comm, 0), "the test");
    default:
        for (int round = 0; st == HEDDLE_OK && !done; round++) {
            st = hd_link_poll(link, 2, 0, 1, NULL, 0, &done);
            hd_comm_relax(comm, round);
        }
        return st;
    }
}

static heddle_status body(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    shared *all = arg;
    hd_link *link = NULL;
    int me = heddle_comm_rank(comm);
    HD_TRY(hd_link_create(&link, comm));
    HD_TRY(heddle_comm_barrier(comm));
    if (me == 1) {
        heddle_ignore(heddle_comm_abort(comm, "the soup is cold"));
        atomic_store(&comm->group->control[comm->member[0]]->alarm, 0);
        atomic_store(&all->raised, 1);
    }
    while (!atomic_load(&all->raised) || (me == 0 && !hd_group_left(comm->group, comm->member[2]))) {
        usleep(100);
    }
    if (me == 0) {
        all->status = wait_for_it(comm, all->kind, link);
        snprintf(all->sentence, sizeof all->sentence, "%s", heddle_last_error());
    }
out:
    hd_link_destroy(link);
    return st;
}

HD_CASE(close_hides_nobody)
{
    static const char *const transports[] = {"threads", "shm"};
    shared *all = hd_shared(sizeof *all);
    for (size_t t = 0; t < sizeof transports / sizeof transports[0]; t++) {
        for (wait_kind kind = 0; kind < WAIT_KINDS; kind++) {
            memset(all, 0, sizeof *all);
            all->kind = kind;
            HD_OK(heddle_run_ranks(3, transports[t], body, all));
            assert_int_equal(all->status, HEDDLE_ERR_PEER);
            assert_string_equal(all->sentence, "rank 1 gave up: the soup is cold");
        }
    }
}
