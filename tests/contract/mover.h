/* A rank with a transfer of random items, and the loop over single bytes that it is compared with. */
#ifndef HD_TEST_MOVER_H
#define HD_TEST_MOVER_H

#include "case.h"

#include "runtime/move/move.h"
#include "runtime/verify/random.h"

#include <heddle/heddle.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, SRC_BYTES = 1 << 16, REGION_BYTES = 1 << 14, DST_BYTES = RANKS * REGION_BYTES, ROUNDS = 12 };

/* What every rank can work out alone. */
static inline unsigned char stamp(int rank, int64_t offset, int round)
{
    return (unsigned char)random_at((uint64_t)round, (uint64_t)rank, (uint64_t)offset);
}

/* A random copy into the destination's region of `from`: nested strides with gaps there, any order in the source. */
static inline hd_copy random_copy(uint64_t seed, int from, int to)
{
    random_source source = {random_at(seed, (uint64_t)from, (uint64_t)to)};
    hd_copy copy;
    memset(&copy, 0, sizeof copy);
    copy.run_bytes = random_between(&source, 1, 96);
    copy.nloops = (int)random_between(&source, 0, 3);
    int64_t dst = copy.run_bytes, src = copy.run_bytes;
    int src_loop[3] = {0, 1, 2};
    for (int i = copy.nloops - 1; i > 0; i--) {
        int j = (int)random_between(&source, 0, i), swap = src_loop[i];
        src_loop[i] = src_loop[j];
        src_loop[j] = swap;
    }
    for (int i = 0; i < copy.nloops; i++) {
        copy.count[i] = random_between(&source, 1, 5);
    }
    for (int i = copy.nloops - 1; i >= 0; i--) {
        copy.dst_stride_bytes[i] = dst + random_between(&source, 0, 1) * 3;
        dst = copy.dst_stride_bytes[i] * copy.count[i];
        int k = src_loop[i];
        copy.src_stride_bytes[k] = src + random_between(&source, 0, 1) * 5;
        src = copy.src_stride_bytes[k] * copy.count[k];
    }
    copy.dst_offset_bytes = from * REGION_BYTES + random_between(&source, 0, 63);
    copy.src_offset_bytes = random_between(&source, 0, SRC_BYTES - src - 1);
    return copy;
}

/* About one pair in four has nothing to move. */
static inline int moves(uint64_t seed, int from, int to)
{
    return random_at(~seed, (uint64_t)from, (uint64_t)to) % 4 != 0;
}

typedef void (*byte_fn)(void *ctx, int64_t src, int64_t dst);

static inline void each_byte(const hd_copy *copy, byte_fn fn, void *ctx)
{
    int64_t turns = 1;
    for (int k = 0; k < copy->nloops; k++) {
        turns *= copy->count[k];
    }
    for (int64_t turn = 0; turn < turns; turn++) {
        int64_t left = turn, src = copy->src_offset_bytes, dst = copy->dst_offset_bytes;
        for (int k = copy->nloops - 1; k >= 0; k--) {
            src += left % copy->count[k] * copy->src_stride_bytes[k];
            dst += left % copy->count[k] * copy->dst_stride_bytes[k];
            left /= copy->count[k];
        }
        for (int64_t i = 0; i < copy->run_bytes; i++) {
            fn(ctx, src + i, dst + i);
        }
    }
}

typedef struct expected {
    unsigned char *dst;
    int from, round;
    int64_t bytes;
} expected;

static inline void expect_byte(void *ctx, int64_t src, int64_t dst)
{
    expected *e = ctx;
    e->dst[dst] = stamp(e->from, src, e->round);
    e->bytes++;
}

static inline void count_byte(void *ctx, int64_t src, int64_t dst)
{
    (void)src;
    (void)dst;
    ++*(int64_t *)ctx;
}

/* --- a rank's arrays and transfer --------------------------------------------------------------------------------- */

typedef struct mover {
    heddle_comm *comm;
    int rank;
    hd_channel *channel;
    hd_transfer *transfer;
    unsigned char *src, *dst, *want;
    uint64_t seed;
} mover;

static const char *const refusals[] = {"", "it has other plans"};

