/* Launchers of the files of this folder. */
#ifndef HD_CUDA_KERNELS_H
#define HD_CUDA_KERNELS_H

#include "kernels/table_device.h"

#ifndef HD_CUDA_GROUPS
#define HD_CUDA_GROUPS 16 /* of a block whose groups of threads share a sum; the emulator takes fewer */
#endif

#ifdef __cplusplus
extern "C" {
#endif

int hd_move_load(void);
int hd_move_resident(int *blocks);
int hd_move_push(const hd_device_move *move, void *stream);
int hd_move_pull(const hd_device_move *move, void *stream);
int hd_move_clear(const hd_device_move *move, void *stream);
int hd_move_push_gated(const hd_device_move *move, const hd_device_gate *gate, void *stream);

int hd_cuda_sum_load(void);
int hd_cuda_sum(void *dst, const void *const *term, int nterms, int64_t elems, heddle_dtype dtype, void *stream);

int hd_rows_load(void);
int hd_rows_norm_modulate(const hd_device_rows *of, void *dst, const void *src, const float *shift, const float *scale,
                          void *stream);
int hd_rows_gate_residual(const hd_device_rows *of, void *x, const void *y, heddle_dtype y_dtype, const float *gate,
                          void *keep, void *stream);

int hd_elements_load(void);
int hd_elements_gelu(void *dst, heddle_dtype dst_dtype, const void *src, heddle_dtype src_dtype, int64_t elems,
                     void *stream);
int hd_elements_convert(void *dst, heddle_dtype dst_dtype, const void *src, heddle_dtype src_dtype, int64_t elems,
                        void *stream);
int hd_elements_split(void *dst, heddle_dtype dtype, const float *src, int64_t elems, void *stream);

int hd_heads_load(void);
int hd_heads_norm_rotate(const hd_device_heads *of, void *dst, const void *src, void *stream);

int hd_rows_back_load(void);
int hd_rows_scale(const hd_device_rows *of, void *dst, const void *src, const float *gate, void *stream);
int hd_rows_norm_back(const hd_device_rows *of, void *dx, const void *src, const void *dy, heddle_dtype dy_dtype,
                      const float *scale, float *stats, void *stream);
int hd_elements_gelu_back(void *dy, void *active, const void *src, heddle_dtype dtype, int64_t elems, void *stream);

int hd_heads_back_load(void);
int hd_heads_norm_rotate_back(const hd_device_heads *of, void *dy, const void *src, float *const dweight[2],
                              void *scratch, void *stream);
size_t hd_heads_back_bytes(const hd_device_heads *of);

int hd_columns_load(void);
int hd_columns_add(const hd_device_columns *of, float *dst, float *dst_times, int64_t dst_stride, void *scratch,
                   void *stream);
size_t hd_columns_bytes(const hd_device_columns *of);

int hd_attention_load(void);
int hd_attention_forward(const hd_device_attention *of, void *stream);
int hd_attention_back_load(void);
int hd_attention_back(const hd_device_attention_back *back, void *stream);
int hd_attention_walk_back(const hd_device_attention_back *back, void *stream); /* as of many tokens */
size_t hd_attention_back_bytes(const hd_device_attention *of);

int hd_parts_load(void);
int hd_parts_arrange(const hd_device_arrange *of, void *stream);
int hd_parts_merge(const hd_device_merge *of, void *stream);
int hd_parts_log_sum(const hd_device_log_sum *of, void *stream);

int hd_linear_load(void);
int hd_linear_run(const hd_device_linear *of, void *stream);
int hd_linear_states_load(void);
int hd_linear_states(const hd_device_linear_states *of, void *stream);
int hd_head_norm_load(void);
int hd_head_norm(const hd_device_head_norm *of, void *stream);
int hd_head_norm_back(const hd_device_head_norm *of, void *stream);

int hd_training_load(void);
int hd_training_adamw(const hd_adamw_step *step, const double *clip, float *param, const float *grad, float *mean,
                      float *square, int64_t elems, void *stream);
int hd_training_divide(float *dst, const float *src, float divisor, int64_t elems, void *stream);
int hd_training_zero(float *dst, int64_t elems, void *stream);
int hd_training_add_squares(hd_squares *dst, const float *values, int64_t elems, int adds, void *scratch, void *stream);
size_t hd_training_squares_bytes(void);
int hd_training_clip(double *dst, const hd_squares *squares, double max_norm, void *stream);

int hd_products_load(void);
int hd_products_run(const heddle_product *of, const heddle_product_call *call, void *stream);

#ifdef __cplusplus
}
#endif

#endif
