/* Between strided arrays and dense ones. */
#include "kernels/cpu/fill.h"
#include "kernels/small_float.h"

#include <string.h>

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

static void pack_row(char *to, const char *from, int64_t elem_bytes, int64_t elems, int64_t stride)
{
    if (stride == 1) {
        memcpy(to, from, (size_t)(elems * elem_bytes));
        return;
    }
    for (int64_t c = 0; c < elems; c++) {
        memcpy(to + c * elem_bytes, from + c * stride * elem_bytes, (size_t)elem_bytes);
    }
}

static void pack(void *dense, const void *src, int64_t elem_bytes, const int64_t extent[3], const int64_t stride[3])
{
    char *to = dense;
    for (int64_t b = 0; b < extent[0]; b++) {
        for (int64_t s = 0; s < extent[1]; s++) {
            const char *from = (const char *)src + (b * stride[0] + s * stride[1]) * elem_bytes;
            pack_row(to, from, elem_bytes, extent[2], stride[2]);
            to += extent[2] * elem_bytes;
        }
    }
}

static void unpack_row(void *dst, heddle_dtype dtype, int64_t to, int64_t stride, const void *const *src, int nsrc,
                       heddle_dtype src_dtype, int64_t first, int64_t elems)
{
    for (int64_t c = 0; c < elems; c++) {
        double sum = nsrc > 0 ? load(src[0], first + c, src_dtype) : 0;
        for (int i = 1; i < nsrc; i++) {
            sum += load(src[i], first + c, src_dtype);
        }
        store(dst, to + c * stride, dtype, sum);
    }
}

static void unpack(void *dst, heddle_dtype dtype, const int64_t stride[3], const void *const *src, int nsrc,
                   heddle_dtype src_dtype, const int64_t extent[3])
{
    int64_t elem_bytes = dtype == HEDDLE_F64 ? 8 : dtype == HEDDLE_BF16 ? 2 : 4;
    int as_they_are = nsrc == 1 && dtype == src_dtype && stride[2] == 1;
    for (int64_t b = 0; b < extent[0]; b++) {
        for (int64_t s = 0; s < extent[1]; s++) {
            int64_t to = b * stride[0] + s * stride[1], first = (b * extent[1] + s) * extent[2];
            if (as_they_are) {
                memcpy((char *)dst + to * elem_bytes, (const char *)src[0] + first * elem_bytes,
                       (size_t)(extent[2] * elem_bytes));
            } else {
                unpack_row(dst, dtype, to, stride[2], src, nsrc, src_dtype, first, extent[2]);
            }
        }
    }
}

void hd_pack_fill(hd_kernels *table)
{
    table->pack = pack;
    table->unpack = unpack;
}
