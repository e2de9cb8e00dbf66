/* Model files: what is refused and where the sentence points. */
#include "case.h"
#include "model_text.h"
#include "no_folder.h"

#include <stdlib.h>
#include <string.h>

typedef struct bad_case {
    const char *text, *sentence; /* a part of the sentence, with its position where that is the point */
} bad_case;

#define STAGE(fields) HEAD DIMS TENSORS "stages: [{" fields "}]\n"
#define DIM(fields) HEAD "dims: {" fields "}\n" TENSORS STAGES
#define TENSOR(fields) HEAD DIMS "tensors: {" fields "}\n" STAGES

static const bad_case bad_cases[] = {
    {"", "empty"},
    {"# only a comment\n", "empty"},
    {"just a word", "must be a map"},
    {"[1, 2]", "must be a map"},
    {"model: [", "m.yaml:"},
    {"model: small\nmodel: again\n", "m.yaml:2:1: duplicate key 'model', first on line 1"},
    {GOOD "extra: 1\n", "m.yaml:18:1: unknown key 'extra'"},
    {"modle: small\n", "m.yaml:1:1: unknown key 'modle' in the model; did you mean 'model'?"},
    {"model: small\n", "has no 'dtype'"},
    {"model: \"\"\ndtype: f32\n" DIMS TENSORS STAGES, "m.yaml:1:8"},
    {"model: small\ndtype: bf61\n" DIMS TENSORS STAGES, "m.yaml:2:8: unknown value 'bf61' in 'dtype'; did you mean"},
    {"a: &x 1\nb: *x\n", "anchors"},
    {"a: *x\n", "aliases"},
    {"a: &a [*a]\n", "anchors"},
    {"a: !!int 3\n", "tags"},
    {"%TAG ! tag:x,2000:\n---\na: 1\n", "tag directives"},
    {GOOD "---\nmodel: two\n", "second document"},
    {"{a: 1, [b]: 2}", "a key must be a plain word"},
    {"? {a: b}\n: 2\n", "a key must be a plain word"},
    {"a: \"x\\0y\"\n", "zero byte"},
    {"a: [[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]\n", "levels deep"},
    {"model: small\n\tdtype: f32\n", "m.yaml:2"},
    {"\xff\xfe"
     "a",
     "not a text file"},
    {"model: s\x01", "not a text file"},
    /* dims */
    {HEAD "dims: 3\n" TENSORS STAGES, "'dims' must be a map"},
    {HEAD "dims: {}\n" TENSORS STAGES, "'dims' must be a map"},
    {DIM("B: 3"), "lower-case"},
    {DIM("a_very_long_name_of_a_dim: 3"), "lower-case"},
    {DIM("t: -3"), "from 1 to"},
    {DIM("t: 0"), "from 1 to"},
    {DIM("t: 99999999999999999999"), "from 1 to 281474976710656, found 99999999999999999999"},
    {DIM("t: 281474976710657"), "from 1 to"},
    {DIM("t: 1.5"), "whole number"},
    {DIM("t: 0x10"), "whole number"},
    {DIM("t: 010"), "whole number, found '010'"}, /* eight in YAML, ten elsewhere */
    {DIM("t: -0016"), "whole number"},
    {DIM("t: +16"), "whole number"},
    {DIM("t: 1_000"), "whole number"},
    {DIM("t: 1e3"), "whole number"},
    {DIM("t: \"16\""), "whole number"},
    {DIM("t: many"), "whole number, found 'many'"},
    {DIM("t: [1]"), "whole number, found a list"},
    {DIM("t: {size: 3, role: sequence}"), "unknown value 'sequence'"},
    {DIM("t: {siez: 3}"), "did you mean 'size'?"},
    {DIM("t: {role: seq}"), "has no 'size'"},
    {DIM("a: 1, b: 1, d: 1, e: 1, f: 1, g: 1, h: 1, i: 1, j: 1, k: 1, l: 1, m: 1, n: 1"), "1 to 12 dims"},
    {HEAD "dims: {b: {size: 281474976710656, role: batch}, t: 281474976710656, s: 10, c: {size: 24, role: channel}, "
          "n: {size: 4, role: heads}, l: {size: 7, role: text}}\n" TENSORS STAGES,
     "the activation tensor"},
    /* tensors */
    {TENSOR("x: [b, t, s, q]"), "unknown value 'q' in 'x'"},
    {TENSOR("x: [b, t, t, c]"), "appears twice"},
    {TENSOR("x: [b, t, s]"), "is seq"},
    {TENSOR("x: [b, c, t, s]"), "in place 2 is channel"},
    {TENSOR("x: [t, b, s, c]"), "in place 2 is batch"},
    {TENSOR("x: [b, n, c]"), "is heads"},
    {TENSOR("x: [b, c]"), "no sequence dim"},
    {TENSOR("x: []"), "must have 1 to 8 entries"},
    {TENSOR("x: 3"), "must be a list"},
    {TENSOR("y: {dims: [b, l, c], const: true}"), "no activation tensor"},
    {TENSOR("x: [b, t, s, c], z: [b, t, c]"), "second activation tensor 'z' besides 'x'"},
    {TENSOR("x: [b, t, s, c], y: {dims: [b, l, c], const: true}, z: {dims: [b, l, c], const: true}"),
     "a second constant tensor 'z' besides 'y': one is supported"},
    {TENSOR("x: [b, t, s, c], y: {dims: [b, c], const: true}"), "role text"},
    {TENSOR("x: [b, t, s, c], y: {dims: [b, t, c], const: true}"), "is seq"},
    {TENSOR("x: [b, t, s, c], y: {dims: [b, l, c], const: yes}"), "true or false, found 'yes'"},
    {TENSOR("x: [b, t, s, c]"), "no such tensor"},
    /* patch, repeat */
    {HEAD DIMS TENSORS "patch: [1, 2]\n" STAGES, "3 to 3 entries, found 2"},
    {HEAD DIMS TENSORS "patch: [1, 2, 0]\n" STAGES, "from 1 to 64"},
    {HEAD DIMS TENSORS "repeat: 0\nstages: [{name: a, kind: mlp, ratio: 4}]\n", "from 1 to"},
    {HEAD DIMS TENSORS "repeat: 60000\nstages: [{name: a, kind: mlp, ratio: 4}, {name: b, kind: mlp, ratio: 4}]\n",
     "at most 65536"},
    /* stages */
    {HEAD DIMS TENSORS "stages: []\n", "1 to 256 entries"},
    {HEAD DIMS TENSORS "stages: [3]\n", "stage 1 must be a map"},
    {STAGE("name: a, kind: attn, over: s, heads: 2"), "unknown value 'attn' in 'kind'; known: attention"},
    {STAGE("name: a, kind: mlpp"), "did you mean 'mlp'?"},
    {STAGE("name: a, kind: attention, over: q, heads: 2"), "unknown value 'q' in 'over'"},
    {STAGE("name: a, kind: attention, over: b, heads: 2"), "'b' is batch"},
    {STAGE("name: a, kind: attention, over: c, heads: 2"), "'c' is channel"},
    {STAGE("name: a, kind: attention, over: s, heads: 5"), "5 heads do not divide 24 channels"},
    {STAGE("name: a, kind: attention, over: s, heads: 0"), "from 1 to"},
    {STAGE("name: a, kind: attention, over: s, heads: 8, rope: true"), "even head width"},
    {STAGE("name: a, kind: attention, over: s, heads: t"), "whose role is seq"},
    {STAGE("name: a, kind: attention, over: s"), "has no 'heads'"},
    {STAGE("name: a, kind: mlp, ratio: 4, causal: true"), "takes no 'causal'"},
    {STAGE("name: a, kind: linear-attention, heads: 2"), "has no 'over'"},
    {STAGE("name: a, kind: linear-attention, over: s, heads: 2, qk_norm: true"), "takes no 'qk_norm'"},
    {STAGE("name: a, kind: linear-attention, over: s, heads: 5"), "5 heads do not divide 24 channels"},
    {STAGE("name: a, kind: linear-attention, over: s, heads: 8, rope: true"), "even head width"},
    {STAGE("name: a, kind: linear-attention, over: s, heads: 2, causal: 1"), "true or false"},
    {STAGE("name: a, kind: linear-attention, over: s, heads: 2, decay: 0"), "above 0 and at most 1"},
    {STAGE("name: a, kind: linear-attention, over: s, heads: 2, decay: 1.01"), "above 0 and at most 1"},
    {STAGE("name: a, kind: linear-attention, over: s, heads: 2, decay: -0.5"), "above 0 and at most 1"},
    {STAGE("name: a, kind: linear-attention, over: s, heads: 2, decay: .5"), "found '.5'"},
    {STAGE("name: a, kind: linear-attention, over: s, heads: 2, decay: 00.5"), "found '00.5'"},
    {STAGE("name: a, kind: mlp, ratio: 04"), "found '04'"},
    {STAGE("name: a, kind: linear-attention, over: s, heads: 2, decay: 0."), "found '0.'"},
    {STAGE("name: a, kind: linear-attention, over: s, heads: 2, decay: 1e-3"), "found '1e-3'"},
    {STAGE("name: a, kind: linear-attention, over: s, heads: 2, decay: nan"), "found 'nan'"},
    {STAGE("name: a, kind: linear-attention, over: s, heads: 2, decay: \"0.5\""), "found '0.5'"},
    {STAGE("name: a, kind: linear-attention, over: s, heads: 2, decay: 0.0000000000000000000001"), "above 0"},
    {STAGE("name: a, kind: attention, heads: 2"), "has no 'over'"},
    {STAGE("name: a, kind: attention, over: s, heads: 2, ratio: 4"), "takes no 'ratio'"},
    {STAGE("name: a, kind: cross, heads: 2"), "has no 'reads'"},
    {STAGE("name: a, kind: cross, heads: 2, reads: x"), "unknown value 'x' in 'reads'"},
    {STAGE("name: a, kind: mlp"), "either 'width' or 'ratio'"},
    {STAGE("name: a, kind: mlp, width: 3, ratio: 4"), "either 'width' or 'ratio'"},
    {STAGE("name: a, kind: mlp, ratio: -1"), "'ratio' must be"},
    {STAGE("name: a, kind: mlp, ratio: 0"), "'ratio' must be"},
    {STAGE("name: a, kind: mlp, ratio: 1e3"), "'ratio' must be"},
    {STAGE("name: a, kind: mlp, ratio: 2."), "'ratio' must be"},
    {STAGE("name: a, kind: mlp, ratio: 1.2345678"), "'ratio' must be"},
    {STAGE("name: a, kind: mlp, ratio: 2.01"), "not a whole width"},
    {STAGE("name: a, kind: mlp, width: -1"), "from 1 to"},
    {STAGE("name: a, kind: mlp, ratio: 4, modulate: 1"), "true or false"},
    {STAGE("name: a, kind: mlp, ratio: 4, in: z"), "unknown value 'z' in 'in'"},
    {STAGE("kind: mlp, ratio: 4"), "has no 'name'"},
    {STAGE("name: 'a b', kind: mlp, ratio: 4"), "'name' must be 1 to 63 letters"},
    {STAGE("name: end, kind: mlp, ratio: 4"), "'end' is taken"},
    {STAGE("name: a, kind: mlp, ratio: 4}, {name: a, kind: mlp, ratio: 4"), "taken by stage 1"},
    /* what is planned alone */
    {STAGE("name: a, kind: attention, over: [s, q], heads: 2"), "m.yaml:11:47: unknown value 'q' in 'over'"},
    {STAGE("name: a, kind: attention, over: [s, t, s], heads: 2"), "m.yaml:11:50: dim 's' appears twice in 'over'"},
    {STAGE("name: a, kind: attention, over: [], heads: 2"), "1 to 8 entries, found 0"},
    {STAGE("name: a, kind: attention, over: [t, b], heads: 2"), "'b' is batch"},
    {STAGE("name: a, kind: attention, over: [[t]], heads: 2"), "m.yaml:11:44: 'over' must be a word"},
    {STAGE("name: a, kind: attention, over: t, heads: 4, kv_heads: 3"), "3 heads of keys do not divide 4 heads"},
    {STAGE("name: a, kind: attention, over: t, heads: 4, kv_heads: 8"), "8 heads of keys do not divide 4 heads"},
    {STAGE("name: a, kind: attention, over: t, heads: 4, kv_heads: 0"), "from 1 to 65536"},
    {STAGE("name: a, kind: cross, reads: y, heads: 4, kv_heads: 2"), "takes no 'kv_heads'"},
    {STAGE("name: a, kind: attention, over: t, heads: 4, window: -1"), "from 0 to"},
    {STAGE("name: a, kind: attention, over: t, heads: 4, window: [1, 2]"), "1 to 1 entries, found 2"},
    {STAGE("name: a, kind: attention, over: [t, s], heads: 4, window: 1"), "'window' must be a list"},
    {STAGE("name: a, kind: attention, over: [t, s], heads: 4, window: [1]"), "2 to 2 entries, found 1"},
    {STAGE("name: a, kind: module, token_flops: 1, window: 1"), "'a' has 'window', which needs 'over'"},
    {STAGE("name: a, kind: attention, over: t, heads: 4, placement: zigzag"), "which needs 'causal'"},
    {STAGE("name: a, kind: attention, over: t, heads: 4, causal: false, placement: zigzag"), "'causal' is not true"},
    {STAGE("name: a, kind: attention, over: t, heads: 4, causal: true, placement: stripes"),
     "known: contiguous, zigzag"},
    {STAGE("name: a, kind: attention, over: [t, s], heads: 4, causal: true"), "along one dim, 'over' has 2"},
    {STAGE("name: a, kind: attention, over: t, heads: 4, joins: x"), "unknown value 'x' in 'joins'"},
    {HEAD DIMS "tensors: {x: [b, t, s, c]}\nstages: [{name: a, kind: attention, over: t, heads: 4, joins: y}]\n",
     "'joins': 'tensors' has no such tensor"},
    {STAGE("name: a, kind: attention, over: t, heads: 4, channels: 48"), "takes no 'channels'"},
    {HEAD DIMS TENSORS "repeat: 2\nstages: [{name: a, kind: mlp, ratio: 4, channels: 48}]\n",
     "stage 'a' leaves 48 channels, and the stages are run again from 24"},
    {STAGE("name: a, kind: mlp, ratio: 4, channels: 20}, {name: b, kind: attention, over: t, heads: 8"),
     "8 heads do not divide 20 channels"},
    {STAGE("name: a, kind: module"), "has no 'token_flops'"},
    {STAGE("name: a, kind: module, token_flops: 0"), "from 1 to"},
    {STAGE("name: a, kind: module, token_flops: 1, ratio: 4"), "takes no 'ratio'"},
    {STAGE("name: a, kind: module, token_flops: 1, methods: [ring]"), "'a' has 'methods', which needs 'over'"},
    {STAGE("name: a, kind: module, over: t, token_flops: 1, methods: [rings]"), "did you mean 'ring'?"},
    {STAGE("name: a, kind: module, over: t, token_flops: 1, methods: ring"), "'methods' must be a list"},
    {STAGE("name: a, kind: module, over: t, token_flops: 1, methods: [ulysses]"), "deals out heads"},
    {STAGE("name: a, kind: module, token_flops: 9223372036854775807"), "token_flops 9223372036854775807 of 120 tokens"},
    {STAGE("name: a, kind: module, token_flops: 1, token_bytes: 99999999999999999"), "token_bytes 99999999999999999"},
    {STAGE("name: a, kind: module, token_flops: 9223372036854775808"), "from 1 to"},
    {STAGE("name: a, kind: mlp, width: 281474976710656, channels: 281474976710656"), "more than 9223372036854775807"},
    {HEAD DIMS TENSORS "guidance: 0\n" STAGES, "from 1 to 16"},
    {HEAD DIMS TENSORS "guidance: [2]\n" STAGES, "whole number, found a list"},
    {HEAD DIMS TENSORS "steps: -1\n" STAGES, "from 1 to"},
    {HEAD DIMS TENSORS "cache: 2\n" STAGES, "cache must be a map"},
    {HEAD DIMS TENSORS "cache: {each: 2}\n" STAGES, "unknown key 'each'"},
    {HEAD DIMS TENSORS "cache: {every: 0}\n" STAGES, "from 1 to"},
    {HEAD DIMS TENSORS "final: 32\n" STAGES, "final must be a map"},
    {HEAD DIMS TENSORS "final: {channel: 32}\n" STAGES, "did you mean 'channels'?"},
    {HEAD DIMS TENSORS "patch_channels: 0\n" STAGES, "from 1 to"},
    {HEAD DIMS TENSORS "serial_flops: 1e12\n" STAGES, "m.yaml:11:15: 'serial_flops' must be a whole number"},
    {HEAD DIMS TENSORS "serial_token_flops: 0\n" STAGES, "m.yaml:11:21: 'serial_token_flops' must be from 1 to"},
    {HEAD DIMS TENSORS "serial_token_flops: 9223372036854775808\n" STAGES, "from 1 to 9223372036854775807"},
    {HEAD DIMS TENSORS "serial_tokens_flops: 1\n" STAGES, "did you mean 'serial_token_flops'?"},
    {HEAD DIMS TENSORS "weights: split\n" STAGES, "known: replicated, sharded"},
    {HEAD DIMS TENSORS "source: ''\n" STAGES, "1 to 511 bytes, found 0"},
};

