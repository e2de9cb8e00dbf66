/* Executing into a new array of a pool. */
#include "runtime/reshard/plan.h"

#include <heddle/dlpack.h>

static heddle_status check(const heddle_reshard *plan)
{
    if (plan->request.options.space != HEDDLE_SPACE_HOST) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "arrays of a pool lie in host memory, those of the plan on a device; "
                       "reshard %s",
                       plan->line_text);
    }
    return plan->request.is_dst_dense ? HEDDLE_OK
                                      : hd_fail(HEDDLE_ERR_ARG,
                                                "arrays of a pool are dense, the plan was given strides "
                                                "of dst; reshard %s",
                                                plan->line_text);
}

heddle_status heddle_reshard_execute_pooled(heddle_dl_managed **out, heddle_reshard *reshard, const void *src,
                                            heddle_pool *pool, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    heddle_dl_managed *made = NULL;
    HD_TRY(HD_NEED(out, reshard, pool));
    HD_TRY(check(reshard));
    const heddle_shape *shape = &reshard->request.line.shape;
    HD_TRY(heddle_pool_take(&made, pool, shape->dtype, shape->ndim, reshard->request.dst_len));
    HD_TRY(heddle_reshard_execute(reshard, src, made->tensor.data, stream));
    *out = made;
    made = NULL;
out:
    heddle_pool_give_back(made);
    return st;
}
