/* Gradients of attention in f32 (attention_f32.h): a block has some queries and takes the keys, for dq, or some keys
 * and takes the queries that see them, for dk and dv, a turn at a time. So every sum has one order, and nothing is
 * added by atomics; for that, weights and their gradients are computed twice. */
#include "kernels/cuda/attention_f32.h"

#define TURN(width) ((width) > 96 ? 16 : 32) /* keys, or queries */
#define COLUMNS(width) (TURN(width) / 8)

/* --- delta: o d_o of every query. Its sum walks as that of v d_o does (hd_f32_dots): where a weight is 1, and o a
 * value, nothing is left of the score's gradient. */

enum { DELTA_THREADS = 128 };

HD_KERNEL(attention_delta_f32, hd_attention_args, a)
{
    const hd_attention_part p = hd_attention_part_of(&a, HD_BLOCK, a.heads);
    const int32_t query = (int32_t)(p.tile * DELTA_THREADS + HD_THREAD);
    const char *o = hd_tokens_at(&a.of.o, &p, p.head, HEDDLE_F32) + query * a.of.o.token * 4;
    const char *d_o = hd_tokens_at(&a.d_o, &p, p.head, HEDDLE_F32) + query * a.d_o.token * 4;
    float sum = 0;
    for (int32_t at = 0; at < a.d && query < a.nq; at += 4) {
        float x[4], y[4];
        hd_values_load(x, o, at, a.d - at, 4, HEDDLE_F32, a.is_whole);
        hd_values_load(y, d_o, at, a.d - at, 4, HEDDLE_F32, a.is_whole);
        HD_UNROLL
        for (int i = 0; i < 4; i++) {
            sum = hd_fma(y[i], x[i], sum);
        }
    }
    if (query < a.nq) {
        hd_float_store(a.delta + hd_attention_row(&a, &p, p.head, query), sum);
    }
}

/* --- a score, and the gradient of a weight */

typedef struct known_query {
    float top, log_sum, delta;
} known_query;

HD_DEV known_query known_of(const hd_attention_args *a, const hd_attention_part *p, uint32_t head, int32_t query)
{
    known_query k = {0, 0, 0};
    if (query < a->nq) {
        const int64_t row = hd_attention_row(a, p, head, query);
        k.top = hd_float_load(a->of.stats + 2 * row);
        k.log_sum = hd_float_load(a->of.stats + 2 * row + 1);
        k.delta = hd_float_load(a->delta + row);
    }
    return k;
}

/* A score becomes its weight, the weight's gradient d that of the score, before the scale. */
HD_DEV void score_back(float *score, float *d, const known_query *k, const hd_attention_args *a, int is_seen)
{
    const float weight = hd_exp2(hd_fma(*score - k->top, a->scale_log2, -k->log_sum));
    *d = is_seen ? hd_mul(weight, *d - k->delta) : 0;
    *score = is_seen ? weight : 0;
}

/* A block's own two tiles, those of a turn, and weights or their gradients. */
typedef struct tiles {
    hd_four *own[2], *other[2], *weights;
} tiles;

HD_DEV tiles tiles_of(hd_four *memory, int32_t rows, int width)
{
    tiles t;
    t.own[0] = memory;
    t.own[1] = t.own[0] + rows * HD_F32_STRIDE(width);
    t.other[0] = t.own[1] + rows * HD_F32_STRIDE(width);
    t.other[1] = t.other[0] + TURN(width) * HD_F32_STRIDE(width);
    t.weights = t.other[1] + TURN(width) * HD_F32_STRIDE(width);
    return t;
}

HD_DEV void ask_own(const tiles *t, int which, const hd_device_tokens *x, const hd_attention_args *a,
                    const hd_attention_part *p, int32_t first, int32_t end, int width)
{
    hd_f32_ask(t->own[which], hd_tokens_at(x, p, p->head, HEDDLE_F32), x->token, first, end,
               (int32_t)HD_WARPS * HD_F32_ROWS, a, width);
}

