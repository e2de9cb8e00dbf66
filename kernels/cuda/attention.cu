/* Attention of bf16 and f16 on tensor units, forward: a block has 128 queries of one head of one fibre, fewer where
 * there are few, and takes the keys 64 at a time (of wide heads 32, for its registers) from the first on, with a
 * running maximum and sum. The next keys are on their way meanwhile. Keys are never split over blocks. Where keys are
 * few, all are taken in one pass, by 16 queries a warp. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/tile.h"

/* Constant where it is called, as width is: n, 8 keys each, and wide, 16 rows each of a warp. */
#define TURN(width) ((width) > 80 ? 4 : 8) /* 8 keys each */
#define PLACE_ELEMS(n, width) ((n)*8 * HD_TILE_STRIDE(width))

enum { WIDE = 2, MOST_KEYS = 128 /* of one pass */, MOST_TURN = 8 };

/* Of this lane's rows, r / 4, + 8, + 16 and so on of its warp's. The sums are of what the lane has itself. */
typedef struct running {
    float top[2 * HD_TILE_MOST_WIDE], sum[2 * HD_TILE_MOST_WIDE];
} running;

/* Keys that a query does not see. */
HD_DEV void hide(float (*s)[4], const hd_attention_args *a, int32_t query, int32_t key, int32_t nk, int n, int wide)
{
    HD_UNROLL
    for (int row = 0; row < 2 * wide; row++) {
        const int32_t end = hd_last_key(a, nk, query + row * 8) - key - (int32_t)(HD_LANE % 4) * 2;
        HD_UNROLL
        for (int i = 0; i < n * 2; i++) {
            float *score = &s[row / 2 * n + i / 2][row % 2 * 2 + i % 2];
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

/* Scores of a row become weights, which are of the maximum so far. Returns how many times as much is left of what was
 * summed before. */
HD_DEV float weigh(float (*s)[4], running *r, int row, const hd_attention_args *a, int n)
{
    float top = r->top[row], sum = 0;
    HD_UNROLL
    for (int i = 0; i < n * 2; i++) {
        top = fmaxf(top, s[row / 2 * n + i / 2][row % 2 * 2 + i % 2]);
    }
    top = hd_group_max(top, 4);
    const float from = top == -INFINITY ? 0 : hd_mul(top, a->scale_log2);
    HD_UNROLL
    for (int i = 0; i < n * 2; i++) {
        float *score = &s[row / 2 * n + i / 2][row % 2 * 2 + i % 2];
        *score = hd_exp2(hd_fma(*score, a->scale_log2, -from));
        sum = sum + *score;
    }
    const float fewer = r->top[row] == top ? 1 : hd_exp2(hd_fma(r->top[row], a->scale_log2, -from));
    r->sum[row] = hd_fma(r->sum[row], fewer, sum);
    r->top[row] = top;
    return fewer;
}

/* All rows, and what was summed before. Of wide heads that is much, and left out where no maximum of the warp grew: it
 * would be by 1, exactly, whatever rows are beside it. */
HD_DEV void weigh_all(float (*s)[4], running *r, float (*o)[4], const hd_attention_args *a, int n, int width)
{
    float fewer[2 * WIDE];
    int grew = 0;
    HD_UNROLL
    for (int row = 0; row < 2 * WIDE; row++) {
        const float before = r->top[row];
        fewer[row] = weigh(s, r, row, a, n);
        grew |= r->top[row] != before;
        if (width <= 80) {
            lessen(o, row, fewer[row], width);
        }
    }
    if (width > 80 && hd_any(grew)) {
        HD_UNROLL
        for (int row = 0; row < 2 * WIDE; row++) {
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

/* Keys or values from the `first` on. */
HD_DEV void ask(uint16_t *place, const hd_device_tokens *x, const hd_attention_args *a, const hd_attention_part *p,
                int32_t first, int n, int width)
{
    hd_tile_ask(place, hd_tokens_at(x, p, hd_key_head(a, p->head), HEDDLE_BF16), x->token, first, p->nk, a->d, n * 8,
                width);
}

/* Those of a turn, into one of two places. */
HD_DEV void ask_keys(uint16_t *keys, const hd_attention_args *a, const hd_attention_part *p, int32_t turn, int n,
                     int width)
{
    uint16_t *place = keys + turn % 2 * 2 * PLACE_ELEMS(n, width);
    ask(place, &a->of.k, a, p, turn * n * 8, n, width);
    ask(place + PLACE_ELEMS(n, width), &a->of.v, a, p, turn * n * 8, n, width);
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

HD_DEV running nothing(void)
{
    running r;
    HD_UNROLL
    for (int i = 0; i < 2 * WIDE; i++) {
        r.top[i] = -INFINITY;
        r.sum[i] = 0;
    }
    return r;
}

HD_DEV void attend(const hd_attention_args *a, heddle_dtype dtype, int width)
{
    HD_DYNAMIC_SHARED(uint16_t, queries);
    const int32_t rows = (int32_t)HD_WARPS * WIDE * 16, n = TURN(width);
    uint16_t *keys = queries + rows * HD_TILE_STRIDE(width);
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->heads);
    const int32_t first = (int32_t)p.tile * rows,
                  query = first + (int32_t)((int)HD_WARP * WIDE * 16 + (int)HD_LANE / 4);
    const int32_t end = hd_last_key(a, p.nk, first + rows - 1), turns = (end + n * 8 - 1) / (n * 8);
    const int32_t seen_by_all = hd_last_key(a, p.nk, first);
    running r = nothing();
    float o[WIDE * HD_DEVICE_MOST_HEAD / 8][4] = {{0}};
    hd_tile_ask(queries, hd_tokens_at(&a->of.q, &p, p.head, dtype), a->of.q.token, first, a->nq, a->d, rows, width);
    ask_keys(keys, a, &p, 0, n, width);
    for (int32_t turn = 0; turn < turns; turn++) {
        const uint16_t *place = keys + turn % 2 * 2 * PLACE_ELEMS(n, width);
        float s[WIDE * MOST_TURN][4] = {{0}};
        hd_copy_wait_0();
        hd_sync(); /* all have what they asked for, and are through with the other place */
        if (turn + 1 < turns) {
            ask_keys(keys, a, &p, turn + 1, n, width);
        }
        hd_tile_dots(s, queries, 0, place, n, WIDE, width, dtype);
        if ((turn + 1) * n * 8 > seen_by_all) {
            hide(s, a, query, turn * n * 8, p.nk, n, WIDE);
        }
        weigh_all(s, &r, o, a, n, width);
        hd_tile_mix(o, s, place + PLACE_ELEMS(n, width), n, WIDE, width, dtype);
    }
    hd_copy_wait_0();
    hd_sync(); /* where there were no turns, others' copies were on their way */
    finish(&r, o, a, &p, query, WIDE, width);
    leave(a, &p, first, queries, o, WIDE, width, dtype);
}

/* All keys at once; values are on their way beside the scores. */
HD_DEV void attend_few(const hd_attention_args *a, heddle_dtype dtype, int n, int width)
{
    HD_DYNAMIC_SHARED(uint16_t, queries);
    const int32_t rows = (int32_t)HD_WARPS * 16;
    uint16_t *keys = queries + rows * HD_TILE_STRIDE(width), *values = keys + PLACE_ELEMS(n, width);
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->heads);
    const int32_t first = (int32_t)p.tile * rows, query = first + (int32_t)(HD_WARP * 16 + HD_LANE / 4);
    running r = nothing();
    float s[MOST_KEYS / 8][4] = {{0}}, o[HD_DEVICE_MOST_HEAD / 8][4] = {{0}};
    uint32_t part[MOST_KEYS / 16][4];
    hd_tile_ask(queries, hd_tokens_at(&a->of.q, &p, p.head, dtype), a->of.q.token, first, a->nq, a->d, rows, width);
    ask(keys, &a->of.k, a, &p, 0, n, width);
    hd_copy_commit();
    ask(values, &a->of.v, a, &p, 0, n, width);
    hd_copy_commit();
    hd_copy_wait_1();
    hd_sync(); /* queries and keys are there */
    hd_tile_dots(s, queries, 0, keys, n, 1, width, dtype);
    if (hd_last_key(a, p.nk, first) < n * 8) {
        hide(s, a, query, 0, p.nk, n, 1);
    }
    weigh(s, &r, 0, a, n);
    weigh(s, &r, 1, a, n);
    hd_tile_round(part, s, n / 2, dtype);
    hd_copy_wait_0();
    hd_sync(); /* values are there */
    HD_UNROLL
    for (int k = 0; k < n / 2; k++) {
        hd_tile_add(o, part + k, values + k * 16 * HD_TILE_STRIDE(width), 1, width, dtype);
    }
    finish(&r, o, a, &p, query, 1, width);
    leave(a, &p, first, queries, o, 1, width, dtype);
}

#define ATTENTION_KERNEL(name, dtype, width)                                                                           \
    HD_KERNEL(name, hd_attention_args, a)                                                                              \
    {                                                                                                                  \
        attend(&a, dtype, width);                                                                                      \
    }
HD_TILE_KERNELS(ATTENTION_KERNEL, attention)

#define FEW_KERNEL(name, dtype, n, width, blocks)                                                                      \
    HD_KERNEL_BESIDE(name, hd_attention_args, a, 128, blocks)                                                          \
    {                                                                                                                  \
        attend_few(&a, dtype, n, width);                                                                               \
    }
#define FEW_32_KERNEL(name, dtype, width) FEW_KERNEL(name, dtype, 4, width, 4)
#define FEW_64_KERNEL(name, dtype, width) FEW_KERNEL(name, dtype, 8, width, (width) > 80 ? 3 : 4)
#define FEW_128_KERNEL(name, dtype, width) FEW_KERNEL(name, dtype, 16, width, 3)
HD_TILE_KERNELS(FEW_32_KERNEL, attention_few32)
HD_TILE_KERNELS(FEW_64_KERNEL, attention_few64)
HD_TILE_NARROW_KERNELS(FEW_128_KERNEL, attention_few128)

/* Keys of one pass, by those of the whole fibre, whoever holds how many of its queries: passes decide the order of
 * sums. 0: there are several. */
static int pass_of(const hd_device_attention *of)
{
    return of->nk <= 32                                              ? 32
           : of->nk <= 64                                            ? 64
           : of->nk <= MOST_KEYS && of->d <= hd_tile_narrow_width[2] ? MOST_KEYS
                                                                     : 0;
}

/* Queries, and keys and values, of two turns where there are so many. */
static int bytes_of(int pass, int width, int rows, int64_t keys)
{
    const int n = pass > 0 ? pass / 8 : TURN(width), turns = pass == 0 && keys > n * 8 ? 2 : 1;
    return rows * HD_TILE_STRIDE(width) * 2 + turns * 2 * PLACE_ELEMS(n, width) * 2;
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
    if (of->outer == 0 || of->nq == 0) {
        return 0;
    }
    if (of->dtype == HEDDLE_F32) {
        return hd_attention_f32(of, stream);
    }
    const int pass = pass_of(of);
    const int wide = pass == 0 ? WIDE : 1, rows = (int)hd_tile_rows(of->nq, wide);
    const unsigned threads = hd_tile_threads(of->nq, wide);
    const int64_t tiles = (of->nq + rows - 1) / rows;
    const hd_attention_args a = hd_attention_args_of(of, tiles);
    const unsigned blocks = hd_attention_blocks(of, tiles, of->heads);
    if (blocks == 0) {
        return (int)cudaErrorInvalidConfiguration;
    }
    const int wanted = hd_tile_width_of(pass == MOST_KEYS ? hd_tile_narrow_width : hd_tile_width, of->d);
#define LAUNCH(name, type, width)                                                                                      \
    HD_TILE_LAUNCH_CASE(name, &a, blocks, threads, bytes_of(pass, width, rows, of->nk), stream, wanted, type, width)
    if (pass == 32) {
        HD_TILE_KERNELS(LAUNCH, attention_few32)
    } else if (pass == 64) {
        HD_TILE_KERNELS(LAUNCH, attention_few64)
    } else if (pass == MOST_KEYS) {
        HD_TILE_NARROW_KERNELS(LAUNCH, attention_few128)
    } else {
        HD_TILE_KERNELS(LAUNCH, attention)
    }
    return (int)cudaGetLastError();
}

int hd_attention_load(void)
{
    const void *const kernel[] = {HD_TILE_ADDRESSES(attention) HD_TILE_ADDRESSES(attention_few32)
                                      HD_TILE_ADDRESSES(attention_few64)};
    const void *const narrow[] = {HD_TILE_NARROW_ADDRESSES(attention_few128)};
    const int n = (int)(sizeof kernel / sizeof kernel[0]);
    int error = 0;
    for (int i = 0; i < n && error == 0; i++) {
        const int pass = i / 8 * 32;
        error = hd_load_kernel(kernel[i], bytes_of(pass, hd_tile_width[i / 2 % 4], pass == 0 ? 128 : 64, INT32_MAX));
    }
    for (int i = 0; i < 6 && error == 0; i++) {
        error = hd_load_kernel(narrow[i], bytes_of(MOST_KEYS, hd_tile_narrow_width[i / 2], 64, MOST_KEYS));
    }
    return error != 0 ? error : hd_attention_f32_load();
}
