/* Gradients of keys and values (attention_back.h): a block has some keys and takes all queries that see them. */
#include "kernels/cuda/attention_back.h"

/* --- dk and dv: of every query head that reads these keys, one after the other. Where queries are many and keys few, a
 * block has some of the queries (a.chunk), and leaves its sums for add_chunks. */

typedef struct key_sums {
    float dk[HD_DEVICE_MOST_HEAD / 8][4], dv[HD_DEVICE_MOST_HEAD / 8][4];
} key_sums;

enum { KNOWN_BYTES = 2 * HD_BACK_TURN * (int)sizeof(hd_known_query) };

/* Where a block's tiles lie, and what is held of them. */
typedef struct key_tiles {
    uint16_t *keys, *values, *places;
    hd_known_query *of_queries; /* [2][HD_BACK_TURN] of a turn's */
    uint32_t of_keys[HD_DEVICE_MOST_HEAD / 16][4], of_values[HD_DEVICE_MOST_HEAD / 16][4];
} key_tiles;

/* The keys of a block, and which queries of which head its turn has. */
typedef struct key_turn {
    int32_t first, query; /* query >= end: there is none */
    uint32_t head;
    int32_t begin, end; /* of every head's */
    int32_t number;
} key_turn;

HD_DEV void add_queries(key_sums *sums, const key_tiles *t, const hd_attention_args *a, const hd_attention_part *p,
                        const key_turn *turn, heddle_dtype dtype, int width)
{
    const uint16_t *queries = hd_place_of(t->places, turn->number, width),
                   *d_o = queries + HD_BACK_TURN * HD_TILE_STRIDE(width);
    const int32_t key = turn->first + (int32_t)(HD_WARP * 16 + HD_LANE / 4);
    const hd_known_query *own = t->of_queries + turn->number % 2 * HD_BACK_TURN + HD_LANE % 4 * 2;
    float s[HD_BACK_EIGHTHS][4] = {{0}}, ds[HD_BACK_EIGHTHS][4] = {{0}};
    hd_tile_dots(s, t->keys, HD_HELD(t->of_keys, width), queries, HD_BACK_EIGHTHS, 1, width, dtype);
    hd_tile_dots(ds, t->values, HD_HELD(t->of_values, width), d_o, HD_BACK_EIGHTHS, 1, width, dtype);
    HD_UNROLL
    for (int i = 0; i < HD_BACK_EIGHTHS * 4; i++) {
        hd_score_back(&s[i / 4][i % 4], &ds[i / 4][i % 4], &own[i / 4 * 8 + i % 2], a);
    }
    if (!hd_is_seen(a, p, turn->query, turn->first + (int32_t)HD_WARPS * 16 - 1)) {
        HD_UNROLL
        for (int i = 0; i < HD_BACK_EIGHTHS * 4; i++) {
            const int32_t column = turn->query + i / 4 * 8 + (int32_t)(HD_LANE % 4) * 2 + i % 2;
            const int seen = hd_is_seen(a, p, column, key + i % 4 / 2 * 8);
            s[i / 4][i % 4] = seen ? s[i / 4][i % 4] : 0;
            ds[i / 4][i % 4] = seen ? ds[i / 4][i % 4] : 0;
        }
    }
    hd_tile_mix(sums->dv, s, d_o, HD_BACK_EIGHTHS, 1, width, dtype);
    hd_tile_mix(sums->dk, ds, queries, HD_BACK_EIGHTHS, 1, width, dtype);
}

HD_DEV void next_turn(key_turn *turn)
{
    turn->number++;
    turn->query += HD_BACK_TURN;
    if (turn->query >= turn->end) {
        turn->query = turn->begin;
        turn->head++;
    }
}

HD_DEV void ask_queries(const key_tiles *t, const hd_attention_args *a, const hd_attention_part *p,
                        const key_turn *turn, int width)
{
    hd_ask_turn(hd_place_of(t->places, turn->number, width), &a->of.q, &a->d_o, p, turn->head, turn->query, a->nq, a->d,
                width);
}

/* Queries that see any of the keys from `key` on, whole turns, and those of the block's part. */
HD_DEV key_turn first_turn(const hd_attention_args *a, const hd_attention_part *p, int32_t key, int32_t part)
{
    const int32_t query = a->diagonal >= a->nk ? 0 : key - a->diagonal,
                  whole = query > 0 ? query / HD_BACK_TURN * HD_BACK_TURN : 0;
    key_turn turn = {key, 0, hd_first_head(a, p->head), 0, 0, 0};
    turn.begin = part * a->chunk > whole ? part * a->chunk : whole;
    turn.end = a->nq - part * a->chunk < a->chunk ? a->nq : (part + 1) * a->chunk;
    turn.query = turn.begin;
    return turn;
}

