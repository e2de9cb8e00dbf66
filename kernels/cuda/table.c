/* The table of what this folder has. */
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/list.h"

static int load(void)
{
    int error = hd_move_load();
    return error != 0 ? error : hd_cuda_sum_load();
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
    .sum = hd_cuda_sum,
};
