/* The gradients of attention for any vector width: included after vector.h, whose scratch and scores it uses. */
/* s: scores to weights; ds: products of gradients to gradients of scores. Lanes without a query give nothing. */
static void weigh_back(const scratch_parts *x, int64_t n_keys, int64_t count)
{
    const vec log2_e = vec_set1(HD_LOG2_E);
    for (int64_t q = 0; q < count; q += VEC) {
        vec top = vec_load(x->f.top + q), delta = vec_load(x->f.sum + q), shrink = vec_load(x->f.shrink + q);
        for (int64_t j = 0; j < n_keys; j++) {
            float *s = x->f.s + j * QUERY_BLOCK + q, *ds = x->ds + j * QUERY_BLOCK + q;
            vec p = vec_exp2(vec_fma(vec_sub(vec_load(s), top), log2_e, shrink));
            vec gradient = vec_mul(p, vec_sub(vec_load(ds), delta));
            vec_store(s, count - q < VEC ? vec_keep(p, count - q) : p);
            vec_store(ds, count - q < VEC ? vec_keep(gradient, count - q) : gradient);
        }
    }
}

static void pull_back(const scratch_parts *x, const hd_attn_block *b, const hd_attn_grad *grad, int64_t first,
                      int64_t end, int masked, int64_t count)
{
    int64_t d = b->d, dp = padded(d);
    int nz = (int)((count + VEC - 1) / VEC);
    const float *k = b->k, *v = b->v;
    for (int64_t k0 = first; k0 < end; k0 += KEY_BLOCK) {
        int64_t n_keys = least(KEY_BLOCK, end - k0);
        score(x->f.s, k + k0 * d, x->f.qt, n_keys, d, nz);
        score(x->ds, v + k0 * d, x->gt, n_keys, d, nz);
        weigh_back(x, n_keys, count);
        if (masked) {
            mask_scores(x->f.s, n_keys, b->diagonal - k0, 0);
            mask_scores(x->ds, n_keys, b->diagonal - k0, 0);
        }
        product to_dv = {(float *)grad->dv + k0 * d, d, x->f.s, QUERY_BLOCK, 1, x->g_rows, dp, n_keys, d, count, 1};
        product to_dk = {(float *)grad->dk + k0 * d, d, x->ds, QUERY_BLOCK, 1, x->q_rows, dp, n_keys, d, count, 1};
        product to_dq = {x->f.o, QUERY_BLOCK, k + k0 * d, 1, d, x->ds, QUERY_BLOCK, d, nz * VEC, n_keys, 1};
        multiply(&to_dv);
        multiply(&to_dk);
        multiply(&to_dq);
    }
}

static hd_attn_grad grad_at(const hd_attn_grad *grad, int64_t q0, int64_t k0, int64_t d)
{
    return (hd_attn_grad){(const float *)grad->d_o + q0 * d, (const float *)grad->top + q0,
                          (const float *)grad->log_sum + q0, (const float *)grad->delta + q0,
                          (float *)grad->dq + q0 * d,        (float *)grad->dk + k0 * d,
                          (float *)grad->dv + k0 * d};
}

static void load_gradients(const scratch_parts *x, const hd_attn_block *block, const hd_attn_grad *grad, int64_t q0,
                           int64_t count)
{
    int64_t d = block->d;
    const float *q = (const float *)block->q + q0 * d, *g = (const float *)grad->d_o + q0 * d;
    transpose_in(x->f.qt, q, d, count, (float)block->scale);
    transpose_in(x->gt, g, d, count, 1);
    pad_rows(x->q_rows, q, d, count, (float)block->scale);
    pad_rows(x->g_rows, g, d, count, 1);
    memset(x->f.o, 0, (size_t)(d * QUERY_BLOCK) * sizeof(float));
    for (int64_t i = 0; i < QUERY_BLOCK; i++) {
        x->f.top[i] = i < count ? ((const float *)grad->top)[q0 + i] : 0;
        x->f.shrink[i] = i < count ? -((const float *)grad->log_sum)[q0 + i] * HD_LOG2_E : 0;
        x->f.sum[i] = i < count ? ((const float *)grad->delta)[q0 + i] : 0;
    }
}

static void backward(const hd_attn_block *block, const hd_attn_grad *grad, void *scratch)
{
    int64_t d = block->d, full, any;
    scratch_parts x = divide(scratch, d);
    for (int64_t q0 = 0; q0 < block->nq; q0 += QUERY_BLOCK) {
        int64_t count = least(QUERY_BLOCK, block->nq - q0);
        key_range(block, q0, count, &full, &any);
        load_gradients(&x, block, grad, q0, count);
        pull_back(&x, block, grad, 0, full, 0, count);
        hd_attn_block edge = edge_of(block, q0, count, full, any);
        hd_attn_grad edge_grad = grad_at(grad, q0, full, d);
        int finite = any > full && rows_all_finite(edge.k, edge.nk * d) && rows_all_finite(edge.v, edge.nk * d) &&
                     rows_all_finite(edge.q, count * d) && rows_all_finite(edge_grad.d_o, count * d) &&
                     rows_all_finite(edge_grad.top, count) && rows_all_finite(edge_grad.log_sum, count) &&
                     rows_all_finite(edge_grad.delta, count);
        if (finite) {
            pull_back(&x, &edge, &edge_grad, 0, edge.nk, 1, count);
        }
        transpose_out((float *)grad->dq + q0 * d, x.f.o, d, count, (float)block->scale, 1);
        if (any > full && !finite) {
            rows_backward(&edge, &edge_grad, NULL);
        }
    }
}
