/* Ring attention: keys and values travel, queries stay; online softmax. Backward: gradients of keys and values travel
 * behind them in the type of the arithmetic. With one member this is the local method.
 *
 * One turn round the ring: blocks travel, partial sums come home, work is done meanwhile. Where all members reach one
 * another's memory both stay: each member reads them where they lie, in the same order.
 *
 * In step i rank r holds the block of member r - i. Its contribution to that member's sum joins what the rank before
 * has added up for it, and goes on; after the last step it is one hop from home. So sums of N blocks take N - 1 hops,
 * and are added in the order of the ring, the same in every run.
 */
#include "runtime/attention/ring.h"

#include <string.h>

static heddle_status poll_hops(void *ctx)
{
    heddle_status st = HEDDLE_OK;
    hd_core *core = ctx;
    for (int kind = 0; kind < HD_HOPS; kind++) {
        const hd_hop *hop = core->hop[kind];
        int done;
        if (hop != NULL && hop->step >= 0) {
            HD_TRY(hop->lends ? hd_comm_heed(core->comm) : hd_channel_progress(hop->channel, &done));
        }
    }
out:
    return st;
}

/* No samples or no heads: there is no hop, and nothing to move. Every rank runs its hops in the same order, so the one
 * that is furthest behind can always go on. */
static heddle_status start(hd_core *core, int kind, int step, const void *src, void *dst)
{
    hd_hop *hop = core->hop[kind];
    if (hop == NULL) {
        return HEDDLE_OK;
    }
    const hd_leg leg = {hop->transfer[hop->ntransfers == 1 ? 0 : step], src, dst};
    hop->step = step;
    return hd_channel_start(hop->channel, &leg, 1);
}

static void count(hd_core *core, int64_t bytes)
{
    hd_moved *moved = &core->moved[core->going_back];
    moved->bytes += bytes;
    moved->messages += bytes > 0;
}

static heddle_status finish(hd_core *core, int kind)
{
    heddle_status st = HEDDLE_OK;
    hd_hop *hop = core->hop[kind];
    if (hop == NULL) {
        return HEDDLE_OK;
    }
    HD_TRY(hd_channel_wait(hop->channel));
    count(core, hop->send_bytes[hop->step]);
    hop->step = -1;
out:
    return st;
}

static int member_of(const hd_core *core, int step)
{
    return (core->rank - step + core->nranks) % core->nranks;
}

static int is_lent(const hd_core *core, int kind)
{
    return core->hop[kind] != NULL && core->hop[kind]->lends;
}

/* Before the visit: the block in hand goes on to the next rank, or the one to be visited is found where it lies. */
static heddle_status take_block(hd_core *core, const hd_ring_walk *walk, int step, const void **held)
{
    heddle_status st = HEDDLE_OK;
    hd_hop *hop = core->hop[walk->kind];
    int member = member_of(core, step);
    if (!is_lent(core, walk->kind)) {
        return step < core->nranks - 1 ? start(core, walk->kind, step, *held, core->travel[step % 2]) : HEDDLE_OK;
    }
    if (step > 0 && core->rows[member].rows > 0) {
        HD_TRY(hop->at[member] == NULL ? hd_channel_borrow(hop->channel, member, &hop->at[member]) : HEDDLE_OK);
        *held = (const char *)hop->at[member] + walk->index * core->rows[member].rows * hop->bytes_a_row;
    }
out:
    return st;
}

/* After it: the next one is in hand, or this one is given back. */
static heddle_status leave_block(hd_core *core, const hd_ring_walk *walk, int step, const void **held)
{
    heddle_status st = HEDDLE_OK;
    hd_hop *hop = core->hop[walk->kind];
    int is_last = step == core->nranks - 1, member = member_of(core, step);
    if (!is_lent(core, walk->kind)) {
        HD_TRY(is_last ? HEDDLE_OK : finish(core, walk->kind));
        *held = core->travel[step % 2];
        return HEDDLE_OK;
    }
    if (hop->at[member] != NULL && !walk->keeps) {
        hop->at[member] = NULL;
        HD_TRY(hd_channel_return(hop->channel, member));
    }
    count(core, is_last ? 0 : hop->send_bytes[step]);
out:
    return st;
}

