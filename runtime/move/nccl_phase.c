/* A phase of a route as messages between devices: pack, exchange, unpack or add. */
#include "runtime/move/nccl_phase.h"
#include "runtime/move/device_sum.h"

#include <string.h>

struct hd_nccl_phase {
    heddle_comm *comm;
    hd_device *device;
    heddle_dtype dtype;
    int64_t elem_bytes;
    hd_nccl_batch batch;
    int64_t *send_at, *recv_at;               /* where a message lies */
    unsigned char *send_packed, *recv_packed; /* 1: in the staging */
    int *send_to;                             /* ranks of comm */
    char *staging;
    int64_t staging_bytes, bytes, packed_bytes;
    hd_device_list clear, before, after;
    hd_device_sums sums; /* in the staging */
};

/* While it is made. */
typedef struct making {
    hd_nccl_phase *n;
    const hd_transfer_spec *spec;
    int any_adds; /* on any rank */
    int rank;
    hd_device_box *before, *after;
    int nbefore, nafter;
    int64_t own_at;   /* of the own part in the staging, where it is a term; -1: no such part */
    int64_t *part_at; /* [recv.count] of terms, in the staging */
} making;

/* The order in which the bytes of a part travel, the same at both ends. */
static hd_copy stream_of(const making *m, const hd_part *part)
{
    hd_copy copy = part->copy;
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
    int64_t bytes = hd_copy_bytes(&copy), at = hd_device_reserve(&m->n->staging_bytes, bytes);
    hd_copy_make_dense(&copy, HD_SIDE_DST, at);
    m->before[m->nbefore++] = hd_device_box_of(&copy, 0, 1);
    m->n->packed_bytes += bytes;
    return at;
}

static void add_send(making *m, const hd_part *part)
{
    hd_nccl_phase *n = m->n;
    hd_copy copy = stream_of(m, part);
    heddle_message whole = hd_copy_message(&copy, HD_SIDE_SRC, part->peer);
    int i = n->batch.nsends++;
    n->batch.send[i] =
        (heddle_device_message){.bytes = hd_copy_bytes(&copy), .peer = hd_comm_rank_name(n->comm, part->peer)};
    n->send_to[i] = part->peer;
    n->bytes += n->batch.send[i].bytes;
    n->send_packed[i] = whole.nloops > 0;
    n->send_at[i] = whole.nloops > 0 ? pack(m, copy) : whole.offset_bytes;
}

static void add_sends(making *m)
{
    const hd_parts *send = &m->spec->send;
    for (int i = 0; i < send->count; i++) {
        const hd_part *part = &send->part[i];
        if (part->peer != m->rank) {
            add_send(m, part);
        } else if (m->spec->adds) {
            m->own_at = pack(m, stream_of(m, part));
        } else {
            hd_copy copy = part->copy;
            hd_copy_walk(&copy, HD_SIDE_DST);
            m->before[m->nbefore++] = hd_device_box_of(&copy, 0, 0);
        }
    }
}

/* --- what is received --------------------------------------------------------------------------------------------- */

/* From the staging to its place. */
static void unpack(making *m, hd_copy copy, int64_t at)
{
    hd_copy_make_dense(&copy, HD_SIDE_SRC, at);
    m->after[m->nafter++] = hd_device_box_of(&copy, 1, 0);
    m->n->packed_bytes += hd_copy_bytes(&copy);
}

