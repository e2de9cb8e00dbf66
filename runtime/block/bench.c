/* How long products of a block's layers take in host memory, cut as forward and backward cut them. */
#include "runtime/block/bench.h"

#include "kernels/small_float.h"
#include "runtime/base/base.h"
#include "runtime/block/products.h"

#include <stdio.h>
#include <stdlib.h>

enum { SAMPLE_MS = 10, MOST_REPEATS = 1000, MOST_SAMPLES = 10000, NS_PER_MS = 1000000, ALIGNMENT = 64 };
/* Of a sample, which is one call unless those are short, where budget_ms is not more: what a device's waits have. */
enum { DEADLINE_MS = 600000 };

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t parts_of(int64_t whole, int64_t part)
{
    return (whole + part - 1) / part;
}

/* --- samples ------------------------------------------------------------------------------------------------------ */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

heddle_status hd_bench_times(heddle_bench_product_result *out, hd_bench_sample sample, void *ctx, int64_t budget_ms)
{
    heddle_status st = HEDDLE_OK;
    const int64_t start_ns = hd_now_ns();
    double *all = NULL, once_ms = 0;
    int n = 0;
    HD_TRY(hd_alloc((void **)&all, MOST_SAMPLES, sizeof *all, "samples"));
    HD_TRY(sample(&once_ms, ctx, 1)); /* which makes kernels, too */
    HD_TRY(sample(&once_ms, ctx, 1));
    out->repeats = once_ms * MOST_REPEATS > SAMPLE_MS ? (int64_t)(SAMPLE_MS / once_ms) : MOST_REPEATS;
    out->repeats = out->repeats > 1 ? out->repeats : 1;
    do {
        HD_TRY(sample(&all[n], ctx, out->repeats));
        all[n++] /= (double)out->repeats;
    } while (n < MOST_SAMPLES && (hd_now_ns() - start_ns) / NS_PER_MS < budget_ms);
    qsort(all, (size_t)n, sizeof *all, compare);
    out->samples = n;
    out->min_ms = all[0];
    out->median_ms = n % 2 != 0 ? all[n / 2] : (all[n / 2 - 1] + all[n / 2]) / 2;
out:
    hd_free(all);
    return st;
}

void hd_bench_fill(void *dst, heddle_dtype dtype, int64_t elems)
{
    for (int64_t i = 0; i < elems; i++) {
        const float x = (float)(i * 7919 % 1999) / 1000 - 1;
        if (dtype == HEDDLE_F32) {
            ((float *)dst)[i] = x;
        } else {
            ((uint16_t *)dst)[i] = dtype == HEDDLE_BF16 ? hd_bf16_from_f32(x) : hd_f16_from_f32(x);
        }
    }
}

/* --- host memory -------------------------------------------------------------------------------------------------- */

typedef struct host_bench {
    heddle_block *block;
    hd_gemm *gemm; /* of rows; NULL: OUTER */
    heddle_product of;
    int64_t rows, stretch; /* stretch: of OUTER, the present one */
    char *src, *with, *dst;
    size_t src_step, dst_step; /* from seat to seat; 0: they share it */
    int64_t limit_ms, deadline_ns;
} host_bench;

/* Of many rows a call would last for years. */
static heddle_status look(const host_bench *b)
{
    return hd_now_ns() < b->deadline_ns
               ? HEDDLE_OK
               : hd_fail(HEDDLE_ERR_TIMEOUT,
                         "a product of %lld rows with a layer from %lld to %lld channels did not end within %lld s",
                         (long long)b->rows, (long long)b->of.k, (long long)b->of.n, (long long)b->limit_ms / 1000);
}

static heddle_status row_job(void *ctx, int seat, int64_t job)
{
    const host_bench *b = ctx;
    heddle_status st = HEDDLE_OK;
    HD_TRY(look(b));
    st = hd_gemm_run(b->gemm, seat, b->dst + (size_t)seat * b->dst_step, b->src + (size_t)seat * b->src_step,
                     smaller(HD_CHUNK_ROWS, b->rows - job * HD_CHUNK_ROWS));
out:
    return st;
}

