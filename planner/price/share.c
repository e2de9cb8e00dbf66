/* The rank that has most of a stage, and what it computes. */
#include "planner/price/price_internal.h"

#include "runtime/base/base.h"
#include "runtime/layout/algebra.h"

#include <string.h>

/* The longest block of a dim. */
static int64_t longest(const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *layout, int dim)
{
    int64_t length = shape->dim[dim].extent;
    for (int a = 0; a < mesh->naxes; a++) {
        const int64_t *blocks = hd_layout_blocks(layout, a);
        int size = mesh->axis[a].size;
        if (layout->dim_of_axis[a] != dim) {
            continue;
        }
        int64_t most = (length + size - 1) / size;
        for (int i = 0; blocks != NULL && i < size; i++) {
            most = i == 0 || blocks[i] > most ? blocks[i] : most;
        }
        length = most;
    }
    return length;
}

int64_t hd_price_rows(const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *layout)
{
    int64_t rows = 1;
    for (int d = 0; d < shape->ndim - 1; d++) {
        rows *= longest(shape, mesh, layout, d);
    }
    return rows;
}

/* A module is dealt out like softmax attention where it admits its methods. */
static hd_method_stage mixes_of(const hd_model_stage *s)
{
    hd_method_stage mixes = hd_model_stage_mixes(s);
    mixes.kind = s->kind == HEDDLE_STAGE_LINEAR ? s->kind : HEDDLE_STAGE_ATTENTION;
    return mixes;
}

/* A whole fibre as a group of one, so that the same formulas serve. */
static heddle_status one_member(hd_method_group *g, const hd_share *share, const heddle_shape *shape, int64_t fibres)
{
    const hd_model_stage *s = share->stage;
    hd_method_group_free(g);
    *g = (hd_method_group){.shape = shape,
                           .stage = mixes_of(s),
                           .n = 1,
                           .heads = s->heads,
                           .kv_heads = s->kv_heads > 0 ? s->kv_heads : s->heads,
                           .heads_a_kv_head = s->kv_heads > 0 ? s->heads / s->kv_heads : 1,
                           .fibres = 1,
                           .fibres_max = fibres,
                           .width = s->in_channels / s->heads,
                           .elem_bytes = (int64_t)heddle_dtype_bytes(shape->dtype),
                           .real_bytes = shape->dtype == HEDDLE_F64 ? 8 : 4};
    g->width_v = g->padded_width_v = g->width;
    heddle_status st = hd_method_group_add(g, fibres > 0 ? (share->rows + fibres - 1) / fibres : 0, 1);
    if (st == HEDDLE_OK) {
        hd_method_group_count(g, 1, 1);
    }
    return st;
}

/* The sum of min(i, most) over i < x. */
static __int128 sum_to(__int128 x, __int128 most)
{
    return x <= most + 1 ? x * (x - 1) / 2 : most * (most + 1) / 2 + (x - most - 1) * most;
}

/* Keys along one dim of `extent` tokens that the first `queries` of them see together: themselves, those before them
 * and, unless causal, behind them, up to `window` tokens each way; at the borders there are fewer. */
static __int128 keys_of(int64_t queries, int64_t extent, int64_t window, int causal)
{
    const int64_t most = window > 0 && window < extent ? window : extent;
    const __int128 behind = sum_to(extent, most) - sum_to(extent - queries, most);
    return queries + sum_to(queries, most) + (causal ? 0 : behind);
}

