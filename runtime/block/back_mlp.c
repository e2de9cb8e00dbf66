/* Backward of x += gate * fc2(gelu(fc1(modulate(norm(x))))). */
#include "runtime/block/back_internal.h"

#include "runtime/base/base.h"

enum { PART_HIDDEN = 1 }; /* of a seat, as in stage_mlp.c: fc1's result again */

static heddle_status again(heddle_block *block, const hd_block_view *view, int seat_index, const hd_piece *piece)
{
    heddle_status st = HEDDLE_OK;
    const hd_block_seat *seat = &block->seat[seat_index];
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

static heddle_status back_piece(heddle_block *block, const hd_block_view *view, int seat_index, const hd_piece *piece,
                                int64_t at, float *sums)
{
    heddle_status st = HEDDLE_OK;
    const hd_kept *kept = hd_walk_of(view)->kept;
    const hd_block_seat *seat = &block->seat[seat_index];
    int64_t c = block->channels, hidden = block->options.mlp_channels;
    float *dy = (float *)hd_back_work(block, HD_WORK_DY) + at * c;
    float *d_hidden = (float *)hd_back_work(block, HD_WORK_D_WIDE) + at * hidden;
    float *active = (float *)hd_back_work(block, HD_WORK_ACTIVE) + at * hidden;
    float *normed = (float *)hd_back_work(block, HD_WORK_X) + at * c;
    const void *before = seat->part[PART_HIDDEN];
    float *scaled = dy;
    if (kept->again) {
        HD_TRY(again(block, view, seat_index, piece));
    } else {
        before = kept->wide + (size_t)(piece->first * hidden) * hd_block_elem_bytes(block);
    }
    hd_view_gather(block, view, dy, HEDDLE_F32, piece);
    if (block->options.modulate) {
        scaled = seat->part[HD_SEAT_SCALED];
        block->back->kernels->scale_rows(scaled, dy, piece->rows, c,
                                         hd_block_condition(block, view, piece->sample, HD_MLP_ROWS + HD_GATE));
    }
    HD_TRY(hd_gemm_run(block->back->layer[HD_LAYER_FC2], seat_index, d_hidden, scaled, piece->rows));
    block->back->kernels->gelu_back(d_hidden, active, before, block->options.shape.dtype, piece->rows * hidden);
    HD_TRY(hd_gemm_run(block->back->layer[HD_LAYER_FC1], seat_index, seat->part[HD_SEAT_OUT], d_hidden, piece->rows));
    hd_back_norm_again(block, view, seat_index, normed, piece, HD_MLP_ROWS);
    hd_norm_back x = {piece, seat->part[HD_SEAT_OUT], sums, HD_MLP_ROWS};
    hd_back_norm(block, view, &x);
out:
    return st;
}

static void reduce(heddle_block *block, const hd_block_view *view, const hd_piece *piece, const float *sums)
{
    hd_back_reduce_norm(block, view, piece, sums, HD_MLP_ROWS);
}

static heddle_status reserve(heddle_block *block, const hd_block_view *view, const hd_kept *kept)
{
    heddle_status st = HEDDLE_OK;
    size_t c = (size_t)block->channels, hidden = (size_t)block->options.mlp_channels;
    size_t stretch = (size_t)hd_walk_rows(block, view->samples, view->sample_rows);
    HD_TRY(hd_back_reserve(block, HD_WORK_DY, stretch * c * sizeof(float)));
    HD_TRY(hd_back_reserve(block, HD_WORK_X, stretch * c * sizeof(float)));
    HD_TRY(hd_back_reserve(block, HD_WORK_D_WIDE, stretch * hidden * sizeof(float)));
    HD_TRY(hd_back_reserve(block, HD_WORK_ACTIVE, stretch * hidden * sizeof(float)));
    HD_TRY(hd_block_reserve(block, HD_SEAT_SCALED, HD_CHUNK_ROWS * c * sizeof(float)));
    HD_TRY(hd_block_reserve(block, HD_SEAT_OUT, HD_CHUNK_ROWS * c * sizeof(float)));
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
    walk.weight[0] = (hd_weight_grad){.dy = hd_back_work(block, HD_WORK_DY),
                                      .n = c,
                                      .x = hd_back_work(block, HD_WORK_ACTIVE),
                                      .k = hidden,
                                      .param = 2 * HD_LAYER_FC2,
                                      .gate = block->options.modulate ? HD_MLP_ROWS + HD_GATE : -1};
    walk.weight[1] = (hd_weight_grad){.dy = hd_back_work(block, HD_WORK_D_WIDE),
                                      .n = hidden,
                                      .x = hd_back_work(block, HD_WORK_X),
                                      .k = c,
                                      .param = 2 * HD_LAYER_FC1,
                                      .gate = -1};
    HD_TRY(hd_walk_run(block, view, &walk));
out:
    return st;
}
