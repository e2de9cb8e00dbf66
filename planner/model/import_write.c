/* The model file of what a config.json says. */
#include "planner/model/import.h"

#include <stdarg.h>
#include <stdio.h>

static void put(hd_import *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(hd_import *c, const char *format, ...)
{
    va_list arguments;
    if (c->used < c->out_bytes) {
        va_start(arguments, format);
        c->used += (size_t)vsnprintf(c->out + c->used, c->out_bytes - c->used, format, arguments);
        va_end(arguments);
    }
}

static int64_t fits(__int128 value)
{
    return value > INT64_MAX ? INT64_MAX : (int64_t)value; /* which no model has */
}

/* Parameters of attention and MLP of a layer, modulation counted half to each; 0: those of a block. */
static void count_weights(int64_t *attention, int64_t *mlp, const hd_import *c)
{
    const __int128 n = c->channels, d = c->layers, s = c->singles, t = c->narrow, time = c->time_channels;
    const __int128 modulation = time * 6 * n + 6 * n;
    const __int128 gated = 8 * n / 3, gated_text = 8 * t / 3;
    *attention = *mlp = 0;
    switch (c->of->text_is) {
    case HD_IMPORT_JOINED:
        *attention = fits((28 * d + 11 * s) * n * n / (2 * (d + s)));
        *mlp = fits((44 * d + 19 * s) * n * n / (2 * (d + s)));
        break;
    case HD_IMPORT_SHARED:
        *attention = fits(4 * n * n + 4 * n + 2 * (n / c->heads) + modulation);
        *mlp = fits(8 * n * n + 5 * n + modulation);
        break;
    case HD_IMPORT_NARROWER:
        *attention = fits(4 * n * n + 4 * n * t + (4 * n * n + 4 * n * t) / 2);
        *mlp = fits(3 * n * gated + 3 * t * gated_text + (4 * n * n + 4 * n * t) / 2);
        break;
    case HD_IMPORT_CROSS:
    case HD_IMPORT_DIVIDED:
        break;
    }
}

static void put_attention(hd_import *c, const char *name, const char *over, int64_t weights)
{
    put(c, "  - {name: %s, kind: attention, over: %s%s, heads: heads, modulate: true%s%s", name, over,
        c->of->text_is < HD_IMPORT_CROSS ? ", joins: text" : "", c->qk_norm ? ", qk_norm: true" : "",
        c->rope ? ", rope: true" : "");
    put(c, weights > 0 ? ",\n     weights: %lld}\n" : "}\n", (long long)weights);
}

static void put_mlp(hd_import *c, const char *name, int64_t weights)
{
    const int64_t ratio = c->ratio_millionths;
    put(c, "  - {name: %s, kind: mlp%s, ", name, c->of->text_is < HD_IMPORT_CROSS ? ", joins: text" : "");
    put(c,
        c->ffn > 0             ? "width: %lld"
        : ratio % 1000000 == 0 ? "ratio: %lld"
                               : "ratio: %lld.%06lld",
        (long long)(c->ffn > 0 ? c->ffn : ratio / 1000000), (long long)(ratio % 1000000));
    put(c, ", modulate: true");
    put(c, weights > 0 ? ", weights: %lld}\n" : "}\n", (long long)weights);
}

static void put_stages(hd_import *c)
{
    int64_t attention = 0, mlp = 0;
    count_weights(&attention, &mlp, c);
    put(c, "repeat: %lld\nstages:\n", (long long)((c->layers + c->singles) / c->interval));
    if (c->of->text_is == HD_IMPORT_DIVIDED) {
        put_attention(c, "s.attn", "s", 0);
        put(c, "  - {name: s.cross, kind: cross, reads: text, heads: heads}\n");
        put_mlp(c, "s.mlp", 0);
        put_attention(c, "t.attn", "t", 0);
        put_mlp(c, "t.mlp", 0);
        return;
    }
    for (int64_t i = 0; i < c->interval; i++) {
        char names[2][32] = {"attn", "mlp"};
        if (c->interval > 1) {
            snprintf(names[0], sizeof names[0], "attn%lld", (long long)i);
            snprintf(names[1], sizeof names[1], "mlp%lld", (long long)i);
        }
        put_attention(c, names[0], "s", attention);
        if (c->of->text_is == HD_IMPORT_CROSS) {
            put(c, "  - {name: cross, kind: cross, reads: text, heads: heads}\n");
        }
        put_mlp(c, names[1], mlp);
        if (c->interval > 1 && i == 0) { /* 32 tokens of the face, 2048 channels */
            put(c, "  - {name: face, kind: module, token_flops: %lld, weights: %lld, token_bytes: %lld}\n",
                (long long)(4 * c->channels * 2048 + 4 * 32 * 2048), (long long)(2 * c->channels * 2048 + 8388608),
                (long long)(2 * c->channels + 8192));
        }
    }
}

void hd_import_write(hd_import *c)
{
    const hd_import_class *k = c->of;
    const int64_t area = c->patch_t * c->patch * c->patch, packed = k->packs > 1;
    const int divided = k->text_is == HD_IMPORT_DIVIDED;
    const int64_t patch = packed ? k->packs : c->patch, unit = k->vae_pixels * patch;
    put(c, "# %lld x %lld pixels", (long long)(c->height * unit), (long long)(c->width * unit));
    if (k->vae_frames > 0) {
        put(c, ", %lld frames", (long long)(c->options.frames > 0 ? c->options.frames : k->frames));
    }
    put(c, ": %lld x %lld x %lld tokens.%s\n", (long long)c->frames, (long long)c->height, (long long)c->width,
        divided ? "" : " Attention is over all of them, so the dims are one.");
    put(c, "model: %s\nsource: \"diffusers %s, a config.json\"\ndtype: bf16\ndims:\n", k->model, k->name);
    put(c, "  b: {size: %d, role: batch}\n", c->guidance);
    if (divided) {
        put(c, "  t: {size: %lld, role: seq}\n", (long long)c->frames);
    }
    put(c, "  s: {size: %lld, role: seq}\n", (long long)((divided ? 1 : c->frames) * c->height * c->width));
    put(c, "  c: {size: %lld, role: channel}\n  heads: {size: %lld, role: heads}\n  l: {size: %lld, role: text}\n",
        (long long)c->channels, (long long)c->heads, (long long)c->text);
    put(c, "tensors:\n  x: [b, %ss, c]\n  text: {dims: [b, l, c], const: true}\n", divided ? "t, " : "");
    if (c->patch_t * patch > 1) {
        put(c, "patch: [%lld, %lld, %lld]\n", (long long)c->patch_t, (long long)patch, (long long)patch);
    }
    put(c, "patch_channels: %lld\n", (long long)(packed ? c->in_channels : c->in_channels * area));
    put(c, "final: {channels: %lld}\n",
        (long long)(packed && c->out_channels == c->in_channels ? c->in_channels
                    : packed                                    ? c->out_channels * k->packs * k->packs
                                                                : c->out_channels * area));
    if (c->guidance > 1) {
        put(c, "guidance: %d # b is its parts\n", c->guidance);
    }
    put(c, "steps: %d\n", k->steps);
    put(c, "serial_token_flops: %lld # the VAE's decoder; the text encoder is not counted\n",
        (long long)(k->decoder_flops * c->patch_t * patch * patch));
    put_stages(c);
}
