/* Groups of ranks along axes of a mesh: parts of a communicator that share its memory and its transport.
 *
 * Where all ranks of a group sit on this host it has a hub of its own. Otherwise its operations are made of the
 * parent's: a ring of sendrecv, and exchanges with translated peers.
 */
#include "runtime/comm/comm_private.h"

#include <stdio.h>
#include <string.h>

/* A group as far as it can be made alone. */
static heddle_status axis_alone(heddle_comm **out, heddle_comm *parent, const int *parent_ranks, int size, int rank)
{
    heddle_status st = HEDDLE_OK;
    void *p = NULL;
    int fresh = 0;
    HD_TRY(hd_alloc(&p, 1, sizeof(heddle_comm), "a communicator"));
    heddle_comm *comm = p;
    *out = comm;
    comm->rank = rank;
    comm->size = size;
    comm->parent = parent;
    comm->root = parent->root;
    comm->group = parent->group;
    comm->name = parent->name;
    comm->options = parent->options;
    comm->breaker = parent->breaker;
    HD_TRY(hd_comm_arrays(comm));
    HD_TRY(hd_alloc((void **)&comm->parent_rank, (size_t)size, sizeof(int), "a communicator"));
    memcpy(comm->parent_rank, parent_ranks, (size_t)size * sizeof(int));
    for (int r = 0; r < size; r++) {
        comm->member[r] = parent->member[parent_ranks[r]];
    }
    hd_comm_find_local(comm);
    snprintf(comm->describe, sizeof comm->describe, "%d of the ranks of: %.900s", size, parent->describe);
    comm->ops = parent->ops == &hd_local_ops ? &hd_local_ops : &hd_axis_ops;
    comm->messages = parent->messages;
    comm->calls = hd_comm_all_members(comm) ? &hd_hub_calls : &hd_envelope_calls;
    if (comm->calls == &hd_hub_calls) {
        HD_TRY(hd_hub_arrays(comm));
        HD_TRY(hd_group_take(comm->group, &comm->hub.block, sizeof(hd_hub_memory), &fresh));
    } else {
        HD_TRY(hd_alloc((void **)&comm->envelopes, (size_t)size, sizeof(hd_envelope), "a communicator"));
    }
out:
    return st; /* the caller destroys what there is */
}

/* Everybody has entered this creation when the first agreement is through, so nobody reads an older hub in the same
 * memory any more; when the second one is through, all counters are zero. */
static heddle_status axis_hub(heddle_comm *comm, heddle_status mine)
{
    heddle_status st = HEDDLE_OK;
    heddle_comm *parent = comm->parent;
    hd_record own = {.name = 0};
    hd_block *block = comm->hub.block;
    if (mine == HEDDLE_OK && block != NULL) {
        own.name = hd_window_name(comm->group->window[comm->group->me], block->memory, block->bytes);
    }
    HD_TRY(hd_comm_agree_with(parent, mine, &own));
    if (block != NULL) {
        hd_hub_memory *hub = (hd_hub_memory *)block->memory;
        atomic_store(&hub->counter[0], 0);
        atomic_store(&hub->counter[1], 0);
        atomic_store(&hub->arrived, 0);
        for (int r = 0; r < comm->size; r++) {
            comm->hub.of[r] =
                hd_window_at(comm->group->window[comm->member[r]], parent->records[comm->parent_rank[r]].name);
        }
    }
    HD_TRY(hd_comm_agree(parent, HEDDLE_OK));
    heddle_status linked = block != NULL ? hd_link_create_all(&comm->pair.link, comm) : HEDDLE_OK;
    HD_TRY(hd_comm_agree(parent, linked));
    if (block != NULL) {
        hd_hub_renew_with(comm);
    }
out:
    return st;
}

static heddle_status axis_new(heddle_comm **out, heddle_comm *parent, const int *parent_ranks, int size, int rank)
{
    heddle_comm *comm = NULL;
    heddle_status st = axis_alone(&comm, parent, parent_ranks, size, rank);
    if (comm == NULL) {
        return hd_comm_agree(parent, st);
    }
    st = axis_hub(comm, st);
    if (st != HEDDLE_OK) {
        heddle_comm_destroy(comm);
        return st;
    }
    *out = comm;
    return HEDDLE_OK;
}

