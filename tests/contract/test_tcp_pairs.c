/* Messages between two ranks over TCP: in order, whatever their sizes, and large ones from place to place. */
#include "tcp_world.h"

#include <sys/resource.h>

/* A large message one way and a small one the other, then large ones both ways: nobody keeps a copy of those. */
static heddle_status pairs(heddle_comm *launched, void *arg)
{
    enum { LARGE = 24 << 20, SMALL = 100 };
    heddle_status st;
    world w;
    struct rusage before, after;
    heddle_comm_options options = plain(long_ms());
    char *out = malloc(LARGE), *in = malloc(LARGE);
    (void)arg;
    options.force_messages = 1;
    HD_TRY(listen_all(&w, launched, long_ms()));
    HD_TRY(open_comm(&w, &options));
    const int rank = w.meeting.rank, peer = 1 - rank;
    const size_t sends = rank == 0 ? LARGE : SMALL, receives = rank == 0 ? SMALL : LARGE;
    CHECK(out != NULL && in != NULL);
    memset(out, 1 + rank, LARGE);
    memset(in, 9, LARGE);
    HD_TRY(heddle_comm_sendrecv(w.comm, out, sends, peer, in, receives, peer, HEDDLE_NO_STREAM));
    CHECK(in[0] == 1 + peer && in[receives - 1] == 1 + peer && (rank == 1 || in[receives] == 9));
    HD_TRY(heddle_comm_sendrecv(w.comm, out, SMALL, peer, in, SMALL, peer, HEDDLE_NO_STREAM)); /* in order */
    CHECK(getrusage(RUSAGE_SELF, &before) == 0);
    HD_TRY(heddle_comm_sendrecv(w.comm, out, LARGE, peer, in, LARGE, peer, HEDDLE_NO_STREAM));
    CHECK(getrusage(RUSAGE_SELF, &after) == 0);
    CHECK(in[0] == 1 + peer && in[LARGE / 2] == 1 + peer && in[LARGE - 1] == 1 + peer);
    CHECK(after.ru_maxrss - before.ru_maxrss < LARGE / 1024 / 4);
out:
    free(out);
    free(in);
    close_world(&w);
    return st;
}

HD_CASE(large_messages_are_not_copied)
{
    hd_see_processes();
    HD_OK(heddle_run_ranks(2, "shm", pairs, NULL));
}
