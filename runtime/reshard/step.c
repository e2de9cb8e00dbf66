/* A phase becomes a step: what this rank copies, with whom, in which direction. */
#include "runtime/reshard/plan.h"

#include <string.h>

enum { SHORT_RUN_BYTES = 2048 };

int hd_plan_near(const heddle_reshard *plan, int peer)
{
    return peer == plan->rank || heddle_comm_reaches(plan->comm, peer);
}

int64_t hd_plan_reserve(heddle_reshard *plan, int64_t bytes)
{
    int64_t offset = plan->buffer_bytes;
    plan->buffer_bytes = (offset + bytes + 4095) / 4096 * 4096;
    return offset;
}

heddle_status hd_plan_array(hd_array *out, const heddle_reshard *plan, int phase, int is_dst, int rank)
{
    const hd_phase *p = &plan->problem.phase[phase];
    hd_place place = is_dst ? p->dst : p->src;
    heddle_status st = hd_phase_box(&out->box, &plan->problem, phase, is_dst, rank);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (p->kind != HD_PHASE_BOXES) {
        out->stride_elems[0] = 1; /* flat phases see dense arrays; strided ones are copied before and after */
    } else if (place == HD_PLACE_SRC) {
        memcpy(out->stride_elems, plan->facts[rank].src_stride_elems, sizeof out->stride_elems);
    } else if (place == HD_PLACE_DST) {
        memcpy(out->stride_elems, plan->facts[rank].dst_stride_elems, sizeof out->stride_elems);
    } else {
        const heddle_order *order = is_dst ? &p->to_order : &p->from_order;
        heddle_box_strides(out->stride_elems, &out->box, order->ndim > 0 ? order : NULL);
    }
    return HEDDLE_OK;
}

heddle_status hd_plan_copy(hd_copy *out, const heddle_reshard *plan, int phase, const hd_piece *piece, int from, int to)
{
    hd_array src, dst;
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_plan_array(&src, plan, phase, 0, from));
    HD_TRY(hd_plan_array(&dst, plan, phase, 1, to));
    hd_piece_copy(out, piece, &src, &dst, plan->elem_bytes);
out:
    return st;
}

static void drop_empty(hd_pieces *pieces)
{
    int kept = 0;
    for (int i = 0; i < pieces->count; i++) {
        if (heddle_box_elems(&pieces->piece[i].box) > 0) {
            pieces->piece[kept++] = pieces->piece[i];
        }
    }
    pieces->count = kept;
}

static void note_traffic(hd_geometry *out, heddle_reshard *plan, const hd_pieces *pieces, int is_send)
{
    for (int i = 0; i < pieces->count; i++) {
        int peer = pieces->piece[i].peer;
        int64_t bytes = heddle_box_elems(&pieces->piece[i].box) * (int64_t)plan->elem_bytes;
        if (peer == plan->rank) {
            continue;
        }
        int near = hd_plan_near(plan, peer);
        out->near += near;
        out->mail += !near;
        if (!is_send) {
            plan->bytes_from[peer] += bytes;
            continue;
        }
        plan->bytes_to[peer] += bytes;
        plan->plan_bytes += bytes;
        plan->bytes_peer_path += near ? bytes : 0;
        plan->bytes_messages += near ? 0 : bytes;
        plan->messages += !near;
    }
}

