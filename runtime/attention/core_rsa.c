/* Ring Self-Attention in two passes (arXiv 2105.13120, section 3): a ring of keys fills the whole score rows, softmax
 * over the full length, a ring of values gives the output. Backward: partial gradients of keys and values are added up
 * on their way home, N-1 hops each, instead of by an all-reduce of the full length; with rsa_all_reduce the sums then
 * go round once more, which is what an all-reduce moves. */
#include "runtime/attention/attention_internal.h"

#include <string.h>

typedef struct rsa_state {
    void *p;     /* real [heads][batch][rows][columns]: scores, then weights; kept for backward */
    void *dp;    /* likewise, their gradients */
    int64_t *at; /* [nranks] first column of a member */
    int64_t columns;
} rsa_state;

static heddle_status rsa_take(hd_core *core)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = core->problem;
    rsa_state *state = core->method;
    HD_TRY(hd_alloc((void **)&state->at, (size_t)core->nranks, sizeof(int64_t), "an rsa"));
    for (int i = 0; i < core->nranks; i++) {
        state->at[i] = state->columns;
        state->columns += core->rows[i].rows;
    }
    const int64_t factor[] = {core->heads, p->batch, core->rows[core->rank].rows, state->columns, p->real_bytes};
    int64_t bytes;
    HD_TRY(hd_product(&bytes, "score rows of rsa", 5, factor));
    HD_TRY(hd_core_save(&state->p, core, bytes));
    if (!p->options.forward_only) {
        HD_TRY(hd_core_buffer(&state->dp, core, bytes));
    }
out:
    return st;
}

static heddle_status rsa_create(hd_core *core)
{
    const hd_attn_problem *p = core->problem;
    int64_t a_row = core->kv_heads * p->batch * p->width;
    int back = !p->options.forward_only;
    const int64_t bytes_a_row[HD_HOPS] = {[HD_TRAVEL] = a_row * p->elem_bytes,
                                          [HD_SUMS] = back ? a_row * p->real_bytes : 0,
                                          [HD_SPREAD] = back && p->options.rsa_all_reduce ? a_row * p->real_bytes : 0};
    return hd_ring_create(core, bytes_a_row, 2); /* keys, values */
}

static void rsa_destroy(hd_core *core)
{
    rsa_state *state = core->method;
    hd_ring_destroy(core);
    hd_core_unsave(core, state->p);
    hd_free(state->at);
}

/* One round of one of the rings: every head and sample against the rows of a member. */
typedef struct round_work round_work;
typedef void (*round_fn)(const round_work *w, int thread, const hd_attn_block *block, const hd_attn_matrix *matrix,
                         int64_t q_row, int64_t k_row);
struct round_work {
    hd_core *core;
    round_fn work;
    const char *query; /* what plays the queries' part: q or d_o */
    char *out;         /* by rows of queries */
    char *matrix;      /* p or dp */
    double scale;
    int index; /* of what goes round: keys 0, values 1 */
    int keeps; /* hd_ring_walk */
    /* the present visit */
    const hd_held *held;
    int count;
    char *sum;
};

typedef struct share {
    const round_work *work;
    int member;
    const char *keys; /* of the present head and sample, as reals; NULL: nothing travels */
} share;

static void round_pair(void *ctx, const hd_turn *turn, const hd_pair *pair)
{
    const share *s = ctx;
    const round_work *w = s->work;
    const hd_core *core = w->core;
    const hd_attn_problem *p = core->problem;
    const rsa_state *state = core->method;
    int64_t row = hd_core_row(core, pair), row_bytes = p->width * p->real_bytes;
    int64_t k_row = (pair->kv_head * p->batch + pair->batch) * core->rows[s->member].rows + pair->k_at;
    hd_attn_block block = {.q = w->query + row * row_bytes,
                           .k = s->keys != NULL ? s->keys + pair->k_at * row_bytes : NULL,
                           .nq = pair->nq,
                           .nk = pair->nk,
                           .d = p->width,
                           .diagonal = pair->diagonal,
                           .scale = w->scale};
    int64_t column = state->at[s->member] + pair->k_at;
    hd_attn_matrix matrix = {w->matrix + (row * state->columns + column) * p->real_bytes, state->columns};
    w->work(w, turn->thread, &block, &matrix, row, k_row);
}

