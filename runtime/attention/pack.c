/* Between a caller's strided arrays and dense ones, head by head. */
#include "runtime/attention/attention_internal.h"

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

/* Rows of one head of all samples: where they begin in the caller's array, extents and strides of [b][s][c]. */
static int64_t rows_of_head(int64_t extent[3], int64_t stride[3], const heddle_attention_array *array,
                            const hd_attn_problem *problem, int64_t head, int64_t array_heads)
{
    int64_t rows = problem->member_rows[problem->rank].rows, all[4];
    hd_attn_strides(all, array, rows, array_heads, problem->width);
    extent[0] = problem->batch;
    extent[1] = rows;
    extent[2] = problem->width;
    stride[0] = all[0];
    stride[1] = all[1];
    stride[2] = all[3];
    return extent[0] * rows > 0 ? head * all[2] : 0; /* nothing here: data may be NULL */
}

void hd_attn_pack_head(const hd_kernels *kernels, void *dense, const heddle_attention_array *array,
                       const hd_attn_problem *problem, int64_t head, int64_t array_heads)
{
    int64_t extent[3], stride[3], first = rows_of_head(extent, stride, array, problem, head, array_heads);
    kernels->pack(dense, (const char *)array->data + first * problem->elem_bytes, problem->elem_bytes, extent, stride);
}

void hd_attn_unpack_head(const hd_kernels *kernels, const heddle_attention_array *array, const void *const *src,
                         int nsrc, heddle_dtype dtype, const hd_attn_problem *problem, int64_t head,
                         int64_t array_heads)
{
    int64_t extent[3], stride[3], first = rows_of_head(extent, stride, array, problem, head, array_heads);
    kernels->unpack((char *)array->data + first * problem->elem_bytes, problem->dtype, stride, src, nsrc, dtype,
                    extent);
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
