/* Device memory between processes: each rank maps what the others have allocated, once, and tells them where. */
#include "runtime/comm/comm_private.h"

#include <string.h>

struct hd_mapping {
    hd_mapping *next;
    int rank;             /* whose, of the communicator without parent */
    uint64_t base, bytes; /* there */
    char *memory;         /* here */
};

int hd_comm_is_here(const heddle_comm *comm, int rank)
{
    hd_control *const *control = comm->group->control;
    const int index = comm->member[rank];
    return index >= 0 && control[index]->process == control[comm->group->me]->process;
}

/* --- addresses ---------------------------------------------------------------------------------------------------- */

static hd_mapping *find(const heddle_comm *root, int root_rank, uint64_t address)
{
    hd_mapping *m = root->mappings;
    while (m != NULL && (m->rank != root_rank || address - m->base >= m->bytes)) {
        m = m->next;
    }
    return m;
}

void *hd_comm_of_peer(const heddle_comm *comm, int rank, uint64_t memory)
{
    if (hd_comm_is_here(comm, rank)) {
        return (void *)(uintptr_t)memory;
    }
    const hd_mapping *m = find(comm->root, hd_comm_root_rank(comm, rank), memory);
    return m != NULL ? m->memory + (memory - m->base) : NULL;
}

static int holds(const hd_device_buffer *b, uintptr_t address, uint64_t bytes)
{
    const uintptr_t offset = address - (uintptr_t)b->memory;
    return offset < b->bytes && bytes <= b->bytes - offset;
}

/* 0: no buffer of the list that `rank` has a place for holds all of it. */
static uint64_t place_of(const hd_device_buffer *b, int rank, uintptr_t address, uint64_t bytes)
{
    for (; b != NULL; b = b->next) {
        if (b->at != NULL && b->at[rank] != 0 && holds(b, address, bytes)) {
            return b->at[rank] + (address - (uintptr_t)b->memory);
        }
    }
    return 0;
}

uint64_t hd_comm_at_peer(const heddle_comm *comm, int rank, const void *memory, int64_t bytes)
{
    const uintptr_t address = (uintptr_t)memory;
    if (hd_comm_is_here(comm, rank)) {
        return address;
    }
    const hd_device *device = hd_comm_device(comm);
    const int root = hd_comm_root_rank(comm, rank);
    const uint64_t at = place_of(device->lent, root, address, (uint64_t)bytes);
    return at != 0 ? at : place_of(device->buffers, root, address, (uint64_t)bytes);
}

/* --- mapping ------------------------------------------------------------------------------------------------------ */

/* A piece of memory as its owner knows it; no bytes: none. */
typedef struct offer {
    uint64_t base, bytes;
    heddle_device_name name;
} offer;

/* Arrays by rank of comm have `most` entries for each. */
typedef struct meeting {
    heddle_comm *comm;
    hd_device *device;
    int most;
    offer *own, *all;
    uint64_t *answer, *answers; /* where this rank has what the others offer; the same of all ranks */
} meeting;

/* Is there a rank that does not have it yet? */
static int is_new(const meeting *m, const hd_device_buffer *b)
{
    int missing = 0;
    for (int r = 0; r < m->comm->size && !b->is_own; r++) {
        missing |= !hd_comm_is_here(m->comm, r) && (b->at == NULL || b->at[hd_comm_root_rank(m->comm, r)] == 0);
    }
    return missing;
}

static int count_new(const meeting *m)
{
    int count = 0;
    for (const hd_device_buffer *b = m->device->buffers; b != NULL; b = b->next) {
        count += is_new(m, b);
    }
    return count;
}

/* What is shared once is not freed before the communicator ends: others may have it mapped. */
static heddle_status offer_one(offer *out, const meeting *m, hd_device_buffer *b)
{
    heddle_status st = HEDDLE_OK;
    const size_t ranks = (size_t)m->comm->root->size;
    HD_TRY(m->device->library->share(&out->name, b->memory, m->device->number));
    HD_TRY(b->at == NULL ? hd_alloc((void **)&b->at, ranks, sizeof *b->at, "shared memory") : HEDDLE_OK);
    out->base = (uint64_t)(uintptr_t)b->memory;
    out->bytes = b->bytes;
out:
    return st;
}

