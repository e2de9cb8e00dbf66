/* The second stage of sums over rows. */
#ifndef HD_CUDA_COLUMNS_H
#define HD_CUDA_COLUMNS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
/* dst[kind][sample * dst_stride + i] += the sum over the pieces, in an order that their number says, of
 * part[sample][piece][kind][i]; one or two kinds, n of each. */
int hd_columns_add_parts(const float *part, int64_t samples, int64_t pieces, int64_t kinds, int64_t n,
                         float *const *dst, int64_t dst_stride, void *stream);
#ifdef __cplusplus
}
#endif

#endif
