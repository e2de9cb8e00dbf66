/* Model files: what they express. */
#include "case.h"
#include "model_text.h"

#include <heddle/planner.h>
#include <heddle/train/executor.h>
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

#define PLANNED                                                                                                        \
    "model: planned\n"                                                                                                 \
    "source: \"a report, table 3\"\n"                                                                                  \
    "dtype: bf16\n" DIMS TENSORS "guidance: 2\n"                                                                       \
    "steps: 9\n"                                                                                                       \
    "cache: {every: 2}\n"                                                                                              \
    "patch_channels: 16\n"                                                                                             \
    "final: {channels: 8}\n"                                                                                           \
    "serial_flops: 5000000000000\n"                                                                                    \
    "serial_token_flops: 7000000000\n"                                                                                 \
    "weights: sharded\n"                                                                                               \
    "repeat: 2\n"                                                                                                      \
    "stages:\n"                                                                                                        \
    "  - {name: all, kind: attention, over: [s, t], heads: 4, kv_heads: 2, window: [0, 3]}\n"                          \
    "  - {name: past, kind: attention, over: s, heads: n, causal: true, placement: zigzag, joins: y}\n"                \
    "  - {name: near, kind: attention, over: t, heads: 4, window: 2}\n"                                                \
    "  - {name: up, kind: mlp, ratio: 2, channels: 48}\n"                                                              \
    "  - {name: wide, kind: attention, over: t, heads: 12}\n"                                                          \
    "  - {name: down, kind: module, channels: 24, token_flops: 100, weights: 7, token_bytes: 11, joins: y}\n"          \
    "  - {name: mod, kind: module, over: [t, s], methods: [ring, ulysses], heads: 4, token_flops: 1}\n"                \
    "  - {name: given, kind: mlp, ratio: 4, weights: 1000}\n"

HD_CASE(reads_what_is_only_planned)
{
    heddle_model *model = NULL;
    heddle_model_info info = HEDDLE_EMPTY(heddle_model_info);
    heddle_stage_info s = HEDDLE_EMPTY(heddle_stage_info);
    HD_OK(parse(&model, PLANNED));
    HD_OK(heddle_model_get_info(&info, model));
    assert_string_equal(info.source, "a report, table 3");
    assert_true(info.guidance == 2 && info.steps == 9 && info.cache_every == 2 && info.passes == 5);
    assert_true(info.patch_channels == 16 && info.final_channels == 8 && info.serial_flops == 5000000000000 &&
                info.serial_token_flops == 7000000000);
    assert_true(info.weights_sharded);
    HD_OK(heddle_model_stage(&s, model, 0)); /* dims are b t s c */
    assert_true(s.mixed_dims == 6 && s.mixed_dim == 1 && s.kv_heads == 2 && s.window[1] == 3 && s.window[2] == 0);
    assert_int_equal(s.nweights, 24 * (24 + 2 * 12) + 24 + 2 * 12 + 24 * 24 + 24);
    assert_non_null(strstr(s.refusal, "several dims"));
    HD_OK(heddle_model_stage(&s, model, 1));
    assert_true(s.mixed_dims == 4 && s.causal && s.zigzag && s.joined_rows == 7 && s.kv_heads == 4);
    assert_non_null(strstr(s.refusal, "causal"));
    HD_OK(heddle_model_stage(&s, model, 2));
    assert_true(s.window[1] == 2 && s.in_channels == 24 && s.channels == 24);
    assert_non_null(strstr(s.refusal, "window"));
    HD_OK(heddle_model_stage(&s, model, 3));
    assert_true(s.in_channels == 24 && s.channels == 48 && s.mlp_channels == 48);
    assert_int_equal(s.nweights, 48 * 24 + 48 + 48 * 48 + 48);
    assert_non_null(strstr(s.refusal, "channels"));
    HD_OK(heddle_model_stage(&s, model, 4));
    assert_true(s.in_channels == 48 && s.nweights == 4 * 48 * 48 + 4 * 48);
    HD_OK(heddle_model_stage(&s, model, 5));
    assert_true(s.kind == HEDDLE_STAGE_MODULE && s.mixed_dim == -1 && s.nweights == 7 && s.channels == 24);
    assert_non_null(strstr(s.refusal, "module"));
    HD_OK(heddle_model_stage(&s, model, 6));
    assert_true(s.mixed_dims == 6 && s.heads == 4 && s.nweights == 0);
    HD_OK(heddle_model_stage(&s, model, 7));
    assert_true(s.nweights == 1000);
    assert_non_null(strstr(s.refusal, "parameters"));
    /* The halves of guidance run one after the other where the batch has not both. */
    HD_OK(heddle_model_resize(model, "b=1", 0));
    HD_OK(heddle_model_get_info(&info, model));
    assert_int_equal(info.passes, 10);
    heddle_model_destroy(model);
}

