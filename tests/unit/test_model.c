/* Model files: what they express. */
#include "case.h"
#include "model_text.h"

#include <heddle/planner.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

HD_CASE(reads_everything)
{
    heddle_model *model = NULL;
    heddle_model_info info = HEDDLE_EMPTY(heddle_model_info);
    heddle_stage_info s = HEDDLE_EMPTY(heddle_stage_info);
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

HD_CASE(reads_linear_attention)
{
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
        heddle_stage_info s = HEDDLE_EMPTY(heddle_stage_info);
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

HD_CASE(resizes)
{
    heddle_model *model = NULL;
    heddle_model_info info = HEDDLE_EMPTY(heddle_model_info);
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
    HD_FAILS(HEDDLE_ERR_ARG, heddle_model_resize(model, "t=4,t=5", 0));
    assert_non_null(strstr(heddle_last_error(), "dim 't' is given twice in the sizes"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_model_resize(model, NULL, -1));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_model_resize(model, NULL, 60000));
    /* A refused resize changes nothing. */
    HD_OK(heddle_model_get_info(&info, model));
    assert_int_equal(info.shape.dim[1].extent, 7);
    assert_int_equal(info.shape.dim[3].extent, 24);
    assert_int_equal(info.repeat, 2);
    heddle_model_destroy(model);
}

typedef struct preset {
    const char *file, *shape;
    int repeat, nstages, heads, text_tokens;
} preset;

HD_CASE(presets_load)
{
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
        heddle_model_info info = HEDDLE_EMPTY(heddle_model_info);
        heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
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