/* How many ranks differ from `comm`'s only on `axes`, and this one's number among them. */
static int axis_size(int *mine, const heddle_mesh *mesh, unsigned axes, const int *coords)
{
    int size = 1;
    *mine = 0;
    for (int a = 0; a < mesh->naxes; a++) {
        if (axes >> a & 1u) {
            size *= mesh->axis[a].size;
            *mine = *mine * mesh->axis[a].size + coords[a];
        }
    }
    return size;
}

/* The parent's rank of member `index`. */
static int axis_member(const heddle_mesh *mesh, unsigned axes, const int *coords, int index)
{
    int rank = 0;
    for (int a = mesh->naxes - 1, stride = 1; a >= 0; a--) {
        int n = mesh->axis[a].size;
        int inside = (axes >> a & 1u) != 0;
        rank += (inside ? index % n : coords[a]) * stride;
        index = inside ? index / n : index;
        stride *= n;
    }
    return rank;
}

static heddle_status check_axes(const heddle_comm *comm, const heddle_mesh *mesh, unsigned axes)
{
    heddle_status st = heddle_mesh_check(mesh);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (heddle_mesh_size(mesh) != comm->size) {
        return hd_fail(HEDDLE_ERR_ARG, "the mesh has %d ranks, the communicator %d", heddle_mesh_size(mesh),
                       comm->size);
    }
    if (axes >> mesh->naxes != 0) {
        return hd_fail(HEDDLE_ERR_ARG, "axes 0x%x of a mesh with %d axes", axes, mesh->naxes);
    }
    return HEDDLE_OK;
}

/* What is asked for, as text: "a,b of [a=2 b=2 c=4]". */
static heddle_status say_axes(char *text, size_t bytes, const heddle_mesh *mesh, unsigned axes)
{
    char whole[HEDDLE_LINE_BYTES];
    size_t at = 0;
    heddle_status st = heddle_mesh_format(whole, sizeof whole, mesh);
    text[0] = 0;
    for (int a = 0; a < mesh->naxes && at < bytes; a++) {
        if (axes >> a & 1u) {
            at += (size_t)snprintf(text + at, bytes - at, "%s%s", at > 0 ? "," : "", mesh->axis[a].name);
        }
    }
    if (at < bytes) {
        snprintf(text + at, bytes - at, "%s of %s", axes == 0 ? "no axis" : "", whole);
    }
    return st;
}

/* Everybody asks for the same axes of the same mesh: anything else would make groups that overlap. `mine`: this rank's
 * own check went so far. */
static heddle_status agree_on_axes(heddle_comm *comm, const heddle_mesh *mesh, unsigned axes, heddle_status mine)
{
    char text[HEDDLE_LINE_BYTES] = "";
    hd_fields fields = {.what = "axis group", .line = text};
    mine = mine == HEDDLE_OK ? say_axes(text, sizeof text, mesh, axes) : mine;
    hd_fields_add(&fields, "list of axes", "%s", text);
    return hd_comm_agree_on(comm, &fields, mine);
}

static heddle_status group_along(heddle_comm **out, heddle_comm *comm, const heddle_mesh *mesh, unsigned axes,
                                 heddle_status checked)
{
    heddle_status st = HEDDLE_OK;
    int *ranks = NULL;
    int coords[HEDDLE_MAX_AXES];
    int mine = 0, size = 0;
    checked = checked == HEDDLE_OK ? check_axes(comm, mesh, axes) : checked;
    checked = checked == HEDDLE_OK ? heddle_mesh_coords(coords, mesh, comm->rank) : checked;
    if (checked == HEDDLE_OK) {
        size = axis_size(&mine, mesh, axes, coords);
        checked = hd_alloc((void **)&ranks, (size_t)size, sizeof(int), "a group");
    }
    HD_TRY(agree_on_axes(comm, mesh, axes, checked));
    for (int i = 0; i < size; i++) {
        ranks[i] = axis_member(mesh, axes, coords, i);
    }
    HD_TRY(axis_new(out, comm, ranks, size, mine));
out:
    hd_free(ranks);
    return st;
}

heddle_status heddle_comm_axes_group(heddle_comm **out, heddle_comm *comm, const heddle_mesh *mesh, unsigned axes)
{
    heddle_status st = HD_NEED(comm); /* else there is nobody to tell */
    return st == HEDDLE_OK ? group_along(out, comm, mesh, axes, HD_NEED(out, mesh)) : st;
}

