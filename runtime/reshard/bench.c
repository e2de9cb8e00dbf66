/* Reshard and roofline by turns. A round is four samples of each; all ranks learn the slowest rank's time of every
 * sample after the round, so that they take the same decisions without a leader. */
#include "runtime/reshard/bench.h"

#include "kernels/table.h"
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/reshard/trial.h"

#include <math.h>
#include <string.h>

enum {
    SAMPLE_NS = 100000, /* shorter executions are repeated inside a sample */
    MAX_REPEATS = 1000,
    WARM_UPS = 3,
    CACHES = 4, /* beyond so many times the shared cache nothing of the last execution is left there */
    ROUNDS_AT_MOST = 100000,
    BUFFER_ALIGNMENT = 4096,
    THE_RESHARD = -1 /* in the place of a way of the roofline */
};

void heddle_bench_options_init(heddle_bench_options *options)
{
    if (options != NULL) {
        *options = (heddle_bench_options){
            .struct_bytes = sizeof(*options), .min_rounds = 30, .max_rounds = 1000, .budget_ms = 3000};
    }
}

const char *heddle_copy_kernel_name(int index, int64_t *min_run_bytes)
{
    const hd_kernels *kernels;
    if (hd_kernels_cpu(&kernels) != HEDDLE_OK || index < 0 || index >= kernels->copies) {
        return NULL;
    }
    if (min_run_bytes != NULL) {
        *min_run_bytes = kernels->copy[index].min_run_bytes;
    }
    return kernels->copy[index].name;
}

/* --- buffers ------------------------------------------------------------------------------------------------------ */

static heddle_status make_buffers(hd_bench *b, const heddle_reshard_options *options)
{
    heddle_status st = HEDDLE_OK;
    size_t slack = hd_roofline_slack_bytes(b->info.nranks);
    HD_TRY(heddle_buffer_alloc(&b->src, b->comm, b->info.src_bytes + slack, options->space));
    HD_TRY(heddle_buffer_alloc(&b->dst, b->comm, b->info.dst_bytes + slack, options->space));
    memset(b->src, 1 + heddle_comm_rank(b->comm), b->info.src_bytes + slack);
    memset(b->dst, 0, b->info.dst_bytes + slack);
    if (options->memory == HEDDLE_MEMORY_ANY) {
        HD_TRY(hd_alloc_aligned(&b->any_src, BUFFER_ALIGNMENT, b->info.src_bytes + slack, "a private source"));
        HD_TRY(hd_alloc_aligned(&b->any_dst, BUFFER_ALIGNMENT, b->info.dst_bytes + slack, "a private destination"));
        memset(b->any_src, 1 + heddle_comm_rank(b->comm), b->info.src_bytes + slack);
        memset(b->any_dst, 0, b->info.dst_bytes + slack);
    }
out:
    return st;
}

static heddle_status make_samples(hd_bench *b, const heddle_bench_options *options)
{
    heddle_status st = HEDDLE_OK;
    size_t samples = (size_t)options->max_rounds * HD_BENCH_PAIRS;
    HD_TRY(hd_alloc((void **)&b->all, (size_t)b->info.nranks * (2 * HD_BENCH_PAIRS + 1), sizeof(int64_t),
                    "samples of all ranks"));
    HD_TRY(hd_alloc((void **)&b->switch_ns, samples, sizeof(double), "samples"));
    HD_TRY(hd_alloc((void **)&b->roofline_ns, samples, sizeof(double), "samples"));
    HD_TRY(hd_alloc((void **)&b->roofline_way, samples, sizeof(int), "samples"));
out:
    return st;
}

static void free_bench(hd_bench *b)
{
    hd_roofline_destroy(b->roofline);
    heddle_reshard_destroy(b->reshard);
    heddle_buffer_free(b->comm, b->src);
    heddle_buffer_free(b->comm, b->dst);
    HD_FREE_ALL(b->any_src, b->any_dst, b->all, b->switch_ns, b->roofline_ns, b->roofline_way);
}

/* --- samples ------------------------------------------------------------------------------------------------------ */

static heddle_status run(hd_bench *b, int way, int64_t deadline_ns)
{
    if (way != THE_RESHARD) {
        return hd_roofline_run(b->roofline, way, deadline_ns);
    }
    return heddle_reshard_execute(b->reshard, b->any_src != NULL ? b->any_src : b->src,
                                  b->any_dst != NULL ? b->any_dst : b->dst, HEDDLE_NO_STREAM);
}

/* What ran before leaves the caches in its own state: while the tensor may lie there, a sample starts with executions
 * that do not count. */
static heddle_status sample(hd_bench *b, int way, int64_t *ns)
{
    heddle_status st = HEDDLE_OK;
    int64_t deadline_ns = hd_comm_deadline_ns(b->comm, 0); /* of a roofline */
    for (int i = 0; i < b->settle; i++) {
        HD_TRY(run(b, way, deadline_ns));
    }
    HD_TRY(heddle_comm_barrier(b->comm));
    int64_t start_ns = hd_now_ns();
    for (int64_t i = 0; i < b->repeats; i++) {
        HD_TRY(run(b, way, deadline_ns));
    }
    *ns = hd_now_ns() - start_ns;
out:
    return st;
}

