/* Vectors of heads, as kernels are given them. */
#ifndef HD_CUDA_HEADS_H
#define HD_CUDA_HEADS_H

#include "kernels/cuda/rows.h"

/* Lanes beside one another that share a vector, piece by piece in turn; vectors that a block has at a time; and the
 * most pieces that a lane gets. More lanes would have nothing to do at the end of most vectors. */
enum { HD_HEADS_LANES = 4, HD_HEADS_OF_BLOCK = HD_ROWS_THREADS / HD_HEADS_LANES, HD_HEADS_MOST_PIECES = 8 };

HD_DEV int hd_heads_pieces(heddle_dtype dtype)
{
    return HD_DEVICE_MOST_WIDTH / HD_HEADS_LANES / hd_piece_elems(dtype);
}

typedef struct hd_heads_args {
    uint32_t vectors; /* of a set */
    int32_t d;
    hd_divisor heads, inner, extent;
    int64_t row_stride;
    const float *weight[2], *cos_sin; /* of each set */
    int64_t second_at;
    float inverse_d;
    int is_whole, is_whole_vector;
    uint32_t blocks; /* of a set: those of the second come behind those of the first */
} hd_heads_args;

/* What a block has: vectors of one set, as the only ones of its launch would be. */
typedef struct hd_heads_set {
    int which;
    uint32_t block; /* of `blocks` */
    int64_t at;     /* element of a row */
    const float *weight;
} hd_heads_set;

HD_DEV hd_heads_set hd_heads_set_of(const hd_heads_args *of)
{
    hd_heads_set set;
    set.which = HD_BLOCK >= of->blocks;
    set.block = HD_BLOCK - (set.which ? of->blocks : 0);
    set.at = set.which ? of->second_at : 0;
    set.weight = set.which ? of->weight[1] : of->weight[0];
    return set;
}

/* Where vector n, which is of that row, begins, in elements. */
HD_DEV int64_t hd_heads_at(const hd_heads_args *of, uint32_t row, uint32_t n)
{
    return (int64_t)row * of->row_stride + (int64_t)(n - row * of->heads.d) * of->d;
}

HD_DEV uint32_t hd_heads_position(const hd_heads_args *of, uint32_t row)
{
    const uint32_t at = hd_divide(&of->inner, row);
    return at - hd_divide(&of->extent, at) * of->extent.d;
}

typedef struct hd_heads_place {
    int64_t begin; /* of the vector, bytes */
    int64_t row;
    uint32_t position; /* by whose angles it turns */
    int32_t d;         /* its elements; 0: it is not there */
} hd_heads_place;

HD_DEV hd_heads_place hd_heads_place_of(const hd_heads_args *of, const hd_heads_set *set, uint32_t n,
                                        heddle_dtype dtype)
{
    const uint32_t row = hd_divide(&of->heads, n);
    hd_heads_place p;
    p.row = row;
    p.begin = (set->at + hd_heads_at(of, row, n)) * hd_elem_bytes(dtype);
    p.position = of->cos_sin != 0 ? hd_heads_position(of, row) : 0;
    p.d = n < of->vectors ? of->d : 0;
    return p;
}

/* Where piece m of this lane begins. */
HD_DEV int32_t hd_heads_piece_at(int m, heddle_dtype dtype)
{
    return ((int32_t)(HD_LANE % HD_HEADS_LANES) + m * HD_HEADS_LANES) * hd_piece_elems(dtype);
}

HD_DEV void hd_heads_take(hd_lane_piece *out, const char *all, const hd_heads_place *place, heddle_dtype dtype,
                          int is_whole)
{
    HD_UNROLL
    for (int m = 0; m < hd_heads_pieces(dtype); m++) {
        const int32_t at = hd_heads_piece_at(m, dtype);
        if (at < place->d && is_whole) {
            out[m].whole = hd_load_near_16(all + place->begin + (int64_t)at * hd_elem_bytes(dtype));
        } else if (at < place->d) {
            out[m] = hd_piece_load(all + place->begin, at, place->d - at, dtype, 0);
        }
    }
}