static heddle_status panel_job(void *ctx, int seat, int64_t job)
{
    const host_bench *b = ctx;
    heddle_status st = look(b);
    const heddle_product *of = &b->of;
    const int64_t first = job * HD_PANEL_ROWS;
    const size_t elem = heddle_dtype_bytes(of->dtype);
    for (int64_t r = 0; r < b->stretch && st == HEDDLE_OK; r += HD_UNIT_ROWS) {
        const hd_outer_product product = {.dw = (float *)(void *)b->dst + first * of->k,
                                          .dy = b->src + (size_t)(r * of->n + first) * elem,
                                          .x = b->with + (size_t)(r * of->k) * elem,
                                          .dy_stride = of->n,
                                          .n = smaller(HD_PANEL_ROWS, of->n - first),
                                          .k = of->k,
                                          .rows = smaller(HD_UNIT_ROWS, b->stretch - r),
                                          .add = 1};
        st = hd_back_outer(b->block, seat, of->dtype, &product);
    }
    return st;
}

static heddle_status call(host_bench *b)
{
    heddle_status st = HEDDLE_OK;
    const int64_t most = hd_walk_rows(b->block, 1, b->rows);
    if (b->gemm != NULL) {
        return hd_products_run("hd-bench", b->block->seats, parts_of(b->rows, HD_CHUNK_ROWS), row_job, b);
    }
    for (int64_t r = 0; r < b->rows && st == HEDDLE_OK; r += b->stretch) {
        b->stretch = smaller(most, b->rows - r);
        st = hd_products_run("hd-bench", b->block->seats, parts_of(b->of.n, HD_PANEL_ROWS), panel_job, b);
    }
    return st;
}

static heddle_status sample(double *ms, void *ctx, int64_t repeats)
{
    host_bench *b = ctx;
    heddle_status st = HEDDLE_OK;
    const int64_t start_ns = hd_now_ns();
    b->deadline_ns = start_ns + b->limit_ms * NS_PER_MS;
    for (int64_t i = 0; i < repeats && st == HEDDLE_OK; i++) {
        st = call(b);
    }
    *ms = (double)(hd_now_ns() - start_ns) / NS_PER_MS;
    return st;
}

static heddle_status make_array(char **out, size_t *step, heddle_dtype dtype, int64_t rows, int64_t columns, int seats)
{
    heddle_status st = HEDDLE_OK;
    const int64_t factor[] = {rows, columns, (int64_t)heddle_dtype_bytes(dtype)};
    const char *what = "an array to time a product with";
    int64_t bytes = 0;
    HD_TRY(hd_product(&bytes, what, 3, factor));
    const size_t each = ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    HD_TRY(hd_alloc_aligned((void **)out, ALIGNMENT, each * (size_t)seats, what));
    for (int i = 0; i < seats; i++) {
        hd_bench_fill(*out + (size_t)i * each, dtype, rows * columns);
    }
    *step = each;
out:
    return st;
}

/* The layer of rows, or that whose types the gradient of its weight has. */
static heddle_status find_layer(hd_gemm **out, heddle_block *block, int layer, heddle_product_kind kind)
{
    heddle_status st = HEDDLE_OK;
    if (kind == HEDDLE_PRODUCT_FORWARD) {
        *out = block->layer[layer];
        return HEDDLE_OK;
    }
    HD_TRY(hd_back_make(block));
    HD_TRY(hd_back_pack(block));
    *out = block->back->layer[layer];
out:
    return st;
}

