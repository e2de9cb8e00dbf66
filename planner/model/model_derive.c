/* What follows from a model file's words: the activation's shape, heads, widths and parameters of the stages. Done
 * again when a size is overridden on the command line; then a complaint has no place in the file (with_marks 0). */
#include "planner/model/model.h"

#include "runtime/base/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MILLION = 1000000 };

heddle_status hd_model_complain(const heddle_model *m, int with_marks, hd_mark mark, const char *format, ...)
{
    char sentence[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    if (with_marks) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "%s:%d:%d: %s", m->file, mark.line, mark.column, sentence);
    }
    return hd_fail(HEDDLE_ERR_ARG, "%s", sentence);
}

int hd_model_dim_index(const heddle_model *model, const char *name)
{
    for (int d = 0; d < model->ndims; d++) {
        if (strcmp(model->dim[d].name, name) == 0) {
            return d;
        }
    }
    return -1;
}

/* Dims of the file that the activation does not name (heads, text) stay sizes without a place in the shape. */
static heddle_status derive_shape(heddle_model *m, int with_marks)
{
    m->batch_dim = -1;
    m->channel_dim = -1;
    memset(&m->shape, 0, sizeof m->shape);
    m->shape.dtype = m->dtype;
    m->shape.ndim = m->activation_ndim;
    for (int i = 0; i < m->activation_ndim; i++) {
        const hd_model_dim *d = &m->dim[m->activation_dim[i]];
        memcpy(m->shape.dim[i].name, d->name, sizeof d->name);
        m->shape.dim[i].extent = d->extent;
        if (d->role == HD_ROLE_BATCH) {
            m->batch_dim = i;
        } else if (d->role == HD_ROLE_CHANNEL) {
            m->channel_dim = i;
        }
    }
    if (heddle_shape_check(&m->shape) != HEDDLE_OK) {
        char reason[512];
        snprintf(reason, sizeof reason, "%s", heddle_last_error());
        return hd_model_complain(m, with_marks, m->activation_mark, "the activation tensor: %s", reason);
    }
    m->text_tokens = m->text_dim >= 0 ? m->dim[m->text_dim].extent : 0;
    return HEDDLE_OK;
}

static heddle_status derive_heads(const heddle_model *m, hd_model_stage *s, int with_marks)
{
    int64_t channels = s->in_channels;
    s->heads = s->heads_dim >= 0 ? m->dim[s->heads_dim].extent : s->heads_fixed;
    if (s->heads > HD_MODEL_MAX_HEADS) {
        return hd_model_complain(m, with_marks, s->mark, "stage '%s' has %lld heads; at most %d are supported", s->name,
                                 (long long)s->heads, HD_MODEL_MAX_HEADS);
    }
    if (channels % s->heads != 0) {
        return hd_model_complain(m, with_marks, s->mark, "stage '%s': %lld heads do not divide %lld channels", s->name,
                                 (long long)s->heads, (long long)channels);
    }
    if (s->rope && channels / s->heads % 2 != 0) {
        return hd_model_complain(m, with_marks, s->mark,
                                 "stage '%s': rope needs an even head width, found %lld / %lld = %lld", s->name,
                                 (long long)channels, (long long)s->heads, (long long)(channels / s->heads));
    }
    s->kv_heads = s->kv_heads_fixed > 0 ? s->kv_heads_fixed : s->heads;
    if (s->heads % s->kv_heads != 0) {
        return hd_model_complain(m, with_marks, s->mark, "stage '%s': %lld heads of keys do not divide %lld heads",
                                 s->name, (long long)s->kv_heads, (long long)s->heads);
    }
    return HEDDLE_OK;
}

/* An MLP's width: given, or a ratio of the channels that must come out whole. */
static heddle_status derive_width(const heddle_model *m, hd_model_stage *s, int with_marks)
{
    int64_t channels = s->in_channels;
    s->mlp_channels = s->width;
    if (s->width != 0) {
        return HEDDLE_OK;
    }
    int64_t product = 0;
    if (__builtin_mul_overflow(channels, s->ratio_millionths, &product) || product % MILLION != 0) {
        return hd_model_complain(m, with_marks, s->mark,
                                 "stage '%s': ratio %lld.%06lld of %lld channels is not a whole width", s->name,
                                 (long long)(s->ratio_millionths / MILLION), (long long)(s->ratio_millionths % MILLION),
                                 (long long)channels);
    }
    s->mlp_channels = product / MILLION;
    return HEDDLE_OK;
}

/* What the stages of all repetitions make of the channels: those behind one are those before the next. */
static heddle_status derive_channels(heddle_model *m, int with_marks)
{
    const int64_t first = m->shape.dim[m->channel_dim].extent;
    int64_t channels = first;
    for (int i = 0; i < m->nstages; i++) {
        hd_model_stage *s = &m->stage[i];
        s->in_channels = channels;
        channels = s->channels_fixed > 0 ? s->channels_fixed : channels;
        s->channels = channels;
        s->joined_rows = s->joins ? m->text_tokens : 0;
    }
    if (m->repeat > 1 && channels != first) {
        const hd_model_stage *last = &m->stage[m->nstages - 1];
        return hd_model_complain(m, with_marks, last->mark,
                                 "stage '%s' leaves %lld channels, and the stages are run again from %lld", last->name,
                                 (long long)channels, (long long)first);
    }
    return HEDDLE_OK;
}

/* Steps in which the stages run, each once for both halves of guidance where the batch has both. */
static int64_t passes_of(const heddle_model *m)
{
    const int64_t every = m->cache_every > 1 ? m->cache_every : 1;
    const int64_t run = (m->steps + every - 1) / every;
    const int64_t samples = m->batch_dim >= 0 ? m->shape.dim[m->batch_dim].extent : 1;
    return m->guidance > 1 && samples % m->guidance != 0 ? run * m->guidance : run;
}

heddle_status hd_model_derive(heddle_model *model, int with_marks)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(derive_shape(model, with_marks));
    if ((int64_t)model->repeat * model->nstages > HD_MODEL_MAX_RUNS) {
        st = hd_model_complain(model, with_marks, model->stage[0].mark,
                               "%d stages repeated %d times are %lld; at most %d", model->nstages, model->repeat,
                               (long long)model->repeat * model->nstages, HD_MODEL_MAX_RUNS);
        goto out;
    }
    HD_TRY(derive_channels(model, with_marks));
    for (int i = 0; i < model->nstages; i++) {
        hd_model_stage *s = &model->stage[i];
        if (s->kind == HEDDLE_STAGE_MLP) {
            HD_TRY(derive_width(model, s, with_marks));
        } else {
            HD_TRY(derive_heads(model, s, with_marks));
        }
    }
    HD_TRY(hd_model_derive_weights(model, with_marks));
    model->passes = passes_of(model);
out:
    return st;
}

hd_method_stage hd_model_stage_mixes(const hd_model_stage *stage)
{
    const int is_linear = stage->kind == HEDDLE_STAGE_LINEAR;
    hd_method_stage mixes = {.kind = stage->kind,
                             .dim = stage->mixed_dim,
                             .heads = stage->mixed_dim >= 0 ? stage->heads : 0,
                             .causal = stage->causal,
                             .decays = is_linear && stage->decay != 1,
                             .dims = stage->mixed_dims,
                             .kv_heads = stage->kv_heads,
                             .joined_rows = stage->joined_rows,
                             .methods = stage->methods};
    /* Early and late rows lie together when they are placed zigzag: then no window leaves rows out. */
    memcpy(mixes.window, stage->window, stage->zigzag ? 0 : sizeof mixes.window);
    return mixes;
}
