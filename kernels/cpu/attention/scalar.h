/* Attention on blocks, written once for f32 and f64: REAL, REAL_EXP, REAL_LOG, REAL_MOST, ATTN(name) are defined
 * before. Scalar and in the order of the formulas: the judge of the others.
 *
 * ATTN_ROWS_ONLY: included by a vector variant, for the rows it does not do itself; ATTN(score) is the variant's own,
 * so that a score has the same bits whoever computes it. */

static int64_t ATTN(seen_keys)(const hd_attn_block *block, int64_t i)
{
    int64_t seen = block->diagonal >= block->nk ? block->nk : i + block->diagonal + 1;
    return seen < 0 ? 0 : seen < block->nk ? seen : block->nk;
}

static REAL ATTN(dot)(const REAL *a, const REAL *b, int64_t d)
{
    REAL part[16] = {0}, sum = 0; /* separate sums, so that compilers may use vectors */
    int64_t c = 0;
    for (; c + 16 <= d; c += 16) {
        for (int l = 0; l < 16; l++) {
            part[l] += a[c + l] * b[c + l];
        }
    }
    for (; c < d; c++) {
        sum += a[c] * b[c];
    }
    for (int l = 0; l < 16; l++) {
        sum += part[l];
    }
    return sum;
}

#ifndef ATTN_ROWS_ONLY
static REAL ATTN(score)(const hd_attn_block *block, int64_t i, int64_t j)
{
    int64_t d = block->d;
    return (REAL)block->scale * ATTN(dot)((const REAL *)block->q + i * d, (const REAL *)block->k + j * d, d);
}

static size_t ATTN(scratch_bytes)(int64_t d)
{
    return ((size_t)d * sizeof(REAL) + 63) / 64 * 64;
}
#endif

/* One more key for one query; `down`: HD_ROW_DOWN or 1. */
static void ATTN(take_key)(REAL *acc, REAL *top, REAL *sum, REAL score, const REAL *v, int64_t d, REAL down)
{
    if (!(score <= *top)) { /* NaN comes through */
        REAL shrink = *top == -(REAL)INFINITY ? (REAL)0 : REAL_EXP(*top - score);
        *top = score;
        *sum *= shrink;
        for (int64_t c = 0; c < d; c++) {
            acc[c] *= shrink;
        }
    }
    REAL weight = score == -(REAL)INFINITY ? (REAL)0 : REAL_EXP(score - *top) * down;
    *sum += weight;
    for (int64_t c = 0; c < d; c++) {
        acc[c] += weight * v[c];
    }
}

static int ATTN(all_finite)(const REAL *x, int64_t elems)
{
    REAL sum = 0;
    for (int64_t i = 0; i < elems; i++) {
        sum += x[i] * 0;
    }
    return sum == 0;
}

static int ATTN(is_down)(REAL sum)
{
    return sum > 0 && sum < 1;
}

static void ATTN(take_keys)(const hd_attn_block *block, const hd_attn_carry *carry, int64_t i, REAL down)
{
    int64_t d = block->d, seen = ATTN(seen_keys)(block, i);
    for (int64_t j = 0; j < seen; j++) {
        ATTN(take_key)
        ((REAL *)carry->acc + i * d, (REAL *)carry->top + i, (REAL *)carry->sum + i, ATTN(score)(block, i, j),
         (const REAL *)block->v + j * d, d, down);
    }
}

/* scratch: d reals */
static void ATTN(forward)(const hd_attn_block *block, const hd_attn_carry *carry, void *scratch)
{
    int64_t d = block->d;
    REAL *before = scratch;
    for (int64_t i = 0; i < block->nq; i++) {
        REAL *acc = (REAL *)carry->acc + i * d, *top = (REAL *)carry->top + i, *sum = (REAL *)carry->sum + i;
        REAL top_before = *top, sum_before = *sum;
        int down = ATTN(is_down)(*sum);
        memcpy(before, acc, (size_t)d * sizeof(REAL));
        ATTN(take_keys)(block, carry, i, down ? (REAL)HD_ROW_DOWN : 1);
        if (!down && !ATTN(all_finite)(acc, d)) {
            for (int64_t c = 0; c < d; c++) {
                acc[c] = before[c] * (REAL)HD_ROW_DOWN;
            }
            *top = top_before;
            *sum = sum_before * (REAL)HD_ROW_DOWN;
            ATTN(take_keys)(block, carry, i, (REAL)HD_ROW_DOWN);
        }
    }
}

/* The mean of finite values is within their range, whatever its rounding. */
static REAL ATTN(mean)(REAL acc, REAL inverse)
{
    REAL mean = acc * inverse;
    return mean > REAL_MOST && acc <= REAL_MOST     ? REAL_MOST
           : mean < -REAL_MOST && acc >= -REAL_MOST ? -REAL_MOST
                                                    : mean;
}

static void ATTN(finish)(const hd_attn_carry *carry, void *lse, int seen, int64_t nq, int64_t d)
{
    REAL *acc = carry->acc, *out = lse, *sum = carry->sum;
    const REAL *top = carry->top;
    for (int64_t i = 0; i < nq; i++) {
        int down = ATTN(is_down)(sum[i]);
        REAL inverse = seen ? 1 / sum[i] : 0;
        for (int64_t c = 0; c < d && !down; c++) {
            acc[i * d + c] = seen ? acc[i * d + c] * inverse : 0;
        }
        for (int64_t c = 0; c < d && down; c++) {
            acc[i * d + c] = ATTN(mean)(acc[i * d + c], inverse);
        }
        sum[i] = seen ? REAL_LOG(sum[i]) + (down ? (REAL)HD_ROW_DOWN_LOG : 0) : 0;
        if (out != NULL) {
            out[i] = seen ? top[i] + sum[i] : -(REAL)INFINITY;
        }
    }
}

static void ATTN(backward)(const hd_attn_block *block, const hd_attn_grad *grad, void *scratch)
{
    (void)scratch;
    int64_t d = block->d;
    REAL scale = (REAL)block->scale;
    const REAL *q = block->q, *k = block->k, *v = block->v, *d_o = grad->d_o, *delta = grad->delta;
    const REAL *top = grad->top, *log_sum = grad->log_sum;
    REAL *dq = grad->dq, *dk = grad->dk, *dv = grad->dv;
    for (int64_t i = 0; i < block->nq; i++) {
        int64_t seen = ATTN(seen_keys)(block, i);
        for (int64_t j = 0; j < seen; j++) {
            REAL p = REAL_EXP(ATTN(score)(block, i, j) - top[i] - log_sum[i]);
            REAL ds = p * (ATTN(dot)(d_o + i * d, v + j * d, d) - delta[i]) * scale;
            for (int64_t c = 0; c < d; c++) {
                dv[j * d + c] += p * d_o[i * d + c];
                dq[i * d + c] += ds * k[j * d + c];
                dk[j * d + c] += ds * q[i * d + c];
            }
        }
    }
}

static void ATTN(row_dots)(void *delta, const void *a, const void *b, int64_t rows, int64_t d)
{
    for (int64_t i = 0; i < rows; i++) {
        ((REAL *)delta)[i] = ATTN(dot)((const REAL *)a + i * d, (const REAL *)b + i * d, d);
    }
}

static void ATTN(add)(void *dst, const void *src, int64_t elems)
{
    for (int64_t i = 0; i < elems; i++) {
        ((REAL *)dst)[i] += ((const REAL *)src)[i];
    }
}

static void ATTN(fill)(void *dst, double value, int64_t elems)
{
    for (int64_t i = 0; i < elems; i++) {
        ((REAL *)dst)[i] = (REAL)value;
    }
}