/* values[i] becomes the largest of all ranks' values; stop (may be NULL) becomes rank 0's. */
static heddle_status slowest(hd_bench *b, int64_t *values, int count, int *stop)
{
    heddle_status st = HEDDLE_OK;
    int64_t own[2 * HD_BENCH_PAIRS + 1] = {0};
    const int width = 2 * HD_BENCH_PAIRS + 1;
    memcpy(own, values, (size_t)count * sizeof(*values));
    own[2 * HD_BENCH_PAIRS] = stop != NULL ? *stop : 0;
    HD_TRY(heddle_comm_allgather(b->comm, own, b->all, sizeof(own)));
    for (int i = 0; i < count; i++) {
        for (int r = 0; r < b->info.nranks; r++) {
            int64_t other = b->all[r * width + i];
            values[i] = other > values[i] ? other : values[i];
        }
    }
    if (stop != NULL) {
        *stop = (int)b->all[2 * HD_BENCH_PAIRS];
    }
out:
    return st;
}

static heddle_status warm_up(hd_bench *b)
{
    heddle_status st = HEDDLE_OK;
    int64_t ns = 0;
    int64_t footprint_bytes = (int64_t)(b->info.src_bytes + b->info.dst_bytes); /* of the largest rank, times ranks */
    HD_TRY(slowest(b, &footprint_bytes, 1, NULL));
    footprint_bytes *= b->info.nranks;
    int64_t cache_bytes = (int64_t)heddle_comm_shared_cache_bytes(b->comm);
    b->settle = footprint_bytes <= cache_bytes ? HD_SETTLE : footprint_bytes <= CACHES * cache_bytes;
    b->repeats = 1;
    for (int i = 0; i < WARM_UPS; i++) {
        HD_TRY(sample(b, THE_RESHARD, &ns));
    }
    b->repeats = 4;
    HD_TRY(sample(b, THE_RESHARD, &ns));
    HD_TRY(slowest(b, &ns, 1, NULL));
    int64_t once_ns = ns / b->repeats + 1;
    b->repeats = SAMPLE_NS / once_ns + 1;
    b->repeats = b->repeats < MAX_REPEATS ? b->repeats : MAX_REPEATS;
out:
    return st;
}

/* --- ways --------------------------------------------------------------------------------------------------------- */

static void rank_ways(hd_bench *b)
{
    for (int i = 0; i < HD_BENCH_LEADERS; i++) {
        int best = -1;
        for (int way = 0; way < b->nways; way++) {
            int taken = 0;
            for (int j = 0; j < i; j++) {
                taken |= b->leader[j] == way;
            }
            if (!taken && (best < 0 || b->best_ns[way] < b->best_ns[best])) {
                best = way;
            }
        }
        b->leader[i] = best < 0 ? 0 : best;
    }
}

static heddle_status try_way(hd_bench *b, int way)
{
    heddle_status st = HEDDLE_OK;
    int64_t ns = 0;
    HD_TRY(sample(b, way, &ns));
    HD_TRY(slowest(b, &ns, 1, NULL));
    b->best_ns[way] = fmin(b->best_ns[way], (double)ns);
out:
    return st;
}

/* Every kernel twice in one way each, then the leaders' other ways. The rest is tried later, one a round. */
static heddle_status explore(hd_bench *b)
{
    heddle_status st = HEDDLE_OK;
    const int per_kernel = hd_roofline_ways_per_kernel();
    b->nways = hd_roofline_ways(b->roofline);
    b->nways = b->nways < HD_BENCH_WAYS ? b->nways : HD_BENCH_WAYS / per_kernel * per_kernel;
    for (int way = 0; way < b->nways; way++) {
        b->best_ns[way] = INFINITY;
    }
    for (int turn = 0; turn < 2; turn++) {
        for (int kernel = 0; kernel < b->nways / per_kernel; kernel++) {
            HD_TRY(try_way(b, kernel * per_kernel + (turn == 0 ? 0 : per_kernel / 2)));
        }
    }
    rank_ways(b);
    for (int i = 0; i < HD_BENCH_LEADERS; i++) {
        int first = b->leader[i] / per_kernel * per_kernel;
        for (int way = first; way < first + per_kernel; way++) {
            HD_TRY(try_way(b, way));
        }
    }
    rank_ways(b);
out:
    return st;
}

/* --- the measurement ---------------------------------------------------------------------------------------------- */

