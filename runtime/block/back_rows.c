/* Rows in fibre order, the walk over them, gradients of weights. */
#include "runtime/block/back_internal.h"

#include "runtime/base/base.h"

#include <string.h>

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Rounded up. */
static int64_t parts_of(int64_t whole, int64_t part)
{
    return (whole + part - 1) / part;
}

int64_t hd_view_rows(const hd_block_view *view)
{
    return view->samples * view->sample_rows;
}

int64_t hd_view_pieces(const hd_block_view *view)
{
    return view->samples * parts_of(view->sample_rows, HD_CHUNK_ROWS);
}

/* Pieces never cross samples, since conditioning is a sample's. */
hd_row_piece hd_view_piece(const hd_block_view *view, int64_t job)
{
    int64_t pieces = parts_of(view->sample_rows, HD_CHUNK_ROWS);
    int64_t sample = job / pieces, first = job % pieces * HD_CHUNK_ROWS;
    return (hd_row_piece){sample, sample * view->sample_rows + first,
                          smaller(HD_CHUNK_ROWS, view->sample_rows - first)};
}

/* The activation is [outer][t][inner] rows; fibre order is [outer][inner][t]. Row r of the fibre order lies here. */
int64_t hd_view_row(const hd_block_view *view, int64_t r)
{
    int64_t t = r % view->t, fibre = r / view->t;
    return (fibre / view->inner * view->t + t) * view->inner + fibre % view->inner;
}

/* How many rows from r on lie `stride` rows apart in the activation. */
int64_t hd_view_run(const hd_block_view *view, int64_t r, int64_t limit, int64_t *stride)
{
    *stride = view->inner;
    return view->inner == 1 ? limit : smaller(limit, view->t - r % view->t);
}

void hd_view_gather(const heddle_block *block, const hd_block_view *view, void *dst, heddle_dtype dtype,
                    const hd_row_piece *piece)
{
    heddle_dtype from = block->options.shape.dtype;
    int64_t c = block->channels, count, stride;
    size_t row_bytes = (size_t)c * hd_block_elem_bytes(block), dst_bytes = (size_t)c * heddle_dtype_bytes(dtype);
    for (int64_t r = 0; r < piece->rows; r += count) {
        const char *src = view->x + (size_t)hd_view_row(view, piece->first + r) * row_bytes;
        count = hd_view_run(view, piece->first + r, piece->rows - r, &stride);
        for (int64_t i = 0; i < (stride == 1 ? 1 : count); i++) {
            block->kernels->convert((char *)dst + (size_t)(r + i) * dst_bytes, dtype,
                                    src + (size_t)(i * stride) * row_bytes, from, stride == 1 ? count * c : c);
        }
    }
}

/* --- the walk ----------------------------------------------------------------------------------------------------- */

static int64_t rows_of(const heddle_block *block, const hd_block_view *view, int64_t sample)
{
    const hd_walk *walk = hd_walk_of(view);
    return walk->rows_of != NULL ? walk->rows_of(block, view, sample) : walk->sample_rows;
}

static int64_t units_of(const hd_walk *walk)
{
    return walk->samples * parts_of(walk->sample_rows, HD_UNIT_ROWS);
}

static int64_t unit_rows(const hd_walk *walk)
{
    return smaller(walk->sample_rows, HD_UNIT_ROWS);
}

/* Rows of piece `part` of a unit, or of the whole unit (part -1); none where the sample has no more. */
static hd_row_piece piece_of(const heddle_block *block, const hd_block_view *view, int64_t unit, int64_t part)
{
    const hd_walk *walk = hd_walk_of(view);
    int64_t units = parts_of(walk->sample_rows, HD_UNIT_ROWS);
    int64_t sample = unit / units, first = unit % units * HD_UNIT_ROWS + (part > 0 ? part * HD_CHUNK_ROWS : 0);
    int64_t left = rows_of(block, view, sample) - first;
    int64_t most = part < 0 ? HD_UNIT_ROWS : HD_CHUNK_ROWS;
    return (hd_row_piece){sample, sample * walk->sample_rows + first, left < 0 ? 0 : smaller(left, most)};
}

/* Units of a stretch: enough pieces for every thread. */
static int64_t stretch_units(const heddle_block *block, int64_t sample_rows)
{
    int64_t rows = smaller(sample_rows, HD_UNIT_ROWS);
    int64_t wanted = parts_of(block->seats, HD_UNIT_PIECES) * HD_UNIT_ROWS;
    return rows > 0 && wanted / rows > 1 ? wanted / rows : 1;
}

