/* Linear attention in F32, by plain products: 32 rows at a time. 16 threads have the columns of a row of the block's
 * 64, every 16th each; 8 such groups have the rows. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/linear.h"

enum { ROWS = 32, COLUMNS = HD_LINEAR_COLUMNS, ACROSS = 16, DOWN = HD_LINEAR_THREADS / ACROSS };
enum { OWN_COLUMNS = COLUMNS / ACROSS, OWN_ROWS = ROWS / DOWN, OWN_STATE = HD_DEVICE_MOST_HEAD / DOWN };

#define ROW_STRIDE(width) ((width) + 1) /* rows begin in different banks */

/* In floats: q and k of a chunk, v, weighed scores, the state, powers of the decay. */
#define SHARED_FLOATS(width)                                                                                           \
    (2 * ROWS * ROW_STRIDE(width) + ROWS * COLUMNS + ROWS * ROW_STRIDE(ROWS) + (width)*COLUMNS + ROWS + 1)

typedef struct memory {
    float *q, *k, *v, *score, *state, *power;
} memory;

HD_DEV memory memory_of(float *all, int width)
{
    memory m;
    m.q = all;
    m.k = m.q + ROWS * ROW_STRIDE(width);
    m.v = m.k + ROWS * ROW_STRIDE(width);
    m.score = m.v + ROWS * COLUMNS;
    m.state = m.score + ROWS * ROW_STRIDE(ROWS);
    m.power = m.state + width * COLUMNS;
    return m;
}

HD_DEV int32_t own_row(int i)
{
    return (int32_t)(HD_THREAD / ACROSS) * OWN_ROWS + i;
}

HD_DEV int32_t own_column(int i)
{
    return (int32_t)(HD_THREAD % ACROSS) + i * ACROSS;
}

HD_DEV int32_t own_state_row(int i)
{
    return (int32_t)(HD_THREAD / ACROSS) + i * DOWN;
}

/* Rows of a chunk; zeros from row `end` and column d on. */
HD_DEV void take_rows(float *to, int stride, const hd_device_tokens *x, const hd_linear_stretch *p, int32_t first,
                      int32_t from, int32_t d, int width)
{
    const char *head = hd_tokens_at(x, &p->of, p->of.head, HEDDLE_F32);
    const int is_whole = d % 4 == 0 && ((uintptr_t)head | (uintptr_t)(x->token * 4) | (uintptr_t)(from * 4)) % 16 == 0;
    HD_NOT_UNROLLED
    for (int i = (int)HD_THREAD; i < ROWS * (width / 4); i += HD_LINEAR_THREADS) {
        const int row = i / (width / 4), column = i % (width / 4) * 4;
        const int32_t left = first + row < p->end && column < d ? d - column : 0;
        float value[4] = {0};
        if (left > 0) {
            hd_values_load(value, head + (first + row) * x->token * 4, from + column, left, 4, HEDDLE_F32, is_whole);
        }
        HD_UNROLL
        for (int j = 0; j < 4; j++) {
            to[row * stride + column + j] = value[j];
        }
    }
}

/* Scores of the chunk's rows, weighed, for all threads. */
HD_DEV void score_rows(const memory *m, const hd_linear_args *a, int width)
{
    float sum[OWN_ROWS][ROWS / ACROSS] = {{0}};
    for (int c = 0; c < width; c++) {
        HD_UNROLL
        for (int i = 0; i < OWN_ROWS; i++) {
            const float q = m->q[own_row(i) * ROW_STRIDE(width) + c];
            HD_UNROLL
            for (int j = 0; j < ROWS / ACROSS; j++) {
                sum[i][j] = hd_fma(q, m->k[own_column(j) * ROW_STRIDE(width) + c], sum[i][j]);
            }
        }
    }
    HD_UNROLL
    for (int i = 0; i < OWN_ROWS; i++) {
        HD_UNROLL
        for (int j = 0; j < ROWS / ACROSS; j++) {
            const float weight = hd_linear_weight(a, m->power, own_row(i), own_column(j));
            m->score[own_row(i) * ROW_STRIDE(ROWS) + own_column(j)] = weight != 0 ? hd_mul(sum[i][j], weight) : 0;
        }
    }
}