/* Rows of one head and sample as reals. */
static const char *keys_of(const hd_core *core, const hd_held *held, const hd_turn *turn)
{
    const hd_attn_problem *p = core->problem;
    int64_t elems = core->rows[held->member].rows * p->width;
    const char *keys = (const char *)held->block + (turn->kv_head * p->batch + turn->batch) * elems * p->elem_bytes;
    void *wide = hd_core_wide(core, turn->thread);
    if (p->dtype != HEDDLE_BF16) {
        return keys;
    }
    core->table->convert(wide, HEDDLE_F32, keys, HEDDLE_BF16, elems);
    return wide;
}

static void round_turn(void *ctx, const hd_turn *turn)
{
    const round_work *w = ctx;
    for (int i = 0; i < w->count; i++) {
        share s = {.work = w, .member = w->held[i].member};
        s.keys = w->held[i].block != NULL ? keys_of(w->core, &w->held[i], turn) : NULL;
        hd_core_pairs(w->core, turn, s.member, round_pair, &s);
    }
}

static heddle_status round_visit(void *ctx, const hd_held *held, int count, void *sum, hd_poll poll)
{
    round_work *w = ctx;
    w->held = held;
    w->count = count;
    w->sum = sum;
    return hd_core_each_head(w->core, 0, round_turn, w, poll);
}

static void score(const round_work *w, int thread, const hd_attn_block *block, const hd_attn_matrix *matrix,
                  int64_t q_row, int64_t k_row)
{
    (void)q_row;
    (void)k_row;
    w->core->kernels->scores(block, matrix, w->out != NULL ? 0 : -__builtin_inf(), hd_core_scratch(w->core, thread));
}

static void mix(const round_work *w, int thread, const hd_attn_block *block, const hd_attn_matrix *matrix,
                int64_t q_row, int64_t k_row)
{
    (void)thread;
    (void)k_row;
    const hd_attn_problem *p = w->core->problem;
    w->core->kernels->mix(block, matrix, block->k, w->out + q_row * p->width * p->real_bytes);
}

static void mix_back(const round_work *w, int thread, const hd_attn_block *block, const hd_attn_matrix *matrix,
                     int64_t q_row, int64_t k_row)
{
    (void)thread;
    (void)q_row;
    const hd_attn_problem *p = w->core->problem;
    w->core->kernels->mix_back(block, matrix, block->q, w->sum + k_row * p->width * p->real_bytes);
}

static heddle_status go_round(round_work *t, const void *block, void *own_sum)
{
    const hd_attn_problem *p = t->core->problem;
    hd_ring_walk walk = {.block = block,
                         .index = t->index,
                         .keeps = t->keeps,
                         .own_sum = own_sum,
                         .sum_elems_a_row = t->core->kv_heads * p->batch * p->width,
                         .visit = round_visit,
                         .ctx = t};
    return hd_ring_run(t->core, &walk);
}

typedef struct softmax_work {
    hd_core *core;
    char *lse; /* NULL: not wanted */
} softmax_work;

static hd_attn_matrix rows_of_turn(const hd_core *core, char *matrix, const hd_turn *turn, int64_t *row)
{
    const rsa_state *state = core->method;
    *row = (turn->head * core->problem->batch + turn->batch) * core->rows[core->rank].rows;
    return (hd_attn_matrix){matrix + *row * state->columns * core->problem->real_bytes, state->columns};
}

static void softmax_turn(void *ctx, const hd_turn *turn)
{
    const softmax_work *w = ctx;
    const hd_attn_problem *p = w->core->problem;
    const rsa_state *state = w->core->method;
    int64_t row;
    hd_attn_matrix matrix = rows_of_turn(w->core, state->p, turn, &row);
    void *lse = w->lse != NULL ? w->lse + row * p->real_bytes : NULL;
    w->core->kernels->softmax(&matrix, w->core->rows[w->core->rank].rows, state->columns, lse,
                              p->key_length[turn->batch] > 0);
}

