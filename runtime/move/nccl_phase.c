/* A phase of a route as messages between devices: pack, exchange, unpack or add. */
#include "runtime/move/nccl_phase.h"

#include <string.h>

/* Where a message lies: in the caller's array, or packed in the phase's memory; and which rank has the other end. */
typedef struct place {
    int64_t at;
    int is_packed, peer;
} place;

struct hd_nccl_phase {
    hd_route *route;
    hd_nccl_batch batch;
    place *from, *to; /* of messages */
    char *memory;
    int64_t memory_bytes, bytes, packed_bytes;
    hd_device_list clear, before, after;
    hd_device_sums sums; /* in the memory */
};

/* While it is made. */
typedef struct making {
    hd_nccl_phase *n;
    const hd_transfer_spec *spec;
    int any_adds; /* on any rank */
    hd_device_box *before, *after;
    int nbefore, nafter;
    int64_t own_at;   /* of the own item in the memory, where it is a term; -1: no such item */
    int64_t *item_at; /* [recv.count] of terms, in the memory */
} making;

/* The order in which the bytes of an item travel, the same at both ends. */
static hd_copy stream_of(const making *m, const hd_item *item)
{
    hd_copy copy = item->copy;
    if (m->any_adds) {
        hd_copy_walk(&copy, HD_SIDE_DST);
    } else {
        hd_copy_stream(&copy);
    }
    return copy;
}

/* --- what is sent ------------------------------------------------------------------------------------------------- */

static int64_t pack(making *m, hd_copy copy)
{
    int64_t bytes = hd_copy_bytes(&copy), at = hd_device_reserve(&m->n->memory_bytes, bytes);
    hd_copy_make_dense(&copy, HD_SIDE_DST, at);
    m->before[m->nbefore++] = hd_device_box_of(&copy, 0, 1);
    m->n->packed_bytes += bytes;
    return at;
}

static void add_send(making *m, const hd_item *item)
{
    hd_nccl_phase *n = m->n;
    hd_copy copy = stream_of(m, item);
    const heddle_message whole = hd_copy_message(&copy, HD_SIDE_SRC, item->peer);
    const int is_packed = whole.nloops > 0, i = n->batch.nsends++;
    n->batch.send[i] =
        (heddle_device_message){.bytes = hd_copy_bytes(&copy), .peer = hd_comm_rank_name(n->route->comm, item->peer)};
    n->bytes += n->batch.send[i].bytes;
    n->from[i] = (place){is_packed ? pack(m, copy) : whole.offset_bytes, is_packed, item->peer};
}

static void add_sends(making *m)
{
    const hd_items *send = &m->spec->send;
    for (int i = 0; i < send->count; i++) {
        const hd_item *item = &send->item[i];
        if (item->peer != m->n->route->rank) {
            add_send(m, item);
        } else if (m->spec->adds) {
            m->own_at = pack(m, stream_of(m, item));
        } else {
            hd_copy copy = item->copy;
            hd_copy_walk(&copy, HD_SIDE_DST);
            m->before[m->nbefore++] = hd_device_box_of(&copy, 0, 0);
        }
    }
}

/* --- what is received --------------------------------------------------------------------------------------------- */

/* From the memory to its place. */
static void unpack(making *m, hd_copy copy, int64_t at)
{
    hd_copy_make_dense(&copy, HD_SIDE_SRC, at);
    m->after[m->nafter++] = hd_device_box_of(&copy, 1, 0);
    m->n->packed_bytes += hd_copy_bytes(&copy);
}

