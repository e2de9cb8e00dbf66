/* Trials of norm and rotation of the heads of q and k: a thread has the same piece of 16 bytes of several heads of a
 * row, which share its angles and its weights; squares of a head's pieces are summed by way of the block's memory. */
#include "kernels/cuda/heads.h"
#include "tile.h"
#include "trials.h"

enum { MOST = 8 /* pieces of a thread */ };

typedef struct heads_args {
    char *x;
    uint32_t rows, units, blocks; /* units: threads of a row; blocks: of q, where those of k come behind */
    int32_t d, pieces, rows_of_block;
    int64_t row_stride, second_at;
    hd_divisor of_units, of_pieces, inner, extent;
    const float *weight[2], *cos_sin;
    float inverse_d;
} heads_args;

/* 1 / deviation of each of the block's heads: inverse[of a thread's][head] */
HD_DEV const float *norms_of(float *squares, const heads_args *a, const hd_lane_piece *x, int n)
{
    const int threads = (int)HD_THREADS, heads = (int)hd_divide(&a->of_pieces, HD_THREADS);
    float *inverse = squares + n * threads;
    HD_UNROLL
    for (int i = 0; i < n; i++) {
        float sum = 0;
        HD_UNROLL
        for (int e = 0; e < 8; e++) {
            const float value = hd_piece_get(&x[i], e, HEDDLE_BF16);
            sum = hd_fma(value, value, sum);
        }
        squares[i * threads + (int)HD_THREAD] = sum;
    }
    hd_sync();
    for (int v = (int)HD_THREAD; v < n * heads; v += threads) {
        const float *from = squares + v / heads * threads + v % heads * a->pieces;
        float sum = 0;
        for (int c = 0; c < a->pieces; c++) {
            sum = sum + from[c];
        }
        inverse[v] = hd_rsqrt(hd_fma(sum, a->inverse_d, HD_ROWS_EPSILON));
    }
    hd_sync();
    return inverse;
}

/* heads: of a row, of a thread; sets 2: of q and of k; 1: of one of them */
HD_DEV void rotate(const heads_args *a, int heads, int sets, int has_weight)
{
    HD_DYNAMIC_SHARED(float, squares);
    const int set = sets == 1 && HD_BLOCK >= a->blocks, n = heads * sets;
    const uint32_t r = hd_divide(&a->of_units, HD_THREAD), head = hd_divide(&a->of_pieces, HD_THREAD);
    const uint32_t row = (HD_BLOCK - (set ? a->blocks : 0)) * (uint32_t)a->rows_of_block + r;
    const uint32_t at = hd_divide(&a->inner, row), position = at - hd_divide(&a->extent, at) * a->extent.d;
    const int32_t u = (int32_t)(HD_THREAD - r * a->units), c = (int32_t)(HD_THREAD - head * (uint32_t)a->pieces);
    char *begin = a->x + (row * a->row_stride + (set ? a->second_at : 0) + u * 8) * 2;
    const int is_there = row < a->rows;
    const float *inverse = 0;
    hd_lane_piece x[MOST];
    float turn[8] = {0}, weight[8] = {0}, value[8];
#define AT(i) (begin + ((i) / heads * a->second_at + (i) % heads * (int64_t)a->units * 8) * 2)
    HD_UNROLL
    for (int i = 0; i < n; i++) {
        x[i].whole = hd_zero_16();
        if (is_there) {
            x[i].whole = hd_load_16(AT(i));
        }
    }
    if (is_there) {
        hd_floats_load(turn, a->cos_sin + (int64_t)position * a->d + c * 8, 8, 8, 1);
    }
    if (has_weight) {
        inverse = norms_of(squares, a, x, n);
    }
    HD_UNROLL
    for (int i = 0; i < n && is_there; i++) {
        if (has_weight && i % heads == 0) {
            hd_floats_load(weight, (set + i / heads != 0 ? a->weight[1] : a->weight[0]) + c * 8, 8, 8, 1);
        }
        const float by = has_weight ? inverse[i * (int)hd_divide(&a->of_pieces, HD_THREADS) + (int)head] : 1.0f;
        HD_UNROLL
        for (int e = 0; e < 8; e++) {
            value[e] = hd_piece_get(&x[i], e, HEDDLE_BF16);
            value[e] = has_weight ? hd_mul(hd_mul(value[e], by), weight[e]) : value[e];
        }
        hd_heads_turn(value, turn, 8, 0);
        hd_store_16(AT(i), hd_piece_of(value, HEDDLE_BF16).whole);
    }
}

/* --- number of the form, its name, heads, sets, weights, threads, blocks of a multiprocessor that registers are for */
#define FORMS(form)                                                                                                    \
    form(0, "a piece of 4 heads of q or k", 4, 1, 0, 144, 7) form(1, "a piece of 2 heads of both", 2, 2, 0, 144, 7)    \
        form(2, "a piece of 4 heads of q or k", 4, 1, 1, 144, 6)                                                       \
            form(3, "a piece of 2 heads of both", 2, 2, 1, 144, 6)
#define KERNEL(i, name, heads, sets, has_weight, threads, blocks)                                                      \
    TRIAL_KERNEL(trial_heads_##i, heads_args, a, threads, blocks)                                                      \
    {                                                                                                                  \
        rotate(&a, heads, sets, has_weight);                                                                           \
    }
FORMS(KERNEL)

#define ABOUT(i, name, heads, sets, has_weight, threads, blocks) {name, heads, sets, has_weight, threads},
typedef struct form {
    const char *name;
    int heads, sets, has_weight, threads;
} form;
static const form about[] = {FORMS(ABOUT)};

int trial_heads(int i, const hd_device_heads *of, void *x, const char **name)
{
    if (i >= (int)(sizeof about / sizeof(form))) {
        return TRIAL_NONE;
    }
    const int threads = about[i].threads, sets = about[i].sets, units = (int)(of->heads / about[i].heads * (of->d / 8));
    *name = about[i].name;
    if (of->heads % about[i].heads != 0 || threads % units != 0 || (of->weight != NULL) != about[i].has_weight) {
        return TRIAL_OTHER;
    }
    heads_args a = {(char *)x,
                    (uint32_t)of->rows,
                    (uint32_t)units,
                    0,
                    (int32_t)of->d,
                    (int32_t)of->d / 8,
                    threads / units,
                    of->row_stride,
                    of->second_at,
                    hd_divisor_of(units),
                    hd_divisor_of(of->d / 8),
                    hd_divisor_of(of->inner),
                    hd_divisor_of(of->extent),
                    {of->weight, of->second_weight},
                    of->cos_sin,
                    1.0f / (float)of->d};
    a.blocks = (a.rows + (uint32_t)a.rows_of_block - 1) / (uint32_t)a.rows_of_block;
    const unsigned blocks = a.blocks * (sets == 1 ? 2 : 1);
    const int bytes = about[i].has_weight ? about[i].heads * sets * (threads + threads / a.pieces) * 4 : 0;
#define LAUNCH(number, text, ...)                                                                                      \
    if (i == (number)) {                                                                                               \
        HD_LAUNCH_SHARED(trial_heads_##number, blocks, threads, bytes, 0, &a);                                         \
    }
    FORMS(LAUNCH)
    return (int)cudaGetLastError();
}
