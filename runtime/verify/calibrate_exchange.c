/* Exchanges: switches, gathers and sums of partial sums by reshards, hops by messages, between devices by reshards,
 * too; all groups of a size at once. */
#include "runtime/verify/calibrate.h"
#include "runtime/verify/judge.h"

#include <stdio.h>
#include <string.h>

enum { WIDTH = 256, GROUPS = 4 };

static const int64_t sizes[] = {4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20};
static const char *const names[] = {"switch", "hop", "gather", "sum"};

enum { SIZES = sizeof sizes / sizeof sizes[0], KINDS = sizeof names / sizeof names[0] };
enum { ROUGH_SIZES = 4 /* on devices */ };

static int smaller(int64_t a, int64_t b)
{
    return (int)(a < b ? a : b);
}

/* Where ranks reach it. */
static heddle_status hold_buffer(calibrate_run *run, int which, size_t bytes)
{
    if (run->there != NULL) {
        return calibrate_hold(run, which, HEDDLE_BF16, bytes / 2 + 1);
    }
    heddle_status st = heddle_buffer_alloc(&run->held[which], run->comm, bytes, HEDDLE_SPACE_HOST);
    if (st == HEDDLE_OK) {
        memset(run->held[which], 0, bytes);
    }
    return st;
}

/* --- reshards ----------------------------------------------------------------------------------------------------- */

/* A rank holds rows x WIDTH in bf16 where the mesh axis g shards t; axis o has a batch of its own for each group. The
 * bytes a rank sends are those of the sample, up to the rounding of rows. */
static void write_line(char *out, size_t out_bytes, const calibrate_run *run)
{
    static const char *const from[] = {"b@o,t@g", "", "b@o,t@g", "b@o,sum@g"};
    static const char *const to[] = {"b@o,s@g", "", "b@o", "b@o,t@g"};
    const int is_hop = run->sample->about.exchange == HEDDLE_EXCHANGE_RING; /* switches of each two neighbours */
    const heddle_exchange exchange = is_hop ? HEDDLE_EXCHANGE_ALL_TO_ALL : run->sample->about.exchange;
    const int64_t group = is_hop ? 2 : run->sample->about.ranks, others = group - 1, row = WIDTH * 2;
    /* Sent of m held: a switch m others / group, a gather m others, a sum of partial sums M others / group. */
    int64_t rows =
        exchange == HEDDLE_EXCHANGE_ALL_GATHER ? run->bytes / others / row : run->bytes * group / others / row;
    rows = exchange == HEDDLE_EXCHANGE_REDUCE_SCATTER ? rows / group : rows; /* of a part */
    const int64_t t = smaller(rows / group > 0 ? rows / group : 1, 16);
    const int64_t s = (rows / t + group - 1) / group * group;
    snprintf(out, out_bytes, "bf16[b=%lld t=%lld s=%lld c=%d] on [o=%lld g=%lld]: %s -> %s",
             (long long)(heddle_comm_size(run->comm) / group), (long long)(t * group), (long long)(s > 0 ? s : group),
             (int)WIDTH, (long long)(heddle_comm_size(run->comm) / group), (long long)group, from[exchange],
             to[exchange]);
}

/* No two by two: every rank but the last sends all it has to the next one. */
static void write_odd_hop(char *out, size_t out_bytes, const calibrate_run *run)
{
    const int ranks = heddle_comm_size(run->comm);
    const long long rows = run->bytes / (WIDTH * 2);
    int at = snprintf(out, out_bytes, "bf16[s=%lld c=%d] on [g=%d]: s@g", rows * (ranks - 1), (int)WIDTH, ranks);
    for (int to = 0; to < 2; to++) {
        for (int r = 0; r < ranks && at < (int)out_bytes; r++) {
            at += snprintf(out + at, out_bytes - (size_t)at, "%s%lld%s", r == 0 ? "(" : " ",
                           r == (to ? 0 : ranks - 1) ? 0 : rows,
                           r + 1 < ranks ? ""
                           : to          ? ")"
                                         : ") -> s@g");
        }
    }
}

