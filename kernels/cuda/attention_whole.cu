/* Gradients of attention of bf16 and f16 where queries and keys of a fibre are few: a block has all of a head, and
 * computes weights once. A warp has 16 keys for dk and dv, and leaves the gradients of its scores in the block's
 * memory; then it has 16 queries for dq. Products are those of attention_back.cu and attention_keys.cu in their order,
 * so the bits are theirs. */
#include "kernels/cuda/attention_back.h"

enum { MOST_ROWS = 128, MOST_THREADS = 2 * MOST_ROWS, TURN = 16 /* queries, for the registers */ };

/* Where the block's tiles lie, of as many rows, 16 of each warp. */
typedef struct whole {
    uint16_t *q, *k, *v, *d_o, *ds; /* ds[key][query], rounded */
    hd_known_query *known;
    int32_t rows, ds_stride;
} whole;

#define DS_STRIDE(rows) ((rows) + 8)
#define BYTES(width, rows)                                                                                             \
    ((rows) * (4 * HD_TILE_STRIDE(width) * 2 + DS_STRIDE(rows) * 2 + (int)sizeof(hd_known_query)))

HD_DEV whole whole_of(uint16_t *memory, int width)
{
    const int32_t rows = (int32_t)HD_WARPS * 16, elems = rows * HD_TILE_STRIDE(width);
    whole w = {memory, memory + elems, memory + 2 * elems, memory + 3 * elems, memory + 4 * elems, 0, rows, 0};
    w.ds_stride = DS_STRIDE(rows);
    w.known = (hd_known_query *)(void *)(w.ds + rows * w.ds_stride);
    return w;
}

HD_DEV void ask_all(const whole *w, const hd_attention_args *a, const hd_attention_part *p, heddle_dtype dtype,
                    int width)
{
    hd_tile_ask(w->q, hd_tokens_at(&a->of.q, p, p->head, dtype), a->of.q.token, 0, a->nq, a->d, w->rows, width);
    hd_tile_ask(w->k, hd_tokens_at(&a->of.k, p, p->head, dtype), a->of.k.token, 0, p->nk, a->d, w->rows, width);
    hd_tile_ask(w->v, hd_tokens_at(&a->of.v, p, p->head, dtype), a->of.v.token, 0, p->nk, a->d, w->rows, width);
    hd_tile_ask(w->d_o, hd_tokens_at(&a->d_o, p, p->head, dtype), a->d_o.token, 0, a->nq, a->d, w->rows, width);
    hd_copy_commit();
}

/* What backward knows of each query: 8 lanes share one, and go through 4, whose o is on its way at once. */
HD_DEV void know_all(const whole *w, const hd_attention_args *a, const hd_attention_part *p, heddle_dtype dtype,
                     int width)
{
    const int32_t step = (int32_t)HD_THREADS / 8, begin = (int32_t)HD_THREAD / 8, at = (int32_t)(HD_LANE % 8) * 8;
    const char *from = hd_tokens_at(&a->of.o, p, p->head, dtype);
    hd_lane_piece o[4][2], d_o;
    HD_UNROLL
    for (int i = 0; i < 8; i++) {
        const int32_t row = begin + i / 2 * step, column = at + i % 2 * 64;
        o[i / 2][i % 2].whole = hd_zero_16();
        if (row < a->nq && column < a->d) {
            o[i / 2][i % 2].whole = hd_load_16(from + (row * a->of.o.token + column) * 2);
        }
    }
    hd_copy_wait_0();
    hd_sync(); /* all have what they asked for */
    HD_UNROLL
    for (int i = 0; i < 4; i++) {
        const int32_t row = begin + i * step;
        hd_known_query known = {0, 0};
        HD_UNROLL
        for (int j = 0; j < 2; j++) {
            if (at + j * 64 < a->d) {
                memcpy(&d_o, w->d_o + row * HD_TILE_STRIDE(width) + at + j * 64, sizeof d_o);
                known.delta = hd_add_dot(known.delta, &o[i][j], &d_o, dtype);
            }
        }
        known.delta = hd_group_sum(known.delta, 8);
        if (HD_LANE % 8 == 0) {
            if (row < a->nq) {
                known.level = hd_level_of(a, hd_attention_row(a, p, p->head, row));
            }
            w->known[row] = known;
        }
    }
    hd_sync(); /* all of it is there */
}

/* dk and dv get what a turn's queries give. */
HD_DEV void add_turn(float (*dk)[4], float (*dv)[4], const whole *w, const hd_attention_args *a,
                     const hd_attention_part *p, int32_t first, int is_all_seen, heddle_dtype dtype, int width)
{
    const int32_t key = (int32_t)(HD_WARP * 16 + HD_LANE / 4), column = first + (int32_t)(HD_LANE % 4) * 2;
    const uint16_t *q = w->q + first * HD_TILE_STRIDE(width), *d_o = w->d_o + first * HD_TILE_STRIDE(width);
    float s[2][4] = {{0}}, ds[2][4] = {{0}};
    uint32_t part[1][4];
    hd_tile_dots(s, w->k, 0, q, 2, 1, width, dtype);
    HD_UNROLL
    for (int i = 0; i < 8; i++) {
        const int32_t query = column + i / 4 * 8 + i % 2;
        s[i / 4][i % 4] = hd_exp2(hd_fma(s[i / 4][i % 4], a->scale_log2, -w->known[query].level));
        if (!is_all_seen) {
            s[i / 4][i % 4] = hd_is_seen(a, p, query, key + i % 4 / 2 * 8) ? s[i / 4][i % 4] : 0;
        }
    }
    hd_tile_round(part, s, 1, dtype);
    hd_tile_add(dv, part, d_o, 1, width, dtype);
    hd_tile_dots(ds, w->v, 0, d_o, 2, 1, width, dtype);
    HD_UNROLL
    for (int i = 0; i < 8; i++) {
        ds[i / 4][i % 4] = hd_mul(s[i / 4][i % 4], ds[i / 4][i % 4] - w->known[column + i / 4 * 8 + i % 2].delta);
    }
    hd_tile_round(part, ds, 1, dtype);
    HD_UNROLL
    for (int i = 0; i < 4; i++) {
        memcpy(w->ds + (key + i % 2 * 8) * w->ds_stride + column + i / 2 * 8, &part[0][i], sizeof part[0][i]);
    }
    hd_tile_add(dk, part, q, 1, width, dtype);
}

