/* What every communicator promises, on threads and shm with several rank counts, and on self. */
#include "case.h"
#include "check.h"

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/verify/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EVERYWHERE                                                                                                     \
    "1 threads", "2 threads", "3 threads", "4 threads", "8 threads", "1 shm", "2 shm", "3 shm", "4 shm", "8 shm",      \
        "1 self"

HD_RANK_CASE(barriers, EVERYWHERE)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < 200; i++) {
        HD_TRY(heddle_comm_barrier(comm));
    }
    CHECK(heddle_comm_rank(comm) >= 0 && heddle_comm_rank(comm) < heddle_comm_size(comm));
    CHECK(strstr(heddle_comm_describe(comm), "rank") != NULL);
    CHECK(heddle_comm_shared_cache_bytes(comm) >= 16384);
    for (int r = 0; r < heddle_comm_size(comm); r++) {
        heddle_peer peer = HEDDLE_EMPTY(heddle_peer);
        CHECK(heddle_comm_reaches(comm, r));
        HD_TRY(heddle_comm_get_peer(&peer, comm, r));
        CHECK(peer.reaches && peer.link == (r == heddle_comm_rank(comm) ? HEDDLE_LINK_SELF : HEDDLE_LINK_MEMORY));
        CHECK(strstr(peer.why, "this ") != NULL);
    }
    CHECK(!heddle_comm_reaches(comm, heddle_comm_size(comm)) && !heddle_comm_reaches(comm, -1));
out:
    return st;
}

/* No rank leaves a barrier before the last has come: a counter in rank 0's memory would show it. */
HD_RANK_CASE(barrier_orders_memory, EVERYWHERE)
{
    heddle_status st = HEDDLE_OK;
    void *memory = NULL;
    int n = heddle_comm_size(comm);
    uint64_t *names = calloc((size_t)n, sizeof *names);
    HD_TRY(heddle_buffer_alloc(&memory, comm, 4096, HEDDLE_SPACE_HOST));
    uint64_t name = hd_comm_export(comm, memory, 4096);
    CHECK(name != 0);
    HD_TRY(heddle_comm_allgather(comm, &name, names, sizeof name));
    volatile int *own = memory;
    for (int i = 1; i < 300; i++) {
        *own = i;
        HD_TRY(heddle_comm_barrier(comm));
        for (int r = 0; r < n; r++) {
            CHECK(*(volatile int *)hd_comm_import(comm, r, names[r]) == i);
        }
        HD_TRY(heddle_comm_barrier(comm));
    }
    heddle_buffer_free(comm, memory);
out:
    free(names);
    return st;
}

static unsigned char stamp(int rank, size_t i)
{
    return (unsigned char)((size_t)rank * 37 + i * 11 + i / 251);
}

HD_RANK_CASE(allgathers, EVERYWHERE)
{
    static const size_t sizes[] = {0, 1, 7, 64, 4096, 32768, 32769, 100001, 1 << 18};
    heddle_status st = HEDDLE_OK;
    size_t n = (size_t)heddle_comm_size(comm);
    unsigned char *own = malloc(1 << 18);
    unsigned char *all = malloc(n << 18);
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t i = 0; i < sizes[s]; i++) {
            own[i] = stamp(heddle_comm_rank(comm), i + s);
        }
        HD_TRY(heddle_comm_allgather(comm, own, all, sizes[s]));
        for (size_t r = 0; r < n; r++) {
            for (size_t i = 0; i < sizes[s]; i++) {
                CHECK(all[r * sizes[s] + i] == stamp((int)r, i + s));
            }
        }
    }
out:
    free(own);
    free(all);
    return st;
}

/* Whole ring, memory that peers reach and memory that they do not, sizes around the stage's. */
HD_RANK_CASE(rings, EVERYWHERE)
{
    static const size_t sizes[] = {0, 1, 4096, 32768, 32769, 65536, 65537, 300007};
    heddle_status st = HEDDLE_OK;
    int n = heddle_comm_size(comm);
    int me = heddle_comm_rank(comm);
    int before = (me + n - 1) % n;
    void *reachable = NULL;
    unsigned char *private = malloc(300007);
    unsigned char *got = malloc(300007);
    HD_TRY(heddle_buffer_alloc(&reachable, comm, 300007, HEDDLE_SPACE_HOST));
    for (size_t turn = 0; turn < 2 * sizeof sizes / sizeof sizes[0]; turn++) {
        size_t bytes = sizes[turn / 2];
        unsigned char *own = turn % 2 ? private : reachable;
        for (size_t i = 0; i < bytes; i++) {
            own[i] = stamp(me, i + turn);
        }
        memset(got, 0xee, bytes);
        HD_TRY(heddle_comm_sendrecv(comm, own, bytes, (me + 1) % n, got, bytes, before, HEDDLE_NO_STREAM));
        for (size_t i = 0; i < bytes; i++) {
            CHECK(got[i] == stamp(before, i + turn));
        }
    }
    if (n > 1) { /* a chain: the ends have one side only */
        int passed = me;
        int heard = -1;
        HD_TRY(heddle_comm_sendrecv(comm, &passed, sizeof passed, me + 1 < n ? me + 1 : -1, &heard, sizeof heard,
                                    me > 0 ? me - 1 : -1, HEDDLE_NO_STREAM));
        CHECK(heard == me - 1);
    }
    heddle_buffer_free(comm, reachable);
out:
    free(private);
    free(got);
    return st;
}

