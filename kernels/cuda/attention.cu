/* Attention of bf16 and f16 on tensor units, forward: a block has 128 queries of one head of one fibre, fewer where
 * there are few, and takes the keys 64 at a time (of wide heads 32, for its registers) from the first on, with a
 * running maximum and sum. The next keys are on their way meanwhile. Keys are never split over blocks. Where keys are
 * few a form of its own takes 64 queries and 32 keys: more blocks are there at once, whose loads hide one another's. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/tile.h"

/* Constant where it is called, as width is: wide, 16 rows each of a warp. */
#define KEYS(width, wide) ((wide) == 1 || (width) > 80 ? 32 : 64) /* of a turn */
#define EIGHTS(width, wide) (KEYS(width, wide) / 8)
#define PLACE_ELEMS(width, wide) (KEYS(width, wide) * HD_TILE_STRIDE(width))

enum { MOST_EIGHTS = 8, FEW_KEYS = 64 };

/* Of this lane's rows, r / 4, + 8, + 16 and so on of its warp's. The sums are of what the lane has itself. */
typedef struct running {
    float top[2 * HD_TILE_MOST_WIDE], sum[2 * HD_TILE_MOST_WIDE];
} running;

/* Keys that a query does not see. */
HD_DEV void hide(float (*s)[4], const hd_attention_args *a, int32_t query, int32_t key, int32_t nk, int wide, int width)
{
    HD_UNROLL
    for (int row = 0; row < 2 * wide; row++) {
        const int32_t end = hd_last_key(a, nk, query + row * 8) - key - (int32_t)(HD_LANE % 4) * 2;
        HD_UNROLL
        for (int i = 0; i < EIGHTS(width, wide) * 2; i++) {
            float *score = &s[row / 2 * EIGHTS(width, wide) + i / 2][row % 2 * 2 + i % 2];
            *score = i / 2 * 8 + i % 2 < end ? *score : -INFINITY;
        }
    }
}

/* What was summed of a row under a smaller maximum. */
HD_DEV void lessen(float (*o)[4], int row, float fewer, int width)
{
    HD_UNROLL
    for (int i = 0; i < width / 4; i++) {
        float *value = &o[row / 2 * (width / 8) + i / 2][row % 2 * 2 + i % 2];
        *value = hd_mul(*value, fewer);
    }
}

/* Scores become weights, which are of the maximum so far; what was summed before is brought to it. Of wide heads that
 * is much, and left out where no maximum of the warp grew: it would be by 1, exactly, whatever rows are beside it. */
HD_DEV void weigh(float (*s)[4], running *r, float (*o)[4], const hd_attention_args *a, int wide, int width)
{
    float fewer[2 * HD_TILE_MOST_WIDE];
    int grew = 0;
    HD_UNROLL
    for (int row = 0; row < 2 * wide; row++) {
        float top = r->top[row], sum = 0;
        HD_UNROLL
        for (int i = 0; i < EIGHTS(width, wide) * 2; i++) {
            top = fmaxf(top, s[row / 2 * EIGHTS(width, wide) + i / 2][row % 2 * 2 + i % 2]);
        }
        top = hd_group_max(top, 4);
        const float from = top == -INFINITY ? 0 : hd_mul(top, a->scale_log2);
        HD_UNROLL
        for (int i = 0; i < EIGHTS(width, wide) * 2; i++) {
            float *score = &s[row / 2 * EIGHTS(width, wide) + i / 2][row % 2 * 2 + i % 2];
            *score = hd_exp2(hd_fma(*score, a->scale_log2, -from));
            sum = sum + *score;
        }
        fewer[row] = r->top[row] == top ? 1 : hd_exp2(hd_fma(r->top[row], a->scale_log2, -from));
        grew |= r->top[row] != top;
        r->sum[row] = hd_fma(r->sum[row], fewer[row], sum);
        r->top[row] = top;
        if (width <= 80) {
            lessen(o, row, fewer[row], width);
        }
    }
    if (width > 80 && hd_any(grew)) {
        HD_UNROLL
        for (int row = 0; row < 2 * wide; row++) {
            lessen(o, row, fewer[row], width);
        }
    }
}

