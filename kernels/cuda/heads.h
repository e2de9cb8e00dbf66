/* Vectors of heads, as kernels are given them. */
#ifndef HD_CUDA_HEADS_H
#define HD_CUDA_HEADS_H

#include "kernels/cuda/rows.h"

/* Lanes beside one another that share a vector, piece by piece in turn; units of vectors that a block has at a time;
 * and the most pieces that a lane gets. More lanes would have nothing to do at the end of most vectors. */
enum { HD_HEADS_LANES = 4, HD_HEADS_OF_BLOCK = HD_ROWS_THREADS / HD_HEADS_LANES, HD_HEADS_MOST_PIECES = 8 };

HD_DEV int hd_heads_pieces(heddle_dtype dtype)
{
    return HD_DEVICE_MOST_WIDTH / HD_HEADS_LANES / hd_piece_elems(dtype);
}

/* Elements from one piece of a lane to its next one. */
HD_DEV int hd_heads_step(heddle_dtype dtype)
{
    return HD_HEADS_LANES * hd_piece_elems(dtype);
}

typedef struct hd_heads_args {
    uint32_t units; /* of a set: vectors beside one another of a row, as many as lanes have together */
    int32_t d, heads;
    hd_divisor of_row, inner, extent; /* units of a row */
    int64_t row_stride;
    const float *weight[2], *cos_sin; /* of each set */
    int64_t second_at;
    float inverse_d;
    int is_whole, is_whole_vector;
    uint32_t blocks; /* of a set: those of the second come behind those of the first */
} hd_heads_args;

typedef struct hd_heads_rotation {
    hd_heads_args of;
    char *dst;
    const char *src;
    int64_t farther; /* elements that a row of dst lies behind the one before, beyond those of src */
} hd_heads_rotation;

/* What a block has: vectors of one set, as the only ones of its launch would be. */
typedef struct hd_heads_set {
    int which;
    uint32_t block; /* of `blocks` */
    int64_t at;     /* element of a row */
    const float *weight;
} hd_heads_set;

/* Of this lane's first piece. */
HD_DEV int32_t hd_heads_first(heddle_dtype dtype)
{
    return (int32_t)(HD_LANE % HD_HEADS_LANES) * hd_piece_elems(dtype);
}

HD_DEV hd_heads_set hd_heads_set_of(const hd_heads_args *of)
{
    hd_heads_set set;
    set.which = HD_BLOCK >= of->blocks;
    set.block = HD_BLOCK - (set.which ? of->blocks : 0);
    set.at = set.which ? of->second_at : 0;
    set.weight = set.which ? of->weight[1] : of->weight[0];
    return set;
}

HD_DEV uint32_t hd_heads_position(const hd_heads_args *of, uint32_t row)
{
    const uint32_t at = hd_divide(&of->inner, row);
    return at - hd_divide(&of->extent, at) * of->extent.d;
}

/* All from this lane's first piece of the unit's first vector on: its next one lies hd_heads_step elements farther. */
typedef struct hd_heads_place {
    int64_t begin; /* bytes */
    int64_t row;
    const float *angles; /* by which it turns; NULL: by none */
    int32_t left;        /* elements of the vector; 0, or less: there are none */
    int32_t vectors;     /* that are left in the row */
} hd_heads_place;

HD_DEV hd_heads_place hd_heads_place_of(const hd_heads_args *of, const hd_heads_set *set, uint32_t unit, int together,
                                        heddle_dtype dtype)
{
    const uint32_t row = hd_divide(&of->of_row, unit);
    const int32_t head = (int32_t)(unit - row * of->of_row.d) * together, first = hd_heads_first(dtype);
    hd_heads_place p;
    p.row = row;
    p.begin = (set->at + row * of->row_stride + (int64_t)head * of->d + first) * hd_elem_bytes(dtype);
    p.angles = of->cos_sin != 0 ? of->cos_sin + (int64_t)hd_heads_position(of, row) * of->d + first : 0;
    p.left = unit < of->units ? of->d - first : 0;
    p.vectors = of->heads - head;
    return p;
}