/* From rank 0 to rank 1: nothing where something is expected, and the other way round; then a message that fits. */
HD_RANK_CASE(sizes_differ, EVERYWHERE)
{
    static const size_t sizes[][2] = {{0, 5}, {5, 0}, {70000, 40000}, {40000, 70000}, {70000, 70000}};
    heddle_status st = HEDDLE_OK;
    int n = heddle_comm_size(comm), me = heddle_comm_rank(comm);
    int to = n > 1 && me == 0 ? 1 : -1, from = me == 1 ? 0 : -1;
    unsigned char *own = malloc(70000), *got = malloc(70000);
    for (size_t turn = 0; turn < sizeof sizes / sizeof sizes[0]; turn++) {
        int fits = sizes[turn][0] == sizes[turn][1];
        memset(own, stamp(me, turn), 70000);
        memset(got, 0xee, 70000);
        st = heddle_comm_sendrecv(comm, own, sizes[turn][0], to, got, sizes[turn][1], from, HEDDLE_NO_STREAM);
        CHECK(st == (fits || (to < 0 && from < 0) ? HEDDLE_OK : HEDDLE_ERR_MISMATCH));
        CHECK(got[0] == (fits && from == 0 ? stamp(0, turn) : 0xee) && got[69999] == got[0]);
    }
    if (n > 1) {
        CHECK(heddle_comm_sendrecv(comm, own, 1, me, got, 1, (me + 1) % n, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
        CHECK(heddle_comm_sendrecv(comm, NULL, 0, -1, got, 1, me, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    }
    st = HEDDLE_OK;
out:
    free(own);
    free(got);
    return st;
}

HD_RANK_CASE(sums, EVERYWHERE)
{
    enum { ELEMS = 10007 };
    heddle_status st = HEDDLE_OK;
    int n = heddle_comm_size(comm);
    int me = heddle_comm_rank(comm);
    float *f = malloc(ELEMS * sizeof *f);
    double *d = malloc(ELEMS * sizeof *d);
    int64_t *k = malloc(ELEMS * sizeof *k);
    for (int i = 0; i < ELEMS; i++) {
        f[i] = (float)(i * 0.1 + me * 1e4);
        d[i] = i * 0.1 + me * 1e8;
        k[i] = (int64_t)i - me * 3;
    }
    HD_TRY(heddle_comm_allreduce_sum(comm, f, ELEMS, HEDDLE_F32));
    HD_TRY(heddle_comm_allreduce_sum(comm, d, ELEMS, HEDDLE_F64));
    HD_TRY(heddle_comm_allreduce_sum(comm, k, ELEMS, HEDDLE_I64));
    HD_TRY(heddle_comm_allreduce_sum(comm, k, 0, HEDDLE_I64));
    for (int i = 0; i < ELEMS; i++) {
        volatile float wanted_f = (float)(i * 0.1);
        volatile double wanted_d = i * 0.1;
        int64_t wanted_k = i;
        for (int r = 1; r < n; r++) {
            wanted_f += (float)(i * 0.1 + r * 1e4);
            wanted_d += i * 0.1 + r * 1e8;
            wanted_k += i - r * 3;
        }
        CHECK(f[i] == wanted_f && d[i] == wanted_d && k[i] == wanted_k);
    }
    CHECK(heddle_comm_allreduce_sum(comm, f, 1, HEDDLE_BF16) == HEDDLE_ERR_ARG);
out:
    free(f);
    free(d);
    free(k);
    return st;
}

/* In a ring the one before may be two posts ahead: words are those of the latest post. */
HD_RANK_CASE(links, EVERYWHERE)
{
    enum { TURNS = 10000 };
    heddle_status st = HEDDLE_OK;
    int n = heddle_comm_size(comm);
    int me = heddle_comm_rank(comm);
    int turns = n > 2 ? TURNS / 10 : TURNS;
    int64_t deadline_ns = hd_comm_deadline_ns(comm, 30000);
    for (int again = 0; again < 3; again++) { /* inboxes are used again: old posts must not show */
        hd_link *link = NULL;
        HD_TRY(hd_link_create(&link, comm));
        int arrived = 1;
        st = hd_link_poll(link, (me + 1) % n, 2, 1, NULL, 0, &arrived);
        for (uint64_t s = 1; s <= (uint64_t)turns && st == HEDDLE_OK && !arrived; s++) {
            uint64_t words[3] = {s * 3, (uint64_t)me, 7};
            st = hd_link_post(link, (me + 1) % n, (int)(s % 2), s, words, 3);
            if (st == HEDDLE_OK) {
                st = hd_link_wait(link, (me + n - 1) % n, (int)(s % 2), s, words, 3, deadline_ns, "ping");
            }
            if (st == HEDDLE_OK && (words[0] < s * 3 || words[1] != (uint64_t)((me + n - 1) % n))) {
                st = hd_fail(HEDDLE_ERR_INTERNAL, "ping %llu", (unsigned long long)s);
            }
        }
        CHECK(!arrived);
        hd_link_destroy(link);
        HD_TRY(st);
    }
out:
    return st;
}

HD_RANK_CASE(buffers, EVERYWHERE)
{
    heddle_status st = HEDDLE_OK;
    void *buffer[40] = {NULL};
    random_source source = {12345 + (uint64_t)heddle_comm_rank(comm)};
    for (int turn = 0; turn < hd_rounds(400); turn++) {
        int i = (int)random_between(&source, 0, 39);
        size_t bytes = (size_t)random_between(&source, 4, turn % 50 == 0 ? 3000000 : 20000);
        if (buffer[i] != NULL) {
            CHECK(*(int *)buffer[i] == i);
            heddle_buffer_free(comm, buffer[i]);
            buffer[i] = NULL;
            continue;
        }
        HD_TRY(heddle_buffer_alloc(&buffer[i], comm, bytes, HEDDLE_SPACE_HOST));
        CHECK((uintptr_t)buffer[i] % 4096 == 0);
        CHECK(bytes < (2 << 20) || (uintptr_t)buffer[i] % (2 << 20) == 0);
        memset(buffer[i], 0xab, bytes);
        *(int *)buffer[i] = i;
    }
    heddle_buffer_free(comm, NULL);
    void *huge = NULL;
    CHECK(heddle_buffer_alloc(&huge, comm, (size_t)1 << 45, HEDDLE_SPACE_HOST) == HEDDLE_ERR_NOMEM);
    CHECK(strstr(heddle_last_error(), "35184372088832") != NULL);
    CHECK(heddle_buffer_alloc(&huge, comm, SIZE_MAX - 100, HEDDLE_SPACE_HOST) == HEDDLE_ERR_NOMEM);
    size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    CHECK(heddle_buffer_alloc(&huge, comm, memory, HEDDLE_SPACE_HOST) == HEDDLE_ERR_NOMEM);
    CHECK(heddle_buffer_alloc(&huge, comm, 1, HEDDLE_SPACE_DEVICE) == HEDDLE_ERR_UNSUPPORTED);
    HD_TRY(heddle_comm_barrier(comm));
    for (int i = 0; i < 40 && heddle_comm_size(comm) == 1; i++) { /* of many ranks they go with heddle_run_ranks */
        heddle_buffer_free(comm, buffer[i]);
    }
out:
    return st;
}

HD_RANK_CASE(names, EVERYWHERE)
{
    heddle_status st = HEDDLE_OK;
    int n = heddle_comm_size(comm);
    int me = heddle_comm_rank(comm);
    uint64_t names[64];
    void *buffer = NULL;
    char on_stack[16];
    const int *local = NULL;
    CHECK(hd_comm_local_ranks(comm, &local) == n && local[0] == 0 && local[n - 1] == n - 1);
    CHECK(hd_comm_peer_pid(comm, me) == getpid());
    HD_TRY(heddle_buffer_alloc(&buffer, comm, 100000, HEDDLE_SPACE_HOST));
    ((int *)buffer)[5000] = 100 + me;
    CHECK(hd_comm_export(comm, buffer, 0) != 0 && hd_comm_export(comm, NULL, 0) != 0);
    CHECK((hd_comm_export(comm, on_stack, sizeof on_stack) != 0) == hd_comm_shares_address_space(comm));
    uint64_t name = hd_comm_export(comm, (char *)buffer + 20000, 4);
    HD_TRY(heddle_comm_allgather(comm, &name, names, sizeof name));
    for (int r = 0; r < n; r++) {
        CHECK(*(int *)hd_comm_import(comm, r, names[r]) == 100 + r);
    }
    CHECK(hd_comm_import(comm, 0, 0) == NULL);
    HD_TRY(heddle_comm_barrier(comm));
    heddle_buffer_free(comm, buffer);
out:
    return st;
}