static heddle_status one_round(hd_bench *b, int *stop)
{
    heddle_status st = HEDDLE_OK;
    int64_t ns[2 * HD_BENCH_PAIRS] = {0};
    int way[HD_BENCH_PAIRS];
    for (int i = 0; i < HD_BENCH_PAIRS; i++) {
        way[i] = i < HD_BENCH_LEADERS ? b->leader[i] : b->next_way;
        HD_TRY(sample(b, THE_RESHARD, &ns[2 * i]));
        HD_TRY(sample(b, way[i], &ns[2 * i + 1]));
    }
    HD_TRY(slowest(b, ns, 2 * HD_BENCH_PAIRS, stop));
    for (int i = 0; i < HD_BENCH_PAIRS; i++) {
        int64_t at = b->rounds * HD_BENCH_PAIRS + i;
        b->switch_ns[at] = (double)ns[2 * i];
        b->roofline_ns[at] = (double)ns[2 * i + 1];
        b->roofline_way[at] = way[i];
        b->best_ns[way[i]] = fmin(b->best_ns[way[i]], (double)ns[2 * i + 1]);
    }
    b->rounds++;
    b->next_way = (b->next_way + 1) % b->nways;
    rank_ways(b);
out:
    return st;
}

static heddle_status measure(hd_bench *b, const heddle_bench_options *options)
{
    heddle_status st = HEDDLE_OK;
    int64_t end_ns = hd_now_ns() + options->budget_ms * 1000000;
    HD_TRY(explore(b));
    int stop = 0;
    while (!stop) {
        stop = hd_now_ns() >= end_ns && b->rounds + 1 >= options->min_rounds;
        stop |= b->rounds + 1 >= options->max_rounds;
        HD_TRY(one_round(b, &stop));
    }
out:
    return st;
}

static heddle_status check_options(const heddle_bench_options *options)
{
    if (options->min_rounds < 1 || options->max_rounds < options->min_rounds || options->max_rounds > ROUNDS_AT_MOST) {
        return hd_fail(HEDDLE_ERR_ARG, "bench: %lld to %lld rounds, wanted 1 to %d", (long long)options->min_rounds,
                       (long long)options->max_rounds, (int)ROUNDS_AT_MOST);
    }
    return hd_check_ms(options->budget_ms, "budget_ms");
}

/* The caller's options over the defaults, and room for the result: before the long work. */
static heddle_status take(heddle_bench_options *taken, heddle_reshard_options *reshard,
                          const heddle_bench_options *options, const heddle_bench_result *out)
{
    heddle_status st;
    heddle_bench_options_init(taken);
    HD_TRY(hd_struct_take(taken, options, HD_STRUCT(heddle_bench_options, min_rounds)));
    HD_TRY(hd_reshard_options_take(reshard, taken->reshard));
    HD_TRY(check_options(taken));
    HD_TRY(hd_device_host_only(reshard->space, reshard->device, "a benchmark"));
    HD_TRY(hd_struct_room(out, HD_STRUCT(heddle_bench_result, samples)));
out:
    return st;
}

static heddle_status add_if_it_adds(hd_bench *b)
{
    hd_transfer_info first;
    hd_transfer_get_info(&first, b->reshard->bare->transfer[0]);
    const hd_request *of = &b->reshard->request;
    return first.any_adds && b->reshard->nphases == 1
               ? hd_roofline_add(b->roofline, &b->info, of->kernels, of->line.shape.dtype)
               : HEDDLE_OK;
}

/* With plan and memory. */
static heddle_status bench(heddle_bench_result *result, hd_bench *b, const heddle_bench_options *options)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_roofline_create(&b->roofline, b->comm, &b->info, b->src, b->dst));
    HD_TRY(add_if_it_adds(b));
    HD_TRY(warm_up(b));
    HD_TRY(measure(b, options));
    HD_TRY(hd_bench_summarise(result, b));
    HD_TRY(hd_bench_share_facts(result, b));
    st = heddle_comm_barrier(b->comm); /* nobody frees what a peer still uses */
out:
    return st == HEDDLE_OK ? st : hd_comm_abort_with(b->comm, st);
}

heddle_status heddle_bench_reshard(heddle_bench_result *out, heddle_comm *comm, const heddle_reshard_line *line,
                                   const heddle_bench_options *options)
{
    heddle_bench_options taken;
    heddle_reshard_options reshard;
    heddle_bench_result result = HEDDLE_EMPTY(heddle_bench_result);
    hd_bench b = {.comm = comm};
    heddle_status st = HD_NEED(comm);
    if (st != HEDDLE_OK) {
        return st; /* there is nobody to tell */
    }
    st = HD_NEED(out, line);
    HD_TRY(hd_comm_agree(comm, st == HEDDLE_OK ? take(&taken, &reshard, options, out) : st));
    HD_TRY(heddle_reshard_create_line(&b.reshard, comm, line, &reshard));
    b.info.struct_bytes = sizeof(b.info);
    HD_TRY(heddle_reshard_get_info(&b.info, b.reshard));
    st = make_buffers(&b, &reshard);
    HD_TRY(hd_comm_agree(comm, st == HEDDLE_OK ? make_samples(&b, &taken) : st));
    HD_TRY(bench(&result, &b, &taken));
    st = hd_struct_give(out, &result, HD_STRUCT(heddle_bench_result, samples));
out:
    free_bench(&b);
    return st;
}
