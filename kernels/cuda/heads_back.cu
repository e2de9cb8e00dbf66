/* Gradients of heads.cu: back by the angles, then through the norm. */
#include "kernels/cuda/columns.h"
#include "kernels/cuda/heads.h"
#include "kernels/cuda/kernels.h"

enum { MOST_PARTS = 4096 };

typedef struct rotate_back_args {
    hd_heads_args of;
    char *dy;
    const char *src; /* may be NULL without weight */
    float *part;     /* [blocks of a set][sets][d] */
    int64_t sets;
} rotate_back_args;

typedef struct rotate_back_memory {
    float sum[HD_ROWS_WARPS][HD_DEVICE_MOST_WIDTH];
} rotate_back_memory;

/* What a lane has of its pieces of a vector. */
typedef struct rotate_back_lane {
    hd_lane_piece dy[HD_HEADS_MOST_PIECES], x[HD_HEADS_MOST_PIECES];
} rotate_back_lane;

typedef float rotate_back_sums[HD_HEADS_MOST_PIECES][HD_PIECE_MOST];

/* dy of a piece as it was before the turn. */
HD_DEV void turned_back(float *g, const hd_heads_place *place, const hd_lane_piece *dy, int32_t at, heddle_dtype dtype,
                        int is_whole)
{
    const int per = hd_piece_elems(dtype);
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        g[i] = hd_piece_get(dy, i, dtype);
    }
    if (place->angles != 0) {
        float turn[HD_PIECE_MOST];
        hd_floats_load(turn, place->angles + at, place->left - at, per, is_whole);
        hd_heads_turn(g, turn, per, 1);
    }
}

/* n = x / rms, dweight += dy n, dx = (dy w - n mean(dy w n)) / rms. */
HD_DEV void normed_back(const rotate_back_args *a, const float *weights, const hd_heads_place *place,
                        const rotate_back_lane *lane, rotate_back_sums dweight, heddle_dtype dtype, int is_whole)
{
    const int per = hd_piece_elems(dtype);
    const float inverse = hd_heads_inverse(&a->of, lane->x, place->left, dtype);
    float along[HD_HEADS_MOST_PIECES] = {0};
    rotate_back_sums g;
    HD_UNROLL
    for (int m = 0; m < hd_heads_pieces(dtype); m++) {
        const int32_t at = m * hd_heads_step(dtype);
        if (at < place->left) {
            float weight[HD_PIECE_MOST];
            turned_back(g[m], place, &lane->dy[m], at, dtype, is_whole);
            hd_floats_load(weight, weights + at, place->left - at, per, is_whole);
            HD_UNROLL
            for (int i = 0; i < per; i++) {
                const float n = hd_mul(hd_piece_get(&lane->x[m], i, dtype), inverse);
                dweight[m][i] = hd_fma(g[m][i], n, dweight[m][i]);
                g[m][i] = hd_mul(g[m][i], weight[i]);
                along[m] = hd_fma(g[m][i], n, along[m]);
            }
        }
    }
    const float mean = hd_mul(hd_heads_sum(along, dtype), a->of.inverse_d);
    HD_UNROLL
    for (int m = 0; m < hd_heads_pieces(dtype); m++) {
        const int32_t at = m * hd_heads_step(dtype);
        if (at < place->left) {
            HD_UNROLL
            for (int i = 0; i < per; i++) {
                const float n = hd_mul(hd_piece_get(&lane->x[m], i, dtype), inverse);
                g[m][i] = hd_mul(hd_fma(-n, mean, g[m][i]), inverse);
            }
            hd_values_store(a->dy + place->begin, g[m], at, place->left - at, per, dtype, is_whole);
        }
    }
}

/* Of vectors that have angles only. */
HD_DEV void rotated_back(const rotate_back_args *a, const hd_heads_place *place, const rotate_back_lane *lane,
                         heddle_dtype dtype, int is_whole)
{
    HD_UNROLL
    for (int m = 0; m < hd_heads_pieces(dtype); m++) {
        const int32_t at = m * hd_heads_step(dtype);
        if (at < place->left) {
            float g[HD_PIECE_MOST];
            turned_back(g, place, &lane->dy[m], at, dtype, is_whole);
            hd_values_store(a->dy + place->begin, g, at, place->left - at, hd_piece_elems(dtype), dtype, is_whole);
        }
    }
}

