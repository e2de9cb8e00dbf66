/* Own queries and one block of keys on a device: a launch for each two runs of rows of which one sees the other. */
#include "runtime/attention/on.h"

#include <string.h>

/* Of one launch. */
typedef struct pair {
    const hd_seg *q, *k;
    int query_run;
} pair;

static int sees(const struct hd_attn_on *on, const pair *x)
{
    return !on->problem->options.causal || x->q->lo + x->q->len > x->k->lo;
}

/* Elements in front of a run of own rows, where each run is [batch][heads][its rows][width]. */
static int64_t before(const struct hd_attn_on *on, const hd_seg *run)
{
    return hd_attn_on_elems(on, on->heads, run->at);
}

static int64_t queries_before(const struct hd_attn_on *on, const hd_seg *run)
{
    return before(on, run) / on->problem->width;
}

/* Rows from `at` on of [heads][batch][rows][width]. */
static hd_device_tokens rows_of(const struct hd_attn_on *on, const char *data, int64_t rows, int64_t at, int64_t elem)
{
    hd_device_tokens x = hd_attn_on_packed(on, data + at * on->problem->width * elem, rows, 1);
    x.inner = 0;
    return x;
}

/* [batch][heads][rows][width] f32 */
static hd_device_tokens run_of(const struct hd_attn_on *on, const float *data, int64_t rows)
{
    const int64_t head = rows * on->problem->width;
    return (hd_device_tokens){(void *)(uintptr_t)data, on->heads * head, 0, on->problem->width, head};
}

static hd_device_attention attention_of(const struct hd_attn_on *on, const hd_on_keys *keys, const pair *x)
{
    const hd_attn_problem *p = on->problem;
    const int64_t run = keys->first_run + (x->k - keys->rows->seg), elem = p->elem_bytes;
    const char *values = keys->kv + hd_attn_on_elems(on, on->kv_heads, keys->rows->rows) * elem;
    return (hd_device_attention){.dtype = p->dtype,
                                 .outer = p->batch,
                                 .inner = 1,
                                 .heads = on->heads,
                                 .kv_heads = on->kv_heads,
                                 .group = p->group,
                                 .skipped = on->skipped_heads,
                                 .nq = x->q->len,
                                 .nk = x->k->len,
                                 .d = p->width,
                                 .scale = (float)p->scale,
                                 .diagonal = p->options.causal ? x->q->lo - x->k->lo : x->k->len,
                                 .lengths = on->lengths != NULL ? on->lengths + run * p->batch : NULL,
                                 .fibres_of_length = 1,
                                 .q = rows_of(on, on->qkv, hd_attn_on_rows(on), x->q->at, elem),
                                 .k = rows_of(on, keys->kv, keys->rows->rows, x->k->at, elem),
                                 .v = rows_of(on, values, keys->rows->rows, x->k->at, elem),
                                 .o = rows_of(on, on->o, hd_attn_on_rows(on), x->q->at, elem),
                                 .stats = on->stats + 2 * queries_before(on, x->q)};
}

void hd_attn_on_begin(struct hd_attn_on *on)
{
    memset(on->begun, 0, (size_t)on->own->nsegs * sizeof *on->begun);
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

static heddle_status meet_pair(struct hd_attn_on *on, const hd_on_keys *keys, const pair *x)
{
    heddle_status st = HEDDLE_OK;
    hd_device_attention of = attention_of(on, keys, x);
    float *sums = on->is_single ? NULL : on->sums + before(on, x->q);
    const int is_first = !on->begun[x->query_run];
    if (!on->is_single) {
        of.gives_f32 = 1;
        of.o = run_of(on, is_first ? sums : on->part, x->q->len);
        of.stats = is_first ? of.stats : on->part_stats;
    }
    on->begun[x->query_run] = 1;
    HD_TRY(hd_device_launched(on->device, on->kernels->attention(&of, on->stream), "attention"));
    if (!is_first) {
        const hd_device_merge merge = {.rows = on->problem->batch * on->heads * x->q->len,
                                       .d = on->problem->width,
                                       .scale = of.scale,
                                       .o = sums,
                                       .stats = on->stats + 2 * queries_before(on, x->q),
                                       .other = on->part,
                                       .other_stats = on->part_stats};
        st = hd_device_launched(on->device, on->kernels->merge(&merge, on->stream), "merge");
    }
out:
    return st;
}

heddle_status hd_attn_on_meet(struct hd_attn_on *on, const hd_on_keys *keys)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < on->own->nsegs && on->heads > 0; i++) {
        for (int j = 0; j < keys->rows->nsegs; j++) {
            const pair x = {&on->own->seg[i], &keys->rows->seg[j], i};
            HD_TRY(sees(on, &x) ? meet_pair(on, keys, &x) : HEDDLE_OK);
        }
    }
