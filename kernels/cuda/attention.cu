/* Attention of bf16 and f16 on tensor units, forward: a block has 64 queries of one head of one fibre, fewer where
 * fibres are short, and takes the keys 64 at a time from the first on, with a running maximum and sum. The next keys
 * are on their way meanwhile. Keys are never split over blocks. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/tile.h"

enum { KEYS = 64 /* of a turn */, EIGHTS = KEYS / 8 };

/* Of this lane's two rows, r / 4 and r / 4 + 8 of its warp's. */
typedef struct running {
    float top[2], sum[2];
} running;

HD_DEV int32_t last_key(const hd_attention_args *a, int32_t nk, int32_t query)
{
    const int32_t end = a->diagonal >= a->nk ? nk : query + a->diagonal + 1;
    return end < 0 ? 0 : end < nk ? end : nk;
}

/* Scores become weights, which are of the maximum so far; what was summed before is brought to it. */
HD_DEV void weigh(float (*s)[4], running *r, float (*o)[4], const hd_attention_args *a, int32_t query, int32_t key,
                  int32_t nk, int width)
{
    HD_UNROLL
    for (int half = 0; half < 2; half++) {
        const int32_t end = last_key(a, nk, query + half * 8) - key;
        float top = r->top[half], sum = 0;
        HD_UNROLL
        for (int i = 0; i < EIGHTS * 2; i++) {
            float *score = &s[i / 2][half * 2 + i % 2];
            *score = i / 2 * 8 + (int32_t)(HD_LANE % 4) * 2 + i % 2 < end ? *score : -INFINITY;
            top = fmaxf(top, *score);
        }
        top = hd_group_max(top, 4);
        const float from = top == -INFINITY ? 0 : top;
        HD_UNROLL
        for (int i = 0; i < EIGHTS * 2; i++) {
            float *score = &s[i / 2][half * 2 + i % 2];
            *score = hd_exp2(hd_mul(*score - from, a->scale_log2));
            sum = sum + *score;
        }
        const float fewer = hd_exp2(hd_mul(r->top[half] - from, a->scale_log2));
        r->sum[half] = hd_fma(r->sum[half], fewer, hd_group_sum(sum, 4));
        r->top[half] = top;
        HD_UNROLL
        for (int i = 0; i < width / 4; i++) {
            o[i / 2][half * 2 + i % 2] = hd_mul(o[i / 2][half * 2 + i % 2], fewer);
        }
    }
}

HD_DEV void finish(running *r, float (*o)[4], const hd_attention_args *a, const hd_attention_part *p, int32_t query,
                   int width)
{
    HD_UNROLL
    for (int half = 0; half < 2; half++) {
        const float inverse = r->sum[half] > 0 ? 1.0f / r->sum[half] : r->sum[half];
        HD_UNROLL
        for (int i = 0; i < width / 4; i++) {
            o[i / 2][half * 2 + i % 2] = hd_mul(o[i / 2][half * 2 + i % 2], inverse);
        }
        if (a->of.stats != 0 && HD_LANE % 4 == 0 && query + half * 8 < a->nq) {
            float *stats = a->of.stats + 2 * hd_attention_row(a, p, p->head, query + half * 8);
            hd_float_store(stats, r->top[half]);
            hd_float_store(stats + 1, r->sum[half] > 0 ? hd_log2(r->sum[half]) : r->sum[half]);
        }
    }
}

/* The keys and values of a turn, into one of two places. */
HD_DEV void ask_keys(uint16_t *keys, const hd_attention_args *a, const hd_attention_part *p, int32_t turn, int width)
{
    const uint32_t head = hd_key_head(a, p->head);
    uint16_t *place = keys + turn % 2 * 2 * HD_TILE_ELEMS(width);
    hd_tile_ask(place, hd_tokens_at(&a->of.k, p, head, HEDDLE_BF16), a->of.k.token, turn * KEYS, p->nk, a->d, KEYS,
                width);
    hd_tile_ask(place + HD_TILE_ELEMS(width), hd_tokens_at(&a->of.v, p, head, HEDDLE_BF16), a->of.v.token, turn * KEYS,
                p->nk, a->d, KEYS, width);
    hd_copy_commit();
}

