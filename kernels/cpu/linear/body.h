/* Chunked linear attention, written once for all variants. Before: REAL, LANES, gemm, load_rows, store_rows, product,
 * transpose, LINEAR_TABLE, LINEAR_NAME. */

enum { ALIGNMENT = 64 };

/* The scratch memory's head. All matrices have rows of a padded number of columns; rows are padded to the lanes. */
typedef struct work {
    hd_linear_dims dims;
    int64_t k_row, v_row, c_row; /* padded dk, dv, chunk_rows */
    int exact;                   /* something in the chunk is not finite */
    REAL *power;                 /* [chunk_rows+1] g^n */
    REAL *mask;                  /* D_ij is at mask + chunk_rows-1 + j-i; zeros where a tile goes on */
    REAL *q, *k, *v, *d_o;       /* packed */
    REAL *kt, *vt;               /* transposed */
    REAL *p, *g;                 /* [chunk][chunk] */
    REAL *o, *dq, *dk, *dv;
    REAL *turned; /* a state transposed: [dv][dk] */
} work;

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Rows of a power of two would all fall into a few sets of the first cache. */
static int64_t padded(int64_t columns)
{
    int64_t n = round_up(columns < 1 ? 1 : columns, LANES);
    return LANES > 1 && n % 64 == 0 ? n + LANES : n;
}

static REAL *take(unsigned char *memory, size_t *at, int64_t elems)
{
    size_t here = *at;
    *at += (size_t)round_up(elems * (int64_t)sizeof(REAL), ALIGNMENT);
    return memory == NULL ? NULL : (REAL *)(void *)(memory + here);
}

/* Bytes needed. memory NULL: only that. */
static size_t lay_out(work *w, const hd_linear_dims *dims, unsigned char *memory)
{
    size_t at = (size_t)round_up(sizeof *w, ALIGNMENT);
    int64_t c = round_up(dims->chunk_rows, LANES), k_rows = round_up(dims->dk, LANES);
    int64_t v_rows = round_up(dims->dv, LANES);
    w->dims = *dims;
    w->k_row = padded(dims->dk);
    w->v_row = padded(dims->dv);
    w->c_row = padded(c);
    w->power = take(memory, &at, dims->chunk_rows + 1);
    w->mask = take(memory, &at, 2 * c + 2 * LANES);
    w->q = take(memory, &at, c * w->k_row);
    w->k = take(memory, &at, c * w->k_row);
    w->v = take(memory, &at, c * w->v_row);
    w->d_o = take(memory, &at, c * w->v_row);
    w->kt = take(memory, &at, k_rows * w->c_row);
    w->vt = take(memory, &at, v_rows * w->c_row);
    w->p = take(memory, &at, c * w->c_row);
    w->g = take(memory, &at, c * w->c_row);
    w->o = take(memory, &at, c * w->v_row);
    w->dq = take(memory, &at, c * w->k_row);
    w->dk = take(memory, &at, c * w->k_row);
    w->dv = take(memory, &at, c * w->v_row);
    w->turned = take(memory, &at, v_rows * w->k_row);
    return at;
}

static size_t scratch_bytes(const hd_linear_dims *dims)
{
    work w;
    return lay_out(&w, dims, NULL);
}

static void begin(void *scratch, const hd_linear_dims *dims, double decay)
{
    work *w = scratch;
    int64_t c = dims->chunk_rows;
    lay_out(w, dims, scratch);
    for (int64_t n = 0; n <= c; n++) {
        w->power[n] = (REAL)pow(decay, (double)n);
    }
    for (int64_t t = 0; t < 2 * c - 1; t++) {
        int64_t distance = t < c ? c - 1 - t : t - (c - 1);
        w->mask[t] = t < c || dims->bidirectional ? w->power[distance] : 0;
    }
    for (int64_t t = 2 * c - 1; t < 2 * round_up(c, LANES) + 2 * LANES; t++) {
        w->mask[t] = 0;
    }
}

/* The array's rows, padded with zeros. */
static void pack(work *w, REAL *dst, const hd_linear_rows *x, int64_t rows, int64_t columns)
{
    int64_t row = padded(columns), all = round_up(rows, LANES);
    w->exact |= load_rows(dst, row, x, rows, columns, NULL, 0);
    memset(dst + rows * row, 0, (size_t)((all - rows) * row) * sizeof(REAL));
}

/* Rows that products can work on: a caller's own where they have whole vectors. */
typedef struct matrix {
    REAL *data;
    int64_t row;
} matrix;

