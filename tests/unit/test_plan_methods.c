/* Methods per stage: known numbers, what is chosen, and what is refused. */
#include "case.h"
#include "plan_maker.h"

#include "runtime/schedule/schedule_internal.h"

#include <heddle/attention.h>
#include <heddle/linear_attention.h>
#include <heddle/planner.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Names and their kinds are the runtime's. */
HD_CASE(knows_every_method)
{
    int softmax = 0;
    int linear = 0;
    for (int i = 0; i < HEDDLE_ATTENTION_METHOD_COUNT; i++) {
        softmax +=
            hd_method_find(HEDDLE_STAGE_ATTENTION, heddle_attention_method_name((heddle_attention_method)i)) != NULL;
    }
    for (int i = 0; i < HEDDLE_LINEAR_METHOD_COUNT; i++) {
        linear += hd_method_find(HEDDLE_STAGE_LINEAR, heddle_linear_method_name((heddle_linear_method)i)) != NULL;
    }
    assert_int_equal(softmax, HEDDLE_ATTENTION_METHOD_COUNT);
    assert_int_equal(linear, HEDDLE_LINEAR_METHOD_COUNT);
    assert_null(hd_method_at(HEDDLE_STAGE_ATTENTION, softmax));
    assert_null(hd_method_at(HEDDLE_STAGE_LINEAR, linear));
    assert_true(softmax <= HD_METHODS_MAX && linear <= HD_METHODS_MAX);
    assert_null(hd_method_find(HEDDLE_STAGE_MLP, "ring"));
    assert_ptr_equal(hd_method_find(HEDDLE_STAGE_MLP, "local"), &hd_method_local);
}

static heddle_status try_plan(heddle_schedule **out, const heddle_model *model, const char *mesh_text,
                              const char *methods, int backward)
{
    heddle_plan_options options;
    heddle_mesh mesh;
    heddle_plan_options_init(&options);
    options.methods = methods != NULL ? methods : "";
    options.backward = backward;
    options.epilogue = "any";
    HD_OK(heddle_mesh_parse(&mesh, mesh_text));
    return heddle_plan(out, model, &mesh, &options);
}

static heddle_schedule *plan(const heddle_model *model, const char *mesh_text, const char *methods)
{
    heddle_schedule *schedule = NULL;
    HD_OK(try_plan(&schedule, model, mesh_text, methods, 0));
    return schedule;
}

/* A pair of a spatial and a temporal block, M elements of f32: a rank sends 2 (M/N) f by DSP with f = (N-1)/N, 4 (M/N)
 * f by Ulysses where the sharded dim is attended, 8 (M/N) f in both, 2 (M/N) (N-1) by ring, and ring backward twice
 * that. */
HD_CASE(sends_the_known_volumes)
{
    heddle_model *model = make_model("f32", "b: {size: 1, role: batch}, t: 16, s: 64, c: {size: 32, role: channel}",
                                     "b, t, s, c", "st", 3, 8, "");
    for (int n = 2; n <= 8; n *= 2) {
        char mesh[32];
        int64_t shard = INT64_C(16) * 64 * 32 * 4 / n;
        int64_t cut = shard / n * (n - 1); /* (M/N) f */
        snprintf(mesh, sizeof mesh, "[sp=%d]", n);
        heddle_schedule *s = plan(model, mesh, NULL);
        assert_int_equal(info_of(s).bytes_per_rank_max, 5 * cut);
        assert_int_equal(info_of(s).backward_bytes_per_rank_max, 5 * cut);
        assert_string_equal(stage_at(s, 1).method, "local");
        heddle_schedule_destroy(s);
        s = plan(model, mesh, "a0=ulysses,a1=local");
        assert_int_equal(info_of(s).switches, 0);
        assert_int_equal(info_of(s).bytes_per_rank_max, 3 * 4 * cut);
        assert_int_equal(info_of(s).backward_bytes_per_rank_max, 3 * 4 * cut);
        assert_int_equal(info_of(s).bytes_total, 3 * 4 * cut * n);
        assert_int_equal(stage_at(s, 0).forward_messages, 2 * n * (n - 1));
        heddle_schedule_destroy(s);
        s = plan(model, mesh, "a0=ring,a1=local");
        assert_int_equal(stage_at(s, 0).forward_bytes_per_rank_max, 2 * shard * (n - 1));
        assert_int_equal(stage_at(s, 0).backward_bytes_per_rank_max, 4 * shard * (n - 1));
        assert_int_equal(stage_at(s, 0).forward_messages, n * (n - 1));
        assert_int_equal(info_of(s).bytes_per_rank_max, 3 * 2 * shard * (n - 1));
        heddle_schedule_destroy(s);
        s = plan(model, mesh, "a0=rsa,a1=local");
        assert_int_equal(stage_at(s, 0).forward_bytes_per_rank_max, 2 * shard * (n - 1));
        assert_int_equal(stage_at(s, 0).forward_messages, 2 * n * (n - 1));
        heddle_schedule_destroy(s);
        s = plan(model, mesh, "*=ulysses"); /* both blocks, and the switches that make both dims sharded in turn */
        assert_int_equal(info_of(s).bytes_per_rank_max, (3 * 8 + 5) * cut);
        heddle_schedule_destroy(s);
    }
    heddle_model_destroy(model);
}

