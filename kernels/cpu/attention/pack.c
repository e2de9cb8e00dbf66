/* Between strided arrays and dense ones. */
#include "kernels/cpu/slots.h"
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

static void pack(void *dense, const hd_strided *src, int64_t elem_bytes)
{
    const int64_t *extent = src->extent, *stride = src->stride;
    char *to = dense;
    for (int64_t i = 0; i < extent[0]; i++) {
        for (int64_t j = 0; j < extent[1]; j++) {
            for (int64_t k = 0; k < extent[2]; k++) {
                int64_t at = i * stride[0] + j * stride[1] + k * stride[2];
                pack_row(to, (const char *)src->data + at * elem_bytes, elem_bytes, extent[3], stride[3]);
                to += extent[3] * elem_bytes;
            }
        }
    }
}

/* Elements from `first` on of the dense arrays. */
static void unpack_row(const hd_strided *dst, heddle_dtype dtype, int64_t to, const void *const *src, int nsrc,
                       heddle_dtype src_dtype, int64_t first)
{
    for (int64_t l = 0; l < dst->extent[3]; l++) {
        double sum = nsrc > 0 ? load(src[0], first + l, src_dtype) : 0;
        for (int i = 1; i < nsrc; i++) {
            sum += load(src[i], first + l, src_dtype);
        }
        store(dst->data, to + l * dst->stride[3], dtype, sum);
    }
}

static void unpack(const hd_strided *dst, heddle_dtype dtype, const void *const *src, int nsrc, heddle_dtype src_dtype)
{
    const int64_t *extent = dst->extent, *stride = dst->stride;
    int64_t elem_bytes = dtype == HEDDLE_F64 ? 8 : dtype == HEDDLE_BF16 ? 2 : 4, first = 0;
    int as_they_are = nsrc == 1 && dtype == src_dtype && stride[3] == 1;
    for (int64_t i = 0; i < extent[0]; i++) {
        for (int64_t j = 0; j < extent[1]; j++) {
            for (int64_t k = 0; k < extent[2]; k++, first += extent[3]) {
                int64_t to = i * stride[0] + j * stride[1] + k * stride[2];
                if (as_they_are) {
                    memcpy((char *)dst->data + to * elem_bytes, (const char *)src[0] + first * elem_bytes,
                           (size_t)(extent[3] * elem_bytes));
                } else {
                    unpack_row(dst, dtype, to, src, nsrc, src_dtype, first);
                }
            }
        }
    }
}

const hd_kernels hd_pack_slots = {
    .pack = pack,
    .unpack = unpack,
};