HD_DEV void finish(running *r, float (*o)[4], const hd_attention_args *a, const hd_attention_part *p, int32_t query,
                   int wide, int width)
{
    HD_UNROLL
    for (int row = 0; row < 2 * wide; row++) {
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
HD_DEV void ask_keys(uint16_t *keys, const hd_attention_args *a, const hd_attention_part *p, int32_t turn, int wide,
                     int width)
{
    const uint32_t head = hd_key_head(a, p->head);
    uint16_t *place = keys + turn % 2 * 2 * PLACE_ELEMS(width, wide);
    hd_tile_ask(place, hd_tokens_at(&a->of.k, p, head, HEDDLE_BF16), a->of.k.token, turn * KEYS(width, wide), p->nk,
                a->d, KEYS(width, wide), width);
    hd_tile_ask(place + PLACE_ELEMS(width, wide), hd_tokens_at(&a->of.v, p, head, HEDDLE_BF16), a->of.v.token,
                turn * KEYS(width, wide), p->nk, a->d, KEYS(width, wide), width);
    hd_copy_commit();
}

/* This warp's rows of the result; those of its queries are read by nobody any more. */
HD_DEV void leave(const hd_attention_args *a, const hd_attention_part *p, int32_t first, uint16_t *queries,
                  const float (*o)[4], int wide, int width, heddle_dtype dtype)
{
    HD_UNROLL
    for (int i = 0; i < wide; i++) {
        const int32_t row = ((int32_t)HD_WARP * wide + i) * 16;
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

HD_DEV void attend(const hd_attention_args *a, heddle_dtype dtype, int wide, int width)
{
    HD_DYNAMIC_SHARED(uint16_t, queries);
    const int32_t rows = (int32_t)HD_WARPS * wide * 16;
    uint16_t *keys = queries + rows * HD_TILE_STRIDE(width);
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->heads);
    const int32_t first = (int32_t)p.tile * rows,
                  query = first + (int32_t)((int)HD_WARP * wide * 16 + (int)HD_LANE / 4);
    const int32_t end = hd_last_key(a, p.nk, first + rows - 1),
                  turns = (end + KEYS(width, wide) - 1) / KEYS(width, wide);
    const int32_t seen_by_all = hd_last_key(a, p.nk, first);
    running r;
    float o[HD_TILE_MOST_WIDE * HD_DEVICE_MOST_HEAD / 8][4] = {{0}};
    HD_UNROLL
    for (int i = 0; i < 2 * wide; i++) {
        r.top[i] = -INFINITY;
        r.sum[i] = 0;
    }
    hd_tile_ask(queries, hd_tokens_at(&a->of.q, &p, p.head, dtype), a->of.q.token, first, a->nq, a->d, rows, width);
    ask_keys(keys, a, &p, 0, wide, width);
    for (int32_t turn = 0; turn < turns; turn++) {
        const uint16_t *place = keys + turn % 2 * 2 * PLACE_ELEMS(width, wide);
        float s[HD_TILE_MOST_WIDE * MOST_EIGHTS][4] = {{0}};
        hd_copy_wait_0();
        hd_sync(); /* all have what they asked for, and are through with the other place */
        if (turn + 1 < turns) {
            ask_keys(keys, a, &p, turn + 1, wide, width);
        }
        hd_tile_dots(s, queries, 0, place, EIGHTS(width, wide), wide, width, dtype);
        if ((turn + 1) * KEYS(width, wide) > seen_by_all) {
            hide(s, a, query, turn * KEYS(width, wide), p.nk, wide, width);
        }
        weigh(s, &r, o, a, wide, width);
        hd_tile_mix(o, s, place + PLACE_ELEMS(width, wide), EIGHTS(width, wide), wide, width, dtype);
    }
    hd_copy_wait_0();
    hd_sync(); /* where there were no turns, others' copies were on their way */
    finish(&r, o, a, &p, query, wide, width);
    leave(a, &p, first, queries, o, wide, width, dtype);
}

#define ATTENTION_KERNEL(name, dtype, width)                                                                           \
    HD_KERNEL(name, hd_attention_args, a)                                                                              \
    {                                                                                                                  \
        attend(&a, dtype, 2, width);                                                                                   \
    }
HD_TILE_KERNELS(ATTENTION_KERNEL, attention)

#define FEW_KEYS_KERNEL(name, dtype, width)                                                                            \
    HD_KERNEL(name, hd_attention_args, a)                                                                              \
    {                                                                                                                  \
        attend(&a, dtype, 1, width);                                                                                   \
    }
HD_TILE_KERNELS(FEW_KEYS_KERNEL, attention_few)

/* By the keys of the whole fibre, whoever holds how many of its queries: turns decide the order of sums. */
static int wide_of(int64_t keys)
{
    return keys <= FEW_KEYS ? 1 : 2;
}

/* Queries, and keys and values, of two turns where there are so many. */
static int bytes_of(int wide, int width, int64_t rows, int64_t keys)
{
    const int turns = keys > KEYS(width, wide) ? 2 : 1;
    return (int)rows * HD_TILE_STRIDE(width) * 2 + turns * 2 * PLACE_ELEMS(width, wide) * 2;
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
    const int wide = wide_of(of->nk);
    const int64_t rows = hd_tile_rows(of->nq, wide), tiles = (of->nq + rows - 1) / rows;
    const hd_attention_args a = hd_attention_args_of(of, tiles);
    const unsigned blocks = hd_attention_blocks(of, tiles, of->heads), threads = hd_tile_threads(of->nq, wide);
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
    HD_TILE_LAUNCH_CASE(name, &a, blocks, threads, bytes_of(wide, width, rows, of->nk), stream, of->d, type, width)
    if (wide == 1) {
        HD_TILE_KERNELS(LAUNCH, attention_few)
    } else {
        HD_TILE_KERNELS(LAUNCH, attention)
    }
    return (int)cudaGetLastError();
}

int hd_attention_load(void)
{
    const void *const kernel[] = {HD_TILE_ADDRESSES(attention), HD_TILE_ADDRESSES(attention_few)};
    const int n = (int)(sizeof kernel / sizeof kernel[0]);
    int error = 0;
    for (int i = 0; i < n && error == 0; i++) {
        const int wide = i < n / 2 ? 2 : 1;
        error = hd_load_kernel(kernel[i], bytes_of(wide, hd_tile_width[i % 4], (int64_t)64 * wide, INT32_MAX));
    }
    return error != 0 ? error : hd_attention_f32_load();
}
