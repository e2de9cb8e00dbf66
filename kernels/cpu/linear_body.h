/* Chunked linear attention, written once for all variants. Before: REAL, LANES, gemm, load_row, store_row, product,
 * transpose. */

enum { ALIGNMENT = 64 };

/* The scratch memory's head. All matrices have rows of a padded number of columns; rows are padded to the lanes. */
typedef struct work {
    hd_linear_dims dims;
    int64_t k_row, v_row, c_row; /* padded dk, dv, chunk_rows */
    int exact;                   /* something in the chunk is not finite */
    REAL *power;                 /* [chunk_rows+1] g^n */
    REAL *mask;                  /* [2*chunk_rows]: row i of D begins at mask + chunk_rows-1-i */
    REAL *q, *k, *v, *d_o;       /* packed */
    REAL *kt, *vt;               /* transposed */
    REAL *p, *g;                 /* [chunk][chunk] */
    REAL *scaled;                /* [chunk][wider of dk, dv] */
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
    int64_t wider = w->k_row > w->v_row ? w->k_row : w->v_row;
    w->power = take(memory, &at, dims->chunk_rows + 1);
    w->mask = take(memory, &at, 2 * c + LANES);
    w->q = take(memory, &at, c * w->k_row);
    w->k = take(memory, &at, c * w->k_row);
    w->v = take(memory, &at, c * w->v_row);
    w->d_o = take(memory, &at, c * w->v_row);
    w->kt = take(memory, &at, k_rows * w->c_row);
    w->vt = take(memory, &at, v_rows * w->c_row);
    w->p = take(memory, &at, c * w->c_row);
    w->g = take(memory, &at, c * w->c_row);
    w->scaled = take(memory, &at, c * wider);
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
}

/* The array's rows, padded with zeros. */
static void pack(work *w, REAL *dst, const hd_linear_rows *x, int64_t rows, int64_t columns)
{
    int64_t row = padded(columns), all = round_up(rows, LANES);
    for (int64_t i = 0; i < rows; i++) {
        REAL *to = dst + i * row;
        load_row(to, x, i, columns);
        for (int64_t c = columns; c < row; c++) {
            to[c] = 0;
        }
        int odd = 0;
        for (int64_t c = 0; c < columns; c++) {
            odd |= !(to[c] - to[c] == 0);
        }
        w->exact |= odd;
    }
    memset(dst + rows * row, 0, (size_t)((all - rows) * row) * sizeof(REAL));
}

static void unpack(const hd_linear_rows *x, const REAL *src, int64_t rows, int64_t columns)
{
    int64_t row = padded(columns);
    for (int64_t i = 0; i < rows; i++) {
        store_row(x, i, src + i * row, columns);
    }
}

/* scaled_i = weight_i * src_i, with weights a or b. */
static void scale_rows(work *w, const REAL *src, int64_t rows, int64_t row, int b)
{
    for (int64_t i = 0; i < rows; i++) {
        REAL weight = b ? w->power[rows - 1 - i] : w->power[i + 1];
        for (int64_t c = 0; c < row; c++) {
            w->scaled[i * row + c] = weight * src[i * row + c];
        }
    }
}

/* dst = sum over i of weight_i x_i y_i^T */
static void outer_products(work *w, REAL *dst, const REAL *x, const REAL *y, int64_t rows, int b, int add)
{
    scale_rows(w, x, rows, w->k_row, b);
    product(&(gemm){.dst = dst,
                    .dst_row = w->v_row,
                    .a = w->scaled,
                    .a_row = 1,
                    .a_column = w->k_row,
                    .b = y,
                    .b_row = w->v_row,
                    .m = w->dims.dk,
                    .n = round_up(w->dims.dv, LANES),
                    .k = rows,
                    .add = add});
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
    REAL *x = gradient ? w->q : w->k, *y = gradient ? w->d_o : w->v;
    pack(w, x, gradient ? &chunk->q : &chunk->k, chunk->rows, w->dims.dk);
    pack(w, y, gradient ? &chunk->d_o : &chunk->v, chunk->rows, w->dims.dv);
    for (int b = 0; b < 2; b++) {
        REAL *to = b ? to_left : to_right;
        if (to != NULL) {
            outer_products(w, to, x, y, chunk->rows, b, 0);
            clear_padding(w, to);
        }
    }
}

