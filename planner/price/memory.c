/* Bytes that a rank holds.
 *
 * Weights: in a forward pass one copy in the activation's dtype. Training in bf16 takes 18 bytes of each: that copy,
 * a master copy in f32, a gradient in f32, two moments of Adam in f32; in f32 the first two are one, 16 bytes.
 * Activations are those of our tapes (heddle/train/tape.h): input, q k v, result, what the softmax's backward needs; an
 * MLP its first layer's result; recomputing keeps the input alone. */
#include "planner/price/price_internal.h"

static int64_t bytes_of(__int128 rows, __int128 columns, int64_t elem)
{
    return hd_saturated((__int128)hd_saturated(rows * columns) * elem);
}

static int64_t sum(int64_t a, int64_t b)
{
    return hd_add_saturated(a, b);
}

/* q, k and v of a row: key heads may be fewer. */
static int64_t wide_channels(const hd_model_stage *s)
{
    return s->in_channels + 2 * (s->kv_heads > 0 ? s->in_channels / s->heads * s->kv_heads : s->in_channels);
}

/* Everything that a stage makes of its input; the input itself is not among it. */
static int64_t made_by(const hd_share *share, const hd_pricer *p)
{
    const hd_model_stage *s = share->stage;
    int64_t elem = (int64_t)heddle_dtype_bytes(p->model->dtype), rows = share->rows;
    int is_local = share->group.n <= 1;
    int64_t made_here = !s->core; /* q, k and v; else they are its input */
    switch (s->kind) {
    case HEDDLE_STAGE_ATTENTION:
        return sum(bytes_of(rows, made_here * wide_channels(s) + s->in_channels, elem),
                   is_local ? bytes_of(rows, 2 * s->heads, 4) : 0);
    case HEDDLE_STAGE_LINEAR:
        return sum(bytes_of(rows, made_here * 3 * s->in_channels, 4),
                   sum(bytes_of(rows, s->in_channels, elem), bytes_of(rows, s->heads, 4)));
    case HEDDLE_STAGE_CROSS:
        return sum(sum(bytes_of(rows, 2 * s->in_channels, elem), bytes_of(rows, 2 * s->heads, 4)),
                   bytes_of((__int128)share->samples * p->model->text_tokens, 2 * s->in_channels, elem));
    case HEDDLE_STAGE_MLP:
        return bytes_of(rows, s->mlp_channels, elem);
    case HEDDLE_STAGE_MODULE:
        return bytes_of(rows, s->token_bytes, 1);
    }
    return 0;
}

/* Blocks whose workspace would be larger go through their box in parts; the least is a fibre, or a row. */
static int64_t in_parts(int64_t bytes, const hd_share *share, const hd_pricer *p)
{
    const hd_model_stage *s = share->stage;
    const int mixes = s->kind == HEDDLE_STAGE_ATTENTION || s->kind == HEDDLE_STAGE_LINEAR;
    const int cuts = (mixes && share->group.n <= 1) || s->kind == HEDDLE_STAGE_CROSS || s->kind == HEDDLE_STAGE_MLP;
    if (p->in_parts == 0 || !cuts || s->core || bytes <= p->in_parts) {
        return bytes;
    }
    const int64_t fibre = mixes ? share->group.sequence : 1;
    const int64_t least = hd_saturated((__int128)bytes * fibre / share->rows);
    return least > p->in_parts ? least : p->in_parts;
}

void hd_share_memory(hd_price *out, const hd_share *share, const hd_pricer *p, const hd_method_cost *method)
{
    const hd_model_stage *s = share->stage;
    int64_t elem = (int64_t)heddle_dtype_bytes(p->model->dtype);
    int64_t made = sum(made_by(share, p), method->saved_bytes), own = 0;
    out->input_bytes = bytes_of(share->rows, s->core ? wide_channels(s) : s->in_channels, elem);
    out->workspace_bytes = method->workspace_bytes;
    out->method_bytes =
        p->backward && !p->recompute ? method->workspace_bytes : sum(method->workspace_bytes, method->saved_bytes);
    out->kept_bytes = p->backward ? out->input_bytes : 0;
    if (p->backward && !p->recompute) {
        out->kept_bytes = sum(out->kept_bytes, made);
    } else {
        own = made;
    }
    if (p->backward) { /* gradients of what it made, in f32 */
        int64_t wide = s->kind == HEDDLE_STAGE_MLP ? s->mlp_channels : 4 * s->in_channels;
        own = sum(own, bytes_of(share->rows, wide, 4));
    }
    out->workspace_bytes = sum(out->workspace_bytes, in_parts(own, share, p));
    if (p->model->weights_sharded && heddle_mesh_size(p->mesh) > 1) { /* gathered for the stage, with a gradient */
        int64_t each = elem + (p->backward ? 4 : 0);
        out->workspace_bytes = sum(out->workspace_bytes, bytes_of(s->nweights, 1, each));
    }
}

heddle_status hd_price_resident(int64_t *bytes, const hd_pricer *p)
{
    int64_t elem = (int64_t)heddle_dtype_bytes(p->model->dtype);
    int64_t each = !p->backward ? elem : elem < 4 ? elem + 4 + 4 + 8 : elem + 4 + 8;
    int64_t ranks = heddle_mesh_size(p->mesh), weights = p->model->nweights;
    *bytes = bytes_of(p->model->weights_sharded ? (weights + ranks - 1) / ranks : weights, 1, each);
    return HEDDLE_OK;
}