static int is_ready(const hd_linear_rows *x, int64_t columns)
{
    return x->dtype == (sizeof(REAL) == sizeof(double) ? HEDDLE_F64 : HEDDLE_F32) && x->column == 1 &&
           columns % LANES == 0;
}

/* To be read only, row by row. */
static matrix read_rows(REAL *room, const hd_linear_rows *x, int64_t rows, int64_t columns)
{
    if (is_ready(x, columns)) {
        return (matrix){x->data, x->row};
    }
    load_rows(room, padded(columns), x, rows, columns, NULL, 0);
    return (matrix){room, padded(columns)};
}

/* Results go here; `so_far` (NULL: nothing) is there already. */
static matrix open_rows(REAL *room, const hd_linear_rows *x, const hd_linear_rows *so_far, int64_t rows,
                        int64_t columns)
{
    if (is_ready(x, columns) && (so_far == NULL || so_far->data == x->data)) {
        return (matrix){x->data, x->row};
    }
    if (so_far != NULL) {
        load_rows(room, padded(columns), so_far, rows, columns, NULL, 0);
    }
    return (matrix){room, padded(columns)};
}

static void close_rows(const hd_linear_rows *x, matrix y, int64_t rows, int64_t columns)
{
    if (y.data != x->data) {
        store_rows(x, y.data, y.row, rows, columns);
    }
}

/* Weights a or b of the rows of a chunk: of row i at from[i * step]. */
typedef struct weights {
    const REAL *from;
    int64_t step;
} weights;

static weights weights_of(const work *w, int64_t rows, int b)
{
    return b ? (weights){w->power + rows - 1, -1} : (weights){w->power + 1, 1};
}

/* dst = keep dst + sum over i of x_i y_i^T */
static void outer_products(work *w, REAL *dst, REAL keep, const REAL *x, matrix y, int64_t rows)
{
    product(&(gemm){.dst = dst,
                    .dst_row = w->v_row,
                    .a = x,
                    .a_row = 1,
                    .a_column = w->k_row,
                    .b = y.data,
                    .b_row = y.row,
                    .m = w->dims.dk,
                    .n = round_up(w->dims.dv, LANES),
                    .k = rows,
                    .keep = keep});
}

static void clear_padding(const work *w, REAL *state)
{
    for (int64_t d = 0; d < w->dims.dk; d++) {
        for (int64_t c = w->dims.dv; c < w->v_row; c++) {
            state[d * w->v_row + c] = 0;
        }
    }
}

static void states(void *scratch, const hd_linear_chunk *chunk, int gradient, void *to_left, void *to_right)
{
    work *w = scratch;
    REAL *x = gradient ? w->q : w->k;
    matrix y = {w->v, w->v_row}; /* packed: rows far apart would share a few sets of the first cache */
    load_rows(y.data, y.row, gradient ? &chunk->d_o : &chunk->v, chunk->rows, w->dims.dv, NULL, 0);
    for (int b = 0; b < 2; b++) {
        REAL *to = b ? to_left : to_right;
        if (to != NULL) {
            weights weight = weights_of(w, chunk->rows, b);
            load_rows(x, w->k_row, gradient ? &chunk->q : &chunk->k, chunk->rows, w->dims.dk, weight.from, weight.step);
            outer_products(w, to, 0, x, y, chunk->rows);
            clear_padding(w, to);
        }
    }
}

static void fold(void *dst, double factor, const void *state, const void *add, int64_t elems)
{
    REAL *d = dst, f = (REAL)factor;
    const REAL *s = state, *m = add;
    for (int64_t i = 0; i < elems; i++) {
        d[i] = f * s[i] + m[i];
    }
}

/* dst = (x y^T) * D for rows x and columns of the transposed y; zeros up to a tile's width beside the triangle. */
static void masked_scores(work *w, REAL *dst, const REAL *x, int64_t x_row, const REAL *yt, int64_t width, int64_t rows)
{
    int all = w->dims.bidirectional;
    const REAL *mask = w->mask + w->dims.chunk_rows - 1;
    product(&(gemm){.dst = dst,
                    .dst_row = w->c_row,
                    .a = x,
                    .a_row = x_row,
                    .a_column = 1,
                    .b = yt,
                    .b_row = w->c_row,
                    .m = rows,
                    .n = round_up(rows, LANES),
                    .k = width,
                    .part = all ? HD_LINEAR_ALL : HD_LINEAR_LOWER_N,
                    .mask = mask,
                    .exact = w->exact});
}

