/* The element type of the activation, changed after loading. */
#include "planner/model/model.h"
#include "runtime/base/base.h"

heddle_status heddle_model_set_dtype(heddle_model *model, heddle_dtype dtype)
{
    heddle_status st = HD_NEED(model);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (dtype != HEDDLE_F32 && dtype != HEDDLE_BF16) {
        return hd_fail(HEDDLE_ERR_ARG, "a model's dtype is f32 or bf16, not %s", heddle_dtype_name(dtype));
    }
    model->dtype = dtype;
    return hd_model_derive(model, 0);
}
