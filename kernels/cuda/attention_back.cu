/* Gradients of attention of bf16 and f16 on tensor units: a block has some queries and takes all keys, for dq, or some
 * keys and takes all queries that see them, for dk and dv. So every sum has one order, and nothing is added by atomics;
 * for that, weights and their gradients are computed twice. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/tile.h"

enum { TURN = 32 /* keys, or queries, of a turn */, EIGHTS = TURN / 8 };

/* --- delta: o d_o of every query; 8 lanes share one */

HD_DEV void row_dots(const hd_attention_args *a, heddle_dtype dtype)
{
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->heads);
    const int32_t query = (int32_t)(p.tile * (HD_THREADS / 8) + HD_THREAD / 8);
    float sum = 0;
    for (int32_t at = (int32_t)(HD_LANE % 8) * 8; at < a->d && query < a->nq; at += 64) {
        const char *o = hd_tokens_at(&a->of.o, &p, p.head, dtype) + query * a->of.o.token * 2;
        const char *d_o = hd_tokens_at(&a->d_o, &p, p.head, dtype) + query * a->d_o.token * 2;
        const hd_lane_piece x = hd_piece_load(o, at, a->d - at, dtype, 1);
        const hd_lane_piece y = hd_piece_load(d_o, at, a->d - at, dtype, 1);
        HD_UNROLL
        for (int i = 0; i < 8; i++) {
            sum = hd_fma(hd_piece_get(&x, i, dtype), hd_piece_get(&y, i, dtype), sum);
        }
    }
    sum = hd_group_sum(sum, 8);
    if (HD_LANE % 8 == 0 && query < a->nq) {
        hd_float_store(a->delta + hd_attention_row(a, &p, p.head, query), sum);
    }
}

HD_KERNEL(attention_delta_bf16, hd_attention_args, a)
{
    row_dots(&a, HEDDLE_BF16);
}

HD_KERNEL(attention_delta_f16, hd_attention_args, a)
{
    row_dots(&a, HEDDLE_F16);
}

/* What backward knows of a query. */
typedef struct known {
    float top, log_sum, delta;
} known;

HD_DEV known known_of(const hd_attention_args *a, const hd_attention_part *p, uint32_t head, int32_t query)
{
    known k = {0, 0, 0};
    if (query < a->nq) {
        const int64_t row = hd_attention_row(a, p, head, query);
        k.top = hd_float_load(a->of.stats + 2 * row);
        k.log_sum = hd_float_load(a->of.stats + 2 * row + 1);
        k.delta = hd_float_load(a->delta + row);
    }
    return k;
}

/* A score becomes its weight, the weight's gradient d that of the score, before the scale. */
HD_DEV void score_back(float *score, float *d, const known *k, const hd_attention_args *a, int is_seen)
{
    const float weight = is_seen ? hd_exp2(hd_fma(*score - k->top, a->scale_log2, -k->log_sum)) : 0;
    *d = is_seen ? hd_mul(weight, *d - k->delta) : 0;
    *score = weight;
}

HD_DEV int is_seen(const hd_attention_args *a, const hd_attention_part *p, int32_t query, int32_t key)
{
    return query < a->nq && key < p->nk && (a->diagonal >= a->nk || key <= query + a->diagonal);
}

HD_DEV void scale_all(float (*sum)[4], const hd_attention_args *a, int width)
{
    HD_UNROLL
    for (int i = 0; i < width / 2; i++) {
        sum[i / 4][i % 4] = hd_mul(sum[i / 4][i % 4], a->of.scale);
    }
}

/* This warp's rows of a gradient, in the type that is wanted. */
HD_DEV void leave(const hd_device_tokens *to, const hd_attention_args *a, const hd_attention_part *p, int32_t first,
                  int32_t end, uint16_t *tile, const float (*sum)[4], heddle_dtype dtype, int width)
{
    if (a->back_gives_f32) {
        hd_tile_store_f32(hd_tokens_at(to, p, p->head, HEDDLE_F32), to->token, first, end, a->d, sum, width);
    } else {
        hd_tile_store(hd_tokens_at(to, p, p->head, dtype), to->token, first, end, a->d, tile, sum, width, dtype);
    }
}

