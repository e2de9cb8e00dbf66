/* Linear layers whose rows do not know of one another: dst[r, n] = src[r, k] * W[n, k]^T + bias.
 *
 * oneDNN picks its kernel, and with it the order of its sums, by the number of rows. So every call has one of two fixed
 * numbers of rows here (the last block of a matrix is padded), and packing checks that a row's result depends neither
 * on its place in a block nor on which of the two it is in. A size that fails the check is not used; the smallest, one
 * row, cannot fail.
 */
#ifndef HD_KERNELS_GEMM_H
#define HD_KERNELS_GEMM_H

#include "kernels/table.h"

enum {
    HD_GEMM_ROWS = 64,       /* of a small block */
    HD_GEMM_LARGE_ROWS = 256 /* of a large one, which reads the weights less often; chunks should be multiples */
};

typedef struct hd_gemm hd_gemm;

/* src_dtype, dst_dtype: F32 or BF16 (sums are always f32). A seat is what one thread needs to run it: threads with
 * different seats may run the same gemm at the same time. BF16 sources are multiplied as BF16 where oneDNN has a
 * kernel for that, else as F32 after conversion. */
heddle_status hd_gemm_create(hd_gemm **out, const hd_kernels *kernels, int64_t k, int64_t n, heddle_dtype src_dtype,
                             heddle_dtype dst_dtype, int seats);
void hd_gemm_destroy(hd_gemm *gemm);

/* Before hd_gemm_pack: weights that are no BF16 numbers are not rounded to them where sources are multiplied as BF16,
 * but each taken as a sum of two: nearly as right as by way of F32, at twice the work of rounded ones. */
void hd_gemm_whole_weights(hd_gemm *gemm);

/* Copies weight [n, k] and bias [n] (NULL: none) into the kernel's own order. Not while anybody runs it. */
heddle_status hd_gemm_pack(hd_gemm *gemm, const float *weight, const float *bias);

/* The same for weight [k, n] without a bias: dst = src * weight. */
heddle_status hd_gemm_pack_transposed(hd_gemm *gemm, const float *weight);

/* Dense rows. Allocates nothing. dst must not overlap src. */
heddle_status hd_gemm_run(hd_gemm *gemm, int seat, void *dst, const void *src, int64_t rows);

/* As it was made. */
heddle_dtype hd_gemm_src_dtype(const hd_gemm *gemm);
heddle_dtype hd_gemm_dst_dtype(const hd_gemm *gemm);

/* 1: BF16 sources are multiplied as they are, not by way of F32. */
int hd_gemm_narrow(const hd_gemm *gemm);

int64_t hd_gemm_bytes(const hd_gemm *gemm);      /* scratch and packed weights */
int64_t hd_gemm_block_rows(const hd_gemm *gemm); /* of the larger kind in use; 0 before packing */
const char *hd_gemm_kernel(const hd_gemm *gemm); /* oneDNN's name of the kernel; "" before packing */

/* dw[n, k] = or += dy^T x over rows, into F32 sums: the gradient of a weight. Equal calls give equal bits. */
typedef struct hd_outer_product {
    float *dw;      /* dense */
    const void *dy; /* [rows][n], rows dy_stride elements apart */
    const void *x;  /* [rows][k], dense */
    int64_t dy_stride, n, k, rows;
    int add;
} hd_outer_product;

/* Of F32 rows. Any thread between hd_gemm_enter and hd_gemm_leave. */
heddle_status hd_gemm_outer_f32(const hd_outer_product *product);

/* Of BF16 rows. */
typedef struct hd_gemm_outer hd_gemm_outer;

/* *out: NULL where oneDNN cannot. It may be emulation: only fast where hd_gemm_narrow says so of layers. Seats as
 * above. */
heddle_status hd_gemm_outer_create(hd_gemm_outer **out, int seats);
void hd_gemm_outer_destroy(hd_gemm_outer *outer);
heddle_status hd_gemm_outer_run(hd_gemm_outer *outer, int seat, const hd_outer_product *product);

/* oneDNN runs on OpenMP. The library's ranks and threads are its own, so OpenMP is held at one thread while they call
 * oneDNN; also, OpenMP's thread pools do not survive fork. Returns what to hand to hd_gemm_leave. */
int hd_gemm_enter(void);
void hd_gemm_leave(int entered);

#endif