HD_DEV void ask_other(const tiles *t, int which, const hd_device_tokens *x, const hd_attention_args *a,
                      const hd_attention_part *p, uint32_t head, int32_t first, int32_t end, int width)
{
    hd_f32_ask(t->other[which], hd_tokens_at(x, p, head, HEDDLE_F32), x->token, first, end, TURN(width), a, width);
    hd_copy_commit();
}

HD_DEV void store(const hd_device_tokens *x, const hd_attention_args *a, const hd_attention_part *p, int32_t first,
                  int32_t end, hd_f32_sums sum, float factor, int width)
{
    float factors[HD_F32_TALL];
    HD_UNROLL
    for (int i = 0; i < HD_F32_TALL; i++) {
        factors[i] = factor;
    }
    hd_f32_store(x, a, p, first, end, sum, factors, width);
}

/* --- dq */

HD_DEV void queries_back(const hd_attention_args *a, int width)
{
    HD_DYNAMIC_SHARED(hd_four, memory);
    const int32_t rows = (int32_t)HD_WARPS * HD_F32_ROWS, pieces = (a->d + 3) / 4;
    const tiles t = tiles_of(memory, rows, width);
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->heads);
    const uint32_t key_head = hd_key_head(a, p.head);
    const int32_t first = (int32_t)(a->tiles - 1 - p.tile) * rows, query = first + hd_f32_row(); /* as forward */
    const int32_t last = first + rows < a->nq ? first + rows : a->nq, end = hd_last_key(a, p.nk, last - 1);
    known_query own[HD_F32_TALL];
    hd_f32_sums dq = {{0}};
    HD_UNROLL
    for (int i = 0; i < HD_F32_TALL; i++) {
        own[i] = known_of(a, &p, p.head, query + i * 4);
    }
    ask_own(&t, 0, &a->of.q, a, &p, first, a->nq, width);
    ask_own(&t, 1, &a->d_o, a, &p, first, a->nq, width);
    ask_other(&t, 1, &a->of.v, a, &p, key_head, 0, p.nk, width);
    for (int32_t key = 0; key < end; key += TURN(width)) {
        const int is_seen = hd_is_seen(a, &p, first, key + TURN(width) - 1), left = end - key;
        hd_f32_scores s = {{0}}, ds = {{0}};
        hd_copy_wait_0();
        hd_sync(); /* all have the values, and are through with the keys */
        ask_other(&t, 0, &a->of.k, a, &p, key_head, key, p.nk, width);
        hd_f32_dots(ds, t.own[1], t.other[1], pieces, COLUMNS(width), width);
        hd_copy_wait_0();
        hd_sync(); /* all have the keys, and are through with the values */
        if (key + TURN(width) < end) {
            ask_other(&t, 1, &a->of.v, a, &p, key_head, key + TURN(width), p.nk, width);
        }
        hd_f32_dots(s, t.own[0], t.other[0], pieces, COLUMNS(width), width);
        HD_UNROLL
        for (int i = 0; i < HD_F32_TALL * COLUMNS(width); i++) {
            const int row = i / COLUMNS(width), column = i % COLUMNS(width);
            score_back(&s[row][column], &ds[row][column], &own[row], a,
                       is_seen || hd_is_seen(a, &p, query + row * 4, key + (int32_t)(HD_LANE % 8) + column * 8));
        }
        hd_f32_leave(t.weights, ds, COLUMNS(width));
        hd_f32_mix(dq, t.weights, t.other[0], left < TURN(width) ? left : TURN(width), COLUMNS(width), width);
    }
    hd_copy_wait_0(); /* where there were no turns */
    store(&a->dq, a, &p, first, a->nq, dq, a->of.scale, width);
}

