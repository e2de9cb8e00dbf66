/* Attention on blocks for any vector width: included after the vectors, vec_math.h and tile.h.
 *
 * Queries lie across the lanes: a block of them is transposed, scores are computed transposed, s[key][query], so
 * softmax needs no sum across lanes. Where the mask's edge crosses a block, scores are masked; keys and queries there
 * are looked over first, and a piece with infinities or NaN goes to the scalar rows (rows_NAME of scalar.h, included
 * before), which never touch what is masked. So does a query whose sums leave the range of the type.
 *
 * Scores are in natural units and their largest is taken away before anything else happens to them: of large scores
 * only the difference is good to anything, and it is exact.
 */
enum { QUERY_BLOCK = VEC * VEC_COLUMNS, KEY_BLOCK = 96 };

typedef struct scratch_parts {
    float *qt;                          /* [d][QUERY_BLOCK] */
    float *ot;                          /* [d][QUERY_BLOCK]: o; gradient of q */
    float *gt;                          /* [d][QUERY_BLOCK]: gradient of o */
    float *q_rows, *g_rows;             /* [QUERY_BLOCK][d padded] */
    float *s, *ds;                      /* [KEY_BLOCK][QUERY_BLOCK] */
    float *top, *higher, *sum, *shrink; /* [QUERY_BLOCK]; backward: top, -, delta, -log2 of the sum of weights */
} scratch_parts;

static int64_t padded(int64_t d)
{
    return (d + VEC - 1) / VEC * VEC;
}

static size_t scratch_bytes(int64_t d)
{
    return (size_t)((3 * d + 2 * KEY_BLOCK + 4 + 2 * padded(d)) * QUERY_BLOCK) * sizeof(float);
}

static scratch_parts divide(float *memory, int64_t d)
{
    scratch_parts x;
    x.qt = memory;
    x.ot = x.qt + d * QUERY_BLOCK;
    x.gt = x.ot + d * QUERY_BLOCK;
    x.s = x.gt + d * QUERY_BLOCK;
    x.ds = x.s + KEY_BLOCK * QUERY_BLOCK;
    x.top = x.ds + KEY_BLOCK * QUERY_BLOCK;
    x.higher = x.top + QUERY_BLOCK;
    x.sum = x.higher + QUERY_BLOCK;
    x.shrink = x.sum + QUERY_BLOCK;
    x.q_rows = x.shrink + QUERY_BLOCK;
    x.g_rows = x.q_rows + padded(d) * QUERY_BLOCK;
    return x;
}

INLINE int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* to[i][q] = from[q][i] * factor for `count` rows of d, the other lanes 0. */
static void transpose_in(float *to, const float *from, int64_t d, int64_t count, float factor)
{
    vec scale = vec_set1(factor);
    for (int64_t q = 0; q < count; q += VEC) {
        for (int64_t i = 0; i < d; i += VEC) {
            vec t[VEC];
#pragma GCC unroll 16
            for (int r = 0; r < VEC; r++) {
                t[r] = q + r < count ? vec_mul(vec_load_part(from + (q + r) * d + i, d - i), scale) : vec_set1(0);
            }
            vec_transpose(t);
#pragma GCC unroll 16
            for (int r = 0; r < VEC; r++) {
                if (r < d - i) {
                    vec_store(to + (i + r) * QUERY_BLOCK + q, t[r]);
                }
            }
        }
    }
}

/* to[q][i] = from[i][q], or is increased by from[i][q] * factor. */
static void transpose_out(float *to, const float *from, int64_t d, int64_t count, float factor, int add)
{
    vec scale = vec_set1(factor);
    for (int64_t q = 0; q < count; q += VEC) {
        for (int64_t i = 0; i < d; i += VEC) {
            vec t[VEC];
#pragma GCC unroll 16
            for (int r = 0; r < VEC; r++) {
                t[r] = i + r < d ? vec_load(from + (i + r) * QUERY_BLOCK + q) : vec_set1(0);
            }
            vec_transpose(t);
#pragma GCC unroll 16
            for (int r = 0; r < VEC; r++) {
                if (q + r < count) {
                    float *at = to + (q + r) * d + i;
                    vec value = add ? vec_fma(t[r], scale, vec_load_part(at, d - i)) : t[r];
                    vec_store_part(at, value, d - i);
                }
            }
        }
    }
}

