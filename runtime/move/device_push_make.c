/* Items as boxes and lists in device memory; and where sums are added. */
#include "runtime/move/device_push_inside.h"

#include <string.h>

/* --- lists -------------------------------------------------------------------------------------------------------- */

/* Of a launch that meets. Its blocks stay on the device while they wait, where nothing else fits beside them, and a few
 * fill the links between devices: 256 threads with 8 vectors each under way are 32 KiB, 32 such blocks 1 MiB, which is
 * what is on its way for 2 us at 450 GB/s. What stays here has its share besides. */
static int meeting_blocks(const hd_push *p, const hd_push_step *step)
{
    enum { FOR_LINKS = 32 };
    int64_t blocks = p->spec->options.device_blocks;
    const int64_t away = step->all_bytes - step->sent_bytes[p->rank];
    if (blocks == 0 && p->sharers.all < p->sharers.ranks && away > 0) {
        blocks = (int64_t)((double)FOR_LINKS * (double)step->all_bytes / (double)away);
    }
    return blocks > 0 && blocks < p->most_blocks ? (int)blocks : p->most_blocks;
}

/* Each box is several where it is very long, and each of them has a block at the least. */
static heddle_status check_blocks(const hd_push *p, const hd_device_list *list)
{
    int blocks = p->kernels->list_blocks(list->list);
    return blocks <= p->most_blocks
               ? HEDDLE_OK
               : hd_fail(HEDDLE_ERR_UNSUPPORTED,
                         "rank %d: a %s needs %d blocks that run at the same time, but %d ranks share device %s, where "
                         "each has %d; %s %s",
                         hd_comm_rank_name(p->comm, p->rank), p->spec->options.what, blocks, p->sharers.all,
                         p->device->name, p->most_blocks, p->spec->options.what, p->spec->options.line);
}

/* --- sums --------------------------------------------------------------------------------------------------------- */

/* The order in which an item lies in its slot, the same for sender and receiver: that of the destination. */
static hd_copy in_slot(const hd_copy *copy, int64_t at)
{
    hd_copy dense = *copy;
    hd_copy_walk(&dense, HD_SIDE_DST);
    hd_copy_make_dense(&dense, HD_SIDE_DST, at);
    return dense;
}

/* slot_of: where each rank's term lies, behind slots_at. */
static heddle_status make_sums(hd_push_step *step, hd_push *p, const hd_items *recv, int64_t *slot_of)
{
    heddle_status st = HEDDLE_OK;
    int64_t *item_at = NULL;
    HD_TRY(hd_alloc((void **)&item_at, (size_t)recv->count, sizeof *item_at, "sums of a device"));
    step->slots_at = p->memory_bytes;
    for (int i = 0; i < recv->count; i++) {
        item_at[i] = hd_device_reserve(&p->memory_bytes, hd_copy_bytes(&recv->item[i].copy));
        slot_of[recv->item[i].peer] = item_at[i] - step->slots_at;
    }
    HD_TRY(hd_device_sums_make(&step->sums, recv, item_at, p->spec->elem_bytes, &p->memory_bytes));
    st = hd_device_list_make(&step->unpack, p->device, step->sums.unpack, step->sums.nunpacks, 0,
                             hd_route_deadline_ns(p->route));
out:
    hd_free(item_at);
    return st;
}

/* --- destinations that peers do not reach ------------------------------------------------------------------------ */

/* Between processes any memory may come that peers have not mapped: they store to memory of the plan, where everything
 * lies as it does in the destination, and this rank copies it from there. */
static heddle_status make_landing(hd_push_step *step, hd_push *p, const hd_items *recv)
{
    heddle_status st = HEDDLE_OK;
    hd_device_box *box = NULL;
    int nboxes = 0;
    HD_TRY(hd_alloc((void **)&box, (size_t)recv->count, sizeof *box, "boxes of a device"));
    for (int i = 0; i < recv->count; i++) {
        if (recv->item[i].peer != p->rank) {
            hd_copy copy = recv->item[i].copy;
            copy.src_offset_bytes = copy.dst_offset_bytes;
            memcpy(copy.src_stride_bytes, copy.dst_stride_bytes, sizeof copy.src_stride_bytes);
            hd_copy_walk(&copy, HD_SIDE_DST);
            box[nboxes++] = hd_device_box_of(&copy, 0, 0);
        }
    }
    if (nboxes > 0) {
        step->slots_at = hd_device_reserve(&p->memory_bytes, p->spec->dst_bytes);
        st = hd_device_list_make(&step->land, p->device, box, nboxes, 0, hd_route_deadline_ns(p->route));
    }
out:
    hd_free(box);
    return st;
}

