/* Backward of x += proj(attention of q(x) to k,v(text)). */
#include "runtime/block/back_internal.h"

#include "runtime/base/base.h"

#include <math.h>
#include <string.h>

static size_t row_bytes(const heddle_block *block)
{
    return (size_t)block->channels * hd_block_elem_bytes(block);
}

/* A sample without text takes no part. */
static int64_t rows_with_text(const heddle_block *block, const hd_block_view *view, int64_t sample)
{
    return hd_cross_length(block, view, sample) > 0 ? view->sample_rows : 0;
}

/* --- projection --------------------------------------------------------------------------------------------------- */

static heddle_status out_piece(heddle_block *block, const hd_block_view *view, int seat, const hd_row_piece *piece,
                               int64_t at, float *sums)
{
    heddle_status st = HEDDLE_OK;
    int64_t c = block->channels;
    void *dy = hd_back_rows(block, HD_WORK_DY, at * c);
    (void)sums;
    hd_view_gather(block, view, dy, block->back->dtype, piece);
    hd_back_operand(block, hd_back_rows(block, HD_WORK_X, at * c),
                    hd_walk_of(view)->kept->o + (size_t)piece->first * row_bytes(block), block->options.shape.dtype,
                    piece->rows * c);
    HD_TRY(hd_gemm_run(block->back->layer[HD_LAYER_CROSS_PROJ], seat,
                       (float *)hd_back_work(block, HD_WORK_D_O) + piece->first * c, dy, piece->rows));
out:
    return st;
}

/* --- attention: one head of one sample, queries in units ---------------------------------------------------------- */

typedef struct head_rows {
    float *k, *v, *dk, *dv;          /* [tokens][d] */
    float *q, *o, *d_o, *dq, *delta; /* [unit][d] */
    void *scratch;
} head_rows;

enum { TEXT_ARRAYS = 4, ROW_ARRAYS = 4, LINE_FLOATS = 16 };