static void pad_rows(float *to, const float *from, int64_t d, int64_t count, float factor)
{
    vec scale = vec_set1(factor);
    for (int64_t q = 0; q < count; q++) {
        for (int64_t i = 0; i < d; i += VEC) {
            vec_store(to + q * padded(d) + i, vec_mul(vec_load_part(from + q * d + i, d - i), scale));
        }
    }
}

/* Keys that all queries q0.. see, and those that at least the last one sees. */
static void key_range(const hd_attn_block *b, int64_t q0, int64_t count, int64_t *full, int64_t *any)
{
    int64_t first = b->diagonal >= b->nk ? b->nk : q0 + b->diagonal + 1;
    int64_t last = b->diagonal >= b->nk ? b->nk : first + count - 1;
    *full = first < 0 ? 0 : least(first, b->nk);
    *any = last < 0 ? 0 : least(last, b->nk);
}

/* The piece of a block where the mask's edge runs. */
static hd_attn_block edge_of(const hd_attn_block *b, int64_t q0, int64_t count, int64_t full, int64_t any)
{
    const float *q = b->q, *k = b->k, *v = b->v;
    int64_t diagonal = any > full ? q0 + b->diagonal - full : 0; /* without an edge it may be anything */
    return (hd_attn_block){q + q0 * b->d, k + full * b->d, v + full * b->d, count, any - full,
                           b->d,          diagonal,        b->scale};
}

static void score(float *s, const float *keys, const float *qt, int64_t n_keys, int64_t d, int nz)
{
    product p = {s, QUERY_BLOCK, keys, d, 1, qt, QUERY_BLOCK, n_keys, nz * VEC, d, 0};
    multiply(&p);
}

