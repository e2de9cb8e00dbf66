/* Sources that peers do not read where they lie: packed straight into peer-reachable staging before the peers are told.
 * Memory that they cannot reach (HEDDLE_MEMORY_ANY) they may read with process_vm_readv instead; messages between ranks
 * of one host (forced ones, pretended hosts) always go this way.
 */
#include "runtime/move/transfer.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { IOV_ROWS = 512 };

/* The items for peers that reach arrays (near), or for those that are sent messages. */
static heddle_status build_pack(hd_lanes *out, hd_transfer *t, int near)
{
    heddle_status st = HEDDLE_OK;
    const hd_channel *c = t->channel;
    void *copies = NULL, *peers = NULL;
    int n = 0;
    HD_TRY(hd_alloc(&copies, (size_t)t->send.count, sizeof(hd_copy), "staging of a transfer"));
    HD_TRY(hd_alloc(&peers, (size_t)t->send.count, sizeof(int), "staging of a transfer"));
    for (int i = 0; i < t->send.count; i++) {
        int peer = t->send.item[i].peer;
        if (peer == c->rank || !hd_channel_linked(c, peer) || hd_channel_near(c, peer) != near) {
            continue;
        }
        hd_copy *copy = (hd_copy *)copies + n;
        *copy = t->send.item[i].copy;
        hd_item_stream(copy, t);
        t->own.item_offset[peer] = hd_transfer_reserve(t, hd_copy_bytes(copy));
        hd_copy_make_dense(copy, HD_SIDE_DST, t->own.item_offset[peer]);
        ((int *)peers)[n++] = peer;
    }
    HD_TRY(hd_lanes_build(out, copies, peers, n, HD_SIDE_SRC, c->rank, c->nranks, HD_LONG_RUN_BYTES));
    hd_lanes_choose(out, t->kernel, &t->hint);
out:
    hd_free(copies);
    hd_free(peers);
    return st;
}

static heddle_status build_reads(hd_private *p, hd_transfer *t)
{
    heddle_status st = HEDDLE_OK;
    const hd_channel *c = t->channel;
    size_t n = (size_t)t->recv.count;
    HD_TRY(hd_alloc((void **)&p->from, n, sizeof(int), "staging of a transfer"));
    HD_TRY(hd_alloc((void **)&p->direct, n, sizeof(hd_lanes), "staging of a transfer"));
    HD_TRY(hd_alloc((void **)&p->staged, n, sizeof(hd_lanes), "staging of a transfer"));
    HD_TRY(hd_alloc((void **)&p->copy, n, sizeof(hd_copy), "staging of a transfer"));
    for (int i = 0; i < t->recv.count; i++) {
        int peer = t->recv.item[i].peer, k = p->nfrom;
        if (!hd_channel_linked(c, peer)) {
            continue;
        }
        hd_copy dense = t->recv.item[i].copy;
        p->copy[k] = dense;
        hd_copy_walk(&p->copy[k], HD_SIDE_DST);
        hd_item_stream(&dense, t);
        hd_copy_make_dense(&dense, HD_SIDE_SRC, 0);
        p->from[k] = peer;
        p->nfrom++;
        HD_TRY(
            hd_lanes_build(&p->direct[k], &p->copy[k], &peer, 1, HD_SIDE_DST, c->rank, c->nranks, HD_LONG_RUN_BYTES));
        HD_TRY(hd_lanes_build(&p->staged[k], &dense, &peer, 1, HD_SIDE_DST, c->rank, c->nranks, HD_LONG_RUN_BYTES));
        hd_lanes_at_peers(&p->direct[k], HD_SIDE_SRC);
        hd_lanes_at_peers(&p->staged[k], HD_SIDE_SRC);
        hd_lanes_choose(&p->direct[k], t->kernel, &t->hint);
        hd_lanes_choose(&p->staged[k], t->kernel, &t->hint);
    }
out:
    return st;
}

heddle_status hd_private_build(hd_transfer *t)
{
    heddle_status st = HEDDLE_OK;
    hd_private *p = &t->own;
    size_t nranks = (size_t)t->channel->nranks;
    p->used = 1;
    HD_TRY(hd_alloc((void **)&p->item_offset, nranks, sizeof(int64_t), "staging of a transfer"));
    memset(p->item_offset, -1, nranks * sizeof(int64_t));
    if (p->is_private) {
        HD_TRY(build_pack(&p->pack, t, 1));
    }
    HD_TRY(build_pack(&p->pack_mail, t, 0));
    if (!t->adds) {
        HD_TRY(build_reads(p, t));
    }
out:
    return st;
}

void hd_private_pack(hd_transfer *t, const void *src, hd_reach reach)
{
    void *staging = t->staging;
    const hd_bases bases = {.src = &src, .dst = &staging};
    if (reach == HD_REACH_STAGED) {
        hd_lanes_run(&t->own.pack, &bases);
    }
    hd_lanes_run(&t->own.pack_mail, &bases);
}

uint64_t hd_private_item(const hd_transfer *t, int peer)
{
    const hd_channel *c = t->channel;
    int64_t offset = t->own.item_offset[peer];
    return offset < 0 ? 0 : hd_link_name(c->link, t->staging + offset, 1);
}