static void add_recvs(making *m)
{
    hd_nccl_phase *n = m->n;
    const hd_items *recv = &m->spec->recv;
    int adds = m->spec->adds;
    for (int i = 0; i < recv->count; i++) {
        const hd_item *item = &recv->item[i];
        hd_copy copy = stream_of(m, item);
        heddle_message whole = hd_copy_message(&copy, HD_SIDE_DST, item->peer);
        int packed = adds || whole.nloops > 0, k = n->batch.nrecvs;
        if (item->peer == m->n->route->rank) {
            m->item_at[i] = m->own_at;
            continue;
        }
        int64_t bytes = hd_copy_bytes(&copy);
        n->batch.recv[k] =
            (heddle_device_message){.bytes = bytes, .peer = hd_comm_rank_name(n->route->comm, item->peer)};
        m->item_at[i] = packed ? hd_device_reserve(&n->memory_bytes, bytes) : whole.offset_bytes;
        n->to[k] = (place){m->item_at[i], packed, item->peer};
        n->batch.nrecvs++;
        if (packed && !adds) {
            unpack(m, copy, m->item_at[i]);
        }
    }
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

static heddle_status add_sums(making *m)
{
    hd_nccl_phase *n = m->n;
    heddle_status st =
        hd_device_sums_make(&n->sums, &m->spec->recv, m->item_at, n->route->spec.elem_bytes, &n->memory_bytes);
    for (int i = 0; i < n->sums.nunpacks; i++) {
        m->after[m->nafter] = n->sums.unpack[i];
        m->after[m->nafter++].src_base = 1;
    }
    n->packed_bytes += n->sums.unpacked_bytes;
    return st;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

static heddle_status alloc_all(making *m)
{
    heddle_status st = HEDDLE_OK;
    hd_nccl_phase *n = m->n;
    size_t sends = (size_t)m->spec->send.count, recvs = (size_t)m->spec->recv.count;
    const char *what = "messages between devices";
    HD_TRY(hd_alloc((void **)&n->batch.send, sends, sizeof *n->batch.send, what));
    HD_TRY(hd_alloc((void **)&n->batch.recv, recvs, sizeof *n->batch.recv, what));
    HD_TRY(hd_alloc((void **)&n->from, sends, sizeof *n->from, what));
    HD_TRY(hd_alloc((void **)&n->to, recvs, sizeof *n->to, what));
    HD_TRY(hd_alloc((void **)&m->before, sends, sizeof *m->before, what));
    HD_TRY(hd_alloc((void **)&m->after, recvs, sizeof *m->after, what));
    HD_TRY(hd_alloc((void **)&m->item_at, recvs, sizeof *m->item_at, what));
out:
    return st;
}

static heddle_status make(making *m)
{
    heddle_status st = HEDDLE_OK;
    hd_nccl_phase *n = m->n;
    int64_t deadline_ns = hd_comm_deadline_ns(n->route->comm, n->batch.deadline_ms);
    HD_TRY(alloc_all(m));
    add_sends(m);
    add_recvs(m);
    HD_TRY(m->spec->adds ? add_sums(m) : HEDDLE_OK);
    HD_TRY(hd_device_list_of(&n->clear, n->route->device, m->spec->clear, deadline_ns));
    HD_TRY(hd_device_list_make(&n->before, n->route->device, m->before, m->nbefore, 0, deadline_ns));
    HD_TRY(hd_device_list_make(&n->after, n->route->device, m->after, m->nafter, 0, deadline_ns));
    if (n->memory_bytes > 0) {
        st = n->route->device->library->alloc((void **)&n->memory, n->route->device->number, (size_t)n->memory_bytes);
    }
out:
    return st;
}

heddle_status hd_nccl_phase_create(hd_nccl_phase **out, hd_route *route, int phase, int any_adds)
{
    making m = {.spec = &route->spec.phase[phase].transfer, .any_adds = any_adds, .own_at = -1};
    heddle_status st = hd_alloc((void **)&m.n, 1, sizeof *m.n, "messages between devices");
    if (st == HEDDLE_OK) {
        m.n->route = route;
        m.n->batch.deadline_ms = route->spec.options.deadline_ms;
        st = make(&m);
    }
    HD_FREE_ALL(m.before, m.after, m.item_at);
    if (st != HEDDLE_OK) {
        hd_nccl_phase_destroy(m.n);
        m.n = NULL;
    }
    *out = m.n;
    return st;
}

void hd_nccl_phase_destroy(hd_nccl_phase *n)
{
    if (n == NULL) {
        return;
    }
    hd_device_list_free(&n->clear);
    hd_device_list_free(&n->before);
    hd_device_list_free(&n->after);
    hd_device_sums_free(&n->sums);
    hd_device_free(n->route->device, n->memory);
    HD_FREE_ALL(n->batch.send, n->batch.recv, n->from, n->to, n);
}

void hd_nccl_phase_inform(hd_nccl_info *info, const hd_nccl_phase *n)
{
    info->bytes += n->bytes;
    info->messages += n->batch.nsends;
    info->packed_bytes += n->packed_bytes;
    info->memory_bytes += n->memory_bytes + n->clear.bytes + n->before.bytes + n->after.bytes;
}

/* --- executing ---------------------------------------------------------------------------------------------------- */

static heddle_status exchange(hd_nccl_phase *n, const void *src, void *dst, heddle_stream stream, int is_captured)
{
    hd_nccl_batch *l = &n->batch;
    for (int i = 0; i < l->nsends; i++) {
        l->send[i].data = (void *)(uintptr_t)((n->from[i].is_packed ? n->memory : (const char *)src) + n->from[i].at);
    }
    for (int i = 0; i < l->nrecvs; i++) {
        l->recv[i].data = (n->to[i].is_packed ? n->memory : (char *)dst) + n->to[i].at;
    }
    return l->nsends + l->nrecvs > 0 ? hd_comm_nccl_exchange(n->route->comm, l, stream, is_captured) : HEDDLE_OK;
}

static heddle_status run(hd_nccl_phase *n, const void *src, void *dst, heddle_stream stream, int is_captured)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_device_list_run(&n->clear, HD_DEVICE_CLEAR, dst, src, n->memory, stream));
    HD_TRY(hd_device_list_run(&n->before, HD_DEVICE_COPY, dst, src, n->memory, stream));
    HD_TRY(exchange(n, src, dst, stream, is_captured));
    HD_TRY(hd_device_sums_run(&n->sums, n->route->device, n->memory, dst, n->route->spec.dtype, stream));
    st = hd_device_list_run(&n->after, HD_DEVICE_COPY, dst, src, n->memory, stream);
out:
    return st;
}

heddle_status hd_nccl_phase_run(hd_nccl_phase *n, const void *src, void *dst, heddle_stream stream, int is_captured)
{
    int before = 0;
    heddle_status st = n->route->device->library->enter(&before, n->route->device->number);
    if (st == HEDDLE_OK) {
        st = run(n, src, dst, stream, is_captured);
        n->route->device->library->leave(before);
    }
    for (int i = 0; st == HEDDLE_OK && i < n->batch.nsends; i++) {
        n->route->sent[n->from[i].peer] += n->batch.send[i].bytes;
    }
    return st == HEDDLE_OK ? st : hd_comm_nccl_give_up(n->route->comm, st);
}
