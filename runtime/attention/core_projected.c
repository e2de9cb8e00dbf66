/* The sparse case of Ring Self-Attention: keys and values are projected along the sharded sequence to a fixed length
 * (Linformer), so every rank makes a partial sum of the projected ones from its own rows, and their all-reduce is all
 * that moves, whatever the length. Backward likewise. */
#include "runtime/attention/attention_internal.h"
#include "runtime/base/threads.h"

#include <string.h>

typedef struct projected_state {
    void *kv;            /* real [2][kv_heads][batch][m][width]: summed; kept for backward */
    void *part;          /* partial sums of them or of their gradients */
    void *dkv;           /* summed gradients */
    void *wide;          /* bf16: own keys and values; projections */
    void *wide_e[2];     /* real [m][rows]; the caller's unless bf16 */
    void *de;            /* bf16: gradient of a projection */
    heddle_reshard *add; /* NULL: one rank */
    int64_t elems, m;
} projected_state;

static heddle_status projected_take(hd_core *core)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = core->problem;
    projected_state *state = core->method;
    state->m = p->options.projected_length;
    state->elems = 2 * core->kv_heads * p->batch * state->m * p->width;
    int64_t own = core->rows[core->rank].rows, bytes = state->elems * p->real_bytes;
    HD_TRY(hd_core_save(&state->kv, core, bytes));
    HD_TRY(hd_core_buffer(&state->part, core, bytes));
    HD_TRY(hd_core_buffer(&state->dkv, core, bytes));
    if (p->dtype == HEDDLE_BF16) {
        int64_t kv = 2 * hd_core_elems(core, core->kv_heads, core->rank) * p->real_bytes;
        int64_t e = state->m * own * p->real_bytes;
        HD_TRY(hd_core_buffer(&state->wide, core, kv));
        HD_TRY(hd_core_buffer(&state->wide_e[0], core, e));
        HD_TRY(hd_core_buffer(&state->wide_e[1], core, e));
        HD_TRY(hd_core_buffer(&state->de, core, e));
    }
out:
    return st;
}

static heddle_status projected_create(hd_core *core)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = core->problem;
    projected_state *state = core->method;
    if (core->comm == NULL) {
        return HEDDLE_OK;
    }
    const int64_t extent[4] = {2 * core->kv_heads, p->batch, state->m, p->width};
    const hd_side_blocks whole = {HEDDLE_REPLICATED, NULL}, partial = {HEDDLE_PARTIAL, NULL};
    HD_TRY(hd_reshard_of_heads(&state->add, core->comm, p->real, extent, &partial, &whole, &p->options));
out:
    return st;
}

static void projected_destroy(hd_core *core)
{
    projected_state *state = core->method;
    heddle_reshard_destroy(state->add);
    hd_core_unsave(core, state->kv);
}

static heddle_status add_up(hd_core *core, void *out)
{
    heddle_status st = HEDDLE_OK;
    projected_state *state = core->method;
    if (state->add == NULL) {
        memcpy(out, state->part, (size_t)(state->elems * core->problem->real_bytes));
        return HEDDLE_OK;
    }
    const hd_moved before = hd_reshard_moved(state->add);
    HD_TRY(heddle_reshard_execute(state->add, state->part, out, HEDDLE_NO_STREAM));
    const hd_moved after = hd_reshard_moved(state->add);
    core->moved[core->going_back].bytes += after.bytes - before.bytes;
    core->moved[core->going_back].messages += after.messages - before.messages;
out:
    return st;
}

/* Own keys and values, and a projection, as reals. */
static const char *own_keys(hd_core *core, const void *kv)
{
    const hd_attn_problem *p = core->problem;
    projected_state *state = core->method;
    if (p->dtype != HEDDLE_BF16) {
        return kv;
    }
    int64_t elems = 2 * hd_core_elems(core, core->kv_heads, core->rank);
    core->table->convert(state->wide, HEDDLE_F32, kv, HEDDLE_BF16, elems);
    return state->wide;
}

static const void *own_projection(hd_core *core, int of_values)
{
    const hd_attn_problem *p = core->problem;
    projected_state *state = core->method;
    const void *e = of_values ? core->f : core->e;
    if (p->dtype != HEDDLE_BF16) {
        return e;
    }
    int64_t elems = state->m * core->rows[core->rank].rows;
    core->table->convert(state->wide_e[of_values], HEDDLE_F32, e, HEDDLE_BF16, elems);
    return state->wide_e[of_values];
}

