/* What a stage has and takes: its parameters, and why no block runs it. */
#include "planner/model/model.h"

#include "runtime/base/base.h"
#include "runtime/method/method.h"

/* Those of heddle_block_create (heddle/block.h lists them), and the same arithmetic for what blocks do not do. */
static __int128 parameters_of(const hd_model_stage *s)
{
    const __int128 c = s->in_channels, width = s->kind == HEDDLE_STAGE_MLP ? 0 : c / s->heads;
    const __int128 qkv = c + 2 * width * s->kv_heads, norms = s->qk_norm ? 2 * width : 0;
    if (s->core) {
        return 0;
    }
    switch (s->kind) {
    case HEDDLE_STAGE_ATTENTION:
    case HEDDLE_STAGE_LINEAR:
        return qkv * c + qkv + c * c + c + norms;
    case HEDDLE_STAGE_CROSS:
        return 4 * c * c + 4 * c;
    case HEDDLE_STAGE_MLP:
        return s->mlp_channels * (c + s->channels) + s->mlp_channels + s->channels;
    case HEDDLE_STAGE_MODULE:
        break;
    }
    return 0;
}

/* Tokens of the activation, joined rows of every sample with them. */
static __int128 tokens_of(const heddle_model *m, const hd_model_stage *s)
{
    __int128 tokens = 1;
    for (int d = 0; d < m->shape.ndim; d++) {
        tokens *= d != m->channel_dim ? m->shape.dim[d].extent : 1;
    }
    return tokens + (__int128)s->joined_rows * (m->batch_dim >= 0 ? m->shape.dim[m->batch_dim].extent : 1);
}

/* Figures by token must fit when all tokens have them. */
static heddle_status check_by_token(const heddle_model *m, const hd_model_stage *s, int64_t by_token, const char *key,
                                    int with_marks)
{
    const __int128 tokens = tokens_of(m, s);
    if (tokens > INT64_MAX || tokens * by_token > INT64_MAX) {
        return hd_model_complain(m, with_marks, s->mark, "stage '%s': %s %lld of %lld tokens is more than %lld",
                                 s->name, key, (long long)by_token,
                                 (long long)(tokens > INT64_MAX ? INT64_MAX : tokens), (long long)INT64_MAX);
    }
    return HEDDLE_OK;
}

heddle_status hd_model_derive_weights(heddle_model *m, int with_marks)
{
    heddle_status st = HEDDLE_OK;
    __int128 total = 0;
    for (int i = 0; i < m->nstages; i++) {
        hd_model_stage *s = &m->stage[i];
        const __int128 count = s->weights > 0 ? s->weights : parameters_of(s);
        total += count > INT64_MAX ? INT64_MAX : count * m->repeat;
        if (count > INT64_MAX || total > INT64_MAX) {
            st = hd_model_complain(m, with_marks, s->mark,
                                   "stage '%s' of %lld channels, run %d times, brings the model to more than %lld "
                                   "parameters",
                                   s->name, (long long)s->in_channels, m->repeat, (long long)INT64_MAX);
            goto out;
        }
        s->nweights = (int64_t)count;
        HD_TRY(check_by_token(m, s, s->token_flops, "token_flops", with_marks));
        HD_TRY(check_by_token(m, s, s->token_bytes, "token_bytes", with_marks));
        HD_TRY(
            check_by_token(m, s, s->channels * (int64_t)heddle_dtype_bytes(m->dtype), "bytes of channels", with_marks));
    }
    m->nweights = (int64_t)total;
out:
    return st;
}

const char *hd_model_stage_refusal(const heddle_model *m, int k)
{
    const hd_model_stage *s = &m->stage[k];
    const hd_method_stage mixes = hd_model_stage_mixes(s);
    const int64_t channels = m->shape.dim[m->channel_dim].extent;
    const char *of_mixing = hd_method_stage_refusal(&mixes);
    return of_mixing != NULL                                       ? of_mixing
           : s->core                                               ? "no products of its own"
           : s->in_channels != channels || s->channels != channels ? "another number of channels than the model"
           : s->weights > 0                                        ? "other parameters than a block of its kind"
           : m->weights_sharded                                    ? "sharded weights"
                                                                   : NULL;
}
