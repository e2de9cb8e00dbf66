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

/* What is timed by turns. */
typedef enum timed { TIMED_EAGER, TIMED_COPY, TIMED_GRAPH, TIMED } timed;

typedef struct times {
    double *host_ms, *device_ms, *call_ms; /* per execution; of the host until all calls have returned */
} times;

typedef struct bench {
    heddle_comm *comm;
    const heddle_device *table;
    int device;
    heddle_reshard *reshard;
    heddle_reshard_info info;
    heddle_stream stream;
    void *src[MOST_SETS], *dst[MOST_SETS];
    int sets, next;    /* arrays are used by turns */
    void *begin, *end; /* timers */
    void *graph;       /* of one execution with each pair of arrays; NULL: none */
    int64_t repeats;
    times of[TIMED];
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

/* Everything is enqueued between two of them. A device without kernels has none. */
static heddle_status make_timers(bench *b)
{
    if (b->table->timer_create == NULL) {
        return HEDDLE_OK;
    }
    heddle_status st = b->table->timer_create(&b->begin, b->device);
    return st == HEDDLE_OK ? b->table->timer_create(&b->end, b->device) : st;
}

static heddle_status stamp(const bench *b, void *timer)
{
    return timer != NULL ? b->table->event_record(timer, b->device, b->stream) : HEDDLE_OK;
}

static heddle_status make_graph(bench *b)
{
    if (!b->info.is_capturable) {
        return HEDDLE_OK;
    }
    heddle_status st = b->table->capture_begin(b->device, b->stream);
    if (st != HEDDLE_OK) {
        return st;
    }
    for (int i = 0; i < b->sets && st == HEDDLE_OK; i++) {
        st = heddle_reshard_execute(b->reshard, b->src[i], b->dst[i], b->stream);
    }
    heddle_status ended = b->table->capture_end(&b->graph, b->device, b->stream);
    return st == HEDDLE_OK ? ended : st;
}

/* One of what is timed, and how many executions that is. */
static heddle_status enqueue(int64_t *executions, bench *b, timed what)
{
    const int at = b->next, after = (at + 1) % b->sets;
    *executions = what == TIMED_GRAPH ? b->sets : 1;
    if (what == TIMED_GRAPH) {
        return b->table->graph_launch(b->graph, b->device, b->stream);
    }
    b->next = after;
    return what == TIMED_COPY
               ? b->table->copy(b->dst[after], 0, b->dst[at], 0, (int64_t)b->info.dst_bytes, 1, b->device, b->stream)
               : heddle_reshard_execute(b->reshard, b->src[at], b->dst[at], b->stream);
}

static heddle_status sample(const times *of, int i, bench *b, timed what)
{
    heddle_status st = heddle_comm_barrier(b->comm);
    int64_t executions = 0, some = 0;
    const double start = samples_now_ms();
    st = st == HEDDLE_OK ? stamp(b, b->begin) : st;
    for (; executions < b->repeats && st == HEDDLE_OK; executions += some) {
        st = enqueue(&some, b, what);
    }
    of->call_ms[i] = (samples_now_ms() - start) / (double)executions;
    st = st == HEDDLE_OK ? stamp(b, b->end) : st;
    st = st == HEDDLE_OK ? judge_device_settle(b->comm, b->stream) : st;
    of->host_ms[i] = (samples_now_ms() - start) / (double)executions;
    if (st == HEDDLE_OK && b->end != NULL) {
        st = b->table->timer_read(&of->device_ms[i], b->begin, b->end, b->device);
        of->device_ms[i] /= (double)executions;
    }
    return st;
}

/* One of each. */
static heddle_status sample_all(bench *b, int i)
{
    heddle_status st = HEDDLE_OK;
    for (timed what = 0; what < TIMED && st == HEDDLE_OK; what++) {
        const int is_timed = what != TIMED_GRAPH || b->graph != NULL;
        st = is_timed ? sample(&b->of[what], i, b, what) : HEDDLE_OK;
    }
    return st;
}

static heddle_status make_times(bench *b, const heddle_bench_options *options)
{
    const size_t most = (size_t)options->max_rounds * TURNS;
    for (timed what = 0; what < TIMED; what++) {
        times *of = &b->of[what];
        of->host_ms = calloc(most, sizeof *of->host_ms);
        of->device_ms = calloc(most, sizeof *of->device_ms);
        of->call_ms = calloc(most, sizeof *of->call_ms);
        if (of->host_ms == NULL || of->device_ms == NULL || of->call_ms == NULL) {
            return judge_no_memory("times", 3 * (double)most * (double)sizeof *of->host_ms);
        }
    }
    return HEDDLE_OK;
}

/* Warm, and how many executions make a sample. */
static heddle_status prepare(bench *b)
{
    heddle_status st = HEDDLE_OK;
    b->repeats = 2;
    for (int turn = 0; turn < 2 && st == HEDDLE_OK; turn++) {
        st = sample_all(b, turn);
    }
    double ms = b->of[TIMED_EAGER].host_ms[1];
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
    int go_on = 1;
    heddle_status st = HEDDLE_OK;
    while (st == HEDDLE_OK && go_on) {
        for (int turn = 0; turn < TURNS && st == HEDDLE_OK; turn++, b->samples++) {
            st = sample_all(b, b->samples);
        }
        st = st == HEDDLE_OK ? more(&go_on, b, options, start_ms) : st;
    }
    for (timed what = 0; what < TIMED && st == HEDDLE_OK; what++) {
        st = samples_slowest(b->of[what].host_ms, b->samples, b->comm);
        st = st == HEDDLE_OK ? samples_slowest(b->of[what].device_ms, b->samples, b->comm) : st;
        st = st == HEDDLE_OK ? samples_slowest(b->of[what].call_ms, b->samples, b->comm) : st;
    }
    return st;
}

/* Sorts them. */
static void sum_up(double *min_ms, double *median_ms, double *ms, int samples)
{
    *median_ms = samples_median(ms, samples);
    *min_ms = ms[0];
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
    const times *eager = &b->of[TIMED_EAGER], *copy = &b->of[TIMED_COPY], *graph = &b->of[TIMED_GRAPH];
    sum_up(&out->min_ms, &out->median_ms, eager->host_ms, b->samples);
    sum_up(&out->device_min_ms, &out->device_median_ms, eager->device_ms, b->samples);
    sum_up(&out->roofline_min_ms, &out->roofline_median_ms, copy->host_ms, b->samples);
    sum_up(&out->roofline_device_min_ms, &out->roofline_device_median_ms, copy->device_ms, b->samples);
    sum_up(&out->graph_min_ms, &out->graph_median_ms, graph->device_ms, b->samples);
    sum_up(&out->enqueue_min_ms, &out->enqueue_median_ms, eager->call_ms, b->samples);
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

static void free_measures(bench *b)
{
    if (b->graph != NULL) {
        b->table->graph_destroy(b->graph, b->device);
    }
    b->table->event_destroy(b->begin, b->device);
    b->table->event_destroy(b->end, b->device);
    for (timed what = 0; what < TIMED; what++) {
        free(b->of[what].host_ms);
        free(b->of[what].device_ms);
        free(b->of[what].call_ms);
    }
}

heddle_status device_bench(heddle_bench_result *out, heddle_comm *comm, const heddle_reshard_line *line,
                           const heddle_bench_options *options)
{
    bench b = {.comm = comm, .table = heddle_comm_device_table(comm), .device = heddle_comm_device(comm)};
    heddle_status st = judge_stream_create(&b.stream, comm);
    st = st == HEDDLE_OK ? make_plan(&b, line, options->reshard) : st;
    st = st == HEDDLE_OK ? make_arrays(&b) : st;
    st = st == HEDDLE_OK ? make_timers(&b) : st;
    st = st == HEDDLE_OK ? make_times(&b, options) : st;
    st = st == HEDDLE_OK ? make_graph(&b) : st;
    st = st == HEDDLE_OK ? prepare(&b) : st;
    st = st == HEDDLE_OK ? measure(&b, options) : st;
    st = st == HEDDLE_OK ? conclude(out, &b) : st;
    st = st == HEDDLE_OK ? heddle_comm_barrier(comm) : st;
    heddle_reshard_destroy(b.reshard);
    judge_stream_destroy(comm, b.stream);
    free_measures(&b);
    for (int i = 0; i < b.sets; i++) {
        heddle_buffer_free(comm, b.src[i]);
        heddle_buffer_free(comm, b.dst[i]);
    }
    return st;
}
