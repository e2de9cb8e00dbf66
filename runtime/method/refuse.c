/* What every method over a sharded dim wants of arrays and axes: of the planner's activation and of an object's arrays
 * alike. What one of them wants besides is in its file. */
#include "runtime/method/method.h"

#include "runtime/base/base.h"

#include <stdio.h>

heddle_status hd_method_takes_arrays(char *reason, const heddle_shape *shape, const heddle_mesh *mesh,
                                     const heddle_layout *layout, int smallest)
{
    if (shape->dtype != HEDDLE_F64 && shape->dtype != HEDDLE_F32 && shape->dtype != HEDDLE_BF16) {
        snprintf(reason, HD_METHOD_REASON_BYTES, "attention stores f32, bf16 or f64, not %s",
                 heddle_dtype_name(shape->dtype));
        return HEDDLE_ERR_UNSUPPORTED;
    }
    for (int a = 0; a < mesh->naxes; a++) {
        int dim = layout->dim_of_axis[a];
        if (mesh->axis[a].size >= smallest && (dim == HEDDLE_PARTIAL || dim == shape->ndim - 1)) {
            snprintf(reason, HD_METHOD_REASON_BYTES, "attention of a tensor %s%s%s over mesh axis %s",
                     dim < 0 ? "of partial sums" : "whose dim '", dim < 0 ? "" : shape->dim[dim].name,
                     dim < 0 ? "" : "' is sharded", mesh->axis[a].name);
            return HEDDLE_ERR_LAYOUT;
        }
    }
    return HEDDLE_OK;
}

int hd_method_axes(int axis[2], const heddle_mesh *mesh, const heddle_layout *layout, unsigned dims, int smallest)
{
    int count = 0;
    axis[0] = axis[1] = -1;
    for (int a = 0; a < mesh->naxes; a++) {
        int dim = layout->dim_of_axis[a];
        if (dim >= 0 && (dims >> dim & 1) != 0 && mesh->axis[a].size >= smallest) {
            if (count < 2) {
                axis[count] = a;
            }
            count++;
        }
    }
    return count;
}

heddle_status hd_method_takes_axes(char *reason, const char *dim, const heddle_mesh *mesh, const int axis[2], int count)
{
    if (count > 2) {
        snprintf(reason, HD_METHOD_REASON_BYTES,
                 "dim '%s' is sharded over %d mesh axes; one or two can be attended over", dim, count);
        return HEDDLE_ERR_UNSUPPORTED;
    }
    for (int a = axis[0] + 1; a < axis[1]; a++) {
        if (mesh->axis[a].size > 1) {
            snprintf(reason, HD_METHOD_REASON_BYTES, "dim '%s' is on mesh axes %s and %s with %s between them", dim,
                     mesh->axis[axis[0]].name, mesh->axis[axis[1]].name, mesh->axis[a].name);
            return HEDDLE_ERR_UNSUPPORTED;
        }
    }
    return HEDDLE_OK;
}

heddle_status hd_method_need(const hd_method *method, const hd_method_group *group)
{
    char reason[HD_METHOD_REASON_BYTES];
    const char *why_not = method->why_not != NULL ? method->why_not(reason, group) : NULL;
    return why_not == NULL ? HEDDLE_OK : hd_fail(HEDDLE_ERR_LAYOUT, "%s", why_not);
}
