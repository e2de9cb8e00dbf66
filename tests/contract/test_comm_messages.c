/* Who reaches whom where messages are forced and on pretended hosts; strided messages by a transport. */
#include "callbacks_run.h"
#include "check.h"

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"

#include <stdlib.h>
#include <string.h>

static const char *const transports[] = {"threads", "shm", "tcp"};

enum { ROWS = 6, RUN = 40, PITCH = 64, RANKS = 3 };

/* Rank r sends every rank p (itself too) ROWS rows of RUN bytes, strided by PITCH, of its block for p; the receiver
 * takes them dense, by other loops. */
static heddle_status exchange_rank(heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    int n = heddle_comm_size(comm);
    int me = heddle_comm_rank(comm);
    heddle_message *m = calloc((size_t)n * 2, sizeof *m);
    unsigned char *src = malloc((size_t)n * ROWS * PITCH);
    unsigned char *dst = malloc((size_t)n * ROWS * RUN);
    hd_exchange *exchange = NULL;
    for (int p = 0; p < n; p++) {
        m[2 * p] = (heddle_message){.peer = p,
                                    .is_send = 1,
                                    .offset_bytes = (int64_t)p * ROWS * PITCH,
                                    .run_bytes = RUN,
                                    .nloops = 1,
                                    .count = {ROWS},
                                    .stride_bytes = {PITCH}};
        m[2 * p + 1] = (heddle_message){.peer = p,
                                        .offset_bytes = (int64_t)p * ROWS * RUN,
                                        .run_bytes = 4,
                                        .nloops = 2,
                                        .count = {ROWS, RUN / 4},
                                        .stride_bytes = {RUN, 4}};
    }
    HD_TRY(hd_exchange_create(&exchange, comm, m, 2 * n));
    for (int turn = 0; turn < 20; turn++) {
        for (int i = 0; i < n * ROWS * PITCH; i++) {
            src[i] = (unsigned char)(me * 31 + i + turn * 7);
        }
        memset(dst, 0, (size_t)n * ROWS * RUN);
        HD_TRY(hd_exchange_start(exchange, src, dst));
        int done = 0;
        for (int round = 0; !done; round++) {
            HD_TRY(hd_exchange_test(exchange, &done));
            hd_comm_relax(comm, done ? 0 : round);
        }
        for (int p = 0; p < n; p++) {
            for (int i = 0; i < ROWS * RUN; i++) {
                int from = me * ROWS * PITCH + i / RUN * PITCH + i % RUN;
                CHECK(dst[p * ROWS * RUN + i] == (unsigned char)(p * 31 + from + turn * 7));
            }
        }
    }
    hd_exchange_destroy(exchange);
    exchange = NULL;
    m[0].peer = me == n - 1 ? n : 0; /* one rank asks for nonsense: all are told */
    heddle_status wanted = me == n - 1 ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER;
    CHECK(hd_exchange_create(&exchange, comm, m, 2 * n) == wanted);
    HD_TRY(heddle_comm_barrier(comm));
out:
    hd_exchange_destroy(exchange);
    free(m);
    free(src);
    free(dst);
    return st;
}

