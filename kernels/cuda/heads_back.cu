/* Gradients of heads.cu: back by the angles, then through the norm. */
#include "kernels/cuda/columns.h"
#include "kernels/cuda/heads.h"
#include "kernels/cuda/kernels.h"

enum { MOST_PARTS = 4096 };

typedef struct rotate_back_args {
    hd_heads_args of;
    char *dy;
    const char *src; /* may be NULL without weight */
    float *part;     /* [blocks][d] */
} rotate_back_args;

typedef struct rotate_back_memory {
    float sum[HD_ROWS_THREADS][HD_PIECE_MOST];
} rotate_back_memory;

/* n = x / rms, dweight += dy n, dx = (dy w - n mean(dy w n)) / rms; what a lane has of it. */
HD_DEV void rms_back(float *g, float *dweight, const float *x, const float *weight, const hd_heads_args *of,
                     heddle_dtype dtype)
{
    const int per = hd_piece_elems(dtype);
    float n[HD_PIECE_MOST], squares = 0, along = 0;
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        squares = hd_fma(x[i], x[i], squares);
    }
    const float inverse = hd_heads_inverse(of, hd_group_sum(squares, HD_HEADS_LANES(dtype)));
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        n[i] = hd_mul(x[i], inverse);
        dweight[i] = hd_fma(g[i], n[i], dweight[i]);
        g[i] = hd_mul(g[i], weight[i]);
        along = hd_fma(g[i], n[i], along);
    }
    along = hd_mul(hd_group_sum(along, HD_HEADS_LANES(dtype)), of->inverse_d);
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        g[i] = hd_mul(hd_fma(-n[i], along, g[i]), inverse);
    }
}

HD_DEV void vector_back(const rotate_back_args *a, float *dweight, const float *weight, const hd_heads_place *at,
                        const hd_lane_piece *dy, const hd_lane_piece *src, heddle_dtype dtype, int is_whole)
{
    const int per = hd_piece_elems(dtype), is_there = at->left > 0;
    float g[HD_PIECE_MOST], x[HD_PIECE_MOST];
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        g[i] = is_there ? hd_piece_get(dy, i, dtype) : 0;
        x[i] = is_there && a->of.weight != 0 ? hd_piece_get(src, i, dtype) : 0;
    }
    if (is_there && a->of.cos_sin != 0) {
        hd_heads_turn(g, &a->of, at, per, is_whole, -1);
    }
    if (a->of.weight != 0) {
        rms_back(g, dweight, x, weight, &a->of, dtype);
    }
    if (is_there) {
        hd_values_store(a->dy + at->begin, g, at->at, at->left, per, dtype, is_whole);
    }
}

/* The block's groups in their order. */
HD_DEV void store_part(const rotate_back_args *a, const float *dweight, heddle_dtype dtype)
{
    const unsigned per = (unsigned)hd_piece_elems(dtype), lanes = HD_HEADS_LANES(dtype);
    HD_SHARED(rotate_back_memory, memory);
    for (unsigned i = 0; i < per; i++) {
        memory->sum[HD_THREAD][i] = dweight[i];
    }
    hd_sync();
    for (unsigned i = 0; i < per && HD_THREAD < lanes && HD_THREAD * per + i < (unsigned)a->of.d; i++) {
        float sum = memory->sum[HD_THREAD][i];
        for (unsigned other = HD_THREAD + lanes; other < HD_THREADS; other += lanes) {
            sum = sum + memory->sum[other][i];
        }
        hd_store_4(a->part + (int64_t)HD_BLOCK * a->of.d + HD_THREAD * per + i, hd_f32_bits(sum));
    }
}

HD_DEV void heads_back(const rotate_back_args *a, heddle_dtype dtype, int is_whole)
{
    const uint32_t batch = hd_heads_groups(dtype) * HD_HEADS_AT_ONCE;
    float dweight[HD_PIECE_MOST] = {0}, weight[HD_PIECE_MOST] = {0};
    hd_heads_weights(weight, &a->of, dtype, is_whole);
    for (uint32_t first = HD_BLOCK * batch; first < a->of.vectors; first += HD_BLOCKS * batch) {
        hd_heads_place at[HD_HEADS_AT_ONCE];
        hd_lane_piece dy[HD_HEADS_AT_ONCE], src[HD_HEADS_AT_ONCE];
        HD_UNROLL
        for (int u = 0; u < HD_HEADS_AT_ONCE; u++) {
            at[u] = hd_heads_place_of(&a->of, first, u, dtype);
            if (at[u].left > 0) {
                dy[u] = hd_piece_load(a->dy + at[u].begin, at[u].at, at[u].left, dtype, is_whole);
            }
            if (at[u].left > 0 && a->of.weight != 0) {
                src[u] = hd_piece_load(a->src + at[u].begin, at[u].at, at[u].left, dtype, is_whole);
            }
        }
        HD_UNROLL
        for (int u = 0; u < HD_HEADS_AT_ONCE; u++) {
            vector_back(a, dweight, weight, &at[u], &dy[u], &src[u], dtype, is_whole);
        }
    }
    if (a->of.weight != 0) {
        store_part(a, dweight, dtype);
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
    const unsigned blocks = hd_heads_blocks(of);
    return blocks < MOST_PARTS ? blocks : (unsigned)MOST_PARTS;
}

size_t hd_heads_back_bytes(const hd_device_heads *of)
{
    return hd_heads_are_right(of) && of->weight != NULL ? (size_t)parts_of(of) * (size_t)of->d * 4 : 0;
}

static int back_stage(const hd_device_heads *of, void *dy, const void *src, void *scratch, void *stream)
{
    rotate_back_args a = {hd_heads_of(of, dy), (char *)dy, (const char *)src, (float *)scratch};
    a.of.is_whole = a.of.is_whole && hd_is_aligned(src);
    HD_ROWS_LAUNCH_OF(norm_rotate_back, of->dtype, parts_of(of), &a, stream);
}

int hd_heads_norm_rotate_back(const hd_device_heads *of, void *dy, const void *src, float *dweight, void *scratch,
                              void *stream)
{
    float *const to[2] = {dweight, NULL};
    if (!hd_heads_are_right(of)) {
        return (int)cudaErrorInvalidValue;
    }
    const int error = back_stage(of, dy, src, scratch, stream);
    if (error != 0 || of->weight == NULL || of->rows == 0) {
        return error;
    }
    return hd_columns_add_parts((float *)scratch, 1, parts_of(of), 1, of->d, to, 0, stream);
}

int hd_heads_back_load(void)
{
    const void *const kernel[] = {HD_ROWS_ADDRESSES(norm_rotate_back)};
    return hd_load_kernels(kernel, (int)(sizeof kernel / sizeof kernel[0]));
}
