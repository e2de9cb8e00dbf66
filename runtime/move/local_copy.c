/* One copy inside this rank, and none: zeros. */
#include "kernels/copy.h"
#include "runtime/move/copy.h"

static hd_lane lane_of(const hd_copy *copy)
{
    hd_lane lane = {.src_offset_bytes = copy->src_offset_bytes,
                    .dst_offset_bytes = copy->dst_offset_bytes,
                    .run_bytes = copy->run_bytes};
    for (int i = 0; i < copy->nloops; i++) {
        lane.src_stride_bytes[i] = copy->src_stride_bytes[i];
        lane.dst_stride_bytes[i] = copy->dst_stride_bytes[i];
    }
    return lane;
}

hd_copy_by hd_copy_choose(const hd_copy *copy, int64_t shared_cache_bytes)
{
    hd_copy_hint hint = {.footprint_bytes = 2 * hd_copy_bytes(copy), .shared_cache_bytes = shared_cache_bytes};
    const hd_copy_kernel *kernel[2];
    for (int i = 0; i < 2; i++) {
        hd_lane lane = lane_of(copy);
        lane.dst_offset_bytes = i;
        hd_copy_candidates(&kernel[i], 1, &lane, 1, copy->nloops, &hint);
    }
    return (hd_copy_by){kernel[0]->copy, kernel[1]->copy};
}

void hd_copy_execute(const hd_copy *copy, const hd_copy_by *by, void *dst, const void *src)
{
    hd_lane lane = lane_of(copy);
    hd_copy_fn fn = ((uintptr_t)dst + (uintptr_t)lane.dst_offset_bytes) % HD_LINE_BYTES == 0 ? by->lines : by->ragged;
    fn(&lane, 1, copy->nloops, copy->count, &src, &dst);
}

void hd_copy_clear(const hd_kernels *kernels, const hd_copy *copy, void *dst)
{
    kernels->clear((char *)dst + copy->dst_offset_bytes, copy->run_bytes, copy->nloops, copy->count,
                   copy->dst_stride_bytes);
}
