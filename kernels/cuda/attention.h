/* What kernels of attention are given, and what they share. */
#ifndef HD_CUDA_ATTENTION_H
#define HD_CUDA_ATTENTION_H

#include "kernels/cuda/divide.h"
#include "kernels/cuda/piece.h"
#include "kernels/device_attention.h"

#include <string.h>

typedef struct hd_attention_args {
    hd_device_attention of;
    hd_device_tokens d_o, dq, dk, dv; /* backward only */
    float *delta, *part;
    int back_gives_f32;
    int32_t chunks, chunk; /* parts of the queries, and how many a part has */
    uint32_t own_tiles;    /* of `tiles`: those of a part */
    uint32_t tiles, outer_of_length;
    uint32_t heads, kv_heads, inner, group, skipped; /* group: heads that share a key head */
    int32_t nq, nk, d, diagonal;
    int is_whole;     /* F32: rows are whole pieces of 16 bytes */
    float scale_log2; /* scale / ln 2 */
} hd_attention_args;

/* Which part of the work a block has: a tile of a head of a fibre. */
typedef struct hd_attention_part {
    uint32_t tile, head, inner, outer;
    int32_t nk;    /* keys there are */
    int64_t fibre; /* outer * inner's number + inner */
} hd_attention_part;

HD_DEV hd_attention_part hd_attention_part_of(const hd_attention_args *a, uint32_t n, uint32_t heads)
{
    hd_attention_part p;
    const uint32_t rest = n / a->tiles, fibre = rest / heads;
    p.tile = n - rest * a->tiles;
    p.head = rest - fibre * heads;
    p.outer = fibre / a->inner;
    p.inner = fibre - p.outer * a->inner;
    p.fibre = fibre;
    p.nk = a->nk;
    if (a->of.lengths != 0) {
        p.nk = (int32_t)hd_load_constant_4(a->of.lengths + p.outer / a->outer_of_length);
        p.nk = p.nk < 0 ? 0 : p.nk < a->nk ? p.nk : a->nk;
    }
    return p;
}

/* Which keys a head reads; and the heads that read keys, from the first to before the end. */
HD_DEV uint32_t hd_key_head(const hd_attention_args *a, uint32_t head)
{
    return (head + a->skipped) / a->group;
}

HD_DEV uint32_t hd_first_head(const hd_attention_args *a, uint32_t key_head)
{
    return key_head * a->group > a->skipped ? key_head * a->group - a->skipped : 0;
}

HD_DEV uint32_t hd_end_head(const hd_attention_args *a, uint32_t key_head)
{
    const uint32_t end = (key_head + 1) * a->group - a->skipped;
    return end < a->heads ? end : a->heads;
}

/* Where the tokens of a head begin. */
HD_DEV char *hd_tokens_at(const hd_device_tokens *x, const hd_attention_part *p, uint32_t head, heddle_dtype dtype)
{
    return (char *)x->data +
           (p->outer * x->outer + p->inner * x->inner + head * x->head) * (int64_t)hd_elem_bytes(dtype);
}

/* Before which key what a query sees ends. */
HD_DEV int32_t hd_last_key(const hd_attention_args *a, int32_t nk, int32_t query)
{
    const int32_t end = a->diagonal >= a->nk ? nk : query + a->diagonal + 1;
    return end < 0 ? 0 : end < nk ? end : nk;
}

HD_DEV int hd_is_seen(const hd_attention_args *a, const hd_attention_part *p, int32_t query, int32_t key)
{
    return query < a->nq && key < p->nk && (a->diagonal >= a->nk || key <= query + a->diagonal);
}

/* Of the two numbers that are kept of a query. */
HD_DEV int64_t hd_attention_row(const hd_attention_args *a, const hd_attention_part *p, uint32_t head, int32_t query)
{
    return (p->fibre * a->heads + head) * a->nq + query;
}

HD_DEV float hd_float_load(const float *at)
{
    return hd_f32_from_bits(hd_load_4(at));
}

HD_DEV void hd_float_store(float *at, float value)
{
    hd_store_4(at, hd_f32_bits(value));
}

/* Every head has its keys there. */
static inline int are_heads_right(const hd_device_attention *of)
{
    return of->group == 0 ? of->heads % of->kv_heads == 0
                          : of->group > 0 && of->skipped >= 0 && of->skipped < of->group &&
                                (of->skipped + of->heads - 1) / of->group < of->kv_heads;
}

static inline int hd_is_attention_right(const hd_device_attention *of)
{
    const int is_half = of->dtype == HEDDLE_BF16 || of->dtype == HEDDLE_F16;
    return (is_half || of->dtype == HEDDLE_F32) && of->outer >= 0 && of->outer <= INT32_MAX && of->inner >= 1 &&
           of->inner <= INT32_MAX && of->heads >= 1 && of->kv_heads >= 1 && are_heads_right(of) &&
           of->heads <= INT32_MAX / 2 && of->nq >= 0 && of->nq < INT32_MAX / 2 && of->nk >= 0 &&
           of->nk < INT32_MAX / 2 && of->d >= 1 && of->d <= HD_DEVICE_MOST_HEAD && (!is_half || of->d % 8 == 0) &&
           of->scale > 0 && (of->lengths == NULL || of->fibres_of_length >= 1);
}

/* Rows of whole 16 bytes at multiples of 16. */
static inline int hd_are_tokens_aligned(const hd_device_tokens *x)
{
    return (uintptr_t)x->data % 16 == 0 && x->outer % 8 == 0 && x->inner % 8 == 0 && x->token % 8 == 0 &&
           x->head % 8 == 0;
}

static inline hd_attention_args hd_attention_args_of(const hd_device_attention *of, int64_t tiles)
{
    hd_attention_args a;
    memset(&a, 0, sizeof a);
    a.of = *of;
    a.tiles = (uint32_t)tiles;
    a.outer_of_length = of->lengths != NULL ? (uint32_t)of->fibres_of_length : 1;
    a.heads = (uint32_t)of->heads;
    a.inner = (uint32_t)of->inner;
    a.kv_heads = (uint32_t)of->kv_heads;
    a.group = (uint32_t)(of->group > 0 ? of->group : of->heads / of->kv_heads);
    a.skipped = (uint32_t)of->skipped;
    a.nq = (int32_t)of->nq;
    a.nk = (int32_t)of->nk;
    a.d = (int32_t)of->d;
    a.diagonal = (int32_t)(of->diagonal < of->nk ? of->diagonal < -of->nq ? -of->nq : of->diagonal : of->nk);
    a.scale_log2 = of->scale * 1.4426950408889634f;
    return a;
}

/* Blocks of a launch, one for each tile of each head of each fibre; 0: more than a launch may have. */
static inline unsigned hd_attention_blocks(const hd_device_attention *of, int64_t tiles, int64_t heads)
{
    const double blocks = (double)of->outer * (double)of->inner * (double)heads * (double)tiles;
    return blocks <= INT32_MAX ? (unsigned)blocks : 0;
}

#ifdef __cplusplus
extern "C" {
#endif
/* In F32: attention_f32.h. */
int hd_attention_f32(const hd_device_attention *of, void *stream);
int hd_attention_f32_load(void);
int hd_attention_f32_back(const hd_attention_args *a, void *stream);
int hd_attention_f32_back_load(void);
#ifdef __cplusplus
}
#endif

#endif
