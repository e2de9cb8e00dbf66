/* Whole score rows, written once for f32 and f64: part of scalar.h, included after it. RSA stores all scores of its
 * queries (Ring Self-Attention, section 3.2), so these work on rows [queries][all keys]. */

#ifndef ATTN_ROWS_ONLY
static void ATTN(scores)(const hd_attn_block *block, const hd_attn_matrix *s, double hidden, void *scratch)
{
    (void)scratch;
    for (int64_t i = 0; i < block->nq; i++) {
        REAL *row = (REAL *)s->data + i * s->stride;
        int64_t seen = ATTN(seen_keys)(block, i);
        for (int64_t j = 0; j < block->nk; j++) {
            row[j] = j < seen ? ATTN(score)(block, i, j) : (REAL)hidden;
        }
    }
}
#endif

/* In place. `seen` 0: the rows see no key at all, their weights are 0 and their log-sum-exp is -inf. */
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
        if (lse != NULL) {
            ((REAL *)lse)[i] = seen ? top + REAL_LOG(sum) : -(REAL)INFINITY;
        }
    }
}

/* dp becomes ds = p (dp - p . dp) times the scale of the scores. */
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

/* out += s b: of keys that the mask hides nothing. */
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

/* out += s^T b. */
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

/* dst += a b^T. */
static void ATTN(add_dots)(void *dst, const void *a, int64_t na, const void *b, int64_t nb, int64_t d)
{
    for (int64_t i = 0; i < na; i++) {
        for (int64_t j = 0; j < nb; j++) {
            ((REAL *)dst)[i * nb + j] += ATTN(dot)((const REAL *)a + i * d, (const REAL *)b + j * d, d);
        }
    }
}
