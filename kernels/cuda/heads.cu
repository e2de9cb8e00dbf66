/* Vectors of heads: root-mean-square norm, rotation of pairs. Lanes beside one another share a vector, one piece each;
 * a sum over it has the order of its pieces. */
#include "kernels/cuda/heads.h"
#include "kernels/cuda/kernels.h"

typedef struct rotate_args {
    hd_heads_args of;
    char *dst;
    const char *src;
    int64_t farther; /* elements that a row of dst lies behind the one before, beyond those of src */
} rotate_args;

HD_DEV void rotate_vector(const rotate_args *a, const hd_heads_place *at, hd_lane_piece *p, const float *weight,
                          heddle_dtype dtype, int is_whole)
{
    const int per = hd_piece_elems(dtype);
    float value[HD_PIECE_MOST], squares = 0;
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        value[i] = i < (is_whole ? (at->left > 0 ? per : 0) : at->left) ? hd_piece_get(p, i, dtype) : 0;
        squares = hd_fma(value[i], value[i], squares);
    }
    if (a->of.weight != 0) {
        const float inverse = hd_heads_inverse(&a->of, hd_group_sum(squares, HD_HEADS_LANES(dtype)));
        HD_UNROLL
        for (int i = 0; i < per; i++) {
            value[i] = hd_mul(hd_mul(value[i], inverse), weight[i]);
        }
    }
    if (at->left <= 0) {
        return;
    }
    if (a->of.cos_sin != 0) {
        hd_heads_turn(value, &a->of, at, per, is_whole, 1);
    }
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        hd_piece_set(p, i, dtype, value[i]);
    }
    hd_piece_store(a->dst + at->begin + at->row * a->farther * hd_elem_bytes(dtype), at->at, at->left, dtype, is_whole,
                   p);
}

HD_DEV void rotate_heads(const rotate_args *a, heddle_dtype dtype, int is_whole)
{
    const uint32_t batch = hd_heads_groups(dtype) * HD_HEADS_AT_ONCE;
    float weight[HD_PIECE_MOST] = {0};
    hd_heads_weights(weight, &a->of, dtype, is_whole);
    /* as many turns for all of a block: the lanes of a warp come to its sums together */
    for (uint32_t first = HD_BLOCK * batch; first < a->of.vectors; first += HD_BLOCKS * batch) {
        hd_heads_place at[HD_HEADS_AT_ONCE];
        hd_lane_piece p[HD_HEADS_AT_ONCE];
        HD_UNROLL
        for (int u = 0; u < HD_HEADS_AT_ONCE; u++) {
            at[u] = hd_heads_place_of(&a->of, first, u, dtype);
            if (at[u].left > 0) {
                p[u] = hd_piece_load(a->src + at[u].begin, at[u].at, at[u].left, dtype, is_whole);
            }
        }
        HD_UNROLL
        for (int u = 0; u < HD_HEADS_AT_ONCE; u++) {
            rotate_vector(a, &at[u], &p[u], weight, dtype, is_whole);
        }
    }
}

#define ROTATE_KERNEL(name, dtype)                                                                                     \
    HD_KERNEL(name, rotate_args, a)                                                                                    \
    {                                                                                                                  \
        HD_ROWS_EITHER(a.of, rotate_heads, &a, dtype);                                                                 \
    }
HD_ROWS_KERNELS(ROTATE_KERNEL, norm_rotate)

int hd_heads_norm_rotate(const hd_device_heads *of, void *dst, const void *src, void *stream)
{
    if (!hd_heads_are_right(of)) {
        return (int)cudaErrorInvalidValue;
    }
    rotate_args a = {hd_heads_of(of, dst), (char *)dst, (const char *)src,
                     of->to_stride > 0 ? of->to_stride - of->row_stride : 0};
    a.of.is_whole = a.of.is_whole && hd_is_aligned(src) && a.farther % 8 == 0;
    HD_ROWS_LAUNCH_OF(norm_rotate, of->dtype, hd_heads_blocks(of), &a, stream);
}

int hd_heads_load(void)
{
    const void *const kernel[] = {HD_ROWS_ADDRESSES(norm_rotate)};
    return hd_load_kernels(kernel, (int)(sizeof kernel / sizeof kernel[0]));
}