/* Pieces of the vector that begins there for this lane. */
HD_DEV void hd_heads_take(hd_lane_piece *out, const char *begin, int32_t left, heddle_dtype dtype, int is_whole)
{
    HD_UNROLL
    for (int m = 0; m < hd_heads_pieces(dtype); m++) {
        const int32_t at = m * hd_heads_step(dtype);
        if (at < left && is_whole) {
            out[m].whole = hd_load_near_16(begin + (int64_t)at * hd_elem_bytes(dtype));
        } else if (at < left) {
            out[m] = hd_piece_load(begin, at, left - at, dtype, 0);
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

HD_DEV float hd_heads_squares(const hd_lane_piece *x, heddle_dtype dtype)
{
    float sum = 0;
    HD_UNROLL
    for (int i = 0; i < hd_piece_elems(dtype); i++) {
        const float value = hd_piece_get(x, i, dtype);
        sum = hd_fma(value, value, sum);
    }
    return sum;
}

/* 1 / deviation of a vector from 0. */
HD_DEV float hd_heads_inverse(const hd_heads_args *of, const hd_lane_piece *x, int32_t left, heddle_dtype dtype)
{
    float squares[HD_HEADS_MOST_PIECES];
    HD_UNROLL
    for (int m = 0; m < hd_heads_pieces(dtype); m++) {
        squares[m] = m * hd_heads_step(dtype) < left ? hd_heads_squares(&x[m], dtype) : 0;
    }
    return hd_rsqrt(hd_fma(hd_heads_sum(squares, dtype), of->inverse_d, HD_ROWS_EPSILON));
}

/* Pairs by their angles, or back. */
HD_DEV void hd_heads_turn(float *value, const float *turn, int per, int is_back)
{
    HD_UNROLL
    for (int i = 0; i < per; i += 2) {
        const float a = value[i], b = value[i + 1], c = turn[i], s = is_back ? -turn[i + 1] : turn[i + 1];
        value[i] = hd_fma(a, c, -hd_mul(b, s));
        value[i + 1] = hd_fma(a, s, hd_mul(b, c));
    }
}

/* A piece of a vector becomes one of the result: by weight and inverse deviation, turned; NULL: by none. */
HD_DEV void hd_heads_rotate(char *to, const hd_lane_piece *p, const float *weight, const float *turn, float inverse,
                            int32_t at, int32_t left, heddle_dtype dtype, int is_whole)
{
    const int per = hd_piece_elems(dtype);
    float value[HD_PIECE_MOST];
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        value[i] = hd_piece_get(p, i, dtype);
        value[i] = weight != 0 ? hd_mul(hd_mul(value[i], inverse), weight[i]) : value[i];
    }
    if (turn != 0) {
        hd_heads_turn(value, turn, per, 0);
    }
    hd_values_store(to, value, at, left - at, per, dtype, is_whole);
}

static inline int hd_heads_are_right(const hd_device_heads *of)
{
    const int is_float = of->dtype == HEDDLE_F32 || of->dtype == HEDDLE_BF16 || of->dtype == HEDDLE_F16;
    return is_float && of->rows >= 0 && of->heads >= 1 && of->rows <= INT32_MAX / of->heads && of->d >= 2 &&
           of->d % 2 == 0 && of->d <= HD_DEVICE_MOST_WIDTH && (of->second_weight == NULL || of->weight != NULL) &&
           (of->cos_sin == NULL ||
            (of->inner >= 1 && of->inner <= INT32_MAX && of->extent >= 1 && of->extent <= INT32_MAX));
}

static inline int64_t hd_heads_units(const hd_device_heads *of, int together)
{
    return of->rows * ((of->heads + together - 1) / together);
}

/* Blocks that each have as many units as they have room for, of a set. */
static inline unsigned hd_heads_blocks(const hd_device_heads *of, int together)
{
    return (unsigned)((hd_heads_units(of, together) + HD_HEADS_OF_BLOCK - 1) / HD_HEADS_OF_BLOCK);
}

static inline hd_heads_args hd_heads_of(const hd_device_heads *of, const void *x, int together, unsigned blocks)
{
    const int64_t per = of->dtype == HEDDLE_F32 ? 4 : 8;
    hd_heads_args a;
    a.units = (uint32_t)hd_heads_units(of, together);
    a.d = (int32_t)of->d;
    a.heads = (int32_t)of->heads;
    a.of_row = hd_divisor_of((of->heads + together - 1) / together);
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

#ifdef __cplusplus
extern "C" {
#endif
/* heads_pair.cu: where whole pieces of 16 bits of an even number of heads of q and of k turn. */
int hd_heads_are_pairs(const hd_device_heads *of, const hd_heads_args *a);
int hd_heads_pairs_rotate(const hd_device_heads *of, const hd_heads_rotation *rotation, void *stream);
int hd_heads_pairs_load(void);
#ifdef __cplusplus
}
#endif

static inline unsigned hd_heads_sets(const hd_device_heads *of)
{
    return of->second_at > 0 ? 2 : 1;
}

#endif