static inline heddle_status mover_arrays(mover *m, heddle_comm *comm, uint64_t seed, int is_private)
{
    heddle_status st = HEDDLE_OK;
    m->comm = comm;
    m->rank = heddle_comm_rank(comm);
    m->seed = seed;
    if (is_private) {
        m->src = calloc(1, SRC_BYTES);
    } else {
        HD_TRY(heddle_buffer_alloc((void **)&m->src, comm, SRC_BYTES, HEDDLE_SPACE_HOST));
    }
    HD_TRY(heddle_buffer_alloc((void **)&m->dst, comm, DST_BYTES, HEDDLE_SPACE_HOST));
    m->want = calloc(1, DST_BYTES);
out:
    return st;
}

/* Lists of RANKS items. */
static inline void list_items(hd_transfer_spec *spec, hd_item *send, hd_item *recv, int rank, uint64_t seed)
{
    memset(spec, 0, sizeof *spec);
    spec->send.item = send;
    spec->recv.item = recv;
    for (int peer = 0; peer < RANKS; peer++) {
        if (moves(seed, rank, peer)) {
            send[spec->send.count++] = (hd_item){peer, random_copy(seed, rank, peer)};
        }
        if (moves(seed, peer, rank)) {
            recv[spec->recv.count++] = (hd_item){peer, random_copy(seed, peer, rank)};
        }
    }
    spec->src_bytes = SRC_BYTES;
    spec->dst_bytes = DST_BYTES;
    spec->footprint_bytes = SRC_BYTES + DST_BYTES;
}

static inline heddle_status mover_open(mover *m, heddle_comm *comm, uint64_t seed, int is_private, int64_t deadline_ms)
{
    heddle_status st = HEDDLE_OK;
    hd_item send[RANKS], recv[RANKS];
    hd_transfer_spec spec;
    const hd_channel_options options = {
        .deadline_ms = deadline_ms, .what = "test", .line = "of movers", .refusal = refusals, .nrefusals = 2};
    memset(m, 0, sizeof *m);
    HD_TRY(mover_arrays(m, comm, seed, is_private));
    list_items(&spec, send, recv, m->rank, seed);
    spec.any_src = is_private;
    HD_TRY(hd_channel_create(&m->channel, comm, &options));
    HD_TRY(hd_transfers_create(&m->transfer, m->channel, &spec, 1, HEDDLE_OK));
out:
    return st;
}

static inline void mover_close(mover *m, int is_private)
{
    hd_transfer_destroy(m->transfer);
    hd_channel_destroy(m->channel);
    if (is_private) {
        free(m->src);
    } else if (m->src != NULL) {
        heddle_buffer_free(m->comm, m->src);
    }
    if (m->dst != NULL) {
        heddle_buffer_free(m->comm, m->dst);
    }
    free(m->want);
}

static inline hd_leg leg_of(mover *m, int round)
{
    for (int64_t i = 0; i < SRC_BYTES; i++) {
        m->src[i] = stamp(m->rank, i, round);
    }
    memset(m->dst, 0xa5, DST_BYTES);
    return (hd_leg){m->transfer, m->src, m->dst};
}

static inline heddle_status check(mover *m, int round)
{
    memset(m->want, 0xa5, DST_BYTES);
    for (int from = 0; from < RANKS; from++) {
        hd_copy copy = random_copy(m->seed, from, m->rank);
        expected e = {m->want, from, round, 0};
        if (moves(m->seed, from, m->rank)) {
            each_byte(&copy, expect_byte, &e);
        }
    }
    for (int64_t i = 0; i < DST_BYTES; i++) {
        if (m->dst[i] != m->want[i]) {
            return hd_fail(HEDDLE_ERR_INTERNAL, "seed %llu round %d rank %d: byte %lld is %d, not %d",
                           (unsigned long long)m->seed, round, m->rank, (long long)i, m->dst[i], m->want[i]);
        }
    }
    return HEDDLE_OK;
}

static inline heddle_status check_counters(const mover *m, const int64_t *sent, int rounds)
{
    for (int to = 0; to < RANKS; to++) {
        int64_t bytes = 0;
        hd_copy copy = random_copy(m->seed, m->rank, to);
        if (to != m->rank && moves(m->seed, m->rank, to)) {
            each_byte(&copy, count_byte, &bytes);
        }
        if (sent[to] != bytes * rounds) {
            return hd_fail(HEDDLE_ERR_INTERNAL, "rank %d has sent %lld bytes to rank %d, not %lld", m->rank,
                           (long long)sent[to], to, (long long)(bytes * rounds));
        }
    }
    return HEDDLE_OK;
}

typedef struct how {
    uint64_t seed;
    int is_private;
} how;

#endif