int hd_private_all_direct(const hd_transfer *t)
{
    for (int i = 0; i < t->own.nfrom; i++) {
        if (t->channel->reach_of[t->own.from[i]] != HD_REACH_DIRECT) {
            return 0;
        }
    }
    return 1;
}

typedef struct rows {
    struct iovec near[IOV_ROWS], far[IOV_ROWS];
    int n;
} rows;

/* Read what the rows list; the kernel may stop early anywhere. */
static heddle_status read_rows(const hd_channel *c, int peer, rows *r)
{
    int first = 0;
    while (first < r->n) {
        ssize_t got = process_vm_readv(hd_comm_peer_pid(c->comm, peer), r->near + first, (unsigned long)(r->n - first),
                                       r->far + first, (unsigned long)(r->n - first), 0);
        if (got <= 0) {
            return hd_fail(HEDDLE_ERR_TRANSPORT, "rank %d could not read the source of rank %d (process_vm_readv: %s)",
                           hd_comm_rank_name(c->comm, c->rank), hd_comm_rank_name(c->comm, peer),
                           got < 0 ? strerror(errno) : "nothing was read");
        }
        for (; first < r->n && (size_t)got >= r->near[first].iov_len; first++) {
            got -= (ssize_t)r->near[first].iov_len;
        }
        if (got > 0) {
            r->near[first].iov_base = (char *)r->near[first].iov_base + got;
            r->far[first].iov_base = (char *)r->far[first].iov_base + got;
            r->near[first].iov_len -= (size_t)got;
            r->far[first].iov_len -= (size_t)got;
        }
    }
    r->n = 0;
    return HEDDLE_OK;
}

static heddle_status read_copy(const hd_channel *c, int peer, const hd_copy *copy, const char *src, char *dst)
{
    rows r;
    int64_t index[HEDDLE_MAX_DIMS] = {0};
    r.n = 0;
    src += copy->src_offset_bytes;
    dst += copy->dst_offset_bytes;
    for (;;) {
        r.near[r.n] = (struct iovec){dst, (size_t)copy->run_bytes};
        r.far[r.n++] = (struct iovec){(void *)(uintptr_t)src, (size_t)copy->run_bytes};
        int k = copy->nloops - 1;
        for (; k >= 0; k--) {
            int64_t steps = ++index[k] < copy->count[k] ? 1 : 1 - copy->count[k];
            src += steps * copy->src_stride_bytes[k];
            dst += steps * copy->dst_stride_bytes[k];
            if (index[k] < copy->count[k]) {
                break;
            }
            index[k] = 0;
        }
        if (k < 0 || r.n == IOV_ROWS) {
            heddle_status st = read_rows(c, peer, &r);
            if (st != HEDDLE_OK || k < 0) {
                return st;
            }
        }
    }
}

heddle_status hd_private_move(hd_transfer *t, void *dst)
{
    hd_private *p = &t->own;
    hd_channel *c = t->channel;
    hd_bases bases = {c->src_at, &dst, c->moved};
    for (int i = 0; i < p->nfrom; i++) {
        int peer = p->from[i];
        if (c->reach_of[peer] == HD_REACH_READV) {
            heddle_status st = read_copy(c, peer, &p->copy[i], c->src_at[peer], dst);
            if (st != HEDDLE_OK) {
                return st;
            }
            c->moved[peer] += hd_copy_bytes(&p->copy[i]);
        } else {
            hd_lanes_run(c->reach_of[peer] == HD_REACH_STAGED ? &p->staged[i] : &p->direct[i], &bases);
        }
    }
    return HEDDLE_OK;
}

heddle_status hd_channel_probe_readv(hd_channel *c, int *works)
{
    static const uint64_t word = 0x6865646c652d3031u; /* the same address space layout is not assumed: it is sent */
    heddle_status st = HEDDLE_OK;
    uint64_t mine = (uint64_t)(uintptr_t)&word;
    void *all = NULL;
    HD_TRY(hd_alloc(&all, (size_t)c->nranks, sizeof mine, "probe of process_vm_readv"));
    HD_TRY(hd_comm_allgather_or_abort(c->comm, &mine, all, sizeof mine));
    *works = 1;
    for (int r = 0; r < c->nranks && *works; r++) {
        if (r != c->rank && hd_channel_near(c, r)) {
            uint64_t got = 0;
            struct iovec near = {&got, sizeof got}, far = {(void *)(uintptr_t)((uint64_t *)all)[r], sizeof got};
            *works = process_vm_readv(hd_comm_peer_pid(c->comm, r), &near, 1, &far, 1, 0) == sizeof got && got == word;
        }
    }
out:
    hd_free(all);
    return st;
}

void hd_private_free(hd_private *p)
{
    hd_lanes_free(&p->pack);
    hd_lanes_free(&p->pack_mail);
    hd_free(p->item_offset);
    for (int i = 0; i < p->nfrom; i++) {
        hd_lanes_free(&p->direct[i]);
        hd_lanes_free(&p->staged[i]);
    }
    HD_FREE_ALL(p->from, p->direct, p->staged, p->copy);
    memset(p, 0, sizeof *p);
}
