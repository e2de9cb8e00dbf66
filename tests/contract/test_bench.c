/* What the benchmark of reshards measures: the roofline copies every byte once, and times are those of one execution on
 * the slowest rank. Linked so that the table of copy kernels and heddle_reshard_execute are this file's (--wrap). */
#include "case.h"
#include "check.h"
#include "time_limit.h"

#include "kernels/copy.h"
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/reshard/roofline.h"

#include <heddle/heddle.h>
#include <heddle/sys/bench.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* --- what is put in their place ----------------------------------------------------------------------------------- */

/* How long each of some calls took, of all ranks that are threads. */
typedef struct clocked {
    int64_t sleep_ns; /* besides what it does */
    int only_last;    /* of two ranks, the second alone is so slow */
    _Atomic int64_t calls, sum_ns, least_ns, most_ns;
} clocked;

static clocked copies, executions;
static _Thread_local int64_t copied_bytes, copy_calls; /* of this rank */

static void clock_call(clocked *c, int64_t start_ns)
{
    if (c->sleep_ns > 0) {
        nanosleep(&(struct timespec){.tv_nsec = c->sleep_ns}, NULL);
    }
    const int64_t ns = hd_now_ns() - start_ns;
    int64_t least = c->least_ns, most = c->most_ns;
    c->calls++;
    c->sum_ns += ns;
    while (ns < least && !atomic_compare_exchange_weak(&c->least_ns, &least, ns)) {
    }
    while (ns > most && !atomic_compare_exchange_weak(&c->most_ns, &most, ns)) {
    }
}

static void reset(clocked *c, int64_t sleep_ns)
{
    c->sleep_ns = sleep_ns;
    c->only_last = 0;
    c->calls = c->sum_ns = c->most_ns = 0;
    c->least_ns = INT64_MAX;
}

static void counting_copy(const hd_lane *lane, int nlanes, int nloops, const int64_t *count, const void *const *src,
                          void *const *dst)
{
    const int64_t start_ns = hd_now_ns();
    (void)count;
    copy_calls++;
    for (int i = 0; i < nlanes && nloops == 0; i++) {
        if (lane[i].run_bytes > 0) {
            const char *from = (const char *)src[lane[i].src_base] + lane[i].src_offset_bytes;
            memcpy((char *)dst[lane[i].dst_base] + lane[i].dst_offset_bytes, from, (size_t)lane[i].run_bytes);
        }
        copied_bytes += lane[i].run_bytes;
    }
    clock_call(&copies, start_ns);
}

/* The second wants longer runs than there are: the first is taken instead. */
static const hd_copy_kernel kernels[] = {{"counting", counting_copy, 0}, {"long runs", counting_copy, 1 << 30}};

const hd_copy_kernel *__wrap_hd_copy_kernels(int *count);
const hd_copy_kernel *__wrap_hd_copy_kernels(int *count)
{
    *count = sizeof kernels / sizeof *kernels;
    return kernels;
}

heddle_status __real_heddle_reshard_execute(heddle_reshard *reshard, const void *src, void *dst, heddle_stream stream);
heddle_status __wrap_heddle_reshard_execute(heddle_reshard *reshard, const void *src, void *dst, heddle_stream stream);
heddle_status __wrap_heddle_reshard_execute(heddle_reshard *reshard, const void *src, void *dst, heddle_stream stream)
{
    const int64_t start_ns = hd_now_ns();
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    heddle_status st = __real_heddle_reshard_execute(reshard, src, dst, stream);
    if (!executions.only_last || (heddle_reshard_get_info(&info, reshard) == HEDDLE_OK && info.bytes_to[0] > 0)) {
        clock_call(&executions, start_ns);
    }
    return st;
}

/* --- the roofline ------------------------------------------------------------------------------------------------- */

/* Each rank's source is filled with its number from 1: how many bytes of `dst` came from rank p? */
static int64_t count_of(const unsigned char *dst, size_t bytes, int p)
{
    int64_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        n += dst[i] == p + 1;
    }
    return n;
}