/* Over a vector, of what its pieces gave: halves of them onto one another, so in an order that no lane matters for. */
HD_DEV float hd_heads_sum(float *of, heddle_dtype dtype)
{
    HD_UNROLL
    for (int half = hd_heads_pieces(dtype) / 2; half > 0; half /= 2) {
        HD_UNROLL
        for (int m = 0; m < half; m++) {
            of[m] = of[m] + of[m + half];
        }
    }
    return hd_group_sum(of[0], HD_HEADS_LANES);
}

/* 1 / deviation of a vector from 0. */
HD_DEV float hd_heads_inverse(const hd_heads_args *of, const hd_lane_piece *x, const hd_heads_place *place,
                              heddle_dtype dtype)
{
    float squares[HD_HEADS_MOST_PIECES];
    HD_UNROLL
    for (int m = 0; m < hd_heads_pieces(dtype); m++) {
        squares[m] = 0;
        if (hd_heads_piece_at(m, dtype) < place->d) {
            HD_UNROLL
            for (int i = 0; i < hd_piece_elems(dtype); i++) {
                const float value = hd_piece_get(&x[m], i, dtype);
                squares[m] = hd_fma(value, value, squares[m]);
            }
        }
    }
    return hd_rsqrt(hd_fma(hd_heads_sum(squares, dtype), of->inverse_d, HD_ROWS_EPSILON));
}

/* Pairs by the angles of a position, or back (sign -1). */
HD_DEV void hd_heads_turn(float *value, const hd_heads_args *of, uint32_t position, int32_t at, int per, int is_whole,
                          float sign)
{
    float turn[HD_PIECE_MOST];
    hd_floats_load(turn, of->cos_sin + (int64_t)position * of->d + at, of->d - at, per, is_whole);
    HD_UNROLL
    for (int i = 0; i < per; i += 2) {
        const float a = value[i], b = value[i + 1], c = turn[i], s = hd_mul(sign, turn[i + 1]);
        value[i] = hd_fma(a, c, -hd_mul(b, s));
        value[i + 1] = hd_fma(a, s, hd_mul(b, c));
    }
}

static inline int hd_heads_are_right(const hd_device_heads *of)
{
    const int is_float = of->dtype == HEDDLE_F32 || of->dtype == HEDDLE_BF16 || of->dtype == HEDDLE_F16;
    return is_float && of->rows >= 0 && of->heads >= 1 && of->rows <= INT32_MAX / of->heads && of->d >= 2 &&
           of->d % 2 == 0 && of->d <= HD_DEVICE_MOST_WIDTH && (of->second_weight == NULL || of->weight != NULL) &&
           (of->cos_sin == NULL ||
            (of->inner >= 1 && of->inner <= INT32_MAX && of->extent >= 1 && of->extent <= INT32_MAX));
}

/* Blocks that each have as many vectors as they have room for, of a set. */
static inline unsigned hd_heads_blocks(const hd_device_heads *of)
{
    return (unsigned)((of->rows * of->heads + HD_HEADS_OF_BLOCK - 1) / HD_HEADS_OF_BLOCK);
}

static inline hd_heads_args hd_heads_of(const hd_device_heads *of, const void *x, unsigned blocks)
{
    const int64_t per = of->dtype == HEDDLE_F32 ? 4 : 8;
    hd_heads_args a;
    a.vectors = (uint32_t)(of->rows * of->heads);
    a.d = (int32_t)of->d;
    a.heads = hd_divisor_of(of->heads);
    a.inner = hd_divisor_of(of->cos_sin != NULL ? of->inner : 1);
    a.extent = hd_divisor_of(of->cos_sin != NULL ? of->extent : 1);
    a.row_stride = of->row_stride;
    a.weight[0] = of->weight;
    a.weight[1] = of->second_weight;
    a.cos_sin = of->cos_sin;
    a.second_at = of->second_at;
    a.inverse_d = 1.0f / (float)of->d;
    a.is_whole = of->d % per == 0 && (of->row_stride | of->second_at) % per == 0 && hd_is_aligned(x);
    a.is_whole_vector =
        of->d % per == 0 && hd_is_aligned(of->weight) && hd_is_aligned(of->second_weight) && hd_is_aligned(of->cos_sin);
    a.blocks = blocks;
    return a;
}

static inline unsigned hd_heads_sets(const hd_device_heads *of)
{
    return of->second_at > 0 ? 2 : 1;
}

#endif