static heddle_status prepare(meeting *m)
{
    heddle_status st = HEDDLE_OK;
    const size_t n = (size_t)m->comm->size, most = (size_t)m->most;
    int count = 0;
    HD_TRY(hd_alloc((void **)&m->own, most, sizeof *m->own, "shared memory"));
    HD_TRY(hd_alloc((void **)&m->all, n * most, sizeof *m->all, "shared memory"));
    HD_TRY(hd_alloc((void **)&m->answer, n * most, sizeof *m->answer, "shared memory"));
    HD_TRY(hd_alloc((void **)&m->answers, n * n * most, sizeof *m->answers, "shared memory"));
    for (hd_device_buffer *b = m->device->buffers; b != NULL; b = b->next) {
        HD_TRY(is_new(m, b) ? offer_one(&m->own[count++], m, b) : HEDDLE_OK);
    }
out:
    return st;
}

static heddle_status map_one(uint64_t *at, const meeting *m, int rank, const offer *o)
{
    heddle_status st = HEDDLE_OK;
    heddle_comm *root = m->comm->root;
    const int root_rank = hd_comm_root_rank(m->comm, rank);
    hd_mapping *known = find(root, root_rank, o->base), *mapping = NULL;
    if (known == NULL) {
        HD_TRY(hd_alloc((void **)&mapping, 1, sizeof *mapping, "shared memory"));
        *mapping = (hd_mapping){.next = root->mappings, .rank = root_rank, .base = o->base, .bytes = o->bytes};
        HD_TRY(m->device->library->map((void **)&mapping->memory, &o->name, m->device->number));
        root->mappings = known = mapping;
        mapping = NULL;
    }
    *at = (uint64_t)(uintptr_t)known->memory;
out:
    hd_free(mapping);
    return st;
}

static heddle_status map_all(const meeting *m)
{
    heddle_status st = HEDDLE_OK;
    atomic_store(&m->comm->group->control[m->comm->group->me]->maps, 1);
    for (int r = 0; r < m->comm->size; r++) {
        for (int i = 0; i < m->most && !hd_comm_is_here(m->comm, r); i++) {
            const int at = r * m->most + i;
            HD_TRY(m->all[at].bytes > 0 ? map_one(&m->answer[at], m, r, &m->all[at]) : HEDDLE_OK);
        }
    }
out:
    return st;
}

/* What the others have said of this rank's memory, which is offered in the order of the device's list. */
static void note(const meeting *m)
{
    const int own_at = m->comm->rank * m->most;
    int i = 0;
    for (hd_device_buffer *b = m->device->buffers; b != NULL; b = b->next) {
        if (i == m->most || (uint64_t)(uintptr_t)b->memory != m->own[i].base) {
            continue;
        }
        for (int r = 0; r < m->comm->size; r++) {
            if (!hd_comm_is_here(m->comm, r)) {
                b->at[hd_comm_root_rank(m->comm, r)] = m->answers[r * m->comm->size * m->most + own_at + i];
            }
        }
        i++;
    }
}

heddle_status hd_comm_map_devices(heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    meeting m = {.comm = comm, .device = hd_comm_device(comm)};
    hd_record own = {0};
    if (hd_comm_shares_address_space(comm)) {
        return HEDDLE_OK;
    }
    const heddle_status mine = hd_device_hold_all(m.device);
    own.number = count_new(&m);
    HD_TRY(hd_comm_agree_with(comm, mine, &own));
    for (int r = 0; r < comm->size; r++) {
        m.most = comm->records[r].number > m.most ? comm->records[r].number : m.most;
    }
    if (m.most == 0) {
        return HEDDLE_OK;
    }
    HD_TRY(hd_comm_agree(comm, prepare(&m)));
    HD_TRY(hd_comm_allgather_or_abort(comm, m.own, m.all, (size_t)m.most * sizeof *m.own));
    HD_TRY(hd_comm_agree(comm, map_all(&m)));
    HD_TRY(
        hd_comm_allgather_or_abort(comm, m.answer, m.answers, (size_t)comm->size * (size_t)m.most * sizeof *m.answer));
    note(&m);
out:
    HD_FREE_ALL(m.own, m.all, m.answer, m.answers);
    return st;
}

