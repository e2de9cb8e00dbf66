/* What a block holds in host memory, by what it is for. */
#include "runtime/block/back_internal.h"

static int64_t bytes_of(const heddle_param *param)
{
    return param->extent[0] * (param->ndim == 2 ? param->extent[1] : 1) * (int64_t)sizeof(float);
}

void hd_block_measure(hd_block_held *sum, const heddle_block *block)
{
    for (int i = 0; i < block->nparams; i++) {
        sum->parameters += bytes_of(&block->param[i]);
        sum->gradients += block->back != NULL && block->back->gradient[i] != NULL ? bytes_of(&block->param[i]) : 0;
    }
    for (int i = 0; i < block->nlayers && block->on == NULL; i++) {
        sum->products += hd_gemm_bytes(block->layer[i]);
        sum->products += block->back != NULL ? hd_gemm_bytes(block->back->layer[i]) : 0;
    }
}

/* Those of the stretches that are walked together grow with threads, not with the box. */
static int is_of_box(int work)
{
    return work == HD_WORK_TURNED || work == HD_WORK_D_O || work == HD_WORK_D_WIDE || work == HD_WORK_D_TEXT ||
           work == HD_WORK_RAW;
}

void hd_block_measure_shared(hd_block_held *sum, const heddle_block *block)
{
    const hd_back_space *space = block->back != NULL ? block->back->space : NULL;
    sum->threads += hd_block_scratch_bytes(block->scratch);
    for (int i = 0; space != NULL && i < HD_WORKS; i++) {
        *(is_of_box(i) ? &sum->arrays : &sum->threads) += (int64_t)space->work_bytes[i];
    }
    for (int i = 0; space != NULL && i < HD_KEEPS; i++) {
        sum->arrays += (int64_t)space->keep.held_bytes[i];
    }
    if (space != NULL && space->room != NULL) {
        sum->method += space->room->part[HD_ROOM_METHOD].wanted_bytes;
        sum->method_lent += space->room->unlent_bytes - space->room->part[HD_ROOM_METHOD].wanted_bytes;
        sum->threads += space->room->part[HD_ROOM_THREADS].wanted_bytes;
    }
}
