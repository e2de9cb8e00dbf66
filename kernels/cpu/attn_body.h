/* Attention on blocks, written once for f32 and f64: REAL, REAL_EXP, REAL_LOG, ATTN(name) are defined before. Scalar
 * and in the order of the formulas: the judge of the others. */

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
static size_t ATTN(scratch_bytes)(int64_t d)
{
    (void)d;
    return 64;
}

/* One more key for one query. */
static void ATTN(take_key)(REAL *acc, REAL *top, REAL *sum, REAL score, const REAL *v, int64_t d)
{
    if (!(score <= *top)) { /* NaN comes through */
        REAL shrink = *top == -(REAL)INFINITY ? (REAL)0 : REAL_EXP(*top - score);
        *top = score;
        *sum *= shrink;
        for (int64_t c = 0; c < d; c++) {
            acc[c] *= shrink;
        }
    }
    REAL weight = score == -(REAL)INFINITY ? (REAL)0 : REAL_EXP(score - *top);
    *sum += weight;
    for (int64_t c = 0; c < d; c++) {
        acc[c] += weight * v[c];
    }
}

static void ATTN(forward)(const hd_attn_block *block, const hd_attn_carry *carry, void *scratch)
{
    (void)scratch;
    int64_t d = block->d;
    const REAL *q = block->q, *k = block->k, *v = block->v;
    REAL *acc = carry->acc, *top = carry->top, *sum = carry->sum;
    for (int64_t i = 0; i < block->nq; i++) {
        int64_t seen = ATTN(seen_keys)(block, i);
        for (int64_t j = 0; j < seen; j++) {
            REAL score = (REAL)block->scale * ATTN(dot)(q + i * d, k + j * d, d);
            ATTN(take_key)(acc + i * d, &top[i], &sum[i], score, v + j * d, d);
        }
    }
}

#endif

static void ATTN(finish)(const hd_attn_carry *carry, void *lse, int seen, int64_t nq, int64_t d)
{
    REAL *acc = carry->acc, *out = lse;
    const REAL *top = carry->top, *sum = carry->sum;
    for (int64_t i = 0; i < nq; i++) {
        REAL inverse = seen ? 1 / sum[i] : 0;
        for (int64_t c = 0; c < d; c++) {
            acc[i * d + c] = seen ? acc[i * d + c] * inverse : 0;
        }
        out[i] = seen ? top[i] + REAL_LOG(sum[i]) : -(REAL)INFINITY;
    }
}

#ifndef ATTN_ROWS_ONLY
static void ATTN(backward)(const hd_attn_block *block, const hd_attn_grad *grad, void *scratch)
{
    (void)scratch;
    int64_t d = block->d;
    REAL scale = (REAL)block->scale;
    const REAL *q = block->q, *k = block->k, *v = block->v, *d_o = grad->d_o, *lse = grad->lse, *delta = grad->delta;
    REAL *dq = grad->dq, *dk = grad->dk, *dv = grad->dv;
    for (int64_t i = 0; i < block->nq; i++) {
        int64_t seen = ATTN(seen_keys)(block, i);
        for (int64_t j = 0; j < seen; j++) {
            REAL p = REAL_EXP(scale * ATTN(dot)(q + i * d, k + j * d, d) - lse[i]);
            REAL ds = p * (ATTN(dot)(d_o + i * d, v + j * d, d) - delta[i]) * scale;
            for (int64_t c = 0; c < d; c++) {
                dv[j * d + c] += p * d_o[i * d + c];
                dq[i * d + c] += ds * k[j * d + c];
                dk[j * d + c] += ds * q[i * d + c];
            }
        }
    }
}
#endif

static void ATTN(row_dots)(void *delta, const void *a, const void *b, int64_t rows, int64_t d)
{
    for (int64_t i = 0; i < rows; i++) {
        ((REAL *)delta)[i] = ATTN(dot)((const REAL *)a + i * d, (const REAL *)b + i * d, d);
    }
}

#ifndef ATTN_ROWS_ONLY
static void ATTN(scores)(const hd_attn_block *block, const hd_attn_matrix *s, double hidden, void *scratch)
{
    (void)scratch;
    int64_t d = block->d;
    for (int64_t i = 0; i < block->nq; i++) {
        REAL *row = (REAL *)s->data + i * s->stride;
        int64_t seen = ATTN(seen_keys)(block, i);
        for (int64_t j = 0; j < block->nk; j++) {
            row[j] = j < seen ? (REAL)block->scale *
                                    ATTN(dot)((const REAL *)block->q + i * d, (const REAL *)block->k + j * d, d)
                              : (REAL)hidden;
        }
    }
}
#endif

static void ATTN(softmax)(const hd_attn_matrix *s, int64_t rows, int64_t columns, void *lse, int seen)
{
    for (int64_t i = 0; i < rows; i++) {
        REAL *row = (REAL *)s->data + i * s->stride;
        REAL top = -(REAL)INFINITY, sum = 0;
        for (int64_t j = 0; j < columns; j++) {
            top = !(row[j] <= top) ? row[j] : top;
        }
        for (int64_t j = 0; j < columns; j++) {
            row[j] = row[j] == -(REAL)INFINITY ? (REAL)0 : REAL_EXP(row[j] - top);
            sum += row[j];
        }
        REAL inverse = seen ? 1 / sum : 0;
        for (int64_t j = 0; j < columns; j++) {
            row[j] *= inverse;
        }
        ((REAL *)lse)[i] = seen ? top + REAL_LOG(sum) : -(REAL)INFINITY;
    }
}

static void ATTN(softmax_back)(const hd_attn_matrix *p, const hd_attn_matrix *dp, int64_t rows, int64_t columns,
                               double factor)
{
    for (int64_t i = 0; i < rows; i++) {
        const REAL *weight = (const REAL *)p->data + i * p->stride;
        REAL *row = (REAL *)dp->data + i * dp->stride;
        REAL sum = ATTN(dot)(weight, row, columns);
        for (int64_t j = 0; j < columns; j++) {
            row[j] = weight[j] * (row[j] - sum) * (REAL)factor;
        }
    }
}

static void ATTN(mix)(const hd_attn_block *mask, const hd_attn_matrix *s, const void *b, void *out)
{
    int64_t d = mask->d;
    for (int64_t i = 0; i < mask->nq; i++) {
        const REAL *row = (const REAL *)s->data + i * s->stride;
        REAL *to = (REAL *)out + i * d;
        int64_t seen = ATTN(seen_keys)(mask, i);
        for (int64_t j = 0; j < seen; j++) {
            REAL weight = row[j];
            const REAL *from = (const REAL *)b + j * d;
            for (int64_t c = 0; c < d; c++) {
                to[c] += weight * from[c];
            }
        }
    }
}

static void ATTN(mix_back)(const hd_attn_block *mask, const hd_attn_matrix *s, const void *b, void *out)
{
    int64_t d = mask->d;
    for (int64_t i = 0; i < mask->nq; i++) {
        const REAL *row = (const REAL *)s->data + i * s->stride;
        const REAL *from = (const REAL *)b + i * d;
        int64_t seen = ATTN(seen_keys)(mask, i);
        for (int64_t j = 0; j < seen; j++) {
            REAL weight = row[j];
            REAL *to = (REAL *)out + j * d;
            for (int64_t c = 0; c < d; c++) {
                to[c] += weight * from[c];
            }
        }
    }
}

static void ATTN(add)(void *dst, const void *src, int64_t elems)
{
    for (int64_t i = 0; i < elems; i++) {
        ((REAL *)dst)[i] += ((const REAL *)src)[i];
    }
}
