/* Model files: what they express, what is refused and where the sentence points. */
#include "case.h"
#include "no_folder.h"

#include <heddle/planner.h>
#include <stdio.h>
#include <stdlib.h>
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

static heddle_status parse(heddle_model **out, const char *text)
{
    return heddle_model_parse(out, text, strlen(text), "m.yaml");
}

static void reads_everything(void **state)
{
    (void)state;
    heddle_model *model = NULL;
    heddle_model_info info = {.struct_bytes = sizeof info};
    heddle_stage_info s = {.struct_bytes = sizeof s};
    HD_OK(parse(&model, GOOD));
    HD_OK(heddle_model_get_info(&info, model));
    assert_string_equal(info.name, "small");
    char shape[256];
    HD_OK(heddle_shape_format(shape, sizeof shape, &info.shape));
    assert_string_equal(shape, "f32[b=2 t=6 s=10 c=24]");
    assert_int_equal(info.batch_dim, 0);
    assert_int_equal(info.channel_dim, 3);
    assert_int_equal(info.text_tokens, 7);
    assert_int_equal(info.patch[0] * info.patch[1] * info.patch[2], 1);
    assert_int_equal(info.repeat, 3);
    assert_int_equal(info.nstages, 5);
    HD_OK(heddle_model_stage(&s, model, 0));
    assert_string_equal(s.name, "s.attn");
    assert_int_equal(s.kind, HEDDLE_STAGE_ATTENTION);
    assert_int_equal(s.mixed_dim, 2);
    assert_int_equal(s.heads, 4);
    assert_true(s.modulate && s.qk_norm && !s.rope);
    HD_OK(heddle_model_stage(&s, model, 1));
    assert_int_equal(s.kind, HEDDLE_STAGE_CROSS);
    assert_int_equal(s.mixed_dim, -1);
    assert_int_equal(s.heads, 2);
    HD_OK(heddle_model_stage(&s, model, 2));
    assert_int_equal(s.mixed_dim, 1);
    assert_true(s.rope && !s.modulate && !s.qk_norm);
    HD_OK(heddle_model_stage(&s, model, 3));
    assert_int_equal(s.mlp_channels, 60);
    HD_OK(heddle_model_stage(&s, model, 4));
    assert_int_equal(s.mlp_channels, 100);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_model_stage(&s, model, 5));
    heddle_model_destroy(model);
}

static void reads_linear_attention(void **state)
{
    (void)state;
    static const struct {
        const char *fields;
        int causal, rope, modulate;
        double decay;
    } known[] = {{"", 0, 0, 0, 1},
                 {", causal: true, decay: 0.99", 1, 0, 0, 0.99},
                 {", causal: false, decay: slopes, modulate: true", 0, 0, 1, 0},
                 {", decay: 1, rope: true", 0, 1, 0, 1},
                 {", decay: 0.5000", 0, 0, 0, 0.5},
                 {", decay: 1.0", 0, 0, 0, 1}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char text[1024];
        heddle_model *model = NULL;
        heddle_stage_info s = {.struct_bytes = sizeof s};
        snprintf(text, sizeof text,
                 HEAD DIMS TENSORS "stages: [{name: l, kind: linear-attention, over: t, heads: n%s}]\n",
                 known[i].fields);
        HD_OK(parse(&model, text));
        HD_OK(heddle_model_stage(&s, model, 0));
        assert_int_equal(s.kind, HEDDLE_STAGE_LINEAR);
        assert_int_equal(s.mixed_dim, 1);
        assert_int_equal(s.heads, 4);
        assert_int_equal(s.causal, known[i].causal);
        assert_int_equal(s.rope, known[i].rope);
        assert_int_equal(s.modulate, known[i].modulate);
        assert_true(s.decay == known[i].decay);
        heddle_model_destroy(model);
    }
}

