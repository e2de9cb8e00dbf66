/* The norm of heads behind linear attention, and its gradient. Lanes beside one another share a head, one piece each; a
 * sum over it has the order of its pieces. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/rows.h"

/* Of a head of at most HD_DEVICE_MOST_WIDTH elements. */
#define LANES(dtype) ((dtype) == HEDDLE_F32 ? 32 : 16)

typedef struct norm_args {
    hd_device_head_norm of;
    uint32_t heads; /* of all rows */
    int32_t d;
    int dy_is_f32, is_whole;
} norm_args;

HD_DEV float dot(const float *x, const float *y, int per, int lanes)
{
    float sum = 0;
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        sum = hd_fma(x[i], y[i], sum);
    }
    return hd_group_sum(sum, (unsigned)lanes);
}

/* A lane's numbers of a head, zeros behind its end. */
HD_DEV void take(float *out, const void *all, const norm_args *a, uint32_t n, int32_t at, heddle_dtype dtype,
                 int is_f32)
{
    const int per = hd_piece_elems(dtype);
    const char *head = (const char *)all + (int64_t)n * a->d * (is_f32 ? 4 : hd_elem_bytes(dtype));
    HD_UNROLL
    for (int i = 0; i < per; i++) {
        out[i] = 0;
    }
    if (n < a->heads && at < a->d) {
        hd_values_load_either(out, head, at, a->d - at, dtype, is_f32, a->is_whole);
    }
}

HD_DEV void norm_head(const norm_args *a, uint32_t n, heddle_dtype dtype)
{
    const int per = hd_piece_elems(dtype), lanes = LANES(dtype);
    const int32_t at = (int32_t)(HD_LANE % (unsigned)lanes) * per;
    const float d = (float)a->d;
    float x[HD_PIECE_MOST];
    take(x, a->of.x, a, n, at, dtype, 1);
    const float factor = 1.0f / sqrtf(dot(x, x, per, lanes) / d + hd_mul(HD_ROWS_EPSILON, d));
    if (n < a->heads && at < a->d) {
        HD_UNROLL
        for (int i = 0; i < per; i++) {
            x[i] = hd_mul(x[i], factor);
        }
        hd_values_store((char *)a->of.y + (int64_t)n * a->d * hd_elem_bytes(dtype), x, at, a->d - at, per, dtype,
                        a->is_whole);
        if (a->of.factors != 0 && at == 0) {
            hd_store_4(a->of.factors + n, hd_f32_bits(factor));
        }
    }
}

HD_DEV void norm_head_back(const norm_args *a, uint32_t n, heddle_dtype dtype)
{
    const int per = hd_piece_elems(dtype), lanes = LANES(dtype);
    const int32_t at = (int32_t)(HD_LANE % (unsigned)lanes) * per;
    float y[HD_PIECE_MOST], dy[HD_PIECE_MOST];
    take(y, a->of.y, a, n, at, dtype, 0);
    take(dy, a->of.dy, a, n, at, dtype, a->dy_is_f32);
    const float mean = dot(dy, y, per, lanes) / (float)a->d;
    if (n < a->heads && at < a->d) {
        const float factor = hd_f32_from_bits(hd_load_4(a->of.factors + n));
        HD_UNROLL
        for (int i = 0; i < per; i++) {
            dy[i] = hd_mul(hd_fma(-y[i], mean, dy[i]), factor);
        }
        hd_values_store((char *)a->of.x + (int64_t)n * a->d * 4, dy, at, a->d - at, per, HEDDLE_F32, a->is_whole);
    }
}

HD_DEV void each_head(const norm_args *a, heddle_dtype dtype, int is_back)
{
    const unsigned lanes = LANES(dtype), groups = HD_THREADS / lanes;
    const uint32_t step = HD_BLOCKS * groups, first = HD_BLOCK * groups + HD_THREAD / lanes;
    /* as many turns for all: the lanes of a warp come to its sums together */
    for (uint32_t turn = 0; turn < (a->heads + step - 1) / step; turn++) {
        if (is_back) {
            norm_head_back(a, first + turn * step, dtype);
        } else {
            norm_head(a, first + turn * step, dtype);
        }
    }
}

#define NORM_KERNEL(name, dtype)                                                                                       \
    HD_KERNEL(name, norm_args, a)                                                                                      \
    {                                                                                                                  \
        each_head(&a, dtype, 0);                                                                                       \
    }
#define NORM_BACK_KERNEL(name, dtype)                                                                                  \
    HD_KERNEL(name, norm_args, a)                                                                                      \
    {                                                                                                                  \
        each_head(&a, dtype, 1);                                                                                       \
    }
HD_ROWS_KERNELS(NORM_KERNEL, head_norm)
HD_ROWS_KERNELS(NORM_BACK_KERNEL, head_norm_back)

/* 0: it is not right. */
static unsigned take_args(norm_args *a, const hd_device_head_norm *of)
{
    const int is_float = of->dtype == HEDDLE_F32 || of->dtype == HEDDLE_BF16 || of->dtype == HEDDLE_F16;
    const int64_t groups = HD_ROWS_THREADS / LANES(of->dtype);
    if (!is_float || of->rows < 0 || of->heads < 1 ||
        of->rows > (INT32_MAX - groups * HD_ROWS_MOST_BLOCKS) / of->heads || of->d < 1 ||
        of->d > HD_DEVICE_MOST_WIDTH || (of->dy != NULL && of->dy_dtype != of->dtype && of->dy_dtype != HEDDLE_F32)) {
        return 0;
    }
    a->of = *of;
    a->heads = (uint32_t)(of->rows * of->heads);
    a->d = (int32_t)of->d;
    a->dy_is_f32 = of->dy_dtype == HEDDLE_F32;
    a->is_whole = of->d % (of->dtype == HEDDLE_F32 ? 4 : 8) == 0 && hd_is_aligned(of->x) && hd_is_aligned(of->y) &&
                  hd_is_aligned(of->dy);
    const int64_t blocks = (of->rows * of->heads + groups - 1) / groups;
    return (unsigned)(blocks < HD_ROWS_MOST_BLOCKS ? blocks + (blocks == 0) : (int64_t)HD_ROWS_MOST_BLOCKS);
}

int hd_head_norm(const hd_device_head_norm *of, void *stream)
{
    norm_args a;
    const unsigned blocks = take_args(&a, of);
    if (blocks == 0) {
        return (int)cudaErrorInvalidValue;
    }
    HD_ROWS_LAUNCH_OF(head_norm, of->dtype, of->rows > 0 ? blocks : 0, &a, stream);
}

int hd_head_norm_back(const hd_device_head_norm *of, void *stream)
{
    norm_args a;
    const unsigned blocks = take_args(&a, of);
    if (blocks == 0) {
        return (int)cudaErrorInvalidValue;
    }
    HD_ROWS_LAUNCH_OF(head_norm_back, of->dtype, of->rows > 0 ? blocks : 0, &a, stream);
}

int hd_head_norm_load(void)
{
    const void *const kernel[] = {HD_ROWS_ADDRESSES(head_norm), HD_ROWS_ADDRESSES(head_norm_back)};
    return hd_load_kernels(kernel, (int)(sizeof kernel / sizeof kernel[0]));
}
