/* The device of a communicator: opened, agreed on by all ranks, described. */
#include "runtime/comm/comm_private.h"

#include <stdio.h>
#include <string.h>

static const char *const wire_names[] = {"auto", "peer", "nccl", "host"};

hd_device *hd_comm_device(const heddle_comm *comm)
{
    while (comm->parent != NULL) {
        comm = comm->parent;
    }
    return comm->device;
}

heddle_status hd_comm_need_space(const heddle_comm *comm, heddle_space space, int device, const char *what)
{
    return hd_device_need(hd_comm_device(comm), space, device, what, comm->name);
}

static heddle_status check(const heddle_comm *comm, heddle_wire wire)
{
    if (wire < HEDDLE_WIRE_AUTO || wire > HEDDLE_WIRE_HOST) {
        return hd_fail(HEDDLE_ERR_ARG, "wire is %d, wanted 0 to %d", (int)wire, (int)HEDDLE_WIRE_HOST);
    }
    if (comm->parent != NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "a device is attached to the communicator that an axis group is part of");
    }
    return comm->device == NULL ? HEDDLE_OK
                                : hd_fail(HEDDLE_ERR_ARG, "the communicator has a device: %s", comm->device->name);
}

/* Of the wires only the one through host memory is there. */
static heddle_status check_wire(heddle_wire wire)
{
    if (wire == HEDDLE_WIRE_AUTO || wire == HEDDLE_WIRE_HOST) {
        return HEDDLE_OK;
    }
    return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                   "wire %s: this version has none but host, by which device memory is staged in host memory",
                   wire_names[wire]);
}

static void describe(heddle_comm *comm, heddle_wire wire)
{
    size_t at = strlen(comm->describe);
    snprintf(comm->describe + at, sizeof comm->describe - at, "; device %s (%s), wire host%s", comm->device->name,
             comm->device->describe, wire == HEDDLE_WIRE_AUTO ? " (no other is there)" : " as asked for");
}

heddle_status hd_comm_attach(heddle_comm *comm, const char *where, heddle_wire wire, const char *folder,
                             heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    hd_device *device = NULL;
    hd_fields fields = {.what = "device"};
    mine = mine == HEDDLE_OK ? check(comm, wire) : mine;
    if (mine == HEDDLE_OK) {
        hd_fields_add(&fields, "kind", "%.*s", (int)strcspn(where, ":"), where);
        hd_fields_add(&fields, "wire", "%s", wire_names[wire]);
    }
    HD_TRY(hd_comm_agree_on(comm, &fields, mine));
    mine = check_wire(wire);
    HD_TRY(hd_comm_agree(comm, mine == HEDDLE_OK ? hd_device_open(&device, where, folder, comm->group->me) : mine));
    comm->device = device;
    device = NULL;
    describe(comm, wire);
out:
    hd_device_close(device);
    return st;
}
