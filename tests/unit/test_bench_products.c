/* heddle_bench_product in host memory: every call multiplies all rows by the layer, or adds all of them to the whole of
 * a gradient, with the kernels that blocks have, and leaves the block as it was. Linked with what calls kernels
 * counted, and with a clock that can be set (--wrap). */
#include "block_problem.h"

#include "kernels/gemm.h"
#include "runtime/base/base.h"
#include "runtime/block/back_internal.h"

#include <heddle/sys/bench.h>
#include <stdatomic.h>

static _Atomic int64_t gemm_rows, outer_cells, jobs;
static int64_t job_ns, most_jobs; /* where not 0: each job takes so long; more jobs than that fail */

int64_t __real_hd_now_ns(void);
int64_t __wrap_hd_now_ns(void);
int64_t __wrap_hd_now_ns(void)
{
    return job_ns > 0 ? jobs * job_ns : __real_hd_now_ns();
}

static heddle_status count_job(void)
{
    return ++jobs > most_jobs && most_jobs > 0 ? heddle_set_error(HEDDLE_ERR_INTERNAL, "too many jobs") : HEDDLE_OK;
}

heddle_status __real_hd_gemm_run(hd_gemm *gemm, int seat, void *dst, const void *src, int64_t rows);
heddle_status __wrap_hd_gemm_run(hd_gemm *gemm, int seat, void *dst, const void *src, int64_t rows);
heddle_status __wrap_hd_gemm_run(hd_gemm *gemm, int seat, void *dst, const void *src, int64_t rows)
{
    const heddle_status st = count_job();
    gemm_rows += rows;
    return st == HEDDLE_OK ? __real_hd_gemm_run(gemm, seat, dst, src, rows) : st;
}

heddle_status __real_hd_back_outer(const heddle_block *block, int seat, heddle_dtype dtype,
                                   const hd_outer_product *product);
heddle_status __wrap_hd_back_outer(const heddle_block *block, int seat, heddle_dtype dtype,
                                   const hd_outer_product *product);
heddle_status __wrap_hd_back_outer(const heddle_block *block, int seat, heddle_dtype dtype,
                                   const hd_outer_product *product)
{
    const heddle_status st = count_job();
    outer_cells += product->rows * product->n;
    return st == HEDDLE_OK ? __real_hd_back_outer(block, seat, dtype, product) : st;
}

static heddle_block_options options_of(heddle_stage_kind kind)
{
    static const int64_t extent[] = {2, 3, 5, 24};
    heddle_block_options options;
    heddle_block_options_init(&options);
    options.kind = kind;
    options.shape = shape_of(HEDDLE_F32, 4, extent);
    options.mixed_dim = 1;
    options.heads = 3;
    options.mlp_channels = 200; /* panels of a gradient are not even */
    options.text_tokens = 7;
    return options;
}

static heddle_bench_product_result bench(heddle_block *block, int param, heddle_product_kind kind, int64_t rows,
                                         int64_t budget_ms)
{
    heddle_bench_product_result out = HEDDLE_EMPTY(heddle_bench_product_result);
    gemm_rows = outer_cells = 0;
    HD_OK(heddle_bench_product(&out, block, param, kind, rows, budget_ms));
    assert_true(out.min_ms > 0 && out.min_ms <= out.median_ms);
    assert_true(out.samples >= 1 && out.repeats >= 1);
    return out;
}

/* All calls did all of the work; those in front of the samples are one or two. */
static void check_work(const heddle_bench_product_result *r, int64_t rows)
{
    const int is_outer = r->of.kind == HEDDLE_PRODUCT_OUTER;
    const int64_t each = is_outer ? rows * r->of.n : rows, all = is_outer ? outer_cells : gemm_rows;
    const int64_t warm = all / each - r->samples * r->repeats;
    assert_int_equal(all % each, 0);
    assert_int_equal(is_outer ? gemm_rows : outer_cells, 0);
    assert_true(warm == 1 || warm == 2);
}

static void check_types(const heddle_bench_product_result *r, const heddle_block_options *options, int is_text)
{
    const heddle_dtype dtype = options->shape.dtype;
    if (r->of.kind == HEDDLE_PRODUCT_FORWARD) {
        assert_int_equal(r->of.dtype, dtype);
        assert_true(r->of.dst_dtype == HEDDLE_F32 || r->of.dst_dtype == dtype);
    } else {
        assert_true(r->of.dtype == HEDDLE_F32 || (r->of.dtype == dtype && !is_text));
        assert_int_equal(r->of.dst_dtype, HEDDLE_F32);
    }
    assert_non_null(strstr(r->kernel, "oneDNN, "));
}

HD_CASE(every_product_of_every_stage)
{
    static const int64_t rows[] = {1, 37, 256, 1300};
    for (int i = 0; i < 16; i++) {
        problem p;
        heddle_block_options options = options_of((heddle_stage_kind)(i % 4));
        options.shape.dtype = i / 4 % 2 ? HEDDLE_BF16 : HEDDLE_F32;
        options.threads = i / 8 ? 3 : 1;
        open_problem(&p, &options);
        for (int param = 0; param < heddle_block_nparams(p.block); param++) {
            heddle_param weight = HEDDLE_EMPTY(heddle_param);
            HD_OK(heddle_block_param(&weight, p.block, param));
            for (int kind = 0; kind < 3 && weight.ndim == 2; kind++) {
                const int64_t n = rows[(i + param + kind) % 4];
                const heddle_bench_product_result r = bench(p.block, param, (heddle_product_kind)kind, n, 0);
                assert_int_equal(r.of.kind, kind);
                assert_int_equal(r.of.n, weight.extent[0]);
                assert_int_equal(r.of.k, weight.extent[1]);
                check_types(&r, &options, options.kind == HEDDLE_STAGE_CROSS && param == 4);
                check_work(&r, n);
            }
        }
        close_problem(&p);
    }
}

