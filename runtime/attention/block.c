/* Own queries against the keys of ring members: every head, sample, and pair of row segments. */
#include "runtime/attention/attention_internal.h"
#include "runtime/base/threads.h"

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
    HD_TRY(hd_room_want(core->user, HD_ROOM_METHOD, out, bytes));
    core->workspace_bytes += bytes;
out:
    return st;
}

heddle_status hd_core_save(void **out, hd_core *core, int64_t bytes)
{
    core->saved_bytes += bytes;
    return core->keeps ? heddle_buffer_alloc(out, core->all, (size_t)(bytes > 0 ? bytes : 1), HEDDLE_SPACE_HOST)
                       : hd_room_want(core->user, HD_ROOM_METHOD, out, bytes);
}

void hd_core_unsave(const hd_core *core, void *saved)
{
    heddle_buffer_free(core->all, core->keeps ? saved : NULL);
}

/* --- who does what ------------------------------------------------------------------------------------------------ */

enum { QUERY_CUT = 64 }; /* every kernel's block of queries divides it: cuts there change no bit */

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Per thread: scratch of the kernels, and for bf16 a wide copy of the keys and values of one head. */
heddle_status hd_core_take_room(hd_core *core, int64_t rows)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = core->problem;
    core->scratch_bytes = round_up((int64_t)core->kernels->scratch_bytes(p->width), 64);
    core->wide_bytes = p->dtype == HEDDLE_BF16 ? round_up(2 * rows * p->width * p->real_bytes, 64) : 0;
    HD_TRY(hd_room_want(core->user, HD_ROOM_THREADS, &core->scratch, core->threads * core->scratch_bytes));
    HD_TRY(hd_room_want(core->user, HD_ROOM_THREADS, &core->wide, core->threads * core->wide_bytes));
    core->room_bytes += core->threads * (core->scratch_bytes + core->wide_bytes);
    core->workspace_bytes += core->room_bytes;
out:
    return st;
}

void *hd_core_scratch(const hd_core *core, int thread)
{
    return (char *)core->scratch + thread * core->scratch_bytes;
}

void *hd_core_wide(const hd_core *core, int thread)
{
    return (char *)core->wide + thread * core->wide_bytes;
}

typedef struct team {
    const hd_core *core;
    hd_turn_fn fn;
    void *ctx;
    hd_poll poll;
    int64_t pieces;
} team;

/* The first local query head that uses this local key head or a later one. */
static int64_t first_query_head(const hd_core *core, int64_t kv_head)
{
    const hd_attn_problem *p = core->problem;
    int64_t head = (kv_head + p->kv_lo + core->part->kv_lo) * p->group - p->head_lo - core->part->q_lo;
    return head < 0 ? 0 : head < core->heads ? head : core->heads;
}

static heddle_status run_key_head(void *ctx, int thread, int64_t job)
{
    heddle_status st = HEDDLE_OK;
    const team *t = ctx;
    hd_turn turn = {.thread = thread, .piece = job % t->pieces, .pieces = t->pieces};
    job /= t->pieces;
    turn.batch = job % t->core->problem->batch;
    turn.kv_head = job / t->core->problem->batch;
    int64_t end = first_query_head(t->core, turn.kv_head + 1);
    for (turn.head = first_query_head(t->core, turn.kv_head); turn.head < end; turn.head++) {
        t->fn(t->ctx, &turn);
        if (thread == 0 && t->poll.poll != NULL) {
            HD_TRY(t->poll.poll(t->poll.ctx));
        }
    }
out:
    return st;
}

/* A rank that computes alone needs no team. */
static heddle_status run_key_heads(team *t, int64_t jobs)
{
    heddle_status st = HEDDLE_OK;
    for (int64_t job = 0; job < jobs; job++) {
        HD_TRY(run_key_head(t, 0, job));
    }
out:
    return st;
}

/* A job is a key head of a sample, with all query heads that use it: two threads never add to the same key's
 * gradient. Where there are fewer jobs than threads like, forward (by_query) also cuts the queries, which nobody
 * else writes. */