static void fold(void *state, double factor, const void *add, int64_t elems)
{
    REAL *s = state, f = (REAL)factor;
    const REAL *m = add;
    for (int64_t i = 0; i < elems; i++) {
        s[i] = f * s[i] + m[i];
    }
}

/* dst = (x y^T) * D for rows x and columns of the transposed y; zeros up to a tile's width beside the triangle. */
static void masked_scores(work *w, REAL *dst, const REAL *x, int64_t x_row, const REAL *yt, int64_t width, int64_t rows)
{
    int all = w->dims.bidirectional;
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
                    .exact = w->exact});
    for (int64_t i = 0; i < rows; i++) {
        REAL *row = dst + i * w->c_row;
        const REAL *mask = w->mask + w->dims.chunk_rows - 1 - i;
        int64_t seen = all ? rows : i + 1;
        for (int64_t j = 0; j < seen; j++) {
            row[j] *= mask[j];
        }
        for (int64_t j = seen; j < w->c_row && j < seen + TILE_ROWS; j++) {
            row[j] = 0;
        }
    }
}

/* dst += scores times y (turned: transposed scores) */
static void mix(work *w, REAL *dst, const REAL *scores, int turned, const REAL *y, int64_t width, int64_t rows, int add)
{
    hd_linear_part part = turned ? HD_LINEAR_UPPER_K : HD_LINEAR_LOWER_K;
    product(&(gemm){.dst = dst,
                    .dst_row = padded(width),
                    .a = scores,
                    .a_row = turned ? 1 : w->c_row,
                    .a_column = turned ? w->c_row : 1,
                    .b = y,
                    .b_row = padded(width),
                    .m = rows,
                    .n = round_up(width, LANES),
                    .k = rows,
                    .part = w->dims.bidirectional ? HD_LINEAR_ALL : part,
                    .add = add,
                    .exact = w->exact});
}

/* dst_i += weight_i x_i state; x is [rows][width of the state's rows] */
static void through_state(work *w, REAL *dst, const REAL *x, const REAL *state, int64_t from, int64_t to, int64_t rows,
                          int b)
{
    scale_rows(w, x, rows, padded(from), b);
    product(&(gemm){.dst = dst,
                    .dst_row = padded(to),
                    .a = w->scaled,
                    .a_row = padded(from),
                    .a_column = 1,
                    .b = state,
                    .b_row = padded(to),
                    .m = rows,
                    .n = round_up(to, LANES),
                    .k = from,
                    .add = 1});
}

/* Rows of a state are as many as there are channels, not a multiple of the lanes: the last ones by hand. */
static const REAL *turn(work *w, const REAL *state)
{
    int64_t whole = w->dims.dk / LANES * LANES;
    transpose(w->turned, w->k_row, state, w->v_row, whole, round_up(w->dims.dv, LANES));
    for (int64_t c = 0; c < w->dims.dv; c++) {
        for (int64_t d = whole; d < w->k_row; d++) {
            w->turned[c * w->k_row + d] = d < w->dims.dk ? state[d * w->v_row + c] : 0;
        }
    }
    return w->turned;
}

static void pack_qkv(work *w, const hd_linear_chunk *chunk)
{
    w->exact = 0;
    pack(w, w->q, &chunk->q, chunk->rows, w->dims.dk);
    pack(w, w->k, &chunk->k, chunk->rows, w->dims.dk);
    pack(w, w->v, &chunk->v, chunk->rows, w->dims.dv);
    transpose(w->kt, w->c_row, w->k, w->k_row, round_up(chunk->rows, LANES), round_up(w->dims.dk, LANES));
}

