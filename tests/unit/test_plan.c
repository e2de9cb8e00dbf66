/* The search with whole dims: known answers, ends, waste and refusals. */
#include "case.h"
#include "draw.h"
#include "plan_maker.h"
#include "time_limit.h"

#include "runtime/base/base.h"
#include "runtime/schedule/schedule_internal.h"

#include <heddle/planner.h>
#include <heddle/reshard.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static heddle_model *video(int64_t t, int64_t s, int64_t c, int repeat)
{
    char dims[256];
    snprintf(dims, sizeof dims, "b: {size: 1, role: batch}, t: %lld, s: %lld, c: {size: %lld, role: channel}",
             (long long)t, (long long)s, (long long)c);
    return attention_model(dims, "b, t, s, c", "s--t--", repeat);
}

static const char *layout_at(const heddle_schedule *schedule, int stage)
{
    static char text[256];
    heddle_schedule_stage s = HEDDLE_EMPTY(heddle_schedule_stage);
    heddle_schedule_info info = info_of(schedule);
    HD_OK(heddle_schedule_stage_at(&s, schedule, stage));
    HD_OK(heddle_layout_format(text, sizeof text, &s.layout, &info.shape, &info.mesh));
    return text;
}

HD_CASE(counts_switches)
{
    heddle_model *pair = video(16, 64, 8, 28);
    heddle_schedule *s = plan_local(pair, "[sp=4]", NULL, "any");
    assert_int_equal(info_of(s).switches, 55);
    assert_int_equal(info_of(s).nstages, 168);
    assert_int_equal(info_of(s).nedges, 169);
    heddle_schedule_destroy(s);
    heddle_model_destroy(pair);
    const char *dims = "t: 8, h: 8, w: 8, c: {size: 4, role: channel}";
    static const int layers[][2] = {{4, 5}, {28, 41}, {1, 1}, {2, 2}};
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        heddle_model *axial = attention_model(dims, "t, h, w, c", "thw", layers[i][0]);
        s = plan_local(axial, "[sp=4]", NULL, "any");
        assert_int_equal(info_of(s).switches, layers[i][1]);
        heddle_schedule_destroy(s);
        heddle_model_destroy(axial);
    }
}

typedef struct known_volume {
    int t, s, c, ranks;
    double ideal_mb; /* sent per rank and switch */
} known_volume;

HD_CASE(moves_known_volumes)
{
    static const known_volume known[] = {
        {16, 1024, 1152, 8, 4.129},  {64, 1024, 1152, 8, 16.515}, {15, 405, 1152, 8, 1.531},
        {15, 1590, 1152, 8, 6.010},  {15, 3600, 1152, 8, 13.608}, {120, 3600, 1152, 8, 108.864},
        {60, 3600, 1872, 8, 88.452}, {17, 1024, 1152, 8, 4.387},  {128, 9216, 1152, 8, 297.271},
        {96, 196, 768, 8, 3.161},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char mesh[32];
        snprintf(mesh, sizeof mesh, "[sp=%d]", known[i].ranks);
        heddle_model *model = video(known[i].t, known[i].s, known[i].c, 28);
        heddle_schedule *s = plan_local(model, mesh, NULL, "any");
        double mb = (double)info_of(s).bytes_total / 55 / known[i].ranks / 1e6;
        assert_int_equal(info_of(s).switches, 55);
        assert_true(mb > known[i].ideal_mb * 0.997 && mb < known[i].ideal_mb * 1.003);
        heddle_schedule_destroy(s);
        heddle_model_destroy(model);
    }
}

