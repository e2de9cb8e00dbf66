/* Sources that peers cannot reach (HEDDLE_MEMORY_ANY): packed straight into peer-reachable staging before the peers are
 * told, or read by them with process_vm_readv. */
#include "runtime/reshard/plan.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { IOV_ROWS = 512 };

static heddle_status stream_copy(hd_copy *copy, heddle_reshard *plan, int phase, const hd_piece *piece, int is_send)
{
    heddle_status st =
        hd_plan_copy(copy, plan, phase, piece, is_send ? plan->rank : piece->peer, is_send ? piece->peer : plan->rank);
    if (st == HEDDLE_OK && plan->step[phase].any_sums) {
        hd_copy_walk(copy, HD_SIDE_DST);
    } else if (st == HEDDLE_OK) {
        hd_copy_stream(copy);
    }
    return st;
}

static heddle_status build_pack(hd_private *p, heddle_reshard *plan, int phase)
{
    heddle_status st = HEDDLE_OK;
    const hd_pieces *send = &plan->step[phase].send;
    void *copies = NULL, *peers = NULL;
    int n = 0;
    HD_TRY(hd_alloc(&copies, (size_t)send->count, sizeof(hd_copy), "staging of a reshard"));
    HD_TRY(hd_alloc(&peers, (size_t)send->count, sizeof(int), "staging of a reshard"));
    HD_TRY(hd_alloc((void **)&p->piece_offset, (size_t)plan->nranks, sizeof(int64_t), "staging of a reshard"));
    for (int i = 0; i < send->count; i++) {
        int peer = send->piece[i].peer;
        if (peer == plan->rank || !hd_plan_near(plan, peer)) {
            continue;
        }
        hd_copy *copy = (hd_copy *)copies + n;
        HD_TRY(stream_copy(copy, plan, phase, &send->piece[i], 1));
        p->piece_offset[peer] = hd_plan_reserve(plan, hd_copy_bytes(copy));
        hd_copy_make_dense(copy, HD_SIDE_DST, p->piece_offset[peer]);
        ((int *)peers)[n++] = peer;
    }
    HD_TRY(hd_lanes_build(&p->pack, copies, peers, n, HD_SIDE_SRC, plan->rank, plan->nranks, HD_LONG_RUN_BYTES));
    hd_lanes_choose(&p->pack, plan->request.kernel, &plan->hint);
out:
    hd_free(copies);
    hd_free(peers);
    return st;
}

static heddle_status build_reads(hd_private *p, heddle_reshard *plan, int phase)
{
    heddle_status st = HEDDLE_OK;
    const hd_pieces *recv = &plan->step[phase].recv;
    size_t n = (size_t)recv->count;
    HD_TRY(hd_alloc((void **)&p->from, n, sizeof(int), "staging of a reshard"));
    HD_TRY(hd_alloc((void **)&p->direct, n, sizeof(hd_lanes), "staging of a reshard"));
    HD_TRY(hd_alloc((void **)&p->staged, n, sizeof(hd_lanes), "staging of a reshard"));
    HD_TRY(hd_alloc((void **)&p->copy, n, sizeof(hd_copy), "staging of a reshard"));
    for (int i = 0; i < recv->count; i++) {
        int peer = recv->piece[i].peer, k = p->nfrom;
        if (!hd_plan_near(plan, peer)) {
            continue;
        }
        hd_copy dense;
        HD_TRY(hd_plan_copy(&p->copy[k], plan, phase, &recv->piece[i], peer, plan->rank));
        hd_copy_walk(&p->copy[k], HD_SIDE_DST);
        HD_TRY(stream_copy(&dense, plan, phase, &recv->piece[i], 0));
        hd_copy_make_dense(&dense, HD_SIDE_SRC, 0);
        p->from[k] = peer;
        p->nfrom++;
        HD_TRY(hd_lanes_build(&p->direct[k], &p->copy[k], &peer, 1, HD_SIDE_DST, plan->rank, plan->nranks,
                              HD_LONG_RUN_BYTES));
        HD_TRY(
            hd_lanes_build(&p->staged[k], &dense, &peer, 1, HD_SIDE_DST, plan->rank, plan->nranks, HD_LONG_RUN_BYTES));
        hd_lanes_choose(&p->direct[k], plan->request.kernel, &plan->hint);
        hd_lanes_choose(&p->staged[k], plan->request.kernel, &plan->hint);
    }
out:
    return st;
}

