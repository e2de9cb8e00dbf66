/* What the backward of ATTENTION and MLP share: norm and modulation, gradients of the conditioning vector. */
#include "runtime/block/back_internal.h"

enum { CONDITION_ROWS = 6 };

float *hd_back_condition(const heddle_block *block, const hd_block_view *view, int64_t sample, int which)
{
    const heddle_conditioning_gradient *wanted = hd_walk_of(view)->wanted;
    if (!block->options.modulate || wanted == NULL || wanted->vector == NULL) {
        return NULL;
    }
    return wanted->vector + ((view->first_sample + sample) * CONDITION_ROWS + which) * block->channels;
}

const void *hd_back_operand(const heddle_block *block, void *dst, const void *src, heddle_dtype src_dtype,
                            int64_t elems)
{
    if (src_dtype == block->back->dtype) {
        return src;
    }
    block->kernels->convert(dst, block->back->dtype, src, src_dtype, elems);
    return dst;
}

const void *hd_back_gather_gated(heddle_block *block, const hd_block_view *view, int seat, void *dst,
                                 const hd_row_piece *piece, int gate)
{
    const hd_block_back *back = block->back;
    int64_t c = block->channels;
    void *scaled = block->scratch->seat[seat].part[HD_SEAT_SCALED];
    hd_view_gather(block, view, dst, back->dtype, piece);
    if (!block->options.modulate) {
        return dst;
    }
    const float *factor = hd_block_condition(block, view, piece->sample, gate);
    if (back->dtype == HEDDLE_F32) {
        block->kernels->scale_rows(scaled, dst, piece->rows, c, factor);
        return scaled;
    }
    float *wide = block->scratch->seat[seat].part[HD_SEAT_OUT];
    for (int64_t r = 0; r < piece->rows; r++) { /* row by row: in the nearest cache */
        block->kernels->convert(wide + c, HEDDLE_F32, (const uint16_t *)dst + r * c, back->dtype, c);
        block->kernels->scale_rows(wide, wide + c, 1, c, factor);
        block->kernels->convert((uint16_t *)scaled + r * c, back->dtype, wide, HEDDLE_F32, c);
    }
    return scaled;
}

void hd_back_norm_again(heddle_block *block, const hd_block_view *view, int seat, void *dst, const hd_row_piece *piece,
                        int base)
{
    heddle_dtype dtype = block->options.shape.dtype;
    int64_t c = block->channels;
    const char *x = hd_walk_of(view)->kept->x + (size_t)(piece->first * c) * hd_block_elem_bytes(block);
    void *normed = dtype == block->back->dtype ? dst : block->scratch->seat[seat].part[HD_SEAT_SCALED];
    block->kernels->norm_modulate(normed, x, dtype, piece->rows, c,
                                  hd_block_condition(block, view, piece->sample, base + HD_SHIFT),
                                  hd_block_condition(block, view, piece->sample, base + HD_SCALE));
    hd_back_operand(block, dst, normed, dtype, piece->rows * c);
}

void hd_back_norm(heddle_block *block, const hd_block_view *view, const hd_norm_back *x)
{
    heddle_dtype dtype = block->options.shape.dtype;
    const hd_row_piece *piece = x->piece;
    int64_t c = block->channels, count, stride;
    size_t row_bytes = (size_t)c * hd_block_elem_bytes(block);
    const char *src = hd_walk_of(view)->kept->x + (size_t)piece->first * row_bytes;
    const float *scale = hd_block_condition(block, view, piece->sample, x->base + HD_SCALE);
    float *dshift = block->options.modulate ? x->sums : NULL;
    for (int64_t r = 0; r < piece->rows; r += count) {
        char *dx = view->x + (size_t)hd_view_row(view, piece->first + r) * row_bytes;
        count = hd_view_run(view, piece->first + r, piece->rows - r, &stride);
        block->kernels->norm_back(dx, stride * c, src + (size_t)r * row_bytes, dtype, x->dy + r * c, count, c, scale,
                                  dshift, dshift != NULL ? dshift + c : NULL);
    }
}

void hd_back_reduce_norm(heddle_block *block, const hd_block_view *view, const hd_row_piece *piece, const float *sums,
                         int base)
{
    int64_t c = block->channels;
    float *shift = hd_back_condition(block, view, piece->sample, base + HD_SHIFT);
    float *scale = hd_back_condition(block, view, piece->sample, base + HD_SCALE);
    if (shift != NULL) {
        block->kernels->add_columns(shift, sums, 1, c, c);
        block->kernels->add_columns(scale, sums + c, 1, c, c);
    }
}
