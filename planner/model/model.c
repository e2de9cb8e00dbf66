/* What follows from a model file's words: the activation's shape, heads and widths of the stages. Done again when a
 * size is overridden on the command line; then a complaint has no place in the file (with_marks 0). */
#include "planner/model/model.h"

#include "runtime/base/base.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MILLION = 1000000 };

static heddle_status complain(const heddle_model *m, int with_marks, hd_mark mark, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static heddle_status complain(const heddle_model *m, int with_marks, hd_mark mark, const char *format, ...)
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
        return complain(m, with_marks, m->activation_mark, "the activation tensor: %s", reason);
    }
    m->text_tokens = m->text_dim >= 0 ? m->dim[m->text_dim].extent : 0;
    return HEDDLE_OK;
}

static heddle_status derive_heads(const heddle_model *m, hd_model_stage *s, int with_marks)
{
    int64_t channels = m->shape.dim[m->channel_dim].extent;
    s->heads = s->heads_dim >= 0 ? m->dim[s->heads_dim].extent : s->heads_fixed;
    if (s->heads > HD_MODEL_MAX_HEADS) {
        return complain(m, with_marks, s->mark, "stage '%s' has %lld heads; at most %d are supported", s->name,
                        (long long)s->heads, HD_MODEL_MAX_HEADS);
    }
    if (channels % s->heads != 0) {
        return complain(m, with_marks, s->mark, "stage '%s': %lld heads do not divide %lld channels", s->name,
                        (long long)s->heads, (long long)channels);
    }
    if (s->rope && channels / s->heads % 2 != 0) {
        return complain(m, with_marks, s->mark, "stage '%s': rope needs an even head width, found %lld / %lld = %lld",
                        s->name, (long long)channels, (long long)s->heads, (long long)(channels / s->heads));
    }
    return HEDDLE_OK;
}

/* An MLP's width: given, or a ratio of the channels that must come out whole. */
static heddle_status derive_width(const heddle_model *m, hd_model_stage *s, int with_marks)
{
    int64_t channels = m->shape.dim[m->channel_dim].extent;
    s->mlp_channels = s->width;
    if (s->width != 0) {
        return HEDDLE_OK;
    }
    int64_t product = 0;
    if (__builtin_mul_overflow(channels, s->ratio_millionths, &product) || product % MILLION != 0) {
        return complain(m, with_marks, s->mark, "stage '%s': ratio %lld.%06lld of %lld channels is not a whole width",
                        s->name, (long long)(s->ratio_millionths / MILLION), (long long)(s->ratio_millionths % MILLION),
                        (long long)channels);
    }
    s->mlp_channels = product / MILLION;
    return HEDDLE_OK;
}

heddle_status hd_model_derive(heddle_model *model, int with_marks)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(derive_shape(model, with_marks));
    if ((int64_t)model->repeat * model->nstages > HD_MODEL_MAX_RUNS) {
        st = complain(model, with_marks, model->stage[0].mark, "%d stages repeated %d times are %lld; at most %d",
                      model->nstages, model->repeat, (long long)model->repeat * model->nstages, HD_MODEL_MAX_RUNS);
        goto out;
    }
    for (int i = 0; i < model->nstages; i++) {
        hd_model_stage *s = &model->stage[i];
        if (s->kind == HEDDLE_STAGE_MLP) {
            HD_TRY(derive_width(model, s, with_marks));
        } else {
            HD_TRY(derive_heads(model, s, with_marks));
        }
    }
out:
    return st;
}

void heddle_model_destroy(heddle_model *model)
{
    if (model != NULL) {
        HD_FREE_ALL(model->file, model->stage, model);
    }
}

heddle_status heddle_model_get_info(heddle_model_info *out, const heddle_model *model)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, model));
    heddle_model_info info = {.name = model->name,
                              .shape = model->shape,
                              .batch_dim = model->batch_dim,
                              .channel_dim = model->channel_dim,
                              .text_tokens = model->text_tokens,
                              .repeat = model->repeat,
                              .nstages = model->nstages};
    memcpy(info.patch, model->patch, sizeof info.patch);
    st = hd_struct_give(out, &info, HD_STRUCT(heddle_model_info, name));
out:
    return st;
}