HD_DEV void attend(const hd_attention_args *a, heddle_dtype dtype, int width)
{
    HD_DYNAMIC_SHARED(uint16_t, queries);
    uint16_t *keys = queries + HD_TILE_ELEMS(width);
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->heads);
    const int32_t rows = (int32_t)HD_WARPS * 16, first = (int32_t)p.tile * rows;
    const int32_t query = first + (int32_t)(HD_WARP * 16 + HD_LANE / 4);
    const int32_t end = last_key(a, p.nk, first + rows - 1), turns = (end + KEYS - 1) / KEYS;
    running r = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[HD_DEVICE_MOST_HEAD / 8][4] = {{0}};
    hd_tile_ask(queries, hd_tokens_at(&a->of.q, &p, p.head, dtype), a->of.q.token, first, a->nq, a->d, rows, width);
    ask_keys(keys, a, &p, 0, width);
    for (int32_t turn = 0; turn < turns; turn++) {
        const uint16_t *place = keys + turn % 2 * 2 * HD_TILE_ELEMS(width);
        if (turn + 1 < turns) {
            ask_keys(keys, a, &p, turn + 1, width);
            hd_copy_wait_1();
        } else {
            hd_copy_wait_0();
        }
        hd_sync(); /* all have what they asked for */
        float s[EIGHTS][4] = {{0}};
        hd_tile_dots(s, queries, place, EIGHTS, width, dtype);
        weigh(s, &r, o, a, query, turn * KEYS, p.nk, width);
        hd_tile_mix(o, s, place + HD_TILE_ELEMS(width), EIGHTS, width, dtype);
        hd_sync(); /* the place is free */
    }
    hd_copy_wait_0();
    hd_sync(); /* where there were no turns, others' copies were on their way */
    finish(&r, o, a, &p, query, width);
    if (a->of.gives_f32) {
        hd_tile_store_f32(hd_tokens_at(&a->of.o, &p, p.head, HEDDLE_F32), a->of.o.token, first, a->nq, a->d, o, width);
    } else {
        hd_tile_store(hd_tokens_at(&a->of.o, &p, p.head, dtype), a->of.o.token, first, a->nq, a->d, queries, o, width,
                      dtype);
    }
}

#define ATTENTION_KERNEL(name, dtype, width)                                                                           \
    HD_KERNEL(name, hd_attention_args, a)                                                                              \
    {                                                                                                                  \
        attend(&a, dtype, width);                                                                                      \
    }
HD_TILE_KERNELS(ATTENTION_KERNEL, attention)

enum { TILES = 5 /* queries, and twice keys and values */ };

static int bytes_of(int width)
{
    return TILES * HD_TILE_ELEMS(width) * 2;
}

static int is_laid_out(const hd_device_attention *of)
{
    return of->dtype == HEDDLE_F32 || (hd_are_tokens_aligned(&of->q) && hd_are_tokens_aligned(&of->k) &&
                                       hd_are_tokens_aligned(&of->v) && hd_are_tokens_aligned(&of->o));
}

int hd_attention_forward(const hd_device_attention *of, void *stream)
{
    if (!hd_is_attention_right(of) || !is_laid_out(of)) {
        return (int)cudaErrorInvalidValue;
    }
    const int64_t rows = of->dtype == HEDDLE_F32 ? 4 : hd_tile_rows(of->nq), tiles = (of->nq + rows - 1) / rows;
    const hd_attention_args a = hd_attention_args_of(of, tiles);
    const unsigned blocks = hd_attention_blocks(of, tiles, of->heads), threads = hd_tile_threads(of->nq);
    if (of->outer == 0 || of->nq == 0) {
        return 0;
    }
    if (blocks == 0) {
        return (int)cudaErrorInvalidConfiguration;
    }
    if (of->dtype == HEDDLE_F32) {
        return hd_attention_f32(&a, stream);
    }
#define LAUNCH(name, type, width)                                                                                      \
    HD_TILE_LAUNCH_CASE(name, &a, blocks, threads, bytes_of(width), stream, of->d, type, width)
    HD_TILE_KERNELS(LAUNCH, attention)
    return (int)cudaGetLastError();
}

int hd_attention_load(void)
{
    const void *const kernel[] = {HD_TILE_ADDRESSES(attention)};
    const int n = (int)(sizeof kernel / sizeof kernel[0]);
    int error = 0;
    for (int i = 0; i < n && error == 0; i++) {
        struct cudaFuncAttributes attributes;
        error = (int)cudaFuncGetAttributes(&attributes, kernel[i]);
        error = error != 0 ? error : hd_allow_shared(kernel[i], bytes_of(hd_tile_width[i % 4]));
    }
    return error != 0 ? error : hd_attention_f32_load();
}