#define DQ_KERNEL(name, width)                                                                                         \
    HD_KERNEL(name, hd_attention_args, a)                                                                              \
    {                                                                                                                  \
        queries_back(&a, width);                                                                                       \
    }
HD_F32_KERNELS(DQ_KERNEL, attention_dq)

/* --- dk and dv: of every query head that reads these keys, one after the other */

typedef struct key_sums {
    hd_f32_sums dk, dv;
} key_sums;

/* The queries of a turn, whose other tiles are [queries, d_o]. */
typedef struct key_turn {
    uint32_t head;
    int32_t query;
} key_turn;

HD_DEV void add_queries(key_sums *sums, const tiles *t, const hd_attention_args *a, const hd_attention_part *p,
                        int32_t first, key_turn turn, key_turn next, int width)
{
    const int32_t key = first + hd_f32_row(), pieces = (a->d + 3) / 4, left = a->nq - turn.query;
    const int32_t queries = left < TURN(width) ? left : TURN(width);
    const int is_seen = hd_is_seen(a, p, turn.query, first + (int32_t)HD_WARPS * HD_F32_ROWS - 1);
    known_query known[COLUMNS(32)];
    hd_f32_scores s = {{0}}, ds = {{0}};
    HD_UNROLL
    for (int j = 0; j < COLUMNS(width); j++) {
        known[j] = known_of(a, p, turn.head, turn.query + (int32_t)(HD_LANE % 8) + j * 8);
    }
    hd_copy_wait_0();
    hd_sync(); /* all have the queries, and are through with d_o */
    ask_other(t, 1, &a->d_o, a, p, turn.head, turn.query, a->nq, width);
    hd_f32_dots(s, t->own[0], t->other[0], pieces, COLUMNS(width), width);
    hd_copy_wait_0();
    hd_sync(); /* all have d_o */
    hd_f32_dots(ds, t->own[1], t->other[1], pieces, COLUMNS(width), width);
    HD_UNROLL
    for (int i = 0; i < HD_F32_TALL * COLUMNS(width); i++) {
        const int row = i / COLUMNS(width), column = i % COLUMNS(width);
        score_back(&s[row][column], &ds[row][column], &known[column], a,
                   is_seen || hd_is_seen(a, p, turn.query + (int32_t)(HD_LANE % 8) + column * 8, key + row * 4));
    }
    hd_f32_leave(t->weights, ds, COLUMNS(width));
    hd_f32_mix(sums->dk, t->weights, t->other[0], queries, COLUMNS(width), width);
    hd_sync(); /* all are through with the queries */
    if (next.head < hd_end_head(a, p->head)) {
        ask_other(t, 0, &a->of.q, a, p, next.head, next.query, a->nq, width);
    }
    hd_f32_leave(t->weights, s, COLUMNS(width));
    hd_f32_mix(sums->dv, t->weights, t->other[1], queries, COLUMNS(width), width);
}

HD_DEV void keys_back(const hd_attention_args *a, int width)
{
    HD_DYNAMIC_SHARED(hd_four, memory);
    const int32_t rows = (int32_t)HD_WARPS * HD_F32_ROWS;
    const tiles t = tiles_of(memory, rows, width);
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->kv_heads);
    const int32_t first = (int32_t)p.tile * rows, before = a->diagonal >= a->nk ? 0 : first - a->diagonal;
    const int32_t begin = before > 0 ? before / TURN(width) * TURN(width) : 0; /* of those that see any of the keys */
    const uint32_t end = begin < a->nq && first < p.nk ? hd_end_head(a, p.head) : 0;
    key_sums sums = {{{0}}, {{0}}};
    key_turn turn = {hd_first_head(a, p.head), begin};
    ask_own(&t, 0, &a->of.k, a, &p, first, p.nk, width);
    ask_own(&t, 1, &a->of.v, a, &p, first, p.nk, width);
    ask_other(&t, 0, &a->of.q, a, &p, turn.head, begin, a->nq, width);
    while (turn.head < end) {
        const int is_last = turn.query + TURN(width) >= a->nq;
        const key_turn next = {turn.head + (uint32_t)is_last, is_last ? begin : turn.query + TURN(width)};
        add_queries(&sums, &t, a, &p, first, turn, next, width);
        turn = next;
    }
    hd_copy_wait_0(); /* where there were no turns */
    store(&a->dk, a, &p, first, a->nk, sums.dk, a->of.scale, width);
    store(&a->dv, a, &p, first, a->nk, sums.dv, 1, width);
}

