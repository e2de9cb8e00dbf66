/* Gradients of attention of bf16 and f16 on tensor units: a block has some queries and takes all keys, for dq, or some
 * keys and takes all queries that see them, for dk and dv. So every sum has one order, and nothing is added by atomics;
 * for that, weights and their gradients are computed twice, but where a block has both (attention_whole.cu). */
#include "kernels/cuda/attention_back.h"

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
        sum = hd_add_dot(sum, &x, &y, dtype);
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

/* --- dq */

HD_DEV void queries_back(const hd_attention_args *a, heddle_dtype dtype, int width)
{
    HD_DYNAMIC_SHARED(uint16_t, queries);
    const int32_t rows = (int32_t)HD_WARPS * 16;
    uint16_t *d_o = queries + rows * HD_TILE_STRIDE(width), *places = d_o + rows * HD_TILE_STRIDE(width);
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->heads);
    const uint32_t key_head = hd_key_head(a, p.head);
    const int32_t first = (int32_t)p.tile * rows;
    const int32_t query = first + (int32_t)(HD_WARP * 16 + HD_LANE / 4);
    const int32_t end = a->diagonal >= a->nk ? p.nk : a->diagonal + (first + rows < a->nq ? first + rows : a->nq);
    const int32_t turns = ((end < p.nk ? end : p.nk) + HD_BACK_TURN - 1) / HD_BACK_TURN; /* none: not more than 0 */
    const hd_known_query own[2] = {hd_known_of(a, &p, p.head, query), hd_known_of(a, &p, p.head, query + 8)};
    float dq[HD_DEVICE_MOST_HEAD / 8][4] = {{0}};
    uint32_t of_q[HD_DEVICE_MOST_HEAD / 16][4], of_d_o[HD_DEVICE_MOST_HEAD / 16][4];
    hd_tile_ask(queries, hd_tokens_at(&a->of.q, &p, p.head, dtype), a->of.q.token, first, a->nq, a->d, rows, width);
    hd_tile_ask(d_o, hd_tokens_at(&a->d_o, &p, p.head, dtype), a->d_o.token, first, a->nq, a->d, rows, width);
    hd_ask_turn(places, &a->of.k, &a->of.v, &p, key_head, 0, p.nk, a->d, width);
    for (int32_t turn = 0; turn < turns; turn++) {
        const uint16_t *keys = hd_place_of(places, turn, width), *values = keys + HD_BACK_TURN * HD_TILE_STRIDE(width);
        const int32_t key = turn * HD_BACK_TURN;
        float s[HD_BACK_EIGHTHS][4] = {{0}}, ds[HD_BACK_EIGHTHS][4] = {{0}};
        hd_copy_wait_0();
        hd_sync(); /* all have what they asked for, and are through with the other place */
        if (turn + 1 < turns) {
            hd_ask_turn(hd_place_of(places, turn + 1, width), &a->of.k, &a->of.v, &p, key_head, key + HD_BACK_TURN,
                        p.nk, a->d, width);
        }
        if (turn == 0 && HD_IS_HELD(width)) {
            hd_tile_hold(of_q, queries, width);
            hd_tile_hold(of_d_o, d_o, width);
        }
        hd_tile_dots(s, queries, HD_HELD(of_q, width), keys, HD_BACK_EIGHTHS, 1, width, dtype);
        hd_tile_dots(ds, d_o, HD_HELD(of_d_o, width), values, HD_BACK_EIGHTHS, 1, width, dtype);
        HD_UNROLL
        for (int i = 0; i < HD_BACK_EIGHTHS * 4; i++) {
            hd_score_back(&s[i / 4][i % 4], &ds[i / 4][i % 4], &own[i % 4 / 2], a);
        }
        if (!hd_is_seen(a, &p, first, key + HD_BACK_TURN - 1)) {
            HD_UNROLL
            for (int i = 0; i < HD_BACK_EIGHTHS * 4; i++) {
                const int32_t column = key + i / 4 * 8 + (int32_t)(HD_LANE % 4) * 2 + i % 2;
                ds[i / 4][i % 4] = hd_is_seen(a, &p, query + i % 4 / 2 * 8, column) ? ds[i / 4][i % 4] : 0;
            }
        }
        hd_tile_mix(dq, ds, keys, HD_BACK_EIGHTHS, 1, width, dtype);
    }
    hd_copy_wait_0();
    hd_sync(); /* where there were no turns, others' copies were on their way */
    hd_scale_all(dq, a, width);
    hd_leave(&a->dq, a, &p, first, a->nq, queries, dq, dtype, width);
}

