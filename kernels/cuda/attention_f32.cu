/* Attention in f32, without tensor units: a warp has one query and takes the keys 32 at a time, a lane for each, or has
 * one key and takes the queries; then lanes have columns. Right and slow. */
#include "kernels/cuda/attention.h"
#include "kernels/cuda/kernels.h"

enum { THREADS = 128, WARPS = THREADS / 32, COLUMNS = HD_DEVICE_MOST_HEAD / 32 /* of a lane */ };

/* What lanes hand on to one another. */
typedef struct warp_memory {
    float weight[WARPS][2][32];
} warp_memory;

HD_DEV float dot(const char *x, const char *y, int32_t d)
{
    float sum = 0;
    for (int32_t i = 0; i < d; i++) {
        sum = hd_fma(hd_float_load((const float *)x + i), hd_float_load((const float *)y + i), sum);
    }
    return sum;
}

HD_DEV const char *token(const hd_device_tokens *x, const hd_attention_part *p, uint32_t head, int32_t t)
{
    return hd_tokens_at(x, p, head, HEDDLE_F32) + t * x->token * 4;
}

HD_DEV int is_seen(const hd_attention_args *a, const hd_attention_part *p, int32_t query, int32_t key)
{
    return query < a->nq && key < p->nk && (a->diagonal >= a->nk || key <= query + a->diagonal);
}

/* sum[columns] += the sum over 32 tokens from `first` on of weight times x; those of no weight are not read. */
HD_DEV void mix(float *sum, const float *weight, const hd_device_tokens *x, const hd_attention_part *p, uint32_t head,
                int32_t first, int32_t d)
{
    for (int32_t j = 0; j < 32; j++) {
        const float w = weight[j];
        for (int c = 0; c < COLUMNS && w != 0; c++) {
            const int32_t column = c * 32 + (int32_t)HD_LANE;
            if (column < d) {
                sum[c] = hd_fma(w, hd_float_load((const float *)token(x, p, head, first + j) + column), sum[c]);
            }
        }
    }
}

HD_DEV void store(const hd_device_tokens *x, const hd_attention_part *p, uint32_t head, int32_t t, const float *value,
                  float factor, int32_t d)
{
    for (int c = 0; c < COLUMNS; c++) {
        const int32_t column = c * 32 + (int32_t)HD_LANE;
        if (column < d) {
            hd_float_store((float *)token(x, p, head, t) + column, hd_mul(value[c], factor));
        }
    }
}

HD_DEV void leave(warp_memory *memory, int kind, float value)
{
    memory->weight[HD_WARP][kind][HD_LANE] = value;
}

HD_KERNEL(attention_f32, hd_attention_args, a)
{
    HD_SHARED(warp_memory, memory);
    const hd_attention_part p = hd_attention_part_of(&a, HD_BLOCK, a.heads);
    const int32_t query = (int32_t)(p.tile * WARPS + HD_WARP);
    const uint32_t key_head = hd_key_head(&a, p.head);
    float top = -INFINITY, sum = 0, o[COLUMNS] = {0};
    for (int32_t first = 0; first < p.nk && is_seen(&a, &p, query, first); first += 32) {
        const int32_t key = first + (int32_t)HD_LANE;
        const int sees = is_seen(&a, &p, query, key);
        const float s =
            sees ? dot(token(&a.of.q, &p, p.head, query), token(&a.of.k, &p, key_head, key), a.d) : -INFINITY;
        const float higher = fmaxf(top, hd_group_max(s, 32)), fewer = hd_exp2(hd_mul(top - higher, a.scale_log2));
        const float weight = sees ? hd_exp2(hd_mul(s - higher, a.scale_log2)) : 0;
        sum = hd_fma(sum, fewer, hd_group_sum(weight, 32));
        top = higher;
        leave(memory, 0, weight);
        hd_sync_warp();
        for (int c = 0; c < COLUMNS; c++) {
            o[c] = hd_mul(o[c], fewer);
        }
        mix(o, memory->weight[HD_WARP][0], &a.of.v, &p, key_head, first, a.d);
        hd_sync_warp();
    }
    if (query < a.nq) {
        store(&a.of.o, &p, p.head, query, o, sum > 0 ? 1.0f / sum : sum, a.d);
        if (a.of.stats != 0 && HD_LANE == 0) {
            float *stats = a.of.stats + 2 * hd_attention_row(&a, &p, p.head, query);
            hd_float_store(stats, top);
            hd_float_store(stats + 1, sum > 0 ? hd_log2(sum) : sum);
        }
    }
}

/* Weight of a key for a query, and the gradient of its score. */
HD_DEV void weigh_back(const hd_attention_args *a, const hd_attention_part *p, uint32_t head, int32_t query,
                       int32_t key, float *weight, float *d_score)
{
    const uint32_t key_head = hd_key_head(a, head);
    *weight = *d_score = 0;
    if (is_seen(a, p, query, key)) {
        const int64_t row = hd_attention_row(a, p, head, query);
        const float s = dot(token(&a->of.q, p, head, query), token(&a->of.k, p, key_head, key), a->d);
        const float d_weight = dot(token(&a->d_o, p, head, query), token(&a->of.v, p, key_head, key), a->d);
        const float top = hd_float_load(a->of.stats + 2 * row), log_sum = hd_float_load(a->of.stats + 2 * row + 1);
        *weight = hd_exp2(hd_fma(s - top, a->scale_log2, -log_sum));
        *d_score = hd_mul(*weight, d_weight - hd_float_load(a->delta + row));
    }
}