heddle_status heddle_model_stage(heddle_stage_info *out, const heddle_model *model, int stage)
{
    heddle_status st;
    HD_TRY(HD_NEED(out, model));
    if (stage < 0 || stage >= model->nstages) {
        return hd_fail(HEDDLE_ERR_ARG, "stage %d of a model with %d stages", stage, model->nstages);
    }
    const hd_model_stage *s = &model->stage[stage];
    heddle_stage_info made = HEDDLE_EMPTY(heddle_stage_info);
    made.name = s->name;
    made.kind = s->kind;
    made.mixed_dim = s->mixed_dim;
    made.heads = (int)s->heads;
    made.mlp_channels = s->mlp_channels;
    made.modulate = s->modulate;
    made.rope = s->rope;
    made.qk_norm = s->qk_norm;
    made.causal = s->causal;
    made.decay = s->decay;
    st = hd_struct_give(out, &made, HD_STRUCT(heddle_stage_info, name));
out:
    return st;
}

static void known_dims(char *out, size_t out_bytes, const heddle_model *m)
{
    size_t n = 0;
    out[0] = '\0';
    for (int d = 0; d < m->ndims && n < out_bytes; d++) {
        n += (size_t)snprintf(out + n, out_bytes - n, "%s%s=%lld", d > 0 ? ", " : "", m->dim[d].name,
                              (long long)m->dim[d].extent);
    }
}

/* One "name=extent" of `text`, which ends at *end. */
static heddle_status take_size(heddle_model *m, const char *text, const char **end, unsigned *seen)
{
    char known[512];
    char name[HEDDLE_NAME_BYTES];
    size_t length = strcspn(text, "=,");
    if (length == 0 || length >= sizeof name || text[length] != '=') {
        return hd_fail(HEDDLE_ERR_ARG, "sizes must look like t=16,s=256, found '%.40s'", text);
    }
    memcpy(name, text, length);
    name[length] = '\0';
    int d = hd_model_dim_index(m, name);
    if (d < 0) {
        known_dims(known, sizeof known, m);
        return hd_fail(HEDDLE_ERR_ARG, "model '%s' has no dim '%s'; it has %s", m->name, name, known);
    }
    const char *digits = text + length + 1;
    char *stop = NULL;
    errno = 0;
    long long value = strtoll(digits, &stop, 10);
    if (*digits < '0' || *digits > '9' || (*stop != '\0' && *stop != ',') || errno != 0 || value < 1) {
        return hd_fail(HEDDLE_ERR_ARG, "dim '%s' needs a whole number of at least 1, found '%.40s'", name, digits);
    }
    if ((*seen & 1U << d) != 0) {
        return hd_fail(HEDDLE_ERR_ARG, "dim '%s' is given twice in the sizes", name);
    }
    *seen |= 1U << d;
    m->dim[d].extent = value;
    *end = stop;
    return HEDDLE_OK;
}

static heddle_status resize(heddle_model *m, const char *sizes, int repeat)
{
    heddle_status st = HEDDLE_OK;
    unsigned seen = 0;
    const char *p = sizes;
    while (p != NULL && *p != '\0') {
        HD_TRY(take_size(m, p, &p, &seen));
        if (*p == ',' && *++p == '\0') {
            st = hd_fail(HEDDLE_ERR_ARG, "sizes end with a comma: '%.40s'", sizes);
            goto out;
        }
    }
    if (repeat != 0) {
        m->repeat = repeat;
    }
    st = hd_model_derive(m, 0);
out:
    return st;
}

heddle_status heddle_model_resize(heddle_model *model, const char *sizes, int repeat)
{
    heddle_status st = HD_NEED(model);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (repeat < 0 || repeat > HD_MODEL_MAX_RUNS) {
        return hd_fail(HEDDLE_ERR_ARG, "a model is run 1 to %d times over, asked for %d", HD_MODEL_MAX_RUNS, repeat);
    }
    hd_model_dim dims[HD_MODEL_MAX_DIMS];
    int old_repeat = model->repeat;
    memcpy(dims, model->dim, sizeof dims);
    st = resize(model, sizes, repeat);
    if (st != HEDDLE_OK) {
        char reason[1024];
        snprintf(reason, sizeof reason, "%s", heddle_last_error());
        memcpy(model->dim, dims, sizeof dims);
        model->repeat = old_repeat;
        heddle_ignore(hd_model_derive(model, 0));
        return hd_fail(st, "%s", reason);
    }
    return HEDDLE_OK;
}
