/* Own queries against the keys of one ring member: every head, sample, and pair of row segments. */
#include "runtime/attention/attention_internal.h"

#include <string.h>

int64_t hd_core_elems(const hd_core *core, int64_t heads, int rank)
{
    return heads * core->problem->batch * core->rows[rank].rows * core->problem->width;
}

int64_t hd_core_most_rows(const hd_core *core)
{
    int64_t most = 0;
    for (int i = 0; i < core->nranks; i++) {
        most = core->rows[i].rows > most ? core->rows[i].rows : most;
    }
    return most;
}

heddle_status hd_core_buffer(void **out, hd_core *core, int64_t bytes)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(heddle_buffer_alloc(out, core->comm, (size_t)(bytes > 0 ? bytes : 1), HEDDLE_SPACE_HOST));
    core->workspace_bytes += bytes;
out:
    return st;
}

void hd_core_pairs(const hd_core *core, int64_t head, int64_t batch, int member, hd_pair_fn fn, void *ctx)
{
    const hd_attn_problem *p = core->problem;
    const hd_rows *queries = &core->rows[core->rank], *keys = &core->rows[member];
    int64_t kv_head = (p->head_lo + core->part->q_lo + head) / p->group - p->kv_lo - core->part->kv_lo;
    for (int i = 0; i < queries->nsegs; i++) {
        const hd_seg *q = &queries->seg[i];
        for (int j = 0; j < keys->nsegs; j++) {
            const hd_seg *k = &keys->seg[j];
            int64_t end = k->lo + k->len < p->key_length[batch] ? k->lo + k->len : p->key_length[batch];
            hd_pair pair = {head, kv_head, batch, q->at, q->len, k->at, end - k->lo, INT64_MAX};
            if (p->options.causal) {
                pair.diagonal = q->lo - k->lo;
                int64_t last = pair.diagonal + q->len; /* keys that the last query sees */
                pair.nk = last < pair.nk ? last : pair.nk;
                int64_t blind = pair.diagonal < 0 ? -pair.diagonal : 0; /* queries that see none of them */
                blind = blind < pair.nq ? blind : pair.nq;
                pair.q_at += blind;
                pair.nq -= blind;
                pair.diagonal += blind;
            }
            if (pair.nk > 0 && pair.nq > 0) {
                fn(ctx, &pair);
            }
        }
    }
}

int64_t hd_core_row(const hd_core *core, const hd_pair *pair)
{
    return (pair->head * core->problem->batch + pair->batch) * core->rows[core->rank].rows + pair->q_at;
}

/* Keys and values of one head and sample as reals. */
typedef struct key_rows {
    const char *k, *v;
} key_rows;

static key_rows rows_of(const hd_core *core, const void *kv, int member, int64_t kv_head, int64_t batch)
{
    const hd_attn_problem *p = core->problem;
    int64_t rows = core->rows[member].rows, elems = rows * p->width;
    const char *k = (const char *)kv + (kv_head * p->batch + batch) * elems * p->elem_bytes;
    const char *v = k + core->kv_heads * p->batch * elems * p->elem_bytes;
    if (p->dtype != HEDDLE_BF16) {
        return (key_rows){k, v};
    }
    char *wide_k = core->wide, *wide_v = wide_k + elems * p->real_bytes;
    hd_attn_widen(wide_k, k, p->dtype, elems);
    hd_attn_widen(wide_v, v, p->dtype, elems);
    return (key_rows){wide_k, wide_v};
}

typedef struct work {
    hd_core *core;
    const char *q;
    key_rows keys;
    int64_t key_rows;
    const hd_carry_arrays *carry;
    const hd_core_backward *x;
    char *dkv;
} work;

static hd_attn_block block_of(const work *w, const hd_pair *pair)
{
    const hd_attn_problem *p = w->core->problem;
    int64_t row_bytes = p->width * p->real_bytes;
    int64_t q_row = hd_core_row(w->core, pair);
    return (hd_attn_block){.q = w->q + q_row * row_bytes,
                           .k = w->keys.k + pair->k_at * row_bytes,
                           .v = w->keys.v + pair->k_at * row_bytes,
                           .nq = pair->nq,
                           .nk = pair->nk,
                           .d = p->width,
                           .diagonal = pair->diagonal,
                           .scale = p->scale};
}