static heddle_status open_reshard(calibrate_run *run)
{
    const heddle_space space = run->there != NULL ? HEDDLE_SPACE_DEVICE : HEDDLE_SPACE_HOST;
    const int is_odd_hop = run->sample->about.exchange == HEDDLE_EXCHANGE_RING && run->sample->about.ranks % 2 != 0;
    char text[HEDDLE_LINE_BYTES];
    heddle_reshard_line line;
    heddle_reshard_options options;
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    heddle_reshard_options_init(&options);
    options.tuning = HEDDLE_TUNING_RULES;
    options.space = space;
    options.device = run->there != NULL ? heddle_comm_device(run->comm) : 0;
    (is_odd_hop ? write_odd_hop : write_line)(text, sizeof text, run);
    heddle_status st = heddle_reshard_parse(&line, text);
    st = st == HEDDLE_OK ? heddle_reshard_create_line(&run->reshard, run->comm, &line, &options) : st;
    st = st == HEDDLE_OK ? heddle_reshard_get_info(&info, run->reshard) : st;
    if (st == HEDDLE_OK) {
        run->sample->about.bytes = (double)info.bytes_sent;
        snprintf(run->sample->wire, sizeof run->sample->wire, "%s", info.wire);
        st = hold_buffer(run, 0, info.src_bytes);
    }
    return st == HEDDLE_OK ? hold_buffer(run, 1, info.dst_bytes) : st;
}

static heddle_status run_reshard(calibrate_run *run)
{
    return heddle_reshard_execute(run->reshard, run->held[0], run->held[1],
                                  run->there != NULL ? run->there->stream : HEDDLE_NO_STREAM);
}

static void close_buffers(calibrate_run *run)
{
    heddle_reshard_destroy(run->reshard);
    heddle_buffer_free(run->comm, run->held[0]);
    heddle_buffer_free(run->comm, run->held[1]);
    heddle_comm_destroy(run->ring);
}

/* --- hops --------------------------------------------------------------------------------------------------------- */

static heddle_status open_hop(calibrate_run *run)
{
    heddle_mesh mesh;
    char text[64];
    const int group = run->sample->about.ranks;
    snprintf(text, sizeof text, "[o=%d g=%d]", heddle_comm_size(run->comm) / group, group);
    heddle_status st = heddle_mesh_parse(&mesh, text);
    st = st == HEDDLE_OK ? heddle_comm_axis_group(&run->ring, run->comm, &mesh, 1) : st;
    for (int i = 0; i < 2 && st == HEDDLE_OK; i++) {
        st = hold_buffer(run, i, (size_t)run->bytes);
    }
    return st;
}

static heddle_status run_hop(calibrate_run *run)
{
    const int size = heddle_comm_size(run->ring), rank = heddle_comm_rank(run->ring);
    return heddle_comm_sendrecv(run->ring, run->held[0], (size_t)run->bytes, (rank + 1) % size, run->held[1],
                                (size_t)run->bytes, (rank + size - 1) % size, HEDDLE_NO_STREAM);
}

static const calibrate_operation reshard = {open_reshard, run_reshard, close_buffers, NULL};
static const calibrate_operation hop = {open_hop, run_hop, close_buffers, NULL};

/* Divisors of the ranks that are made of the most ranks: 2, 4 ... and all. Up to GROUPS of them. */
static int groups_of(int *group, int ranks)
{
    int count = 0;
    for (int g = 2; g < ranks && count < GROUPS - 1; g *= 2) {
        if (ranks % g == 0) {
            group[count++] = g;
        }
    }
    if (ranks > 1) {
        group[count++] = ranks;
    }
    return count;
}

int calibrate_exchange_at(calibrate_run *run, int ranks, int index)
{
    int group[GROUPS];
    const int groups = groups_of(group, ranks), nsizes = run->there != NULL && run->is_rough ? ROUGH_SIZES : SIZES;
    if (index >= groups * nsizes * KINDS) {
        return 0;
    }
    heddle_measured *m = &run->sample->about;
    run->bytes = sizes[index % nsizes];
    m->ranks = group[index / nsizes % groups];
    m->exchange = (heddle_exchange)(index / nsizes / groups);
    m->bytes = (double)run->bytes;
    run->operation = m->exchange == HEDDLE_EXCHANGE_RING && run->there == NULL ? &hop : &reshard;
    run->sample->kind = names[m->exchange];
    snprintf(run->sample->what, sizeof run->sample->what, "%lld KiB, %d ranks", (long long)(run->bytes >> 10),
             m->ranks);
    return 1;
}
