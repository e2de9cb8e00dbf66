/* The products of a dense pair on gathered rows, in jobs of fixed size: the number of threads changes nothing. */
#include "runtime/parallel/pair_internal.h"

#include "runtime/block/products.h"

#include <string.h>

static heddle_status run_jobs(heddle_dense_pair *pair, hd_thread_job job, int64_t jobs)
{
    return hd_products_run("hd-dense-pair", pair->seats, jobs, job, pair);
}

static int64_t jobs_of(int64_t whole, int64_t part)
{
    return (whole + part - 1) / part;
}

static char *row(const heddle_dense_pair *pair, void *rows, int64_t first)
{
    return (char *)rows + (size_t)(first * pair->channels) * heddle_dtype_bytes(pair->dtype);
}

static heddle_status forward_job(void *ctx, int seat, int64_t job)
{
    heddle_status st = HEDDLE_OK;
    heddle_dense_pair *pair = ctx;
    int64_t first = job * HD_PAIR_ROWS, h = pair->hidden;
    int64_t rows = pair->gathered - first < HD_PAIR_ROWS ? pair->gathered - first : HD_PAIR_ROWS;
    int64_t at = pair->options.forward_only ? (int64_t)seat * HD_PAIR_ROWS : first;
    float *before = pair->before + at * h;
    void *active = pair->active + at * h;
    HD_TRY(hd_gemm_run(pair->gemm[HD_PAIR_FC1], seat, before, row(pair, pair->x, first), rows));
    if (pair->options.activation == HEDDLE_ACTIVATION_GELU) {
        pair->kernels->gelu(active, pair->dtype, before, rows * h);
    } else {
        pair->kernels->convert(active, pair->dtype, before, HEDDLE_F32, rows * h);
    }
    HD_TRY(hd_gemm_run(pair->gemm[HD_PAIR_FC2], seat, row(pair, pair->y, first), active, rows));
out:
    return st;
}

heddle_status hd_pair_rows_forward(heddle_dense_pair *pair)
{
    if (pair->hidden == 0) {
        memset(pair->y, 0, (size_t)(pair->gathered * pair->channels) * heddle_dtype_bytes(pair->dtype));
        return HEDDLE_OK;
    }
    return run_jobs(pair, forward_job, jobs_of(pair->gathered, HD_PAIR_ROWS));
}

/* The hidden layer again where it is not kept, its gradient, and what the weights' gradients are made of. */
static heddle_status hidden_job(void *ctx, int seat, int64_t job)
{
    heddle_status st = HEDDLE_OK;
    heddle_dense_pair *pair = ctx;
    int64_t first = job * HD_PAIR_ROWS, h = pair->hidden, c = pair->channels;
    int64_t rows = pair->gathered - first < HD_PAIR_ROWS ? pair->gathered - first : HD_PAIR_ROWS;
    float *before = pair->before + first * h, *active = pair->active + first * h;
    float *d_hidden = pair->d_hidden + first * h;
    const float *dy = (const float *)pair->y + first * c;
    if (pair->dtype != HEDDLE_F32) {
        pair->kernels->convert(pair->x32 + first * c, HEDDLE_F32, row(pair, pair->x, first), pair->dtype, rows * c);
        pair->kernels->convert(pair->dy32 + first * c, HEDDLE_F32, row(pair, pair->y, first), pair->dtype, rows * c);
        dy = pair->dy32 + first * c;
    }
    if (!pair->kept) {
        HD_TRY(hd_gemm_run(pair->gemm[HD_PAIR_FC1], seat, before, row(pair, pair->x, first), rows));
    }
    HD_TRY(hd_gemm_run(pair->gemm[HD_PAIR_BACK2], seat, d_hidden, dy, rows));
    if (pair->options.activation == HEDDLE_ACTIVATION_GELU) {
        pair->kernels->gelu_back(d_hidden, active, before, HEDDLE_F32, rows * h);
    } else {
        memcpy(active, before, (size_t)(rows * h) * sizeof(float));
    }
out:
    return st;
}

/* dw[n][k] += dout^T in, rows first .. of dw */
static heddle_status add_product(float *dw, const float *dout, const float *in, int64_t n, int64_t k, int64_t rows,
                                 int64_t first)
{
    int64_t count = n - first < HD_PAIR_PANEL_ROWS ? n - first : HD_PAIR_PANEL_ROWS;
    const hd_outer_product product = {dw + first * k, dout + first, in, n, count, k, rows, 1};
    return hd_gemm_outer_f32(&product);
}

/* Panels of fc1's gradient, then of fc2's. */
static heddle_status weight_job(void *ctx, int seat, int64_t job)
{
    heddle_dense_pair *pair = ctx;
    (void)seat;
    heddle_status st = HEDDLE_OK;
    int64_t m = pair->gathered, h = pair->hidden, c = pair->channels;
    const float *x = pair->x32 != NULL ? pair->x32 : pair->x, *dy = pair->dy32 != NULL ? pair->dy32 : pair->y;
    int64_t panels = jobs_of(h, HD_PAIR_PANEL_ROWS);
    if (job < panels) {
        int64_t first = job * HD_PAIR_PANEL_ROWS;
        HD_TRY(add_product(pair->gradient[HD_FC1_WEIGHT], pair->d_hidden, x, h, c, m, first));
        pair->kernels->add_columns(pair->gradient[HD_FC1_BIAS] + first, pair->d_hidden + first, m, h,
                                   h - first < HD_PAIR_PANEL_ROWS ? h - first : HD_PAIR_PANEL_ROWS);
    } else {
        HD_TRY(
            add_product(pair->gradient[HD_FC2_WEIGHT], dy, pair->active, c, h, m, (job - panels) * HD_PAIR_PANEL_ROWS));
    }
out:
    return st;
}

static heddle_status dx_job(void *ctx, int seat, int64_t job)
{
    heddle_dense_pair *pair = ctx;
    int64_t first = job * HD_PAIR_ROWS;
    int64_t rows = pair->gathered - first < HD_PAIR_ROWS ? pair->gathered - first : HD_PAIR_ROWS;
    return hd_gemm_run(pair->gemm[HD_PAIR_BACK1], seat, row(pair, pair->y, first),
                       pair->d_hidden + first * pair->hidden, rows);
}

heddle_status hd_pair_rows_backward(heddle_dense_pair *pair)
{
    heddle_status st = HEDDLE_OK;
    int64_t jobs = jobs_of(pair->gathered, HD_PAIR_ROWS);
    if (pair->hidden == 0) {
        return hd_pair_rows_forward(pair); /* zeros */
    }
    if (pair->gathered == 0) {
        return HEDDLE_OK;
    }
    HD_TRY(run_jobs(pair, hidden_job, jobs));
    HD_TRY(run_jobs(pair, weight_job,
                    jobs_of(pair->hidden, HD_PAIR_PANEL_ROWS) + jobs_of(pair->channels, HD_PAIR_PANEL_ROWS)));
    HD_TRY(run_jobs(pair, dx_job, jobs)); /* dy is not needed any more */
out:
    return st;
}

void hd_pair_add_columns(const heddle_dense_pair *pair, float *dst, const void *rows)
{
    int64_t c = pair->channels;
    if (pair->dtype == HEDDLE_F32) {
        pair->kernels->add_columns(dst, rows, pair->rows, c, c);
        return;
    }
    pair->kernels->add_columns_bf16(dst, rows, pair->rows, c, c);
}