/* One way: every byte of the destination once, from the rank that owns it. */
static heddle_status check_way(hd_roofline *roofline, heddle_comm *comm, const heddle_reshard_info *info, void *dst,
                               int way)
{
    heddle_status st = HEDDLE_OK;
    int64_t all[8][2], total[2] = {0, 0}, from_others = 0;
    const size_t dst_bytes = info->dst_bytes + hd_roofline_slack_bytes(info->nranks);
    memset(dst, 0, dst_bytes);
    HD_TRY(heddle_comm_barrier(comm));
    copied_bytes = copy_calls = 0;
    HD_TRY(hd_roofline_run(roofline, way, hd_comm_deadline_ns(comm, 0)));
    CHECK(copy_calls == 1);
    const int64_t mine[2] = {copied_bytes, (int64_t)info->dst_bytes};
    HD_TRY(heddle_comm_allgather(comm, mine, all, sizeof mine));
    for (int r = 0; r < info->nranks; r++) {
        total[0] += all[r][0];
        total[1] += all[r][1];
        from_others += info->bytes_from[r];
    }
    CHECK(total[0] == total[1]);
    if (strncmp(hd_roofline_way_name(roofline, way), "pull", 4) == 0 || hd_roofline_is_local(roofline)) {
        CHECK(mine[0] == mine[1]);
    } else {
        CHECK(mine[0] >= info->bytes_sent);
    }
    for (int p = 0; p < info->nranks && !hd_roofline_is_local(roofline); p++) {
        const int own = p == heddle_comm_rank(comm);
        CHECK(count_of(dst, dst_bytes, p) == (own ? mine[1] - from_others : info->bytes_from[p]));
    }
out:
    return st;
}

static heddle_status roofline_rank(heddle_comm *comm, void *arg)
{
    const char *text = arg;
    heddle_status st = HEDDLE_OK;
    heddle_reshard_line line;
    heddle_reshard *reshard = NULL;
    hd_roofline *roofline = NULL;
    void *src = NULL, *dst = NULL;
    heddle_reshard_info info = HEDDLE_EMPTY(heddle_reshard_info);
    HD_TRY(heddle_reshard_parse(&line, text));
    HD_TRY(heddle_reshard_create_line(&reshard, comm, &line, NULL));
    HD_TRY(heddle_reshard_get_info(&info, reshard));
    const size_t slack = hd_roofline_slack_bytes(info.nranks);
    HD_TRY(heddle_buffer_alloc(&src, comm, info.src_bytes + slack, HEDDLE_SPACE_HOST));
    HD_TRY(heddle_buffer_alloc(&dst, comm, info.dst_bytes + slack, HEDDLE_SPACE_HOST));
    memset(src, 1 + heddle_comm_rank(comm), info.src_bytes + slack);
    HD_TRY(hd_roofline_create(&roofline, comm, &info, src, dst));
    CHECK(hd_roofline_ways(roofline) == 2 * hd_roofline_ways_per_kernel());
    for (int way = 0; way < hd_roofline_ways(roofline); way++) {
        HD_TRY(check_way(roofline, comm, &info, dst, way));
    }
    HD_TRY(heddle_comm_barrier(comm));
out:
    hd_roofline_destroy(roofline);
    heddle_reshard_destroy(reshard);
    heddle_buffer_free(comm, src);
    heddle_buffer_free(comm, dst);
    return st;
}