/* --- dq */

HD_DEV void queries_back(const hd_attention_args *a, heddle_dtype dtype, int width)
{
    HD_DYNAMIC_SHARED(uint16_t, queries);
    uint16_t *d_o = queries + HD_TILE_ELEMS(width), *keys = d_o + HD_TILE_ELEMS(width);
    uint16_t *values = keys + HD_TILE_ELEMS(width);
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->heads);
    const uint32_t key_head = hd_key_head(a, p.head);
    const int32_t rows = (int32_t)HD_WARPS * 16, first = (int32_t)p.tile * rows;
    const int32_t query = first + (int32_t)(HD_WARP * 16 + HD_LANE / 4);
    const known own[2] = {known_of(a, &p, p.head, query), known_of(a, &p, p.head, query + 8)};
    float dq[HD_DEVICE_MOST_HEAD / 8][4] = {{0}};
    hd_tile_ask(queries, hd_tokens_at(&a->of.q, &p, p.head, dtype), a->of.q.token, first, a->nq, a->d, rows, width);
    hd_tile_ask(d_o, hd_tokens_at(&a->d_o, &p, p.head, dtype), a->d_o.token, first, a->nq, a->d, rows, width);
    hd_copy_commit();
    for (int32_t key = 0; key < p.nk && is_seen(a, &p, first + rows - 1 < a->nq ? first + rows - 1 : a->nq - 1, key);
         key += TURN) {
        hd_tile_ask(keys, hd_tokens_at(&a->of.k, &p, key_head, dtype), a->of.k.token, key, p.nk, a->d, TURN, width);
        hd_tile_ask(values, hd_tokens_at(&a->of.v, &p, key_head, dtype), a->of.v.token, key, p.nk, a->d, TURN, width);
        hd_copy_commit();
        hd_copy_wait_0();
        hd_sync(); /* all have what they asked for */
        float s[EIGHTS][4] = {{0}}, ds[EIGHTS][4] = {{0}};
        hd_tile_dots(s, queries, keys, EIGHTS, width, dtype);
        hd_tile_dots(ds, d_o, values, EIGHTS, width, dtype);
        HD_UNROLL
        for (int i = 0; i < EIGHTS * 4; i++) {
            const int half = i % 4 / 2;
            const int32_t column = i / 4 * 8 + (int32_t)(HD_LANE % 4) * 2 + i % 2;
            score_back(&s[i / 4][i % 4], &ds[i / 4][i % 4], &own[half], a,
                       is_seen(a, &p, query + half * 8, key + column));
        }
        hd_tile_mix(dq, ds, keys, EIGHTS, width, dtype);
        hd_sync(); /* keys and values may be overwritten */
    }
    hd_copy_wait_0();
    hd_sync(); /* where there were no turns, others' copies were on their way */
    scale_all(dq, a, width);
    leave(&a->dq, a, &p, first, a->nq, queries, dq, dtype, width);
}

#define DQ_KERNEL(name, dtype, width)                                                                                  \
    HD_KERNEL(name, hd_attention_args, a)                                                                              \
    {                                                                                                                  \
        queries_back(&a, dtype, width);                                                                                \
    }
HD_TILE_KERNELS(DQ_KERNEL, attention_dq)

/* --- dk and dv: of every query head that reads these keys, one after the other */

typedef struct key_sums {
    float dk[HD_DEVICE_MOST_HEAD / 8][4], dv[HD_DEVICE_MOST_HEAD / 8][4];
} key_sums;

/* Where a block's tiles lie. */
typedef struct key_tiles {
    uint16_t *keys, *values, *queries, *d_o;
} key_tiles;