static int64_t lines(int64_t floats)
{
    return (floats + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS;
}

static size_t head_bytes(const heddle_block *block, int64_t tokens)
{
    int64_t d = block->head_channels;
    int64_t floats = TEXT_ARRAYS * lines(tokens * d) + ROW_ARRAYS * lines(HD_UNIT_ROWS * d) + HD_UNIT_ROWS;
    return (size_t)floats * sizeof(float) + block->kernels->attn_f32.scratch_bytes(d);
}

static head_rows divide(float *memory, int64_t tokens, int64_t d)
{
    head_rows x;
    float **text[TEXT_ARRAYS] = {&x.k, &x.v, &x.dk, &x.dv}, **rows[ROW_ARRAYS] = {&x.q, &x.o, &x.d_o, &x.dq};
    for (int i = 0; i < TEXT_ARRAYS; i++, memory += lines(tokens * d)) {
        *text[i] = memory;
    }
    for (int i = 0; i < ROW_ARRAYS; i++, memory += lines(HD_UNIT_ROWS * d)) {
        *rows[i] = memory;
    }
    x.delta = memory;
    x.scratch = memory + HD_UNIT_ROWS;
    return x;
}

static void gather(const heddle_block *block, float *dst, const void *src, heddle_dtype dtype, int64_t rows,
                   int64_t stride)
{
    int64_t d = block->head_channels;
    for (int64_t r = 0; r < rows; r++) {
        block->kernels->convert(dst + r * d, HEDDLE_F32,
                                (const char *)src + (size_t)(r * stride) * heddle_dtype_bytes(dtype), dtype, d);
    }
}

static void scatter(float *dst, const float *src, int64_t rows, int64_t d, int64_t stride)
{
    for (int64_t r = 0; r < rows; r++) {
        memcpy(dst + r * stride, src + r * d, (size_t)d * sizeof(float));
    }
}

static void attend_back(heddle_block *block, const hd_kept *kept, const head_rows *x, const hd_attn_block *piece,
                        int64_t first, const float *top, const float *log_sum, int64_t h)
{
    const hd_attn_kernels *kernels = &block->kernels->attn_f32;
    heddle_dtype dtype = block->options.shape.dtype;
    int64_t c = block->channels, d = block->head_channels, rows = piece->nq;
    size_t at = (size_t)(first * c + h * d) * hd_block_elem_bytes(block);
    hd_attn_grad grad = {x->d_o, top, log_sum, x->delta, x->dq, x->dk, x->dv};
    gather(block, x->q, kept->wide + at, dtype, rows, c);
    gather(block, x->o, kept->o + at, dtype, rows, c);
    gather(block, x->d_o, (float *)hd_back_work(block, HD_WORK_D_O) + first * c + h * d, HEDDLE_F32, rows, c);
    memset(x->dq, 0, (size_t)(rows * d) * sizeof(float));
    kernels->row_dots(x->delta, x->o, x->d_o, rows, d);
    kernels->backward(piece, &grad, x->scratch);
    scatter((float *)hd_back_work(block, HD_WORK_D_WIDE) + first * c + h * d, x->dq, rows, d, c);
}

static heddle_status head_job(heddle_block *block, const hd_block_view *view, int seat, int64_t job)
{
    const hd_kept *kept = hd_walk_of(view)->kept;
    heddle_dtype dtype = block->options.shape.dtype;
    int64_t c = block->channels, d = block->head_channels, tokens = block->options.text_tokens;
    int64_t sample = job / block->options.heads, h = job % block->options.heads;
    int64_t length = hd_cross_length(block, view, sample);
    head_rows x = divide(block->scratch->seat[seat].part[HD_MIXER_PART], tokens, d);
    const char *kv = kept->text + (size_t)(sample * tokens * 2 * c + h * d) * hd_block_elem_bytes(block);
    float *d_kv = (float *)hd_back_work(block, HD_WORK_D_TEXT) + sample * tokens * 2 * c + h * d;
    const float *top = (float *)(void *)kept->mixer + job * 2 * view->sample_rows, *log_sum = top + view->sample_rows;
    if (length == 0) {
        return HEDDLE_OK;
    }
    gather(block, x.k, kv, dtype, length, 2 * c);
    gather(block, x.v, kv + row_bytes(block), dtype, length, 2 * c);
    memset(x.dk, 0, (size_t)(2 * lines(tokens * d)) * sizeof(float)); /* dv follows */
    for (int64_t r = 0; r < view->sample_rows; r += HD_UNIT_ROWS) {
        int64_t rows = view->sample_rows - r < HD_UNIT_ROWS ? view->sample_rows - r : HD_UNIT_ROWS;
        hd_attn_block piece = {x.q, x.k, x.v, rows, length, d, length, (double)(1.0f / sqrtf((float)d))};
        attend_back(block, kept, &x, &piece, sample * view->sample_rows + r, top + r, log_sum + r, h);
    }
    scatter(d_kv, x.dk, length, d, 2 * c);
    scatter(d_kv + c, x.dv, length, d, 2 * c);
    return HEDDLE_OK;
}

/* --- q, then the text --------------------------------------------------------------------------------------------- */

static heddle_status in_piece(heddle_block *block, const hd_block_view *view, int seat, const hd_row_piece *piece,
                              int64_t at, float *sums)
{
    heddle_status st = HEDDLE_OK;
    heddle_dtype dtype = block->options.shape.dtype;
    int64_t c = block->channels;
    size_t offset = (size_t)piece->first * row_bytes(block);
    float *change = block->scratch->seat[seat].part[HD_SEAT_OUT];
    (void)sums;
    hd_back_operand(block, hd_back_rows(block, HD_WORK_X, at * c), hd_walk_of(view)->kept->x + offset, dtype,
                    piece->rows * c);
    const void *dq =
        hd_back_operand(block, hd_back_rows(block, HD_WORK_NARROW, at * c),
                        (float *)hd_back_work(block, HD_WORK_D_WIDE) + piece->first * c, HEDDLE_F32, piece->rows * c);
    HD_TRY(hd_gemm_run(block->back->layer[HD_LAYER_Q], seat, change, dq, piece->rows));
    block->kernels->gate_residual(view->x + offset, dtype, change, piece->rows, c, NULL);
out:
    return st;
}

static heddle_status text_piece(heddle_block *block, const hd_block_view *view, int seat, const hd_row_piece *piece,
                                int64_t at, float *sums)
{
    heddle_status st = HEDDLE_OK;
    const heddle_conditioning_gradient *wanted = hd_walk_of(view)->wanted;
    int64_t c = block->channels;
    float *change = block->scratch->seat[seat].part[HD_SEAT_OUT];
    (void)at;
    (void)sums;
    if (wanted != NULL && wanted->text != NULL) {
        float *to = wanted->text + (view->first_sample * block->options.text_tokens + piece->first) * c;
        HD_TRY(hd_gemm_run(block->back->layer[HD_LAYER_KV], seat, change,
                           (float *)hd_back_work(block, HD_WORK_D_TEXT) + piece->first * 2 * c, piece->rows));
        block->kernels->gate_residual(to, HEDDLE_F32, change, piece->rows, c, NULL);
    }
out:
    return st;
}

static heddle_status reserve(heddle_block *block, const hd_block_view *view)
{
    heddle_status st = HEDDLE_OK;
    size_t rows = (size_t)hd_view_rows(view), c = (size_t)block->channels;
    size_t stretch = (size_t)hd_walk_rows(block, view->samples, view->sample_rows);
    size_t text = (size_t)(view->samples * block->options.text_tokens) * 2 * c;
    HD_TRY(hd_back_reserve(block, HD_WORK_D_O, rows * c * sizeof(float)));
    HD_TRY(hd_back_reserve(block, HD_WORK_D_WIDE, rows * c * sizeof(float)));
    size_t elem = heddle_dtype_bytes(block->back->dtype);
    HD_TRY(hd_back_reserve(block, HD_WORK_DY, stretch * c * elem));
    HD_TRY(hd_back_reserve(block, HD_WORK_X, stretch * c * elem));
    if (block->back->dtype != HEDDLE_F32) {
        HD_TRY(hd_back_reserve(block, HD_WORK_NARROW, stretch * c * elem));
    }
    HD_TRY(hd_back_reserve(block, HD_WORK_D_TEXT, text * sizeof(float)));
    HD_TRY(hd_block_reserve(block, HD_SEAT_OUT, HD_CHUNK_ROWS * c * sizeof(float)));
    HD_TRY(hd_block_reserve(block, HD_MIXER_PART, head_bytes(block, block->options.text_tokens)));
out:
    return st;
}

/* dy or its like through one linear layer: where its rows and its input lie. */
static heddle_status walk_layer(heddle_block *block, const hd_block_view *view, hd_walk *walk, int layer,
                                hd_weight_grad weight)
{
    walk->nweights = 1;
    walk->weight[0] = weight;
    walk->weight[0].param = 2 * layer;
    walk->weight[0].gate = -1;
    return hd_walk_run(block, view, walk);
}

heddle_status hd_back_cross(heddle_block *block, hd_block_view *view, const hd_kept *kept,
                            const heddle_conditioning_gradient *wanted)
{
    heddle_status st = HEDDLE_OK;
    hd_block_view mine = *view;
    int64_t c = block->channels;
    hd_walk walk = {.kept = kept, .wanted = wanted, .samples = view->samples, .sample_rows = view->sample_rows};
    if (kept->again) {
        mine.call = kept;
        HD_TRY(hd_stage_cross(block, &mine));
    }
    HD_TRY(reserve(block, view));
    void **work = block->back->space->work;
    int f32 = block->back->dtype == HEDDLE_F32, kept_whole = block->options.shape.dtype == block->back->dtype;
    const void *text = view->conditioning->text + view->first_sample * block->options.text_tokens * c;
    walk.rows_of = rows_with_text;
    walk.piece = out_piece;
    HD_TRY(walk_layer(block, view, &walk, HD_LAYER_CROSS_PROJ,
                      (hd_weight_grad){.dtype = block->back->dtype,
                                       .dy = work[HD_WORK_DY],
                                       .n = c,
                                       .x = kept_whole ? kept->o : work[HD_WORK_X],
                                       .x_whole = kept_whole,
                                       .k = c}));
    mine.call = &walk;
    HD_TRY(hd_block_run_jobs(block, &mine, head_job, view->samples * block->options.heads));
    walk.piece = in_piece;
    HD_TRY(walk_layer(block, view, &walk, HD_LAYER_Q,
                      (hd_weight_grad){.dtype = block->back->dtype,
                                       .dy = work[f32 ? HD_WORK_D_WIDE : HD_WORK_NARROW],
                                       .dy_whole = f32,
                                       .n = c,
                                       .x = kept_whole ? kept->x : work[HD_WORK_X],
                                       .x_whole = kept_whole,
                                       .k = c}));
    walk.rows_of = hd_cross_length;
    walk.sample_rows = block->options.text_tokens;
    walk.piece = text_piece;
    HD_TRY(walk_layer(block, view, &walk, HD_LAYER_KV,
                      (hd_weight_grad){.dtype = HEDDLE_F32,
                                       .dy = work[HD_WORK_D_TEXT],
                                       .dy_whole = 1,
                                       .n = 2 * c,
                                       .x = text,
                                       .x_whole = 1,
                                       .k = c}));
out:
    return st;
}