#define DKV_KERNEL(name, width)                                                                                        \
    HD_KERNEL(name, hd_attention_args, a)                                                                              \
    {                                                                                                                  \
        keys_back(&a, width);                                                                                          \
    }
HD_F32_KERNELS(DKV_KERNEL, attention_dkv)

/* --- launchers */

static int bytes_of(int width, int64_t rows)
{
    return (int)(2 * (rows + TURN(width)) * HD_F32_STRIDE(width) + rows * HD_F32_STRIDE(TURN(width))) * 16;
}

/* The blocks of a launch whose blocks have so many tokens; 0: too many. */
static unsigned blocks_of(hd_attention_args *a, int64_t tokens, int64_t of_block, int64_t heads)
{
    a->tiles = (uint32_t)((tokens + of_block - 1) / of_block);
    return hd_attention_blocks(&a->of, a->tiles, heads);
}

#define LAUNCH(name, width) HD_F32_LAUNCH_CASE(name, a, blocks, threads, bytes_of(width, rows), stream, width)

static int launch_queries(hd_attention_args *a, void *stream)
{
    const unsigned threads = hd_f32_threads(a->nq);
    const int64_t rows = threads / 32 * HD_F32_ROWS;
    unsigned blocks = blocks_of(a, a->nq, DELTA_THREADS, a->heads);
    if (blocks == 0) {
        return (int)cudaErrorInvalidConfiguration;
    }
    HD_LAUNCH(attention_delta_f32, blocks, DELTA_THREADS, stream, a);
    blocks = blocks_of(a, a->nq, rows, a->heads);
    HD_F32_KERNELS(LAUNCH, attention_dq)
    return (int)cudaGetLastError();
}

static int launch_keys(hd_attention_args *a, void *stream)
{
    const unsigned threads = hd_f32_threads(a->nk);
    const int64_t rows = threads / 32 * HD_F32_ROWS;
    const unsigned blocks = blocks_of(a, a->nk, rows, a->kv_heads);
    if (blocks == 0) {
        return (int)cudaErrorInvalidConfiguration;
    }
    HD_F32_KERNELS(LAUNCH, attention_dkv)
    return (int)cudaGetLastError();
}

int hd_attention_f32_back(const hd_attention_args *of, void *stream)
{
    const hd_device_tokens *const all[] = {&of->of.q, &of->of.k, &of->of.v, &of->of.o,
                                           &of->d_o,  &of->dq,   &of->dk,   &of->dv};
    hd_attention_args a = *of;
    a.is_whole = 1;
    for (int i = 0; i < 8; i++) {
        a.is_whole = a.is_whole && hd_f32_is_whole(all[i], a.d);
    }
    const int error = a.nq > 0 ? launch_queries(&a, stream) : 0;
    return error == 0 && a.nk > 0 ? launch_keys(&a, stream) : error;
}

int hd_attention_f32_back_load(void)
{
    const void *const kernel[] = {HD_F32_ADDRESSES(attention_dq), HD_F32_ADDRESSES(attention_dkv),
                                  HD_KERNEL_ADDRESS(attention_delta_f32)};
    int error = 0;
    for (int i = 0; i < 9 && error == 0; i++) {
        error = hd_load_kernel(kernel[i], i < 8 ? bytes_of(32 * (i % 4 + 1), 4 * HD_F32_ROWS) : 0);
    }
    return error;
}
