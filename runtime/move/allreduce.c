/* The sum over ranks of small host data: the communicator brings the terms together, a kernel adds them. */
#include "kernels/table.h"
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"

heddle_status heddle_comm_allreduce_sum(heddle_comm *comm, void *data, int64_t elems, heddle_dtype dtype)
{
    heddle_status st = HEDDLE_OK;
    const hd_kernels *kernels = NULL;
    if (dtype != HEDDLE_F64 && dtype != HEDDLE_F32 && dtype != HEDDLE_I64) {
        return hd_fail(HEDDLE_ERR_ARG, "allreduce of dtype %d, wanted f64, f32 or i64", (int)dtype);
    }
    if (elems < 0 || elems > INT64_MAX / 8) {
        return hd_fail(HEDDLE_ERR_ARG, "allreduce of %lld elements", (long long)elems);
    }
    HD_TRY(HD_NEED(comm));
    if (elems > 0) {
        HD_TRY(HD_NEED(data));
    }
    HD_TRY(hd_kernels_cpu(&kernels));
    HD_TRY(hd_comm_begin(comm, "allreduce"));
    st = hd_comm_sum(comm, data, (size_t)elems, dtype, kernels->sum[dtype]);
out:
    return st;
}
