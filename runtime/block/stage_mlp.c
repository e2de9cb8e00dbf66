/* x += gate * fc2(gelu(fc1(modulate(norm(x))))), chunk of rows by chunk of rows. */
#include "runtime/block/back_internal.h"

#include "runtime/base/base.h"

enum { PART_NORMED = 0, PART_HIDDEN = 1, PART_ACTIVE = 2, PART_OUT = 3 };
enum { SHIFT = 3, SCALE = 4, GATE = 5 };

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static heddle_status chunk(heddle_block *block, const hd_block_view *view, int seat_index, int64_t job)
{
    heddle_status st = HEDDLE_OK;
    const hd_kernels *kernels = block->kernels;
    const hd_block_seat *seat = &block->scratch->seat[seat_index];
    heddle_dtype dtype = block->options.shape.dtype;
    int64_t c = block->channels;
    size_t elem = hd_block_elem_bytes(block);
    size_t row_bytes = (size_t)c * elem;
    int64_t first = job * HD_CHUNK_ROWS;
    int64_t rows = smaller(HD_CHUNK_ROWS, view->samples * view->sample_rows - first);
    char *x = view->x + (size_t)first * row_bytes;
    char *normed = seat->part[PART_NORMED];
    const float *change = seat->part[PART_OUT];
    void *active = dtype == HEDDLE_F32 ? seat->part[PART_HIDDEN] : seat->part[PART_ACTIVE];
    float *hidden = seat->part[PART_HIDDEN];
    const hd_kept *kept = view->call;
    char *keep = NULL;
    int64_t count;
    if (kept != NULL) {
        kernels->convert(kept->x + (size_t)first * row_bytes, dtype, x, dtype, rows * block->channels);
        keep = kept->wide != NULL ? kept->wide + (size_t)(first * block->options.mlp_channels) * elem : NULL;
        hidden = keep != NULL && dtype == HEDDLE_F32 ? (float *)(void *)keep : hidden;
    }
    for (int64_t r = 0; r < rows; r += count) {
        int64_t sample = (first + r) / view->sample_rows;
        count = smaller(rows - r, (sample + 1) * view->sample_rows - (first + r));
        kernels->norm_modulate(normed + (size_t)r * row_bytes, x + (size_t)r * row_bytes, dtype, count, c,
                               hd_block_condition(block, view, sample, SHIFT),
                               hd_block_condition(block, view, sample, SCALE));
    }
    HD_TRY(hd_gemm_run(block->layer[HD_LAYER_FC1], seat_index, hidden, normed, rows));
    if (keep != NULL && dtype != HEDDLE_F32) {
        kernels->convert(keep, dtype, hidden, HEDDLE_F32, rows * block->options.mlp_channels);
    }
    kernels->gelu(active, dtype, hidden, rows * block->options.mlp_channels);
    HD_TRY(hd_gemm_run(block->layer[HD_LAYER_FC2], seat_index, seat->part[PART_OUT], active, rows));
    for (int64_t r = 0; r < rows; r += count) {
        int64_t sample = (first + r) / view->sample_rows;
        count = smaller(rows - r, (sample + 1) * view->sample_rows - (first + r));
        kernels->gate_residual(x + (size_t)r * row_bytes, dtype, change + r * c, count, c,
                               hd_block_condition(block, view, sample, GATE));
    }
out:
    return st;
}

heddle_status hd_stage_mlp(heddle_block *block, hd_block_view *view)
{
    heddle_status st = HEDDLE_OK;
    int64_t rows = smaller(HD_CHUNK_ROWS, view->samples * view->sample_rows);
    size_t hidden = (size_t)(rows * block->options.mlp_channels);
    size_t plain = (size_t)(rows * block->channels);
    HD_TRY(hd_block_reserve(block, PART_NORMED, plain * hd_block_elem_bytes(block)));
    HD_TRY(hd_block_reserve(block, PART_HIDDEN, hidden * sizeof(float)));
    if (block->options.shape.dtype != HEDDLE_F32) {
        HD_TRY(hd_block_reserve(block, PART_ACTIVE, hidden * hd_block_elem_bytes(block)));
    }
    HD_TRY(hd_block_reserve(block, PART_OUT, plain * sizeof(float)));
    HD_TRY(
        hd_block_run_jobs(block, view, chunk, (view->samples * view->sample_rows + HD_CHUNK_ROWS - 1) / HD_CHUNK_ROWS));
out:
    return st;
}