HD_CASE(weighs_uneven_blocks_exactly)
{
    heddle_model *model = video(60, 3600, 1152, 2);
    heddle_schedule *s = plan_local(model, "[sp=8]", NULL, NULL);
    assert_string_equal(layout_at(s, 0), "t@sp");
    /* Token-wise stages go where the blocks are even: 3600 = 8 x 450, but 60 = 4 x 8 + 4 x 7. */
    for (int i = 1; i < 6; i++) {
        assert_string_equal(layout_at(s, i), "s@sp");
    }
    heddle_schedule_edge e = edge_at(s, 1); /* t@sp -> s@sp */
    assert_int_equal(e.bytes_per_rank_max, 8 * (3600 - 450) * 2304);
    assert_int_equal(e.bytes_total, 7 * 60 * 450 * 2304);
    assert_int_equal(e.messages, 56);
    e = edge_at(s, 6); /* s@sp -> t@sp */
    assert_string_equal(e.kind, "switch");
    assert_int_equal(e.bytes_per_rank_max, 54950400);
    /* A switch and its way back exchange what is sent and what is received. */
    assert_int_equal(e.bytes_received_max, edge_at(s, 1).bytes_per_rank_max);
    assert_int_equal(edge_at(s, 1).bytes_received_max, e.bytes_per_rank_max);
    e = edge_at(s, 12); /* the final gather */
    assert_string_equal(e.kind, "gather");
    assert_int_equal(e.bytes_per_rank_max, INT64_C(7) * 60 * 450 * 2304);
    assert_int_equal(e.bytes_total, INT64_C(56) * 60 * 450 * 2304);
    assert_string_equal(edge_at(s, 0).kind, "free");
    heddle_schedule_destroy(s);
    heddle_model_destroy(model);
}

HD_CASE(honours_both_ends)
{
    heddle_model *model = video(16, 64, 8, 1);
    heddle_schedule *s = plan_local(model, "[sp=4]", "s@sp", "t@sp");
    assert_string_equal(layout_at(s, 0), "t@sp");
    assert_string_equal(edge_at(s, 0).kind, "switch");
    assert_string_equal(edge_at(s, 6).kind, "switch");
    assert_int_equal(info_of(s).switches, 3);
    heddle_schedule_destroy(s);
    s = plan_local(model, "[sp=4]", "*", "any");
    assert_string_equal(edge_at(s, 0).kind, "split");
    assert_int_equal(edge_at(s, 0).bytes_total, 0);
    assert_string_equal(edge_at(s, 6).kind, "free");
    assert_int_equal(info_of(s).switches, 1);
    heddle_schedule_destroy(s);
    s = plan_local(model, "[sp=4]", "t@sp(1 5 5 5)", NULL);
    assert_true(edge_at(s, 0).bytes_total > 0);
    assert_string_equal(edge_at(s, 0).kind, "general");
    heddle_schedule_destroy(s);
    s = plan_local(model, "[sp=4]", "sum@sp", NULL);
    assert_true(edge_at(s, 0).bytes_total > 0);
    heddle_schedule_destroy(s);
    heddle_model_destroy(model);
}

/* Equal costs: the first layout by the order of dims and axes, and from there on no switch before it is needed. */
HD_CASE(ties_go_to_the_first_layout)
{
    static const struct {
        const char *dims, *tensor, *mesh, *layout;
    } tie[] = {
        {"t: 8, s: 8, h: 8", "t, s, h, c", "[sp=4]", "t@sp"},
        {"t: 8, s: 8, h: 8", "h, s, t, c", "[sp=4]", "h@sp"},
        {"t: 8, s: 8, h: 8", "t, s, h, c", "[a=2 b=2]", "t@a,t@b"},
    };
    char dims[128];
    for (size_t i = 0; i < sizeof tie / sizeof tie[0]; i++) {
        snprintf(dims, sizeof dims, "%s, c: {size: 4, role: channel}", tie[i].dims);
        heddle_model *model = attention_model(dims, tie[i].tensor, "--", 2);
        heddle_schedule *s = plan_local(model, tie[i].mesh, NULL, "any");
        for (int k = 0; k < 4; k++) {
            assert_string_equal(layout_at(s, k), tie[i].layout);
        }
        heddle_schedule_destroy(s);
        heddle_model_destroy(model);
    }
    heddle_model *model = video(8, 8, 4, 1);
    heddle_schedule *s = plan_local(model, "[sp=4]", NULL, "any");
    static const char *const stages[] = {"t@sp", "t@sp", "t@sp", "s@sp", "s@sp", "s@sp"};
    for (int k = 0; k < 6; k++) {
        assert_string_equal(layout_at(s, k), stages[k]);
    }
    heddle_schedule_destroy(s);
    heddle_model_destroy(model);
}