heddle_status hd_core_each_head(const hd_core *core, int by_query, hd_turn_fn fn, void *ctx, hd_poll poll)
{
    team t = {.core = core, .fn = fn, .ctx = ctx, .poll = poll, .pieces = 1};
    int64_t jobs = core->kv_heads * core->problem->batch, rows = core->rows[core->rank].rows;
    if (core->threads == 1) {
        return run_key_heads(&t, jobs);
    }
    if (by_query && jobs > 0 && jobs < 4 * core->threads) {
        int64_t most = round_up(rows, QUERY_CUT) / QUERY_CUT, wanted = (4 * core->threads + jobs - 1) / jobs;
        t.pieces = most < 1 ? 1 : wanted < most ? wanted : most;
    }
    const hd_threads threads = {
        .name = "hd-attention", .count = core->threads, .jobs = jobs * t.pieces, .fn = run_key_head, .ctx = &t};
    return hd_threads_run(&threads);
}

/* Only the turn's piece of the queries. 0: it has none. */
static int cut_queries(hd_pair *pair, const hd_turn *turn)
{
    int64_t cuts = round_up(pair->nq, QUERY_CUT) / QUERY_CUT;
    int64_t from = cuts * turn->piece / turn->pieces * QUERY_CUT,
            to = cuts * (turn->piece + 1) / turn->pieces * QUERY_CUT;
    to = to < pair->nq ? to : pair->nq;
    pair->q_at += from;
    pair->nq = to - from;
    if (pair->diagonal != INT64_MAX) {
        pair->diagonal += from;
    }
    return pair->nq > 0;
}

/* Rows of a member are segments of the sequence. For every pair of segments: the keys up to the sample's length and,
 * if causal, up to the last query; the queries from the first that sees a key. What remains goes to `fn`. */