HD_CASE(refuses_bad_files)
{
    int wrong = 0;
    for (size_t i = 0; i < sizeof bad_cases / sizeof bad_cases[0]; i++) {
        heddle_model *model = NULL;
        heddle_status st = parse(&model, bad_cases[i].text);
        if (st != HEDDLE_ERR_PARSE && st != HEDDLE_ERR_LAYOUT) {
            print_error("case %zu ('%s'): %s\n", i, bad_cases[i].sentence, heddle_status_name(st));
            wrong++;
            continue;
        }
        assert_null(model);
        if (strstr(heddle_last_error(), bad_cases[i].sentence) == NULL ||
            strncmp(heddle_last_error(), "m.yaml:", 7) != 0) {
            print_error("case %zu: '%s' is not in '%s'\n", i, bad_cases[i].sentence, heddle_last_error());
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}

/* Every prefix of a good file is refused without a crash, and so is every file with one byte changed or it is read. */
HD_CASE(survives_truncation_and_damage)
{
    size_t bytes = strlen(GOOD);
    char copy[sizeof GOOD];
    for (size_t n = 0; n < bytes; n++) {
        heddle_model *model = NULL;
        if (heddle_model_parse(&model, GOOD, n, "m.yaml") == HEDDLE_OK) {
            heddle_model_destroy(model);
        }
        static const char damage[] = {'\0', '\n', '[', '{', '"', '9', '-', '\xff'};
        for (size_t k = 0; k < sizeof damage; k++) {
            memcpy(copy, GOOD, sizeof copy);
            copy[n] = damage[k];
            model = NULL;
            if (heddle_model_parse(&model, copy, bytes, "m.yaml") == HEDDLE_OK) {
                heddle_model_destroy(model);
            }
        }
    }
}

HD_CASE(refuses_huge_and_missing_files)
{
    heddle_model *model = NULL;
    size_t bytes = (size_t)1 << 21;
    char *text = malloc(bytes);
    assert_non_null(text);
    memset(text, ' ', bytes);
    HD_FAILS(HEDDLE_ERR_PARSE, heddle_model_parse(&model, text, bytes, "m.yaml"));
    assert_non_null(strstr(heddle_last_error(), "2097152"));
    assert_non_null(strstr(heddle_last_error(), "1048576"));
    memset(text, '[', (size_t)1 << 20);
    HD_FAILS(HEDDLE_ERR_PARSE, heddle_model_parse(&model, text, (size_t)1 << 20, "m.yaml"));
    for (size_t i = 0; i < (size_t)1 << 20; i += 2) {
        memcpy(text + i, "- ", 2);
    }
    HD_FAILS(HEDDLE_ERR_PARSE, heddle_model_parse(&model, text, (size_t)1 << 20, "m.yaml"));
    free(text);
    char none[128];
    hd_no_folder(none, "model.yaml");
    HD_FAILS(HEDDLE_ERR_IO, heddle_model_load(&model, none));
    assert_non_null(strstr(heddle_last_error(), none));
    hd_no_folder_end(none);
    HD_FAILS(HEDDLE_ERR_IO, heddle_model_load(&model, "/"));
    HD_FAILS(HEDDLE_ERR_PARSE, heddle_model_load(&model, "/dev/zero"));
    HD_FAILS(HEDDLE_ERR_PARSE, heddle_model_load(&model, "/dev/null"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_model_load(&model, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_model_parse(&model, NULL, 0, "m.yaml"));
    HD_FAILS(HEDDLE_ERR_PARSE, heddle_model_parse(&model, "", 0, "m.yaml"));
}
