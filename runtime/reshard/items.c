/* A phase of the compiled problem as items: what this rank sends and receives, as copies between two arrays. */
#include "runtime/reshard/plan.h"

#include <string.h>

/* The array of `rank` that a phase reads (is_dst 0) or writes, strides included. */
static heddle_status array_of(hd_array *out, const heddle_reshard *plan, int phase, int is_dst, int rank)
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

static heddle_status fill(hd_items *out, const heddle_reshard *plan, int phase, const hd_pieces *pieces, int is_send)
{
    heddle_status st = HEDDLE_OK;
    hd_array mine, theirs;
    HD_TRY(hd_alloc((void **)&out->item, (size_t)pieces->count + 1, sizeof *out->item, "items of a reshard"));
    HD_TRY(array_of(&mine, plan, phase, !is_send, plan->rank));
    for (int i = 0; i < pieces->count; i++) {
        const hd_piece *piece = &pieces->piece[i];
        hd_item *item = &out->item[out->count];
        if (heddle_box_elems(&piece->box) == 0) {
            continue;
        }
        HD_TRY(array_of(&theirs, plan, phase, is_send, piece->peer));
        item->peer = piece->peer;
        (pieces->sums ? hd_piece_rows : hd_piece_copy)(&item->copy, piece, is_send ? &mine : &theirs,
                                                       is_send ? &theirs : &mine, plan->elem_bytes);
        out->count++;
    }
out:
    return st;
}

static void note_traffic(heddle_reshard *plan, const hd_items *items, int64_t *bytes_by_peer)
{
    for (int i = 0; i < items->count; i++) {
        int peer = items->item[i].peer;
        bytes_by_peer[peer] += peer == plan->rank ? 0 : hd_copy_bytes(&items->item[i].copy);
    }
}

/* Bytes of the array that a phase reads or writes here. */
static heddle_status array_bytes(size_t *out, const heddle_reshard *plan, int phase, int is_dst)
{
    const hd_phase *p = &plan->problem.phase[phase];
    int is_callers = p->kind == HD_PHASE_BOXES && (is_dst ? p->dst == HD_PLACE_DST : p->src == HD_PLACE_SRC);
    heddle_box box;
    heddle_status st = hd_phase_box(&box, &plan->problem, phase, is_dst, plan->rank);
    if (st == HEDDLE_OK) {
        *out = is_callers ? (size_t)(is_dst ? plan->request.dst_bytes : plan->request.src_bytes)
                          : (size_t)heddle_box_elems(&box) * plan->elem_bytes;
    }
    return st;
}

static heddle_status describe_clear(hd_copy *out, const heddle_reshard *plan, int phase)
{
    hd_array dst;
    heddle_status st = array_of(&dst, plan, phase, 1, plan->rank);
    if (st == HEDDLE_OK) {
        hd_piece whole = {plan->rank, dst.box};
        hd_piece_copy(out, &whole, &dst, &dst, plan->elem_bytes);
    }
    return st;
}

heddle_status hd_items_make(hd_transfer_spec *spec, hd_copy *clear, heddle_reshard *plan, int phase)
{
    heddle_status st = HEDDLE_OK;
    const hd_phase *p = &plan->problem.phase[phase];
    int is_any = plan->request.options.memory == HEDDLE_MEMORY_ANY;
    hd_pieces send = {0}, recv = {0};
    HD_TRY(hd_compile(&send, &plan->problem, phase, plan->rank, HD_SEND));
    HD_TRY(hd_compile(&recv, &plan->problem, phase, plan->rank, HD_RECV));
    spec->adds = recv.sums;
    HD_TRY(fill(&spec->send, plan, phase, &send, 1));
    HD_TRY(fill(&spec->recv, plan, phase, &recv, 0));
    HD_TRY(array_bytes(&spec->src_bytes, plan, phase, 0));
    HD_TRY(array_bytes(&spec->dst_bytes, plan, phase, 1));
    if (recv.zero_fill) {
        HD_TRY(describe_clear(clear, plan, phase));
        spec->clear = clear;
    }
    spec->kernels = plan->request.kernels;
    spec->add = plan->request.kernels->sum[plan->request.line.shape.dtype];
    spec->add_streamed = plan->request.kernels->sum_streamed[plan->request.line.shape.dtype];
    spec->any_src = is_any && p->src == HD_PLACE_SRC;
    spec->any_dst = is_any && p->dst == HD_PLACE_DST;
    spec->footprint_bytes = hd_footprint_bytes(plan->request.src_bytes, plan->request.dst_bytes);
    spec->kernel = plan->request.kernel;
    note_traffic(plan, &spec->send, plan->bytes_to);
    note_traffic(plan, &spec->recv, plan->bytes_from);
out:
    hd_pieces_free(&send);
    hd_pieces_free(&recv);
    return st;
}

void hd_items_free(hd_transfer_spec *spec)
{
    hd_free(spec->send.item);
    hd_free(spec->recv.item);
}
