/* Linear attention of bf16 and f16 on tensor units: 64 rows at a time, the next ones being copied meanwhile. Each of
 * four warps has 16 rows of a chunk's results, and of the state every fourth 16 rows, in f32; beside it lies the state
 * in the type, which all warps multiply by. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/tile.h"

enum { ROWS = HD_DEVICE_LINEAR_ROWS, COLUMNS = HD_LINEAR_COLUMNS, WARPS = HD_LINEAR_THREADS / 32 };
enum { EIGHTS = 8 /* of 64 rows, or columns */, MOST_STRETCHES = HD_DEVICE_MOST_HEAD / ROWS };

/* Beside the tiles: powers of the decay, and for f16 the largest element of each warp's part of the state. */
typedef struct scalars {
    float power[ROWS + 1], largest[WARPS];
} scalars;

/* In 16-bit elements: q, k and v of two chunks, the state. Constant where it is called. */
#define PLACE_ELEMS(width) (2 * HD_TILE_ELEMS(width) + HD_TILE_ELEMS(COLUMNS))
#define STATE_ELEMS(width) ((width)*HD_TILE_STRIDE(COLUMNS))
#define SHARED_BYTES(width)                                                                                            \
    ((2 * PLACE_ELEMS(width) + STATE_ELEMS(width)) * 2 + 16 * ((int)(sizeof(scalars) + 15) / 16))

HD_DEV void ask_chunk(uint16_t *places, const hd_linear_args *a, const hd_linear_stretch *p, int32_t turn, int width)
{
    uint16_t *place = places + turn % 2 * PLACE_ELEMS(width);
    const int32_t first = hd_linear_chunk(a, p, turn, ROWS);
    if (a->of.o.data != 0) {
        hd_tile_ask(place, hd_tokens_at(&a->of.q, &p->of, p->of.head, HEDDLE_BF16), a->of.q.token, first, p->end, a->dk,
                    ROWS, width);
    }
    hd_tile_ask(place + HD_TILE_ELEMS(width), hd_tokens_at(&a->of.k, &p->of, p->of.head, HEDDLE_BF16), a->of.k.token,
                first, p->end, a->dk, ROWS, width);
    hd_tile_ask(place + 2 * HD_TILE_ELEMS(width),
                hd_tokens_at(&a->of.v, &p->of, p->of.head, HEDDLE_BF16) + (int64_t)p->column * 2, a->of.v.token, first,
                p->end, a->dv - p->column, ROWS, COLUMNS);
    hd_copy_commit();
}

/* sum[EIGHTS] += a b for 16 rows of a, as they lie in registers, and 16 rows of b from `row` on. */
HD_DEV void multiply(float (*sum)[4], const uint32_t a[4], const uint16_t *b, heddle_dtype dtype)
{
    const uint16_t *b_row = b + HD_LANE % 16 * HD_TILE_STRIDE(COLUMNS) + HD_LANE / 16 * 8;
    HD_UNROLL
    for (int j = 0; j < EIGHTS; j += 2) {
        uint32_t of_b[4];
        hd_load_matrix_4_turned(of_b, b_row + j * 8);
        if (dtype == HEDDLE_BF16) {
            hd_mma_bf16(sum[j], a, of_b);
            hd_mma_bf16(sum[j + 1], a, of_b + 2);
        } else {
            hd_mma_f16(sum[j], a, of_b);
            hd_mma_f16(sum[j + 1], a, of_b + 2);
        }
    }
}

/* o = the warp's rows of q times the state. */
HD_DEV void from_state(float (*o)[4], const uint16_t *q, const uint16_t *state, int width, heddle_dtype dtype)
{
    const uint16_t *row = q + (HD_WARP * 16 + HD_LANE % 16) * HD_TILE_STRIDE(width) + HD_LANE / 16 * 8;
    HD_UNROLL
    for (int k = 0; k < width; k += 16) {
        uint32_t of_q[4];
        hd_load_matrix_4(of_q, row + k);
        multiply(o, of_q, state + k * HD_TILE_STRIDE(COLUMNS), dtype);
    }
}

/* Two numbers of the type, each times its own. */
HD_DEV uint32_t weighed(uint32_t pair, float low, float high, heddle_dtype dtype)
{
    const float x = hd_mul(hd_half_get((uint16_t)(pair & 0xffff), dtype), low);
    const float y = hd_mul(hd_half_get((uint16_t)(pair >> 16), dtype), high);
    return hd_half_of(x, dtype) | (uint32_t)hd_half_of(y, dtype) << 16;
}