/* The projection is a matrix of m rows and `rows` columns: `mix` multiplies it by rows, `mix_back` its transpose. */
static hd_attn_block matrix_shape(const hd_core *core, const projected_state *state)
{
    return (hd_attn_block){
        .nq = state->m, .nk = core->rows[core->rank].rows, .d = core->problem->width, .diagonal = INT64_MAX};
}

/* One call's arrays, shared by its threads. */
typedef struct call {
    hd_core *core;
    const hd_core_forward *forward;
    const hd_core_backward *backward;
    const char *keys;  /* own, real */
    const void *of[2]; /* projections of keys and of values, real */
} call;

static call call_of(hd_core *core, const void *kv)
{
    return (call){.core = core, .keys = own_keys(core, kv), .of = {own_projection(core, 0), own_projection(core, 1)}};
}

/* Keys and values, every head and sample. */
static heddle_status on_slices(const hd_core *core, hd_thread_job fn, call *c)
{
    const hd_threads threads = {.name = "hd-attention",
                                .count = core->threads,
                                .jobs = 2 * core->kv_heads * core->problem->batch,
                                .fn = fn,
                                .ctx = c};
    return hd_threads_run(&threads);
}

/* Slice i, the keys (then the values) of one key head and sample: its projection, and the offsets of its own rows and
 * of the projected ones. */
static hd_attn_matrix slice_of(const call *c, int64_t i, int64_t *own_at, int64_t *at)
{
    const hd_attn_problem *p = c->core->problem;
    const projected_state *state = c->core->method;
    int64_t own = c->core->rows[c->core->rank].rows, row_bytes = p->width * p->real_bytes;
    *own_at = i * own * row_bytes;
    *at = i * state->m * row_bytes;
    return (hd_attn_matrix){(void *)(uintptr_t)c->of[i >= c->core->kv_heads * p->batch], own};
}

static heddle_status project_slice(void *ctx, int thread, int64_t i)
{
    const call *c = ctx;
    const projected_state *state = c->core->method;
    int64_t own_at, at;
    hd_attn_block shape = matrix_shape(c->core, state);
    hd_attn_matrix e = slice_of(c, i, &own_at, &at);
    (void)thread;
    c->core->kernels->mix(&shape, &e, c->keys + own_at, (char *)state->part + at);
    return HEDDLE_OK;
}

static heddle_status project_back_slice(void *ctx, int thread, int64_t i)
{
    const call *c = ctx;
    const projected_state *state = c->core->method;
    int64_t own_at, at;
    hd_attn_block shape = matrix_shape(c->core, state);
    hd_attn_matrix e = slice_of(c, i, &own_at, &at);
    (void)thread;
    c->core->kernels->mix_back(&shape, &e, (char *)state->dkv + at, (char *)c->backward->dkv + own_at);
    return HEDDLE_OK;
}

/* Own queries of a head against the projected keys; *at: of the key head and sample in arrays of keys. */
static hd_attn_block block_of(const call *c, const hd_turn *turn, const void *q, int64_t *at, int64_t *row)
{
    const hd_attn_problem *p = c->core->problem;
    const projected_state *state = c->core->method;
    int64_t own = c->core->rows[c->core->rank].rows, row_bytes = p->width * p->real_bytes;
    *row = (turn->head * p->batch + turn->batch) * own;
    *at = (turn->kv_head * p->batch + turn->batch) * state->m * row_bytes;
    const char *k = (char *)state->kv + *at;
    return (hd_attn_block){(const char *)q + *row * row_bytes,
                           k,
                           k + c->core->kv_heads * p->batch * state->m * row_bytes,
                           own,
                           state->m,
                           p->width,
                           INT64_MAX,
                           p->scale};
}

