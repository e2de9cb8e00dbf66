/* Whole score rows for any vector width: included after vector.h and the rows of scalar_rows.h (rows_NAME), which do
 * what the mask's edge crosses, and widths that are no multiple of the vector. */

enum { SUM_BLOCK = 256 };

static int is_masked(const hd_attn_block *b)
{
    return b->diagonal < b->nk - 1;
}

static void scores(const hd_attn_block *block, const hd_attn_matrix *s, double hidden, void *scratch)
{
    int64_t d = block->d;
    float *keys = scratch; /* [d][QUERY_BLOCK] */
    for (int64_t k0 = 0; k0 < block->nk; k0 += QUERY_BLOCK) {
        int64_t count = least(QUERY_BLOCK, block->nk - k0);
        transpose_in(keys, (const float *)block->k + k0 * d, d, count, (float)block->scale);
        product p = {(float *)s->data + k0, s->stride, block->q, d, 1, keys, QUERY_BLOCK, block->nq, count, d, 0};
        multiply(&p);
    }
    for (int64_t i = 0; is_masked(block) && i < block->nq; i++) {
        for (int64_t j = rows_seen_keys(block, i); j < block->nk; j++) {
            ((float *)s->data)[i * s->stride + j] = (float)hidden;
        }
    }
}

static float largest(const float *row, int64_t columns)
{
    vec top = vec_set1(-__builtin_inff());
    float lane[VEC], most = -__builtin_inff();
    int64_t j = 0;
    for (; j + VEC <= columns; j += VEC) {
        top = vec_max(vec_load(row + j), top);
    }
    vec_store(lane, top);
    for (int l = 0; l < VEC; l++) {
        most = lane[l] > most ? lane[l] : most;
    }
    for (; j < columns; j++) {
        most = row[j] > most ? row[j] : most;
    }
    return most;
}

/* A NaN gets through as a weight, and from there into the sum. */
static void softmax(const hd_attn_matrix *s, int64_t rows, int64_t columns, void *lse, int seen)
{
    const vec log2_e = vec_set1(HD_LOG2_E);
    for (int64_t i = 0; i < rows; i++) {
        float *row = (float *)s->data + i * s->stride, top = largest(row, columns);
        if (!seen || top == -__builtin_inff() || top == __builtin_inff()) {
            hd_attn_matrix one = {row, s->stride};
            rows_softmax(&one, 1, columns, lse != NULL ? (float *)lse + i : NULL, seen);
            continue;
        }
        vec sum = vec_set1(0);
        for (int64_t j = 0; j < columns; j += VEC) {
            vec power = vec_mul(vec_sub(vec_load_part(row + j, columns - j), vec_set1(top)), log2_e);
            vec weight = vec_keep(vec_exp2(power), columns - j);
            vec_store_part(row + j, weight, columns - j);
            sum = vec_add(sum, weight);
        }
        float total = vec_sum(sum);
        vec inverse = vec_set1(1 / total);
        for (int64_t j = 0; j < columns; j += VEC) {
            vec_store_part(row + j, vec_mul(vec_load_part(row + j, columns - j), inverse), columns - j);
        }
        if (lse != NULL) {
            ((float *)lse)[i] = top + logf(total);
        }
    }
}

static void mix(const hd_attn_block *mask, const hd_attn_matrix *s, const void *b, void *out)
{
    int64_t d = mask->d;
    if (is_masked(mask) || d % VEC != 0) {
        rows_mix(mask, s, b, out);
        return;
    }
    for (int64_t k0 = 0; k0 < mask->nk; k0 += SUM_BLOCK) {
        product p = {out,      d, (const float *)s->data + k0,     s->stride, 1, (const float *)b + k0 * d, d,
                     mask->nq, d, least(SUM_BLOCK, mask->nk - k0), 1};
        multiply(&p);
    }
}

static void mix_back(const hd_attn_block *mask, const hd_attn_matrix *s, const void *b, void *out)
{
    int64_t d = mask->d;
    if (is_masked(mask) || d % VEC != 0) {
        rows_mix_back(mask, s, b, out);
        return;
    }
    for (int64_t q0 = 0; q0 < mask->nq; q0 += SUM_BLOCK) {
        product p = {out,      d, (const float *)s->data + q0 * s->stride, 1, s->stride, (const float *)b + q0 * d, d,
                     mask->nk, d, least(SUM_BLOCK, mask->nq - q0),         1};
        multiply(&p);
    }
}