/* --- what ranks tell one another ---------------------------------------------------------------------------------- */

/* Of this rank: where its states lie, and for every phase and rank where that one's term goes; -1: its items go to
 * their places. */
typedef struct told {
    uint64_t states;
    int64_t slot_of[HD_MAX_LEGS][HD_DEVICE_MAX_PEERS];
} told;

/* Boxes for every peer, from the successor on, so that not all begin with the same one. */
static heddle_status make_pushes(hd_push_step *step, hd_push *p, int phase, const told *all)
{
    heddle_status st = HEDDLE_OK;
    const hd_items *send = &p->spec->phase[phase].transfer.send;
    hd_device_box *box = NULL;
    int nboxes = 0;
    HD_TRY(hd_alloc((void **)&box, (size_t)send->count, sizeof *box, "boxes of a device"));
    for (int turn = 1; turn <= p->nranks; turn++) {
        int peer = (p->rank + turn) % p->nranks;
        for (int i = 0; i < send->count; i++) {
            if (send->item[i].peer == peer) {
                int64_t slot = all[peer].slot_of[phase][p->rank];
                const hd_copy copy = slot < 0 ? send->item[i].copy : in_slot(&send->item[i].copy, slot);
                step->sent_bytes[peer] += hd_copy_bytes(&copy);
                step->all_bytes += hd_copy_bytes(&copy);
                box[nboxes] = hd_device_box_of(&copy, 0, p->news != NULL ? peer : 0);
                box[nboxes++].peer = peer;
            }
        }
    }
    HD_TRY(hd_device_list_make(&step->push, p->device, box, nboxes, meeting_blocks(p, step),
                               hd_route_deadline_ns(p->route)));
    st = p->news != NULL ? HEDDLE_OK : check_blocks(p, &step->push);
out:
    hd_free(box);
    return st;
}

/* Blocks of a launch that may wait. Who shares a device leaves room for the others' kernels, which may want whole
 * processors: all that waits keeps back one processor in eight at most, where each runs two blocks. */
static int waiting_blocks(const hd_push *p)
{
    enum { OF_BLOCKS = 16 };
    const int blocks = p->most_blocks / OF_BLOCKS;
    return p->sharers.all == 1 ? 0 : blocks > 0 ? blocks : 1;
}

static heddle_status make_meet(hd_push_step *step, hd_push *p, int phase, const told *all)
{
    hd_device_meet *meet = &step->meet;
    *meet = (hd_device_meet){.rank = p->rank,
                             .npeers = p->nranks,
                             .needs_ready = 1, /* what is written may still be read by what the stream has before */
                             .announces = 1,
                             .most_waiting = waiting_blocks(p),
                             .deadline_ns = (uint64_t)(hd_route_deadline_ns(p->route) - hd_now_ns()),
                             .abort_word = hd_comm_abort_word(p->comm),
                             .report = &p->report[phase]};
    for (int r = 0; r < p->nranks; r++) {
        hd_device_state *states = hd_comm_of_peer(p->comm, r, all[r].states);
        if (states == NULL) {
            return hd_fail(HEDDLE_ERR_INTERNAL, "the flags of rank %d are not mapped", hd_comm_rank_name(p->comm, r));
        }
        meet->peer_state[r] = states + phase;
    }
    meet->state = meet->peer_state[p->rank];
    const hd_items *recv = &p->spec->phase[phase].transfer.recv;
    for (int i = 0; i < recv->count; i++) {
        meet->heard |= recv->item[i].peer == p->rank ? 0 : (uint64_t)1 << recv->item[i].peer;
    }
    return HEDDLE_OK;
}

/* --- making ------------------------------------------------------------------------------------------------------- */

_Static_assert(HD_MAX_LEGS * sizeof(hd_device_report) <= HD_DEVICE_PAGE_BYTES, "reports fit their page");

