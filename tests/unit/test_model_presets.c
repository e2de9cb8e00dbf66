/* Models by name. */
#include "case.h"

#include <heddle/planner.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Layers, channels and heads of the published configs, and billions of parameters of the layers; cards of models count
 * embeddings and encoders, too. */
static const struct known {
    const char *name;
    int repeat, channels, heads;
    int64_t tokens, text;
    double least, most;
} known[] = {
    {"stdit3-xl2", 28, 1152, 16, 15 * 405, 300, 1.0, 1.3},
    {"stdit3-720p-204f", 28, 1152, 16, 60 * 3600, 300, 1.0, 1.3},
    {"open-sora-2", 57, 3072, 24, 33 * 48 * 48, 512, 11, 12},
    {"latte-xl2", 14, 1152, 16, 16 * 1024, 0, 0.4, 0.7},
    {"hunyuanvideo", 60, 3072, 24, 33 * 45 * 80, 256, 12, 13},
    {"wan2.1-1.3b", 30, 1536, 12, 21 * 30 * 52, 512, 1.2, 1.4},
    {"wan2.1-14b", 40, 5120, 40, 21 * 45 * 80, 512, 13.5, 14.5},
    {"cogvideox-2b", 30, 1920, 30, 13 * 30 * 45, 226, 1.6, 1.8},
    {"cogvideox-5b", 42, 3072, 48, 13 * 30 * 45, 226, 5.5, 5.6},
    {"cogvideox-1.5-5b", 42, 3072, 48, 11 * 48 * 85, 226, 5.5, 5.6},
    {"ltx-video", 28, 2048, 32, 21 * 16 * 22, 128, 1.8, 2},
    {"mochi", 48, 3072, 24, 28 * 30 * 53, 256, 9.5, 10.1},
    {"flux.1-dev", 57, 3072, 24, 64 * 64, 512, 11, 12},
    {"sd3-medium", 24, 1536, 24, 64 * 64, 333, 1.9, 2.1},
    {"qwen-image", 60, 3072, 24, 83 * 83, 512, 20, 20.5},
    {"step-video", 48, 6144, 48, 36 * 34 * 62, 397, 28, 30},
    {"consisid", 21, 3072, 48, 13 * 30 * 45, 226, 5.5, 6.5},
    {"timesformer-base", 12, 768, 12, 8 * 196, 0, 0.1, 0.13},
    {"axial-3d", 28, 512, 8, 16 * 32 * 32, 0, 0.1, 0.2},
    {"transnormerllm-1b", 16, 2048, 16, 2097152, 0, 0.7, 1},
    {"transnormerllm-7b", 30, 4096, 32, 262144, 0, 6, 7},
    {"gpt-like", 24, 2048, 16, 32768, 0, 1.1, 1.4},
    {"pangu-like", 1, 768, 24, 8 * 91 * 180, 0, 0.02, 0.07},
};

HD_CASE(have_the_published_figures)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        heddle_model *model = NULL;
        heddle_model_info info = HEDDLE_EMPTY(heddle_model_info);
        heddle_stage_info first = HEDDLE_EMPTY(heddle_stage_info);
        int64_t tokens = 1;
        HD_OK(heddle_model_load(&model, known[i].name));
        HD_OK(heddle_model_get_info(&info, model));
        HD_OK(heddle_model_stage(&first, model, 0));
        for (int d = 0; d < info.shape.ndim; d++) {
            tokens *= d != info.batch_dim && d != info.channel_dim ? info.shape.dim[d].extent : 1;
        }
        const double billions = (double)info.nweights * 1e-9;
        if (info.repeat != known[i].repeat || info.shape.dim[info.channel_dim].extent != known[i].channels ||
            first.heads != known[i].heads || tokens != known[i].tokens || info.text_tokens != known[i].text ||
            !(billions >= known[i].least && billions <= known[i].most)) {
            fail_msg("%s: %d layers, %lld channels, %d heads, %lld tokens, text %lld, %.3f billion parameters",
                     known[i].name, info.repeat, (long long)info.shape.dim[info.channel_dim].extent, first.heads,
                     (long long)tokens, (long long)info.text_tokens, billions);
        }
        heddle_model_destroy(model);
    }
}

