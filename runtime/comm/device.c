/* The device of a communicator: opened, agreed on by all ranks, described. */
#include "runtime/comm/comm_private.h"

#include <stdio.h>
#include <string.h>

#define NAME_OF(name, text) [HEDDLE_WIRE_##name] = text,
static const char *const wire_names[] = {HEDDLE_WIRE_LIST(NAME_OF)};

hd_device *hd_comm_device(const heddle_comm *comm)
{
    return comm->root->device;
}

heddle_wire hd_comm_wire(const heddle_comm *comm)
{
    const heddle_comm *root = comm->root;
    return root->device != NULL ? root->wire : HEDDLE_WIRE_HOST;
}

const char *hd_comm_wire_name(const heddle_comm *comm)
{
    return wire_names[hd_comm_wire(comm)];
}

heddle_status hd_comm_need_space(const heddle_comm *comm, heddle_space space, int device, const char *what)
{
    return hd_device_need(hd_comm_device(comm), space, device, what, comm->name);
}

static heddle_status check(const heddle_comm *comm, heddle_wire wire)
{
    const int last = (int)(sizeof wire_names / sizeof wire_names[0]) - 1;
    if ((int)wire < 0 || (int)wire > last) {
        return hd_fail(HEDDLE_ERR_ARG, "wire is %d, wanted 0 to %d", (int)wire, last);
    }
    if (comm->parent != NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "a device is attached to the communicator that an axis group is part of");
    }
    return comm->device == NULL ? HEDDLE_OK
                                : hd_fail(HEDDLE_ERR_ARG, "the communicator has a device: %s", comm->device->name);
}

/* --- wires -------------------------------------------------------------------------------------------------------- */

enum { WHY_BYTES = 160 };

const hd_wire hd_wire_host = {.look = hd_comm_check};

#define ROW_OF(name, wire) {HEDDLE_WIRE_##name, &hd_wire_##wire},
static const struct {
    heddle_wire wire;
    const hd_wire *of;
} wires[] = {HD_WIRES(ROW_OF)};
#undef ROW_OF

enum { WIRES = sizeof wires / sizeof wires[0] };

const hd_wire *hd_comm_wire_of(const heddle_comm *comm)
{
    const heddle_wire wire = hd_comm_wire(comm);
    int i = 0;
    while (i < WIRES - 1 && wires[i].wire != wire) {
        i++;
    }
    return wires[i].of;
}

/* Collective. *who: the first rank that cannot take part, and why; -1: all can. */
static heddle_status ask_all(int *who, char *why_not, heddle_comm *comm, const hd_device *device,
                             const hd_device_place *place, int i)
{
    heddle_status st = HEDDLE_OK;
    const hd_wire *wire = wires[i].of;
    hd_record own = {.number = wire->check == NULL || wire->check(comm, device, place) == HEDDLE_OK};
    hd_copy_text(own.text, WHY_BYTES, own.number ? "" : heddle_last_error());
    HD_TRY(hd_comm_agree_with(comm, HEDDLE_OK, &own));
    *who = -1;
    for (int r = comm->size - 1; r >= 0; r--) {
        if (!comm->records[r].number) {
            *who = r;
            const int at = snprintf(why_not, WHY_BYTES, "rank %d: ", r);
            hd_copy_text(why_not + at, (size_t)(WHY_BYTES - at), comm->records[r].text);
        }
    }
out:
    return st;
}

/* Collective, with the same outcome on every rank: *goes, or why not. Errors: of the communicator. */
static heddle_status try_wire(heddle_status *goes, char *why_not, heddle_comm *comm, hd_device *device,
                              const hd_device_place *place, int i)
{
    heddle_status st = HEDDLE_OK;
    int who = -1;
    HD_TRY(ask_all(&who, why_not, comm, device, place, i));
    if (who >= 0) {
        *goes = hd_fail(HEDDLE_ERR_UNSUPPORTED, "wire %s: %s", wire_names[wires[i].wire], why_not);
        return HEDDLE_OK;
    }
    *goes = wires[i].of->open != NULL ? wires[i].of->open(comm, device) : HEDDLE_OK;
    if (*goes != HEDDLE_OK) {
        hd_copy_text(why_not, WHY_BYTES, heddle_last_error());
        HD_TRY(hd_comm_check(comm)); /* else that is the news */
        heddle_ignore(hd_fail(*goes, "wire %s: %s", wire_names[wires[i].wire], why_not));
    }
out:
    return st;
}