void hd_core_pairs(const hd_core *core, const hd_turn *turn, int member, hd_pair_fn fn, void *ctx)
{
    const hd_attn_problem *p = core->problem;
    const hd_row_set *queries = &core->rows[core->rank], *keys = &core->rows[member];
    for (int i = 0; i < queries->nsegs; i++) {
        const hd_seg *q = &queries->seg[i];
        for (int j = 0; j < keys->nsegs; j++) {
            const hd_seg *k = &keys->seg[j];
            int64_t length = p->key_length[turn->batch], end = k->lo + k->len < length ? k->lo + k->len : length;
            hd_pair pair = {turn->head, turn->kv_head, turn->batch, q->at, q->len, k->at, end - k->lo, INT64_MAX};
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
            if (pair.nk > 0 && pair.nq > 0 && (turn->pieces == 1 || cut_queries(&pair, turn))) {
                fn(ctx, turn, &pair);
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

/* Blocks travel in the storage type; kernels want f32. A head is widened once per turn, not once per pair. */
static key_rows rows_of(const hd_core *core, const hd_held *held, const hd_turn *turn)
{
    const hd_attn_problem *p = core->problem;
    int64_t elems = core->rows[held->member].rows * p->width;
    const char *k = (const char *)held->block + (turn->kv_head * p->batch + turn->batch) * elems * p->elem_bytes;
    const char *v = k + core->kv_heads * p->batch * elems * p->elem_bytes;
    if (p->dtype != HEDDLE_BF16) {
        return (key_rows){k, v};
    }
    char *wide_k = hd_core_wide(core, turn->thread), *wide_v = wide_k + elems * p->real_bytes;
    core->table->convert(wide_k, HEDDLE_F32, k, HEDDLE_BF16, elems);
    core->table->convert(wide_v, HEDDLE_F32, v, HEDDLE_BF16, elems);
    return (key_rows){wide_k, wide_v};
}

typedef struct work {
    hd_core *core;
    const char *q;
    const hd_held *held; /* [count] */
    int count;
    hd_pair_fn fn;
    const hd_carry_arrays *carry;
    const hd_core_backward *x;
    char *dkv;
} work;

/* One turn of it, against one member's keys. */
typedef struct share {
    const work *work;
    key_rows keys;
} share;

static hd_attn_block block_of(const share *s, const hd_pair *pair)
{
    const work *w = s->work;
    const hd_attn_problem *p = w->core->problem;
    int64_t row_bytes = p->width * p->real_bytes;
    int64_t q_row = hd_core_row(w->core, pair);
    return (hd_attn_block){.q = w->q + q_row * row_bytes,
                           .k = s->keys.k + pair->k_at * row_bytes,
                           .v = s->keys.v + pair->k_at * row_bytes,
                           .nq = pair->nq,
                           .nk = pair->nk,
                           .d = p->width,
                           .diagonal = pair->diagonal,
                           .scale = p->scale};
}

static void forward_pair(void *ctx, const hd_turn *turn, const hd_pair *pair)
{
    const share *s = ctx;
    const work *w = s->work;
    const hd_attn_problem *p = w->core->problem;
    hd_attn_block block = block_of(s, pair);
    int64_t row = hd_core_row(w->core, pair);
    hd_attn_carry carry = {(char *)w->carry->acc + row * p->width * p->real_bytes,
                           (char *)w->carry->top + row * p->real_bytes, (char *)w->carry->sum + row * p->real_bytes};
    w->core->kernels->forward(&block, &carry, hd_core_scratch(w->core, turn->thread));
}

static void backward_pair(void *ctx, const hd_turn *turn, const hd_pair *pair)
{
    const share *s = ctx;
    const work *w = s->work;
    const hd_attn_problem *p = w->core->problem;
    hd_attn_block block = block_of(s, pair);
    int64_t real = p->real_bytes, row_bytes = p->width * real;
    int64_t row = hd_core_row(w->core, pair);
    int64_t rows = w->core->rows[w->held->member].rows;
    int64_t key = (pair->kv_head * p->batch + pair->batch) * rows + pair->k_at;
    char *dk = w->dkv + key * row_bytes;
    hd_attn_grad grad = {.d_o = (const char *)w->x->d_o + row * row_bytes,
                         .top = (const char *)w->x->top + row * real,
                         .log_sum = (const char *)w->x->log_sum + row * real,
                         .delta = (const char *)w->x->delta + row * real,
                         .dq = (char *)w->x->dq + row * row_bytes,
                         .dk = dk,
                         .dv = dk + w->core->kv_heads * p->batch * rows * row_bytes};
    w->core->kernels->backward(&block, &grad, hd_core_scratch(w->core, turn->thread));
}

static void run_turn(void *ctx, const hd_turn *turn)
{
    const work *w = ctx;
    for (int i = 0; i < w->count && w->core->rows[w->core->rank].rows > 0; i++) {
        share s = {w, rows_of(w->core, &w->held[i], turn)};
        hd_core_pairs(w->core, turn, w->held[i].member, w->fn, &s);
    }
}

heddle_status hd_core_forward_blocks(hd_core *core, const void *q, const hd_held *held, int count,
                                     const hd_carry_arrays *carry, hd_poll poll)
{
    work w = {.core = core, .q = q, .held = held, .count = count, .fn = forward_pair, .carry = carry};
    return hd_core_each_head(core, 1, run_turn, &w, poll);
}

heddle_status hd_core_backward_block(hd_core *core, const hd_core_backward *x, const hd_held *held, void *dkv,
                                     hd_poll poll)
{
    work w = {.core = core, .q = x->q, .held = held, .count = 1, .fn = backward_pair, .x = x, .dkv = dkv};
    return hd_core_each_head(core, 0, run_turn, &w, poll);
}

/* Of the online softmax: nothing accumulated, sum 0, largest score minus infinity. */
void hd_core_start(hd_core *core, const hd_carry_arrays *carry)
{
    const hd_attn_problem *p = core->problem;
    int64_t rows = core->heads * p->batch * core->rows[core->rank].rows;
    memset(carry->acc, 0, (size_t)(rows * p->width * p->real_bytes));
    memset(carry->sum, 0, (size_t)(rows * p->real_bytes));
    core->kernels->fill(carry->top, -__builtin_inf(), rows);
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
            core->kernels->finish(&part, lse != NULL ? (char *)lse + row * real : NULL, p->key_length[batch] > 0, rows,
                                  p->width);
        }
    }
}