heddle_status hd_step_compile(hd_geometry *out, heddle_reshard *plan, int phase)
{
    heddle_status st = HEDDLE_OK;
    hd_step *step = &plan->step[phase];
    const hd_phase *p = step->phase = &plan->problem.phase[phase];
    heddle_box src, dst;
    memset(out, 0, sizeof *out);
    HD_TRY(hd_compile(&step->send, &plan->problem, phase, plan->rank, HD_SEND));
    HD_TRY(hd_compile(&step->recv, &plan->problem, phase, plan->rank, HD_RECV));
    drop_empty(&step->send);
    drop_empty(&step->recv);
    HD_TRY(hd_phase_box(&src, &plan->problem, phase, 0, plan->rank));
    HD_TRY(hd_phase_box(&dst, &plan->problem, phase, 1, plan->rank));
    step->src_bytes = p->src == HD_PLACE_SRC && p->kind == HD_PHASE_BOXES
                          ? (size_t)plan->request.src_bytes
                          : (size_t)heddle_box_elems(&src) * plan->elem_bytes;
    step->dst_bytes = p->dst == HD_PLACE_DST && p->kind == HD_PHASE_BOXES
                          ? (size_t)plan->request.dst_bytes
                          : (size_t)heddle_box_elems(&dst) * plan->elem_bytes;
    out->sums = step->recv.sums;
    out->zero_fill = step->recv.zero_fill;
    note_traffic(out, plan, &step->send, 1);
    note_traffic(out, plan, &step->recv, 0);
    for (int i = 0; i < step->recv.count; i++) {
        hd_copy copy;
        HD_TRY(hd_plan_copy(&copy, plan, phase, &step->recv.piece[i], step->recv.piece[i].peer, plan->rank));
        if (hd_copy_bytes(&copy) > out->largest_bytes) {
            *out = (hd_geometry){hd_copy_bytes(&copy),
                                 copy.run_bytes,
                                 hd_copy_stretch(&copy, HD_SIDE_SRC),
                                 hd_copy_stretch(&copy, HD_SIDE_DST),
                                 out->sums,
                                 out->zero_fill,
                                 out->mail,
                                 out->near};
        }
    }
out:
    return st;
}

/* The owner of the interleaved side moves, walking its own memory in row order; where both sides are cut (the order is
 * permuted), reading in order and scattering is the faster way. The same on every rank. */
static void choose_direction(hd_step *step, const heddle_reshard *plan, const hd_geometry *all)
{
    const hd_geometry *top = all;
    int must_pull = plan->request.options.memory == HEDDLE_MEMORY_ANY;
    for (int r = 0; r < plan->nranks; r++) {
        const hd_geometry *g = &all[(size_t)r * HD_MAX_STEPS];
        step->any_sums |= g->sums;
        step->any_mail |= g->mail > 0;
        must_pull |= g->sums | g->zero_fill;
        top = g->largest_bytes > top->largest_bytes ? g : top;
    }
    int64_t src = top->src_stretch_bytes, dst = top->dst_stretch_bytes, run = top->run_bytes;
    int permuted = src > run && dst > run && run < top->largest_bytes;
    step->walk_src = permuted || (run < top->largest_bytes && src <= dst);
    step->push = step->walk_src && !must_pull;
    step->is_open = !must_pull && (permuted || (src >= HD_LONG_RUN_BYTES && dst >= HD_LONG_RUN_BYTES));
}

static int add_rank(int *list, int n, int rank)
{
    for (int i = 0; i < n; i++) {
        if (list[i] == rank) {
            return n;
        }
    }
    list[n] = rank;
    return n + 1;
}

static void free_peers(hd_step *step)
{
    hd_free(step->ready);
    hd_free(step->role);
    hd_free(step->served);
    hd_free(step->movers);
    step->ready = step->served = step->movers = NULL;
    step->role = NULL;
    step->nready = step->nserved = step->nmovers = 0;
}

static int near_peers(int *out, const heddle_reshard *plan, const hd_pieces *pieces)
{
    int n = 0;
    for (int i = 0; i < pieces->count; i++) {
        int peer = pieces->piece[i].peer;
        if (peer != plan->rank && hd_plan_near(plan, peer)) {
            n = add_rank(out, n, peer);
        }
    }
    return n;
}

static heddle_status list_peers(hd_step *step, const heddle_reshard *plan, int is_first)
{
    heddle_status st = HEDDLE_OK;
    int *to, *from, nto, nfrom;
    size_t n = (size_t)(step->send.count + step->recv.count) + 1, nready = n;
    for (int r = 0; is_first && r < plan->nranks; r++) {
        nready += plan->component[r];
    }
    HD_TRY(hd_alloc((void **)&step->served, n, sizeof(int), "peers of a reshard"));
    HD_TRY(hd_alloc((void **)&step->movers, n, sizeof(int), "peers of a reshard"));
    HD_TRY(hd_alloc((void **)&step->ready, nready, sizeof(int), "peers of a reshard"));
    HD_TRY(hd_alloc((void **)&step->role, nready, 1, "peers of a reshard"));
    to = step->push ? step->served : step->movers;
    from = step->push ? step->movers : step->served;
    nto = near_peers(to, plan, &step->send);
    nfrom = near_peers(from, plan, &step->recv);
    step->nserved = step->push ? nto : nfrom;
    step->nmovers = step->push ? nfrom : nto;
    for (int i = 0; i < nto; i++) {
        step->nready = add_rank(step->ready, step->nready, to[i]);
    }
    for (int i = 0; i < nfrom; i++) {
        step->nready = add_rank(step->ready, step->nready, from[i]);
    }
    for (int r = 0; is_first && r < plan->nranks; r++) {
        if (plan->component[r] && r != plan->rank) {
            step->nready = add_rank(step->ready, step->nready, r);
        }
    }
    for (int i = 0; i < step->nready; i++) {
        for (int k = 0; k < step->nserved; k++) {
            if (step->ready[i] == step->served[k]) {
                step->role[i] = step->push ? HD_ROLE_WRITE : HD_ROLE_READ;
            }
        }
    }
out:
    return st;
}

