/* The sum over ranks of small data: the communicator brings the terms together, a kernel of the host adds them. */
#include "kernels/table.h"
#include "runtime/base/base.h"
#include "runtime/move/device_image.h"

static heddle_status sum_image(heddle_comm *comm, void *data, int64_t elems, heddle_dtype dtype, hd_comm_add add,
                               heddle_stream stream)
{
    heddle_status st;
    hd_image image;
    HD_TRY(hd_image_open(&image, comm, data, (size_t)elems * (dtype == HEDDLE_F32 ? sizeof(float) : sizeof(double)), 1,
                         stream, "allreduce"));
    HD_TRY(hd_comm_sum(comm, image.host, (size_t)elems, dtype, add));
    st = hd_image_write(&image);
out:
    hd_image_close(&image);
    return st;
}

/* A device's data are copied on a stream of their own, so that nobody waits for what other streams have. */
static heddle_status sum(heddle_comm *comm, void *data, int64_t elems, heddle_dtype dtype, hd_comm_add add)
{
    heddle_status st;
    heddle_stream stream = NULL;
    int is_there = 0;
    HD_TRY(hd_image_is_wanted(&is_there, comm, data, (size_t)elems, "allreduce"));
    if (!is_there) {
        return hd_comm_sum(comm, data, (size_t)elems, dtype, add);
    }
    const hd_device *device = hd_comm_device(comm);
    st = device->library->stream_create(&stream, device->number);
    if (st != HEDDLE_OK) { /* the others would wait for this rank */
        return hd_comm_abort_with(comm, st);
    }
    st = sum_image(comm, data, elems, dtype, add, stream);
    device->library->stream_destroy(stream, device->number);
out:
    return st;
}

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
    st = sum(comm, data, elems, dtype, kernels->sum[dtype]);
out:
    return st;
}