/* Collective. The wire that was asked for, or of AUTO the first one that all ranks can take part in. why: also what
 * keeps the ranks from those before it. */
static heddle_status choose_wire(heddle_wire *out, char *why, size_t why_bytes, heddle_comm *comm, hd_device *device,
                                 const hd_device_place *place, heddle_wire asked)
{
    heddle_status st = HEDDLE_OK;
    size_t at = 0;
    why[0] = 0;
    for (int i = 0; i < WIRES; i++) {
        heddle_status goes = HEDDLE_OK;
        char why_not[WHY_BYTES] = "";
        if (asked != HEDDLE_WIRE_AUTO && asked != wires[i].wire) {
            continue;
        }
        HD_TRY(try_wire(&goes, why_not, comm, device, place, i));
        if (goes == HEDDLE_OK) {
            *out = wires[i].wire;
            snprintf(why + at, why_bytes - at, "%s",
                     asked == HEDDLE_WIRE_AUTO ? at > 0 ? "" : "the fastest" : "as asked for");
            return HEDDLE_OK;
        }
        HD_TRY(asked == HEDDLE_WIRE_AUTO ? HEDDLE_OK : goes);
        at += (size_t)snprintf(why + at, why_bytes - at, "%snot %s: %s", at > 0 ? "; " : "", wire_names[wires[i].wire],
                               why_not);
        at = at < why_bytes ? at : why_bytes - 1;
    }
    return hd_fail(HEDDLE_ERR_INTERNAL, "no wire goes");
out:
    return st;
}

static int count_devices(const hd_device_place *place, int nranks)
{
    int devices = 0;
    for (int r = 0; r < nranks; r++) {
        int before = 0;
        while (before < r && strcmp(place[before].id, place[r].id) != 0) {
            before++;
        }
        devices += before == r;
    }
    return devices;
}

static void describe(heddle_comm *comm, const hd_device_place *place, const char *why)
{
    const int devices = count_devices(place, comm->size);
    size_t at = strlen(comm->describe);
    char of[32] = "", by[48] = "";
    if (devices > 1) {
        snprintf(of, sizeof of, ", one of %d", devices);
    }
    if (comm->sharers.all > 1) {
        snprintf(by, sizeof by, ", shared by %d ranks", comm->sharers.all);
    }
    snprintf(comm->describe + at, sizeof comm->describe - at, "; device %s (%s)%s%s, wire %s (%s)", comm->device->name,
             comm->device->describe, of, by, wire_names[comm->wire], why);
}

heddle_status hd_comm_attach(heddle_comm *comm, const char *where, heddle_wire wire, const char *folder,
                             heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    hd_device *device = NULL;
    hd_device_place *place = NULL;
    hd_fields fields = {.what = "device"};
    char why[WIRES * WHY_BYTES];
    mine = mine == HEDDLE_OK ? check(comm, wire) : mine;
    if (mine == HEDDLE_OK) {
        hd_fields_add(&fields, "kind", "%.*s", (int)strcspn(where, ":"), where);
        hd_fields_add(&fields, "wire", "%s", wire_names[wire]);
        hd_fields_add(&fields, "communicator of NCCL", "%s", comm->lent != NULL ? "lent" : "not lent");
    }
    HD_TRY(hd_comm_agree_on(comm, &fields, mine));
    HD_TRY(hd_comm_agree(comm, hd_device_open(&device, where, folder, comm->group->me)));
    HD_TRY(hd_comm_gather_places(&place, &comm->sharers, comm, device));
    HD_TRY(choose_wire(&comm->wire, why, sizeof why, comm, device, place, wire));
    device->folder = NULL; /* the caller's */
    comm->device = device;
    device->keeps = hd_comm_wire_of(comm)->devices_wait && comm->sharers.any_together;
    device = NULL;
    describe(comm, place, why);
out:
    hd_free(place);
    hd_device_close(device);
    return st;
}