/* Own pieces always; the near ones of the side that this rank moves. */
static heddle_status build_lanes(hd_step *step, const heddle_reshard *plan, int phase)
{
    heddle_status st = HEDDLE_OK;
    const hd_pieces *pieces = step->push ? &step->send : &step->recv;
    /* In the cache the order of rows is worth less than copying the own part while the peers' flags travel. */
    int64_t fuse_bytes =
        plan->hint.footprint_bytes <= plan->hint.shared_cache_bytes ? SHORT_RUN_BYTES : HD_LONG_RUN_BYTES;
    void *copies = NULL, *peers = NULL;
    int n = 0;
    HD_TRY(hd_alloc(&copies, (size_t)pieces->count, sizeof(hd_copy), "copies of a reshard"));
    HD_TRY(hd_alloc(&peers, (size_t)pieces->count, sizeof(int), "copies of a reshard"));
    for (int i = 0; i < pieces->count; i++) {
        const hd_piece *piece = &pieces->piece[i];
        if (!hd_plan_near(plan, piece->peer)) {
            continue;
        }
        ((int *)peers)[n] = piece->peer;
        HD_TRY(hd_plan_copy((hd_copy *)copies + n, plan, phase, piece, step->push ? plan->rank : piece->peer,
                            step->push ? piece->peer : plan->rank));
        n++;
    }
    HD_TRY(hd_lanes_build(&step->lanes, copies, peers, n, step->walk_src ? HD_SIDE_SRC : HD_SIDE_DST, plan->rank,
                          plan->nranks, fuse_bytes));
    hd_lanes_choose(&step->lanes, plan->request.kernel, &plan->hint);
out:
    hd_free(copies);
    hd_free(peers);
    return st;
}

heddle_status hd_step_redirect(heddle_reshard *plan, int phase, int push, int walk_src)
{
    heddle_status st = HEDDLE_OK;
    hd_step *step = &plan->step[phase];
    free_peers(step);
    hd_lanes_free(&step->lanes);
    step->push = push;
    step->walk_src = walk_src;
    HD_TRY(list_peers(step, plan, phase == 0));
    HD_TRY(build_lanes(step, plan, phase));
out:
    return st;
}

static heddle_status describe_clear(hd_step *step, const heddle_reshard *plan, int phase)
{
    hd_array dst;
    heddle_status st = hd_plan_array(&dst, plan, phase, 1, plan->rank);
    if (st == HEDDLE_OK) {
        hd_piece whole = {plan->rank, dst.box};
        hd_piece_copy(&step->zero, &whole, &dst, &dst, plan->elem_bytes);
    }
    return st;
}

heddle_status hd_step_build(heddle_reshard *plan, int phase, const hd_geometry *all)
{
    heddle_status st = HEDDLE_OK;
    hd_step *step = &plan->step[phase];
    choose_direction(step, plan, all + phase);
    HD_TRY(list_peers(step, plan, phase == 0));
    HD_TRY(hd_mail_build(plan, phase, 0));
    if (step->recv.sums) {
        HD_TRY(hd_sums_build(plan, phase));
    } else {
        HD_TRY(build_lanes(step, plan, phase));
    }
    HD_TRY(hd_private_build(plan, phase));
    HD_TRY(describe_clear(step, plan, phase));
out:
    return st;
}

void hd_step_free(hd_step *step)
{
    hd_pieces_free(&step->send);
    hd_pieces_free(&step->recv);
    free_peers(step);
    hd_lanes_free(&step->lanes);
    hd_sums_free(&step->sum);
    hd_mail_free(&step->mail);
    hd_mail_free(&step->spare);
    hd_private_free(&step->own);
}
