/* Backward of x += gate * fc2(gelu(fc1(modulate(norm(x))))). */
#include "runtime/block/back_internal.h"

#include "runtime/base/base.h"

/* Of a seat: fc1's result again, as in stage_mlp.c; with bf16 products the gradient of it and a row of f32. */
enum { PART_HIDDEN = 1, PART_D_HIDDEN = 2, PART_LINE = 3 };

static heddle_status again(heddle_block *block, const hd_block_view *view, int seat_index, const hd_row_piece *piece)
{
    heddle_status st = HEDDLE_OK;
    const hd_block_seat *seat = &block->scratch->seat[seat_index];
    heddle_dtype dtype = block->options.shape.dtype;
    int64_t c = block->channels, hidden = block->options.mlp_channels;
    const char *x = hd_walk_of(view)->kept->x + (size_t)(piece->first * c) * hd_block_elem_bytes(block);
    block->kernels->norm_modulate(seat->part[HD_SEAT_SCALED], x, dtype, piece->rows, c,
                                  hd_block_condition(block, view, piece->sample, HD_MLP_ROWS + HD_SHIFT),
                                  hd_block_condition(block, view, piece->sample, HD_MLP_ROWS + HD_SCALE));
    HD_TRY(hd_gemm_run(block->layer[HD_LAYER_FC1], seat_index, seat->part[PART_HIDDEN], seat->part[HD_SEAT_SCALED],
                       piece->rows));
    if (dtype != HEDDLE_F32) { /* rounded as in a tape that keeps it; in place, narrower */
        uint16_t *narrow = seat->part[PART_HIDDEN];
        for (int64_t r = 0; r < piece->rows; r++) {
            block->kernels->convert(seat->part[HD_SEAT_PANEL], dtype, (float *)seat->part[PART_HIDDEN] + r * hidden,
                                    HEDDLE_F32, hidden);
            block->kernels->convert(narrow + r * hidden, dtype, seat->part[HD_SEAT_PANEL], dtype, hidden);
        }
    }
out:
    return st;
}

/* Through fc2 and gelu: the gradient of fc1's result and what fc2 was given, both into the stretch. */
static heddle_status through_fc2(heddle_block *block, int seat_index, const void *dy, const void *before, int64_t rows,
                                 int64_t at)
{
    heddle_status st = HEDDLE_OK;
    const hd_block_back *back = block->back;
    const hd_block_seat *seat = &block->scratch->seat[seat_index];
    int64_t hidden = block->options.mlp_channels;
    if (back->dtype == HEDDLE_F32) {
        float *d_hidden = (float *)hd_back_work(block, HD_WORK_D_WIDE) + at * hidden;
        HD_TRY(hd_gemm_run(back->layer[HD_LAYER_FC2], seat_index, d_hidden, dy, rows));
        block->kernels->gelu_back(d_hidden, (float *)hd_back_work(block, HD_WORK_ACTIVE) + at * hidden, before,
                                  block->options.shape.dtype, rows * hidden);
        return HEDDLE_OK;
    }
    HD_TRY(hd_gemm_run(back->layer[HD_LAYER_FC2], seat_index, seat->part[PART_D_HIDDEN], dy, rows));
    for (int64_t r = 0; r < rows; r++) {
        float *d_row = (float *)seat->part[PART_D_HIDDEN] + r * hidden;
        float *active = seat->part[PART_LINE];
        block->kernels->gelu_back(d_row, active, (const uint16_t *)before + r * hidden, HEDDLE_BF16, hidden);
        block->kernels->convert(hd_back_rows(block, HD_WORK_NARROW, (at + r) * hidden), HEDDLE_BF16, d_row, HEDDLE_F32,
                                hidden);
        block->kernels->convert(hd_back_rows(block, HD_WORK_ACTIVE, (at + r) * hidden), HEDDLE_BF16, active, HEDDLE_F32,
                                hidden);
    }
out:
    return st;
}

static int d_hidden_work(const heddle_block *block)
{
    return block->back->dtype == HEDDLE_F32 ? HD_WORK_D_WIDE : HD_WORK_NARROW;
}