int64_t hd_walk_rows(const heddle_block *block, int64_t samples, int64_t sample_rows)
{
    return smaller(samples * sample_rows, stretch_units(block, sample_rows) * smaller(sample_rows, HD_UNIT_ROWS));
}

static int64_t unit_pieces(const hd_walk *walk)
{
    return parts_of(unit_rows(walk), HD_CHUNK_ROWS);
}

static float *sums_of(const heddle_block *block, const hd_walk *walk, int64_t job)
{
    return walk->columns > 0 ? (float *)hd_back_work(block, HD_WORK_SUMS) + job * walk->columns : NULL;
}

/* First phase of a stretch, per piece: gradients of rows, and the piece's own sums, which nobody else adds to. */
static heddle_status piece_job(heddle_block *block, const hd_block_view *view, int seat, int64_t job)
{
    const hd_walk *walk = hd_walk_of(view);
    hd_row_piece piece = piece_of(block, view, walk->first_unit + job / unit_pieces(walk), job % unit_pieces(walk));
    float *sums = sums_of(block, walk, job);
    if (piece.rows == 0) {
        return HEDDLE_OK;
    }
    if (sums != NULL) {
        memset(sums, 0, (size_t)walk->columns * sizeof *sums);
    }
    return walk->piece(block, view, seat, &piece, piece.first - walk->first_row, sums);
}

/* One panel of one weight, unit after unit. */
typedef struct panel {
    const hd_weight_grad *weight;
    int64_t first, n; /* rows of the weight */
    float *dw, *db;
    float *product, *columns, *wide; /* scratch */
    int seat;
} panel;

enum { WIDE_ROWS = 16 };

heddle_status hd_back_outer(const heddle_block *block, int seat, heddle_dtype dtype, const hd_outer_product *product)
{
    return dtype == HEDDLE_BF16 ? hd_gemm_outer_run(block->back->outer, seat, product) : hd_gemm_outer_f32(product);
}

/* dw = or += the product over `rows` rows */
static heddle_status multiply(const heddle_block *block, const panel *p, float *dw, const void *dy, const void *x,
                              int64_t rows, int add)
{
    const hd_weight_grad *w = p->weight;
    const hd_outer_product product = {dw, dy, x, w->n, p->n, w->k, rows, add};
    return hd_back_outer(block, p->seat, w->dtype, &product);
}

static void add_columns(const heddle_block *block, const panel *p, float *dst, const void *dy, int64_t rows)
{
    int64_t count, n = p->weight->n;
    if (p->weight->dtype == HEDDLE_F32) {
        block->kernels->add_columns(dst, dy, rows, n, p->n);
        return;
    }
    for (int64_t r = 0; r < rows; r += count) {
        count = smaller(WIDE_ROWS, rows - r);
        for (int64_t i = 0; i < count; i++) {
            block->kernels->convert(p->wide + i * p->n, HEDDLE_F32, (const uint16_t *)dy + (r + i) * n, HEDDLE_BF16,
                                    p->n);
        }
        block->kernels->add_columns(dst, p->wide, count, p->n, p->n);
    }
}

/* y = gate (x W^T + b), so dW = gate G with G = dy^T x, and the gradient of the gate is G . W + b . sum of dy. */
static heddle_status add_gated(heddle_block *block, const hd_block_view *view, const panel *p, const void *dy,
                               const void *x, const hd_row_piece *unit)
{
    heddle_status st = HEDDLE_OK;
    const hd_weight_grad *w = p->weight;
    const hd_kernels *kernels = block->kernels;
    const float *gate = hd_block_condition(block, view, unit->sample, w->gate) + p->first;
    const float *weight = block->param[w->param].data + p->first * w->k;
    const float *bias = block->param[w->param + 1].data + p->first;
    float *dgate = hd_back_condition(block, view, unit->sample, w->gate);
    HD_TRY(multiply(block, p, p->product, dy, x, unit->rows, 0));
    memset(p->columns, 0, (size_t)p->n * sizeof *p->columns);
    add_columns(block, p, p->columns, dy, unit->rows);
    for (int64_t j = 0; j < p->n; j++) {
        float along = kernels->add_scaled(p->dw + j * w->k, p->product + j * w->k, weight + j * w->k, w->k, gate[j]);
        p->db[j] += gate[j] * p->columns[j];
        if (dgate != NULL) {
            dgate[p->first + j] += along + bias[j] * p->columns[j];
        }
    }
out:
    return st;
}