static void resizes(void **state)
{
    (void)state;
    heddle_model *model = NULL;
    heddle_model_info info = {.struct_bytes = sizeof info};
    HD_OK(parse(&model, GOOD));
    HD_OK(heddle_model_resize(model, "t=7,s=1", 2));
    HD_OK(heddle_model_resize(model, "l=9", 0));
    HD_OK(heddle_model_resize(model, NULL, 0));
    HD_OK(heddle_model_get_info(&info, model));
    assert_int_equal(info.shape.dim[1].extent, 7);
    assert_int_equal(info.shape.dim[2].extent, 1);
    assert_int_equal(info.repeat, 2);
    assert_int_equal(info.text_tokens, 9);
    static const char *const bad[] = {"q=3",  "t",    "t=",      "t=0",      "t=-4",
                                      "t=4,", "t=4x", "t=4,t=5", "=4",       "t=99999999999999999999",
                                      "n=5",  "c=26", ",t=4",    "t=4,,s=5", "s=9000000000000000,t=9000000000000000"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        HD_FAILS(HEDDLE_ERR_ARG, heddle_model_resize(model, bad[i], 0));
        assert_true(strlen(heddle_last_error()) > 10);
    }
    HD_FAILS(HEDDLE_ERR_ARG, heddle_model_resize(model, "q=3", 0));
    assert_non_null(strstr(heddle_last_error(), "t=7"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_model_resize(model, NULL, -1));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_model_resize(model, NULL, 60000));
    /* A refused resize changes nothing. */
    HD_OK(heddle_model_get_info(&info, model));
    assert_int_equal(info.shape.dim[1].extent, 7);
    assert_int_equal(info.shape.dim[3].extent, 24);
    assert_int_equal(info.repeat, 2);
    heddle_model_destroy(model);
}

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
    {STAGE("name: a, kind: attention, over: s, heads: 2, causal: true"), "takes no 'causal'"},
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
};

static void refuses_bad_files(void **state)
{
    (void)state;
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
static void survives_truncation_and_damage(void **state)
{
    (void)state;
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

static void refuses_huge_and_missing_files(void **state)
{
    (void)state;
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
}

typedef struct preset {
    const char *file, *shape;
    int repeat, nstages, heads, text_tokens;
} preset;

static void presets_load(void **state)
{
    (void)state;
    static const preset presets[] = {
        {"stdit3-xl2", "bf16[b=1 t=15 s=405 c=1152]", 28, 6, 16, 300},
        {"stdit3-240p-51f", "bf16[b=1 t=15 s=405 c=1152]", 28, 6, 16, 300},
        {"stdit3-480p-102f", "bf16[b=1 t=30 s=1590 c=1152]", 28, 6, 16, 300},
        {"stdit3-720p-204f", "bf16[b=1 t=60 s=3600 c=1152]", 28, 6, 16, 300},
        {"stdit3-3b", "bf16[b=1 t=60 s=3600 c=1872]", 28, 6, 26, 300},
        {"latte-xl2", "bf16[b=1 t=16 s=1024 c=1152]", 14, 4, 16, 0},
        {"timesformer-base", "bf16[b=1 t=8 s=196 c=768]", 12, 3, 12, 0},
        {"axial-3d", "bf16[b=1 t=16 h=32 w=32 c=512]", 28, 4, 8, 0},
        {"full-3d", "bf16[b=1 s=16384 c=1152]", 28, 3, 16, 120},
        {"hybrid-linear", "bf16[b=1 t=2048 s=256 c=1024]", 24, 4, 16, 0},
    };
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++) {
        char path[1024];
        char shape[256];
        heddle_model *model = NULL;
        heddle_model_info info = {.struct_bytes = sizeof info};
        heddle_stage_info stage = {.struct_bytes = sizeof stage};
        snprintf(path, sizeof path, HEDDLE_SOURCE "/examples/models/%s.yaml", presets[i].file);
        HD_OK(heddle_model_load(&model, path));
        HD_OK(heddle_model_get_info(&info, model));
        HD_OK(heddle_shape_format(shape, sizeof shape, &info.shape));
        assert_string_equal(shape, presets[i].shape);
        assert_string_equal(info.name, presets[i].file);
        assert_int_equal(info.repeat, presets[i].repeat);
        assert_int_equal(info.nstages, presets[i].nstages);
        assert_int_equal(info.text_tokens, presets[i].text_tokens);
        HD_OK(heddle_model_stage(&stage, model, 0));
        assert_int_equal(stage.heads, presets[i].heads);
        heddle_model_destroy(model);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(reads_everything),
        cmocka_unit_test(reads_linear_attention),
        cmocka_unit_test(resizes),
        cmocka_unit_test(refuses_bad_files),
        cmocka_unit_test(survives_truncation_and_damage),
        cmocka_unit_test(refuses_huge_and_missing_files),
        cmocka_unit_test(presets_load),
    };
    return HD_RUN_CASES(cases, argc, argv);
}