/* The warp's rows of the state, those of one stretch of 64: += k^T v of a chunk, each row by its weight. */
HD_DEV void add_rows(float (*state)[4], const hd_linear_args *a, const hd_linear_stretch *p, const uint16_t *k,
                     const uint16_t *v, const float *power, int32_t rows, int width, heddle_dtype dtype)
{
    const uint16_t *column =
        k + (HD_LANE / 16 * 8 + HD_LANE % 8) * HD_TILE_STRIDE(width) + HD_WARP * 16 + HD_LANE / 8 % 2 * 8;
    HD_UNROLL
    for (int j = 0; j < ROWS; j += 16) {
        uint32_t of_k[4];
        hd_load_matrix_4_turned(of_k, column + j * HD_TILE_STRIDE(width));
        if (p->log2_decay != 0) {
            HD_UNROLL
            for (int half = 0; half < 2; half++) {
                const int32_t row = j + half * 8 + (int32_t)(HD_LANE % 4) * 2;
                const float low = power[rows - 1 - hd_linear_depth(a, row, rows)];
                const float high = power[rows - 1 - hd_linear_depth(a, row + 1, rows)];
                of_k[half * 2] = weighed(of_k[half * 2], low, high, dtype);
                of_k[half * 2 + 1] = weighed(of_k[half * 2 + 1], low, high, dtype);
            }
        }
        multiply(state, of_k, v + j * HD_TILE_STRIDE(COLUMNS), dtype);
    }
}

/* The result of the warp's rows: o, which came from the state, each row by its weight, and what the chunk adds. */
HD_DEV void add_chunk(float (*o)[4], const uint16_t *place, const hd_linear_args *a, const float *power, float factor,
                      int32_t rows, int width, heddle_dtype dtype)
{
    float s[EIGHTS][4] = {{0}};
    hd_tile_dots(s, place, 0, place + HD_TILE_ELEMS(width), EIGHTS, 1, width, dtype);
    HD_UNROLL
    for (int half = 0; half < 2; half++) {
        const int32_t row = (int32_t)(HD_WARP * 16 + HD_LANE / 4) + half * 8;
        const float weight = hd_mul(power[hd_linear_depth(a, row, rows) + 1], factor);
        HD_UNROLL
        for (int i = 0; i < EIGHTS * 2; i++) {
            float *score = &s[i / 2][half * 2 + i % 2], *result = &o[i / 2][half * 2 + i % 2];
            const float own = hd_linear_weight(a, power, row, i / 2 * 8 + (int32_t)(HD_LANE % 4) * 2 + i % 2);
            *score = own != 0 ? hd_mul(*score, own) : 0;
            *result = hd_mul(*result, weight);
        }
    }
    hd_tile_mix(o, s, place + 2 * HD_TILE_ELEMS(width), EIGHTS, 1, COLUMNS, dtype);
}

HD_DEV void give_chunk(float (*o)[4], uint16_t *q, const hd_linear_args *a, const hd_linear_stretch *p, int32_t first,
                       int width, heddle_dtype dtype)
{
    const int32_t own = (int32_t)HD_WARP * 16, row = first + own + (int32_t)HD_LANE / 4, left = a->dv - p->column;
    if (a->of.before.data != 0) {
        const char *from = hd_tokens_at(&a->of.before, &p->of, p->of.head, HEDDLE_F32);
        HD_UNROLL
        for (int i = 0; i < COLUMNS / 2; i++) {
            const int32_t at = row + i % 4 / 2 * 8, column = i / 4 * 8 + (int32_t)(HD_LANE % 4) * 2 + i % 2;
            if (at < p->end && column < left) {
                const float *x = (const float *)from + at * a->of.before.token + p->column + column;
                o[i / 4][i % 4] = o[i / 4][i % 4] + hd_float_load(x);
            }
        }
    }
    if (a->of.gives_f32) {
        char *to = hd_tokens_at(&a->of.o, &p->of, p->of.head, HEDDLE_F32) + (int64_t)p->column * 4;
        hd_tile_store_f32(to, a->of.o.token, first + own, p->end, left, o, COLUMNS);
    } else { /* by the warp's own rows of q, where its part of a narrower tile is put */
        char *to = hd_tokens_at(&a->of.o, &p->of, p->of.head, dtype) + (int64_t)p->column * 2;
        hd_tile_store(to, a->of.o.token, first + own, p->end, left, q + own * HD_TILE_STRIDE(width), o, COLUMNS, dtype);
    }
}

/* Numbers of a state may be larger than f16 has any: then a power of two of them is kept. */
HD_DEV void tell_largest(scalars *all, const float (*state)[EIGHTS][4], int width)
{
    float most = 0;
    HD_UNROLL
    for (int i = 0; i < width / ROWS * EIGHTS * 4; i++) {
        most = fmaxf(most, fabsf(state[i / (EIGHTS * 4)][i / 4 % EIGHTS][i % 4]));
    }
    most = hd_group_max(most, 32);
    if (HD_LANE == 0) {
        all->largest[HD_WARP] = most;
    }
}