#define DQ_KERNEL(name, dtype, width)                                                                                  \
    HD_KERNEL(name, hd_attention_args, a)                                                                              \
    {                                                                                                                  \
        queries_back(&a, dtype, width);                                                                                \
    }
HD_TILE_KERNELS(DQ_KERNEL, attention_dq)

/* --- launchers */

enum { DELTA_THREADS = 128, DELTA_ROWS = DELTA_THREADS / 8 };

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

static int launch_delta(const hd_device_attention_back *back, void *stream)
{
    const int64_t tiles = (back->of.nq + DELTA_ROWS - 1) / DELTA_ROWS;
    const hd_attention_args a = hd_back_args_of(back, tiles);
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
    HD_TILE_LAUNCH_CASE(name, &a, blocks, threads, hd_back_bytes(width, rows, has_turns), stream,                      \
                        hd_tile_width_of(hd_tile_width, a.d), type, width)

static int launch_dq(const hd_device_attention_back *back, void *stream)
{
    const int has_turns = back->of.nk > HD_BACK_TURN;
    const unsigned threads = hd_tile_threads(back->of.nq, 1);
    const int64_t rows = hd_tile_rows(back->of.nq, 1), tiles = (back->of.nq + rows - 1) / rows;
    const hd_attention_args a = hd_back_args_of(back, tiles);
    const unsigned blocks = hd_attention_blocks(&back->of, tiles, back->of.heads);
    HD_TILE_KERNELS(LAUNCH, attention_dq)
    return (int)cudaGetLastError();
}

int hd_attention_walk_back(const hd_device_attention_back *back, void *stream)
{
    const hd_device_attention *of = &back->of;
    int error = of->nq > 0 ? launch_delta(back, stream) : 0;
    error = error == 0 && of->nq > 0 ? launch_dq(back, stream) : error;
    return error == 0 && of->nk > 0 ? hd_attention_keys_back(back, stream) : error;
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
        const hd_attention_args a = hd_back_args_of(back, 1);
        return hd_attention_f32_back(&a, stream);
    }
    const int whole = hd_attention_whole_bytes(of);
    int most = HD_EVERY_SHARED;
    const int error = whole > most ? hd_most_shared(&most) : 0;
    return error != 0                   ? error
           : whole > 0 && whole <= most ? hd_attention_whole_back(back, stream)
                                        : hd_attention_walk_back(back, stream);
}

int hd_attention_back_load(void)
{
    const void *const kernel[] = {HD_TILE_ADDRESSES(attention_dq) HD_KERNEL_ADDRESS(attention_delta_bf16),
                                  HD_KERNEL_ADDRESS(attention_delta_f16)};
    const int n = (int)(sizeof kernel / sizeof kernel[0]);
    int error = 0;
    for (int i = 0; i < n && error == 0; i++) {
        error = hd_load_kernel(kernel[i], i < n - 2 ? hd_back_bytes(hd_tile_width[i / 2], HD_TILE_ROWS, 1) : 0);
    }
    error = error == 0 ? hd_attention_keys_load() : error;
    error = error == 0 ? hd_attention_whole_load() : error;
    return error == 0 ? hd_attention_f32_back_load() : error;
}