/* Of the block of dim d that sees most: these keys, by query of the longest block. */
static double keys_along(const hd_pricer *p, const hd_model_stage *s, const heddle_layout *layout, int d)
{
    const heddle_shape *shape = &p->model->shape;
    const int64_t extent = shape->dim[d].extent;
    int blocks = 1;
    double most = 0;
    heddle_box box;
    for (int a = 0; a < p->mesh->naxes; a++) {
        blocks *= layout->dim_of_axis[a] == d ? p->mesh->axis[a].size : 1;
    }
    for (int i = 0; i < blocks; i++) {
        int coords[HEDDLE_MAX_AXES] = {0};
        for (int a = p->mesh->naxes - 1, rest = i; a >= 0; a--) {
            coords[a] = layout->dim_of_axis[a] == d ? rest % p->mesh->axis[a].size : 0;
            rest /= layout->dim_of_axis[a] == d ? p->mesh->axis[a].size : 1;
        }
        hd_layout_box(&box, shape, p->mesh, layout, coords);
        const __int128 to = keys_of(box.lo[d] + box.len[d], extent, s->window[d], s->causal);
        const double keys = (double)(to - keys_of(box.lo[d], extent, s->window[d], s->causal));
        most = keys > most ? keys : most;
    }
    return most / (double)longest(shape, p->mesh, layout, d);
}

/* What a query sees on average on the rank that sees most. Zigzag deals early and late rows alike, so that all ranks
 * see what the whole sequence does on average; a method that deals heads has the rows of its ranks together. */
static double keys_seen(const hd_share *share, const hd_pricer *p, const heddle_layout *layout)
{
    const hd_method_group *g = &share->group;
    const hd_model_stage *s = share->stage;
    heddle_layout own = *layout;
    int spread = hd_group_spread(share->method, g);
    double seen = 1;
    for (int i = g->naxes - 1; i >= 0 && spread > 1; i--) {
        own.dim_of_axis[g->axis[i]] = HEDDLE_REPLICATED;
        spread /= p->mesh->axis[g->axis[i]].size;
    }
    for (int d = 0; d < p->model->shape.ndim - 1; d++) {
        for (int a = 0; a < p->mesh->naxes && s->zigzag; a++) {
            own.dim_of_axis[a] = own.dim_of_axis[a] == d ? HEDDLE_REPLICATED : own.dim_of_axis[a];
        }
        const int is_mixed = s->mixed_dims != 0 ? (s->mixed_dims >> d & 1) != 0 : d == s->mixed_dim;
        seen *= is_mixed ? keys_along(p, s, &own, d) : 1;
    }
    return seen + (double)s->joined_rows;
}

static int is_windowed(const hd_model_stage *s)
{
    int64_t any = 0;
    for (int d = 0; d < HEDDLE_MAX_DIMS; d++) {
        any |= s->window[d];
    }
    return any != 0;
}

static void count_attention(hd_share *share, const hd_pricer *p, const heddle_layout *layout)
{
    const hd_method_group *g = &share->group;
    int spread = hd_group_spread(share->method, g);
    int64_t rows = spread > 1 ? hd_group_rows(g, 0, spread) : g->rows_most;
    rows = g->segment_rows_most > rows && spread > 1 ? g->segment_rows_most : rows;
    share->queries = hd_saturated((__int128)rows * g->fibres_max);
    share->heads = (g->heads + spread - 1) / spread;
    share->keys = (double)g->sequence;
    if (is_windowed(share->stage) || (share->stage->kind == HEDDLE_STAGE_ATTENTION && share->stage->causal)) {
        share->keys = keys_seen(share, p, layout);
    }
}

/* Rows of text that join a token-wise stage: those of every sample are cut along the axes that cut its tokens. */
static int64_t joined_part(const hd_pricer *p, const hd_model_stage *s, const heddle_layout *layout, int64_t samples)
{
    int64_t ranks = 1;
    for (int a = 0; a < p->mesh->naxes; a++) {
        int dim = layout->dim_of_axis[a];
        ranks *= dim >= 0 && dim != p->model->batch_dim ? p->mesh->axis[a].size : 1;
    }
    return hd_saturated((__int128)((s->joined_rows + ranks - 1) / ranks) * samples);
}

