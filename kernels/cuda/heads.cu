/* Vectors of heads: root-mean-square norm, rotation of pairs. Lanes beside one another share a vector; a sum over it
 * has the order of its pieces. */
#include "kernels/cuda/heads.h"
#include "kernels/cuda/kernels.h"

typedef struct rotate_args {
    hd_heads_args of;
    char *dst;
    const char *src;
    int64_t farther; /* elements that a row of dst lies behind the one before, beyond those of src */
} rotate_args;

HD_DEV void rotate_piece(const rotate_args *a, const float *weights, const hd_heads_place *place,
                         const hd_lane_piece *p, int32_t at, float inverse, heddle_dtype dtype, int is_whole)
{
    const int per = hd_piece_elems(dtype);
    const int32_t left = place->d - at;
    float value[HD_PIECE_MOST], weight[HD_PIECE_MOST];
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        value[i] = hd_piece_get(p, i, dtype);
    }
    if (weights != 0) {
        hd_floats_load(weight, weights + at, left, per, is_whole);
        HD_UNROLL
        for (int i = 0; i < per; i++) {
            value[i] = hd_mul(hd_mul(value[i], inverse), weight[i]);
        }
    }
    if (a->of.cos_sin != 0) {
        hd_heads_turn(value, &a->of, place->position, at, per, is_whole, 1);
    }
    hd_values_store(a->dst + place->begin + place->row * a->farther * hd_elem_bytes(dtype), value, at, left, per, dtype,
                    is_whole);
}

HD_DEV void rotate_vector(const rotate_args *a, heddle_dtype dtype, int is_whole)
{
    const hd_heads_set set = hd_heads_set_of(&a->of);
    const uint32_t n = set.block * HD_HEADS_OF_BLOCK + HD_THREAD / HD_HEADS_LANES;
    const hd_heads_place place = hd_heads_place_of(&a->of, &set, n, dtype);
    hd_lane_piece p[HD_HEADS_MOST_PIECES];
    hd_heads_take(p, a->src, &place, dtype, is_whole);
    const float inverse = set.weight != 0 ? hd_heads_inverse(&a->of, p, &place, dtype) : 1.0f;
    HD_UNROLL
    for (int m = 0; m < hd_heads_pieces(dtype); m++) {
        const int32_t at = hd_heads_piece_at(m, dtype);
        if (at < place.d) {
            rotate_piece(a, set.weight, &place, &p[m], at, inverse, dtype, is_whole);
        }
    }
}

#define ROTATE_KERNEL(name, dtype)                                                                                     \
    HD_KERNEL(name, rotate_args, a)                                                                                    \
    {                                                                                                                  \
        HD_ROWS_EITHER(a.of, rotate_vector, &a, dtype);                                                                \
    }
HD_ROWS_KERNELS(ROTATE_KERNEL, norm_rotate)

int hd_heads_norm_rotate(const hd_device_heads *of, void *dst, const void *src, void *stream)
{
    if (!hd_heads_are_right(of)) {
        return (int)cudaErrorInvalidValue;
    }
    rotate_args a = {hd_heads_of(of, dst, hd_heads_blocks(of)), (char *)dst, (const char *)src,
                     of->to_stride > 0 ? of->to_stride - of->row_stride : 0};
    a.of.is_whole = a.of.is_whole && hd_is_aligned(src) && a.farther % 8 == 0;
    HD_ROWS_LAUNCH_OF(norm_rotate, of->dtype, hd_heads_sets(of) * hd_heads_blocks(of), &a, stream);
}

int hd_heads_load(void)
{
    const void *const kernel[] = {HD_ROWS_ADDRESSES(norm_rotate)};
    return hd_load_kernels(kernel, (int)(sizeof kernel / sizeof kernel[0]));
}