static void attend_turn(void *ctx, const hd_turn *turn)
{
    const call *c = ctx;
    const hd_attn_problem *p = c->core->problem;
    int64_t at, row, real = p->real_bytes;
    hd_attn_block block = block_of(c, turn, c->forward->q, &at, &row);
    hd_attn_carry part = {(char *)c->forward->o + row * p->width * real, (char *)c->forward->top + row * real,
                          (char *)c->forward->log_sum + row * real};
    void *lse = c->forward->lse != NULL ? (char *)c->forward->lse + row * real : NULL;
    c->core->kernels->forward(&block, &part, hd_core_scratch(c->core, turn->thread));
    c->core->kernels->finish(&part, lse, 1, block.nq, p->width);
}

static void attend_back_turn(void *ctx, const hd_turn *turn)
{
    const call *c = ctx;
    const hd_attn_problem *p = c->core->problem;
    const projected_state *state = c->core->method;
    const hd_core_backward *x = c->backward;
    int64_t at, row, real = p->real_bytes, row_bytes = p->width * real;
    hd_attn_block block = block_of(c, turn, x->q, &at, &row);
    char *dk = (char *)state->part + at;
    hd_attn_grad grad = {(const char *)x->d_o + row * row_bytes,
                         (const char *)x->top + row * real,
                         (const char *)x->log_sum + row * real,
                         (const char *)x->delta + row * real,
                         (char *)x->dq + row * row_bytes,
                         dk,
                         dk + c->core->kv_heads * p->batch * state->m * row_bytes};
    c->core->kernels->backward(&block, &grad, hd_core_scratch(c->core, turn->thread));
}

static heddle_status projected_forward(hd_core *core, const hd_core_forward *x)
{
    heddle_status st = HEDDLE_OK;
    projected_state *state = core->method;
    call c = call_of(core, x->kv);
    hd_carry_arrays carry = {x->o, x->top, x->log_sum};
    c.forward = x;
    memset(state->part, 0, (size_t)(state->elems * core->problem->real_bytes));
    HD_TRY(on_slices(core, project_slice, &c));
    HD_TRY(add_up(core, state->kv));
    hd_core_start(core, &carry);
    HD_TRY(hd_core_each_head(core, 0, attend_turn, &c, (hd_poll){NULL, NULL}));
out:
    return st;
}

/* de[i][s] = sum over heads and samples of <dkp[i], k[s]>: the products of whole rows, so head by head into `out`. */
static void projection_gradient(hd_core *core, const char *d_projected, const char *keys, void *out)
{
    const hd_attn_problem *p = core->problem;
    projected_state *state = core->method;
    int64_t own = core->rows[core->rank].rows, d = p->width, elems = state->m * own;
    memset(out, 0, (size_t)(elems * p->real_bytes));
    for (int64_t i = 0; i < core->kv_heads * p->batch; i++) {
        core->kernels->add_dots(out, d_projected + i * state->m * d * p->real_bytes, state->m,
                                keys + i * own * d * p->real_bytes, own, d);
    }
}

static void store_projection_gradients(hd_core *core, const char *keys)
{
    const hd_attn_problem *p = core->problem;
    projected_state *state = core->method;
    int64_t own = core->rows[core->rank].rows, half = state->elems / 2 * p->real_bytes;
    void *out[2] = {core->de, core->df};
    for (int i = 0; i < 2; i++) {
        if (out[i] != NULL) {
            void *real = p->dtype == HEDDLE_BF16 ? state->de : out[i];
            const char *own_rows = keys + i * hd_core_elems(core, core->kv_heads, core->rank) * p->real_bytes;
            projection_gradient(core, (char *)state->dkv + i * half, own_rows, real);
            if (real != out[i]) {
                core->table->convert(out[i], HEDDLE_BF16, real, HEDDLE_F32, state->m * own);
            }
        }
    }
}

static heddle_status projected_backward(hd_core *core, const hd_core_backward *x)
{
    heddle_status st = HEDDLE_OK;
    projected_state *state = core->method;
    call c = call_of(core, x->kv);
    c.backward = x;
    memset(state->part, 0, (size_t)(state->elems * core->problem->real_bytes));
    HD_TRY(hd_core_each_head(core, 0, attend_back_turn, &c, (hd_poll){NULL, NULL}));
    HD_TRY(add_up(core, state->dkv));
    HD_TRY(on_slices(core, project_back_slice, &c));
    store_projection_gradients(core, c.keys);
out:
    return st;
}

const hd_core_method hd_core_projected = {projected_create,  projected_forward, projected_backward,
                                          projected_destroy, projected_take,    sizeof(projected_state)};
