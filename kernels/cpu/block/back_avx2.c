#if defined(__x86_64__)

#define HD_VEC_COLUMNS 2

#include "kernels/cpu/vec_avx2.h"

#include "kernels/cpu/block/back_body.h"

void hd_block_back_fill_avx2(hd_kernels *table)
{
    table->scale_rows = scale_rows;
    table->norm_back = norm_back;
    table->gelu_back = gelu_back;
    table->norm_rotate_back = norm_rotate_back;
    table->add_columns = add_columns;
    table->add_scaled = add_scaled;
}

#endif
