/* Attention in f32, forward (attention_f32.h): a block has 64 queries of one head of one fibre, fewer where fibres are
 * short, and takes the keys some at a time from the first on, with a running maximum and sum. Values are on their way
 * while scores are computed, and the next keys while values are added. */
#include "kernels/cuda/attention_f32.h"

/* Keys of a turn, constant where functions are called; 32, too, where there are no more: the bits are the same. */
#define KEYS(width) ((width) > 64 ? 32 : 64)
enum { FEW = 32 };

/* Of this lane's rows. The sums are of its own columns. */
typedef struct running {
    float top[HD_F32_TALL], sum[HD_F32_TALL];
} running;

/* Keys that a query does not see. */
HD_DEV void hide(hd_f32_scores s, const hd_attention_args *a, int32_t query, int32_t key, int32_t nk, int keys)
{
    HD_UNROLL
    for (int i = 0; i < HD_F32_TALL; i++) {
        const int32_t end = hd_last_key(a, nk, query + i * 4) - key - (int32_t)(HD_LANE % 8);
        HD_UNROLL
        for (int j = 0; j < keys / 8; j++) {
            s[i][j] = j * 8 < end ? s[i][j] : -INFINITY;
        }
    }
}

/* Scores become weights, which are of the maximum so far; what was summed before is brought to it. */
HD_DEV void weigh(hd_f32_scores s, running *r, hd_f32_sums o, const hd_attention_args *a, int keys, int width)
{
    HD_UNROLL
    for (int i = 0; i < HD_F32_TALL; i++) {
        float top = r->top[i], sum = 0;
        HD_UNROLL
        for (int j = 0; j < keys / 8; j++) {
            top = fmaxf(top, s[i][j]);
        }
        top = hd_group_max(top, 8);
        const float from = top == -INFINITY ? 0 : top, fewer = hd_exp2(hd_mul(r->top[i] - from, a->scale_log2));
        HD_UNROLL
        for (int j = 0; j < keys / 8; j++) {
            s[i][j] = hd_exp2(hd_mul(s[i][j] - from, a->scale_log2));
            sum = sum + s[i][j];
        }
        r->sum[i] = hd_fma(r->sum[i], fewer, sum);
        r->top[i] = top;
        HD_UNROLL
        for (int c = 0; c < width / 8; c++) {
            o[i][c] = hd_mul(o[i][c], fewer);
        }
    }
}

HD_DEV void finish(const running *r, hd_f32_sums o, const hd_attention_args *a, const hd_attention_part *p,
                   int32_t first, int width)
{
    float inverse[HD_F32_TALL];
    HD_UNROLL
    for (int i = 0; i < HD_F32_TALL; i++) {
        const int32_t query = first + hd_f32_row() + i * 4;
        const float sum = hd_group_sum(r->sum[i], 8);
        inverse[i] = sum > 0 ? 1.0f / sum : sum;
        if (a->of.stats != 0 && HD_LANE % 8 == 0 && query < a->nq) {
            float *stats = a->of.stats + 2 * hd_attention_row(a, p, p->head, query);
            hd_float_store(stats, r->top[i]);
            hd_float_store(stats + 1, sum > 0 ? hd_log2(sum) : sum);
        }
    }
    hd_f32_store(&a->of.o, a, p, first, a->nq, o, inverse, width);
}

/* The keys or the values of a turn. */
HD_DEV void ask(hd_four *tile, const hd_device_tokens *x, const hd_attention_args *a, const hd_attention_part *p,
                int32_t key, int keys, int width)
{
    hd_f32_ask(tile, hd_tokens_at(x, p, hd_key_head(a, p->head), HEDDLE_F32), x->token, key, p->nk, keys, a, width);
    hd_copy_commit();
}

