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

heddle_wire hd_comm_wire(const heddle_comm *comm)
{
    while (comm->parent != NULL) {
        comm = comm->parent;
    }
    return comm->device != NULL ? comm->wire : HEDDLE_WIRE_HOST;
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

/* --- wires -------------------------------------------------------------------------------------------------------- */

enum { WHY_BYTES = 160 };

/* Can this rank take part in a wire? Any failure means no, and its sentence says why. Not collective. */
typedef heddle_status (*wire_fn)(const heddle_comm *comm, const hd_device *device);

static heddle_status no_wire(const heddle_comm *comm, const hd_device *device)
{
    (void)comm;
    (void)device;
    return hd_fail(HEDDLE_ERR_UNSUPPORTED, "not in this version");
}

static heddle_status host_wire(const heddle_comm *comm, const hd_device *device)
{
    (void)comm;
    (void)device;
    return HEDDLE_OK;
}

/* In the order in which AUTO takes them. */
static const struct {
    heddle_wire wire;
    wire_fn check;
} wires[] = {{HEDDLE_WIRE_PEER, no_wire}, {HEDDLE_WIRE_NCCL, no_wire}, {HEDDLE_WIRE_HOST, host_wire}};

enum { WIRES = sizeof wires / sizeof wires[0] };

/* What a rank says of the wires. */
typedef struct wire_answer {
    int32_t can[WIRES];
    char why_not[WIRES][WHY_BYTES];
} wire_answer;

static void answer(wire_answer *out, const heddle_comm *comm, const hd_device *device)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < WIRES; i++) {
        out->can[i] = wires[i].check(comm, device) == HEDDLE_OK;
        snprintf(out->why_not[i], WHY_BYTES, "%s", out->can[i] ? "" : heddle_last_error());
    }
}

/* The first rank that cannot; -1: all can. */
static int who_cannot(const wire_answer *all, int nranks, int wire)
{
    int r = 0;
    while (r < nranks && all[r].can[wire]) {
        r++;
    }
    return r < nranks ? r : -1;
}

/* The wire that was asked for, or of AUTO the first one that all ranks can take part in, the same on every rank. why:
 * also what keeps the ranks from those before it. */
static heddle_status choose(heddle_wire *out, char *why, size_t why_bytes, const wire_answer *all, int nranks,
                            heddle_wire asked)
{
    size_t at = 0;
    why[0] = 0;
    for (int i = 0; i < WIRES; i++) {
        int who = who_cannot(all, nranks, i);
        if (who < 0 && (asked == HEDDLE_WIRE_AUTO || asked == wires[i].wire)) {
            *out = wires[i].wire;
            snprintf(why + at, why_bytes - at, "%s",
                     asked == HEDDLE_WIRE_AUTO ? at > 0 ? "" : "the fastest" : "as asked for");
            return HEDDLE_OK;
        }
        if (asked == wires[i].wire) {
            return hd_fail(HEDDLE_ERR_UNSUPPORTED, "wire %s: rank %d: %s", wire_names[asked], who, all[who].why_not[i]);
        }
        if (asked == HEDDLE_WIRE_AUTO) {
            at += (size_t)snprintf(why + at, why_bytes - at, "%snot %s: %s", at > 0 ? "; " : "",
                                   wire_names[wires[i].wire], all[who].why_not[i]);
            at = at < why_bytes ? at : why_bytes - 1;
        }
    }
    return hd_fail(HEDDLE_ERR_INTERNAL, "no wire goes");
}

/* Collective. */
static heddle_status choose_wire(heddle_wire *out, char *why, size_t why_bytes, heddle_comm *comm,
                                 const hd_device *device, heddle_wire asked)
{
    heddle_status st = HEDDLE_OK;
    wire_answer mine, *all = NULL;
    answer(&mine, comm, device);
    HD_TRY(
        hd_comm_agree(comm, hd_alloc((void **)&all, (size_t)comm->size, sizeof *all, "what ranks say of the wires")));
    HD_TRY(hd_comm_gather(comm, HD_CALL_ALLGATHER, &mine, all, sizeof mine));
    st = choose(out, why, why_bytes, all, comm->size, asked);
out:
    hd_free(all);
    return st;
}

static void describe(heddle_comm *comm, const char *why)
{
    size_t at = strlen(comm->describe);
    snprintf(comm->describe + at, sizeof comm->describe - at, "; device %s (%s), wire %s (%s)", comm->device->name,
             comm->device->describe, wire_names[comm->wire], why);
}

heddle_status hd_comm_attach(heddle_comm *comm, const char *where, heddle_wire wire, const char *folder,
                             heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    hd_device *device = NULL;
    hd_fields fields = {.what = "device"};
    char why[WIRES * WHY_BYTES];
    mine = mine == HEDDLE_OK ? check(comm, wire) : mine;
    if (mine == HEDDLE_OK) {
        hd_fields_add(&fields, "kind", "%.*s", (int)strcspn(where, ":"), where);
        hd_fields_add(&fields, "wire", "%s", wire_names[wire]);
    }
    HD_TRY(hd_comm_agree_on(comm, &fields, mine));
    HD_TRY(hd_comm_agree(comm, hd_device_open(&device, where, folder, comm->group->me)));
    HD_TRY(choose_wire(&comm->wire, why, sizeof why, comm, device, wire));
    comm->device = device;
    device = NULL;
    describe(comm, why);
out:
    hd_device_close(device);
    return st;
}
