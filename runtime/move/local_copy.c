/* One copy inside this rank, and none: zeros. */
#include "kernels/copy.h"
#include "runtime/move/copy.h"

void hd_copy_execute(const hd_copy *copy, void *dst, const void *src, int64_t shared_cache_bytes)
{
    hd_lane lane = {.src = (const char *)src + copy->src_offset_bytes,
                    .dst = (char *)dst + copy->dst_offset_bytes,
                    .run_bytes = copy->run_bytes};
    hd_copy_hint hint = {.footprint_bytes = 2 * copy->run_bytes, .shared_cache_bytes = shared_cache_bytes};
    const hd_copy_kernel *kernel = NULL;
    for (int i = 0; i < copy->nloops; i++) {
        lane.src_stride_bytes[i] = copy->src_stride_bytes[i];
        lane.dst_stride_bytes[i] = copy->dst_stride_bytes[i];
        hint.footprint_bytes *= copy->count[i];
    }
    if (hd_copy_candidates(&kernel, 1, &lane, 1, copy->nloops, copy->count, &hint) < 1) {
        int count = 0;
        kernel = &hd_copy_kernels(&count)[0];
    }
    kernel->copy(&lane, 1, copy->nloops, copy->count);
}

void hd_copy_clear(const hd_kernels *kernels, const hd_copy *copy, void *dst)
{
    kernels->clear((char *)dst + copy->dst_offset_bytes, copy->run_bytes, copy->nloops, copy->count,
                   copy->dst_stride_bytes);
}