HD_CASE(states_travel_where_they_are_small)
{
    const char *dims = "b: {size: 1, role: batch}, t: 4096, s: 16, c: {size: 32, role: channel}";
    heddle_model *model = make_model("bf16", dims, "b, t, s, c", "sT", 4, 8, ", causal: true");
    heddle_schedule *s = plan(model, "[sp=4]", NULL);
    int64_t states = INT64_C(16) * 8 * 4 * 4 * 4; /* fibres, heads, 4 x 4, f32 */
    for (int i = 0; i < 8; i++) {
        assert_string_equal(stage_at(s, i).method, i % 2 == 0 ? "local" : "lasp");
    }
    assert_int_equal(info_of(s).switches, 0);
    assert_int_equal(info_of(s).bytes_per_rank_max, 4 * states);
    assert_int_equal(info_of(s).bytes_total, 4 * 3 * states);
    assert_non_null(strstr(info_of(s).note, "'l1' runs by lasp"));
    heddle_schedule_destroy(s);
    s = plan(model, "[sp=4]", "l1=lasp2");
    assert_int_equal(info_of(s).bytes_per_rank_max, 4 * 3 * states);
    heddle_schedule_destroy(s);
    s = plan(model, "[sp=8]", "l1=scan");
    assert_int_equal(info_of(s).bytes_per_rank_max, 4 * 3 * states);
    assert_int_equal(stage_at(s, 1).forward_messages, 7 + 6 + 4);
    heddle_schedule_destroy(s);
    heddle_model_destroy(model);
}

/* One sequence dim: nothing to switch to. Heads that are too few for the ranks go to another method. */
HD_CASE(attends_over_the_only_dim)
{
    const char *dims = "b: {size: 1, role: batch}, s: 4096, c: {size: 48, role: channel}";
    static const struct {
        const char *mesh, *method;
        int heads;
    } known[] = {{"[sp=4]", "ulysses", 8},
                 {"[sp=4]", "ring", 6},
                 {"[sp=8]", "ring", 1},
                 {"[node=2 gpu=4]", "ulysses", 8},
                 {"[node=4 gpu=4]", "usp", 4}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        heddle_model *model = make_model("bf16", dims, "b, s, c", "s-", 2, known[i].heads, "");
        heddle_schedule *s = plan(model, known[i].mesh, NULL);
        heddle_box box;
        heddle_schedule_stage stage = stage_at(s, 0);
        heddle_schedule_info info = info_of(s);
        assert_string_equal(stage.method, known[i].method);
        HD_OK(heddle_layout_box(&box, &info.shape, &info.mesh, &stage.layout, 0));
        assert_int_equal(box.len[1], 4096 / heddle_mesh_size(&info.mesh));
        assert_int_equal(info.switches, 0);
        heddle_schedule_destroy(s);
        heddle_model_destroy(model);
    }
}

/* 15 frames on 14 ranks: a whole dim leaves the busiest rank 1.9 times the work. On 8 it does not. */
HD_CASE(leaves_whole_dims_only_for_work)
{
    const char *dims = "b: {size: 1, role: batch}, t: 15, s: 405, c: {size: 56, role: channel}";
    heddle_model *model = make_model("bf16", dims, "b, t, s, c", "st", 2, 14, "");
    heddle_schedule *s = plan(model, "[sp=8]", NULL);
    for (int i = 0; i < 4; i++) {
        assert_string_equal(stage_at(s, i).method, "local");
    }
    heddle_schedule_destroy(s);
    s = plan(model, "[sp=14]", NULL);
    assert_string_equal(stage_at(s, 0).method, "ulysses");
    assert_string_equal(stage_at(s, 1).method, "local");
    heddle_schedule_destroy(s);
    s = plan(model, "[sp=14]", "*=local");
    assert_string_equal(stage_at(s, 0).method, "local");
    heddle_schedule_destroy(s);
    heddle_model_destroy(model);
}

