/* Which way plans of a device's arrays take: one line for each wire that is there. */
#include "runtime/reshard/plan.h"

static const hd_wire_ops *const wires[] = {
    [HEDDLE_WIRE_NCCL] = &hd_wire_nccl,
    [HEDDLE_WIRE_PEER] = &hd_wire_peer,
    [HEDDLE_WIRE_HOST] = &hd_wire_host,
};

const hd_wire_ops *hd_wire_of(const heddle_comm *comm, heddle_space space)
{
    if (space != HEDDLE_SPACE_DEVICE || hd_comm_device(comm) == NULL) { /* the latter is refused later */
        return NULL;
    }
    return wires[hd_comm_wire(comm)];
}
