/* What kernels of rows are given, and what their launchers share. */
#ifndef HD_CUDA_ROWS_H
#define HD_CUDA_ROWS_H

#include "kernels/block_numbers.h"
#include "kernels/cuda/divide.h"
#include "kernels/cuda/piece.h"
#include "kernels/device_rows.h"

/* gelu(x) = x / (1 + 2^(x (EXPONENT + EXPONENT_CUBIC x^2))). */
#define HD_ROWS_EPSILON ((float)HD_NORM_EPSILON)
#define HD_GELU_EXPONENT (-2.0f * 1.4426950408889634f * HD_GELU_SLOPE)
#define HD_GELU_EXPONENT_CUBIC (HD_GELU_EXPONENT * HD_GELU_CUBIC)

enum { HD_ROWS_THREADS = 128, HD_ROWS_WARPS = HD_ROWS_THREADS / 32, HD_ROWS_MOST_BLOCKS = 4096 };

typedef struct hd_rows_args {
    uint32_t rows;
    int32_t c;
    hd_divisor sample_rows; /* d 0: one sample */
    int64_t sample_stride;
    int is_whole, is_whole_vector; /* pieces of 16 bytes of rows, of vectors, lie at multiples of 16 */
} hd_rows_args;

/* The one that a warp takes: whoever schedules blocks shares rows out better than a loop in each of fewer blocks. */
HD_DEV uint32_t hd_row(void)
{
    return HD_BLOCK * HD_WARPS + HD_WARP;
}

/* In bytes. */
HD_DEV int64_t hd_row_at(const hd_rows_args *of, uint32_t row, heddle_dtype dtype)
{
    return (int64_t)row * of->c * hd_elem_bytes(dtype);
}

/* In elements. */
HD_DEV int64_t hd_vector_at(const hd_rows_args *of, uint32_t row)
{
    return of->sample_rows.d == 0 ? 0 : hd_divide(&of->sample_rows, row) * of->sample_stride;
}

/* A piece's numbers of a row of that type or of f32. */
HD_DEV void hd_numbers_load(float *out, const char *all, const hd_rows_args *of, uint32_t row, int32_t at,
                            heddle_dtype dtype, int is_f32, int is_whole)
{
    const char *from = all + hd_row_at(of, row, is_f32 ? HEDDLE_F32 : dtype);
    hd_values_load_either(out, from, at, of->c - at, dtype, is_f32, is_whole);
}

/* Rows and vectors of whole pieces are read without asking at each of them: `each` is compiled for both. */
#define HD_ROWS_EITHER(of, each, ...)                                                                                  \
    if ((of).is_whole && (of).is_whole_vector) {                                                                       \
        each(__VA_ARGS__, 1);                                                                                          \
    } else {                                                                                                           \
        each(__VA_ARGS__, 0);                                                                                          \
    }

/* --- launchers */

static inline int hd_is_aligned(const void *at)
{
    return (uintptr_t)at % 16 == 0;
}

static inline int hd_rows_are_right(const hd_device_rows *of)
{
    return (of->dtype == HEDDLE_F32 || of->dtype == HEDDLE_BF16 || of->dtype == HEDDLE_F16) && of->rows >= 0 &&
           of->rows <= INT32_MAX && of->c >= 1 && of->c <= 1 << 30 && of->sample_rows >= 0 &&
           of->sample_rows <= INT32_MAX;
}

static inline hd_rows_args hd_rows_of(const hd_device_rows *of)
{
    hd_rows_args a;
    a.rows = (uint32_t)of->rows;
    a.c = (int32_t)of->c;
    a.sample_rows = hd_divisor_of(of->sample_rows);
    a.sample_stride = of->sample_stride;
    a.is_whole = of->c % (of->dtype == HEDDLE_F32 ? 4 : 8) == 0;
    a.is_whole_vector = a.is_whole && of->sample_stride % 4 == 0;
    return a;
}

static inline unsigned hd_rows_blocks(int64_t rows)
{
    return (unsigned)((rows + HD_ROWS_WARPS - 1) / HD_ROWS_WARPS);
}

/* A kernel for each type, and the launch of the right one, which ends its function. */
#define HD_ROWS_KERNELS(kernel, name)                                                                                  \
    kernel(name##_f32, HEDDLE_F32) kernel(name##_bf16, HEDDLE_BF16) kernel(name##_f16, HEDDLE_F16)
#define HD_ROWS_ADDRESSES(name)                                                                                        \
    HD_KERNEL_ADDRESS(name##_f32), HD_KERNEL_ADDRESS(name##_bf16), HD_KERNEL_ADDRESS(name##_f16)
#define HD_ROWS_LAUNCH_OF(name, type, blocks, args, stream)                                                            \
    do {                                                                                                               \
        const unsigned blocks_ = (blocks);                                                                             \
        if (blocks_ > 0 && (type) == HEDDLE_F32) {                                                                     \
            HD_LAUNCH(name##_f32, blocks_, HD_ROWS_THREADS, stream, args);                                             \
        } else if (blocks_ > 0 && (type) == HEDDLE_BF16) {                                                             \
            HD_LAUNCH(name##_bf16, blocks_, HD_ROWS_THREADS, stream, args);                                            \
        } else if (blocks_ > 0) {                                                                                      \
            HD_LAUNCH(name##_f16, blocks_, HD_ROWS_THREADS, stream, args);                                             \
        }                                                                                                              \
        return blocks_ > 0 ? (int)cudaGetLastError() : 0;                                                              \
    } while (0)
#define HD_ROWS_LAUNCH(name, of, args, stream)                                                                         \
    do {                                                                                                               \
        if (!hd_rows_are_right(of)) {                                                                                  \
            return (int)cudaErrorInvalidValue;                                                                         \
        }                                                                                                              \
        HD_ROWS_LAUNCH_OF(name, (of)->dtype, hd_rows_blocks((of)->rows), args, stream);                                \
    } while (0)

#endif
