/* Vectors of heads: root-mean-square norm, rotation of pairs. Lanes beside one another share a vector; a sum over it
 * has the order of its pieces. Weights and angles take as many instructions and loads as the vector itself: so lanes
 * have two heads of a row together, which have the same ones. q and k together: heads_pair.cu, where it can. */
#include "kernels/cuda/heads.h"
#include "kernels/cuda/kernels.h"

enum { MOST_TOGETHER = 2 };

/* Vectors that lanes have at a time: those of f32 would take too many registers. */
#define TOGETHER(dtype) ((dtype) == HEDDLE_F32 ? 1 : MOST_TOGETHER)

/* What it has is constant where it is called of whole pieces. */
HD_DEV void rotate_unit(const hd_heads_rotation *a, const float *weights, const hd_heads_place *place, int has_weight,
                        int has_angles, heddle_dtype dtype, int is_whole)
{
    const int per = hd_piece_elems(dtype);
    const int64_t vector = (int64_t)a->of.d * hd_elem_bytes(dtype);
    char *to = a->dst + place->begin + place->row * a->farther * hd_elem_bytes(dtype);
    hd_lane_piece p[MOST_TOGETHER][HD_HEADS_MOST_PIECES];
    float inverse[MOST_TOGETHER];
    HD_UNROLL
    for (int j = 0; j < TOGETHER(dtype); j++) {
        hd_heads_take(p[j], a->src + place->begin + j * vector, j < place->vectors ? place->left : 0, dtype, is_whole);
    }
    HD_UNROLL
    for (int j = 0; j < TOGETHER(dtype) && has_weight; j++) {
        inverse[j] = hd_heads_inverse(&a->of, p[j], j < place->vectors ? place->left : 0, dtype);
    }
    HD_UNROLL
    for (int m = 0; m < hd_heads_pieces(dtype); m++) {
        const int32_t at = m * hd_heads_step(dtype);
        float weight[HD_PIECE_MOST] = {0}, turn[HD_PIECE_MOST] = {0};
        if (at < place->left) {
            if (has_weight) {
                hd_floats_load(weight, weights + hd_heads_first(dtype) + at, place->left - at, per, is_whole);
            }
            if (has_angles) {
                hd_floats_load(turn, place->angles + at, place->left - at, per, is_whole);
            }
            HD_UNROLL
            for (int j = 0; j < TOGETHER(dtype); j++) {
                if (j < place->vectors) {
                    hd_heads_rotate(to + j * vector, &p[j][m], has_weight ? weight : 0, has_angles ? turn : 0,
                                    has_weight ? inverse[j] : 1.0f, at, place->left, dtype, is_whole);
                }
            }
        }
    }
}

HD_DEV void rotate_vectors(const hd_heads_rotation *a, heddle_dtype dtype, int is_whole)
{
    const hd_heads_set set = hd_heads_set_of(&a->of);
    const uint32_t unit = set.block * HD_HEADS_OF_BLOCK + HD_THREAD / HD_HEADS_LANES;
    const hd_heads_place place = hd_heads_place_of(&a->of, &set, unit, TOGETHER(dtype), dtype);
    const int has_weight = set.weight != 0, has_angles = a->of.cos_sin != 0;
    if (!is_whole || !(has_weight || has_angles)) {
        rotate_unit(a, set.weight, &place, has_weight, has_angles, dtype, 0);
    } else if (has_weight && has_angles) {
        rotate_unit(a, set.weight, &place, 1, 1, dtype, 1);
    } else if (has_weight) {
        rotate_unit(a, set.weight, &place, 1, 0, dtype, 1);
    } else {
        rotate_unit(a, set.weight, &place, 0, 1, dtype, 1);
    }
}

#define ROTATE_KERNEL(name, dtype)                                                                                     \
    HD_KERNEL(name, hd_heads_rotation, a)                                                                              \
    {                                                                                                                  \
        HD_ROWS_EITHER(a.of, rotate_vectors, &a, dtype);                                                               \
    }
HD_ROWS_KERNELS(ROTATE_KERNEL, norm_rotate)

int hd_heads_norm_rotate(const hd_device_heads *of, void *dst, const void *src, void *stream)
{
    if (!hd_heads_are_right(of)) {
        return (int)cudaErrorInvalidValue;
    }
    const unsigned blocks = hd_heads_blocks(of, TOGETHER(of->dtype));
    hd_heads_rotation a = {hd_heads_of(of, dst, TOGETHER(of->dtype), blocks), (char *)dst, (const char *)src,
                           of->to_stride > 0 ? of->to_stride - of->row_stride : 0};
    a.of.is_whole = a.of.is_whole && hd_is_aligned(src) && a.farther % 8 == 0;
    if (hd_heads_are_pairs(of, &a.of)) {
        return hd_heads_pairs_rotate(of, &a, stream);
    }
    HD_ROWS_LAUNCH_OF(norm_rotate, of->dtype, hd_heads_sets(of) * blocks, &a, stream);
}

int hd_heads_load(void)
{
    const void *const kernel[] = {HD_ROWS_ADDRESSES(norm_rotate)};
    const int error = hd_load_kernels(kernel, (int)(sizeof kernel / sizeof kernel[0]));
    return error != 0 ? error : hd_heads_pairs_load();
}