/* Every way adds all terms, to the last byte. */
HD_RANK_CASE(roofline_of_sums_adds_every_term, "2 threads", "3 shm")
{
    heddle_status st = HEDDLE_OK;
    heddle_reshard_line line;
    heddle_reshard *reshard = NULL;
    hd_roofline *roofline = NULL;
    void *src = NULL, *dst = NULL;
    const hd_kernels *cpu;
    char text[64];
    heddle_reshard_info info = {.struct_bytes = sizeof info};
    int n = heddle_comm_size(comm);
    snprintf(text, sizeof text, "u8[t=%d s=50001] on [sp=%d]: sum@sp -> t@sp", 2 * n, n);
    HD_TRY(hd_kernels_cpu(&cpu));
    HD_TRY(heddle_reshard_parse(&line, text));
    HD_TRY(heddle_reshard_create_line(&reshard, comm, &line, NULL));
    HD_TRY(heddle_reshard_get_info(&info, reshard));
    const size_t slack = hd_roofline_slack_bytes(n);
    HD_TRY(heddle_buffer_alloc(&src, comm, info.src_bytes + slack, HEDDLE_SPACE_HOST));
    HD_TRY(heddle_buffer_alloc(&dst, comm, info.dst_bytes + slack, HEDDLE_SPACE_HOST));
    memset(src, 1 + heddle_comm_rank(comm), info.src_bytes + slack);
    HD_TRY(hd_roofline_create(&roofline, comm, &info, src, dst));
    HD_TRY(hd_roofline_add(roofline, &info, cpu, HEDDLE_U8));
    CHECK(strncmp(hd_roofline_kernel(roofline, 0), "sum_rows", 8) == 0);
    for (int way = 0; way < hd_roofline_ways(roofline); way++) {
        memset(dst, 0, info.dst_bytes + slack);
        HD_TRY(hd_roofline_run(roofline, way, hd_comm_deadline_ns(comm, 0)));
        for (size_t i = 0; i < info.dst_bytes + slack; i++) {
            CHECK(((unsigned char *)dst)[i] == (i < info.dst_bytes ? n * (n + 1) / 2 : 0));
        }
    }
    HD_TRY(heddle_comm_barrier(comm));
out:
    hd_roofline_destroy(roofline);
    heddle_reshard_destroy(reshard);
    heddle_buffer_free(comm, src);
    heddle_buffer_free(comm, dst);
    return st;
}

HD_CASE(roofline_copies_every_byte_once)
{
    static const char *const lines[] = {
        "u8[t=64 s=96] on [sp=1]: * -> *",       "bf16[t=64 s=96] on [sp=2]: t@sp -> s@sp",
        "u8[t=63 s=97] on [sp=3]: s@sp -> t@sp", "u8[t=5 s=700] on [sp=4]: t@sp(0 3 0 2) -> s@sp",
        "f32[t=16 s=12] on [sp=4]: t@sp -> *",   "u8[t=64 s=96 c=4] on [a=2 b=2]: t@a,s@b -> s@b,c@a"};
    reset(&copies, 0);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        heddle_reshard_line line;
        heddle_comm_options options;
        heddle_comm_options_init(&options);
        HD_OK(heddle_reshard_parse(&line, lines[i]));
        const int n = heddle_mesh_size(&line.mesh);
        HD_OK(heddle_run_ranks(n, "threads", roofline_rank, (void *)lines[i]));
        HD_OK(heddle_run_ranks(n, "shm", roofline_rank, (void *)lines[i]));
        options.pretend_hosts = 2;
        HD_OK(i == 1 ? heddle_run_ranks_with(n, "threads", &options, roofline_rank, (void *)lines[i]) : HEDDLE_OK);
    }
}

/* --- times -------------------------------------------------------------------------------------------------------- */

typedef struct job {
    const char *line;
    heddle_bench_result result;
} job;

static heddle_status bench_rank(heddle_comm *comm, void *arg)
{
    job *j = arg;
    heddle_reshard_line line;
    heddle_bench_options options;
    heddle_bench_result result = HEDDLE_EMPTY(heddle_bench_result);
    heddle_bench_options_init(&options);
    options.min_rounds = options.max_rounds = 3;
    options.budget_ms = 0;
    heddle_status st = heddle_reshard_parse(&line, j->line);
    st = st != HEDDLE_OK ? st : heddle_bench_reshard(&result, comm, &line, &options);
    if (heddle_comm_rank(comm) == 0) {
        j->result = result;
    }
    return st;
}

/* No sample is shorter than the shortest call, and the shortest sample no longer than the mean of all calls, but for
 * what the loop and the clock themselves take. */
static void check_times(double min_ms, double median_ms, const clocked *c)
{
    const double mean_ns = (double)c->sum_ns / (double)c->calls;
    print_message("min %.0f ns, median %.0f ns; of %lld calls: least %lld, mean %.0f, most %lld ns\n", min_ms * 1e6,
                  median_ms * 1e6, (long long)c->calls, (long long)c->least_ns, mean_ns, (long long)c->most_ns);
    assert_true(min_ms * 1e6 > 0.999 * (double)c->least_ns);
    assert_true(min_ms * 1e6 < 1.3 * mean_ns + 5000);
    assert_true(min_ms <= median_ms);
    assert_true(median_ms * 1e6 < 1.3 * (double)c->most_ns + 5000);
}