/* Each of them says where its figures come from, is named as its text says, and has the batch that guidance wants. */
HD_CASE(are_whole)
{
    int count = heddle_model_presets();
    assert_true(count >= (int)(sizeof known / sizeof known[0]));
    for (int i = 0; i < count; i++) {
        heddle_preset_info preset = HEDDLE_EMPTY(heddle_preset_info);
        heddle_model *model = NULL;
        heddle_model_info info = HEDDLE_EMPTY(heddle_model_info);
        int index = -1;
        HD_OK(heddle_model_preset(&preset, i));
        HD_OK(heddle_model_parse(&model, preset.text, strlen(preset.text), preset.name));
        HD_OK(heddle_model_get_info(&info, model));
        assert_string_equal(info.name, preset.name);
        assert_non_null(info.source);
        assert_true(preset.text[0] == '#');
        const int64_t batch = info.shape.dim[info.batch_dim].extent;
        assert_true(info.guidance <= 1 || batch == info.guidance || batch == 1);
        assert_true(info.final_channels == 0 || info.patch_channels > 0);
        assert_true(info.guidance <= 1 || info.steps > 0);
        /* What makes samples has a VAE, whose decoder is counted where diffusers has it, and of a text its encoders. */
        assert_true((info.serial_token_flops > 0) == (info.steps > 0 && strcmp(info.name, "step-video") != 0));
        if ((info.serial_flops > 0) != (info.serial_token_flops > 0 && info.text_tokens > 0)) {
            fail_msg("%s has %lld flops of its text encoders", info.name, (long long)info.serial_flops);
        }
        HD_OK(heddle_model_find_preset(&index, preset.name));
        assert_int_equal(index, i);
        heddle_model_destroy(model);
    }
    heddle_preset_info none = HEDDLE_EMPTY(heddle_preset_info);
    HD_FAILS(HEDDLE_ERR_ARG, heddle_model_preset(&none, count));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_model_preset(&none, -1));
}

/* Channels of a token before and behind the layers, passes of a sample with one half of guidance in the batch and with
 * both, and what is computed once; a classifier's head reads one token, so nothing is gathered behind its layers. */
HD_CASE(have_their_ends)
{
    static const struct {
        const char *name;
        int64_t patch, final, one, both, serial, by_token;
    } ends[] = {
        {"stdit3-xl2", 4 * 4, 8 * 4, 60, 30, 2778306969600, 10149963930},
        {"stdit3-240p-51f", 4 * 4, 8 * 4, 60, 30, 2778306969600, 10149963930},
        {"stdit3-480p-102f", 4 * 4, 8 * 4, 60, 30, 2778306969600, 10149963930},
        {"stdit3-720p-204f", 4 * 4, 8 * 4, 60, 30, 2778306969600, 10149963930},
        {"stdit3-3b", 4 * 4, 8 * 4, 60, 30, 2778306969600, 10149963930},
        {"latte-xl2", 4 * 4, 8 * 4, 500, 250, 0, 2422030464},
        {"timesformer-base", 3 * 16 * 16, 0, 0, 0, 0, 0},
        {"hunyuanvideo", 16 * 4, 16 * 4, 50, 50, 4912563879936, 16927728424},
        {"wan2.1-14b", 16 * 4, 16 * 4, 100, 50, 9483287789568, 8366795924},
    };
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        for (int batch = 1; batch <= 2; batch++) {
            heddle_model *model = NULL;
            heddle_model_info info = HEDDLE_EMPTY(heddle_model_info);
            HD_OK(heddle_model_load(&model, ends[i].name));
            HD_OK(heddle_model_resize(model, batch == 1 ? "b=1" : "b=2", 0));
            HD_OK(heddle_model_get_info(&info, model));
            if (info.patch_channels != ends[i].patch || info.final_channels != ends[i].final ||
                info.passes != (batch == 1 ? ends[i].one : ends[i].both) || info.serial_flops != ends[i].serial ||
                info.serial_token_flops != ends[i].by_token) {
                fail_msg("%s, batch %d: %lld and %lld channels, %lld passes, %lld flops once and %lld by token",
                         ends[i].name, batch, (long long)info.patch_channels, (long long)info.final_channels,
                         (long long)info.passes, (long long)info.serial_flops, (long long)info.serial_token_flops);
            }
            heddle_model_destroy(model);
        }
    }
}