/* What a rank can make by itself, before the others are asked. */
static heddle_status make_own(hd_push *p, told *mine)
{
    heddle_status st = HEDDLE_OK;
    const heddle_device *library = p->device->library;
    int all_blocks = 0;
    memset(mine->slot_of, 0xff, sizeof mine->slot_of);
    HD_TRY(hd_device_load_kernels(p->device));
    HD_TRY(library->blocks(&all_blocks, p->device->number));
    p->most_blocks = all_blocks / p->sharers.all; /* those of all ranks must run at the same time */
    HD_TRY(hd_push_take_order(p));
    HD_TRY(hd_device_page(p->device, (void **)&p->report));
    HD_TRY(library->stream_create(&p->stream, p->device->number));
    HD_TRY(library->event_create(&p->begun, p->device->number));
    HD_TRY(hd_route_open_enqueued(p->route, "end"));
    hd_comm_outlook_add(p->comm, &p->outlook);
    hd_device_reserve(&p->memory_bytes, p->spec->work_bytes);
    for (int i = 0; i < p->spec->nphases; i++) {
        const hd_transfer_spec *phase = &p->spec->phase[i].transfer;
        hd_push_step *step = &p->step[i];
        HD_TRY(hd_device_list_of(&step->clear, p->device, phase->clear, hd_route_deadline_ns(p->route)));
        if (phase->adds) {
            HD_TRY(make_sums(step, p, &phase->recv, mine->slot_of[i]));
        } else if (p->spec->phase[i].dst.in == HD_IN_DST && !hd_comm_shares_address_space(p->comm)) {
            HD_TRY(make_landing(step, p, &phase->recv));
        }
    }
    p->states_at = hd_device_reserve(&p->memory_bytes, HD_MAX_LEGS * (int64_t)sizeof(hd_device_state));
    HD_TRY(hd_device_alloc(p->device, (void **)&p->memory, (size_t)p->memory_bytes, HD_DEVICE_FOR_PEERS));
    p->route->work = p->memory;
out:
    return st;
}

/* States begin as zeros. */
static heddle_status clear_states(hd_push *p)
{
    heddle_status st = HEDDLE_OK;
    const int64_t bytes = p->spec->nphases * (int64_t)sizeof(hd_device_state);
    void *zeros = NULL;
    HD_TRY(hd_alloc(&zeros, 1, (size_t)bytes, "states of a device"));
    HD_TRY(p->device->library->copy(p->memory + p->states_at, 0, zeros, 0, bytes, 1, p->device->number, p->stream));
    HD_TRY(hd_enqueued_end(&p->route->enqueued, p->stream, HEDDLE_OK));
    st = hd_route_wait_late(p->route);
out:
    hd_free(zeros);
    return st;
}

/* One phase reads src, and each of its elements once. */
static int takes_gate(const hd_push *p)
{
    const hd_route_phase *phase = &p->spec->phase[0];
    const hd_push_step *step = &p->step[0];
    return p->spec->nphases == 1 && phase->src.in == HD_IN_SRC && !p->route->before.is_there && !phase->transfer.adds &&
           step->all_bytes == p->spec->src_bytes && p->kernels->takes_gate(step->push.list);
}

/* What comes behind what the others have told. */
static heddle_status make_rest(hd_push *p, const told *all)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < p->spec->nphases; i++) {
        HD_TRY(make_pushes(&p->step[i], p, i, all));
        HD_TRY(make_meet(&p->step[i], p, i, all));
    }
    p->route->takes_gate = takes_gate(p);
    st = clear_states(p);
out:
    return st;
}

static heddle_status alloc_push(hd_push **out, hd_route *r)
{
    heddle_status st = hd_alloc((void **)out, 1, sizeof **out, "a plan of a device");
    if (st == HEDDLE_OK) {
        hd_push *p = *out;
        r->own = p;
        p->comm = r->comm;
        p->route = r;
        p->device = r->device;
        p->sharers = hd_comm_sharers(r->comm);
        p->kernels = p->device->library->kernels;
        p->spec = &r->spec;
        p->rank = r->rank;
        p->nranks = r->nranks;
        hd_comm_get_view(&p->view, p->comm);
        r->enqueued.count = p->view.on_device;
        r->enqueued.may_ask_again = 1; /* at once, as what could not be recorded has failed */
        r->late = hd_push_late;
        p->outlook = (hd_outlook){.ask = hd_push_look, .ask_beside = hd_push_look_beside, .arg = p};
    }
    return st;
}

heddle_status hd_push_make(hd_route *r, heddle_status mine)
{
    heddle_status st = mine;
    hd_push *p = NULL;
    told *all = NULL, own;
    memset(&own, 0, sizeof own);
    st = st == HEDDLE_OK ? hd_alloc((void **)&all, (size_t)r->nranks, sizeof *all, "slots of all ranks") : st;
    st = st == HEDDLE_OK ? hd_route_make_locals(r) : st;
    st = st == HEDDLE_OK ? alloc_push(&p, r) : st;
    st = st == HEDDLE_OK ? make_own(p, &own) : st;
    HD_TRY(hd_comm_agree(r->comm, st));
    HD_TRY(hd_comm_map_devices(r->comm));
    own.states = (uint64_t)(uintptr_t)(p->memory + p->states_at);
    HD_TRY(hd_comm_allgather_or_abort(r->comm, &own, all, sizeof own));
    st = hd_comm_agree(r->comm, make_rest(p, all)); /* all states are zeros behind that */
out:
    hd_free(all);
    return st;
}