/* Of the block: its warps in their order, and in each the vectors that lanes had. */
HD_DEV void store_part(const rotate_back_args *a, const hd_heads_set *set, rotate_back_sums dweight, heddle_dtype dtype)
{
    const int per = hd_piece_elems(dtype);
    HD_SHARED(rotate_back_memory, memory);
    HD_UNROLL
    for (int m = 0; m < hd_heads_pieces(dtype); m++) {
        HD_UNROLL
        for (int i = 0; i < per; i++) {
            float sum = dweight[m][i];
            HD_UNROLL
            for (unsigned mask = 16; mask >= HD_HEADS_LANES; mask /= 2) {
                sum = sum + hd_shuffle_xor(sum, mask);
            }
            if (HD_LANE < HD_HEADS_LANES) {
                memory->sum[HD_WARP][hd_heads_first(dtype) + m * hd_heads_step(dtype) + i] = sum;
            }
        }
    }
    hd_sync();
    if (HD_THREAD < (unsigned)a->of.d) {
        float sum = memory->sum[0][HD_THREAD];
        for (int warp = 1; warp < HD_ROWS_WARPS; warp++) {
            sum = sum + memory->sum[warp][HD_THREAD];
        }
        hd_store_4(a->part + (set->block * a->sets + set->which) * a->of.d + HD_THREAD, hd_f32_bits(sum));
    }
}

HD_DEV void heads_back(const rotate_back_args *a, heddle_dtype dtype, int is_whole)
{
    const hd_heads_set set = hd_heads_set_of(&a->of);
    const uint32_t step = a->of.blocks * HD_HEADS_OF_BLOCK;
    rotate_back_sums dweight = {{0}};
    /* as many turns for all of a block: the lanes of a warp come to its sums together */
    for (uint32_t first = set.block * HD_HEADS_OF_BLOCK; first < a->of.units; first += step) {
        const hd_heads_place place = hd_heads_place_of(&a->of, &set, first + HD_THREAD / HD_HEADS_LANES, 1, dtype);
        rotate_back_lane lane;
        hd_heads_take(lane.dy, a->dy + place.begin, place.left, dtype, is_whole);
        if (set.weight != 0) {
            hd_heads_take(lane.x, a->src + place.begin, place.left, dtype, is_whole);
            normed_back(a, set.weight + hd_heads_first(dtype), &place, &lane, dweight, dtype, is_whole);
        } else {
            rotated_back(a, &place, &lane, dtype, is_whole);
        }
    }
    if (set.weight != 0) {
        store_part(a, &set, dweight, dtype);
    }
}

#define ROTATE_BACK_KERNEL(name, dtype)                                                                                \
    HD_KERNEL(name, rotate_back_args, a)                                                                               \
    {                                                                                                                  \
        HD_ROWS_EITHER(a.of, heads_back, &a, dtype);                                                                   \
    }
HD_ROWS_KERNELS(ROTATE_BACK_KERNEL, norm_rotate_back)

static unsigned parts_of(const hd_device_heads *of)
{
    const unsigned blocks = hd_heads_blocks(of, 1);
    return blocks < MOST_PARTS ? blocks : (unsigned)MOST_PARTS;
}

size_t hd_heads_back_bytes(const hd_device_heads *of)
{
    return hd_heads_are_right(of) && of->weight != NULL ? (size_t)parts_of(of) * hd_heads_sets(of) * (size_t)of->d * 4
                                                        : 0;
}

static int back_stage(const hd_device_heads *of, void *dy, const void *src, void *scratch, void *stream)
{
    rotate_back_args a = {hd_heads_of(of, dy, 1, parts_of(of)), (char *)dy, (const char *)src, (float *)scratch,
                          (int64_t)hd_heads_sets(of)};
    a.of.is_whole = a.of.is_whole && hd_is_aligned(src);
    HD_ROWS_LAUNCH_OF(norm_rotate_back, of->dtype, hd_heads_sets(of) * parts_of(of), &a, stream);
}

int hd_heads_norm_rotate_back(const hd_device_heads *of, void *dy, const void *src, float *const dweight[2],
                              void *scratch, void *stream)
{
    if (!hd_heads_are_right(of)) {
        return (int)cudaErrorInvalidValue;
    }
    const int error = back_stage(of, dy, src, scratch, stream);
    if (error != 0 || of->weight == NULL || of->rows == 0) {
        return error;
    }
    return hd_columns_add_parts((float *)scratch, 1, parts_of(of), hd_heads_sets(of), of->d, dweight, 0, stream);
}

int hd_heads_back_load(void)
{
    const void *const kernel[] = {HD_ROWS_ADDRESSES(norm_rotate_back)};
    return hd_load_kernels(kernel, (int)(sizeof kernel / sizeof kernel[0]));
}
