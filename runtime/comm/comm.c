/* The communicator: put together, taken apart, and its public face. */
#include "runtime/comm/comm_private.h"

#include <stdio.h>
#include <string.h>

void heddle_comm_options_init(heddle_comm_options *options)
{
    if (options != NULL) {
        *options = (heddle_comm_options){.struct_bytes = sizeof *options};
    }
}

heddle_status hd_options_check(heddle_comm_options *out, const heddle_comm_options *given)
{
    heddle_comm_options taken;
    const heddle_comm_options *options = &taken;
    heddle_comm_options_init(&taken);
    heddle_status st = hd_struct_take(&taken, given, HD_STRUCT(heddle_comm_options, deadline_ms));
    st = st == HEDDLE_OK ? hd_check_ms(options->deadline_ms, "deadline_ms") : st;
    if (st != HEDDLE_OK) {
        return st;
    }
    if (options->pretend_hosts < 0 || options->arena_bytes < 0) {
        return hd_fail(HEDDLE_ERR_ARG, "pretend_hosts is %d and arena_bytes %lld, wanted 0 or more",
                       options->pretend_hosts, (long long)options->arena_bytes);
    }
    if (options->bind < HEDDLE_BIND_AUTO || options->bind > HEDDLE_BIND_CORE) {
        return hd_fail(HEDDLE_ERR_ARG, "bind is %d, wanted 0 to 2", (int)options->bind);
    }
    *out = *options;
    return HEDDLE_OK;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

int hd_pretended_host(int rank, int size, int hosts)
{
    hosts = hosts < size ? hosts : size;
    int small = size / hosts;
    int larger = size % hosts;
    return rank < larger * (small + 1) ? rank / (small + 1) : larger + (rank - larger * (small + 1)) / small;
}

static int reached(const heddle_comm *comm, int root_rank, int root_peer, int root_size)
{
    int hosts = comm->options.pretend_hosts;
    if (root_rank == root_peer) {
        return 1;
    }
    return !comm->options.force_messages && (hosts == 0 || hd_pretended_host(root_rank, root_size, hosts) ==
                                                               hd_pretended_host(root_peer, root_size, hosts));
}

void hd_comm_find_local(heddle_comm *comm)
{
    const heddle_comm *root = comm->root;
    int me = hd_comm_root_rank(comm, comm->rank);
    comm->nlocal = 0;
    for (int r = 0; r < comm->size; r++) {
        comm->window[r] = (hd_window){0, 0};
        if (comm->member[r] >= 0 && reached(comm, me, hd_comm_root_rank(comm, r), root->size)) {
            comm->window[r] = comm->group->window[comm->member[r]];
            comm->local[comm->nlocal++] = r;
        }
    }
}

int hd_comm_all_members(const heddle_comm *comm)
{
    for (int r = 0; r < comm->size; r++) {
        if (comm->member[r] < 0) {
            return 0;
        }
    }
    return 1;
}

heddle_status hd_comm_arrays(heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    size_t n = (size_t)comm->size;
    HD_TRY(hd_alloc((void **)&comm->member, n, sizeof(int), "a communicator"));
    HD_TRY(hd_alloc((void **)&comm->local, n, sizeof(int), "a communicator"));
    HD_TRY(hd_alloc((void **)&comm->window, n, sizeof(hd_window), "a communicator"));
    HD_TRY(hd_alloc((void **)&comm->records, n, sizeof(hd_record), "a communicator"));
    HD_TRY(hd_alloc((void **)&comm->terms, n, sizeof(void *), "a communicator"));
out:
    return st;
}

/* What a communicator with hub needs in memory, before anybody is told. */
heddle_status hd_hub_arrays(heddle_comm *comm)
{
    heddle_status st = HEDDLE_OK;
    size_t n = (size_t)comm->size;
    HD_TRY(hd_alloc((void **)&comm->hub.of, n, sizeof(hd_hub_memory *), "a communicator"));
    comm->pair.half_bytes = HD_OUTBOX_BYTES;
    if (comm->group->team == NULL && comm->size > 1) {
        HD_TRY(hd_group_alloc(comm->group, (void **)&comm->pair.staging, 2 * HD_OUTBOX_BYTES));
    }
out:
    return st;
}

static heddle_status attach_by_options(heddle_comm *comm, const heddle_comm_options *given)
{
    heddle_comm_options options;
    heddle_status st = hd_options_check(&options, given);
    return st != HEDDLE_OK || options.device == NULL
               ? st
               : hd_comm_attach(comm, options.device, options.wire, options.module_folder, HEDDLE_OK);
}

heddle_status hd_comm_new(heddle_comm **out, const hd_comm_parts *parts)
{
    heddle_status st = HEDDLE_OK;
    void *p = NULL;
    heddle_comm *comm = NULL;
    HD_TRY(hd_alloc(&p, 1, sizeof(heddle_comm), "a communicator"));
    comm = p;
    comm->root = comm;
    comm->rank = parts->rank;
    comm->size = parts->size;
    comm->ops = parts->ops;
    comm->name = parts->name;
    comm->messages = parts->messages != NULL ? *parts->messages : hd_memory_traits;
    comm->group = parts->group;
    HD_TRY(hd_options_check(&comm->options, parts->options));
    comm->options.module_folder = comm->options.device = NULL; /* the caller's */
    comm->interrupt = hd_options_interrupt(&comm->options);
    hd_comm_set_lookout(comm);
    HD_TRY(hd_comm_arrays(comm));
    for (int r = 0; r < comm->size; r++) {
        comm->member[r] = parts->member != NULL ? parts->member[r] : r;
    }
    hd_comm_find_local(comm);
    hd_comm_bind_and_describe(comm, parts->why);
    comm->calls = hd_comm_all_members(comm) ? &hd_hub_calls : &hd_envelope_calls;
    if (comm->calls == &hd_envelope_calls) {
        HD_TRY(hd_alloc((void **)&comm->envelopes, (size_t)comm->size, sizeof(hd_envelope), "a communicator"));
    } else {
        HD_TRY(hd_hub_arrays(comm));
        for (int r = 0; r < comm->size; r++) {
            comm->hub.of[r] = &comm->group->control[comm->member[r]]->hub;
        }
        HD_TRY(hd_link_create_all(&comm->pair.link, comm));
        hd_hub_renew_with(comm);
    }
    comm->ctx = parts->ctx;
    if (parts->options != NULL) {
        HD_TRY(attach_by_options(comm, parts->options));
    }
    *out = comm;
out:
    if (st != HEDDLE_OK) {
        hd_group_raise(parts->group, HEDDLE_ERR_PEER, heddle_last_error());
        if (comm != NULL) {
            comm->ops = &hd_local_ops; /* ctx stays the caller's */
            heddle_comm_destroy(comm);
        } else {
            hd_group_destroy(parts->group);
        }
    }
    return st;
}

/* A communicator without parent: its transport, its thread's cores. In a fork the transport is the other process's. */
static void take_apart(heddle_comm *comm)
{
    if (comm->ops->destroy != NULL && !hd_group_is_fork(comm->group)) {
        comm->ops->destroy(comm);
    }
    if (comm->breaker != NULL) {
        comm->breaker->destroy(comm->breaker);
    }
    if (comm->bound) {
        sched_setaffinity(0, sizeof comm->cpus_before, &comm->cpus_before);
    }
}

static void free_arrays(heddle_comm *comm)
{
    HD_FREE_ALL(comm->hub.of, comm->parent_rank, comm->member, comm->local, comm->window, comm->records, comm->terms,
                comm->envelopes);
}

/* The handle stays as long as buffers are out, to give them back to. */
static void close_with_buffers(heddle_comm *comm)
{
    hd_group_leave(comm->group);
    free_arrays(comm);
    *comm = (heddle_comm){.root = comm, .group = comm->group, .device = comm->device, .closed = 1};
}

void hd_comm_drop(heddle_comm *comm, hd_group *group)
{
    if (atomic_fetch_sub(&group->holders, 1) == 1) {
        hd_device_close(comm->device);
        hd_group_destroy(group);
        hd_free(comm);
    }
}

void hd_comm_leave_buffer(heddle_comm *comm, const void *buffer)
{
    if (buffer != NULL) {
        hd_comm_drop(comm, comm->group);
    }
}

/* After an abort kernels of peers may still store to this rank's device memory. */
static void end_watch(heddle_comm *comm)
{
    hd_replays_close(comm);
    if (comm->watch != NULL && !hd_group_is_fork(comm->group) &&
        atomic_load(&comm->group->control[comm->group->me]->alarm) != 0) {
        heddle_ignore(hd_comm_quiesce_devices(comm));
    }
    hd_watch_stop(comm->watch);
}

void heddle_comm_destroy(heddle_comm *comm)
{
    if (comm == NULL || comm->closed) {
        return;
    }
    if (comm->pair.pairs != NULL) {
        comm->pair.pairs->destroy(comm->pair.pairs);
    }
    hd_link_destroy(comm->pair.link);
    hd_comm_renewal_remove(&comm->renewal);
    if (comm->parent == NULL) {
        hd_comm_close_nccl(comm);
        end_watch(comm);
        hd_comm_close_maps(comm);
        take_apart(comm);
        if (atomic_load(&comm->group->holders) > 1 && !hd_group_is_fork(comm->group)) {
            close_with_buffers(comm);
            hd_comm_drop(comm, comm->group);
            return;
        }
        hd_device_close(comm->device);
        hd_group_destroy(comm->group);
    } else {
        hd_group_keep(comm->group, comm->hub.block);
        hd_group_release(comm->group, comm->pair.staging);
    }
    free_arrays(comm);
    hd_free(comm);
}

void hd_comm_end(heddle_comm *comm)
{
    if (comm != NULL) {
        atomic_store(&comm->group->holders, 1);
    }
    heddle_comm_destroy(comm);
}
