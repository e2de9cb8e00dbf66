/* The wire peer: kernels of every rank store to the device memory of the others. Who can, and what ends their waits. */
#include "runtime/comm/comm_private.h"

#include <string.h>

enum { MOST_RANKS = 64 /* HD_DEVICE_MAX_PEERS of the kernels */ };

hd_sharers hd_comm_sharers(const heddle_comm *comm)
{
    return comm->root->sharers;
}

heddle_status hd_comm_gather_places(hd_device_place **out, hd_sharers *sharers, heddle_comm *comm,
                                    const hd_device *device)
{
    heddle_status st = HEDDLE_OK;
    hd_device_place own = {.number = device->number}, *place = NULL;
    st = hd_alloc((void **)&place, (size_t)comm->size, sizeof *place, "places of devices");
    st = st == HEDDLE_OK ? hd_process_self(&own.process) : st;
    if (st == HEDDLE_OK && device->library->identify != NULL) {
        st = device->library->identify(own.id, sizeof own.id, device->number);
    }
    HD_TRY(hd_comm_agree(comm, st));
    HD_TRY(hd_comm_gather(comm, HD_CALL_ALLGATHER, &own, place, sizeof own));
    *sharers = (hd_sharers){.ranks = comm->size};
    for (int r = 0; r < comm->size; r++) {
        int is_same = strcmp(place[r].id, own.id) == 0;
        sharers->all += is_same;
        sharers->in_process += is_same && place[r].process == own.process;
        for (int other = 0; other < r; other++) {
            sharers->any_together |= place[r].process == place[other].process;
        }
    }
    *out = place;
    place = NULL;
out:
    hd_free(place);
    return st;
}

static heddle_status check(const heddle_comm *comm, const hd_device *device, const hd_device_place *place)
{
    heddle_status st = HEDDLE_OK;
    int blocks = 0;
    if (device->library->kernels == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "the library of %s was built without kernels (nvcc)", device->name);
    }
    if (comm->size > MOST_RANKS) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "there are %d ranks, and kernels meet at most %d", comm->size,
                       MOST_RANKS);
    }
    if (comm->nlocal < comm->size) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "the ranks do not all reach one another on one host");
    }
    if (!hd_comm_shares_address_space(comm) && device->library->share == NULL) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "memory of %s stays in its process", device->name);
    }
    HD_TRY(device->library->blocks(&blocks, device->number));
    if (comm->sharers.all * comm->size > blocks) { /* a block for each peer, and all of them wait for one another */
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "%d of %d ranks share device %s, which runs %d blocks at a time",
                       comm->sharers.all, comm->size, device->name, blocks);
    }
    for (int r = 0; r < comm->size; r++) { /* of other processes: hd_comm_prove_stores */
        const int is_here = place[r].process == place[comm->rank].process;
        HD_TRY(is_here ? device->library->reach(device->number, place[r].number) : HEDDLE_OK);
    }
out:
    return st;
}

static heddle_status open_peer(heddle_comm *comm, hd_device *device)
{
    heddle_status st = hd_watch_start(&comm->watch, comm->group, device);
    st = hd_comm_agree(comm, st == HEDDLE_OK ? hd_replays_open(comm, device) : st);
    st = st == HEDDLE_OK ? hd_comm_prove_stores(comm, device) : st;
    if (st != HEDDLE_OK) {
        hd_replays_close(comm);
        hd_watch_stop(comm->watch);
        comm->watch = NULL;
    }
    return st;
}

const hd_wire hd_wire_peer = {.check = check, .open = open_peer, .look = hd_comm_check, .devices_wait = 1};
