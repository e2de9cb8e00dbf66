/* Ranks that know one another already, by anything, and meet by TCP (runtime/comm/transport/tcp.h). */
#ifndef HD_TEST_TCP_WORLD_H
#define HD_TEST_TCP_WORLD_H

#include "case.h"
#include "check.h"
#include "runtime/comm/transport/tcp_post.h"
#include "time_limit.h"

#include <heddle/comm.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS = 4 };

/* Of a test in which nobody misses it. */
static inline int64_t long_ms(void)
{
    return hd_test_limit_ns(20) / 1000000;
}

typedef struct world {
    heddle_comm *launched;
    hd_tcp_place place[RANKS];
    hd_tcp_meeting meeting;
    int listener;
    hd_tcp *tcp; /* where a test looks into it; the communicator's once there is one */
    heddle_comm *comm;
} world;

static inline heddle_status listen_all(world *w, heddle_comm *launched, int64_t within_ms)
{
    heddle_status st = HEDDLE_OK;
    hd_tcp_place mine;
    memset(w, 0, sizeof *w);
    w->launched = launched;
    w->listener = -1;
    HD_TRY(hd_tcp_listen(&w->listener, &mine, 0));
    HD_TRY(heddle_comm_allgather(launched, &mine, w->place, sizeof mine));
    w->meeting = (hd_tcp_meeting){.rank = heddle_comm_rank(launched),
                                  .size = heddle_comm_size(launched),
                                  .place = w->place,
                                  .key = {11, 12},
                                  .deadline_ns = hd_now_ns() + within_ms * 1000000};
out:
    return st;
}

static inline heddle_status open_comm(world *w, const heddle_comm_options *options)
{
    heddle_status st;
    HD_TRY(hd_tcp_open(&w->tcp, &w->meeting, w->listener));
    const heddle_transport table = hd_tcp_table(w->tcp);
    st = heddle_comm_from_callbacks(&w->comm, &table, w->tcp, options);
    if (st != HEDDLE_OK) {
        hd_tcp_close(w->tcp);
    }
out:
    return st;
}

static inline void close_world(world *w)
{
    heddle_comm_destroy(w->comm);
    if (w->listener >= 0) {
        close(w->listener);
    }
}

static inline heddle_comm_options plain(int64_t within_ms)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.bind = HEDDLE_BIND_NONE;
    options.deadline_ms = within_ms;
    return options;
}

static inline int says(const char *wanted)
{
    return strstr(heddle_last_error(), wanted) != NULL;
}

static inline heddle_status passes_around(heddle_comm *comm, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    const int rank = heddle_comm_rank(comm), size = heddle_comm_size(comm), from = (rank + size - 1) % size;
    unsigned char *out = malloc(bytes + 1), *in = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++) {
        out[i] = (unsigned char)(i * 7 + (size_t)rank);
    }
    HD_TRY(heddle_comm_sendrecv(comm, out, bytes, (rank + 1) % size, in, bytes, from, HEDDLE_NO_STREAM));
    for (size_t i = 0; i < bytes; i++) {
        CHECK(in[i] == (unsigned char)(i * 7 + (size_t)from));
    }
    HD_TRY(heddle_comm_sendrecv(comm, out, bytes, rank, in, bytes, rank, HEDDLE_NO_STREAM));
    CHECK(bytes == 0 || memcmp(in, out, bytes) == 0);
out:
    free(out);
    free(in);
    return st;
}

#endif
