/* A model file in parts, so that each can be another one. */
#ifndef MODEL_TEXT_H
#define MODEL_TEXT_H

#include <heddle/planner.h>
#include <string.h>

#define HEAD                                                                                                           \
    "model: small\n"                                                                                                   \
    "dtype: f32\n"
#define DIMS                                                                                                           \
    "dims:\n"                                                                                                          \
    "  b: {size: 2, role: batch}\n"                                                                                    \
    "  t: 6\n"                                                                                                         \
    "  s: 10\n"                                                                                                        \
    "  c: {size: 24, role: channel}\n"                                                                                 \
    "  n: {size: 4, role: heads}\n"                                                                                    \
    "  l: {size: 7, role: text}\n"
#define TENSORS "tensors: {x: [b, t, s, c], y: {dims: [b, l, c], const: true}}\n"
#define STAGES                                                                                                         \
    "repeat: 3\n"                                                                                                      \
    "stages:\n"                                                                                                        \
    "  - {name: s.attn, kind: attention, over: s, heads: n, modulate: true, qk_norm: true}\n"                          \
    "  - {name: x, kind: cross, reads: y, heads: 2}\n"                                                                 \
    "  - {name: t.attn, kind: attention, in: x, over: t, heads: 3, rope: true}\n"                                      \
    "  - {name: mlp, kind: mlp, ratio: 2.5, modulate: true}\n"                                                         \
    "  - {name: mlp2, kind: mlp, width: 100}\n"
#define GOOD HEAD DIMS TENSORS STAGES

static inline heddle_status parse(heddle_model **out, const char *text)
{
    return heddle_model_parse(out, text, strlen(text), "m.yaml");
}

#endif
