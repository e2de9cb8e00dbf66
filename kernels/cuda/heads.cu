/* Vectors of heads: root-mean-square norm, rotation of pairs. Lanes beside one another share a vector, one piece each;
 * a sum over it has the order of its pieces. */
#include "kernels/cuda/heads.h"
#include "kernels/cuda/kernels.h"

typedef struct rotate_args {
    hd_heads_args of;
    char *x;
} rotate_args;

HD_DEV void rotate_vector(const rotate_args *a, char *vector, uint32_t position, int is_there, heddle_dtype dtype)
{
    const int per = hd_piece_elems(dtype), lanes = HD_HEADS_LANES(dtype);
    const int32_t at = (int32_t)(HD_LANE % (unsigned)lanes) * per, left = is_there ? a->of.d - at : 0;
    hd_lane_piece p;
    float value[HD_PIECE_MOST], squares = 0, inverse = 1;
    if (left > 0) {
        p = hd_piece_load(vector, at, left, dtype, a->of.is_whole);
    }
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        value[i] = i < left ? hd_piece_get(&p, i, dtype) : 0;
        squares = hd_fma(value[i], value[i], squares);
    }
    if (a->of.weight != 0) {
        inverse = 1.0f / sqrtf(hd_group_sum(squares, (unsigned)lanes) / (float)a->of.d + HD_ROWS_EPSILON);
    }
    if (left <= 0) {
        return;
    }
    if (a->of.weight != 0) {
        hd_heads_weigh(value, &a->of, at, left, per, inverse);
    }
    if (a->of.cos_sin != 0) {
        hd_heads_turn(value, &a->of, position, at, left, per, 1);
    }
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        hd_piece_set(&p, i, dtype, value[i]);
    }
    hd_piece_store(vector, at, left, dtype, a->of.is_whole, &p);
}

HD_DEV void rotate_heads(const rotate_args *a, heddle_dtype dtype)
{
    const unsigned lanes = HD_HEADS_LANES(dtype), groups = HD_THREADS / lanes;
    const uint32_t step = HD_BLOCKS * groups, first = HD_BLOCK * groups + HD_THREAD / lanes;
    /* as many turns for all: the lanes of a warp come to its sums together */
    for (uint32_t turn = 0; turn < (a->of.vectors + step - 1) / step; turn++) {
        const uint32_t n = first + turn * step, row = hd_divide(&a->of.heads, n);
        const int is_there = n < a->of.vectors;
        char *vector = a->x + hd_heads_at(&a->of, row, n) * hd_elem_bytes(dtype);
        rotate_vector(a, vector, hd_heads_position(&a->of, row), is_there, dtype);
    }
}

#define ROTATE_KERNEL(name, dtype)                                                                                     \
    HD_KERNEL(name, rotate_args, a)                                                                                    \
    {                                                                                                                  \
        rotate_heads(&a, dtype);                                                                                       \
    }
HD_ROWS_KERNELS(ROTATE_KERNEL, norm_rotate)

int hd_heads_norm_rotate(const hd_device_heads *of, void *x, void *stream)
{
    if (!hd_heads_are_right(of)) {
        return (int)cudaErrorInvalidValue;
    }
    rotate_args a = {hd_heads_of(of, x), (char *)x};
    HD_ROWS_LAUNCH_OF(norm_rotate, of->dtype, hd_heads_blocks(of), &a, stream);
}

int hd_heads_load(void)
{
    const void *const kernel[] = {HD_ROWS_ADDRESSES(norm_rotate)};
    return hd_load_kernels(kernel, (int)(sizeof kernel / sizeof kernel[0]));
}
