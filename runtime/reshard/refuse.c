/* Buffers that cannot be used: the rank that finds them tells everybody who might wait for it, before anything moves.
 */
#include "runtime/reshard/plan.h"

const char *const hd_refusals[HD_REFUSED_COUNT] = {"",
                                                   "its src and dst overlap",
                                                   "its src cannot be reached by peers (HEDDLE_MEMORY_PEER)",
                                                   "its dst cannot be reached by peers (HEDDLE_MEMORY_PEER)",
                                                   "its src is NULL",
                                                   "its dst is NULL",
                                                   "its src or dst is not aligned to its elements"};

static int overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t pa = (uintptr_t)a, pb = (uintptr_t)b;
    return a_bytes > 0 && b_bytes > 0 && pa < pb + b_bytes && pb < pa + a_bytes;
}

int hd_refusal_find(const heddle_reshard *plan, const void *src, const void *dst)
{
    size_t src_bytes = (size_t)plan->request.src_bytes, dst_bytes = (size_t)plan->request.dst_bytes;
    if ((src == NULL && src_bytes > 0) || (dst == NULL && dst_bytes > 0)) {
        return src == NULL && src_bytes > 0 ? HD_REFUSED_SRC_NULL : HD_REFUSED_DST_NULL;
    }
    if (((uintptr_t)src | (uintptr_t)dst) % plan->elem_bytes != 0) {
        return HD_REFUSED_UNALIGNED;
    }
    if (overlap(src, src_bytes, dst, dst_bytes)) {
        return HD_REFUSED_OVERLAP;
    }
    if (!hd_channel_has_peers(plan->channel) || plan->request.options.memory == HEDDLE_MEMORY_ANY) {
        return HD_REFUSED_NOT;
    }
    if (hd_comm_export(plan->comm, src, src_bytes) == 0) {
        return HD_REFUSED_SRC;
    }
    return hd_comm_export(plan->comm, dst, dst_bytes) == 0 ? HD_REFUSED_DST : HD_REFUSED_NOT;
}