/* Parameters that are planned for are those that blocks allocate. */
HD_CASE(parameters_are_those_of_blocks)
{
    heddle_model *model = NULL;
    heddle_model_info info = HEDDLE_EMPTY(heddle_model_info);
    int64_t total = 0;
    HD_OK(parse(&model, GOOD "  - {name: lin, kind: linear-attention, over: t, heads: 2, decay: slopes}\n"));
    HD_OK(heddle_model_get_info(&info, model));
    for (int k = 0; k < info.nstages; k++) {
        heddle_stage_info s = HEDDLE_EMPTY(heddle_stage_info);
        heddle_block_options options;
        heddle_block *block = NULL;
        int64_t count = 0;
        HD_OK(heddle_model_stage(&s, model, k));
        heddle_block_options_init(&options);
        options.kind = s.kind;
        options.shape = info.shape;
        options.mixed_dim = s.mixed_dim;
        options.heads = s.heads > 0 ? s.heads : 1;
        options.mlp_channels = s.mlp_channels;
        options.text_tokens = info.text_tokens;
        options.qk_norm = s.qk_norm;
        HD_OK(heddle_block_create(&block, &options));
        for (int i = 0; i < heddle_block_nparams(block); i++) {
            heddle_param param = HEDDLE_EMPTY(heddle_param);
            HD_OK(heddle_block_param(&param, block, i));
            count += param.extent[0] * (param.ndim > 1 ? param.extent[1] : 1);
        }
        heddle_block_destroy(block);
        assert_null(s.refusal);
        assert_int_equal(s.nweights, count);
        total += count;
    }
    assert_int_equal(info.nweights, total * info.repeat);
    heddle_model_destroy(model);
}

/* What is planned alone gets a schedule, and who would run it the reason. */
HD_CASE(modules_are_planned_and_not_run)
{
    heddle_model *model = NULL;
    heddle_schedule *schedule = NULL;
    heddle_executor *executor = NULL;
    heddle_comm *comm = NULL;
    heddle_mesh mesh;
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    heddle_block_options options;
    HD_OK(parse(&model, HEAD DIMS TENSORS "stages: [{name: m, kind: module, token_flops: 5}]\n"));
    HD_OK(heddle_mesh_parse(&mesh, "[sp=1]"));
    HD_OK(heddle_plan(&schedule, model, &mesh, NULL));
    HD_OK(heddle_schedule_stage_at(&stage, schedule, 0));
    assert_int_equal(stage.kind, HEDDLE_STAGE_MODULE);
    assert_non_null(strstr(stage.refusal, "module"));
    HD_OK(heddle_comm_open(&comm, "self", NULL));
    heddle_block_options_init(&options);
    options.kind = HEDDLE_STAGE_MODULE;
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_executor_create(&executor, comm, schedule, &options, NULL));
    assert_non_null(strstr(heddle_last_error(), "'m' can be planned, but not run: it has kind module"));
    heddle_comm_destroy(comm);
    heddle_schedule_destroy(schedule);
    heddle_model_destroy(model);
}
