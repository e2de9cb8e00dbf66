/* Ranks of one host or several that the environment tells who they are and where rank 0 is. They hear from it where
 * the others listen (tcp_gather.h), connect (tcp.h), and share memory with those of their host (callbacks.c). */
#include "runtime/comm/ground/launcher.h"
#include "runtime/comm/transport/run.h"
#include "runtime/comm/transport/tcp_gather.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SECRET_CHARS = 16 };

/* Everybody's places by rank 0, then a line between every two. */
static heddle_status connect_all(heddle_comm **out, hd_tcp_gathering *g, const heddle_comm_options *options,
                                 int is_local)
{
    heddle_status st = HEDDLE_OK;
    int listener = -1;
    hd_tcp *tcp = NULL;
    hd_tcp_place *place = NULL;
    hd_tcp_meeting m = {.rank = g->rank,
                        .size = g->size,
                        .deadline_ns = g->patience.deadline_ns,
                        .interrupt = g->patience.interrupt,
                        .dead = g->patience.dead};
    HD_TRY(hd_alloc((void **)&place, (size_t)g->size, sizeof *place, "places of the ranks"));
    if (g->size > 1) {
        HD_TRY(hd_tcp_listen(&listener, &place[g->rank], is_local));
        HD_TRY(hd_tcp_gather(place, m.key, g));
    }
    m.place = place;
    m.star = g->size > 1 ? &g->star : NULL;
    HD_TRY(hd_tcp_open(&tcp, &m, listener));
    const heddle_transport table = hd_tcp_table(tcp);
    HD_TRY(heddle_comm_from_callbacks(out, &table, tcp, options));
    tcp = NULL; /* the communicator's */
out:
    hd_tcp_star_free(&g->star); /* the others see that this rank is gone, if it is */
    hd_tcp_close(tcp);
    hd_free(place);
    if (listener >= 0) {
        close(listener);
    }
    return st;
}

/* --- from the environment ----------------------------------------------------------------------------------------- */

/* One that is easy to guess can be guessed by whoever reaches the port. */
static heddle_status check_secret(const hd_launch *l)
{
    char found[64] = "is not set";
    if (l->secret_chars >= SECRET_CHARS) {
        return HEDDLE_OK;
    }
    if (l->secret_chars > 0) {
        snprintf(found, sizeof found, "has %d characters", l->secret_chars);
    }
    return hd_fail(HEDDLE_ERR_ARG,
                   "tcp: HEDDLE_KEY %s: wanted a secret of at least %d, the same on all ranks, or whoever reaches the "
                   "port is let in (openssl rand -hex 16 makes one)",
                   found, (int)SECRET_CHARS);
}

/* Rank 0's, where all look for it. */
static heddle_status open_port(int *listener, int port)
{
    *listener = hd_tcp_bind(port, 0);
    return *listener >= 0 ? HEDDLE_OK
                          : hd_fail(HEDDLE_ERR_TRANSPORT,
                                    "tcp: rank 0 cannot listen at port %d: %s (HEDDLE_PORT, on all ranks, is another "
                                    "one)",
                                    port, strerror(errno));
}

heddle_status hd_open_tcp(heddle_comm **out, const heddle_comm_options *options)
{
    heddle_status st = HEDDLE_OK;
    hd_launch l;
    hd_launch_place at;
    heddle_comm_options checked;
    hd_tcp_gathering g = {.listener = -1};
    HD_TRY(hd_options_check(&checked, options));
    HD_TRY(hd_launch_read_local(&l));
    if (l.name == NULL) {
        return hd_fail(
            HEDDLE_ERR_UNSUPPORTED,
            "tcp: the environment names no ranks: wanted HEDDLE_RANK and HEDDLE_SIZE, or RANK and WORLD_SIZE "
            "(torchrun), with HEDDLE_KEY, MASTER_ADDR and MASTER_PORT; heddle_run_ranks starts ranks itself");
    }
    HD_TRY(check_secret(&l));
    HD_TRY(hd_launch_read_place(&at));
    g.rank = l.rank;
    g.size = l.size;
    g.host = at.host;
    g.port = at.port;
    g.patience = (hd_tcp_patience){.deadline_ns = hd_now_ns() + hd_options_deadline_ms(&checked) * 1000000,
                                   .interrupt = hd_options_interrupt(&checked)};
    hd_secret_of(&g.secret, l.key, strlen(l.key));
    HD_TRY(g.rank == 0 && g.size > 1 ? open_port(&g.listener, g.port) : HEDDLE_OK);
    st = connect_all(out, &g, &checked, 0);
out:
    (void)hd_tcp_drop(g.listener);
    return st;
}

/* --- started by heddle_run_ranks ---------------------------------------------------------------------------------- */

static heddle_status meet_started(heddle_comm **out, hd_run *run, int rank, const char *key)
{
    uint8_t port[2];
    hd_tcp_gathering g = {
        .rank = rank,
        .size = run->nranks,
        .host = "127.0.0.1",
        .listener = run->listener,
        .patience = {.deadline_ns = hd_now_ns() + hd_options_deadline_ms(&run->options) * 1000000,
                     .interrupt = hd_options_interrupt(&run->options),
                     .dead = &run->shared->dead},
    };
    if (hd_tcp_port(run->listener, port) != 0) {
        return hd_fail(HEDDLE_ERR_TRANSPORT, "no port to listen at: %s", strerror(errno));
    }
    g.port = port[0] * 256 + port[1];
    if (rank != 0) {
        close(run->listener);
        g.listener = -1;
    }
    hd_secret_of(&g.secret, key, strlen(key));
    const heddle_status st = connect_all(out, &g, &run->options, 1);
    (void)hd_tcp_drop(g.listener);
    return st;
}

/* The listener is there before any rank is: the port is nobody else's. */
static heddle_status run_tcp(hd_run *run)
{
    heddle_status st;
    run->meet = meet_started;
    run->listener = hd_tcp_bind(0, 1);
    if (run->listener < 0) {
        return hd_fail(HEDDLE_ERR_TRANSPORT, "no port to listen at: %s", strerror(errno));
    }
    st = hd_run_processes(run);
    close(run->listener);
    return st;
}

const hd_transport hd_transport_tcp = {.name = "tcp", .open = hd_open_tcp, .run = run_tcp};