/* Second phase of a stretch, per panel of a weight's rows: adds unit after unit, in order. Threads share panels,
 * never one panel, so the sums do not depend on how many threads there are. */
static heddle_status panel_job(heddle_block *block, const hd_block_view *view, int seat, int64_t job)
{
    heddle_status st = HEDDLE_OK;
    const hd_walk *walk = hd_walk_of(view);
    const hd_weight_grad *w = walk->weight;
    for (; job >= parts_of(w->n, HD_PANEL_ROWS); w++) {
        job -= parts_of(w->n, HD_PANEL_ROWS);
    }
    size_t elem = heddle_dtype_bytes(w->dtype);
    panel p = {.weight = w, .first = job * HD_PANEL_ROWS, .seat = seat};
    p.n = smaller(HD_PANEL_ROWS, w->n - p.first);
    p.dw = block->back->gradient[w->param] + p.first * w->k;
    p.db = block->back->gradient[w->param + 1] + p.first;
    p.columns = block->scratch->seat[seat].part[HD_SEAT_PANEL];
    p.wide = p.columns + HD_PANEL_ROWS;
    p.product = p.wide + WIDE_ROWS * HD_PANEL_ROWS;
    for (int64_t u = walk->first_unit; u < walk->first_unit + walk->units; u++) {
        hd_row_piece unit = piece_of(block, view, u, -1);
        int64_t dy_at = (unit.first - (w->dy_whole ? 0 : walk->first_row)) * w->n + p.first;
        int64_t x_at = (unit.first - (w->x_whole ? 0 : walk->first_row)) * w->k;
        const char *dy = (const char *)w->dy + (size_t)dy_at * elem;
        const char *x = (const char *)w->x + (size_t)x_at * elem;
        if (unit.rows == 0) {
            continue;
        }
        if (w->gate >= 0) {
            HD_TRY(add_gated(block, view, &p, dy, x, &unit));
        } else {
            HD_TRY(multiply(block, &p, p.dw, dy, x, unit.rows, 1));
            add_columns(block, &p, p.db, dy, unit.rows);
        }
    }
out:
    return st;
}

static heddle_status reserve(heddle_block *block, const hd_walk *walk)
{
    heddle_status st = HEDDLE_OK;
    int64_t widest = 0;
    for (int i = 0; i < walk->nweights; i++) {
        widest = walk->weight[i].gate >= 0 && walk->weight[i].k > widest ? walk->weight[i].k : widest;
    }
    size_t line_bytes = HD_PANEL_ROWS * sizeof(float);
    HD_TRY(hd_block_reserve(block, HD_SEAT_PANEL, (size_t)(widest + WIDE_ROWS + 1) * line_bytes));
    int64_t units = smaller(stretch_units(block, walk->sample_rows), units_of(walk));
    HD_TRY(hd_back_reserve(block, HD_WORK_SUMS, (size_t)(units * unit_pieces(walk) * walk->columns) * sizeof(float)));
out:
    return st;
}

/* The walk: rows are taken in stretches of units, so that memory does not grow with the box. A stretch is pieces,
 * then panels, then the pieces' sums in order. */
heddle_status hd_walk_run(heddle_block *block, const hd_block_view *view, hd_walk *walk)
{
    heddle_status st = HEDDLE_OK;
    hd_block_view mine = *view;
    int64_t units = units_of(walk);
    int64_t panels = 0;
    mine.call = walk;
    for (int i = 0; i < walk->nweights; i++) {
        panels += parts_of(walk->weight[i].n, HD_PANEL_ROWS);
    }
    HD_TRY(reserve(block, walk));
    for (walk->first_unit = 0; walk->first_unit < units; walk->first_unit += walk->units) {
        walk->units = smaller(units - walk->first_unit, stretch_units(block, walk->sample_rows));
        walk->first_row = piece_of(block, &mine, walk->first_unit, -1).first;
        int64_t jobs = walk->units * unit_pieces(walk);
        HD_TRY(hd_block_run_jobs(block, &mine, piece_job, jobs));
        HD_TRY(hd_block_run_jobs(block, &mine, panel_job, panels));
        for (int64_t job = 0; walk->reduce != NULL && job < jobs; job++) {
            hd_row_piece piece =
                piece_of(block, &mine, walk->first_unit + job / unit_pieces(walk), job % unit_pieces(walk));
            if (piece.rows > 0) {
                walk->reduce(block, &mine, &piece, sums_of(block, walk, job));
            }
        }
    }
out:
    return st;
}
