/* Microseconds per barrier, per 64-byte allgather and per link round trip, on threads and shm.
 *
 *     bench_barrier [RANKS ...]      default 2 4 8
 *
 * Minimum and median of several batches; with more ranks than cores expect microseconds, not tens of nanoseconds.
 */
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 15, TURNS = 2000 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static heddle_status barriers(heddle_comm *comm, hd_link *link, uint64_t *sequence)
{
    (void)link;
    (void)sequence;
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < TURNS && st == HEDDLE_OK; i++) {
        st = heddle_comm_barrier(comm);
    }
    return st;
}

static heddle_status allgathers(heddle_comm *comm, hd_link *link, uint64_t *sequence)
{
    (void)link;
    (void)sequence;
    static _Thread_local char all[64 * 64];
    char own[64] = {0};
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < TURNS && st == HEDDLE_OK; i++) {
        st = heddle_comm_allgather(comm, own, all, sizeof own);
    }
    return st;
}

/* Everybody posts to everybody and waits for everybody: what a switch does. */
static heddle_status link_rounds(heddle_comm *comm, hd_link *link, uint64_t *sequence)
{
    heddle_status st = HEDDLE_OK;
    int n = heddle_comm_size(comm);
    int me = heddle_comm_rank(comm);
    int64_t deadline_ns = hd_comm_deadline_ns(comm, 0);
    for (int i = 0; i < TURNS; i++) {
        ++*sequence;
        for (int k = 1; k < n; k++) {
            HD_TRY(hd_link_post(link, (me + k) % n, 0, *sequence, NULL, 0));
        }
        for (int k = 1; k < n; k++) {
            HD_TRY(hd_link_wait(link, (me + k) % n, 0, *sequence, NULL, 0, deadline_ns, "bench"));
        }
    }
out:
    return st;
}

static heddle_status measure(heddle_comm *comm, const char *what, hd_link *link, uint64_t *sequence,
                             heddle_status (*body)(heddle_comm *, hd_link *, uint64_t *))
{
    heddle_status st = HEDDLE_OK;
    double us[BATCHES];
    for (int b = 0; b < BATCHES; b++) {
        HD_TRY(heddle_comm_barrier(comm));
        int64_t start_ns = hd_now_ns();
        HD_TRY(body(comm, link, sequence));
        us[b] = (double)(hd_now_ns() - start_ns) / 1000.0 / TURNS;
    }
    qsort(us, BATCHES, sizeof us[0], by_value);
    if (heddle_comm_rank(comm) == 0) {
        printf("  %-12s min %8.3f us   median %8.3f us\n", what, us[0], us[BATCHES / 2]);
    }
out:
    return st;
}

static heddle_status rank_main(heddle_comm *comm, void *arg)
{
    (void)arg;
    heddle_status st = HEDDLE_OK;
    hd_link *link = NULL;
    uint64_t sequence = 0;
    if (heddle_comm_rank(comm) == 0) {
        printf("%s\n", heddle_comm_describe(comm));
    }
    HD_TRY(hd_link_create(&link, comm));
    HD_TRY(measure(comm, "barrier", link, &sequence, barriers));
    HD_TRY(measure(comm, "allgather 64", link, &sequence, allgathers));
    HD_TRY(measure(comm, "links", link, &sequence, link_rounds));
out:
    hd_link_destroy(link);
    return st;
}

int main(int argc, char **argv)
{
    static const char *const transports[] = {"threads", "shm"};
    const char *usual[] = {"", "2", "4", "8"};
    int n = argc > 1 ? argc : 4;
    const char *const *ranks = argc > 1 ? (const char *const *)argv : usual;
    for (int t = 0; t < 2; t++) {
        for (int i = 1; i < n; i++) {
            heddle_status st = heddle_run_ranks(atoi(ranks[i]), transports[t], rank_main, NULL);
            if (st != HEDDLE_OK) {
                fprintf(stderr, "%s, %s ranks: %s\n", transports[t], ranks[i], heddle_last_error());
                return 1;
            }
        }
    }
    return 0;
}