/* Without a machine stages are local where nothing is asked for; with one they run by whatever takes least. */
HD_CASE(the_default_is_local_without_a_machine)
{
    heddle_machine *machine = NULL;
    heddle_model *model =
        attention_model("b: {size: 1, role: batch}, s: 65536, c: {size: 512, role: channel}", "b, s, c", "s", 1);
    HD_OK(heddle_machine_load(&machine, "8xh100-nvlink"));
    for (int i = 0; i < 2; i++) {
        heddle_plan_options o;
        heddle_schedule *by_default = NULL, *as_asked = NULL;
        heddle_plan_options_init(&o);
        o.machine = i == 0 ? NULL : machine;
        HD_OK(heddle_plan_ranks(&by_default, model, 8, &o));
        assert_int_equal(strcmp(stage_at(by_default, 0).method, "local") == 0, i == 0);
        o.methods = i == 0 ? "*=local" : "";
        HD_OK(heddle_plan_ranks(&as_asked, model, 8, &o));
        assert_true(info_of(by_default).value == info_of(as_asked).value);
        heddle_schedule_destroy(by_default);
        heddle_schedule_destroy(as_asked);
    }
    heddle_machine_destroy(machine);
    heddle_model_destroy(model);
}

/* Two ranks, states as large as half a switch each way: the same bytes by either, and whole fibres win. */
HD_CASE(prefers_whole_dims_at_equal_cost)
{
    static const struct {
        int t;
        const char *method;
    } known[] = {{2, "local"}, {4, "local"}, {6, "lasp"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char dims[128];
        snprintf(dims, sizeof dims, "t: %d, s: 4, c: {size: 4, role: channel}", known[i].t);
        heddle_model *model = make_model("f32", dims, "t, s, c", "sT", 1, 4, "");
        heddle_schedule *s = plan(model, "[sp=2]", NULL);
        assert_string_equal(stage_at(s, 1).method, known[i].method);
        heddle_schedule_destroy(s);
        s = plan(model, "[sp=2]", "l1=lasp");
        assert_int_equal(info_of(s).bytes_total, 2 * 4 * 4 * 4);
        heddle_schedule_destroy(s);
        s = plan(model, "[sp=2]", "l1=local");
        assert_int_equal(info_of(s).bytes_total, 2 * known[i].t * 4 * 4);
        heddle_schedule_destroy(s);
        heddle_model_destroy(model);
    }
}

HD_CASE(refuses_bad_requests)
{
    static const struct {
        const char *methods;
        heddle_status status;
        const char *sentence;
    } bad[] = {
        {"a0", HEDDLE_ERR_ARG, "must look like"},
        {"=ring", HEDDLE_ERR_ARG, "must look like"},
        {"a0=", HEDDLE_ERR_ARG, "must look like"},
        {"a0=ring=local", HEDDLE_ERR_ARG, "must look like"},
        {"a0=ring,", HEDDLE_ERR_ARG, "end with a comma"},
        {",a0=ring", HEDDLE_ERR_ARG, "must look like"},
        {"a0=ring,,a1=ring", HEDDLE_ERR_ARG, "must look like"},
        {" a0=ring", HEDDLE_ERR_ARG, "no stage ' a0'; those with a method are a0, a1, l3"},
        {"q=ring", HEDDLE_ERR_ARG, "no stage 'q'"},
        {"m2=ring", HEDDLE_ERR_ARG, "of kind mlp, which has no method"},
        {"a0=lasp", HEDDLE_ERR_ARG, "there are auto, local, ulysses, usp, ring, gather-kv, rsa"},
        {"l3=ring", HEDDLE_ERR_ARG, "there are auto, local, lasp, scan, lasp2"},
        {"*=magic", HEDDLE_ERR_ARG, "no stage of model 'm' has a method 'magic'"},
        {"a0=usp", HEDDLE_ERR_INFEASIBLE,
         "stage 'a0': no layout of bf16[b=1 t=8 s=8 c=8] on [sp=4] lets it run by method usp: "
         "usp wants the dim sharded over two mesh axes"},
    };
    heddle_model *model = make_model("bf16", "b: {size: 1, role: batch}, t: 8, s: 8, c: {size: 8, role: channel}",
                                     "b, t, s, c", "st-T", 2, 2, "");
    heddle_schedule *s = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        heddle_status st = try_plan(&s, model, "[sp=4]", bad[i].methods, 0);
        if (st != bad[i].status || strstr(heddle_last_error(), bad[i].sentence) == NULL) {
            fail_msg("'%s': %s: %s", bad[i].methods, heddle_status_name(st), heddle_last_error());
        }
        assert_null(s);
    }
    static char longer[20000];
    memset(longer, 'x', sizeof longer - 1);
    HD_FAILS(HEDDLE_ERR_ARG, try_plan(&s, model, "[sp=4]", longer, 0));
    /* On one rank every method is local; the last entry wins; nothing is no request. */
    s = plan(model, "[sp=1]", "*=usp");
    assert_string_equal(stage_at(s, 0).method, "local");
    heddle_schedule_destroy(s);
    s = plan(model, "[sp=4]", "*=ring,*=lasp,a1=auto,a0=rsa");
    assert_string_equal(stage_at(s, 0).method, "rsa");
    assert_string_equal(stage_at(s, 1).method, "local");
    assert_string_equal(stage_at(s, 3).method, "lasp");
    heddle_schedule_destroy(s);
    s = plan(model, "[sp=4]", "");
    heddle_schedule_destroy(s);
    heddle_model_destroy(model);
    /* f16 can be moved but not attended over. */
    s = NULL;
    model = make_model("f16", "t: 8, s: 8, c: {size: 8, role: channel}", "t, s, c", "st", 1, 2, "");
    HD_FAILS(HEDDLE_ERR_INFEASIBLE, try_plan(&s, model, "[sp=4]", "a0=ring", 0));
    assert_non_null(strstr(heddle_last_error(), "f32, bf16 or f64, not f16"));
    s = plan(model, "[sp=4]", NULL);
    heddle_schedule_destroy(s);
    heddle_model_destroy(model);
}