/* sum += x y: rows of x `stride` apart, y [n][COLUMNS]. */
HD_DEV void multiply(float (*sum)[OWN_COLUMNS], const float *x, int stride, const float *y, int n)
{
    for (int c = 0; c < n; c++) {
        float of_y[OWN_COLUMNS];
        HD_UNROLL
        for (int j = 0; j < OWN_COLUMNS; j++) {
            of_y[j] = y[c * COLUMNS + own_column(j)];
        }
        HD_UNROLL
        for (int i = 0; i < OWN_ROWS; i++) {
            const float of_x = x[own_row(i) * stride + c];
            HD_UNROLL
            for (int j = 0; j < OWN_COLUMNS; j++) {
                sum[i][j] = hd_fma(of_x, of_y[j], sum[i][j]);
            }
        }
    }
}

HD_DEV void give_rows(const memory *m, const hd_linear_args *a, const hd_linear_stretch *p, int32_t first, int32_t rows,
                      int width)
{
    float o[OWN_ROWS][OWN_COLUMNS] = {{0}};
    const int32_t left = a->dv - p->column;
    multiply(o, m->q, ROW_STRIDE(width), m->state, width);
    HD_UNROLL
    for (int i = 0; i < OWN_ROWS * OWN_COLUMNS; i++) {
        float *result = &o[i / OWN_COLUMNS][i % OWN_COLUMNS];
        *result = hd_mul(*result, m->power[hd_linear_depth(a, own_row(i / OWN_COLUMNS), rows) + 1]);
    }
    multiply(o, m->score, ROW_STRIDE(ROWS), m->v, ROWS);
    HD_UNROLL
    for (int i = 0; i < OWN_ROWS * OWN_COLUMNS; i++) {
        const int32_t row = first + own_row(i / OWN_COLUMNS), column = own_column(i % OWN_COLUMNS);
        float value = o[i / OWN_COLUMNS][i % OWN_COLUMNS];
        if (row < p->end && column < left) {
            if (a->of.before.data != 0) {
                const char *before = hd_tokens_at(&a->of.before, &p->of, p->of.head, HEDDLE_F32);
                value = value + hd_float_load((const float *)before + row * a->of.before.token + p->column + column);
            }
            char *to = hd_tokens_at(&a->of.o, &p->of, p->of.head, HEDDLE_F32);
            hd_float_store((float *)to + row * a->of.o.token + p->column + column, value);
        }
    }
}

/* The thread's part of the state: what it was, faded, and k^T v of the chunk, each row by its weight. */
HD_DEV void add_rows(float (*state)[OWN_COLUMNS], const memory *m, const hd_linear_args *a, int32_t rows, int width)
{
    HD_UNROLL
    for (int i = 0; i < width / DOWN * OWN_COLUMNS; i++) {
        state[i / OWN_COLUMNS][i % OWN_COLUMNS] = hd_mul(state[i / OWN_COLUMNS][i % OWN_COLUMNS], m->power[rows]);
    }
    for (int32_t row = 0; row < rows; row++) {
        const float weight = m->power[rows - 1 - hd_linear_depth(a, row, rows)];
        float v[OWN_COLUMNS];
        HD_UNROLL
        for (int j = 0; j < OWN_COLUMNS; j++) {
            v[j] = hd_mul(m->v[row * COLUMNS + own_column(j)], weight);
        }
        HD_UNROLL
        for (int i = 0; i < width / DOWN; i++) {
            const float k = m->k[row * ROW_STRIDE(width) + own_state_row(i)];
            HD_UNROLL
            for (int j = 0; j < OWN_COLUMNS; j++) {
                state[i][j] = hd_fma(k, v[j], state[i][j]);
            }
        }
    }
}