/* --- what the program has mapped itself --------------------------------------------------------------------------- */

/* *ok: a device's memory, this rank's where it is to be its own. */
static heddle_status look_at(int *ok, const hd_device *device, const void *memory, int is_own)
{
    heddle_space space = HEDDLE_SPACE_HOST;
    int number = -1;
    heddle_status st = memory != NULL ? device->library->look(&space, &number, memory) : HEDDLE_OK;
    *ok = st == HEDDLE_OK && space == HEDDLE_SPACE_DEVICE && (!is_own || number == device->number);
    return st;
}

/* Both ends of every piece. */
static heddle_status check_lent(const heddle_comm *comm, void *const *at, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    const hd_device *device = hd_comm_device(comm);
    if (device == NULL || hd_comm_wire(comm) != HEDDLE_WIRE_PEER) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED, "memory of peers is stored to by the wire peer alone, and this is: %s",
                       comm->root->describe);
    }
    if (comm->parent != NULL || bytes == 0) {
        return hd_fail(HEDDLE_ERR_ARG, "%s",
                       bytes == 0 ? "no bytes are lent"
                                  : "memory is lent to the communicator that an axis group is part of");
    }
    for (int r = 0; r < comm->size; r++) {
        const int is_own = r == comm->rank;
        int begins = 0, ends = 0;
        HD_TRY(look_at(&begins, device, at[r], is_own));
        const int wraps = begins && bytes - 1 > UINTPTR_MAX - (uintptr_t)at[r];
        HD_TRY(begins && !wraps ? look_at(&ends, device, (const char *)at[r] + (bytes - 1), is_own) : HEDDLE_OK);
        if (!begins || !ends) {
            return hd_fail(HEDDLE_ERR_ARG,
                           "rank %d: what it lends as rank %d's, %zu bytes at %p, %s not memory of %s%s", comm->rank, r,
                           bytes, at[r], begins ? "ends in what is" : "is", is_own ? "its device " : "a device",
                           is_own ? device->name : "");
        }
    }
out:
    return st;
}

heddle_status hd_comm_lend_peers(heddle_comm *comm, void *const *at, size_t bytes, heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    const size_t n = (size_t)comm->size;
    hd_device *device = hd_comm_device(comm);
    hd_device_buffer *lent = NULL;
    void **all = NULL; /* where each rank has every rank's */
    hd_fields fields = {.what = "lent memory"};
    mine = mine == HEDDLE_OK ? check_lent(comm, at, bytes) : mine;
    if (mine == HEDDLE_OK) {
        hd_fields_add(&fields, "bytes", "%zu", bytes);
    }
    HD_TRY(hd_comm_agree_on(comm, &fields, mine));
    mine = hd_device_lend(&lent, device, at[comm->rank], bytes, comm->size);
    mine = mine == HEDDLE_OK ? hd_alloc((void **)&all, n * n, sizeof *all, "lent memory") : mine;
    HD_TRY(hd_comm_agree(comm, mine));
    HD_TRY(hd_comm_gather(comm, HD_CALL_ALLGATHER, at, all, n * sizeof *at));
    for (size_t r = 0; r < n; r++) {
        lent->at[r] = (uint64_t)(uintptr_t)all[r * n + (size_t)comm->rank];
    }
out:
    hd_free(all);
    return st;
}

/* --- after --------------------------------------------------------------------------------------------- */

void hd_comm_close_maps(heddle_comm *comm)
{
    hd_group *group = comm->group;
    hd_control *own = group->control[group->me];
    const int is_own = !hd_group_is_fork(group);
    const int may_unmap = is_own && atomic_load(&own->on_device) == 0; /* else a kernel may still store there */
    while (comm->mappings != NULL) {
        hd_mapping *m = comm->mappings;
        comm->mappings = m->next;
        if (may_unmap) {
            comm->device->library->unmap(m->memory, comm->device->number);
        }
        hd_free(m);
    }
    if (may_unmap) {
        atomic_store(&own->maps, 0);
    }
    if (is_own && comm->device != NULL) {
        comm->device->is_mapped = !hd_group_await_unmapped(group);
    }
}