HD_CASE(replicates_only_where_nothing_else_divides_work)
{
    const char *dims = "b: {size: 1, role: batch}, t: 15, s: 405, c: {size: 8, role: channel}";
    heddle_model *model = attention_model(dims, "b, t, s, c", "s-t-", 3);
    for (int n = 1; n <= 16; n++) {
        char mesh[32];
        snprintf(mesh, sizeof mesh, "[sp=%d]", n);
        heddle_schedule *s = plan_local(model, mesh, NULL, "any");
        for (int i = 0; i < 12 && n > 1; i++) {
            const char *layout = layout_at(s, i);
            assert_true(strcmp(layout, "t@sp") == 0 || strcmp(layout, "s@sp") == 0);
        }
        assert_int_equal(info_of(s).switches, n > 1 ? 5 : 0);
        heddle_schedule_destroy(s);
    }
    heddle_model_destroy(model);
    /* Two samples on two ranks: the batch takes the mesh, nothing moves. On four it would leave half of them idle. */
    model = attention_model("b: {size: 2, role: batch}, t: 16, s: 64, c: {size: 8, role: channel}", "b, t, s, c",
                            "s-t-", 3);
    heddle_schedule *s = plan_local(model, "[sp=2]", NULL, "any");
    assert_int_equal(info_of(s).switches, 0);
    assert_string_equal(layout_at(s, 0), "b@sp");
    heddle_schedule_destroy(s);
    s = plan_local(model, "[sp=4]", NULL, "any");
    assert_int_equal(info_of(s).switches, 5);
    heddle_schedule_destroy(s);
    s = plan_local(model, "[cfg=2 sp=4]", NULL, "any");
    assert_int_equal(info_of(s).switches, 5);
    assert_string_equal(layout_at(s, 0), "b@cfg,t@sp");
    heddle_schedule_destroy(s);
    heddle_model_destroy(model);
    /* One sequence dim and no batch: attention on whole fibres has to be replicated. */
    model = attention_model("s: 64, c: {size: 8, role: channel}", "s, c", "s-", 2);
    s = plan_local(model, "[sp=4]", NULL, "any");
    assert_string_equal(layout_at(s, 0), "*");
    heddle_schedule_destroy(s);
    heddle_model_destroy(model);
}

HD_CASE(refuses_with_reasons)
{
    heddle_model *model = video(3, 64, 8, 2);
    heddle_schedule *s = NULL;
    heddle_plan_options options;
    heddle_mesh mesh;
    heddle_plan_options_init(&options);
    HD_OK(heddle_mesh_parse(&mesh, "[sp=8]"));
    options.max_waste_percent = 50;
    options.methods = "*=local";
    HD_FAILS(HEDDLE_ERR_INFEASIBLE, heddle_plan(&s, model, &mesh, &options));
    assert_non_null(strstr(heddle_last_error(), "stage 'a0'"));
    assert_non_null(strstr(heddle_last_error(), "166.7%"));
    options.max_waste_percent = 167;
    HD_OK(heddle_plan(&s, model, &mesh, &options));
    heddle_schedule_destroy(s);
    s = NULL;
    heddle_plan_options_init(&options);
    options.prologue = "q@sp";
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_plan(&s, model, &mesh, &options));
    assert_non_null(strstr(heddle_last_error(), "prologue"));
    options.prologue = NULL;
    options.epilogue = "t@";
    HD_FAILS(HEDDLE_ERR_PARSE, heddle_plan(&s, model, &mesh, &options));
    options.epilogue = NULL;
    options.slack_percent = -1;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_plan(&s, model, &mesh, &options));
    memset(&mesh, 0, sizeof mesh);
    HD_FAILS(HEDDLE_ERR_LAYOUT, heddle_plan(&s, model, &mesh, NULL));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_plan(NULL, model, &mesh, NULL));
    assert_null(s);
    heddle_model_destroy(model);
}

/* A search that would take hours is refused with its size, not begun: under a cap, where no faster one is tried. */
HD_CASE(refuses_what_takes_too_long)
{
    heddle_model *model =
        attention_model("t: 8, h: 8, w: 8, d: 8, e: 8, c: {size: 4, role: channel}", "t, h, w, d, e, c", "thwde", 1);
    heddle_schedule *s = NULL;
    heddle_mesh mesh;
    heddle_plan_options options;
    heddle_plan_options_init(&options);
    options.training = 1;
    options.memory_bytes = 1LL << 50;
    HD_OK(heddle_mesh_parse(&mesh, "[a=2 b=2 i=2 j=16384]"));
    HD_FAILS(HEDDLE_ERR_UNSUPPORTED, heddle_plan(&s, model, &mesh, &options));
    assert_non_null(strstr(heddle_last_error(), "on 131072 ranks are "));
    assert_non_null(strstr(heddle_last_error(), "steps of search; at most 4e+09 are taken"));
    assert_null(s);
    heddle_model_destroy(model);
}

