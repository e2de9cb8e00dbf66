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
    uint32_t strips;                /* tiles beside one another */
    int c_is_f32, c_is_whole, adds; /* whole: its rows, and bias, as those of an operand */
} hd_products_args;

/* Those n columns of a row, from `column` on, may be written at once. */
HD_DEV int hd_product_is_whole(const hd_products_args *a, int32_t column, int n)
{
    return a->c_is_whole && a->n - column >= n;
}

/* Biases of n columns; zeros where there are none. The type of results is constant where it is called, as below. */
HD_DEV void hd_product_bias(float *bias, const hd_products_args *a, int32_t column, int n, heddle_dtype type)
{
    const int32_t left = a->bias != 0 ? a->n - column : 0;
    hd_values_load(bias, a->bias, column, left, n, type, a->bias != 0 && hd_product_is_whole(a, column, n));
}

/* n results beside one another: with their biases, or added to what is there, and rounded once. */
HD_DEV void hd_product_store(const hd_products_args *a, int64_t row, int32_t column, float *sum, const float *bias,
                             int n, heddle_dtype type)
{
    const int32_t left = a->n - column;
    const int is_whole = hd_product_is_whole(a, column, n);
    char *to = a->c + row * a->n * hd_elem_bytes(type);
    if (row >= a->m || left <= 0) {
        return;
    }
    HD_UNROLL
    for (int i = 0; i < n && a->bias != 0; i++) {
        sum[i] = sum[i] + bias[i];
    }
    if (a->adds) {
        float there[HD_PIECE_MOST];
        hd_values_load(there, to, column, left, n, type, is_whole);
        HD_UNROLL
        for (int i = 0; i < n; i++) {
            sum[i] = sum[i] + there[i];
        }
    }
    hd_values_store(to, sum, column, left, n, type, is_whole);
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