/* Three messages each way between every two ranks, of sizes that only fit in order; two executions. */
static heddle_status order_rank(heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    enum { EACH = 3, ROOM = 100 };
    hd_exchange *exchange = NULL;
    heddle_message m[2 * EACH * RANKS];
    unsigned char src[RANKS * EACH * ROOM], dst[RANKS * EACH * ROOM];
    int me = heddle_comm_rank(comm), n = 0;
    for (int peer = 0; peer < RANKS; peer++) {
        for (int i = 0; i < EACH && peer != me; i++) {
            int64_t at = (peer * EACH + i) * ROOM, bytes = 10 + 30 * i;
            m[n++] = (heddle_message){.peer = peer, .is_send = 1, .offset_bytes = at, .run_bytes = bytes};
            m[n++] = (heddle_message){.peer = peer, .offset_bytes = at, .run_bytes = bytes};
        }
    }
    HD_TRY(hd_exchange_create(&exchange, comm, m, n));
    for (int turn = 0; turn < 2; turn++) {
        int done = 0;
        for (int k = 0; k < RANKS * EACH; k++) {
            memset(src + k * ROOM, 1 + me * 50 + (k % EACH) * 10 + turn, ROOM);
        }
        memset(dst, 0, sizeof dst);
        HD_TRY(hd_exchange_start(exchange, src, dst));
        for (int round = 0; !done; round++) {
            HD_TRY(hd_exchange_test(exchange, &done));
            hd_comm_relax(comm, done ? 0 : round);
        }
        for (int k = 0; k < RANKS * EACH; k++) {
            int peer = k / EACH, i = k % EACH, bytes = 10 + 30 * i;
            for (int b = 0; b < ROOM && peer != me; b++) {
                CHECK(dst[k * ROOM + b] == (b < bytes ? 1 + peer * 50 + i * 10 + turn : 0));
            }
        }
        HD_TRY(heddle_comm_barrier(comm));
    }
out:
    hd_exchange_destroy(exchange);
    return st;
}

static heddle_status aborted_rank(heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    hd_exchange *exchange = NULL;
    if (heddle_comm_rank(comm) == 1) {
        heddle_ignore(heddle_comm_abort(comm, "the soup is cold"));
    }
    CHECK(hd_exchange_create(&exchange, comm, NULL, 0) == HEDDLE_ERR_PEER);
    CHECK(strstr(heddle_last_error(), "the soup is cold") != NULL);
out:
    return st;
}

typedef heddle_status (*rank_fn)(heddle_comm *comm);

static int by_transport(heddle_comm *comm, heddle_status opened, int rank, void *arg)
{
    EXPECT(opened == HEDDLE_OK);
    EXPECT((*(rank_fn *)arg)(comm) == HEDDLE_OK);
    return 0;
}

static void run_by_transport(int size, int mode, rank_fn fn)
{
    run_ranks(size, mode, 20000, by_transport, &fn);
}

HD_CASE(messages_by_a_transport)
{
    for (int size = 1; size <= 5; size += 2) {
        for (int mode = 0; mode < MODES; mode++) {
            run_by_transport(size, mode, exchange_rank);
        }
    }
}

HD_CASE(messages_of_a_pair_match_in_order)
{
    run_by_transport(RANKS, FORCED, order_rank);
}

HD_CASE(none_begin_after_an_abort)
{
    run_by_transport(RANKS, FORCED, aborted_rank);
}

/* --- who reaches whom --------------------------------------------------------------------------------------------- */

static heddle_status hosts_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    int hosts = *(int *)arg;
    int n = heddle_comm_size(comm);
    int me = heddle_comm_rank(comm);
    const int *local = NULL;
    int nlocal = hd_comm_local_ranks(comm, &local);
    int reached = 0;
    for (int r = 0; r < n; r++) {
        reached += heddle_comm_reaches(comm, r);
        CHECK((hd_comm_import(comm, r, 65) != NULL) == heddle_comm_reaches(comm, r));
    }
    CHECK(reached == nlocal && heddle_comm_reaches(comm, me));
    CHECK(hosts == 0 ? nlocal == 1 : nlocal >= n / hosts && nlocal <= (n + hosts - 1) / hosts);
out:
    return st;
}

HD_CASE(messages_are_forced)
{
    for (size_t t = 0; t < sizeof transports / sizeof transports[0]; t++) {
        for (int n = 1; n <= 5; n += 2) {
            for (int hosts = 0; hosts <= 3 && hosts <= n; hosts++) {
                heddle_comm_options options;
                heddle_comm_options_init(&options);
                options.force_messages = hosts == 0;
                options.pretend_hosts = hosts;
                HD_OK(heddle_run_ranks_with(n, transports[t], &options, hosts_rank, &hosts));
            }
        }
    }
}