HD_DEV float shrink_of(const scalars *all)
{
    float most = 0;
    HD_UNROLL
    for (int i = 0; i < WARPS; i++) {
        most = fmaxf(most, all->largest[i]);
    }
    return most > 32768.0f && most < INFINITY ? hd_exp2(-ceilf(hd_log2(most) - 15.0f)) : 1.0f;
}

HD_DEV void round_state(uint16_t *to, const float (*state)[EIGHTS][4], float shrink, int width, heddle_dtype dtype)
{
    HD_UNROLL
    for (int m = 0; m < width / ROWS; m++) {
        HD_UNROLL
        for (int i = 0; i < EIGHTS * 2; i++) {
            const unsigned row = (unsigned)m * ROWS + HD_WARP * 16 + HD_LANE / 4 + i % 2 * 8;
            uint16_t *at = to + row * HD_TILE_STRIDE(COLUMNS) + i / 2 * 8 + HD_LANE % 4 * 2;
            at[0] = hd_half_of(hd_mul(state[m][i / 2][i % 2 * 2], shrink), dtype);
            at[1] = hd_half_of(hd_mul(state[m][i / 2][i % 2 * 2 + 1], shrink), dtype);
        }
    }
}

/* Element i of this lane's part of a stretch. */
HD_DEV int32_t state_row(int m, int i)
{
    return m * ROWS + (int32_t)(HD_WARP * 16 + HD_LANE / 4) + i % 4 / 2 * 8;
}

HD_DEV int32_t state_column(int i)
{
    return i / 4 * 8 + (int32_t)(HD_LANE % 4) * 2 + i % 2;
}

HD_DEV void begin_state(float (*state)[EIGHTS][4], const hd_linear_args *a, const hd_linear_stretch *p, int width)
{
    HD_UNROLL
    for (int m = 0; m < width / ROWS; m++) {
        HD_UNROLL
        for (int i = 0; i < EIGHTS * 4; i++) {
            state[m][i / 4][i % 4] = hd_linear_state_load(a, p, state_row(m, i), state_column(i));
        }
    }
}

HD_DEV void give_state(const float (*state)[EIGHTS][4], const hd_linear_args *a, const hd_linear_stretch *p, int width)
{
    HD_UNROLL
    for (int m = 0; m < width / ROWS; m++) {
        HD_UNROLL
        for (int i = 0; i < EIGHTS * 4; i++) {
            hd_linear_state_store(a, p, state_row(m, i), state_column(i), state[m][i / 4][i % 4]);
        }
    }
}

/* The state in the type, for all warps. Behind a barrier what it was before is of no use any more. */
HD_DEV float share_state(uint16_t *shared, scalars *all, const float (*state)[EIGHTS][4], int width, heddle_dtype dtype)
{
    float shrink = 1;
    if (dtype == HEDDLE_F16) {
        tell_largest(all, state, width);
    }
    hd_sync(); /* the place is free, and so is the state */
    if (dtype == HEDDLE_F16) {
        shrink = shrink_of(all);
    }
    round_state(shared, state, shrink, width, dtype);
    return 1.0f / shrink;
}

HD_DEV void walk(const hd_linear_args *a, heddle_dtype dtype, int width)
{
    HD_DYNAMIC_SHARED(uint16_t, places);
    uint16_t *shared = places + 2 * PLACE_ELEMS(width);
    scalars *all = (scalars *)(void *)(shared + STATE_ELEMS(width));
    const hd_linear_stretch p = hd_linear_stretch_of(a, HD_BLOCK);
    const int32_t turns = (p.end - p.first + ROWS - 1) / ROWS;
    const int gives = a->of.o.data != 0;
    float state[MOST_STRETCHES][EIGHTS][4], factor = 1;
    ask_chunk(places, a, &p, 0, width);
    if (HD_THREAD <= ROWS) {
        all->power[HD_THREAD] = hd_exp2(hd_mul((float)HD_THREAD, p.log2_decay));
    }
    begin_state(state, a, &p, width);
    if (gives) {
        factor = share_state(shared, all, state, width, dtype);
    }
    for (int32_t turn = 0; turn < turns; turn++) {
        uint16_t *place = places + turn % 2 * PLACE_ELEMS(width);
        const int32_t first = hd_linear_chunk(a, &p, turn, ROWS), rows = p.end - first < ROWS ? p.end - first : ROWS;
        if (turn + 1 < turns) {
            ask_chunk(places, a, &p, turn + 1, width);
            hd_copy_wait_1();
        } else {
            hd_copy_wait_0();
        }
        hd_sync(); /* all have what they asked for */
        if (gives) {
            float o[EIGHTS][4] = {{0}};
            from_state(o, place, shared, width, dtype);
            add_chunk(o, place, a, all->power, factor, rows, width, dtype);
            give_chunk(o, place, a, &p, first, width, dtype);
        }
        HD_UNROLL
        for (int m = 0; m < width / ROWS; m++) {
            HD_UNROLL
            for (int i = 0; i < EIGHTS * 4; i++) {
                state[m][i / 4][i % 4] = hd_mul(state[m][i / 4][i % 4], all->power[rows]);
            }
            add_rows(state[m], a, &p, place + HD_TILE_ELEMS(width) + m * ROWS, place + 2 * HD_TILE_ELEMS(width),
                     all->power, rows, width, dtype);
        }
        if (gives) {
            factor = share_state(shared, all, state, width, dtype);
        } else {
            hd_sync(); /* the place is free */
        }
    }
    if (p.left != 0) {
        give_state(state, a, &p, width);
    }
}

