/* Between a caller's strided arrays and dense ones, head by head. */
#include "runtime/attention/attention_internal.h"

#include "kernels/small_float.h"

#include <string.h>

void hd_attn_strides(int64_t stride[4], const heddle_attention_array *array, int64_t rows, int64_t heads, int64_t width)
{
    const int64_t *given = array->stride_elems;
    memcpy(stride, given, 4 * sizeof stride[0]);
    if (given[0] == 0 && given[1] == 0 && given[2] == 0 && given[3] == 0) {
        stride[3] = 1;
        stride[2] = width;
        stride[1] = heads * width;
        stride[0] = rows * heads * width;
    }
}

static double load(const void *from, int64_t i, heddle_dtype dtype)
{
    switch (dtype) {
    case HEDDLE_F64:
        return ((const double *)from)[i];
    case HEDDLE_BF16:
        return hd_f32_from_bf16(((const uint16_t *)from)[i]);
    default:
        return ((const float *)from)[i];
    }
}

static void store(void *to, int64_t i, heddle_dtype dtype, double value)
{
    switch (dtype) {
    case HEDDLE_F64:
        ((double *)to)[i] = value;
        break;
    case HEDDLE_BF16:
        ((uint16_t *)to)[i] = hd_bf16_from_f32((float)value);
        break;
    default:
        ((float *)to)[i] = (float)value;
        break;
    }
}

void hd_attn_pack_head(void *dense, const heddle_attention_array *array, const hd_attn_problem *problem, int64_t head,
                       int64_t array_heads)
{
    int64_t rows = problem->member_rows[problem->rank].rows, width = problem->width, stride[4];
    int64_t row_bytes = width * problem->elem_bytes;
    hd_attn_strides(stride, array, rows, array_heads, width);
    for (int64_t b = 0; b < problem->batch; b++) {
        for (int64_t s = 0; s < rows; s++) {
            int64_t at = b * stride[0] + s * stride[1] + head * stride[2];
            char *to = (char *)dense + (b * rows + s) * row_bytes;
            const char *from = (const char *)array->data + at * problem->elem_bytes;
            if (stride[3] == 1) {
                memcpy(to, from, (size_t)row_bytes);
                continue;
            }
            for (int64_t c = 0; c < width; c++) {
                memcpy(to + c * problem->elem_bytes, from + c * stride[3] * problem->elem_bytes,
                       (size_t)problem->elem_bytes);
            }
        }
    }
}

static void unpack_row(char *to, int64_t stride, const void *const *src, int nsrc, int64_t first, heddle_dtype dtype,
                       const hd_attn_problem *problem)
{
    if (nsrc == 1 && dtype == problem->dtype && stride == 1) {
        memcpy(to, (const char *)src[0] + first * problem->elem_bytes, (size_t)(problem->width * problem->elem_bytes));
        return;
    }
    for (int64_t c = 0; c < problem->width; c++) {
        double sum = nsrc > 0 ? load(src[0], first + c, dtype) : 0;
        for (int i = 1; i < nsrc; i++) {
            sum += load(src[i], first + c, dtype);
        }
        store(to, c * stride, problem->dtype, sum);
    }
}

void hd_attn_unpack_head(const heddle_attention_array *array, const void *const *src, int nsrc, heddle_dtype dtype,
                         const hd_attn_problem *problem, int64_t head, int64_t array_heads)
{
    int64_t rows = problem->member_rows[problem->rank].rows, stride[4];
    hd_attn_strides(stride, array, rows, array_heads, problem->width);
    for (int64_t b = 0; b < problem->batch; b++) {
        for (int64_t s = 0; s < rows; s++) {
            int64_t at = b * stride[0] + s * stride[1] + head * stride[2];
            unpack_row((char *)array->data + at * problem->elem_bytes, stride[3], src, nsrc,
                       (b * rows + s) * problem->width, dtype, problem);
        }
    }
}

void hd_attn_widen(const hd_kernels *kernels, void *real, const void *storage, heddle_dtype storage_dtype,
                   int64_t elems)
{
    if (storage_dtype == HEDDLE_BF16) {
        kernels->convert(real, HEDDLE_F32, storage, HEDDLE_BF16, elems);
    } else if (real != storage) {
        memcpy(real, storage, (size_t)elems * heddle_dtype_bytes(storage_dtype));
    }
}

void hd_attn_narrow(const hd_kernels *kernels, void *storage, const void *real, heddle_dtype storage_dtype,
                    int64_t elems)
{
    if (storage_dtype == HEDDLE_BF16) {
        kernels->convert(storage, HEDDLE_BF16, real, HEDDLE_F32, elems);
    } else if (real != storage) {
        memcpy(storage, real, (size_t)elems * heddle_dtype_bytes(storage_dtype));
    }
}