static void check_one(heddle_bench_result *out, int64_t sleep_ns)
{
    job j = {.line = "u8[t=64 s=96] on [sp=1]: t@sp -> s@sp"};
    reset(&executions, sleep_ns);
    reset(&copies, 2 * sleep_ns);
    HD_OK(heddle_run_ranks(1, "threads", bench_rank, &j));
    check_times(j.result.min_ms, j.result.median_ms, &executions);
    check_times(j.result.roofline_min_ms, j.result.roofline_median_ms, &copies);
    *out = j.result;
}

HD_CASE(times_are_of_one_execution)
{
    heddle_bench_result result = {.repeats = 1};
    check_one(&result, 2000000);
    assert_int_equal(result.repeats, 1);
    /* Short ones, many to a sample, unless something else ran while they were counted. */
    for (int i = 0; i < 20 && result.repeats < 4; i++) {
        check_one(&result, 0);
    }
    assert_true(result.repeats >= 4);
}

HD_CASE(times_are_of_the_slowest_rank)
{
    job j = {.line = "u8[t=64 s=96] on [sp=2]: t@sp -> s@sp"};
    reset(&executions, 50000000);
    reset(&copies, 0);
    executions.only_last = 1; /* rank 1, which sends to rank 0 */
    HD_OK(heddle_run_ranks(2, "threads", bench_rank, &j));
    assert_true(j.result.min_ms >= 50);
    assert_int_equal(j.result.bytes_per_rank, 3072);
    assert_int_equal(j.result.bytes_sent_per_rank, 1536);
    assert_int_equal(j.result.bytes_total, 6144);
}

/* --- what fails --------------------------------------------------------------------------------------------------- */

typedef struct lost {
    long nth; /* allocation of rank 1 */
    _Atomic int heard;
    heddle_status status[2];
} lost;

/* Rank 1 stays until the other has heard: its end would tell it as well. */
static heddle_status lost_rank(heddle_comm *comm, void *arg)
{
    lost *l = arg;
    const int me = heddle_comm_rank(comm);
    heddle_reshard_options reshard;
    heddle_reshard_line line;
    heddle_bench_options options;
    heddle_bench_result result = HEDDLE_EMPTY(heddle_bench_result);
    heddle_bench_options_init(&options);
    heddle_reshard_options_init(&reshard);
    reshard.tuning = HEDDLE_TUNING_RULES;
    reshard.memory = HEDDLE_MEMORY_ANY;
    options.min_rounds = options.max_rounds = 1;
    options.budget_ms = 0;
    options.reshard = &reshard;
    HD_OK(heddle_reshard_parse(&line, "u8[t=64 s=96] on [sp=2]: t@sp -> s@sp"));
    hd_alloc_fail_at(me == 1 ? l->nth : 0);
    l->status[me] = heddle_bench_reshard(&result, comm, &line, &options);
    hd_alloc_fail_at(0);
    const int64_t end_ns = hd_now_ns() + hd_test_limit_ns(10);
    while (me == 1 && l->heard == 0 && hd_now_ns() < end_ns) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    l->heard |= me == 0;
    return HEDDLE_OK;
}

/* Every allocation of rank 1 fails once. */
HD_CASE(who_has_no_memory_tells_the_other)
{
    heddle_comm_options options;
    heddle_comm_options_init(&options);
    options.deadline_ms = hd_test_limit_ns(5) / 1000000;
    lost *l = hd_shared(sizeof *l);
    int failed = 0;
    for (int passed = 0; passed < 3; l->nth += hd_call_step()) {
        l->nth += l->nth == 0;
        l->heard = 0;
        HD_OK(heddle_run_ranks_with(2, "shm", &options, lost_rank, l));
        assert_int_equal(l->status[0], l->status[1] == HEDDLE_OK ? HEDDLE_OK : HEDDLE_ERR_PEER);
        assert_true(l->status[1] == HEDDLE_OK || l->status[1] == HEDDLE_ERR_NOMEM);
        failed += l->status[1] != HEDDLE_OK;
        passed += l->status[1] == HEDDLE_OK;
    }
    assert_true(failed > 3);
}