static void add_recvs(making *m)
{
    hd_nccl_phase *n = m->n;
    const hd_parts *recv = &m->spec->recv;
    int adds = m->spec->adds;
    for (int i = 0; i < recv->count; i++) {
        const hd_part *part = &recv->part[i];
        hd_copy copy = stream_of(m, part);
        heddle_message whole = hd_copy_message(&copy, HD_SIDE_DST, part->peer);
        int packed = adds || whole.nloops > 0, k = n->batch.nrecvs;
        if (part->peer == m->rank) {
            m->part_at[i] = m->own_at;
            continue;
        }
        int64_t bytes = hd_copy_bytes(&copy);
        n->batch.recv[k] = (heddle_device_message){.bytes = bytes, .peer = hd_comm_rank_name(n->comm, part->peer)};
        n->recv_packed[k] = (unsigned char)packed;
        n->recv_at[k] = m->part_at[i] = packed ? hd_device_reserve(&n->staging_bytes, bytes) : whole.offset_bytes;
        n->batch.nrecvs++;
        if (packed && !adds) {
            unpack(m, copy, n->recv_at[k]);
        }
    }
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

static heddle_status add_sums(making *m)
{
    hd_nccl_phase *n = m->n;
    heddle_status st = hd_device_sums_make(&n->sums, &m->spec->recv, m->part_at, n->elem_bytes, &n->staging_bytes);
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
    HD_TRY(hd_alloc((void **)&n->send_at, sends, sizeof *n->send_at, what));
    HD_TRY(hd_alloc((void **)&n->recv_at, recvs, sizeof *n->recv_at, what));
    HD_TRY(hd_alloc((void **)&n->send_packed, sends, 1, what));
    HD_TRY(hd_alloc((void **)&n->recv_packed, recvs, 1, what));
    HD_TRY(hd_alloc((void **)&n->send_to, sends, sizeof *n->send_to, what));
    HD_TRY(hd_alloc((void **)&m->before, sends, sizeof *m->before, what));
    HD_TRY(hd_alloc((void **)&m->after, recvs, sizeof *m->after, what));
    HD_TRY(hd_alloc((void **)&m->part_at, recvs, sizeof *m->part_at, what));
out:
    return st;
}

static heddle_status make(making *m)
{
    heddle_status st = HEDDLE_OK;
    hd_nccl_phase *n = m->n;
    const hd_copy *clear = m->spec->clear;
    int64_t deadline_ns = hd_comm_deadline_ns(n->comm, n->batch.deadline_ms);
    HD_TRY(alloc_all(m));
    add_sends(m);
    add_recvs(m);
    HD_TRY(m->spec->adds ? add_sums(m) : HEDDLE_OK);
    if (clear != NULL && hd_copy_bytes(clear) > 0) {
        hd_device_box box = hd_device_box_of(clear, 0, 0);
        HD_TRY(hd_device_list_make(&n->clear, n->device, &box, 1, deadline_ns));
    }
    HD_TRY(hd_device_list_make(&n->before, n->device, m->before, m->nbefore, deadline_ns));
    HD_TRY(hd_device_list_make(&n->after, n->device, m->after, m->nafter, deadline_ns));
    if (n->staging_bytes > 0) {
        st = n->device->library->alloc((void **)&n->staging, n->device->number, (size_t)n->staging_bytes);
    }
out:
    return st;
}

heddle_status hd_nccl_phase_create(hd_nccl_phase **out, const hd_route *route, int phase, int any_adds)
{
    making m = {.spec = &route->spec.phase[phase].transfer, .any_adds = any_adds, .rank = route->rank, .own_at = -1};
    heddle_status st = hd_alloc((void **)&m.n, 1, sizeof *m.n, "messages between devices");
    if (st == HEDDLE_OK) {
        m.n->comm = route->comm;
        m.n->device = route->device;
        m.n->dtype = route->spec.dtype;
        m.n->elem_bytes = route->spec.elem_bytes;
        m.n->batch.deadline_ms = route->spec.options.deadline_ms;
        st = make(&m);
    }
    HD_FREE_ALL(m.before, m.after, m.part_at);
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
    hd_device_free(n->device, n->staging);
    HD_FREE_ALL(n->batch.send, n->batch.recv, n->send_at, n->recv_at, n->send_packed, n->recv_packed, n->send_to, n);
}

void hd_nccl_phase_inform(hd_nccl_info *info, const hd_nccl_phase *n)
{
    info->bytes += n->bytes;
    info->messages += n->batch.nsends;
    info->packed_bytes += n->packed_bytes;
    info->memory_bytes += n->staging_bytes + n->clear.bytes + n->before.bytes + n->after.bytes;
}

/* --- executing ---------------------------------------------------------------------------------------------------- */

static heddle_status exchange(hd_nccl_phase *n, const void *src, void *dst, heddle_stream stream, int is_captured)
{
    hd_nccl_batch *l = &n->batch;
    for (int i = 0; i < l->nsends; i++) {
        const char *base = n->send_packed[i] ? n->staging : src;
        l->send[i].data = (void *)(uintptr_t)(base + n->send_at[i]);
    }
    for (int i = 0; i < l->nrecvs; i++) {
        l->recv[i].data = (n->recv_packed[i] ? n->staging : (char *)dst) + n->recv_at[i];
    }
    return l->nsends + l->nrecvs > 0 ? hd_comm_nccl_exchange(n->comm, l, stream, is_captured) : HEDDLE_OK;
}

static heddle_status run(hd_nccl_phase *n, const void *src, void *dst, heddle_stream stream, int is_captured)
{
    heddle_status st = HEDDLE_OK;
    const void *from[2] = {src, n->staging};
    void *to[2] = {dst, n->staging};
    HD_TRY(hd_device_list_run(&n->clear, HD_DEVICE_CLEAR, from, to, stream));
    HD_TRY(hd_device_list_run(&n->before, HD_DEVICE_COPY, from, to, stream));
    HD_TRY(exchange(n, src, dst, stream, is_captured));
    HD_TRY(hd_device_sums_run(&n->sums, n->device, n->staging, dst, n->dtype, stream));
    st = hd_device_list_run(&n->after, HD_DEVICE_COPY, from, to, stream);
out:
    return st;
}

heddle_status hd_nccl_phase_run(hd_nccl_phase *n, const void *src, void *dst, heddle_stream stream, int is_captured,
                                int64_t *sent)
{
    int before = 0;
    heddle_status st = n->device->library->enter(&before, n->device->number);
    if (st == HEDDLE_OK) {
        st = run(n, src, dst, stream, is_captured);
        n->device->library->leave(before);
    }
    for (int i = 0; st == HEDDLE_OK && i < n->batch.nsends; i++) {
        sent[n->send_to[i]] += n->batch.send[i].bytes;
    }
    return st == HEDDLE_OK ? st : hd_comm_nccl_give_up(n->comm, st);
}