/* Key r is seen from lane r - diagonal on; the others become `hidden`. */
static void mask_scores(float *s, int64_t n_keys, int64_t diagonal, float hidden)
{
    for (int64_t r = 0; r < n_keys; r++) {
        int64_t blind = least(r - diagonal, QUERY_BLOCK);
        for (int64_t lane = 0; lane < blind; lane++) {
            s[r * QUERY_BLOCK + lane] = hidden;
        }
    }
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

/* Scores to weights, their sums, and by how much earlier ones shrink. */
static void weigh(const scratch_parts *x, int64_t n_keys, int nz)
{
    const vec log2_e = vec_set1(HD_LOG2_E);
    for (int z = 0; z < nz; z++) {
        float *s = x->s + z * VEC;
        vec top = vec_load(x->top + z * VEC), higher = top;
        for (int64_t j = 0; j < n_keys; j++) {
            higher = vec_max(higher, vec_load(s + j * QUERY_BLOCK));
        }
        vec shrink = vec_exp2(vec_mul(vec_sub(top, higher), log2_e));
        vec sum = vec_mul(vec_load(x->sum + z * VEC), shrink), more = vec_set1(0);
        for (int64_t j = 0; j + 1 < n_keys; j += 2) {
            vec below_a = vec_sub(vec_load(s + j * QUERY_BLOCK), higher);
            vec below_b = vec_sub(vec_load(s + (j + 1) * QUERY_BLOCK), higher);
            vec a = vec_exp2(vec_mul(below_a, log2_e)), b = vec_exp2(vec_mul(below_b, log2_e));
            vec_store(s + j * QUERY_BLOCK, a);
            vec_store(s + (j + 1) * QUERY_BLOCK, b);
            sum = vec_add(sum, a);
            more = vec_add(more, b);
        }
        if (n_keys % 2 != 0) {
            float *at = s + (n_keys - 1) * QUERY_BLOCK;
            vec a = vec_exp2(vec_mul(vec_sub(vec_load(at), higher), log2_e));
            vec_store(at, a);
            sum = vec_add(sum, a);
        }
        vec_store(x->top + z * VEC, higher);
        vec_store(x->sum + z * VEC, vec_add(sum, more));
        vec_store(x->shrink + z * VEC, shrink);
    }
}

static void shrink_outputs(const scratch_parts *x, int64_t d, int nz)
{
    for (int64_t i = 0; i < d; i++) {
        for (int z = 0; z < nz; z++) {
            float *at = x->ot + i * QUERY_BLOCK + z * VEC;
            vec_store(at, vec_mul(vec_load(at), vec_load(x->shrink + z * VEC)));
        }
    }
}

static void attend(const scratch_parts *x, const hd_attn_block *b, int64_t first, int64_t end, int masked, int nz)
{
    int64_t d = b->d;
    const float *k = b->k, *v = b->v;
    for (int64_t k0 = first; k0 < end; k0 += KEY_BLOCK) {
        int64_t n_keys = least(KEY_BLOCK, end - k0);
        score(x->s, k + k0 * d, x->qt, n_keys, d, nz);
        if (masked) {
            mask_scores(x->s, n_keys, b->diagonal - k0, -__builtin_inff());
        }
        weigh(x, n_keys, nz);
        shrink_outputs(x, d, nz);
        product mix = {x->ot, QUERY_BLOCK, v + k0 * d, 1, d, x->s, QUERY_BLOCK, d, nz * VEC, n_keys, 1};
        multiply(&mix);
    }
}

static void load_carry(const scratch_parts *x, const hd_attn_carry *carry, int64_t q0, int64_t count, int64_t d)
{
    const float *top = carry->top, *sum = carry->sum;
    transpose_in(x->ot, (const float *)carry->acc + q0 * d, d, count, 1);
    for (int64_t i = 0; i < QUERY_BLOCK; i++) {
        float known = i < count ? top[q0 + i] : 0;
        x->top[i] = known == -__builtin_inff() ? -__FLT_MAX__ : known;
        x->sum[i] = i < count ? sum[q0 + i] : 0;
    }
}

static void store_carry(const scratch_parts *x, const hd_attn_carry *carry, int64_t q0, int64_t count, int64_t d)
{
    float *top = carry->top, *sum = carry->sum;
    transpose_out((float *)carry->acc + q0 * d, x->ot, d, count, 1, 0);
    for (int64_t i = 0; i < count; i++) {
        top[q0 + i] = x->top[i] == -__FLT_MAX__ ? -__builtin_inff() : x->top[i];
        sum[q0 + i] = x->sum[i];
    }
}

/* higher[lane]: 0, or NaN where an output is not finite. */
static void look_over(const scratch_parts *x, int64_t d, int nz)
{
    for (int z = 0; z < nz; z++) {
        vec bad[2] = {vec_set1(0), vec_set1(0)};
        for (int64_t i = 0; i < d; i++) {
            bad[i % 2] = vec_fma(vec_load(x->ot + i * QUERY_BLOCK + z * VEC), vec_set1(0), bad[i % 2]);
        }
        vec_store(x->higher + z * VEC, vec_add(bad[0], bad[1]));
    }
}

/* Queries whose sums have left the range, or that are kept smaller for that, once more from the carry as it was, each
 * by itself: nothing depends on its neighbours. `keys`: those taken so far. */
static void redo_rows(const scratch_parts *x, const hd_attn_block *block, const hd_attn_carry *carry, int64_t q0,
                      int64_t count, int64_t keys)
{
    int64_t d = block->d;
    int finite = -1; /* not looked yet */
    for (int64_t i = 0; i < count; i++) {
        int64_t row = q0 + i, seen = rows_seen_keys(block, row);
        hd_attn_carry own = {(float *)carry->acc + row * d, (float *)carry->top + row, (float *)carry->sum + row};
        hd_attn_block one = {
            (const float *)block->q + row * d, block->k, block->v, 1, least(seen, keys), d, INT64_MAX, block->scale};
        int down = rows_is_down(*(float *)own.sum);
        if (!down && x->higher[i] == 0) {
            continue;
        }
        if (!down && finite < 0) {
            finite = rows_all_finite(block->k, keys * d) && rows_all_finite(block->v, keys * d);
        }
        if (down || (finite && rows_all_finite(one.q, d))) {
            rows_forward(&one, &own, x->gt);
            for (int64_t c = 0; c < d; c++) {
                x->ot[c * QUERY_BLOCK + i] = ((float *)own.acc)[c];
            }
            x->top[i] = *(float *)own.top == -__builtin_inff() ? -__FLT_MAX__ : *(float *)own.top;
            x->sum[i] = *(float *)own.sum;
        }
    }
}

static void forward(const hd_attn_block *block, const hd_attn_carry *carry, void *scratch)
{
    int64_t d = block->d, full, any;
    scratch_parts x = divide(scratch, d);
    for (int64_t q0 = 0; q0 < block->nq; q0 += QUERY_BLOCK) {
        int64_t count = least(QUERY_BLOCK, block->nq - q0);
        int nz = (int)((count + VEC - 1) / VEC);
        key_range(block, q0, count, &full, &any);
        transpose_in(x.qt, (const float *)block->q + q0 * d, d, count, (float)block->scale);
        load_carry(&x, carry, q0, count, d);
        attend(&x, block, 0, full, 0, nz);
        hd_attn_block edge = edge_of(block, q0, count, full, any);
        int finite = any > full && rows_all_finite(edge.k, edge.nk * d) && rows_all_finite(edge.v, edge.nk * d);
        if (finite) {
            attend(&x, &edge, 0, edge.nk, 1, nz);
        }
        look_over(&x, d, nz);
        redo_rows(&x, block, carry, q0, count, finite ? any : full);
        store_carry(&x, carry, q0, count, d);
        if (any > full && !finite) {
            hd_attn_carry rest = {(float *)carry->acc + q0 * d, (float *)carry->top + q0, (float *)carry->sum + q0};
            rows_forward(&edge, &rest, x.gt);
        }
    }
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* s: scores to weights; ds: products of gradients to gradients of scores. Lanes without a query give nothing. */
static void weigh_back(const scratch_parts *x, int64_t n_keys, int64_t count)
{
    const vec log2_e = vec_set1(HD_LOG2_E);
    for (int64_t q = 0; q < count; q += VEC) {
        vec top = vec_load(x->top + q), delta = vec_load(x->sum + q), shrink = vec_load(x->shrink + q);
        for (int64_t j = 0; j < n_keys; j++) {
            float *s = x->s + j * QUERY_BLOCK + q, *ds = x->ds + j * QUERY_BLOCK + q;
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
        score(x->s, k + k0 * d, x->qt, n_keys, d, nz);
        score(x->ds, v + k0 * d, x->gt, n_keys, d, nz);
        weigh_back(x, n_keys, count);
        if (masked) {
            mask_scores(x->s, n_keys, b->diagonal - k0, 0);
            mask_scores(x->ds, n_keys, b->diagonal - k0, 0);
        }
        product to_dv = {(float *)grad->dv + k0 * d, d, x->s, QUERY_BLOCK, 1, x->g_rows, dp, n_keys, d, count, 1};
        product to_dk = {(float *)grad->dk + k0 * d, d, x->ds, QUERY_BLOCK, 1, x->q_rows, dp, n_keys, d, count, 1};
        product to_dq = {x->ot, QUERY_BLOCK, k + k0 * d, 1, d, x->ds, QUERY_BLOCK, d, nz * VEC, n_keys, 1};
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
    transpose_in(x->qt, q, d, count, (float)block->scale);
    transpose_in(x->gt, g, d, count, 1);
    pad_rows(x->q_rows, q, d, count, (float)block->scale);
    pad_rows(x->g_rows, g, d, count, 1);
    memset(x->ot, 0, (size_t)(d * QUERY_BLOCK) * sizeof(float));
    for (int64_t i = 0; i < QUERY_BLOCK; i++) {
        x->top[i] = i < count ? ((const float *)grad->top)[q0 + i] : 0;
        x->shrink[i] = i < count ? -((const float *)grad->log_sum)[q0 + i] * HD_LOG2_E : 0;
        x->sum[i] = i < count ? ((const float *)grad->delta)[q0 + i] : 0;
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
        transpose_out((float *)grad->dq + q0 * d, x.ot, d, count, (float)block->scale, 1);
        if (any > full && !finite) {
            rows_backward(&edge, &edge_grad, NULL);
        }
    }
}