/* dst = scores times y (turned: transposed scores) */
static void mix(work *w, matrix dst, const REAL *scores, int turned, const REAL *y, int64_t width, int64_t rows)
{
    hd_linear_part part = turned ? HD_LINEAR_UPPER_K : HD_LINEAR_LOWER_K;
    product(&(gemm){.dst = dst.data,
                    .dst_row = dst.row,
                    .a = scores,
                    .a_row = turned ? 1 : w->c_row,
                    .a_column = turned ? w->c_row : 1,
                    .b = y,
                    .b_row = padded(width),
                    .m = rows,
                    .n = round_up(width, LANES),
                    .k = rows,
                    .part = w->dims.bidirectional ? HD_LINEAR_ALL : part,
                    .exact = w->exact});
}

/* dst_i += weight_i x_i state; `from`: columns of x, rows of the state */
static void through_state(work *w, matrix dst, matrix x, const REAL *state, int64_t from, int64_t to, int64_t rows,
                          int b)
{
    weights weight = weights_of(w, rows, b);
    product(&(gemm){.dst = dst.data,
                    .dst_row = dst.row,
                    .a = x.data,
                    .a_row = x.row,
                    .a_column = 1,
                    .b = state,
                    .b_row = padded(to),
                    .m = rows,
                    .n = round_up(to, LANES),
                    .k = from,
                    .keep = 1,
                    .weight = weight.from,
                    .weight_step = weight.step});
}

static void pack_qkv(work *w, const hd_linear_chunk *chunk)
{
    w->exact = 0;
    pack(w, w->q, &chunk->q, chunk->rows, w->dims.dk);
    pack(w, w->k, &chunk->k, chunk->rows, w->dims.dk);
    pack(w, w->v, &chunk->v, chunk->rows, w->dims.dv);
    transpose(w->kt, w->c_row, w->k, w->k_row, round_up(chunk->rows, LANES), round_up(w->dims.dk, LANES));
}

static void inner_packed(work *w, matrix o, int64_t rows)
{
    masked_scores(w, w->p, w->q, w->k_row, w->kt, w->dims.dk, rows);
    mix(w, o, w->p, 0, w->v, w->dims.dv, rows);
}

static void inner(void *scratch, const hd_linear_chunk *chunk)
{
    work *w = scratch;
    pack_qkv(w, chunk);
    matrix o = open_rows(w->o, &chunk->o, NULL, chunk->rows, w->dims.dv);
    inner_packed(w, o, chunk->rows);
    close_rows(&chunk->o, o, chunk->rows, w->dims.dv);
}

static void outer(void *scratch, const hd_linear_chunk *chunk, const void *left, const void *right)
{
    work *w = scratch;
    matrix q = read_rows(w->q, &chunk->q, chunk->rows, w->dims.dk);
    matrix o = open_rows(w->o, &chunk->o, &chunk->o_so_far, chunk->rows, w->dims.dv);
    for (int b = 0; b < 2; b++) {
        if ((b ? right : left) != NULL) {
            through_state(w, o, q, b ? right : left, w->dims.dk, w->dims.dv, chunk->rows, b);
        }
    }
    close_rows(&chunk->o, o, chunk->rows, w->dims.dv);
}

static void forward(void *scratch, const hd_linear_chunk *chunk, void *state)
{
    work *w = scratch;
    int64_t rows = chunk->rows;
    weights weight = weights_of(w, rows, 1);
    pack_qkv(w, chunk);
    matrix o = open_rows(w->o, &chunk->o, NULL, rows, w->dims.dv);
    inner_packed(w, o, rows);
    through_state(w, o, (matrix){w->q, w->k_row}, state, w->dims.dk, w->dims.dv, rows, 0);
    close_rows(&chunk->o, o, rows, w->dims.dv);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t c = 0; c < w->k_row; c++) {
            w->k[i * w->k_row + c] *= weight.from[i * weight.step];
        }
    }
    outer_products(w, state, w->power[rows], w->k, (matrix){w->v, w->v_row}, rows);
}

static void scale(void *dst, double factor, const void *src, int64_t elems)
{
    for (int64_t i = 0; i < elems; i++) {
        ((REAL *)dst)[i] = (REAL)factor * ((const REAL *)src)[i];
    }
}

#include "kernels/cpu/linear/body_back.h"

const hd_kernels LINEAR_SLOTS = {
    .LINEAR_SLOT =
        {
            .name = LINEAR_NAME,
            .real_bytes = sizeof(REAL),
            .padded = padded,
            .scratch_bytes = scratch_bytes,
            .begin = begin,
            .states = states,
            .fold = fold,
            .scale = scale,
            .inner = inner,
            .outer = outer,
            .forward = forward,
            .inner_back = inner_back,
            .outer_back = outer_back,
        },
};