static void inner_packed(work *w, int64_t rows)
{
    masked_scores(w, w->p, w->q, w->k_row, w->kt, w->dims.dk, rows);
    mix(w, w->o, w->p, 0, w->v, w->dims.dv, rows, 0);
}

static void inner(void *scratch, const hd_linear_chunk *chunk)
{
    work *w = scratch;
    pack_qkv(w, chunk);
    inner_packed(w, chunk->rows);
    unpack(&chunk->o, w->o, chunk->rows, w->dims.dv);
}

static void outer(void *scratch, const hd_linear_chunk *chunk, const void *left, const void *right)
{
    work *w = scratch;
    pack(w, w->q, &chunk->q, chunk->rows, w->dims.dk);
    pack(w, w->o, &chunk->o_so_far, chunk->rows, w->dims.dv);
    for (int b = 0; b < 2; b++) {
        if ((b ? right : left) != NULL) {
            through_state(w, w->o, w->q, b ? right : left, w->dims.dk, w->dims.dv, chunk->rows, b);
        }
    }
    unpack(&chunk->o, w->o, chunk->rows, w->dims.dv);
}

static void forward(void *scratch, const hd_linear_chunk *chunk, void *state)
{
    work *w = scratch;
    REAL *s = state;
    pack_qkv(w, chunk);
    inner_packed(w, chunk->rows);
    through_state(w, w->o, w->q, s, w->dims.dk, w->dims.dv, chunk->rows, 0);
    unpack(&chunk->o, w->o, chunk->rows, w->dims.dv);
    REAL factor = w->power[chunk->rows];
    for (int64_t i = 0; i < w->dims.dk * w->v_row; i++) {
        s[i] *= factor;
    }
    outer_products(w, s, w->k, w->v, chunk->rows, 1, 1);
}

static void inner_back(void *scratch, const hd_linear_chunk *chunk, const void *left, const void *right)
{
    work *w = scratch;
    int64_t rows = chunk->rows, dk = w->dims.dk, dv = w->dims.dv;
    pack_qkv(w, chunk);
    pack(w, w->d_o, &chunk->d_o, rows, dv);
    transpose(w->vt, w->c_row, w->v, w->v_row, round_up(rows, LANES), round_up(dv, LANES));
    masked_scores(w, w->p, w->q, w->k_row, w->kt, dk, rows);
    masked_scores(w, w->g, w->d_o, w->v_row, w->vt, dv, rows);
    mix(w, w->dq, w->g, 0, w->k, dk, rows, 0);
    mix(w, w->dk, w->g, 1, w->q, dk, rows, 0);
    mix(w, w->dv, w->p, 1, w->d_o, dv, rows, 0);
    for (int b = 0; b < 2; b++) {
        if ((b ? right : left) != NULL) {
            through_state(w, w->dq, w->d_o, turn(w, b ? right : left), dv, dk, rows, b);
        }
    }
    unpack(&chunk->dq, w->dq, rows, dk);
    unpack(&chunk->dk, w->dk, rows, dk);
    unpack(&chunk->dv, w->dv, rows, dv);
}

static void outer_back(void *scratch, const hd_linear_chunk *chunk, const void *left, const void *right)
{
    work *w = scratch;
    int64_t rows = chunk->rows, dk = w->dims.dk, dv = w->dims.dv;
    pack(w, w->k, &chunk->k, rows, dk);
    pack(w, w->v, &chunk->v, rows, dv);
    pack(w, w->dk, &chunk->dk_so_far, rows, dk);
    pack(w, w->dv, &chunk->dv_so_far, rows, dv);
    for (int b = 0; b < 2; b++) {
        const REAL *state = b ? right : left;
        if (state != NULL) {
            through_state(w, w->dv, w->k, state, dk, dv, rows, b);
            through_state(w, w->dk, w->v, turn(w, state), dv, dk, rows, b);
        }
    }
    unpack(&chunk->dk, w->dk, rows, dk);
    unpack(&chunk->dv, w->dv, rows, dv);
}
