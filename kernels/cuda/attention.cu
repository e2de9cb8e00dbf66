/* Attention of bf16 and f16 on tensor units, forward: a block has 128 queries of one head of one fibre, fewer where
 * fibres are short, and takes the keys 64 at a time (of wide heads 32, for its registers) from the first on, with a
 * running maximum and sum. The next keys are on their way meanwhile. Keys are never split over blocks. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/tile.h"

#define KEYS(width) ((width) > 80 ? 32 : 64) /* of a turn */
#define EIGHTS(width) (KEYS(width) / 8)
#define PLACE_ELEMS(width) (KEYS(width) * HD_TILE_STRIDE(width))

enum { WIDE = 2, ROWS = WIDE * 16 /* of a warp */, MOST_EIGHTS = 8 };

/* Of this lane's rows, r / 4, + 8, + 16 and so on of its warp's. The sums are of what the lane has itself. */
typedef struct running {
    float top[2 * WIDE], sum[2 * WIDE];
} running;

/* Keys that a query does not see. */
HD_DEV void hide(float (*s)[4], const hd_attention_args *a, int32_t query, int32_t key, int32_t nk, int width)
{
    HD_UNROLL
    for (int row = 0; row < 2 * WIDE; row++) {
        const int32_t end = hd_last_key(a, nk, query + row * 8) - key - (int32_t)(HD_LANE % 4) * 2;
        HD_UNROLL
        for (int i = 0; i < EIGHTS(width) * 2; i++) {
            float *score = &s[row / 2 * EIGHTS(width) + i / 2][row % 2 * 2 + i % 2];
            *score = i / 2 * 8 + i % 2 < end ? *score : -INFINITY;
        }
    }
}

/* Scores become weights, which are of the maximum so far; what was summed before is brought to it. */
HD_DEV void weigh(float (*s)[4], running *r, float (*o)[4], const hd_attention_args *a, int width)
{
    HD_UNROLL
    for (int row = 0; row < 2 * WIDE; row++) {
        float top = r->top[row], sum = 0;
        HD_UNROLL
        for (int i = 0; i < EIGHTS(width) * 2; i++) {
            top = fmaxf(top, s[row / 2 * EIGHTS(width) + i / 2][row % 2 * 2 + i % 2]);
        }
        top = hd_group_max(top, 4);
        const float from = top == -INFINITY ? 0 : hd_mul(top, a->scale_log2);
        HD_UNROLL
        for (int i = 0; i < EIGHTS(width) * 2; i++) {
            float *score = &s[row / 2 * EIGHTS(width) + i / 2][row % 2 * 2 + i % 2];
            *score = hd_exp2(hd_fma(*score, a->scale_log2, -from));
            sum = sum + *score;
        }
        const float fewer = hd_exp2(hd_fma(r->top[row], a->scale_log2, -from));
        r->sum[row] = hd_fma(r->sum[row], fewer, sum);
        r->top[row] = top;
        HD_UNROLL
        for (int i = 0; i < width / 4; i++) {
            float *value = &o[row / 2 * (width / 8) + i / 2][row % 2 * 2 + i % 2];
            *value = hd_mul(*value, fewer);
        }
    }
}

HD_DEV void finish(running *r, float (*o)[4], const hd_attention_args *a, const hd_attention_part *p, int32_t query,
                   int width)
{
    HD_UNROLL
    for (int row = 0; row < 2 * WIDE; row++) {
        const float sum = hd_group_sum(r->sum[row], 4), inverse = sum > 0 ? 1.0f / sum : sum;
        HD_UNROLL
        for (int i = 0; i < width / 4; i++) {
            float *value = &o[row / 2 * (width / 8) + i / 2][row % 2 * 2 + i % 2];
            *value = hd_mul(*value, inverse);
        }
        if (a->of.stats != 0 && HD_LANE % 4 == 0 && query + row * 8 < a->nq) {
            float *stats = a->of.stats + 2 * hd_attention_row(a, p, p->head, query + row * 8);
            hd_float_store(stats, r->top[row]);
            hd_float_store(stats + 1, sum > 0 ? hd_log2(sum) : sum);
        }
    }
}

/* The keys and values of a turn, into one of two places. */
HD_DEV void ask_keys(uint16_t *keys, const hd_attention_args *a, const hd_attention_part *p, int32_t turn, int width)
{
    const uint32_t head = hd_key_head(a, p->head);
    uint16_t *place = keys + turn % 2 * 2 * PLACE_ELEMS(width);
    hd_tile_ask(place, hd_tokens_at(&a->of.k, p, head, HEDDLE_BF16), a->of.k.token, turn * KEYS(width), p->nk, a->d,
                KEYS(width), width);
    hd_tile_ask(place + PLACE_ELEMS(width), hd_tokens_at(&a->of.v, p, head, HEDDLE_BF16), a->of.v.token,
                turn * KEYS(width), p->nk, a->d, KEYS(width), width);
    hd_copy_commit();
}