heddle_status hd_ring_lend(hd_core *core, const void *blocks)
{
    hd_hop *hop = core->hop[HD_TRAVEL];
    if (!is_lent(core, HD_TRAVEL)) {
        return HEDDLE_OK;
    }
    memset(hop->at, 0, (size_t)core->nranks * sizeof *hop->at);
    hop->step = 0;
    return hd_channel_lend(hop->channel, &(hd_leg){.transfer = hop->transfer[0], .src = blocks});
}

heddle_status hd_ring_regain(hd_core *core, heddle_status st)
{
    hd_hop *hop = core->hop[HD_TRAVEL];
    if (!is_lent(core, HD_TRAVEL)) {
        return st;
    }
    HD_TRY(st);
    HD_TRY(hd_channel_regain(hop->channel));
    hop->step = -1;
    return HEDDLE_OK;
out:
    for (int kind = 0; kind < HD_HOPS; kind++) {
        if (is_lent(core, kind) && core->hop[kind]->step >= 0) {
            st = hd_channel_forgo(core->hop[kind]->channel, st);
        }
    }
    return st;
}

static heddle_status give_sum(hd_core *core, int step, void *sum)
{
    hd_hop *hop = core->hop[HD_SUMS];
    if (!is_lent(core, HD_SUMS)) {
        return start(core, HD_SUMS, step, sum, core->sum[2]);
    }
    hop->step = step;
    return hd_channel_lend(hop->channel, &(hd_leg){.transfer = hop->transfer[0], .src = sum});
}

/* What the rank before has given is added to `sum`; what this one gave is its own again. */
static heddle_status take_sum(hd_core *core, void *sum, int64_t elems)
{
    heddle_status st = HEDDLE_OK;
    hd_hop *hop = core->hop[HD_SUMS];
    const void *theirs = core->sum[2];
    int before = member_of(core, 1);
    if (is_lent(core, HD_SUMS)) {
        HD_TRY(hd_channel_borrow(hop->channel, before, &theirs));
    } else {
        HD_TRY(finish(core, HD_SUMS));
    }
    core->kernels->add(sum, theirs, elems);
    if (is_lent(core, HD_SUMS)) {
        HD_TRY(hd_channel_return(hop->channel, before));
        HD_TRY(hd_channel_regain(hop->channel));
        count(core, hop->send_bytes[hop->step]);
        hop->step = -1;
    }
out:
    return st;
}

/* The sum that has arrived joins the one made here, which goes on. */
static heddle_status pass_sum(hd_core *core, const hd_ring_walk *walk, int step, int member)
{
    heddle_status st = HEDDLE_OK;
    if (step > 1) {
        HD_TRY(take_sum(core, core->sum[0], core->rows[member].rows * walk->sum_elems_a_row));
    }
    void *made = core->sum[0];
    if (core->nranks > 2) {
        core->sum[0] = core->sum[1];
        core->sum[1] = made;
    }
    HD_TRY(give_sum(core, step - 1, made));
out:
    return st;
}

/* All blocks lie still: a head sees them one after the other while what it carries is in the cache. No rank has to wait
 * longer for that: none returns before the last has read everything. */
static heddle_status visit_all(hd_core *core, const hd_ring_walk *walk)
{
    heddle_status st = HEDDLE_OK;
    const void *held = walk->block;
    for (int i = 0; i < core->nranks; i++) {
        HD_TRY(take_block(core, walk, i, &held));
        core->held[i] = (hd_held){held, member_of(core, i)};
    }
    HD_TRY(walk->visit(walk->ctx, core->held, core->nranks, NULL, (hd_poll){poll_hops, core}));
    for (int i = 0; i < core->nranks; i++) {
        HD_TRY(leave_block(core, walk, i, &held));
    }
out:
    return st;
}

