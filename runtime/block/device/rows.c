/* Rows outside of blocks on a device (heddle/rows.h): a launch each. */
#include "kernels/table_device.h"
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/move/device_list.h"

#include <heddle/rows.h>

static const int64_t MOST_ROWS = INT32_MAX, MOST_WIDTH = (int64_t)1 << 30;

static heddle_status check(hd_device *device, const char *function, int64_t rows, int64_t width, int64_t other,
                           heddle_dtype dtype)
{
    if (device == NULL || device->library->kernels == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "%s: %s%s", function,
                       device == NULL ? "the communicator has no device (heddle_comm_attach_device)"
                                      : "there are no kernels in the library of device ",
                       device == NULL ? "" : device->name);
    }
    if (dtype != HEDDLE_F32 && dtype != HEDDLE_BF16 && dtype != HEDDLE_F16) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "%s: of %s, wanted f32, bf16 or f16", function,
                       heddle_dtype_name(dtype));
    }
    if (rows < 0 || rows > MOST_ROWS || width < 1 || width > MOST_WIDTH || other < 1 || other > MOST_WIDTH) {
        return hd_fail(HEDDLE_ERR_ARG, "%s: %lld rows of %lld and %lld elements: up to %lld rows, 1 to %lld elements",
                       function, (long long)rows, (long long)width, (long long)other, (long long)MOST_ROWS,
                       (long long)MOST_WIDTH);
    }
    return hd_device_load_kernels(device);
}

/* Of several arrays the first that is not the device's, or lies between elements; NULL are none. */
static heddle_status check_places(hd_device *device, const char *function, const void *const *at, int n,
                                  heddle_dtype dtype)
{
    heddle_status st = HEDDLE_OK;
    const size_t bytes = heddle_dtype_bytes(dtype);
    for (int i = 0; i < n && st == HEDDLE_OK; i++) {
        hd_stray stray = HD_STRAY_NOT;
        st = at[i] != NULL ? hd_device_stray(&stray, device, HEDDLE_SPACE_DEVICE, at[i]) : HEDDLE_OK;
        if (st == HEDDLE_OK && stray != HD_STRAY_NOT) {
            st = hd_fail(HEDDLE_ERR_ARG, "%s: %p is memory of %s, not of %s", function, at[i],
                         stray == HD_STRAY_HOST ? "the host" : "another device", device->name);
        } else if (st == HEDDLE_OK && (uintptr_t)at[i] % bytes != 0) {
            st = hd_fail(HEDDLE_ERR_ARG, "%s: %p is no multiple of %zu, the bytes of an element of %s", function, at[i],
                         bytes, heddle_dtype_name(dtype));
        }
    }
    return st;
}

#define LAUNCH(device, slot, ...)                                                                                      \
    do {                                                                                                               \
        const heddle_device *library_ = (device)->library;                                                             \
        const hd_device_kernels *kernels_ = library_->kernels;                                                         \
        int before_ = 0;                                                                                               \
        HD_TRY(library_->enter(&before_, (device)->number));                                                           \
        const int code_ = kernels_->slot(__VA_ARGS__);                                                                 \
        library_->leave(before_);                                                                                      \
        st = code_ == 0 ? HEDDLE_OK : library_->status(code_, (device)->number, __func__);                             \
    } while (0)

heddle_status heddle_rows_dense(heddle_comm *comm, void *out, const void *x, int64_t rows, int64_t k,
                                const void *weight, const void *bias, int64_t n, heddle_dtype dtype,
                                heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(comm));
    HD_TRY(rows > 0 ? HD_NEED(out, x, weight) : HEDDLE_OK);
    hd_device *device = hd_comm_device(comm);
    const void *const places[] = {out, x, weight, bias};
    HD_TRY(check(device, __func__, rows, k, n, dtype));
    HD_TRY(check_places(device, __func__, places, 4, dtype));
    const heddle_product of = {
        .kind = HEDDLE_PRODUCT_FORWARD, .dtype = dtype, .dst_dtype = dtype, .n = n, .k = k, .has_bias = bias != NULL};
    const heddle_product_call call = {.dst = out, .src = x, .with = weight, .bias = bias, .rows = rows};
    LAUNCH(device, product, &of, &call, stream);
out:
    return st;
}

heddle_status heddle_rows_add(heddle_comm *comm, void *x, const void *y, int64_t rows, int64_t c, heddle_dtype dtype,
                              heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(comm));
    HD_TRY(rows > 0 ? HD_NEED(x, y) : HEDDLE_OK);
    hd_device *device = hd_comm_device(comm);
    const void *const places[] = {x, y};
    HD_TRY(check(device, __func__, rows, c, c, dtype));
    HD_TRY(check_places(device, __func__, places, 2, dtype));
    const hd_device_rows of = {.dtype = dtype, .rows = rows, .c = c};
    LAUNCH(device, gate_residual, &of, x, y, dtype, NULL, NULL, stream);
out:
    return st;
}

heddle_status heddle_rows_norm(heddle_comm *comm, void *out, const void *x, int64_t rows, int64_t c, const float *shift,
                               const float *scale, int64_t sample_rows, int64_t sample_stride, heddle_dtype dtype,
                               heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(comm));
    HD_TRY(rows > 0 ? HD_NEED(out, x) : HEDDLE_OK);
    hd_device *device = hd_comm_device(comm);
    const void *const places[] = {out, x}, *const vectors[] = {shift, scale};
    HD_TRY(check(device, __func__, rows, c, c, dtype));
    if (sample_rows < 0 || sample_rows > MOST_ROWS || sample_stride < 0 || sample_stride > MOST_ROWS) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_rows_norm: samples of %lld rows, %lld elements apart: 0 to %lld of both",
                       (long long)sample_rows, (long long)sample_stride, (long long)MOST_ROWS);
    }
    if (rows > 0 && (shift == NULL) != (scale == NULL)) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_rows_norm: %s: both or none",
                       shift == NULL ? "a scale without shift" : "a shift without scale");
    }
    HD_TRY(check_places(device, __func__, places, 2, dtype));
    HD_TRY(check_places(device, __func__, vectors, 2, HEDDLE_F32));
    const hd_device_rows of = {
        .dtype = dtype, .rows = rows, .c = c, .sample_rows = sample_rows, .sample_stride = sample_stride};
    LAUNCH(device, norm_modulate, &of, out, x, shift, scale, stream);
out:
    return st;
}
