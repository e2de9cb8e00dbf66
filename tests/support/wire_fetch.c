/* All that heddle's comm room needs of a wire "fetch" (carrier_fetch.c): who can take it. */
#include "runtime/comm/comm_private.h"

static heddle_status check(const heddle_comm *comm, const hd_device *device, const hd_device_place *place)
{
    heddle_status st = HEDDLE_OK;
    if (!hd_comm_shares_address_space(comm)) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "an address of one process says nothing in another one");
    }
    if (device->library->kernels == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "the library of %s was built without kernels (nvcc)", device->name);
    }
    for (int r = 0; r < comm->size; r++) {
        HD_TRY(device->library->reach(device->number, place[r].number));
    }
out:
    return st;
}

extern const hd_wire hd_wire_fetch;
const hd_wire hd_wire_fetch = {.check = check, .look = hd_comm_check};