heddle_status hd_ring_run(hd_core *core, const hd_ring_walk *walk)
{
    heddle_status st = HEDDLE_OK;
    int n = core->nranks;
    const void *held = walk->block;
    hd_poll poll = {n > 1 ? poll_hops : NULL, core};
    if (walk->block != NULL && walk->own_sum == NULL && is_lent(core, walk->kind)) {
        return visit_all(core, walk);
    }
    for (int i = 0; i < n; i++) {
        int member = member_of(core, i);
        if (walk->block != NULL) {
            HD_TRY(take_block(core, walk, i, &held));
        }
        int64_t sum_elems = core->rows[member].rows * walk->sum_elems_a_row;
        if (walk->own_sum != NULL && i > 0 && sum_elems > 0) {
            memset(core->sum[0], 0, (size_t)(sum_elems * core->problem->real_bytes));
        }
        const hd_held one = {held, member};
        HD_TRY(walk->visit(walk->ctx, &one, 1, i == 0 ? walk->own_sum : core->sum[0], poll));
        if (walk->own_sum != NULL && i > 0) {
            HD_TRY(pass_sum(core, walk, i, member));
        }
        if (walk->block != NULL) {
            HD_TRY(leave_block(core, walk, i, &held));
        }
    }
    if (walk->own_sum != NULL && n > 1) {
        HD_TRY(take_sum(core, walk->own_sum, core->rows[core->rank].rows * walk->sum_elems_a_row));
    }
out:
    return st;
}

/* --- the method --------------------------------------------------------------------------------------------------- */

static heddle_status ring_create(hd_core *core)
{
    const hd_attn_problem *p = core->problem;
    int64_t a_row = 2 * core->kv_heads * p->batch * p->width;
    const int64_t bytes_a_row[HD_HOPS] = {
        [HD_TRAVEL] = a_row * p->elem_bytes, [HD_SUMS] = p->options.forward_only ? 0 : a_row * p->real_bytes};
    return hd_ring_create(core, bytes_a_row, 1);
}

typedef struct forward_turn {
    hd_core *core;
    const hd_core_forward *x;
    hd_carry_arrays carry;
} forward_turn;

static heddle_status forward_visit(void *ctx, const hd_held *held, int count, void *sum, hd_poll poll)
{
    forward_turn *turn = ctx;
    (void)sum;
    return hd_core_forward_blocks(turn->core, turn->x->q, held, count, &turn->carry, poll);
}

static heddle_status ring_forward(hd_core *core, const hd_core_forward *x)
{
    heddle_status st = HEDDLE_OK;
    forward_turn turn = {core, x, {x->o, x->top, x->log_sum}};
    hd_ring_walk walk = {.block = x->kv, .visit = forward_visit, .ctx = &turn};
    HD_TRY(hd_ring_lend(core, x->kv));
    hd_core_start(core, &turn.carry);
    st = hd_ring_run(core, &walk);
    if (st == HEDDLE_OK) { /* others may still be reading */
        hd_core_finish(core, &turn.carry, x->lse);
    }
    return hd_ring_regain(core, st);
out:
    return st;
}

typedef struct backward_turn {
    hd_core *core;
    const hd_core_backward *x;
} backward_turn;

static heddle_status backward_visit(void *ctx, const hd_held *held, int count, void *sum, hd_poll poll)
{
    backward_turn *turn = ctx;
    (void)count; /* sums go round */
    return hd_core_backward_block(turn->core, turn->x, held, sum, poll);
}

static heddle_status ring_backward(hd_core *core, const hd_core_backward *x)
{
    heddle_status st;
    backward_turn turn = {core, x};
    hd_ring_walk walk = {.block = x->kv,
                         .own_sum = x->dkv,
                         .sum_elems_a_row = 2 * core->kv_heads * core->problem->batch * core->problem->width,
                         .visit = backward_visit,
                         .ctx = &turn};
    st = hd_ring_lend(core, x->kv);
    return st == HEDDLE_OK ? hd_ring_regain(core, hd_ring_run(core, &walk)) : st;
}

const hd_core_method hd_core_ring = {ring_create, ring_forward, ring_backward, hd_ring_destroy};
