/* gather-kv: every rank gathers all keys and values once, and keeps them for backward, where the gradients of all keys
 * and values are summed up at their owners. */
#include "runtime/attention/attention_internal.h"

#include <string.h>

typedef struct gather_state {
    hd_core core;                  /* members: own queries, all keys */
    hd_row_set rows[2];            /* of these */
    int64_t *length;               /* [nranks] rows of the members */
    heddle_reshard *gather, *home; /* NULL: one rank */
    void *kv;                      /* storage [2][kv_heads][batch][all rows][width]; the caller's with one rank */
    void *dkv;                     /* real */
} gather_state;

heddle_status hd_rows_join(hd_row_set *out, const hd_row_set *rows, int n)
{
    heddle_status st = HEDDLE_OK;
    size_t nsegs = 0;
    for (int i = 0; i < n; i++) {
        nsegs += (size_t)rows[i].nsegs;
    }
    HD_TRY(hd_alloc((void **)&out->seg, nsegs, sizeof(hd_seg), "rows of an attention"));
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < rows[i].nsegs; j++) {
            hd_seg seg = rows[i].seg[j], *last = out->nsegs > 0 ? &out->seg[out->nsegs - 1] : NULL;
            if (last != NULL && last->lo + last->len == seg.lo) {
                last->len += seg.len;
            } else {
                out->seg[out->nsegs++] = (hd_seg){seg.lo, seg.len, out->rows};
            }
            out->rows += seg.len;
        }
    }
out:
    return st;
}

static heddle_status gather_take(hd_core *core)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = core->problem;
    gather_state *state = core->method;
    HD_TRY(hd_alloc((void **)&state->length, (size_t)core->nranks, sizeof(int64_t), "a gathering attention"));
    HD_TRY(hd_rows_join(&state->rows[1], core->rows, core->nranks));
    state->rows[0] = core->rows[core->rank];
    state->core = *core;
    state->core.workspace_bytes = state->core.room_bytes = 0;
    state->core.rows = state->rows;
    state->core.rank = 0;
    state->core.nranks = 2;
    int64_t elems = 2 * hd_core_elems(&state->core, core->kv_heads, 1);
    HD_TRY(hd_core_take_room(&state->core, state->rows[1].rows));
    core->workspace_bytes += state->core.workspace_bytes;
    core->room_bytes += state->core.room_bytes;
    if (core->comm != NULL) {
        HD_TRY(hd_core_save(&state->kv, core, elems * p->elem_bytes));
        if (!p->options.forward_only) {
            HD_TRY(hd_core_buffer(&state->dkv, core, elems * p->real_bytes));
        }
    }
out:
    return st;
}

static heddle_status gather_create(hd_core *core)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = core->problem;
    gather_state *state = core->method;
    if (core->comm == NULL) {
        return HEDDLE_OK;
    }
    for (int i = 0; i < core->nranks; i++) {
        state->length[i] = core->rows[i].rows;
    }
    const int64_t extent[4] = {2 * core->kv_heads, p->batch, state->rows[1].rows, p->width};
    const hd_side_blocks by_rows = {2, state->length}, whole = {HEDDLE_REPLICATED, NULL},
                         partial = {HEDDLE_PARTIAL, NULL};
    HD_TRY(hd_reshard_of_heads(&state->gather, core->comm, p->dtype, extent, &by_rows, &whole, &p->options));
    if (!p->options.forward_only) {
        HD_TRY(hd_reshard_of_heads(&state->home, core->comm, p->real, extent, &partial, &by_rows, &p->options));
    }
out:
    return st;
}

static void gather_destroy(hd_core *core)
{
    gather_state *state = core->method;
    heddle_reshard_destroy(state->gather);
    heddle_reshard_destroy(state->home);
    HD_FREE_ALL(state->length, state->rows[1].seg);
    hd_core_unsave(core, state->kv);
}

static heddle_status gather_forward(hd_core *core, const hd_core_forward *x)
{
    heddle_status st = HEDDLE_OK;
    gather_state *state = core->method;
    hd_held all = {x->kv, 1};
    hd_carry_arrays carry = {x->o, x->top, x->log_sum};
    if (state->gather != NULL) {
        HD_TRY(heddle_reshard_execute(state->gather, x->kv, state->kv, HEDDLE_NO_STREAM));
        core->moved[0] = hd_reshard_moved(state->gather);
        all.block = state->kv;
    }
    hd_core_start(&state->core, &carry);
    HD_TRY(hd_core_forward_blocks(&state->core, x->q, &all, 1, &carry, (hd_poll){NULL, NULL}));
    hd_core_finish(&state->core, &carry, x->lse);
out:
    return st;
}

static heddle_status gather_backward(hd_core *core, const hd_core_backward *x)
{
    heddle_status st = HEDDLE_OK;
    gather_state *state = core->method;
    const hd_held all = {state->gather != NULL ? state->kv : x->kv, 1};
    if (state->gather == NULL) {
        return hd_core_backward_block(&state->core, x, &all, x->dkv, (hd_poll){NULL, NULL});
    }
    int64_t elems = 2 * hd_core_elems(&state->core, core->kv_heads, 1);
    memset(state->dkv, 0, (size_t)(elems * core->problem->real_bytes));
    HD_TRY(hd_core_backward_block(&state->core, x, &all, state->dkv, (hd_poll){NULL, NULL}));
    HD_TRY(heddle_reshard_execute(state->home, state->dkv, x->dkv, HEDDLE_NO_STREAM));
    core->moved[1] = hd_reshard_moved(state->home);
out:
    return st;
}

const hd_core_method hd_core_gather = {gather_create,  gather_forward, gather_backward,
                                       gather_destroy, gather_take,    sizeof(gather_state)};
