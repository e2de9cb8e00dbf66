/* What stands in front of a model's first block and behind its last one, on a device: linear layers, norms and sums of
 * dense rows, for programs that have no kernels of their own (examples/latte). In host memory it is
 * heddle_dense_forward (heddle/block.h), and loops.
 *
 * Arrays are of F32, BF16 or F16, lie on the device of comm and are borrowed; their addresses are multiples of an
 * element's size, and of 16 for speed. Of no rows they may be NULL. Calls enqueue in `stream` (heddle/space.h),
 * allocate nothing, communicate with nobody and may be captured. A row of a result has the same bits whatever the other
 * rows are. Sums are f32, and each result is rounded once.
 *
 *   HEDDLE_ERR_ARG          a pointer is NULL or no multiple of an element's size, a number is out of its range, memory
 *                           that is not the device's
 *   HEDDLE_ERR_UNSUPPORTED  comm has no device, or one whose library has no kernels; another dtype
 *   HEDDLE_ERR_DEVICE       a call of the device failed; names it
 *
 * Threads: any, one at a time of a communicator.
 */
#ifndef HEDDLE_ROWS_H
#define HEDDLE_ROWS_H

#include <heddle/comm.h>
#include <heddle/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

/* out[rows, n] = x[rows, k] times weight[n, k]^T + bias[n], all of dtype; bias may be NULL. out overlaps nothing. By
 * heddle's own kernel. rows 0 .. 2^31 - 1, k and n 1 .. 2^30. */
HEDDLE_CHECKED heddle_status heddle_rows_dense(heddle_comm *comm, void *out, const void *x, int64_t rows, int64_t k,
                                               const void *weight, const void *bias, int64_t n, heddle_dtype dtype,
                                               heddle_stream stream);
/* x[rows, c] += y[rows, c]. rows 0 .. 2^31 - 1, c 1 .. 2^30. */
HEDDLE_CHECKED heddle_status heddle_rows_add(heddle_comm *comm, void *x, const void *y, int64_t rows, int64_t c,
                                             heddle_dtype dtype, heddle_stream stream);
/* out = (x - mean) / sqrt(variance + 1e-6) * (1 + scale) + shift for each row of c; out may be x. Row r is of sample
 * r / sample_rows, whose vectors [c] f32 lie so many times sample_stride elements behind the first one's; sample_rows
 * 0: all rows are of one sample. shift and scale may both be NULL: the plain normalised row. rows, sample_rows and
 * sample_stride 0 .. 2^31 - 1, c 1 .. 2^30. */
HEDDLE_CHECKED heddle_status heddle_rows_norm(heddle_comm *comm, void *out, const void *x, int64_t rows, int64_t c,
                                              const float *shift, const float *scale, int64_t sample_rows,
                                              int64_t sample_stride, heddle_dtype dtype, heddle_stream stream);

#ifdef __cplusplus
}
#endif

#endif
