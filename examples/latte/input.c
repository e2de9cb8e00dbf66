/* What goes in: arrays from files, or seeded numbers in their place. */
#include "examples/common/random.h"
#include "latte.h"
#include "runtime/files/npy.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { STREAM_LATENT = 1, STREAM_TEXT = 2, STREAM_NEGATIVE = 3 };

static int64_t count_of(const floats *v)
{
    int64_t count = 1;
    for (int d = 0; d < v->ndim; d++) {
        count = count > MAX_VALUES ? count : count * v->extent[d];
    }
    return count;
}

/* extent is known; `what` names it. */
static heddle_status allocate(floats *out, const char *what)
{
    const int64_t count = count_of(out);
    if (count < 1 || count > MAX_VALUES) {
        return heddle_set_error(HEDDLE_ERR_ARG, "%s is empty, or has more than %d values", what, (int)MAX_VALUES);
    }
    out->at = malloc((size_t)count * sizeof(float));
    return out->at != NULL ? HEDDLE_OK : no_memory(what, count);
}

static heddle_status read_array(floats *out, const char *path, int ndim)
{
    npy_array array;
    heddle_status st = npy_read(&array, path);
    if (st != HEDDLE_OK) {
        return st;
    }
    out->ndim = array.ndim;
    memcpy(out->extent, array.extent, sizeof(out->extent));
    const char *type = array.type;
    if (array.ndim != ndim || (strcmp(type, "<f4") != 0 && strcmp(type, "<f8") != 0 && strcmp(type, "<f2") != 0)) {
        st = heddle_set_error(HEDDLE_ERR_ARG, "%s: %d dims of '%s'; %d of '<f2', '<f4' or '<f8' are wanted", path,
                              array.ndim, type, ndim);
    }
    st = st ? st : allocate(out, path);
    for (int64_t i = 0; st == HEDDLE_OK && i < count_of(out); i++) {
        out->at[i] = type[2] == '4'   ? ((const float *)array.data)[i]
                     : type[2] == '8' ? (float)((const double *)array.data)[i]
                                      : safetensors_half(((const uint16_t *)array.data)[i]);
    }
    npy_free(&array);
    return st;
}

static heddle_status draw(floats *out, const char *what, uint64_t seed, uint64_t stream)
{
    heddle_status st = allocate(out, what);
    for (int64_t i = 0; st == HEDDLE_OK && i < count_of(out); i++) {
        out->at[i] = (float)random_normal(seed, stream, (uint64_t)i);
    }
    return st;
}

static heddle_status check_latent(const floats *latent, const options *opt, const config *cfg)
{
    const int64_t *e = latent->extent;
    if (e[1] != cfg->in_channels || (e[2] != cfg->frames && e[2] != 1) || e[3] % cfg->patch != 0 ||
        e[4] % cfg->patch != 0) {
        return heddle_set_error(HEDDLE_ERR_ARG,
                                "%s is [%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64
                                "]; the model takes %" PRId64 " channels, %" PRId64
                                " frames or 1, and sides that are multiples of %" PRId64,
                                opt->latent != NULL ? opt->latent : "the latent", e[0], e[1], e[2], e[3], e[4],
                                cfg->in_channels, cfg->frames, cfg->patch);
    }
    return HEDDLE_OK;
}

static heddle_status read_latent(input *out, const options *opt, const config *cfg)
{
    heddle_status st = HEDDLE_OK;
    if (opt->latent != NULL) {
        st = read_array(&out->latent, opt->latent, 5);
    } else {
        const int64_t samples = out->text.ndim == 0 ? 1 : out->text.extent[0];
        const int64_t frames = opt->frames == 0 ? cfg->frames : opt->frames;
        out->latent = (floats){5, {samples, cfg->in_channels, frames, cfg->side, cfg->side}, NULL};
        st = check_latent(&out->latent, opt, cfg);
        st = st ? st : draw(&out->latent, "the latent", (uint64_t)opt->seed, STREAM_LATENT);
    }
    out->samples = out->latent.extent[0];
    return st ? st : check_latent(&out->latent, opt, cfg);
}

/* [b, tokens, caption channels] of a file, b and tokens as in `like`. */
static heddle_status check_text(const floats *text, const char *path, const config *cfg, int64_t samples,
                                int64_t tokens)
{
    const int64_t *e = text->extent;
    if (e[0] != samples || e[1] != tokens || e[2] != cfg->caption_channels) {
        return heddle_set_error(HEDDLE_ERR_ARG,
                                "%s is [%" PRId64 " %" PRId64 " %" PRId64 "], wanted are [%" PRId64 " %" PRId64
                                " %" PRId64 "]",
                                path, e[0], e[1], e[2], samples, tokens, cfg->caption_channels);
    }
    return HEDDLE_OK;
}

/* The text without the prompt comes first, as the samples of a pass with guidance do. */
static heddle_status prepend_negative(input *in, const options *opt, const config *cfg)
{
    floats negative = {0}, both = in->text;
    const int64_t count = count_of(&in->text);
    heddle_status st = HEDDLE_OK;
    if (opt->negative != NULL) {
        st = read_array(&negative, opt->negative, 3);
        st = st ? st : check_text(&negative, opt->negative, cfg, in->samples, in->text.extent[1]);
    } else {
        negative = (floats){3, {in->samples, in->text.extent[1], cfg->caption_channels}, NULL};
        st = draw(&negative, "the text without the prompt", (uint64_t)opt->seed, STREAM_NEGATIVE);
    }
    both.extent[0] = 2 * in->samples;
    st = st ? st : allocate(&both, "text with and without the prompt");
    if (st == HEDDLE_OK) {
        memcpy(both.at, negative.at, (size_t)count * sizeof(float));
        memcpy(both.at + count, in->text.at, (size_t)count * sizeof(float));
        free(in->text.at);
        in->text = both;
    }
    free(negative.at);
    return st;
}

heddle_status input_read(input *out, const options *opt, const config *cfg)
{
    memset(out, 0, sizeof(*out));
    heddle_status st = opt->text != NULL ? read_array(&out->text, opt->text, 3) : HEDDLE_OK;
    st = st ? st : read_latent(out, opt, cfg);
    if (st == HEDDLE_OK && opt->text == NULL) {
        out->text = (floats){3, {out->samples, opt->text_tokens, cfg->caption_channels}, NULL};
        st = draw(&out->text, "the text", (uint64_t)opt->seed, STREAM_TEXT);
    } else if (st == HEDDLE_OK) {
        st = check_text(&out->text, opt->text, cfg, out->samples, out->text.extent[1]);
    }
    return st != HEDDLE_OK || opt->guidance == 0 ? st : prepend_negative(out, opt, cfg);
}

void input_free(input *in)
{
    free(in->latent.at);
    free(in->text.at);
    memset(in, 0, sizeof(*in));
}
