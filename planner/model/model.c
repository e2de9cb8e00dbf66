/* A model's life: what it says of itself, and other sizes. */
#include "planner/model/model.h"

#include "runtime/base/base.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void heddle_model_destroy(heddle_model *model)
{
    if (model != NULL) {
        HD_FREE_ALL(model->file, model->source, model->stage, model);
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
                              .nstages = model->nstages,
                              .nweights = model->nweights,
                              .guidance = model->guidance,
                              .steps = model->steps,
                              .cache_every = model->cache_every,
                              .passes = model->passes,
                              .patch_channels = model->patch_channels,
                              .final_channels = model->final_channels,
                              .serial_flops = model->serial_flops,
                              .weights_sharded = model->weights_sharded,
                              .serial_token_flops = model->serial_token_flops,
                              .source = model->source};
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
    made.mixed_dims = s->mixed_dims;
    made.kv_heads = (int)s->kv_heads;
    made.zigzag = s->zigzag;
    made.joined_rows = s->joined_rows;
    memcpy(made.window, s->window, sizeof made.window);
    made.in_channels = s->in_channels;
    made.channels = s->channels;
    made.nweights = s->nweights;
    made.refusal = hd_model_stage_refusal(model, stage);
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
    if (value > HD_EXTENT_MAX) {
        return hd_fail(HEDDLE_ERR_ARG, "dim '%s' is at most %lld long, asked for %lld", name, (long long)HD_EXTENT_MAX,
                       value);
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