HD_DEV void add_queries(key_sums *sums, const key_tiles *t, const hd_attention_args *a, const hd_attention_part *p,
                        uint32_t head, int32_t first, int32_t query, heddle_dtype dtype, int width)
{
    const int32_t key = first + (int32_t)(HD_WARP * 16 + HD_LANE / 4);
    float s[EIGHTS][4] = {{0}}, ds[EIGHTS][4] = {{0}};
    hd_tile_dots(s, t->keys, t->queries, EIGHTS, width, dtype);
    hd_tile_dots(ds, t->values, t->d_o, EIGHTS, width, dtype);
    HD_UNROLL
    for (int i = 0; i < EIGHTS * 2; i++) {
        const int32_t column = query + i / 2 * 8 + (int32_t)(HD_LANE % 4) * 2 + i % 2;
        const known k = known_of(a, p, head, column);
        HD_UNROLL
        for (int half = 0; half < 2; half++) {
            score_back(&s[i / 2][half * 2 + i % 2], &ds[i / 2][half * 2 + i % 2], &k, a,
                       is_seen(a, p, column, key + half * 8));
        }
    }
    hd_tile_mix(sums->dv, s, t->d_o, EIGHTS, width, dtype);
    hd_tile_mix(sums->dk, ds, t->queries, EIGHTS, width, dtype);
}

/* The first query that sees a key, whole turns. */
HD_DEV int32_t first_query(const hd_attention_args *a, int32_t key)
{
    const int32_t query = a->diagonal >= a->nk ? 0 : key - a->diagonal;
    return query > 0 ? query / TURN * TURN : 0;
}

HD_DEV void keys_back(const hd_attention_args *a, heddle_dtype dtype, int width)
{
    HD_DYNAMIC_SHARED(uint16_t, memory);
    const key_tiles t = {memory, memory + HD_TILE_ELEMS(width), memory + 2 * HD_TILE_ELEMS(width),
                         memory + 3 * HD_TILE_ELEMS(width)};
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->kv_heads);
    const int32_t rows = (int32_t)HD_WARPS * 16, first = (int32_t)p.tile * rows;
    key_sums sums = {{{0}}, {{0}}};
    hd_tile_ask(t.keys, hd_tokens_at(&a->of.k, &p, p.head, dtype), a->of.k.token, first, p.nk, a->d, rows, width);
    hd_tile_ask(t.values, hd_tokens_at(&a->of.v, &p, p.head, dtype), a->of.v.token, first, p.nk, a->d, rows, width);
    hd_copy_commit();
    for (uint32_t head = hd_first_head(a, p.head); head < hd_end_head(a, p.head) && first < p.nk; head++) {
        for (int32_t query = first_query(a, first); query < a->nq; query += TURN) {
            hd_tile_ask(t.queries, hd_tokens_at(&a->of.q, &p, head, dtype), a->of.q.token, query, a->nq, a->d, TURN,
                        width);
            hd_tile_ask(t.d_o, hd_tokens_at(&a->d_o, &p, head, dtype), a->d_o.token, query, a->nq, a->d, TURN, width);
            hd_copy_commit();
            hd_copy_wait_0();
            hd_sync(); /* all have what they asked for */
            add_queries(&sums, &t, a, &p, head, first, query, dtype, width);
            hd_sync(); /* queries may be overwritten */
        }
    }
    hd_copy_wait_0();
    hd_sync(); /* where there were no turns, others' copies were on their way */
    scale_all(sums.dk, a, width);
    leave(&a->dk, a, &p, first, a->nk, t.keys, sums.dk, dtype, width);
    leave(&a->dv, a, &p, first, a->nk, t.values, sums.dv, dtype, width);
}

#define DKV_KERNEL(name, dtype, width)                                                                                 \
    HD_KERNEL(name, hd_attention_args, a)                                                                              \
    {                                                                                                                  \
        keys_back(&a, dtype, width);                                                                                   \
    }
HD_TILE_KERNELS(DKV_KERNEL, attention_dkv)

/* --- launchers */

enum { TILES = 4, DELTA_THREADS = 128, DELTA_ROWS = DELTA_THREADS / 8 };

static int bytes_of(int width)
{
    return TILES * HD_TILE_ELEMS(width) * 2;
}

static int is_laid_out(const hd_device_attention_back *back)
{
    const hd_device_attention *of = &back->of;
    const hd_device_tokens *const all[] = {&of->q, &of->k, &of->v, &of->o, &back->d_o, &back->dq, &back->dk, &back->dv};
    int is = 1;
    for (int i = 0; i < 8 && of->dtype != HEDDLE_F32; i++) {
        is = is && hd_are_tokens_aligned(all[i]);
    }
    return is && of->stats != NULL && back->delta != NULL;
}