heddle_status hd_share_make(hd_share *out, const hd_pricer *p, int k, const heddle_layout *layout,
                            const hd_method *method)
{
    heddle_status st = HEDDLE_OK;
    const heddle_shape *shape = &p->model->shape;
    const hd_model_stage *s = &p->model->stage[k];
    const hd_method_stage mixes = mixes_of(s);
    *out = (hd_share){.stage = s, .method = method, .rows = hd_price_rows(shape, p->mesh, layout)};
    out->samples = p->model->batch_dim >= 0 ? longest(shape, p->mesh, layout, p->model->batch_dim) : 1;
    if (s->mixed_dim < 0) {
        out->rows = hd_add_saturated(out->rows, joined_part(p, s, layout, out->samples));
        return HEDDLE_OK;
    }
    HD_TRY(hd_method_group_make(&out->group, shape, p->mesh, layout, &mixes));
    out->group.forward_only = !p->backward;
    if (s->kind == HEDDLE_STAGE_LINEAR) { /* blocks give linear attention q, k and v in f32 */
        out->group.elem_bytes = out->group.real_bytes;
    }
    if (out->group.n == 1 || out->group.run == NULL) {
        int64_t length = 1;
        for (int d = 0; d < shape->ndim - 1; d++) {
            int mixed = s->mixed_dims != 0 ? (s->mixed_dims >> d & 1) != 0 : d == s->mixed_dim;
            length *= mixed ? shape->dim[d].extent : 1;
        }
        int64_t fibres = length > 0 ? out->rows / length : 0;
        out->rows += fibres * s->joined_rows;
        HD_TRY(one_member(&out->group, out, shape, fibres));
    } else {
        out->rows = hd_saturated((__int128)out->group.rows_most * out->group.fibres_max);
    }
    count_attention(out, p, layout);
out:
    return st;
}

void hd_share_free(hd_share *share)
{
    hd_method_group_free(&share->group);
}

int64_t hd_price_ps(double seconds)
{
    double ps = seconds * 1e12 + 0.5;
    return ps >= 9.2e18 ? INT64_MAX : (int64_t)ps;
}

double hd_price_work_s(const hd_pricer *p, hd_work work, heddle_dtype dtype, double amount, double size)
{
    return hd_machine_crowding(p->machine, heddle_mesh_size(p->mesh)) *
           hd_machine_work_s(p->machine, work, dtype, amount, size);
}

static double product_s(const hd_pricer *p, heddle_dtype dtype, double rows, double k, double n)
{
    return hd_price_work_s(p, HD_WORK_PRODUCT, dtype, 2 * rows * k * n, rows);
}

/* `passes` arrays of the activation's size, read or written. */
static double passes_s(const hd_pricer *p, const hd_share *s, double passes)
{
    double bytes = (double)s->rows * (double)s->stage->in_channels * (double)heddle_dtype_bytes(p->model->dtype);
    return hd_price_work_s(p, HD_WORK_MEMORY, p->model->dtype, passes * bytes, passes * bytes);
}

/* Of a member's scores and values; a ring takes it block by block. */
static double attention_s(const hd_pricer *p, const hd_share *s, int backward)
{
    const hd_method_group *g = &s->group;
    int spread = hd_group_spread(s->method, g);
    int is_ring = s->method == &hd_method_ring || s->method == &hd_method_usp || s->method == &hd_method_rsa;
    double blocks = is_ring ? (double)(g->n / spread) : 1;
    double flops = 4.0 * (double)s->queries * (double)s->heads * s->keys * (double)g->width;
    double products = s->method->keeps_weights ? 4 : 5; /* forward has two */
    if (s->stage->kind == HEDDLE_STAGE_LINEAR) {
        hd_flops both;
        hd_method_flops(&both, s->method, g, 0, 0);
        flops = (double)(backward ? both.backward : both.forward) * (double)g->fibres_max;
        return hd_price_work_s(p, HD_WORK_LINEAR, p->model->dtype, flops, (double)g->rows_most);
    }
    flops *= backward ? products / 2 : 1;
    const hd_work work = s->method == &hd_method_local ? HD_WORK_ATTENTION : HD_WORK_SHARDED;
    return blocks * hd_price_work_s(p, work, p->model->dtype, flops / blocks, s->keys / blocks);
}

