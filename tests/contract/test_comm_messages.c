/* Strided messages between ranks that cannot reach one another: forced, and on pretended hosts. */
#include "case.h"
#include "check.h"

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"

#include <stdlib.h>
#include <string.h>

static const char *const transports[] = {"threads", "shm"};

enum { ROWS = 6, RUN = 40, PITCH = 64 };

/* Rank r sends every rank p (itself too) ROWS rows of RUN bytes, strided by PITCH, of its block for p, as one message;
 * the receiver takes them as two: dense, 1 + 5 rows. */
static heddle_status exchange_rank(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    int n = heddle_comm_size(comm);
    int me = heddle_comm_rank(comm);
    heddle_message *m = calloc((size_t)n * 3, sizeof *m);
    unsigned char *src = malloc((size_t)n * ROWS * PITCH);
    unsigned char *dst = malloc((size_t)n * ROWS * RUN);
    hd_exchange *exchange = NULL;
    for (int p = 0; p < n; p++) {
        m[3 * p] = (heddle_message){.peer = p,
                                    .is_send = 1,
                                    .offset_bytes = (int64_t)p * ROWS * PITCH,
                                    .run_bytes = RUN,
                                    .nloops = 1,
                                    .count = {ROWS},
                                    .stride_bytes = {PITCH}};
        m[3 * p + 1] = (heddle_message){.peer = p, .offset_bytes = (int64_t)p * ROWS * RUN, .run_bytes = RUN};
        m[3 * p + 2] = (heddle_message){.peer = p,
                                        .offset_bytes = (int64_t)p * ROWS * RUN + RUN,
                                        .run_bytes = 4,
                                        .nloops = 2,
                                        .count = {ROWS - 1, RUN / 4},
                                        .stride_bytes = {RUN, 4}};
    }
    HD_TRY(hd_exchange_create(&exchange, comm, m, 3 * n));
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
    CHECK(hd_exchange_create(&exchange, comm, m, 3 * n) == wanted);
    HD_TRY(heddle_comm_barrier(comm));
out:
    hd_exchange_destroy(exchange);
    free(m);
    free(src);
    free(dst);
    return st;
}

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
    HD_TRY(exchange_rank(comm, NULL));
out:
    return st;
}

static void messages(void **state)
{
    (void)state;
    for (size_t t = 0; t < 2; t++) {
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

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {cmocka_unit_test(messages)};
    return HD_RUN_CASES(cases, argc, argv);
}