static heddle_status make(host_bench *b, int layer, heddle_product_kind kind)
{
    heddle_status st = HEDDLE_OK;
    const heddle_param *weight = &b->block->param[2 * layer];
    const int64_t n = weight->extent[0], k = weight->extent[1], rows = hd_walk_rows(b->block, 1, b->rows);
    const int seats = b->block->seats, is_forward = kind == HEDDLE_PRODUCT_FORWARD;
    size_t shared = 0;
    hd_gemm *gemm = NULL;
    HD_TRY(find_layer(&gemm, b->block, layer, kind));
    b->of = (heddle_product){.kind = kind,
                             .dtype = hd_gemm_src_dtype(gemm),
                             .dst_dtype = hd_gemm_dst_dtype(gemm),
                             .n = n,
                             .k = k,
                             .has_bias = is_forward};
    if (kind == HEDDLE_PRODUCT_OUTER) {
        HD_TRY(make_array(&b->src, &shared, b->of.dtype, rows, n, 1));
        HD_TRY(make_array(&b->with, &shared, b->of.dtype, rows, k, 1));
        st = make_array(&b->dst, &shared, HEDDLE_F32, n, k, 1);
        goto out;
    }
    b->gemm = gemm;
    HD_TRY(make_array(&b->src, &b->src_step, b->of.dtype, HD_CHUNK_ROWS, is_forward ? k : n, seats));
    HD_TRY(make_array(&b->dst, &b->dst_step, b->of.dst_dtype, HD_CHUNK_ROWS, is_forward ? n : k, seats));
out:
    return st;
}

static void say_kernel(char *out, size_t bytes, const host_bench *b)
{
    if (b->gemm == NULL) {
        snprintf(out, bytes, "oneDNN, %s, %d rows of the weight at once",
                 b->of.dtype == HEDDLE_F32 ? "sgemm" : "gemm of bf16", (int)HD_PANEL_ROWS);
        return;
    }
    snprintf(out, bytes, "oneDNN, %s, %lld rows at once%s", hd_gemm_kernel(b->gemm),
             (long long)hd_gemm_block_rows(b->gemm),
             b->of.dtype == HEDDLE_BF16 && !hd_gemm_narrow(b->gemm) ? ", by way of f32" : "");
}

static heddle_status bench_host(heddle_bench_product_result *out, heddle_block *block, int layer,
                                heddle_product_kind kind, int64_t rows, int64_t budget_ms)
{
    heddle_status st = HEDDLE_OK;
    host_bench b = {.block = block, .rows = rows, .limit_ms = budget_ms > DEADLINE_MS ? budget_ms : DEADLINE_MS};
    HD_TRY(make(&b, layer, kind));
    out->of = b.of;
    say_kernel(out->kernel, sizeof out->kernel, &b);
    st = hd_bench_times(out, sample, &b, budget_ms);
out:
    HD_FREE_ALL(b.src, b.with, b.dst);
    return st;
}

/* --- the call ----------------------------------------------------------------------------------------------------- */

static heddle_status check(const heddle_block *block, int param, heddle_product_kind kind, int64_t rows)
{
    if (!block->committed) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_bench_product: the block's weights are not ready: call "
                                       "heddle_block_commit first");
    }
    if (param < 0 || param >= 2 * block->nlayers || param % 2 != 0) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "heddle_bench_product: parameter %d is no layer's weight, those of this block "
                       "are 0, 2 to %d",
                       param, 2 * block->nlayers - 2);
    }
    if (kind != HEDDLE_PRODUCT_FORWARD && kind != HEDDLE_PRODUCT_BACK && kind != HEDDLE_PRODUCT_OUTER) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_bench_product: there is no product of kind %d", (int)kind);
    }
    return rows >= 1 ? HEDDLE_OK
                     : hd_fail(HEDDLE_ERR_ARG, "heddle_bench_product: %lld rows: must be 1 or more", (long long)rows);
}

heddle_status heddle_bench_product(heddle_bench_product_result *out, heddle_block *block, int param,
                                   heddle_product_kind kind, int64_t rows, int64_t budget_ms)
{
    heddle_status st = HEDDLE_OK;
    heddle_bench_product_result made = HEDDLE_EMPTY(heddle_bench_product_result);
    HD_TRY(HD_NEED(out, block));
    HD_TRY(hd_struct_room(out, HD_STRUCT(heddle_bench_product_result, kernel)));
    HD_TRY(hd_check_ms(budget_ms, "budget_ms"));
    HD_TRY(check(block, param, kind, rows));
    HD_TRY((block->on != NULL ? hd_on_bench_product : bench_host)(&made, block, param / 2, kind, rows, budget_ms));
    st = hd_struct_give(out, &made, HD_STRUCT(heddle_bench_product_result, kernel));
out:
    return st;
}