HD_DEV void queries_back(const whole *w, const hd_attention_args *a, const hd_attention_part *p, heddle_dtype dtype,
                         int width)
{
    const uint16_t *ds =
        w->ds + (int32_t)(HD_LANE / 16 * 8 + HD_LANE % 8) * w->ds_stride + HD_WARP * 16 + HD_LANE / 8 % 2 * 8;
    float dq[HD_DEVICE_MOST_HEAD / 8][4] = {{0}};
    HD_UNROLL_2
    for (int32_t key = 0; key < w->rows; key += 16) {
        uint32_t part[1][4];
        hd_load_matrix_4_turned(part[0], ds + key * w->ds_stride);
        hd_tile_add(dq, part, w->k + key * HD_TILE_STRIDE(width), 1, width, dtype);
    }
    hd_scale_all(dq, a, width);
    hd_leave(&a->dq, a, p, 0, a->nq, w->q, dq, dtype, width);
}

HD_DEV void whole_back(const hd_attention_args *a, heddle_dtype dtype, int width)
{
    HD_DYNAMIC_SHARED(uint16_t, memory);
    const whole w = whole_of(memory, width);
    const hd_attention_part p = hd_attention_part_of(a, HD_BLOCK, a->heads);
    const int is_all_seen = w.rows <= a->nq && hd_is_seen(a, &p, 0, w.rows - 1);
    float dk[HD_DEVICE_MOST_HEAD / 8][4] = {{0}}, dv[HD_DEVICE_MOST_HEAD / 8][4] = {{0}};
    ask_all(&w, a, &p, dtype, width);
    know_all(&w, a, &p, dtype, width);
    HD_NOT_UNROLLED
    for (int32_t first = 0; first < a->nq; first += TURN) {
        add_turn(dk, dv, &w, a, &p, first, is_all_seen, dtype, width);
    }
    hd_sync(); /* all of ds is there, and nobody reads q, v and d_o any more */
    hd_scale_all(dk, a, width);
    hd_leave(&a->dv, a, &p, 0, a->nk, w.v, dv, dtype, width);
    hd_leave(&a->dk, a, &p, 0, a->nk, w.d_o, dk, dtype, width);
    queries_back(&w, a, &p, dtype, width);
}

/* Two blocks of the most rows have memory on a multiprocessor of 227 KiB. */
#define WHOLE_KERNEL(name, dtype, width)                                                                               \
    HD_KERNEL_BESIDE(name, hd_attention_args, a, MOST_THREADS, 2)                                                      \
    {                                                                                                                  \
        whole_back(&a, dtype, width);                                                                                  \
    }
HD_TILE_NARROW_KERNELS(WHOLE_KERNEL, attention_whole_back)

/* Of a block. */
static int rows_of(const hd_device_attention *of)
{
    const int longer = (int)(of->nq > of->nk ? of->nq : of->nk);
    return (longer + (longer == 0) + 15) / 16 * 16;
}

int hd_attention_whole_bytes(const hd_device_attention *of)
{
    const int is_whole = of->nq <= MOST_ROWS && of->nk <= MOST_ROWS && of->d <= hd_tile_narrow_width[2] &&
                         (of->group == 0 ? of->heads == of->kv_heads : of->group == 1);
    return is_whole ? BYTES(hd_tile_width_of(hd_tile_narrow_width, of->d), rows_of(of)) : 0;
}

int hd_attention_whole_back(const hd_device_attention_back *back, void *stream)
{
    const hd_device_attention *of = &back->of;
    const hd_attention_args a = hd_back_args_of(back, 1);
    const unsigned blocks = hd_attention_blocks(of, 1, of->heads);
    const int rows = rows_of(of);
    if (blocks == 0) {
        return (int)cudaErrorInvalidConfiguration;
    }
#define LAUNCH(name, type, width)                                                                                      \
    HD_TILE_LAUNCH_CASE(name, &a, blocks, 2 * rows, BYTES(width, rows), stream,                                        \
                        hd_tile_width_of(hd_tile_narrow_width, a.d), type, width)
    HD_TILE_NARROW_KERNELS(LAUNCH, attention_whole_back)
    return (int)cudaGetLastError();
}

int hd_attention_whole_load(void)
{
    const void *const kernel[] = {HD_TILE_NARROW_ADDRESSES(attention_whole_back)};
    int error = 0;
    for (int i = 0; i < 6 && error == 0; i++) {
        error = hd_load_kernel(kernel[i], BYTES(hd_tile_narrow_width[i / 2], MOST_ROWS));
    }
    return error;
}