/* Forward; `last`: of it what recomputing leaves out, the product at the end and the sum with the residual. */
typedef struct stage_s {
    double products, last_product, passes, last_pass, attention, attention_back;
} stage_s;

/* Norm reads and writes; a gated residual reads two and writes one; norms and rotations of q and k go over both. */
static stage_s seconds_of(const hd_pricer *p, const hd_share *share)
{
    const hd_model_stage *s = share->stage;
    double rows = (double)share->rows, c = (double)s->in_channels, out = (double)s->channels;
    double text = (double)share->samples * (double)p->model->text_tokens;
    const heddle_dtype dtype = p->model->dtype;
    /* Our linear attention on a CPU takes the weights in front of it whole, which costs bf16 what f32 costs. A machine
     * that was calibrated runs it; the figures of others are of frameworks, which stay in bf16. */
    const int is_whole = s->kind == HEDDLE_STAGE_LINEAR && p->machine->is_calibrated && !p->machine->on_device;
    const heddle_dtype first = is_whole ? HEDDLE_F32 : dtype;
    stage_s t = {.passes = passes_s(p, share, 2), .last_pass = passes_s(p, share, 3)};
    switch (s->kind) {
    case HEDDLE_STAGE_ATTENTION:
    case HEDDLE_STAGE_LINEAR: {
        double kv = s->heads > 0 && s->kv_heads > 0 ? c * (double)s->kv_heads / (double)s->heads : c;
        int turns = s->qk_norm || s->rope;
        t.products = product_s(p, first, rows, c, c + 2 * kv);
        t.last_product = product_s(p, dtype, rows, c, out);
        t.passes += turns ? passes_s(p, share, 2 * (1 + kv / c)) : 0;
        t.passes += s->kind == HEDDLE_STAGE_LINEAR ? passes_s(p, share, 2) : 0; /* the norm of its results */
        t = s->core ? (stage_s){0} : t;
        t.attention = attention_s(p, share, 0);
        t.attention_back = attention_s(p, share, 1);
        break;
    }
    case HEDDLE_STAGE_CROSS:
        t.products = product_s(p, dtype, rows, c, c) + product_s(p, dtype, text, c, 2 * c);
        t.last_product = product_s(p, dtype, rows, c, out);
        t.attention = hd_price_work_s(p, HD_WORK_ATTENTION, p->model->dtype,
                                      4 * rows * (double)p->model->text_tokens * c, (double)p->model->text_tokens);
        t.attention_back = t.attention * 2.5;
        break;
    case HEDDLE_STAGE_MLP:
        t.products = product_s(p, dtype, rows, c, (double)s->mlp_channels);
        t.last_product = product_s(p, dtype, rows, (double)s->mlp_channels, out);
        t.passes += passes_s(p, share, 2 * (double)s->mlp_channels / c); /* the activation function */
        break;
    case HEDDLE_STAGE_MODULE:
        t.products = hd_price_work_s(p, HD_WORK_PRODUCT, p->model->dtype, rows * (double)s->token_flops, rows);
        break;
    }
    return t;
}

/* The way back: two products for each, twice the passes. */
hd_work_done hd_share_work(const hd_share *share, const hd_pricer *p)
{
    hd_work_done done = {0, 0, 0, 0, 0, 0};
    if (p->machine == NULL || share->rows == 0) {
        return done;
    }
    const stage_s t = seconds_of(p, share);
    int is_cross = share->stage->kind == HEDDLE_STAGE_CROSS;
    done.all_ps = hd_price_ps(t.products + t.last_product + t.passes + t.last_pass + t.attention);
    done.attention_ps = is_cross ? 0 : hd_price_ps(t.attention);
    if (p->backward) {
        done.back_ps = hd_price_ps(2 * (t.products + t.last_product + t.passes + t.last_pass) + t.attention_back);
        done.attention_back_ps = is_cross ? 0 : hd_price_ps(t.attention_back);
    }
    if (p->backward && p->recompute) {
        done.again_ps = hd_price_ps(t.products + t.passes + t.attention);
        done.attention_again_ps = done.attention_ps;
    }
    return done;
}
