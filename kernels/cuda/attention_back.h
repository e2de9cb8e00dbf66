/* What backward's kernels of attention share: attention_back.cu for the queries, attention_keys.cu for the keys,
 * attention_whole.cu for both where they are few. */
#ifndef HD_CUDA_ATTENTION_BACK_H
#define HD_CUDA_ATTENTION_BACK_H

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/tile.h"

enum {
    HD_BACK_TURN = 32 /* keys, or queries, of a turn */,
    HD_BACK_EIGHTHS = HD_BACK_TURN / 8,
    HD_BACK_CHUNK = 4096 /* queries of a part, whole turns */
};

/* What backward knows of a query: a score's weight is exp2(scale_log2 score - level). */
typedef struct hd_known_query {
    float level, delta;
} hd_known_query;

HD_DEV float hd_level_of(const hd_attention_args *a, int64_t row)
{
    const float top = hd_float_load(a->of.stats + 2 * row);
    return hd_fma(top, a->scale_log2, hd_float_load(a->of.stats + 2 * row + 1));
}

/* sum and what a piece of o and of d_o add to delta. */
HD_DEV float hd_add_dot(float sum, const hd_lane_piece *o, const hd_lane_piece *d_o, heddle_dtype dtype)
{
    HD_UNROLL
    for (int i = 0; i < 8; i++) {
        sum = hd_fma(hd_piece_get(o, i, dtype), hd_piece_get(d_o, i, dtype), sum);
    }
    return sum;
}

HD_DEV hd_known_query hd_known_of(const hd_attention_args *a, const hd_attention_part *p, uint32_t head, int32_t query)
{
    hd_known_query k = {0, 0};
    if (query < a->nq) {
        const int64_t row = hd_attention_row(a, p, head, query);
        k.level = hd_level_of(a, row);
        k.delta = hd_float_load(a->delta + row);
    }
    return k;
}

/* A score becomes its weight, the weight's gradient d that of the score, before the scale. */
HD_DEV void hd_score_back(float *score, float *d, const hd_known_query *k, const hd_attention_args *a)
{
    const float weight = hd_exp2(hd_fma(*score, a->scale_log2, -k->level));
    *d = hd_mul(weight, *d - k->delta);
    *score = weight;
}

HD_DEV void hd_scale_all(float (*sum)[4], const hd_attention_args *a, int width)
{
    HD_UNROLL
    for (int i = 0; i < width / 2; i++) {
        sum[i / 4][i % 4] = hd_mul(sum[i / 4][i % 4], a->of.scale);
    }
}

/* This warp's rows of a gradient, in the type that is wanted; tile: of the block, which nobody reads any more. */
HD_DEV void hd_leave(const hd_device_tokens *to, const hd_attention_args *a, const hd_attention_part *p, int32_t first,
                     int32_t end, uint16_t *tile, const float (*sum)[4], heddle_dtype dtype, int width)
{
    const int32_t row = (int32_t)HD_WARP * 16;
    if (a->back_gives_f32) {
        hd_tile_store_f32(hd_tokens_at(to, p, p->head, HEDDLE_F32), to->token, first + row, end, a->d, sum, width);
    } else {
        hd_tile_store(hd_tokens_at(to, p, p->head, dtype), to->token, first + row, end, a->d,
                      tile + row * HD_TILE_STRIDE(width), sum, width, dtype);
    }
}

/* Two tiles of a turn, of the same rows, into one of two places behind the block's own. */
HD_DEV uint16_t *hd_place_of(uint16_t *places, int32_t turn, int width)
{
    return places + turn % 2 * 2 * HD_BACK_TURN * HD_TILE_STRIDE(width);
}

HD_DEV void hd_ask_turn(uint16_t *place, const hd_device_tokens *x, const hd_device_tokens *y,
                        const hd_attention_part *p, uint32_t head, int32_t first, int32_t end, int32_t d, int width)
{
    hd_tile_ask(place, hd_tokens_at(x, p, head, HEDDLE_BF16), x->token, first, end, d, HD_BACK_TURN, width);
    hd_tile_ask(place + HD_BACK_TURN * HD_TILE_STRIDE(width), hd_tokens_at(y, p, head, HEDDLE_BF16), y->token, first,
                end, d, HD_BACK_TURN, width);
    hd_copy_commit();
}

/* Whether a block's own two tiles are kept in registers. */
#define HD_IS_HELD(width) ((width) <= 80)
#define HD_HELD(held, width) (HD_IS_HELD(width) ? (const uint32_t(*)[4])(held) : (const uint32_t(*)[4])0)

/* --- launchers
 *
 * Queries of a part: by both lengths alone, not by how many fibres and heads fill the device, so that a key's gradients
 * have one order; and so many that the parts' sums are no more than a quarter of as many rows as there are queries. */
static inline int64_t hd_chunk_of(const hd_device_attention_back *back)
{
    const int64_t whole = (4 * back->of.nk + HD_BACK_TURN - 1) / HD_BACK_TURN * HD_BACK_TURN, least = HD_BACK_CHUNK;
    return back->part == NULL ? INT32_MAX / 2 : whole > least ? whole : least;
}

static inline int64_t hd_chunks_of(const hd_device_attention_back *back)
{
    return back->of.nq == 0 ? 1 : (back->of.nq + hd_chunk_of(back) - 1) / hd_chunk_of(back);
}

static inline hd_attention_args hd_back_args_of(const hd_device_attention_back *back, int64_t tiles)
{
    hd_attention_args a = hd_attention_args_of(&back->of, tiles);
    a.d_o = back->d_o;
    a.dq = back->dq;
    a.dk = back->dk;
    a.dv = back->dv;
    a.delta = back->delta;
    a.back_gives_f32 = back->gives_f32;
    a.part = back->part;
    a.chunks = (int32_t)hd_chunks_of(back);
    a.chunk = (int32_t)hd_chunk_of(back);
    a.own_tiles = (uint32_t)(tiles / a.chunks);
    return a;
}

/* A block's own two tiles, and a turn's in two places, or one where there is one turn. */
static inline int hd_back_bytes(int width, int64_t rows, int has_turns)
{
    return (2 * (int)rows + (has_turns ? 4 : 2) * HD_BACK_TURN) * HD_TILE_STRIDE(width) * 2;
}

#ifdef __cplusplus
extern "C" {
#endif
/* dk and dv, behind delta. */
int hd_attention_keys_back(const hd_device_attention_back *back, void *stream);
int hd_attention_keys_load(void);
/* All gradients, where a block has room for all queries and keys of a head: what it takes of a block's memory; 0:
 * there are too many. */
int hd_attention_whole_bytes(const hd_device_attention *of);
int hd_attention_whole_back(const hd_device_attention_back *back, void *stream);
int hd_attention_whole_load(void);
#ifdef __cplusplus
}
#endif

#endif
