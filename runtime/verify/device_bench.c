#include "runtime/verify/device_bench.h"

#include "runtime/verify/device_array.h"
#include "runtime/verify/judge.h"
#include "runtime/verify/samples.h"

#include <heddle/sys/device.h>
#include <stdio.h>
#include <stdlib.h>

/* Twice the cache of today's largest devices; a sample lasts so long that its end, which the host looks for every
 * now and then, does not count. */
enum { COLD_BYTES = 256 << 20, LEAST_SETS = 2, MOST_SETS = 64, SAMPLE_MS = 10, MOST_REPEATS = 1000, TURNS = 4 };

typedef struct bench {
    heddle_comm *comm;
    heddle_reshard *reshard;
    heddle_reshard_info info;
    heddle_stream stream;
    void *src[MOST_SETS], *dst[MOST_SETS];
    int sets, next; /* arrays are used by turns */
    int64_t repeats;
    double *ms[2]; /* of the reshard and of the copy, per execution */
    int samples;
} bench;

/* The same on every rank. */
static heddle_status largest(double *value, heddle_comm *comm)
{
    return samples_slowest(value, 1, comm);
}

static heddle_status make_plan(bench *b, const heddle_reshard_line *line, const heddle_reshard_options *asked)
{
    heddle_reshard_options options;
    heddle_reshard_options_init(&options);
    if (asked != NULL) {
        options = *asked;
    }
    options.space = HEDDLE_SPACE_DEVICE;
    options.device = heddle_comm_device(b->comm);
    b->info.struct_bytes = sizeof b->info;
    heddle_status st = heddle_reshard_create_line(&b->reshard, b->comm, line, &options);
    return st == HEDDLE_OK ? heddle_reshard_get_info(&b->info, b->reshard) : st;
}

static heddle_status make_arrays(bench *b)
{
    double bytes = (double)(b->info.src_bytes + b->info.dst_bytes);
    heddle_status st = largest(&bytes, b->comm);
    const double wanted = bytes > 0 ? COLD_BYTES / bytes + 1 : 1;
    b->sets = wanted > MOST_SETS ? MOST_SETS : wanted > LEAST_SETS ? (int)wanted : LEAST_SETS;
    for (int i = 0; i < b->sets && st == HEDDLE_OK; i++) {
        st = heddle_buffer_alloc(&b->src[i], b->comm, b->info.src_bytes + 1, HEDDLE_SPACE_DEVICE);
        st =
            st == HEDDLE_OK ? heddle_buffer_alloc(&b->dst[i], b->comm, b->info.dst_bytes + 1, HEDDLE_SPACE_DEVICE) : st;
    }
    return st;
}

/* One execution of what is timed: enqueued. */
static heddle_status enqueue(bench *b, int is_copy)
{
    const int at = b->next, after = (at + 1) % b->sets;
    b->next = after;
    return is_copy
               ? heddle_comm_device_table(b->comm)->copy(b->dst[after], 0, b->dst[at], 0, (int64_t)b->info.dst_bytes, 1,
                                                         heddle_comm_device(b->comm), b->stream)
               : heddle_reshard_execute(b->reshard, b->src[at], b->dst[at], b->stream);
}

static heddle_status sample(double *ms, bench *b, int is_copy)
{
    heddle_status st = heddle_comm_barrier(b->comm);
    const double start = samples_now_ms();
    for (int64_t i = 0; i < b->repeats && st == HEDDLE_OK; i++) {
        st = enqueue(b, is_copy);
    }
    st = st == HEDDLE_OK ? judge_device_settle(b->comm, b->stream) : st;
    *ms = (samples_now_ms() - start) / (double)b->repeats;
    return st;
}

/* Warm, and how many executions make a sample. */
static heddle_status prepare(bench *b)
{
    double ms = 0;
    heddle_status st = HEDDLE_OK;
    b->repeats = 2;
    for (int turn = 0; turn < 2 && st == HEDDLE_OK; turn++) {
        st = sample(&ms, b, 1);
        st = st == HEDDLE_OK ? sample(&ms, b, 0) : st;
    }
    st = st == HEDDLE_OK ? largest(&ms, b->comm) : st;
    const double wanted = ms > 0 ? SAMPLE_MS / ms : MOST_REPEATS;
    b->repeats = wanted > MOST_REPEATS ? MOST_REPEATS : wanted > 1 ? (int64_t)wanted : 1;
    return st;
}

