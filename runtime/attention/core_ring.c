/* Ring attention: keys and values travel, queries stay; online softmax. Backward: gradients of keys and values travel
 * behind them in the type of the arithmetic. With one member this is the local method. */
#include "runtime/attention/attention_internal.h"

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

static heddle_status forward_visit(void *ctx, int member, const void *held, void *sum, hd_poll poll)
{
    forward_turn *turn = ctx;
    (void)sum;
    return hd_core_forward_block(turn->core, turn->x->q, held, member, &turn->carry, poll);
}

static heddle_status ring_forward(hd_core *core, const hd_core_forward *x)
{
    heddle_status st = HEDDLE_OK;
    forward_turn turn = {core, x, {x->o, x->top, x->log_sum}};
    hd_ring_walk walk = {.block = x->kv, .visit = forward_visit, .ctx = &turn};
    hd_core_start(core, &turn.carry);
    HD_TRY(hd_ring_lend(core, x->kv));
    HD_TRY(hd_ring_regain(core, hd_ring_run(core, &walk)));
    hd_core_finish(core, &turn.carry, x->lse);
out:
    return st;
}

typedef struct backward_turn {
    hd_core *core;
    const hd_core_backward *x;
} backward_turn;

static heddle_status backward_visit(void *ctx, int member, const void *held, void *sum, hd_poll poll)
{
    backward_turn *turn = ctx;
    return hd_core_backward_block(turn->core, turn->x, held, member, sum, poll);
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