heddle_status hd_private_build(heddle_reshard *plan, int phase)
{
    heddle_status st = HEDDLE_OK;
    hd_step *step = &plan->step[phase];
    hd_private *p = &step->own;
    if (plan->request.options.memory != HEDDLE_MEMORY_ANY || step->phase->src != HD_PLACE_SRC ||
        hd_comm_shares_address_space(plan->comm)) {
        return HEDDLE_OK;
    }
    p->used = 1;
    HD_TRY(build_pack(p, plan, phase));
    if (!step->recv.sums) {
        HD_TRY(build_reads(p, plan, phase));
    }
out:
    return st;
}

typedef struct rows {
    struct iovec near[IOV_ROWS], far[IOV_ROWS];
    int n;
} rows;

/* Read what the rows list; the kernel may stop early anywhere. */
static heddle_status read_rows(const heddle_reshard *plan, int peer, rows *r)
{
    int first = 0;
    while (first < r->n) {
        ssize_t got = process_vm_readv(hd_comm_peer_pid(plan->comm, peer), r->near + first,
                                       (unsigned long)(r->n - first), r->far + first, (unsigned long)(r->n - first), 0);
        if (got <= 0) {
            return hd_fail(HEDDLE_ERR_TRANSPORT, "rank %d could not read the source of rank %d (process_vm_readv: %s)",
                           plan->rank, peer, got < 0 ? strerror(errno) : "nothing was read");
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

static heddle_status read_copy(const heddle_reshard *plan, int peer, const hd_copy *copy, const char *src, char *dst)
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
            heddle_status st = read_rows(plan, peer, &r);
            if (st != HEDDLE_OK || k < 0) {
                return st;
            }
        }
    }
}

heddle_status hd_private_move(hd_step *step, heddle_reshard *plan)
{
    hd_private *p = &step->own;
    hd_bases bases = {.dst = plan->step_dst, .src_at = plan->src_at, .moved = plan->moved};
    for (int i = 0; i < p->nfrom; i++) {
        int peer = p->from[i];
        if (plan->reach_of[peer] == HD_REACH_READV) {
            heddle_status st = read_copy(plan, peer, &p->copy[i], plan->src_at[peer], plan->step_dst);
            if (st != HEDDLE_OK) {
                return st;
            }
            plan->moved[peer] += hd_copy_bytes(&p->copy[i]);
        } else {
            hd_lanes_run(plan->reach_of[peer] == HD_REACH_STAGED ? &p->staged[i] : &p->direct[i], &bases);
        }
    }
    return HEDDLE_OK;
}

heddle_status hd_private_probe(heddle_reshard *plan, int *works)
{
    static const uint64_t word = 0x6865646c652d3031u; /* the same address space layout is not assumed: it is sent */
    heddle_status st = HEDDLE_OK;
    uint64_t mine = (uint64_t)(uintptr_t)&word;
    void *all = NULL;
    HD_TRY(hd_alloc(&all, (size_t)plan->nranks, sizeof mine, "probe of process_vm_readv"));
    HD_TRY(hd_gather(plan->comm, &mine, all, sizeof mine));
    *works = 1;
    for (int r = 0; r < plan->nranks && *works; r++) {
        if (r != plan->rank && hd_plan_near(plan, r)) {
            uint64_t got = 0;
            struct iovec near = {&got, sizeof got}, far = {(void *)(uintptr_t)((uint64_t *)all)[r], sizeof got};
            *works =
                process_vm_readv(hd_comm_peer_pid(plan->comm, r), &near, 1, &far, 1, 0) == sizeof got && got == word;
        }
    }
out:
    hd_free(all);
    return st;
}

void hd_private_free(hd_private *p)
{
    hd_lanes_free(&p->pack);
    hd_free(p->piece_offset);
    for (int i = 0; i < p->nfrom; i++) {
        hd_lanes_free(&p->direct[i]);
        hd_lanes_free(&p->staged[i]);
    }
    hd_free(p->from);
    hd_free(p->direct);
    hd_free(p->staged);
    hd_free(p->copy);
    memset(p, 0, sizeof *p);
}
