/* Launchers of the files of this folder. */
#ifndef HD_CUDA_KERNELS_H
#define HD_CUDA_KERNELS_H

#include "kernels/table_device.h"

#ifdef __cplusplus
extern "C" {
#endif

int hd_move_load(void);
int hd_move_resident(int *blocks);
int hd_move_push(const hd_device_move *move, void *stream);
int hd_move_pull(const hd_device_move *move, void *stream);
int hd_move_clear(const hd_device_move *move, void *stream);

int hd_cuda_sum_load(void);
int hd_cuda_sum(void *dst, const void *const *term, int nterms, int64_t elems, heddle_dtype dtype, void *stream);

#ifdef __cplusplus
}
#endif

#endif
