/* The public face of a made communicator: what it answers and does. */
#include "runtime/comm/comm_private.h"

#include <heddle/nccl.h>
#include <heddle/peers.h>
#include <stdio.h>
#include <string.h>

int heddle_comm_rank(const heddle_comm *comm)
{
    return comm != NULL ? comm->rank : -1;
}

int heddle_comm_size(const heddle_comm *comm)
{
    return comm != NULL ? comm->size : 0;
}

const char *heddle_comm_describe(const heddle_comm *comm)
{
    return comm != NULL ? comm->describe : "";
}

int heddle_comm_reaches(const heddle_comm *comm, int rank)
{
    return comm != NULL && rank >= 0 && rank < comm->size && comm->window[rank].bytes > 0;
}

heddle_status heddle_comm_get_peer(heddle_peer *out, const heddle_comm *comm, int rank)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out));
    HD_TRY(hd_struct_room(out, HD_STRUCT(heddle_peer, why)));
    HD_TRY(HD_NEED(comm));
    if (rank < 0 || rank >= comm->size) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_comm_get_peer: rank %d of %d", rank, comm->size);
    }
    heddle_peer made = {.reaches = comm->window[rank].bytes > 0};
    const hd_traits *way = made.reaches ? &hd_memory_traits : &comm->messages;
    made.link = rank == comm->rank ? HEDDLE_LINK_SELF : way->link;
    made.spaces = way->spaces;
    made.stream_ordered = way->stream_ordered;
    made.latency_ns = way->latency_ns;
    made.bytes_per_s = way->bytes_per_s;
    hd_comm_say_reach(made.why, sizeof made.why, comm, rank);
    st = hd_struct_give(out, &made, HD_STRUCT(heddle_peer, why));
out:
    return st;
}

size_t heddle_comm_shared_cache_bytes(const heddle_comm *comm)
{
    (void)comm;
    return hd_topology_shared_cache_bytes();
}

/* A call that memory of other processes depends on. */
static heddle_status begin(heddle_comm *comm, const char *call)
{
    heddle_status st = hd_group_owned(comm->group, call);
    return st == HEDDLE_OK ? hd_fault_point(comm, call) : st;
}

heddle_status heddle_buffer_alloc(void **out, heddle_comm *comm, size_t bytes, heddle_space space)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, comm));
    hd_device *device = space == HEDDLE_SPACE_DEVICE ? hd_comm_device(comm) : NULL;
    HD_TRY(hd_comm_need_space(comm, space, device != NULL ? device->number : 0, "a buffer"));
    HD_TRY(begin(comm, "buffer alloc"));
    HD_TRY(device != NULL ? hd_device_alloc(device, out, bytes, HD_DEVICE_FOR_PEERS)
                          : hd_group_alloc(comm->group, out, bytes));
    atomic_fetch_add(&comm->group->holders, 1);
out:
    return st;
}

void heddle_buffer_free(heddle_comm *comm, void *buffer)
{
    if (comm == NULL || buffer == NULL) {
        return;
    }
    hd_device *device = hd_comm_device(comm);
    if ((device != NULL && hd_device_release(device, buffer)) || hd_group_release(comm->group, buffer)) {
        hd_comm_drop(comm, comm->group);
    }
}

/* --- the device --------------------------------------------------------------------------------------------------- */

heddle_status heddle_comm_attach_device(heddle_comm *comm, const char *device, heddle_wire wire)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(comm)); /* else there is nobody to tell */
    HD_TRY(hd_group_owned(comm->group, "attach device"));
    st = hd_comm_attach(comm, device, wire, NULL, HD_NEED(device));
out:
    return st;
}

const heddle_device *heddle_comm_device_table(const heddle_comm *comm)
{
    const hd_device *device = comm != NULL ? hd_comm_device(comm) : NULL;
    return device != NULL ? device->library : NULL;
}

heddle_status heddle_comm_replay(heddle_comm *comm, void *graph, heddle_stream stream)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(comm, graph));
    HD_TRY(hd_group_owned(comm->group, "replay"));
    if (hd_comm_device(comm) == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_comm_replay: the communicator has no device");
    }
    st = hd_replay(comm->root, graph, stream);
out:
    return st;
}

heddle_status heddle_comm_lend_nccl(heddle_comm *comm, const char *device, struct ncclComm *borrowed)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(comm)); /* else there is nobody to tell */
    HD_TRY(hd_group_owned(comm->group, "lend nccl"));
    heddle_status mine = HD_NEED(device, borrowed);
    comm->lent = borrowed;
    st = hd_comm_attach(comm, device, HEDDLE_WIRE_NCCL, NULL, mine);
    comm->lent = NULL; /* its library has it, or nobody */
out:
    return st;
}

heddle_status heddle_comm_lend_peers(heddle_comm *comm, void *const *at, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(comm)); /* else there is nobody to tell */
    HD_TRY(hd_group_owned(comm->group, "lend peers"));
    st = hd_comm_lend_peers(comm, at, bytes, HD_NEED(at));
out:
    return st;
}

int heddle_comm_device(const heddle_comm *comm)
{
    const hd_device *device = comm != NULL ? hd_comm_device(comm) : NULL;
    return device != NULL ? device->number : -1;
}

heddle_status heddle_comm_poll(heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(comm));
    HD_TRY(hd_group_owned(comm->group, "poll"));
    HD_TRY(hd_comm_wire_of(comm)->look(comm));
    const hd_device *device = hd_comm_device(comm);
    HD_TRY(device != NULL ? device->library->check(device->number) : HEDDLE_OK);
    for (const hd_outlook *o = hd_watch_outlooks(comm->root->watch); o != NULL && st == HEDDLE_OK; o = o->next) {
        st = o->ask(o->arg);
    }
out:
    return st;
}

/* --- group operations --------------------------------------------------------------------------------------------- */

heddle_status heddle_comm_barrier(heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(comm));
    HD_TRY(hd_comm_begin(comm, "barrier"));
    st = comm->calls->barrier(comm);
out:
    return st;
}

heddle_status heddle_comm_allgather(heddle_comm *comm, const void *send, void *recv, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(comm));
    if (bytes > 0) {
        HD_TRY(HD_NEED(send, recv));
    }
    HD_TRY(hd_comm_begin(comm, "allgather"));
    st = hd_comm_gather(comm, HD_CALL_ALLGATHER, send, recv, bytes);
out:
    return st;
}

heddle_status heddle_comm_reset(heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(comm));
    st = hd_comm_reset(comm);
out:
    return st;
}

heddle_status heddle_comm_abort(heddle_comm *comm, const char *why)
{
    heddle_status st = HD_NEED(comm);
    return st == HEDDLE_OK ? hd_comm_abort(comm, why) : st;
}