/* Samples until the time is over; and a block that was timed gives the bits that it gave. */
HD_CASE(time_is_spent_and_a_block_stays_as_it_was)
{
    problem p;
    const heddle_block_options options = options_of(HEDDLE_STAGE_MLP);
    open_problem(&p, &options);
    const heddle_box box = whole_box(&options.shape);
    const size_t bytes = (size_t)p.elems * heddle_dtype_bytes(options.shape.dtype);
    void *before = stored(p.x, p.elems, options.shape.dtype), *after = stored(p.x, p.elems, options.shape.dtype);
    HD_OK(forward_on(p.block, before, &box, &p.conditioning));
    heddle_param gradient = HEDDLE_EMPTY(heddle_param);
    HD_OK(heddle_block_gradient(&gradient, p.block, 0));
    for (int kind = 0; kind < 3; kind++) {
        const int64_t start_ns = hd_now_ns();
        const heddle_bench_product_result r = bench(p.block, 0, (heddle_product_kind)kind, 64, 60);
        assert_true(hd_now_ns() - start_ns >= 60000000);
        check_work(&r, 64);
    }
    HD_OK(forward_on(p.block, after, &box, &p.conditioning));
    assert_memory_equal(before, after, bytes);
    for (int64_t i = 0; i < gradient.extent[0] * gradient.extent[1]; i++) {
        assert_true(gradient.data[i] == 0);
    }
    free(before);
    free(after);
    close_problem(&p);
}

/* As long as a device is waited for, or as there is time for all. */
HD_CASE(a_call_that_does_not_end_is_ended)
{
    problem p;
    heddle_bench_product_result out = HEDDLE_EMPTY(heddle_bench_product_result);
    heddle_block_options options = options_of(HEDDLE_STAGE_MLP);
    for (int i = 0; i < 6; i++) {
        const int64_t budget_ms = i % 2 == 0 ? 5 : 2000000, seconds = i % 2 == 0 ? 600 : 2000;
        options.threads = i % 2 == 0 ? 1 : 3;
        open_problem(&p, &options);
        job_ns = (int64_t)1e9;
        most_jobs = 4 * seconds;
        jobs = 0;
        HD_FAILS(HEDDLE_ERR_TIMEOUT,
                 heddle_bench_product(&out, p.block, 0, (heddle_product_kind)(i / 2), (int64_t)1 << 50, budget_ms));
        assert_in_range(jobs, seconds - 3, seconds + 3);
        job_ns = most_jobs = 0;
        assert_non_null(
            strstr(heddle_last_error(), i % 2 == 0 ? "did not end within 600 s" : "did not end within 2000 s"));
        (void)bench(p.block, 0, (heddle_product_kind)(i / 2), 5, 0);
        close_problem(&p);
    }
}

static void refused(const char *why, heddle_bench_product_result *out, heddle_block *block, int param, int kind,
                    int64_t rows, int64_t budget_ms)
{
    HD_FAILS(HEDDLE_ERR_ARG, heddle_bench_product(out, block, param, (heddle_product_kind)kind, rows, budget_ms));
    if (strstr(heddle_last_error(), why) == NULL) {
        fail_msg("'%s' instead of '%s'", heddle_last_error(), why);
    }
}

HD_CASE(what_cannot_be_timed_is_refused_by_name)
{
    problem p;
    heddle_block *fresh = NULL;
    heddle_bench_product_result out = HEDDLE_EMPTY(heddle_bench_product_result);
    const heddle_block_options options = options_of(HEDDLE_STAGE_MLP);
    open_problem(&p, &options);
    HD_OK(heddle_block_create(&fresh, &options));
    refused("out is NULL", NULL, p.block, 0, 0, 1, 0);
    refused("block is NULL", &out, NULL, 0, 0, 1, 0);
    refused("call heddle_block_commit first", &out, fresh, 0, 0, 1, 0);
    refused("parameter 1 is no layer's weight, those of this block are 0, 2 to 2", &out, p.block, 1, 0, 1, 0);
    refused("parameter 4 is no layer's weight", &out, p.block, 4, 0, 1, 0);
    refused("parameter -2 is no layer's weight", &out, p.block, -2, 0, 1, 0);
    refused("there is no product of kind 3", &out, p.block, 0, 3, 1, 0);
    refused("0 rows: must be 1 or more", &out, p.block, 0, 0, 0, 0);
    refused("budget_ms", &out, p.block, 0, 0, 1, -1);
    out.struct_bytes = 8;
    refused("heddle_bench_product_result", &out, p.block, 0, 0, 1, 0);
    heddle_block_destroy(fresh);
    close_problem(&p);
}

HD_CASE(allocations_that_fail_are_said)
{
    problem p;
    heddle_bench_product_result out = HEDDLE_EMPTY(heddle_bench_product_result);
    const heddle_block_options options = options_of(HEDDLE_STAGE_CROSS);
    int failures = 0;
    for (int kind = 0; kind < 3; kind++) {
        heddle_status st = HEDDLE_ERR_NOMEM;
        for (long n = 1; st != HEDDLE_OK; n++) {
            open_problem(&p, &options);
            hd_alloc_fail_at(n);
            st = heddle_bench_product(&out, p.block, 0, (heddle_product_kind)kind, 5, 0);
            hd_alloc_fail_at(0);
            assert_true(st == HEDDLE_OK || st == HEDDLE_ERR_NOMEM);
            failures += st != HEDDLE_OK;
            close_problem(&p);
        }
    }
    assert_true(failures > 6);
}