#define LINEAR_KERNELS(kernel)                                                                                         \
    kernel(linear_bf16_64, HEDDLE_BF16, 64) kernel(linear_bf16_128, HEDDLE_BF16, 128)                                  \
        kernel(linear_f16_64, HEDDLE_F16, 64) kernel(linear_f16_128, HEDDLE_F16, 128)
#define LINEAR_KERNEL(name, dtype, width)                                                                              \
    HD_KERNEL(name, hd_linear_args, a)                                                                                 \
    {                                                                                                                  \
        walk(&a, dtype, width);                                                                                        \
    }
LINEAR_KERNELS(LINEAR_KERNEL)

/* --- launchers */

static int is_right(const hd_device_linear *of)
{
    const int is_half = of->dtype == HEDDLE_BF16 || of->dtype == HEDDLE_F16;
    const int gives = of->o.data != NULL;
    return (is_half || of->dtype == HEDDLE_F32) && of->outer >= 0 && of->outer <= INT32_MAX && of->inner >= 1 &&
           of->inner <= INT32_MAX && of->heads >= 0 && of->heads <= INT32_MAX && of->n >= 0 && of->n < INT32_MAX / 2 &&
           of->dk >= 1 && of->dk <= HD_DEVICE_MOST_HEAD && of->dv >= 1 && of->dv <= HD_DEVICE_MOST_HEAD &&
           of->segment_rows >= ROWS && of->segment_rows % ROWS == 0 && of->segment_rows < INT32_MAX / 2 &&
           (gives || of->states != NULL) && (!is_half || (of->dk % 8 == 0 && of->dv % 8 == 0)) &&
           (!is_half || (hd_are_tokens_aligned(&of->k) && hd_are_tokens_aligned(&of->v) &&
                         (!gives || (hd_are_tokens_aligned(&of->q) && hd_are_tokens_aligned(&of->o)))));
}

int hd_linear_run(const hd_device_linear *of, void *stream)
{
    if (!is_right(of)) {
        return (int)cudaErrorInvalidValue;
    }
    hd_linear_args a;
    memset(&a, 0, sizeof a);
    a.of = *of;
    a.tiles = (uint32_t)((of->dv + COLUMNS - 1) / COLUMNS);
    a.segments = (uint32_t)((of->n + of->segment_rows - 1) / of->segment_rows);
    a.heads = (uint32_t)of->heads;
    a.inner = (uint32_t)of->inner;
    a.n = (int32_t)of->n;
    a.dk = (int32_t)of->dk;
    a.dv = (int32_t)of->dv;
    a.segment_rows = (int32_t)of->segment_rows;
    const double blocks = (double)of->outer * (double)of->inner * (double)of->heads * a.segments * a.tiles;
    if (blocks == 0) {
        return 0;
    }
    if (blocks > INT32_MAX) {
        return (int)cudaErrorInvalidConfiguration;
    }
    if (of->dtype == HEDDLE_F32) {
        return hd_linear_f32(&a, (unsigned)blocks, stream);
    }
    const int wide = of->dk <= 64 ? 64 : 128;
#define LAUNCH(name, type, width)                                                                                      \
    if (of->dtype == (type) && wide == (width)) {                                                                      \
        HD_LAUNCH_SHARED(name, blocks, HD_LINEAR_THREADS, SHARED_BYTES(width), stream, &a);                            \
    }
    LINEAR_KERNELS(LAUNCH)
    return (int)cudaGetLastError();
}

int hd_linear_load(void)
{
    int error = 0;
#define LOAD(name, type, width)                                                                                        \
    error = error != 0 ? error : hd_load_kernel(HD_KERNEL_ADDRESS(name), SHARED_BYTES(width));
    LINEAR_KERNELS(LOAD)
    return error != 0 ? error : hd_linear_f32_load();
}