static void forward_pair(void *ctx, const hd_pair *pair)
{
    const work *w = ctx;
    const hd_attn_problem *p = w->core->problem;
    hd_attn_block block = block_of(w, pair);
    int64_t row = hd_core_row(w->core, pair);
    hd_attn_carry carry = {(char *)w->carry->acc + row * p->width * p->real_bytes,
                           (char *)w->carry->top + row * p->real_bytes, (char *)w->carry->sum + row * p->real_bytes};
    w->core->kernels->forward(&block, &carry, w->core->scratch);
}

static void backward_pair(void *ctx, const hd_pair *pair)
{
    const work *w = ctx;
    const hd_attn_problem *p = w->core->problem;
    hd_attn_block block = block_of(w, pair);
    int64_t real = p->real_bytes, row_bytes = p->width * real;
    int64_t row = hd_core_row(w->core, pair);
    int64_t key = (pair->kv_head * p->batch + pair->batch) * w->key_rows + pair->k_at;
    char *dk = w->dkv + key * row_bytes;
    hd_attn_grad grad = {.d_o = (const char *)w->x->d_o + row * row_bytes,
                         .lse = (const char *)w->x->lse + row * real,
                         .delta = (const char *)w->x->delta + row * real,
                         .dq = (char *)w->x->dq + row * row_bytes,
                         .dk = dk,
                         .dv = dk + w->core->kv_heads * p->batch * w->key_rows * row_bytes};
    w->core->kernels->backward(&block, &grad, w->core->scratch);
}

static heddle_status each_head(work *w, const void *kv, int member, hd_pair_fn fn, hd_poll poll)
{
    heddle_status st = HEDDLE_OK;
    hd_core *core = w->core;
    const hd_attn_problem *p = core->problem;
    w->key_rows = core->rows[member].rows;
    for (int64_t head = 0; head < core->heads; head++) {
        int64_t kv_head = (p->head_lo + core->part->q_lo + head) / p->group - p->kv_lo - core->part->kv_lo;
        for (int64_t batch = 0; batch < p->batch && core->rows[core->rank].rows > 0; batch++) {
            w->keys = rows_of(core, kv, member, kv_head, batch);
            hd_core_pairs(core, head, batch, member, fn, w);
            if (poll.poll != NULL) {
                HD_TRY(poll.poll(poll.ctx));
            }
        }
    }
out:
    return st;
}

heddle_status hd_core_forward_block(hd_core *core, const void *q, const void *kv, int member,
                                    const hd_carry_arrays *carry, hd_poll poll)
{
    work w = {.core = core, .q = q, .carry = carry};
    return each_head(&w, kv, member, forward_pair, poll);
}

heddle_status hd_core_backward_block(hd_core *core, const hd_core_backward *x, const void *kv, int member, void *dkv,
                                     hd_poll poll)
{
    work w = {.core = core, .q = x->q, .x = x, .dkv = dkv};
    return each_head(&w, kv, member, backward_pair, poll);
}

void hd_core_start(hd_core *core, const hd_carry_arrays *carry)
{
    const hd_attn_problem *p = core->problem;
    int64_t rows = core->heads * p->batch * core->rows[core->rank].rows;
    memset(carry->acc, 0, (size_t)(rows * p->width * p->real_bytes));
    memset(carry->sum, 0, (size_t)(rows * p->real_bytes));
    for (int64_t i = 0; i < rows; i++) {
        if (p->real == HEDDLE_F64) {
            ((double *)carry->top)[i] = -__builtin_inf();
        } else {
            ((float *)carry->top)[i] = -__builtin_inff();
        }
    }
}

void hd_core_finish(hd_core *core, const hd_carry_arrays *carry, void *lse)
{
    const hd_attn_problem *p = core->problem;
    int64_t rows = core->rows[core->rank].rows, real = p->real_bytes;
    for (int64_t head = 0; head < core->heads; head++) {
        for (int64_t batch = 0; batch < p->batch; batch++) {
            int64_t row = (head * p->batch + batch) * rows;
            hd_attn_carry part = {(char *)carry->acc + row * p->width * real, (char *)carry->top + row * real,
                                  (char *)carry->sum + row * real};
            core->kernels->finish(&part, (char *)lse + row * real, p->key_length[batch] > 0, rows, p->width);
        }
    }
}