static heddle_status back_piece(heddle_block *block, const hd_block_view *view, int seat_index,
                                const hd_row_piece *piece, int64_t at, float *sums)
{
    heddle_status st = HEDDLE_OK;
    const hd_kept *kept = hd_walk_of(view)->kept;
    const hd_block_seat *seat = &block->scratch->seat[seat_index];
    int64_t c = block->channels, hidden = block->options.mlp_channels;
    const void *before = seat->part[PART_HIDDEN];
    if (kept->again) {
        HD_TRY(again(block, view, seat_index, piece));
    } else {
        before = kept->wide + (size_t)(piece->first * hidden) * hd_block_elem_bytes(block);
    }
    const void *scaled = hd_back_gather_gated(block, view, seat_index, hd_back_rows(block, HD_WORK_DY, at * c), piece,
                                              HD_MLP_ROWS + HD_GATE);
    HD_TRY(through_fc2(block, seat_index, scaled, before, piece->rows, at));
    HD_TRY(hd_gemm_run(block->back->layer[HD_LAYER_FC1], seat_index, seat->part[HD_SEAT_OUT],
                       hd_back_rows(block, d_hidden_work(block), at * hidden), piece->rows));
    hd_back_norm_again(block, view, seat_index, hd_back_rows(block, HD_WORK_X, at * c), piece, HD_MLP_ROWS);
    hd_norm_back x = {piece, seat->part[HD_SEAT_OUT], sums, HD_MLP_ROWS};
    hd_back_norm(block, view, &x);
out:
    return st;
}

static void reduce(heddle_block *block, const hd_block_view *view, const hd_row_piece *piece, const float *sums)
{
    hd_back_reduce_norm(block, view, piece, sums, HD_MLP_ROWS);
}

static heddle_status reserve(heddle_block *block, const hd_block_view *view, const hd_kept *kept)
{
    heddle_status st = HEDDLE_OK;
    size_t c = (size_t)block->channels, hidden = (size_t)block->options.mlp_channels;
    size_t stretch = (size_t)hd_walk_rows(block, view->samples, view->sample_rows);
    size_t elem = heddle_dtype_bytes(block->back->dtype);
    HD_TRY(hd_back_reserve(block, HD_WORK_DY, stretch * c * elem));
    HD_TRY(hd_back_reserve(block, HD_WORK_X, stretch * c * elem));
    HD_TRY(hd_back_reserve(block, d_hidden_work(block), stretch * hidden * elem));
    HD_TRY(hd_back_reserve(block, HD_WORK_ACTIVE, stretch * hidden * elem));
    HD_TRY(hd_block_reserve(block, HD_SEAT_SCALED, HD_CHUNK_ROWS * c * sizeof(float)));
    HD_TRY(hd_block_reserve(block, HD_SEAT_OUT, HD_CHUNK_ROWS * c * sizeof(float)));
    if (block->back->dtype != HEDDLE_F32) {
        HD_TRY(hd_block_reserve(block, PART_D_HIDDEN, HD_CHUNK_ROWS * hidden * sizeof(float)));
        HD_TRY(hd_block_reserve(block, PART_LINE, hidden * sizeof(float)));
    }
    if (kept->again) {
        HD_TRY(hd_block_reserve(block, PART_HIDDEN, HD_CHUNK_ROWS * hidden * sizeof(float)));
        HD_TRY(hd_block_reserve(block, HD_SEAT_PANEL, hidden * sizeof(float)));
    }
out:
    return st;
}

heddle_status hd_back_mlp(heddle_block *block, hd_block_view *view, const hd_kept *kept,
                          const heddle_conditioning_gradient *wanted)
{
    heddle_status st = HEDDLE_OK;
    int64_t c = block->channels, hidden = block->options.mlp_channels;
    hd_walk walk = {.kept = kept, .wanted = wanted, .samples = view->samples, .sample_rows = view->sample_rows};
    HD_TRY(reserve(block, view, kept));
    walk.piece = back_piece;
    walk.columns = block->options.modulate ? 2 * c : 0;
    walk.reduce = block->options.modulate ? reduce : NULL;
    walk.nweights = 2;
    walk.weight[0] = (hd_weight_grad){.dtype = block->back->dtype,
                                      .dy = hd_back_work(block, HD_WORK_DY),
                                      .n = c,
                                      .x = hd_back_work(block, HD_WORK_ACTIVE),
                                      .k = hidden,
                                      .param = 2 * HD_LAYER_FC2,
                                      .gate = block->options.modulate ? HD_MLP_ROWS + HD_GATE : -1};
    walk.weight[1] = (hd_weight_grad){.dtype = block->back->dtype,
                                      .dy = hd_back_work(block, d_hidden_work(block)),
                                      .n = hidden,
                                      .x = hd_back_work(block, HD_WORK_X),
                                      .k = c,
                                      .param = 2 * HD_LAYER_FC1,
                                      .gate = -1};
    HD_TRY(hd_walk_run(block, view, &walk));
out:
    return st;
}