HD_CASE(are_found_by_what_users_type)
{
    static const struct {
        const char *typed, *means, *hint; /* means NULL: refused */
    } names[] = {
        {"HunyuanVideo", "hunyuanvideo", NULL},
        {"Hunyuan-Video", "hunyuanvideo", NULL},
        {"hunyuan_video", "hunyuanvideo", NULL},
        {"flux1-dev", "flux.1-dev", NULL},
        {"CogVideoX5B", "cogvideox-5b", NULL},
        {"sd3.5", NULL, "did you mean sd3-medium?"},
        {"llama", NULL, ""},
        {"Wan2.1-14B", "wan2.1-14b", NULL},
        {"FLUX.1-dev", "flux.1-dev", NULL},
        {"CogVideoX-5B", "cogvideox-5b", NULL},
        {"flux", "flux.1-dev", NULL},
        {"latte", "latte-xl2", NULL},
        {"sd3", "sd3-medium", NULL},
        {"stdit3-720p", "stdit3-720p-204f", NULL},
        {"wan2.1", NULL, "did you mean wan2.1-1.3b or wan2.1-14b?"},
        {"cogvideox", NULL, "cogvideox-1.5-5b or cogvideox-2b or cogvideox-5b?"},
        {"hunyuanvidoe", NULL, "did you mean hunyuanvideo?"},
        {"wan", NULL, "did you mean wan2.1-1.3b or wan2.1-14b?"},
        {"stdit3-xl", NULL, "did you mean stdit3-xl2?"},
        {"llama", NULL, "heddle presets lists"},
        {"", NULL, "heddle presets lists"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        heddle_model *model = NULL;
        heddle_model_info info = HEDDLE_EMPTY(heddle_model_info);
        if (names[i].means == NULL) {
            HD_FAILS(HEDDLE_ERR_IO, heddle_model_load(&model, names[i].typed));
            if (strstr(heddle_last_error(), names[i].hint) == NULL) {
                fail_msg("'%s': '%s'", names[i].typed, heddle_last_error());
            }
            continue;
        }
        HD_OK(heddle_model_load(&model, names[i].typed));
        HD_OK(heddle_model_get_info(&info, model));
        assert_string_equal(info.name, names[i].means);
        heddle_model_destroy(model);
    }
}

/* A file of a preset's name is the file; a folder is none. */
HD_CASE(yield_to_files)
{
    static const char text[] =
        "model: mine\ndtype: f32\ndims: {t: 4, c: {size: 2, role: channel}}\ntensors: {x: [t, c]}\n"
        "stages: [{name: m, kind: mlp, ratio: 4}]\n";
    char folder[] = "/tmp/heddle-presets-XXXXXX";
    heddle_model *model = NULL;
    heddle_model_info info = HEDDLE_EMPTY(heddle_model_info);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(mkdir("mochi", 0700), 0);
    FILE *f = fopen("hunyuanvideo", "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    HD_OK(heddle_model_load(&model, "hunyuanvideo"));
    HD_OK(heddle_model_get_info(&info, model));
    assert_string_equal(info.name, "mine");
    heddle_model_destroy(model);
    HD_OK(heddle_model_load(&model, "mochi"));
    HD_OK(heddle_model_get_info(&info, model));
    assert_string_equal(info.name, "mochi");
    heddle_model_destroy(model);
    assert_int_equal(unlink("hunyuanvideo"), 0);
    assert_int_equal(rmdir("mochi"), 0);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* 24 heads on 16 ranks: rings of two and heads over eight, for all 60 layers. */
HD_CASE(hunyuanvideo_on_sixteen)
{
    heddle_model *model = NULL;
    heddle_schedule *schedule = NULL;
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    heddle_plan_options options;
    heddle_mesh mesh;
    heddle_plan_options_init(&options);
    options.methods = "";
    options.epilogue = "any";
    HD_OK(heddle_model_load(&model, "hunyuanvideo"));
    HD_OK(heddle_mesh_parse(&mesh, "[r=2 u=8]"));
    HD_OK(heddle_plan(&schedule, model, &mesh, &options));
    HD_OK(heddle_schedule_get_info(&info, schedule));
    assert_true(info.bytes_per_rank_max > 15000000000 && info.bytes_per_rank_max <= 15100000000);
    heddle_schedule_destroy(schedule);
    heddle_model_destroy(model);
}