/* This warp's rows of the result; those of its queries are read by nobody any more. */
HD_DEV void leave(const hd_attention_args *a, const hd_attention_part *p, int32_t first, uint16_t *queries,
                  const float (*o)[4], int width, heddle_dtype dtype)
{
    HD_UNROLL
    for (int i = 0; i < WIDE; i++) {
        const int32_t row = (int32_t)HD_WARP * ROWS + i * 16;
        const float(*part)[4] = o + i * (width / 8);
        if (a->of.gives_f32) {
            hd_tile_store_f32(hd_tokens_at(&a->of.o, p, p->head, HEDDLE_F32), a->of.o.token, first + row, a->nq, a->d,
                              part, width);
        } else {
            hd_tile_store(hd_tokens_at(&a->of.o, p, p->head, dtype), a->of.o.token, first + row, a->nq, a->d,
                          queries + row * HD_TILE_STRIDE(width), part, width, dtype);
        }
    }
}

HD_DEV void attend(const hd_attention_args *a, heddle_dtype dtype, int width)
{
    HD_DYNAMIC_SHARED(uint16_t, queries);
    const int32_t rows = (int32_t)HD_WARPS * ROWS;
    uint16_t *keys = queries + rows * HD_TILE_STRIDE(width);
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->heads);
    const int32_t first = (int32_t)p.tile * rows, query = first + (int32_t)(HD_WARP * ROWS + HD_LANE / 4);
    const int32_t end = hd_last_key(a, p.nk, first + rows - 1), turns = (end + KEYS(width) - 1) / KEYS(width);
    const int32_t seen_by_all = hd_last_key(a, p.nk, first);
    running r;
    float o[WIDE * HD_DEVICE_MOST_HEAD / 8][4] = {{0}};
    HD_UNROLL
    for (int i = 0; i < 2 * WIDE; i++) {
        r.top[i] = -INFINITY;
        r.sum[i] = 0;
    }
    hd_tile_ask(queries, hd_tokens_at(&a->of.q, &p, p.head, dtype), a->of.q.token, first, a->nq, a->d, rows, width);
    ask_keys(keys, a, &p, 0, width);
    for (int32_t turn = 0; turn < turns; turn++) {
        const uint16_t *place = keys + turn % 2 * 2 * PLACE_ELEMS(width);
        float s[WIDE * MOST_EIGHTS][4] = {{0}};
        hd_copy_wait_0();
        hd_sync(); /* all have what they asked for, and are through with the other place */
        if (turn + 1 < turns) {
            ask_keys(keys, a, &p, turn + 1, width);
        }
        hd_tile_dots(s, queries, 0, place, EIGHTS(width), WIDE, width, dtype);
        if ((turn + 1) * KEYS(width) > seen_by_all) {
            hide(s, a, query, turn * KEYS(width), p.nk, width);
        }
        weigh(s, &r, o, a, width);
        hd_tile_mix(o, s, place + PLACE_ELEMS(width), EIGHTS(width), WIDE, width, dtype);
    }
    hd_copy_wait_0();
    hd_sync(); /* where there were no turns, others' copies were on their way */
    finish(&r, o, a, &p, query, width);
    leave(a, &p, first, queries, o, width, dtype);
}

#define ATTENTION_KERNEL(name, dtype, width)                                                                           \
    HD_KERNEL(name, hd_attention_args, a)                                                                              \
    {                                                                                                                  \
        attend(&a, dtype, width);                                                                                      \
    }
HD_TILE_KERNELS(ATTENTION_KERNEL, attention)

/* Queries, and keys and values, of two turns where there are so many. */
static int bytes_of(int width, int64_t rows, int64_t keys)
{
    const int turns = keys > KEYS(width) ? 2 : 1;
    return (int)rows * HD_TILE_STRIDE(width) * 2 + turns * 2 * PLACE_ELEMS(width) * 2;
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
    const int64_t rows = hd_tile_rows(of->nq, WIDE), tiles = (of->nq + rows - 1) / rows;
    const hd_attention_args a = hd_attention_args_of(of, tiles);
    const unsigned blocks = hd_attention_blocks(of, tiles, of->heads), threads = hd_tile_threads(of->nq, WIDE);
    if (of->outer == 0 || of->nq == 0) {
        return 0;
    }
    if (of->dtype == HEDDLE_F32) {
        return hd_attention_f32(of, stream);
    }
    if (blocks == 0) {
        return (int)cudaErrorInvalidConfiguration;
    }
#define LAUNCH(name, type, width)                                                                                      \
    HD_TILE_LAUNCH_CASE(name, &a, blocks, threads, bytes_of(width, rows, of->nk), stream, of->d, type, width)
    HD_TILE_KERNELS(LAUNCH, attention)
    return (int)cudaGetLastError();
}

int hd_attention_load(void)
{
    const void *const kernel[] = {HD_TILE_ADDRESSES(attention)};
    const int n = (int)(sizeof kernel / sizeof kernel[0]);
    int error = 0;
    for (int i = 0; i < n && error == 0; i++) {
        error = hd_load_kernel(kernel[i], bytes_of(hd_tile_width[i % 4], 4 * ROWS, INT32_MAX));
    }
    return error != 0 ? error : hd_attention_f32_load();
}
