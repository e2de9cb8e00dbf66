/* A strided copy as calls of a device library, which takes rows of one run. */
#include "runtime/move/device_staging.h"

/* The innermost loop is one call, where its rows do not overlap. */
static int takes_rows(const hd_copy *copy)
{
    int last = copy->nloops - 1;
    return last >= 0 && copy->src_stride_bytes[last] >= copy->run_bytes &&
           copy->dst_stride_bytes[last] >= copy->run_bytes;
}

heddle_status hd_device_copy(const hd_device *device, const hd_copy *copy, void *dst, const void *src,
                             heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    hd_copy c = *copy;
    hd_copy_walk(&c, HD_SIDE_DST);
    int rows = takes_rows(&c), outer = c.nloops - rows, last = c.nloops - 1;
    int64_t steps = hd_copy_bytes(&c) > 0 ? 1 : 0;
    for (int i = 0; i < outer; i++) {
        steps *= c.count[i];
    }
    for (int64_t step = 0; step < steps; step++) {
        int64_t from = c.src_offset_bytes, to = c.dst_offset_bytes, left = step;
        for (int i = outer - 1; i >= 0; i--) {
            from += left % c.count[i] * c.src_stride_bytes[i];
            to += left % c.count[i] * c.dst_stride_bytes[i];
            left /= c.count[i];
        }
        HD_TRY(device->library->copy((char *)dst + to, rows ? c.dst_stride_bytes[last] : 0, (const char *)src + from,
                                     rows ? c.src_stride_bytes[last] : 0, c.run_bytes, rows ? c.count[last] : 1,
                                     device->number, stream));
    }
out:
    return st;
}
