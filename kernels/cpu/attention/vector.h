/* Attention on blocks for any vector width: included after the vectors, tile.h and flash.h, whose kernel the forward
 * is.
 *
 * Where the mask's edge crosses a block, scores are masked; keys and queries there are looked over first, and a piece
 * with infinities or NaN goes to the scalar rows (rows_NAME of scalar.h, included before), which never touch what is
 * masked. So does a query whose sums leave the range of the type.
 *
 * The largest score is taken away before anything else happens to scores: of large ones only the difference is good to
 * anything, and it is exact.
 */
typedef struct scratch_parts {
    flash f;                /* backward: o the gradient of q, sum delta, shrink -log2 of the sum of weights */
    float *gt;              /* [d][QUERY_BLOCK]: gradient of o */
    float *q_rows, *g_rows; /* [QUERY_BLOCK][d padded] */
    float *ds;              /* [KEY_BLOCK][QUERY_BLOCK] */
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
    flash *f = &x.f;
    f->qt = memory;
    f->o = f->qt + d * QUERY_BLOCK;
    x.gt = f->o + d * QUERY_BLOCK;
    f->s = x.gt + d * QUERY_BLOCK;
    x.ds = f->s + KEY_BLOCK * QUERY_BLOCK;
    f->top = x.ds + KEY_BLOCK * QUERY_BLOCK;
    f->higher = f->top + QUERY_BLOCK;
    f->sum = f->higher + QUERY_BLOCK;
    f->shrink = f->sum + QUERY_BLOCK;
    x.q_rows = f->shrink + QUERY_BLOCK;
    x.g_rows = x.q_rows + padded(d) * QUERY_BLOCK;
    return x;
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

/* The largest score so far, once more, after some were masked. */
INLINE void masked_tops(const flash *f, int64_t n_keys, int nz)
{
    for (int z = 0; z < nz; z++) {
        vec higher = vec_load(f->top + z * VEC);
        for (int64_t j = 0; j < n_keys; j++) {
            higher = vec_max(higher, vec_load(f->s + j * QUERY_BLOCK + z * VEC));
        }
        vec_store(f->higher + z * VEC, higher);
    }
}

INLINE void attend(const flash *f, const hd_attn_block *b, int64_t end, int masked, int nz)
{
    int64_t d = b->d;
    const float *k = b->k, *v = b->v;
    for (int z = 0; z < nz; z++) {
        vec_store(f->higher + z * VEC, vec_load(f->top + z * VEC));
    }
    for (int64_t k0 = 0; k0 < end; k0 += KEY_BLOCK) {
        int64_t n_keys = least(KEY_BLOCK, end - k0);
        score_keys(f, k + k0 * d, d, n_keys, d, nz);
        if (masked) {
            mask_scores(f->s, n_keys, b->diagonal - k0, -__builtin_inff());
            masked_tops(f, n_keys, nz);
        }
        weigh_keys(f, n_keys, 0, 2, nz);
        mix_values(f, v + k0 * d, d, n_keys, d, f->shrink, nz);
    }
}

#define ATTEND(nz)                                                                                                     \
    static void attend_##nz(const flash *f, const hd_attn_block *b, int64_t end, int masked)                           \
    {                                                                                                                  \
        attend(f, b, end, masked, nz);                                                                                 \
    }
FOR_COLUMNS(ATTEND)
#undef ATTEND

typedef void (*attend_fn)(const flash *, const hd_attn_block *, int64_t, int);

#define ATTEND(nz) attend_##nz,
static const attend_fn attend_columns[] = {FOR_COLUMNS(ATTEND)};
#undef ATTEND

static void load_carry(const scratch_parts *x, const hd_attn_carry *carry, int64_t q0, int64_t count, int64_t d)
{
    const float *top = carry->top, *sum = carry->sum;
    transpose_in(x->f.o, (const float *)carry->acc + q0 * d, d, count, 1);
    for (int64_t i = 0; i < QUERY_BLOCK; i++) {
        float known = i < count ? top[q0 + i] : 0;
        x->f.top[i] = known == -__builtin_inff() ? -__FLT_MAX__ : known;
        x->f.sum[i] = i < count ? sum[q0 + i] : 0;
    }
}

static void store_carry(const scratch_parts *x, const hd_attn_carry *carry, int64_t q0, int64_t count, int64_t d)
{
    float *top = carry->top, *sum = carry->sum;
    transpose_out((float *)carry->acc + q0 * d, x->f.o, d, count, 1, 0);
    for (int64_t i = 0; i < count; i++) {
        top[q0 + i] = x->f.top[i] == -__FLT_MAX__ ? -__builtin_inff() : x->f.top[i];
        sum[q0 + i] = x->f.sum[i];
    }
}

/* higher[lane]: 0, or NaN where an output is not finite. */
static void look_over(const scratch_parts *x, int64_t d, int nz)
{
    for (int z = 0; z < nz; z++) {
        vec bad[2] = {vec_set1(0), vec_set1(0)};
        for (int64_t i = 0; i < d; i++) {
            bad[i % 2] = vec_fma(vec_load(x->f.o + i * QUERY_BLOCK + z * VEC), vec_set1(0), bad[i % 2]);
        }
        vec_store(x->f.higher + z * VEC, vec_add(bad[0], bad[1]));
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
        int64_t row = q0 + i;
        int down = rows_is_down(((const float *)carry->sum)[row]);
        if (!down && x->f.higher[i] == 0) {
            continue;
        }
        int64_t seen = rows_seen_keys(block, row);
        hd_attn_carry own = {(float *)carry->acc + row * d, (float *)carry->top + row, (float *)carry->sum + row};
        hd_attn_block one = {
            (const float *)block->q + row * d, block->k, block->v, 1, least(seen, keys), d, INT64_MAX, block->scale};
        if (!down && finite < 0) {
            finite = rows_all_finite(block->k, keys * d) && rows_all_finite(block->v, keys * d);
        }
        if (down || (finite && rows_all_finite(one.q, d))) {
            rows_forward(&one, &own, x->gt);
            for (int64_t c = 0; c < d; c++) {
                x->f.o[c * QUERY_BLOCK + i] = ((float *)own.acc)[c];
            }
            x->f.top[i] = *(float *)own.top == -__builtin_inff() ? -__FLT_MAX__ : *(float *)own.top;
            x->f.sum[i] = *(float *)own.sum;
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
        transpose_in(x.f.qt, (const float *)block->q + q0 * d, d, count, (float)block->scale);
        load_carry(&x, carry, q0, count, d);
        attend_columns[nz - 1](&x.f, block, full, 0);
        hd_attn_block edge = edge_of(block, q0, count, full, any);
        int finite = any > full && rows_all_finite(edge.k, edge.nk * d) && rows_all_finite(edge.v, edge.nk * d);
        if (finite) {
            attend_columns[nz - 1](&x.f, &edge, edge.nk, 1);
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