HD_DEV void attend(const hd_attention_args *a, int turn, int width)
{
    HD_DYNAMIC_SHARED(hd_four, queries);
    const int32_t rows = (int32_t)HD_WARPS * HD_F32_ROWS, pieces = (a->d + 3) / 4;
    hd_four *keys = queries + rows * HD_F32_STRIDE(width), *values = keys + turn * HD_F32_STRIDE(width);
    hd_four *weights = values + turn * HD_F32_STRIDE(width);
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->heads);
    const int32_t first = (int32_t)(a->tiles - 1 - p.tile) * rows; /* who sees most begins first */
    const int32_t seen_by_all = hd_last_key(a, p.nk, first);
    const int32_t end = hd_last_key(a, p.nk, first + rows - 1);
    running r;
    hd_f32_sums o = {{0}};
    HD_UNROLL
    for (int i = 0; i < HD_F32_TALL; i++) {
        r.top[i] = -INFINITY;
        r.sum[i] = 0;
    }
    hd_f32_ask(queries, hd_tokens_at(&a->of.q, &p, p.head, HEDDLE_F32), a->of.q.token, first, a->nq, rows, a, width);
    ask(keys, &a->of.k, a, &p, 0, turn, width);
    for (int32_t key = 0; key < end; key += turn) {
        const int32_t left = end - key;
        hd_f32_scores s = {{0}};
        hd_copy_wait_0();
        hd_sync(); /* all have the keys, and are through with the values */
        ask(values, &a->of.v, a, &p, key, turn, width);
        hd_f32_dots(s, queries, keys, pieces, turn / 8, width);
        if (key + turn > seen_by_all) {
            hide(s, a, first + hd_f32_row(), key, p.nk, turn);
        }
        hd_copy_wait_0();
        hd_sync(); /* all have the values, and are through with the keys */
        if (key + turn < end) {
            ask(keys, &a->of.k, a, &p, key + turn, turn, width);
        }
        weigh(s, &r, o, a, turn, width);
        hd_f32_leave(weights, s, turn / 8);
        hd_f32_mix(o, weights, values, left < turn ? left : turn, turn / 8, width);
    }
    hd_copy_wait_0(); /* where there were no turns */
    finish(&r, o, a, &p, first, width);
}

#define TURNS_KERNEL(name, keys, width)                                                                                \
    HD_KERNEL(name, hd_attention_args, a)                                                                              \
    {                                                                                                                  \
        attend(&a, keys, width);                                                                                       \
    }
#define KERNEL(name, width) TURNS_KERNEL(name, KEYS(width), width)
#define FEW_KERNEL(name, width) TURNS_KERNEL(name, FEW, width)
HD_F32_KERNELS(KERNEL, attention)
FEW_KERNEL(attention_few_f32_32, 32)
FEW_KERNEL(attention_few_f32_64, 64)

/* Queries, keys and values, and weights of a turn. */
static int bytes_of(int keys, int width, int64_t rows)
{
    return (int)((rows + 2 * keys) * HD_F32_STRIDE(width) + rows * HD_F32_STRIDE(keys)) * 16;
}

int hd_attention_f32(const hd_device_attention *of, void *stream)
{
    const unsigned threads = hd_f32_threads(of->nq);
    const int64_t rows = threads / 32 * HD_F32_ROWS, tiles = (of->nq + rows - 1) / rows;
    const unsigned blocks = hd_attention_blocks(of, tiles, of->heads);
    hd_attention_args a = hd_attention_args_of(of, tiles);
    if (blocks == 0) {
        return (int)cudaErrorInvalidConfiguration;
    }
    a.is_whole = hd_f32_is_whole(&of->q, of->d) && hd_f32_is_whole(&of->k, of->d) && hd_f32_is_whole(&of->v, of->d) &&
                 hd_f32_is_whole(&of->o, of->d);
#define LAUNCH_BY(name, keys, width)                                                                                   \
    HD_F32_LAUNCH_CASE(name, &a, blocks, threads, bytes_of(keys, width, rows), stream, width)
#define LAUNCH(name, width) LAUNCH_BY(name, KEYS(width), width)
    if (of->nk <= FEW && of->d <= 64) {
        LAUNCH_BY(attention_few_f32_32, FEW, 32)
        LAUNCH_BY(attention_few_f32_64, FEW, 64)
    } else {
        HD_F32_KERNELS(LAUNCH, attention)
    }
    return (int)cudaGetLastError();
}

int hd_attention_f32_load(void)
{
    const void *const kernel[] = {HD_F32_ADDRESSES(attention), HD_KERNEL_ADDRESS(attention_few_f32_32),
                                  HD_KERNEL_ADDRESS(attention_few_f32_64)};
    int error = 0;
    for (int i = 0; i < 6 && error == 0; i++) {
        error = hd_load_kernel(kernel[i], bytes_of(FEW, HD_DEVICE_MOST_HEAD, 4 * HD_F32_ROWS));
    }
    return error;
}