/* Go on? The same on every rank. */
static heddle_status more(int *go_on, const bench *b, const heddle_bench_options *options, double start_ms)
{
    const int64_t rounds = b->samples / TURNS;
    double wants = rounds < options->min_rounds ||
                   (rounds < options->max_rounds && samples_now_ms() - start_ms < (double)options->budget_ms);
    heddle_status st = largest(&wants, b->comm);
    *go_on = wants > 0;
    return st;
}

static heddle_status measure(bench *b, const heddle_bench_options *options)
{
    const double start_ms = samples_now_ms();
    const size_t most = (size_t)options->max_rounds * TURNS;
    int go_on = 1;
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < 2 && st == HEDDLE_OK; i++) {
        b->ms[i] = calloc(most, sizeof *b->ms[i]);
        st = b->ms[i] == NULL ? judge_no_memory("times", (double)most * (double)sizeof *b->ms[i]) : HEDDLE_OK;
    }
    while (st == HEDDLE_OK && go_on) {
        for (int turn = 0; turn < TURNS && st == HEDDLE_OK; turn++, b->samples++) {
            st = sample(&b->ms[0][b->samples], b, 0);
            st = st == HEDDLE_OK ? sample(&b->ms[1][b->samples], b, 1) : st;
        }
        st = st == HEDDLE_OK ? more(&go_on, b, options, start_ms) : st;
    }
    for (int i = 0; i < 2 && st == HEDDLE_OK; i++) {
        st = samples_slowest(b->ms[i], b->samples, b->comm);
    }
    return st;
}

static heddle_status conclude(heddle_bench_result *out, bench *b)
{
    double dst_bytes = (double)b->info.dst_bytes, sent = (double)b->info.bytes_sent;
    int64_t total = (int64_t)b->info.dst_bytes;
    heddle_status st = largest(&dst_bytes, b->comm);
    st = st == HEDDLE_OK ? largest(&sent, b->comm) : st;
    st = st == HEDDLE_OK ? heddle_comm_allreduce_sum(b->comm, &total, 1, HEDDLE_I64) : st;
    out->rounds = b->samples / TURNS;
    out->samples = b->samples;
    out->repeats = b->repeats;
    out->median_ms = samples_median(b->ms[0], b->samples);
    out->roofline_median_ms = samples_median(b->ms[1], b->samples);
    out->min_ms = b->ms[0][0];
    out->roofline_min_ms = b->ms[1][0];
    out->bytes_per_rank = (int64_t)dst_bytes;
    out->bytes_sent_per_rank = (int64_t)sent;
    out->bytes_total = total;
    snprintf(out->path, sizeof out->path, "%s", b->info.path);
    snprintf(out->kernel, sizeof out->kernel, "%s", b->info.kernel);
    snprintf(out->roofline_kernel, sizeof out->roofline_kernel, "the device's copy");
    snprintf(out->roofline_way, sizeof out->roofline_way, "dense, within the device");
    snprintf(out->why, sizeof out->why, "%s; %d pairs of arrays by turns, %s the device's cache", b->info.why, b->sets,
             b->sets < MOST_SETS ? "too large for" : "perhaps within");
    return st;
}

heddle_status device_bench(heddle_bench_result *out, heddle_comm *comm, const heddle_reshard_line *line,
                           const heddle_bench_options *options)
{
    bench b = {.comm = comm};
    heddle_status st = judge_stream_create(&b.stream, comm);
    st = st == HEDDLE_OK ? make_plan(&b, line, options->reshard) : st;
    st = st == HEDDLE_OK ? make_arrays(&b) : st;
    st = st == HEDDLE_OK ? prepare(&b) : st;
    st = st == HEDDLE_OK ? measure(&b, options) : st;
    st = st == HEDDLE_OK ? conclude(out, &b) : st;
    st = st == HEDDLE_OK ? heddle_comm_barrier(comm) : st;
    heddle_reshard_destroy(b.reshard);
    judge_stream_destroy(comm, b.stream);
    for (int i = 0; i < b.sets; i++) {
        heddle_buffer_free(comm, b.src[i]);
        heddle_buffer_free(comm, b.dst[i]);
    }
    free(b.ms[0]);
    free(b.ms[1]);
    return st;
}
