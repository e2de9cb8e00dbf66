/* The table of what this folder has. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/list.h"

static int load(void)
{
    int (*const load_of[])(void) = {hd_move_load,      hd_cuda_sum_load,       hd_rows_load,       hd_elements_load,
                                    hd_heads_load,     hd_rows_back_load,      hd_heads_back_load, hd_columns_load,
                                    hd_attention_load, hd_attention_back_load, hd_parts_load,      hd_products_load,
                                    hd_linear_load,    hd_linear_states_load,  hd_head_norm_load,  hd_training_load};
    int error = 0;
    for (int i = 0; i < (int)(sizeof load_of / sizeof load_of[0]) && error == 0; i++) {
        error = load_of[i]();
    }
    return error;
}

const hd_device_kernels hd_kernels_cuda = {
    .name = "cuda",
    .load = load,
    .resident = hd_move_resident,
    .list_bytes = hd_list_bytes,
    .list_make = hd_list_make,
    .list_blocks = hd_list_blocks_of,
    .push = hd_move_push,
    .pull = hd_move_pull,
    .clear = hd_move_clear,
    .push_gated = hd_move_push_gated,
    .takes_gate = hd_list_takes_gate,
    .sum = hd_cuda_sum,
    .norm_modulate = hd_rows_norm_modulate,
    .gate_residual = hd_rows_gate_residual,
    .gelu = hd_elements_gelu,
    .convert = hd_elements_convert,
    .split = hd_elements_split,
    .norm_rotate = hd_heads_norm_rotate,
    .scale_rows = hd_rows_scale,
    .norm_back = hd_rows_norm_back,
    .gelu_back = hd_elements_gelu_back,
    .norm_rotate_back = hd_heads_norm_rotate_back,
    .norm_rotate_back_bytes = hd_heads_back_bytes,
    .add_columns = hd_columns_add,
    .add_columns_bytes = hd_columns_bytes,
    .attention = hd_attention_forward,
    .attention_back = hd_attention_back,
    .attention_back_bytes = hd_attention_back_bytes,
    .arrange = hd_parts_arrange,
    .merge = hd_parts_merge,
    .log_sum = hd_parts_log_sum,
    .linear = hd_linear_run,
    .linear_states = hd_linear_states,
    .head_norm = hd_head_norm,
    .head_norm_back = hd_head_norm_back,
    .product = hd_products_run,
    .adamw = hd_training_adamw,
    .divide = hd_training_divide,
    .zero = hd_training_zero,
    .add_squares = hd_training_add_squares,
    .add_squares_bytes = hd_training_squares_bytes,
    .clip = hd_training_clip,
};