static void softmax_back_turn(void *ctx, const hd_turn *turn)
{
    const hd_core *core = ctx;
    const rsa_state *state = core->method;
    int64_t row;
    hd_attn_matrix weights = rows_of_turn(core, state->p, turn, &row);
    hd_attn_matrix gradients = rows_of_turn(core, state->dp, turn, &row);
    core->kernels->softmax_back(&weights, &gradients, core->rows[core->rank].rows, state->columns,
                                core->problem->scale);
}

static heddle_status forward_rounds(hd_core *core, const hd_core_forward *x)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = core->problem;
    rsa_state *state = core->method;
    int64_t rows = core->heads * p->batch * core->rows[core->rank].rows;
    const char *v = (const char *)x->kv + hd_core_elems(core, core->kv_heads, core->rank) * p->elem_bytes;
    round_work scores = {.core = core, .work = score, .query = x->q, .matrix = state->p, .scale = p->scale, .keeps = 1};
    round_work values = {.core = core, .work = mix, .query = x->q, .out = x->o, .matrix = state->p, .index = 1};
    softmax_work softmax = {core, x->lse};
    core->kernels->fill(state->p, -__builtin_inf(), rows * state->columns);
    HD_TRY(go_round(&scores, x->kv, NULL));
    HD_TRY(hd_core_each_head(core, 0, softmax_turn, &softmax, (hd_poll){NULL, NULL}));
    memset(x->o, 0, (size_t)(rows * p->width * p->real_bytes));
    HD_TRY(go_round(&values, v, NULL));
out:
    return st;
}

static heddle_status rsa_forward(hd_core *core, const hd_core_forward *x)
{
    heddle_status st = hd_ring_lend(core, x->kv);
    return st == HEDDLE_OK ? hd_ring_regain(core, forward_rounds(core, x)) : st;
}

static heddle_status no_work(void *ctx, const hd_held *held, int count, void *sum, hd_poll poll)
{
    (void)ctx;
    (void)held;
    (void)count;
    (void)sum;
    return poll.poll != NULL ? poll.poll(poll.ctx) : HEDDLE_OK;
}

/* Partial gradients of keys or values come home to `own`. */
static heddle_status sum_up(round_work *t, void *own)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(go_round(t, NULL, own));
    if (t->core->problem->options.rsa_all_reduce) {
        hd_ring_walk walk = {.block = own, .kind = HD_SPREAD, .visit = no_work};
        HD_TRY(hd_ring_run(t->core, &walk));
    }
out:
    return st;
}

static heddle_status backward_rounds(hd_core *core, const hd_core_backward *x)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = core->problem;
    rsa_state *state = core->method;
    int64_t elems = hd_core_elems(core, core->kv_heads, core->rank);
    int64_t rows = core->heads * p->batch * core->rows[core->rank].rows;
    const char *v = (const char *)x->kv + elems * p->elem_bytes;
    char *dk = x->dkv, *dv = dk + elems * p->real_bytes;
    round_work to_dv = {.core = core, .work = mix_back, .query = x->d_o, .matrix = state->p};
    round_work to_dp = {.core = core,
                        .work = score,
                        .query = x->d_o,
                        .out = x->dq,
                        .matrix = state->dp,
                        .scale = 1,
                        .index = 1,
                        .keeps = 1};
    round_work to_dk = {.core = core, .work = mix_back, .query = x->q, .matrix = state->dp};
    round_work to_dq = {.core = core, .work = mix, .query = x->q, .out = x->dq, .matrix = state->dp};
    HD_TRY(sum_up(&to_dv, dv));
    core->kernels->fill(state->dp, 0, rows * state->columns);
    HD_TRY(go_round(&to_dp, v, NULL));
    HD_TRY(hd_core_each_head(core, 0, softmax_back_turn, core, (hd_poll){NULL, NULL}));
    HD_TRY(sum_up(&to_dk, dk));
    HD_TRY(go_round(&to_dq, x->kv, NULL));
out:
    return st;
}

static heddle_status rsa_backward(hd_core *core, const hd_core_backward *x)
{
    heddle_status st = hd_ring_lend(core, x->kv);
    return st == HEDDLE_OK ? hd_ring_regain(core, backward_rounds(core, x)) : st;
}

const hd_core_method hd_core_rsa = {rsa_create, rsa_forward, rsa_backward, rsa_destroy, rsa_take, sizeof(rsa_state)};