heddle_status heddle_comm_axis_group(heddle_comm **out, heddle_comm *comm, const heddle_mesh *mesh, int axis)
{
    heddle_status st = HD_NEED(comm); /* else there is nobody to tell */
    if (st != HEDDLE_OK) {
        return st;
    }
    st = HD_NEED(out, mesh);
    st = st == HEDDLE_OK ? heddle_mesh_check(mesh) : st;
    if (st == HEDDLE_OK && (axis < 0 || axis >= mesh->naxes)) {
        st = hd_fail(HEDDLE_ERR_ARG, "axis %d of a mesh with %d axes", axis, mesh->naxes);
    }
    return group_along(out, comm, mesh, st == HEDDLE_OK ? 1u << axis : 0, st);
}

/* --- operations of a group that is spread over hosts -------------------------------------------------------------- */

static heddle_status axis_sendrecv(heddle_comm *comm, const void *send, size_t send_bytes, int to, void *recv,
                                   size_t recv_bytes, int from)
{
    heddle_comm *parent = comm->parent;
    return parent->ops->sendrecv(parent, send, send_bytes, to < 0 ? -1 : comm->parent_rank[to], recv, recv_bytes,
                                 from < 0 ? -1 : comm->parent_rank[from]);
}

static heddle_status axis_allgather(heddle_comm *comm, const void *send, void *recv, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    unsigned char *all = recv;
    int n = comm->size;
    memmove(all + (size_t)comm->rank * bytes, send, bytes);
    for (int step = 0; step < n - 1; step++) {
        int mine = (comm->rank - step + n) % n;
        int theirs = (comm->rank - step - 1 + n) % n;
        HD_TRY(axis_sendrecv(comm, all + (size_t)mine * bytes, bytes, (comm->rank + 1) % n,
                             all + (size_t)theirs * bytes, bytes, (comm->rank - 1 + n) % n));
    }
out:
    return st;
}

static heddle_status axis_exchange_create(heddle_comm *comm, void **out, const heddle_message *messages, int nmessages,
                                          int tag)
{
    heddle_message *translated = NULL;
    heddle_status st = hd_alloc((void **)&translated, (size_t)nmessages, sizeof *translated, "an exchange");
    if (st == HEDDLE_OK) {
        for (int i = 0; i < nmessages; i++) {
            translated[i] = messages[i];
            translated[i].peer = comm->parent_rank[messages[i].peer];
        }
        st = comm->parent->ops->exchange_create(comm->parent, out, translated, nmessages, tag);
    }
    hd_free(translated);
    return st;
}

static heddle_status axis_exchange_start(heddle_comm *comm, void *exchange, const void *src, void *dst)
{
    return comm->parent->ops->exchange_start(comm->parent, exchange, src, dst);
}

static heddle_status axis_exchange_test(heddle_comm *comm, void *exchange, int *done)
{
    return comm->parent->ops->exchange_test(comm->parent, exchange, done);
}

static void axis_exchange_destroy(heddle_comm *comm, void *exchange)
{
    comm->parent->ops->exchange_destroy(comm->parent, exchange);
}

/* In ranks of the group. */
static int axis_exchange_missing(heddle_comm *comm, void *exchange, int *peers, int capacity)
{
    int n = comm->parent->ops->exchange_missing(comm->parent, exchange, peers, capacity);
    for (int i = 0; i < n; i++) {
        int r = 0;
        while (r < comm->size - 1 && comm->parent_rank[r] != peers[i]) {
            r++;
        }
        peers[i] = r;
    }
    return n;
}

static heddle_status axis_withdraw(heddle_comm *comm)
{
    return comm->parent->ops->withdraw(comm->parent);
}

static heddle_status axis_abort(heddle_comm *comm, const char *why)
{
    return comm->parent->ops->abort(comm->parent, why);
}

const hd_comm_ops hd_axis_ops = {
    .name = "axis group",
    .allgather = axis_allgather,
    .sendrecv = axis_sendrecv,
    .exchange_create = axis_exchange_create,
    .exchange_start = axis_exchange_start,
    .exchange_test = axis_exchange_test,
    .exchange_destroy = axis_exchange_destroy,
    .exchange_missing = axis_exchange_missing,
    .withdraw = axis_withdraw,
    .abort = axis_abort,
};
