/* Where the vectors of a list's box lie, from the beginning of the box on each side. */
#ifndef HD_CUDA_PLACE_H
#define HD_CUDA_PLACE_H

#include "kernels/cuda/divide.h"

typedef struct hd_place {
    int64_t src, dst; /* bytes */
} hd_place;

HD_DEV void hd_place_step(hd_place *at, const hd_list_loop *loop, uint32_t *row, int is_outermost)
{
    uint32_t outer = is_outermost ? 0 : hd_divide(&loop->count, *row);
    int64_t step = *row - outer * loop->count.d;
    at->src += step * loop->src_stride_bytes;
    at->dst += step * loop->dst_stride_bytes;
    *row = outer;
}

/* Of vector v. Few loops, the rule, are unrolled. */
HD_DEV hd_place hd_place_of(const hd_list_box *box, uint32_t v, int has_few)
{
    uint32_t row = hd_divide(&box->run, v);
    int64_t within = (int64_t)(v - row * box->run.d) * box->width_bytes;
    hd_place at = {within, within};
    if (has_few) {
        HD_UNROLL
        for (int i = 0; i < HD_LIST_FEW_LOOPS; i++) {
            hd_place_step(&at, &box->loop[i], &row, i == HD_LIST_FEW_LOOPS - 1);
        }
    } else {
        HD_NOT_UNROLLED
        for (int i = 0; i < box->nloops; i++) {
            hd_place_step(&at, &box->loop[i], &row, i == box->nloops - 1);
        }
    }
    return at;
}

#endif