static hd_attention_args args_of(const hd_device_attention_back *back, int64_t tiles)
{
    hd_attention_args a = hd_attention_args_of(&back->of, tiles);
    a.d_o = back->d_o;
    a.dq = back->dq;
    a.dk = back->dk;
    a.dv = back->dv;
    a.delta = back->delta;
    a.back_gives_f32 = back->gives_f32;
    return a;
}

static int launch_delta(const hd_device_attention_back *back, void *stream)
{
    const int64_t tiles = (back->of.nq + DELTA_ROWS - 1) / DELTA_ROWS;
    const hd_attention_args a = args_of(back, tiles);
    const unsigned blocks = hd_attention_blocks(&back->of, tiles, back->of.heads);
    if (blocks == 0) {
        return (int)cudaErrorInvalidConfiguration;
    }
    if (back->of.dtype == HEDDLE_BF16) {
        HD_LAUNCH(attention_delta_bf16, blocks, DELTA_THREADS, stream, &a);
    } else {
        HD_LAUNCH(attention_delta_f16, blocks, DELTA_THREADS, stream, &a);
    }
    return (int)cudaGetLastError();
}

#define LAUNCH(name, type, width)                                                                                      \
    HD_TILE_LAUNCH_CASE(name, &a, blocks, threads, bytes_of(width), stream, a.d, type, width)

static int launch_dq(const hd_device_attention_back *back, void *stream)
{
    const unsigned threads = hd_tile_threads(back->of.nq);
    const int64_t rows = hd_tile_rows(back->of.nq), tiles = (back->of.nq + rows - 1) / rows;
    const hd_attention_args a = args_of(back, tiles);
    const unsigned blocks = hd_attention_blocks(&back->of, tiles, back->of.heads);
    HD_TILE_KERNELS(LAUNCH, attention_dq)
    return (int)cudaGetLastError();
}

static int launch_dkv(const hd_device_attention_back *back, void *stream)
{
    const unsigned threads = hd_tile_threads(back->of.nk);
    const int64_t rows = hd_tile_rows(back->of.nk), tiles = (back->of.nk + rows - 1) / rows;
    const hd_attention_args a = args_of(back, tiles);
    const unsigned blocks = hd_attention_blocks(&back->of, tiles, back->of.kv_heads);
    if (blocks == 0) {
        return (int)cudaErrorInvalidConfiguration;
    }
    HD_TILE_KERNELS(LAUNCH, attention_dkv)
    return (int)cudaGetLastError();
}

int hd_attention_back(const hd_device_attention_back *back, void *stream)
{
    const hd_device_attention *of = &back->of;
    if (!hd_is_attention_right(of) || !is_laid_out(back)) {
        return (int)cudaErrorInvalidValue;
    }
    if (of->outer == 0) {
        return 0;
    }
    if (of->dtype == HEDDLE_F32) {
        const hd_attention_args a = args_of(back, 1);
        return hd_attention_f32_back(&a, stream);
    }
    int error = of->nq > 0 ? launch_delta(back, stream) : 0;
    error = error == 0 && of->nq > 0 ? launch_dq(back, stream) : error;
    return error == 0 && of->nk > 0 ? launch_dkv(back, stream) : error;
}

int hd_attention_back_load(void)
{
    const void *const kernel[] = {HD_TILE_ADDRESSES(attention_dq), HD_TILE_ADDRESSES(attention_dkv),
                                  HD_KERNEL_ADDRESS(attention_delta_bf16), HD_KERNEL_ADDRESS(attention_delta_f16)};
    const int n = (int)(sizeof kernel / sizeof kernel[0]);
    int error = 0;
    for (int i = 0; i < n && error == 0; i++) {
        struct cudaFuncAttributes attributes;
        error = (int)cudaFuncGetAttributes(&attributes, kernel[i]);
        error = error == 0 && i < n - 2 ? hd_allow_shared(kernel[i], bytes_of(hd_tile_width[i % 4])) : error;
    }
    return error;
}
