/* Kernels of attention on blocks against the reference: odd sizes, masks, carry, NaN behind a mask. */
#include "case.h"
#include "draw.h"

#include "kernels/table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 300, WIDE = 80 };

typedef struct arrays {
    float q[MOST * WIDE], k[MOST * WIDE], v[MOST * WIDE], d_o[MOST * WIDE];
    float acc[MOST * WIDE], top[MOST], sum[MOST], lse[MOST], delta[MOST];
    float dq[MOST * WIDE], dk[MOST * WIDE], dv[MOST * WIDE];
} arrays;

static void *aligned(size_t bytes)
{
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

/* Forward over two pieces of the keys, then finish and backward. */
static void run(arrays *x, const hd_attn_kernels *kernels, int64_t nq, int64_t nk, int64_t d, int64_t diagonal)
{
    void *scratch = aligned(kernels->scratch_bytes(d));
    hd_attn_carry carry = {x->acc, x->top, x->sum};
    int64_t half = nk / 2;
    memset(x->acc, 0, sizeof x->acc);
    memset(x->sum, 0, sizeof x->sum);
    memset(x->dq, 0, sizeof x->dq);
    memset(x->dk, 0, sizeof x->dk);
    memset(x->dv, 0, sizeof x->dv);
    for (int64_t i = 0; i < nq; i++) {
        x->top[i] = -INFINITY;
    }
    hd_attn_block block = {x->q, x->k, x->v, nq, half, d, diagonal, 0.3};
    kernels->forward(&block, &carry, scratch);
    block.k = x->k + half * d;
    block.v = x->v + half * d;
    block.nk = nk - half;
    block.diagonal = diagonal == INT64_MAX ? diagonal : diagonal - half;
    kernels->forward(&block, &carry, scratch);
    kernels->finish(&carry, x->lse, 1, nq, d);
    kernels->row_dots(x->delta, x->acc, x->d_o, nq, d);
    hd_attn_block whole = {x->q, x->k, x->v, nq, nk, d, diagonal, 0.3};
    hd_attn_grad grad = {x->d_o, x->top, x->sum, x->delta, x->dq, x->dk, x->dv};
    kernels->backward(&whole, &grad, scratch);
    free(scratch);
}

static void same(const float *a, const float *b, int64_t elems, float tolerance)
{
    for (int64_t i = 0; i < elems; i++) {
        int ok = isnan(b[i]) ? isnan(a[i]) : a[i] == b[i] || fabsf(a[i] - b[i]) <= tolerance * (1 + fabsf(b[i]));
        if (!ok) {
            fail_msg("element %lld is %.9g, the reference has %.9g", (long long)i, (double)a[i], (double)b[i]);
        }
    }
}

static void compare(const hd_attn_kernels *kernels, int64_t nq, int64_t nk, int64_t d, int64_t diagonal, int poison)
{
    arrays *x = calloc(1, sizeof *x), *y = calloc(1, sizeof *y);
    for (int64_t i = 0; i < MOST * WIDE; i++) {
        x->q[i] = symmetric();
        x->k[i] = symmetric();
        x->v[i] = symmetric();
        x->d_o[i] = symmetric();
    }
    if (poison) { /* behind the mask of most queries; a score of -infinity; a NaN gradient */
        x->k[(nk - 1) * d] = NAN;
        x->v[(nk - 2) * d] = INFINITY;
        x->k[1 * d] = x->q[0] > 0 ? -INFINITY : INFINITY;
        x->d_o[(nq / 2) * d] = NAN;
    }
    memcpy(y, x, sizeof *x);
    run(x, kernels, nq, nk, d, diagonal);
    run(y, &hd_kernels_named("generic")->attn_f32, nq, nk, d, diagonal);
    same(x->acc, y->acc, nq * d, 1e-5f);
    same(x->lse, y->lse, nq, 1e-5f);
    same(x->dq, y->dq, nq * d, 3e-5f);
    same(x->dk, y->dk, nk * d, 3e-5f);
    same(x->dv, y->dv, nk * d, 3e-5f);
    free(x);
    free(y);
}

/* Whole rows: scores, softmax, products, one after the other. */
static void run_rows(arrays *x, float *s, float *ds, const hd_attn_kernels *kernels, int64_t nq, int64_t nk, int64_t d,
                     int64_t diagonal)
{
    void *scratch = aligned(kernels->scratch_bytes(d));
    hd_attn_block scores = {x->q, x->k, NULL, nq, nk, d, diagonal, 0.3};
    hd_attn_block products = {x->d_o, x->v, NULL, nq, nk, d, diagonal, 1};
    hd_attn_matrix p = {s, nk + 3}, dp = {ds, nk + 3};
    memset(x->acc, 0, sizeof x->acc);
    memset(x->dk, 0, sizeof x->dk);
    kernels->scores(&scores, &p, -INFINITY, scratch);
    kernels->softmax(&p, nq, nk, x->lse, 1);
    kernels->mix(&scores, &p, x->v, x->acc);
    kernels->scores(&products, &dp, 0, scratch);
    kernels->softmax_back(&p, &dp, nq, nk, 0.3);
    kernels->mix_back(&scores, &dp, x->q, x->dk);
    free(scratch);
}

static void compare_rows(const hd_attn_kernels *kernels, int64_t nq, int64_t nk, int64_t d, int64_t diagonal,
                         int poison)
{
    arrays *x = calloc(1, sizeof *x), *y = calloc(1, sizeof *y);
    float *s = calloc(4 * MOST * (MOST + 3), sizeof *s);
    for (int64_t i = 0; i < MOST * WIDE; i++) {
        x->q[i] = symmetric();
        x->k[i] = symmetric();
        x->v[i] = symmetric();
        x->d_o[i] = symmetric();
    }
    if (poison) {
        x->k[(nk - 1) * d] = NAN;
        x->v[0] = INFINITY;
    }
    memcpy(y, x, sizeof *x);
    int64_t elems = MOST * (MOST + 3);
    run_rows(x, s, s + elems, kernels, nq, nk, d, diagonal);
    run_rows(y, s + 2 * elems, s + 3 * elems, &hd_kernels_named("generic")->attn_f32, nq, nk, d, diagonal);
    same(s, s + 2 * elems, nq * (nk + 3), 1e-5f);
    same(x->acc, y->acc, nq * d, 1e-5f);
    same(x->lse, y->lse, nq, 1e-5f);
    same(x->dk, y->dk, nk * d, 3e-5f);
    free(x);
    free(y);
    free(s);
}

static void check_variant(const char *name)
{
    const hd_kernels *table = hd_kernels_named(name);
    if (table == NULL) {
        hd_skip(name, "this CPU has no %s", name);
    }
    const hd_attn_kernels *kernels = &table->attn_f32;
    const int64_t sizes[][3] = {{1, 1, 1},      {5, 7, 3},    {64, 96, 64}, {65, 200, 20},
                                {130, 300, 72}, {17, 40, 33}, {300, 97, 8}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t nq = sizes[i][0], nk = sizes[i][1], d = sizes[i][2];
        const int64_t diagonals[] = {INT64_MAX, nk, 0, nk / 2, nk - nq > 0 ? nk - nq : 0};
        for (int j = 0; j < 5; j++) {
            compare(kernels, nq, nk, d, diagonals[j], 0);
            compare_rows(kernels, nq, nk, d, diagonals[j], 0);
            compare_rows(kernels, nq, nk, d, diagonals[j], 1);
            if (nk > 5) {
                compare(kernels, nq, nk, d, diagonals[j], 1);
            }
        }
    }
}

HD_CASE(avx512_is_the_reference)
{
    check_variant("avx512");
}

HD_CASE(avx2_is_the_reference)
{
    check_variant("avx2");
}

HD_CASE(unknown_kernels_are_null)
{
    assert_null(hd_kernels_named("avx1024"));
    assert_string_equal(hd_kernels_attn(hd_kernels_named("generic"), HEDDLE_F64)->name, "f64");
}