HD_DEV void share_state(const memory *m, const float (*state)[OWN_COLUMNS], int width)
{
    HD_UNROLL
    for (int i = 0; i < width / DOWN * OWN_COLUMNS; i++) {
        m->state[own_state_row(i / OWN_COLUMNS) * COLUMNS + own_column(i % OWN_COLUMNS)] =
            state[i / OWN_COLUMNS][i % OWN_COLUMNS];
    }
}

HD_DEV void walk(const hd_linear_args *a, int width)
{
    HD_DYNAMIC_SHARED(float, all);
    const memory m = memory_of(all, width);
    const hd_linear_stretch p = hd_linear_stretch_of(a, HD_BLOCK);
    const int gives = a->of.o.data != 0;
    float state[OWN_STATE][OWN_COLUMNS];
    HD_UNROLL
    for (int i = 0; i < width / DOWN * OWN_COLUMNS; i++) {
        state[i / OWN_COLUMNS][i % OWN_COLUMNS] =
            hd_linear_state_load(a, &p, own_state_row(i / OWN_COLUMNS), own_column(i % OWN_COLUMNS));
    }
    if (HD_THREAD <= ROWS) {
        m.power[HD_THREAD] = hd_exp2(hd_mul((float)HD_THREAD, p.log2_decay));
    }
    HD_NOT_UNROLLED
    for (int32_t turn = 0; turn < (p.end - p.first + ROWS - 1) / ROWS; turn++) {
        const int32_t first = hd_linear_chunk(a, &p, turn, ROWS), rows = p.end - first < ROWS ? p.end - first : ROWS;
        take_rows(m.k, ROW_STRIDE(width), &a->of.k, &p, first, 0, a->dk, width);
        take_rows(m.v, COLUMNS, &a->of.v, &p, first, p.column, a->dv - p.column, COLUMNS);
        if (gives) {
            take_rows(m.q, ROW_STRIDE(width), &a->of.q, &p, first, 0, a->dk, width);
            share_state(&m, state, width);
            hd_sync(); /* the chunk is here */
            score_rows(&m, a, width);
        }
        hd_sync(); /* so are its scores */
        if (gives) {
            give_rows(&m, a, &p, first, rows, width);
        }
        add_rows(state, &m, a, rows, width);
        hd_sync(); /* the places are free */
    }
    HD_UNROLL
    for (int i = 0; p.left != 0 && i < width / DOWN * OWN_COLUMNS; i++) {
        hd_linear_state_store(a, &p, own_state_row(i / OWN_COLUMNS), own_column(i % OWN_COLUMNS),
                              state[i / OWN_COLUMNS][i % OWN_COLUMNS]);
    }
}

HD_KERNEL(linear_f32_64, hd_linear_args, a)
{
    walk(&a, 64);
}

HD_KERNEL(linear_f32_128, hd_linear_args, a)
{
    walk(&a, 128);
}

int hd_linear_f32(const hd_linear_args *a, unsigned blocks, void *stream)
{
    if (a->dk <= 64) {
        HD_LAUNCH_SHARED(linear_f32_64, blocks, HD_LINEAR_THREADS, SHARED_FLOATS(64) * 4, stream, a);
    } else {
        HD_LAUNCH_SHARED(linear_f32_128, blocks, HD_LINEAR_THREADS, SHARED_FLOATS(128) * 4, stream, a);
    }
    return (int)cudaGetLastError();
}

int hd_linear_f32_load(void)
{
    const int error = hd_load_kernel(HD_KERNEL_ADDRESS(linear_f32_64), SHARED_FLOATS(64) * 4);
    return error != 0 ? error : hd_load_kernel(HD_KERNEL_ADDRESS(linear_f32_128), SHARED_FLOATS(128) * 4);
}