HD_KERNEL(attention_delta_f32, hd_attention_args, a)
{
    const hd_attention_part p = hd_attention_part_of(&a, HD_BLOCK, a.heads);
    const int32_t query = (int32_t)(p.tile * THREADS + HD_THREAD);
    if (query < a.nq) {
        hd_float_store(a.delta + hd_attention_row(&a, &p, p.head, query),
                       dot(token(&a.of.o, &p, p.head, query), token(&a.d_o, &p, p.head, query), a.d));
    }
}

HD_KERNEL(attention_dq_f32, hd_attention_args, a)
{
    HD_SHARED(warp_memory, memory);
    const hd_attention_part p = hd_attention_part_of(&a, HD_BLOCK, a.heads);
    const int32_t query = (int32_t)(p.tile * WARPS + HD_WARP);
    float dq[COLUMNS] = {0}, weight, d_score;
    for (int32_t first = 0; first < p.nk && is_seen(&a, &p, query, first); first += 32) {
        weigh_back(&a, &p, p.head, query, first + (int32_t)HD_LANE, &weight, &d_score);
        leave(memory, 0, d_score);
        hd_sync_warp();
        mix(dq, memory->weight[HD_WARP][0], &a.of.k, &p, hd_key_head(&a, p.head), first, a.d);
        hd_sync_warp();
    }
    if (query < a.nq) {
        store(&a.dq, &p, p.head, query, dq, a.of.scale, a.d);
    }
}

HD_KERNEL(attention_dkv_f32, hd_attention_args, a)
{
    HD_SHARED(warp_memory, memory);
    const hd_attention_part p = hd_attention_part_of(&a, HD_BLOCK, a.kv_heads);
    const int32_t key = (int32_t)(p.tile * WARPS + HD_WARP);
    float dk[COLUMNS] = {0}, dv[COLUMNS] = {0}, weight, d_score;
    for (uint32_t head = hd_first_head(&a, p.head); head < hd_end_head(&a, p.head) && key < p.nk; head++) {
        for (int32_t first = 0; first < a.nq; first += 32) {
            weigh_back(&a, &p, head, first + (int32_t)HD_LANE, key, &weight, &d_score);
            leave(memory, 0, weight);
            leave(memory, 1, d_score);
            hd_sync_warp();
            mix(dv, memory->weight[HD_WARP][0], &a.d_o, &p, head, first, a.d);
            mix(dk, memory->weight[HD_WARP][1], &a.of.q, &p, head, first, a.d);
            hd_sync_warp();
        }
    }
    if (key < a.nk) {
        store(&a.dk, &p, p.head, key, dk, a.of.scale, a.d);
        store(&a.dv, &p, p.head, key, dv, 1, a.d);
    }
}

/* The blocks of a launch whose blocks have so many tokens; 0: too many. */
static unsigned blocks_of(hd_attention_args *a, int64_t tokens, int64_t of_block, int64_t heads)
{
    a->tiles = (uint32_t)((tokens + of_block - 1) / of_block);
    return hd_attention_blocks(&a->of, a->tiles, heads);
}

int hd_attention_f32(const hd_attention_args *of, void *stream)
{
    hd_attention_args a = *of;
    const unsigned blocks = blocks_of(&a, a.nq, WARPS, a.of.heads);
    HD_LAUNCH(attention_f32, blocks, THREADS, stream, &a);
    return (int)cudaGetLastError();
}

int hd_attention_f32_back(const hd_attention_args *of, void *stream)
{
    hd_attention_args a = *of;
    unsigned blocks = blocks_of(&a, a.nq, THREADS, a.of.heads);
    if (a.nq > 0) {
        HD_LAUNCH(attention_delta_f32, blocks, THREADS, stream, &a);
        blocks = blocks_of(&a, a.nq, WARPS, a.of.heads);
        HD_LAUNCH(attention_dq_f32, blocks, THREADS, stream, &a);
    }
    if (a.nk > 0) {
        blocks = blocks_of(&a, a.nk, WARPS, a.of.kv_heads);
        HD_LAUNCH(attention_dkv_f32, blocks, THREADS, stream, &a);
    }
    return (int)cudaGetLastError();
}

int hd_attention_f32_load(void)
{
    const void *const kernel[] = {HD_KERNEL_ADDRESS(attention_f32), HD_KERNEL_ADDRESS(attention_delta_f32),
                                  HD_KERNEL_ADDRESS(attention_dq_f32), HD_KERNEL_ADDRESS(attention_dkv_f32)};
    int error = 0;
    for (int i = 0; i < 4 && error == 0; i++) {
        struct cudaFuncAttributes attributes;
        error = (int)cudaFuncGetAttributes(&attributes, kernel[i]);
    }
    return error;
}