/* What a stage's largest part is larger than an even one, in percent. */
static double waste_at(const heddle_schedule *schedule, int stage)
{
    heddle_schedule_info info = info_of(schedule);
    heddle_schedule_stage s = HEDDLE_EMPTY(heddle_schedule_stage);
    heddle_box box;
    double elems = 1;
    HD_OK(heddle_schedule_stage_at(&s, schedule, stage));
    HD_OK(heddle_layout_box(&box, &info.shape, &info.mesh, &s.layout, 0));
    for (int d = 0; d < info.shape.ndim; d++) {
        elems *= (double)info.shape.dim[d].extent;
    }
    return ((double)heddle_box_elems(&box) * heddle_mesh_size(&info.mesh) / elems - 1) * 100;
}

/* The limit holds for every stage of the schedule, not for the most even layout it might have had. */
HD_CASE(no_stage_wastes_more_than_allowed)
{
    static const char *const meshes[] = {"[sp=4]", "[sp=7]", "[a=2 b=3]"};
    enum { NTRIALS = 200 };
    int made = 0;
    int refused = 0;
    for (int trial = 0; trial < NTRIALS; trial++) {
        heddle_model *model = video(1 + below(40), 1 + below(40), 8, 2);
        heddle_schedule *s = NULL;
        heddle_plan_options options;
        heddle_mesh mesh;
        heddle_plan_options_init(&options);
        options.max_waste_percent = 1 + below(30);
        options.methods = trial % 2 == 0 ? "*=local" : "";
        HD_OK(heddle_mesh_parse(&mesh, meshes[trial % 3]));
        heddle_status st = heddle_plan(&s, model, &mesh, &options);
        made += st == HEDDLE_OK;
        refused += st == HEDDLE_ERR_INFEASIBLE;
        for (int i = 0; st == HEDDLE_OK && i < info_of(s).nstages; i++) {
            if (waste_at(s, i) > options.max_waste_percent + 1e-6) {
                fail_msg("trial %d: stage %d in %s wastes %.2f%%, allowed are %d%%", trial, i, layout_at(s, i),
                         waste_at(s, i), options.max_waste_percent);
            }
        }
        heddle_schedule_destroy(s);
        heddle_model_destroy(model);
    }
    assert_int_equal(made + refused, NTRIALS);
    assert_true(made > 30 && refused > 30);
}

/* Processor time of the fastest of a few plans, in milliseconds; of the first that is fast enough. */
static double plan_ms(const heddle_model *model, const char *mesh, int tries, double most_ms)
{
    double best_ms = INFINITY;
    for (int k = 0; k < tries && best_ms >= most_ms; k++) {
        clock_t start = clock();
        heddle_schedule *s = plan_local(model, mesh, NULL, NULL);
        double ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC;
        best_ms = ms < best_ms ? ms : best_ms;
        heddle_schedule_destroy(s);
    }
    return best_ms;
}

/* On each of three meshes. */
static void plans_within(double most_ms, heddle_model *model, const char *const meshes[3], int tries)
{
    for (int i = 0; i < 3; i++) {
        double ms = plan_ms(model, meshes[i], tries, most_ms);
        print_message("on %s: %.3f ms\n", meshes[i], ms);
        assert_true(ms < most_ms);
    }
    heddle_model_destroy(model);
}

HD_CASE(is_fast)
{
    static const char *const meshes[] = {"[sp=8]", "[sp=64]", "[node=8 gpu=8]"};
    plans_within(100, video(60, 3600, 1152, 128), meshes, 5); /* 10 ms is the aim; sanitizers are slow */
}

/* The work is linear in the ranks: the most that a mesh may have are no matter of seconds. */
HD_CASE(is_fast_for_many_ranks)
{
    static const char *const meshes[] = {"[sp=65536]", "[node=256 gpu=256]", "[node=32768 gpu=2]"};
    const double most_ms = (double)hd_test_limit_ns(1.5) / 1e6; /* 100 ms is the aim */
    plans_within(most_ms, video(131072, 70000, 8, 2), meshes, 3);
}
