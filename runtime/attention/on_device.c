#include "runtime/attention/on_device.h"

#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/move/device_list.h"

heddle_status hd_on_device_need(const hd_device **out, const heddle_comm *comm, heddle_space space, int device,
                                heddle_dtype dtype, const char *what)
{
    heddle_status st = HEDDLE_OK;
    *out = NULL;
    if (space != HEDDLE_SPACE_DEVICE) {
        return dtype != HEDDLE_F16 ? hd_device_host_only(space, device, what)
                                   : hd_fail(HEDDLE_ERR_UNSUPPORTED, "%s in f16 wants a device (space)", what);
    }
    HD_TRY(hd_comm_need_space(comm, space, device, what));
    *out = hd_comm_device(comm);
    if ((*out)->library->kernels == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "%s on device %s: its library has no kernels", what, (*out)->name);
    }
out:
    return st;
}

heddle_status hd_on_device_open(hd_enqueued *used, heddle_stream *stream, const heddle_comm *comm, const char *what)
{
    heddle_status st = HEDDLE_OK;
    hd_device *device = hd_comm_device(comm);
    HD_TRY(hd_device_load_kernels(device)); /* not in a call, while kernels of other ranks may wait */
    HD_TRY(hd_enqueued_open(used, device));
    used->names = (hd_enqueued_names){hd_comm_rank_name(comm, heddle_comm_rank(comm)), "last launch", what, ""};
    st = device->library->stream_create(stream, device->number);
out:
    return st;
}

int hd_on_device_is_idle(hd_enqueued *used, const heddle_comm *comm)
{
    return used->event != NULL &&
           hd_enqueued_lets_free(used, hd_comm_device(comm), hd_comm_deadline_ns(comm, 0) + HD_DEVICE_GRACE_NS);
}

void hd_on_device_let_go(heddle_comm *comm, void *buffer, int is_idle)
{
    if (is_idle) {
        heddle_buffer_free(comm, buffer);
    } else {
        hd_comm_leave_buffer(comm, buffer);
    }
}