HD_DEV void add_all(key_sums *sums, key_tiles *t, const hd_attention_args *a, const hd_attention_part *p, key_turn turn,
                    heddle_dtype dtype, int width)
{
    const uint32_t end = turn.begin < turn.end && turn.first < p->nk ? hd_end_head(a, p->head) : 0;
    hd_known_query own = {0, 0};
    if (turn.head < end) {
        ask_queries(t, a, p, &turn, width);
        own = HD_WARP == 0 ? hd_known_of(a, p, turn.head, turn.query + (int32_t)HD_LANE) : own;
    }
    while (turn.head < end) {
        key_turn next = turn;
        next_turn(&next);
        if (HD_THREAD < HD_BACK_TURN) {
            t->of_queries[turn.number % 2 * HD_BACK_TURN + HD_THREAD] = own;
        }
        hd_copy_wait_0();
        hd_sync(); /* all have what they asked for, and are through with the other place */
        if (next.head < end) {
            ask_queries(t, a, p, &next, width);
            own = HD_WARP == 0 ? hd_known_of(a, p, next.head, next.query + (int32_t)HD_LANE) : own;
        }
        if (turn.number == 0 && HD_IS_HELD(width)) {
            hd_tile_hold(t->of_keys, t->keys, width);
            hd_tile_hold(t->of_values, t->values, width);
        }
        add_queries(sums, t, a, p, &turn, dtype, width);
        turn = next;
    }
}

/* Where a block's part of the sums goes: [fibre][head][part][dk, dv][nk][d]. */
HD_DEV char *part_at(const hd_attention_args *a, const hd_attention_part *p, int32_t part, int which)
{
    const int64_t of_head = (p->fibre * a->kv_heads + p->head) * a->chunks + part;
    return (char *)(a->part + (of_head * 2 + which) * a->nk * (int64_t)a->d);
}

HD_DEV void keys_back(const hd_attention_args *a, heddle_dtype dtype, int width)
{
    HD_DYNAMIC_SHARED(uint16_t, memory);
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->kv_heads);
    const uint32_t part = p.tile / a->own_tiles;
    const int32_t rows = (int32_t)HD_WARPS * 16, first = (int32_t)(p.tile - part * a->own_tiles) * rows;
    const int32_t row = first + (int32_t)HD_WARP * 16;
    uint16_t *values = memory + rows * HD_TILE_STRIDE(width), *known = values + rows * HD_TILE_STRIDE(width);
    key_tiles t = {memory, values, known + KNOWN_BYTES / 2, (hd_known_query *)known, {{0}}, {{0}}};
    key_sums sums = {{{0}}, {{0}}};
    hd_tile_ask(t.keys, hd_tokens_at(&a->of.k, &p, p.head, dtype), a->of.k.token, first, p.nk, a->d, rows, width);
    hd_tile_ask(t.values, hd_tokens_at(&a->of.v, &p, p.head, dtype), a->of.v.token, first, p.nk, a->d, rows, width);
    hd_copy_commit();
    add_all(&sums, &t, a, &p, first_turn(a, &p, first, (int32_t)part), dtype, width);
    hd_copy_wait_0();
    hd_sync(); /* where there were no turns, others' copies were on their way */
    hd_scale_all(sums.dk, a, width);
    if (a->chunks > 1) {
        hd_tile_store_f32(part_at(a, &p, (int32_t)part, 0), a->d, row, a->nk, a->d, sums.dk, width);
        hd_tile_store_f32(part_at(a, &p, (int32_t)part, 1), a->d, row, a->nk, a->d, sums.dv, width);
        return;
    }
    hd_leave(&a->dk, a, &p, first, a->nk, t.keys, sums.dk, dtype, width);
    hd_leave(&a->dv, a, &p, first, a->nk, t.values, sums.dv, dtype, width);
}

#define DKV_KERNEL(name, dtype, width)                                                                                 \
    HD_KERNEL(name, hd_attention_args, a)                                                                              \
    {                                                                                                                  \
        keys_back(&a, dtype, width);                                                                                   \
    }
HD_TILE_KERNELS(DKV_KERNEL, attention_dkv)

