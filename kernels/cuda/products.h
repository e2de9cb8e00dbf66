/* What kernels of products are given. Whatever the kind, c[m][n] = sum over depth of a times b; an operand is as its
 * array lies, [m] or [n] rows of depth, or turned: depth rows of m or n. */
#ifndef HD_CUDA_PRODUCTS_H
#define HD_CUDA_PRODUCTS_H

#include "kernels/cuda/piece.h"

#include <heddle/sys/device_products.h>

typedef struct hd_operand {
    const char *data;
    int64_t rows;  /* as it lies */
    int32_t width; /* of a row, and elements from one to the next */
    int is_whole;  /* rows of whole 16 bytes at multiples of 16 */
    int is_turned;
} hd_operand;

typedef struct hd_products_args {
    hd_operand a, b;
    char *c;
    const char *bias; /* [n] of c's type; NULL: none */
    int64_t m, depth;
    int32_t n;
    uint32_t strips; /* tiles beside one another */
    int c_is_f32, adds;
} hd_products_args;

HD_DEV float hd_number_load(const char *at, heddle_dtype dtype)
{
    return dtype == HEDDLE_F32 ? hd_f32_from_bits(hd_load_4(at)) : hd_half_get((uint16_t)hd_load_2(at), dtype);
}

/* One result: with its bias, or added to what is there, and rounded once. */
HD_DEV void hd_product_store(const hd_products_args *a, int64_t row, int32_t column, float sum, heddle_dtype dtype)
{
    const heddle_dtype type = a->c_is_f32 ? HEDDLE_F32 : dtype;
    char *to = a->c + (row * a->n + column) * hd_elem_bytes(type);
    if (a->bias != 0) {
        sum = sum + hd_number_load(a->bias + column * (int64_t)hd_elem_bytes(type), type);
    }
    if (a->adds) {
        sum = sum + hd_number_load(to, type);
    }
    if (type == HEDDLE_F32) {
        hd_store_4(to, hd_f32_bits(sum));
    } else {
        hd_store_2(to, hd_half_of(sum, type));
    }
}

#ifdef __cplusplus
extern "C" {
#endif
/* In F32: products_f32.cu. */
int hd_products_f32(hd_products_args *a, void *stream);
int hd_products_f32_load(void);
#ifdef __cplusplus
}
#endif

#endif
