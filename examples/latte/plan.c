/* What the planner is told, and what it says. */
#include "latte.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static heddle_status make_model(job *work)
{
    const config *cfg = &work->cfg;
    char text[2048];
    snprintf(text, sizeof(text),
             "model: latte\n"
             "dtype: f32\n"
             "dims: {b: {size: %" PRId64 ", role: batch}, t: %" PRId64 ", s: %" PRId64 ", c: {size: %" PRId64
             ", role: channel}, l: {size: %" PRId64 ", role: text}}\n"
             "tensors: {x: [b, t, s, c], text: {dims: [b, l, c], const: true}}\n"
             "repeat: %" PRId64 "\n"
             "stages:\n"
             "  - {name: s.attn, kind: attention, over: s, heads: %" PRId64 ", modulate: true}\n"
             "  - {name: s.cross, kind: cross, reads: text, heads: %" PRId64 "}\n"
             "  - {name: s.mlp, kind: mlp, ratio: 4, modulate: true}\n"
             "  - {name: t.attn, kind: attention, over: t, heads: %" PRId64 ", modulate: true}\n"
             "  - {name: t.mlp, kind: mlp, ratio: 4, modulate: true}\n",
             work->samples, work->in.latent.extent[2], work->rows_of_patches * work->columns_of_patches, cfg->channels,
             work->in.text.extent[1], cfg->layers, cfg->heads, cfg->heads, cfg->heads);
    return heddle_model_parse(&work->model, text, strlen(text), "the model of this example");
}

/* Tokens are made, and patches made of them, wherever that costs nothing: both ends are free. */
heddle_status plan_make(job *work)
{
    const options *opt = work->opt;
    heddle_plan_options want;
    work->samples = work->in.text.extent[0];
    work->rows_of_patches = work->in.latent.extent[3] / work->cfg.patch;
    work->columns_of_patches = work->in.latent.extent[4] / work->cfg.patch;
    heddle_plan_options_init(&want);
    want.epilogue = "any";
    want.methods = opt->methods;
    heddle_status st = make_model(work);
    return st ? st : heddle_plan(&work->schedule, work->model, &opt->mesh, &want);
}