/* The parts in their order: a thread has 4 elements of a key's dk or dv. */
HD_DEV void add_chunks(const hd_attention_args *a, heddle_dtype dtype)
{
    const uint32_t pieces = (uint32_t)a->d / 4, all = 2 * (uint32_t)a->nk * pieces;
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->kv_heads);
    const uint32_t i = p.tile * HD_THREADS + HD_THREAD, which = i / (all / 2), in = i - which * (all / 2);
    const int32_t key = (int32_t)(in / pieces), at = (int32_t)(in % pieces) * 4;
    if (i >= all) {
        return;
    }
    float sum[4] = {0};
    for (int32_t part = 0; part < a->chunks && key < p.nk; part++) {
        float value[4];
        const char *row = part_at(a, &p, part, (int)which) + key * (int64_t)a->d * 4;
        hd_values_load(value, row, at, 4, 4, HEDDLE_F32, 1);
        HD_UNROLL
        for (int j = 0; j < 4; j++) {
            sum[j] = sum[j] + value[j];
        }
    }
    const hd_device_tokens *to = which == 0 ? &a->dk : &a->dv;
    if (a->back_gives_f32) {
        char *row = hd_tokens_at(to, &p, p.head, HEDDLE_F32) + key * to->token * 4;
        hd_values_store(row, sum, at, 4, 4, HEDDLE_F32, 1);
    } else {
        char *row = hd_tokens_at(to, &p, p.head, dtype) + key * to->token * 2;
        HD_UNROLL
        for (int j = 0; j < 4; j += 2) {
            hd_store_4(row + (at + j) * 2, hd_half_pair(sum[j], sum[j + 1], dtype));
        }
    }
}

HD_KERNEL(attention_add_chunks_bf16, hd_attention_args, a)
{
    add_chunks(&a, HEDDLE_BF16);
}

HD_KERNEL(attention_add_chunks_f16, hd_attention_args, a)
{
    add_chunks(&a, HEDDLE_F16);
}

/* --- launchers */

enum { ADD_THREADS = 128 };

/* Of no fewer keys not less. */
size_t hd_attention_back_bytes(const hd_device_attention *of)
{
    const int64_t parts = (of->nq + HD_BACK_CHUNK - 1) / HD_BACK_CHUNK, most = of->nq / 4 + of->nk;
    const int64_t rows = parts * of->nk < most ? parts * of->nk : most;
    const int64_t all = of->outer * of->inner * of->kv_heads * rows * 2 * of->d;
    return of->dtype == HEDDLE_F32 || parts < 2 ? 0 : (size_t)all * sizeof(float);
}

#define LAUNCH(name, type, width)                                                                                      \
    HD_TILE_LAUNCH_CASE(name, &a, blocks, threads, hd_back_bytes(width, rows, has_turns) + KNOWN_BYTES, stream,        \
                        hd_tile_width_of(hd_tile_width, a.d), type, width)

static int launch_dkv(const hd_device_attention_back *back, void *stream)
{
    const unsigned threads = hd_tile_threads(back->of.nk, 1);
    const int64_t rows = hd_tile_rows(back->of.nk, 1), chunks = hd_chunks_of(back);
    const int64_t tiles = (back->of.nk + rows - 1) / rows * chunks;
    const hd_attention_args a = hd_back_args_of(back, tiles);
    const unsigned blocks = hd_attention_blocks(&back->of, tiles, back->of.kv_heads);
    const int has_turns = back->of.nq > HD_BACK_TURN || a.group > 1;
    if (blocks == 0) {
        return (int)cudaErrorInvalidConfiguration;
    }
    HD_TILE_KERNELS(LAUNCH, attention_dkv)
    return (int)cudaGetLastError();
}

static int launch_add_chunks(const hd_device_attention_back *back, void *stream)
{
    const int64_t all = 2 * back->of.nk * (back->of.d / 4), tiles = (all + ADD_THREADS - 1) / ADD_THREADS;
    const hd_attention_args a = hd_back_args_of(back, tiles);
    const unsigned blocks = hd_attention_blocks(&back->of, tiles, back->of.kv_heads);
    if (blocks == 0) {
        return (int)cudaErrorInvalidConfiguration;
    }
    if (back->of.dtype == HEDDLE_BF16) {
        HD_LAUNCH(attention_add_chunks_bf16, blocks, ADD_THREADS, stream, &a);
    } else {
        HD_LAUNCH(attention_add_chunks_f16, blocks, ADD_THREADS, stream, &a);
    }
    return (int)cudaGetLastError();
}

int hd_attention_keys_back(const hd_device_attention_back *back, void *stream)
{
    const int error = launch_dkv(back, stream);
    return error == 0 && hd_chunks_of(back) > 1 ? launch_add_chunks(back, stream) : error;
}

int hd_attention_keys_load(void)
{
    const void *const kernel[] = {HD_TILE_ADDRESSES(attention_dkv) HD_KERNEL_ADDRESS(attention_add_chunks_bf16),
                                  HD_KERNEL_ADDRESS(attention_add_chunks_f16)};
    const int n = (int)(sizeof kernel / sizeof kernel[0]);
    int error = 0;
    for (int i = 0; i < n && error == 0; i++) {
        error = hd_load_kernel(kernel[i],
                               i < n - 2 ? hd_back_bytes(hd_tile_width[i / 2], HD_TILE_ROWS, 1) + KNOWN_BYTES : 0);
    }
    return error;
}