out:
    return st;
}

heddle_status hd_attn_on_finish(struct hd_attn_on *on)
{
    heddle_status st = HEDDLE_OK;
    const hd_attn_problem *p = on->problem;
    for (int i = 0; i < on->own->nsegs && on->heads > 0 && !on->is_single; i++) {
        const hd_seg *run = &on->own->seg[i];
        const hd_device_arrange of = {.outer = p->batch,
                                      .inner = 1,
                                      .heads = on->heads,
                                      .n = run->len,
                                      .d = p->width,
                                      .dst = rows_of(on, on->o, hd_attn_on_rows(on), run->at, p->elem_bytes),
                                      .src = run_of(on, on->sums + before(on, run), run->len),
                                      .dst_dtype = p->dtype,
                                      .src_dtype = HEDDLE_F32};
        HD_TRY(hd_attn_on_arrange(on, &of));
    }
out:
    return st;
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

static int64_t grad_bytes(const struct hd_attn_on *on)
{
    return (int64_t)heddle_dtype_bytes(on->grad);
}

/* Rows of a gradient: += those of a part, or zeros. */
static heddle_status add_rows(struct hd_attn_on *on, const hd_device_tokens *to, const hd_device_tokens *from,
                              int64_t heads, int64_t rows)
{
    const hd_attn_problem *p = on->problem;
    const hd_device_arrange of = {.outer = p->batch,
                                  .inner = 1,
                                  .heads = heads,
                                  .n = rows,
                                  .d = p->width,
                                  .dst = *to,
                                  .src = from != NULL ? *from : (hd_device_tokens){NULL, 0, 0, 0, 0},
                                  .dst_dtype = from != NULL ? HEDDLE_F32 : on->grad,
                                  .src_dtype = from != NULL ? HEDDLE_F32 : on->grad,
                                  .adds = from != NULL};
    return hd_attn_on_arrange(on, &of);
}

heddle_status hd_attn_on_add(struct hd_attn_on *on, char *dst, const char *src, int64_t elems)
{
    const hd_device_tokens to = {dst, 0, 0, on->problem->width, 0};
    const hd_device_tokens from = {(void *)(uintptr_t)src, 0, 0, on->problem->width, 0};
    const hd_device_arrange of = {.outer = 1,
                                  .inner = 1,
                                  .heads = 1,
                                  .n = elems / on->problem->width,
                                  .d = on->problem->width,
                                  .dst = to,
                                  .src = from,
                                  .dst_dtype = HEDDLE_F32,
                                  .src_dtype = HEDDLE_F32,
                                  .adds = 1};
    return hd_attn_on_arrange(on, &of);
}

/* Where the gradients of a launch go, and which of them have been written before and are added to. */
typedef struct grad_places {
    hd_device_tokens at[3], part[3];
    int is_begun[3];
} grad_places;

static grad_places places_of(const struct hd_attn_on *on, const pair *x, const hd_on_keys *keys, char *grads,
                             int is_begun)
{
    const int64_t rows = keys->rows->rows, elem = grad_bytes(on), kv = hd_attn_on_elems(on, on->kv_heads, rows);
    const float *q_part = on->grad_part, *k_part = q_part + hd_attn_on_elems(on, on->heads, hd_attn_on_rows(on));
    const float *v_part = k_part + kv;
    grad_places g = {.at = {rows_of(on, on->grads, hd_attn_on_rows(on), x->q->at, elem),
                            rows_of(on, grads, rows, x->k->at, elem),
                            rows_of(on, grads + kv * elem, rows, x->k->at, elem)},
                     .is_begun = {on->begun[x->query_run], is_begun, is_begun}};
    if (!on->is_single) {
        g.part[0] = rows_of(on, (const char *)q_part, x->q->len, 0, elem);
        g.part[1] = rows_of(on, (const char *)k_part, x->k->len, 0, elem);
        g.part[2] = rows_of(on, (const char *)v_part, x->k->len, 0, elem);
    }
    return g;
}

static heddle_status meet_pair_back(struct hd_attn_on *on, const hd_on_keys *keys, const pair *x, char *grads,
                                    int is_begun)
{
    heddle_status st = HEDDLE_OK;
    const grad_places g = places_of(on, x, keys, grads, is_begun);
    const hd_device_attention_back back = {
        .of = attention_of(on, keys, x),
        .d_o = rows_of(on, on->d_o, hd_attn_on_rows(on), x->q->at, on->problem->elem_bytes),
        .dq = g.is_begun[0] ? g.part[0] : g.at[0],
        .dk = g.is_begun[1] ? g.part[1] : g.at[1],
        .dv = g.is_begun[2] ? g.part[2] : g.at[2],
        .gives_f32 = on->grad == HEDDLE_F32,
        .delta = on->delta + queries_before(on, x->q)};
    on->begun[x->query_run] = 1;
    HD_TRY(hd_device_launched(on->device, on->kernels->attention_back(&back, on->stream), "attention_back"));
    for (int i = 0; i < 3; i++) {
        HD_TRY(g.is_begun[i] ? add_rows(on, &g.at[i], &g.part[i], i == 0 ? on->heads : on->kv_heads,
                                        i == 0 ? x->q->len : x->k->len)
                             : HEDDLE_OK);
    }
out:
    return st;
}

/* Of keys that nobody here sees. */
static heddle_status clear_keys(struct hd_attn_on *on, const hd_on_keys *keys, const hd_seg *run, char *grads)
{
    heddle_status st = HEDDLE_OK;
    const int64_t elem = grad_bytes(on), kv_bytes = hd_attn_on_elems(on, on->kv_heads, keys->rows->rows) * elem;
    for (int i = 0; i < 2; i++) {
        const hd_device_tokens at = rows_of(on, grads + i * kv_bytes, keys->rows->rows, run->at, elem);
        HD_TRY(add_rows(on, &at, NULL, on->kv_heads, run->len));
    }
out:
    return st;
}

heddle_status hd_attn_on_meet_back(struct hd_attn_on *on, const hd_on_keys *keys, char *grads, int is_begun)
{
    heddle_status st = HEDDLE_OK;
    for (int j = 0; j < keys->rows->nsegs && on->heads > 0; j++) {
        int has = is_begun;
        for (int i = 0; i < on->own->nsegs; i++) {
            const pair x = {&on->own->seg[i], &keys->rows->seg[j], i};
            if (sees(on, &x)) {
                HD_TRY(meet_pair_back(on, keys, &x, grads, has));
                has = 1;
            }
        }
        HD_TRY(has ? HEDDLE_OK : clear_keys(on, keys, &keys->rows->seg[j], grads));
    }
out:
    return st;
}

heddle_status hd_attn_on_finish_back(struct hd_attn_on *on)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < on->own->nsegs && on->heads > 0; i++) {
        const hd_seg *run = &on->own->seg[i];
        const hd_device_tokens at = rows_of(on, on->grads, hd_attn_on_rows(on), run->at, grad_bytes(on));
        HD_TRY(on->begun[i] ? HEDDLE_OK : add_rows(on, &at, NULL, on->heads, run->len));
    }
out:
    return st;
}