/* Published models on up to 8 ranks: a whole dim is never worse, so nothing but the bytes' bookkeeping changed. */
HD_CASE(keeps_the_schedules_of_presets)
{
    static const char *const files[] = {"stdit3-xl2", "stdit3-480p-102f", "stdit3-720p-204f", "stdit3-3b",
                                        "latte-xl2",  "timesformer-base", "axial-3d"};
    static const char *const meshes[] = {"[sp=1]", "[sp=2]", "[sp=4]", "[sp=8]", "[a=4 b=2]"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char path[1024];
        heddle_model *model = NULL;
        snprintf(path, sizeof path, HEDDLE_SOURCE "/examples/models/%s.yaml", files[i]);
        HD_OK(heddle_model_load(&model, path));
        for (size_t k = 0; k < sizeof meshes / sizeof meshes[0]; k++) {
            heddle_schedule *chosen = plan(model, meshes[k], NULL);
            heddle_schedule *local = plan(model, meshes[k], "*=local");
            heddle_schedule_info info = info_of(chosen);
            for (int n = 0; n < info.nstages; n++) {
                heddle_schedule_stage a = stage_at(chosen, n);
                heddle_schedule_stage b = stage_at(local, n);
                assert_string_equal(a.method, "local");
                assert_true(heddle_layout_equal(&a.layout, &b.layout, &info.mesh));
            }
            assert_int_equal(info.bytes_per_rank_max, info_of(local).bytes_per_rank_max);
            heddle_schedule_destroy(chosen);
            heddle_schedule_destroy(local);
        }
        heddle_model_destroy(model);
    }
}

HD_CASE(is_fast)
{
    const char *dims = "b: {size: 1, role: batch}, t: 60, s: 3600, c: {size: 1152, role: channel}";
    heddle_model *model = make_model("bf16", dims, "b, t, s, c", "s--t--S-T-", 128, 16, ", causal: true");
    static const char *const meshes[] = {"[a=4 b=2]", "[sp=64]", "[node=8 gpu=8]"};
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        for (int backward = 0; backward < 2; backward++) {
            double best_ms = INFINITY;
            for (int k = 0; k < 5; k++) {
                heddle_schedule *s = NULL;
                clock_t start = clock(); /* processor time: others may run beside this */
                HD_OK(try_plan(&s, model, meshes[i], NULL, backward));
                double ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC;
                best_ms = ms < best_ms ? ms : best_ms;
                heddle_schedule_destroy(s);
            }
            print_message("128 layers of 10 stages on %s%s: %.3f ms\n", meshes[i], backward ? ", backward" : "",
                          best_ms);
            assert_true(best_ms < 100); /* 10 ms is the aim; sanitizers are slow */
        }
    }
    heddle_model_destroy(model);
}
