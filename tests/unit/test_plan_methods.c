/* Methods per stage: prices against the public traffic functions, known numbers, what is chosen, and random small
 * models against every assignment of layouts and methods there is. */
#include "case.h"
#include "draw.h"

#include "runtime/base/base.h"
#include "runtime/schedule/schedule_internal.h"

#include <heddle/attention.h>
#include <heddle/linear_attention.h>
#include <heddle/planner.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 8192, MAX_LAYOUTS = 64, MAX_STAGES = 8 };

/* --- the judge: every rank by itself, by the functions that the runtime plans with -------------------------------- */

/* The axes of more than one rank that shard `dim`, as a mesh and layout of their own, and the rank's place in it. */
static int cut_out(heddle_mesh *mesh, heddle_layout *layout, int *place, const heddle_mesh *whole,
                   const heddle_layout *of, int dim, int rank)
{
    int coords[HEDDLE_MAX_AXES];
    int64_t *block = layout->shard_len;
    const int64_t *from = of->shard_len;
    HD_OK(heddle_mesh_coords(coords, whole, rank));
    *layout = heddle_layout_replicated();
    memset(mesh, 0, sizeof *mesh);
    *place = 0;
    for (int a = 0; a < whole->naxes; a++) {
        if (of->dim_of_axis[a] == dim && whole->axis[a].size > 1) {
            int k = mesh->naxes++;
            mesh->axis[k] = whole->axis[a];
            layout->dim_of_axis[k] = 1;
            layout->nshards[k] = of->nshards[a];
            memcpy(block, from, (size_t)of->nshards[a] * sizeof *block);
            block += of->nshards[a];
            *place = *place * whole->axis[a].size + coords[a];
        }
        from += of->nshards[a];
    }
    return mesh->naxes;
}

static heddle_status judge_rank(heddle_attention_traffic *out, const char *method, const hd_method_stage *stage,
                                const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *layout,
                                int rank)
{
    heddle_mesh group;
    heddle_layout cut;
    heddle_box box;
    int place = 0;
    int64_t channels = shape->dim[shape->ndim - 1].extent;
    heddle_shape fibres = {
        .dtype = shape->dtype,
        .ndim = 4,
        .dim = {{"f", 1}, {"x", shape->dim[stage->dim].extent}, {"h", stage->heads}, {"w", channels / stage->heads}}};
    cut_out(&group, &cut, &place, mesh, layout, stage->dim, rank);
    HD_OK(heddle_layout_box(&box, shape, mesh, layout, rank));
    for (int d = 0; d < shape->ndim - 1; d++) {
        fibres.dim[0].extent *= d == stage->dim ? 1 : box.len[d];
    }
    if (stage->kind == HEDDLE_STAGE_LINEAR) {
        heddle_linear_attention_options options;
        double decay[64];
        for (int h = 0; h < 64; h++) {
            decay[h] = stage->decays ? 0.9 : 1;
        }
        heddle_linear_attention_options_init(&options);
        HD_OK(heddle_linear_method_parse(&options.method, method));
        options.bidirectional = !stage->causal;
        options.decay = decay;
        return heddle_linear_attention_plan_traffic(out, &fibres, &group, &cut, &options, place);
    }
    heddle_attention_options options;
    heddle_attention_options_init(&options);
    HD_OK(heddle_attention_method_parse(&options.method, method));
    return heddle_attention_plan_traffic(out, &fibres, &group, &cut, &options, place);
}

static heddle_status judge(hd_method_cost *out, const char *method, const hd_method_stage *stage,
                           const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *layout)
{
    memset(out, 0, sizeof *out);
    for (int rank = 0; rank < heddle_mesh_size(mesh); rank++) {
        heddle_attention_traffic t;
        heddle_status st = judge_rank(&t, method, stage, shape, mesh, layout, rank);
        if (st != HEDDLE_OK) {
            return st;
        }
        hd_edge_cost *f = &out->forward;
        hd_edge_cost *b = &out->backward;
        f->bytes_per_rank_max = t.forward_bytes > f->bytes_per_rank_max ? t.forward_bytes : f->bytes_per_rank_max;
        b->bytes_per_rank_max = t.backward_bytes > b->bytes_per_rank_max ? t.backward_bytes : b->bytes_per_rank_max;
        f->bytes_total += t.forward_bytes;
        b->bytes_total += t.backward_bytes;
        f->messages += t.forward_messages;
        b->messages += t.backward_messages;
    }
    return HEDDLE_OK;
}

/* --- prices ------------------------------------------------------------------------------------------------------- */

static heddle_layout random_layout(const heddle_shape *shape, const heddle_mesh *mesh, int dim)
{
    heddle_layout layout = heddle_layout_replicated();
    for (int a = 0; a < mesh->naxes; a++) {
        layout.dim_of_axis[a] = below(2) == 0 ? dim : below(shape->ndim) - 1;
    }
    int d = layout.dim_of_axis[0];
    int is_alone = d >= 0;
    for (int a = 1; a < mesh->naxes; a++) {
        is_alone = is_alone && layout.dim_of_axis[a] != d;
    }
    if (is_alone && below(3) == 0) {
        int64_t left = shape->dim[d].extent;
        layout.nshards[0] = mesh->axis[0].size;
        for (int i = 0; i < layout.nshards[0]; i++) {
            layout.shard_len[i] = i + 1 < layout.nshards[0] ? below((int)left + 1) : left;
            left -= layout.shard_len[i];
        }
    }
    return layout;
}

static int try_price(int trial)
{
    static const heddle_dtype dtypes[] = {HEDDLE_BF16, HEDDLE_F32, HEDDLE_F64};
    heddle_shape shape = {.dtype = dtypes[below(3)], .ndim = 2 + below(3)};
    heddle_mesh mesh = {.naxes = 1 + below(3)};
    char reason[HD_METHOD_REASON_BYTES];
    hd_method_group group;
    const hd_method *method = NULL;
    int priced = 0;
    for (int d = 0; d < shape.ndim; d++) {
        snprintf(shape.dim[d].name, sizeof shape.dim[d].name, "d%d", d);
        shape.dim[d].extent = 1 + below(9);
    }
    for (int a = 0; a < mesh.naxes; a++) {
        snprintf(mesh.axis[a].name, sizeof mesh.axis[a].name, "a%d", a);
        mesh.axis[a].size = 1 + below(4);
    }
    hd_method_stage stage = {.kind = below(2) ? HEDDLE_STAGE_LINEAR : HEDDLE_STAGE_ATTENTION,
                             .dim = below(shape.ndim - 1),
                             .heads = 1 + below(6),
                             .causal = below(2),
                             .decays = below(2)};
    shape.dim[shape.ndim - 1].extent = stage.heads * (1 + below(3));
    heddle_layout layout = random_layout(&shape, &mesh, stage.dim);
    HD_OK(heddle_layout_check(&layout, &shape, &mesh));
    HD_OK(hd_method_group_make(&group, &shape, &mesh, &layout, &stage));
    for (int i = 0; (method = hd_method_at(stage.kind, i)) != NULL; i++) {
        hd_method_cost mine;
        hd_method_cost theirs;
        if (hd_method_why_not(reason, method, &group) != NULL) {
            continue;
        }
        hd_method_price(&mine, method, &group);
        if (method == &hd_method_local) {
            memset(&theirs, 0, sizeof theirs);
        } else {
            HD_OK(judge(&theirs, method->name, &stage, &shape, &mesh, &layout));
            priced++;
        }
        if (memcmp(&mine.forward, &theirs.forward, sizeof mine.forward) != 0 ||
            memcmp(&mine.backward, &theirs.backward, sizeof mine.backward) != 0) {
            char text[512];
            HD_OK(heddle_layout_format(text, sizeof text, &layout, &shape, &mesh));
            fail_msg(
                "trial %d, %s over dim %d in %s: forward %lld %lld %lld, the function says %lld %lld %lld; backward "
                "%lld %lld %lld, the function says %lld %lld %lld",
                trial, method->name, stage.dim, text, (long long)mine.forward.bytes_per_rank_max,
                (long long)mine.forward.bytes_total, (long long)mine.forward.messages,
                (long long)theirs.forward.bytes_per_rank_max, (long long)theirs.forward.bytes_total,
                (long long)theirs.forward.messages, (long long)mine.backward.bytes_per_rank_max,
                (long long)mine.backward.bytes_total, (long long)mine.backward.messages,
                (long long)theirs.backward.bytes_per_rank_max, (long long)theirs.backward.bytes_total,
                (long long)theirs.backward.messages);
        }
    }
    hd_method_group_free(&group);
    return priced;
}

static void prices_as_the_runtime_plans(void **state)
{
    (void)state;
    int priced = 0;
    for (int trial = 0; trial < 2000; trial++) {
        priced += try_price(trial);
    }
    assert_true(priced > 2000);
}

/* Names and their kinds are the runtime's. */
static void knows_every_method(void **state)
{
    (void)state;
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

/* --- plans -------------------------------------------------------------------------------------------------------- */

/* A model with a stage per letter of `order`: attention over a lower-case dim, linear attention over an upper-case one,
 * '-' an MLP. */
static heddle_model *make_model(const char *dtype, const char *dims, const char *tensor, const char *order, int repeat,
                                int heads, const char *linear)
{
    char text[TEXT_BYTES];
    heddle_model *model = NULL;
    int n = snprintf(text, sizeof text, "model: m\ndtype: %s\ndims: {%s}\ntensors: {x: [%s]}\nrepeat: %d\nstages:\n",
                     dtype, dims, tensor, repeat);
    for (int i = 0; order[i] != '\0'; i++) {
        if (order[i] == '-') {
            n += snprintf(text + n, sizeof text - (size_t)n, "  - {name: m%d, kind: mlp, ratio: 4}\n", i);
        } else if (order[i] < 'a') {
            n += snprintf(text + n, sizeof text - (size_t)n,
                          "  - {name: l%d, kind: linear-attention, over: %c, heads: %d%s}\n", i, order[i] + 32, heads,
                          linear);
        } else {
            n += snprintf(text + n, sizeof text - (size_t)n, "  - {name: a%d, kind: attention, over: %c, heads: %d}\n",
                          i, order[i], heads);
        }
    }
    HD_OK(heddle_model_parse(&model, text, (size_t)n, "test"));
    return model;
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

static heddle_schedule_stage stage_at(const heddle_schedule *schedule, int stage)
{
    heddle_schedule_stage s = {.struct_bytes = sizeof s};
    HD_OK(heddle_schedule_stage_at(&s, schedule, stage));
    return s;
}

static heddle_schedule_info info_of(const heddle_schedule *schedule)
{
    heddle_schedule_info info = {.struct_bytes = sizeof info};
    HD_OK(heddle_schedule_get_info(&info, schedule));
    return info;
}

/* A pair of a spatial and a temporal block, M elements of f32: a rank sends 2 (M/N) f by DSP with f = (N-1)/N, 4 (M/N)
 * f by Ulysses where the sharded dim is attended, 8 (M/N) f in both, 2 (M/N) (N-1) by ring, and ring backward twice
 * that. */
static void sends_the_known_volumes(void **state)
{
    (void)state;
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

static void states_travel_where_they_are_small(void **state)
{
    (void)state;
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
static void attends_over_the_only_dim(void **state)
{
    (void)state;
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
static void leaves_whole_dims_only_for_work(void **state)
{
    (void)state;
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

/* Two ranks, states as large as half a switch each way: the same bytes by either, and whole fibres win. */
static void prefers_whole_dims_at_equal_cost(void **state)
{
    (void)state;
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

static void refuses_bad_requests(void **state)
{
    (void)state;
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
static void keeps_the_schedules_of_presets(void **state)
{
    (void)state;
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

static void is_fast(void **state)
{
    (void)state;
    const char *dims = "b: {size: 1, role: batch}, t: 60, s: 3600, c: {size: 1152, role: channel}";
    heddle_model *model = make_model("bf16", dims, "b, t, s, c", "s--t--S-T-", 128, 16, ", causal: true");
    static const char *const meshes[] = {"[a=4 b=2]", "[sp=64]", "[node=8 gpu=8]"};
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        for (int backward = 0; backward < 2; backward++) {
            int64_t best_ns = INT64_MAX;
            for (int k = 0; k < 5; k++) {
                heddle_schedule *s = NULL;
                int64_t start_ns = hd_now_ns();
                HD_OK(try_plan(&s, model, meshes[i], NULL, backward));
                int64_t ns = hd_now_ns() - start_ns;
                best_ns = ns < best_ns ? ns : best_ns;
                heddle_schedule_destroy(s);
            }
            print_message("128 layers of 10 stages on %s%s: %.3f ms\n", meshes[i], backward ? ", backward" : "",
                          (double)best_ns / 1e6);
            assert_true(best_ns < 100 * 1000 * 1000); /* 10 ms is the aim; sanitizers are slow */
        }
    }
    heddle_model_destroy(model);
}

/* --- every assignment --------------------------------------------------------------------------------------------- */

typedef struct total {
    int64_t max, bytes, methods, switches, elems;
} total;

typedef struct brute {
    heddle_shape shape;
    heddle_mesh mesh;
    int backward;
    int nlayouts;
    heddle_layout layout[MAX_LAYOUTS];
    int64_t elems[MAX_LAYOUTS];
    total edge[MAX_LAYOUTS][MAX_LAYOUTS], last[MAX_LAYOUTS];
    int nstages;
    /* Ways to run a stage in a layout: what each costs */
    int nways[MAX_STAGES][MAX_LAYOUTS];
    total way[MAX_STAGES][MAX_LAYOUTS][HD_METHODS_MAX];
    total best;
    int found;
} brute;

static total plus(total a, total b)
{
    total sum = {a.max + b.max, a.bytes + b.bytes, a.methods + b.methods, a.switches + b.switches, a.elems + b.elems};
    return sum;
}

static int compare(total a, total b)
{
    int64_t difference = a.max != b.max             ? a.max - b.max
                         : a.bytes != b.bytes       ? a.bytes - b.bytes
                         : a.methods != b.methods   ? a.methods - b.methods
                         : a.switches != b.switches ? a.switches - b.switches
                                                    : a.elems - b.elems;
    return difference < 0 ? -1 : difference > 0;
}

static total move(const brute *b, const heddle_layout *from, const heddle_layout *to, int is_last)
{
    hd_edge_cost forward;
    hd_edge_cost back = {0};
    HD_OK(hd_edge_cost_listed(&forward, &b->shape, &b->mesh, from, to));
    if (b->backward) {
        heddle_layout behind = is_last ? *to : heddle_layout_dual(to); /* no partial sums here */
        heddle_layout before = heddle_layout_dual(from);
        HD_OK(hd_edge_cost_listed(&back, &b->shape, &b->mesh, &behind, &before));
    }
    return (total){forward.bytes_per_rank_max + back.bytes_per_rank_max, forward.bytes_total + back.bytes_total, 0,
                   forward.bytes_total > 0, 0};
}

static void list_layouts(brute *b)
{
    int choices = b->shape.ndim; /* every dim but the channels, and replicated */
    int count = 1;
    heddle_layout replicated = heddle_layout_replicated();
    for (int a = 0; a < b->mesh.naxes; a++) {
        count *= choices;
    }
    b->nlayouts = count;
    for (int i = 0; i < count; i++) {
        b->layout[i] = replicated;
        for (int a = 0, rest = i; a < b->mesh.naxes; a++, rest /= choices) {
            b->layout[i].dim_of_axis[a] = rest % choices == 0 ? HEDDLE_REPLICATED : rest % choices - 1;
        }
        for (int rank = 0; rank < heddle_mesh_size(&b->mesh); rank++) {
            heddle_box box;
            HD_OK(heddle_layout_box(&box, &b->shape, &b->mesh, &b->layout[i], rank));
            b->elems[i] = heddle_box_elems(&box) > b->elems[i] ? heddle_box_elems(&box) : b->elems[i];
        }
    }
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < count; k++) {
            b->edge[i][k] = i == k ? (total){0, 0, 0, 0, 0} : move(b, &b->layout[i], &b->layout[k], 0);
        }
        b->last[i] = move(b, &b->layout[i], &replicated, 1);
    }
}

/* Axes of more than one rank that shard the dim: 0 it is whole, -1 no method takes them. */
static int sharding_axes(const brute *b, int layout, int dim)
{
    int first = -1;
    int last = -1;
    int count = 0;
    for (int a = 0; a < b->mesh.naxes; a++) {
        if (b->layout[layout].dim_of_axis[a] == dim && b->mesh.axis[a].size > 1) {
            first = first < 0 ? a : first;
            last = a;
            count++;
        }
    }
    for (int a = first + 1; count == 2 && a < last; a++) {
        count = b->mesh.axis[a].size > 1 ? -1 : count;
    }
    return count > 2 ? -1 : count;
}

/* Ranks that share the heads in a method. */
static int head_owners(const brute *b, int layout, int dim, const char *method)
{
    int all = 1;
    int inner = 1;
    for (int a = 0; a < b->mesh.naxes; a++) {
        if (b->layout[layout].dim_of_axis[a] == dim && b->mesh.axis[a].size > 1) {
            inner = b->mesh.axis[a].size;
            all *= inner;
        }
    }
    return strcmp(method, "ulysses") == 0 ? all : strcmp(method, "usp") == 0 ? inner : 1;
}

static void add_way(brute *b, int k, int layout, const hd_method_stage *stage, const char *method)
{
    hd_method_cost cost = {{0, 0, 0}, {0, 0, 0}};
    int is_local = strcmp(method, "local") == 0;
    if (!is_local) {
        HD_OK(judge(&cost, method, stage, &b->shape, &b->mesh, &b->layout[layout]));
    }
    b->way[k][layout][b->nways[k][layout]++] = (total){
        cost.forward.bytes_per_rank_max + (b->backward ? cost.backward.bytes_per_rank_max : 0),
        cost.forward.bytes_total + (b->backward ? cost.backward.bytes_total : 0), !is_local, 0, b->elems[layout]};
}

/* Everything the rules of docs/formats.md admit for stage k; wanted is "auto" or a method. 0: nothing. */
static int list_ways(brute *b, int k, const hd_method_stage *stage, const char *wanted)
{
    static const char *const softmax[] = {"ulysses", "ring", "usp", "gather-kv", "rsa", NULL};
    static const char *const linear[] = {"lasp", "lasp2", "scan", NULL};
    int is_auto = strcmp(wanted, "auto") == 0 || stage->dim < 0 || heddle_mesh_size(&b->mesh) == 1;
    int64_t best_local = INT64_MAX;
    int64_t best = INT64_MAX;
    for (int i = 0; i < b->nlayouts; i++) {
        int axes = stage->dim < 0 ? 0 : sharding_axes(b, i, stage->dim);
        if (axes == 0 && (is_auto || strcmp(wanted, "local") == 0)) {
            add_way(b, k, i, stage, "local");
            best_local = b->elems[i] < best_local ? b->elems[i] : best_local;
        }
        const char *const *names = stage->kind == HEDDLE_STAGE_LINEAR ? linear : softmax;
        for (int m = 0; axes > 0 && names[m] != NULL; m++) {
            int owners = head_owners(b, i, stage->dim, names[m]);
            int64_t most = (stage->heads + owners - 1) / owners * owners;
            if ((strcmp(names[m], "usp") == 0 && axes != 2) ||
                (is_auto ? strcmp(names[m], "rsa") == 0 || most * 100 > stage->heads * 125
                         : strcmp(names[m], wanted) != 0)) {
                continue;
            }
            add_way(b, k, i, stage, names[m]);
        }
        best = b->nways[k][i] > 0 && b->elems[i] < best ? b->elems[i] : best;
    }
    for (int i = 0; i < b->nlayouts && best < INT64_MAX; i++) {
        int is_local = b->nways[k][i] > 0 && b->way[k][i][0].methods == 0;
        int64_t measure = is_local && best_local * 2 < best * 3 ? best_local : best;
        if (b->elems[i] * 100 > measure * 125) {
            b->nways[k][i] = 0;
        }
    }
    return best < INT64_MAX;
}

static void try_all(brute *b, int stage, int layout, total so_far)
{
    if (stage == b->nstages) {
        total all = plus(so_far, b->last[layout]);
        if (!b->found || compare(all, b->best) < 0) {
            b->best = all;
            b->found = 1;
        }
        return;
    }
    for (int k = 0; k < b->nlayouts; k++) {
        for (int w = 0; w < b->nways[stage][k]; w++) {
            total step = plus(b->way[stage][k][w], layout >= 0 ? b->edge[layout][k] : (total){0, 0, 0, 0, 0});
            try_all(b, stage + 1, k, plus(so_far, step));
        }
    }
}

/* What the schedule says it costs, its own bytes of the direction that counts. */
static total total_of(const brute *b, const heddle_schedule *s)
{
    heddle_schedule_info info = info_of(s);
    total sum = {info.bytes_per_rank_max, info.bytes_total, 0, info.switches, 0};
    if (b->backward) {
        sum.max += info.backward_bytes_per_rank_max;
        sum.bytes += info.backward_bytes_total;
    }
    for (int i = 0; i < b->nstages; i++) {
        heddle_schedule_stage stage = stage_at(s, i);
        sum.methods += strcmp(stage.method, "local") != 0;
        for (int k = 0; k < b->nlayouts; k++) {
            if (heddle_layout_equal(&stage.layout, &b->layout[k], &b->mesh)) {
                assert_true(b->nways[i][k] > 0);
                sum.elems += b->elems[k];
            }
        }
    }
    return sum;
}

static void draw_mesh(brute *b)
{
    memset(b, 0, sizeof *b);
    b->backward = below(2);
    b->mesh.naxes = 1 + (below(3) == 0);
    snprintf(b->mesh.axis[0].name, sizeof b->mesh.axis[0].name, "x");
    snprintf(b->mesh.axis[1].name, sizeof b->mesh.axis[1].name, "y");
    b->mesh.axis[0].size = 1 + below(b->mesh.naxes == 1 ? 5 : 3);
    b->mesh.axis[1].size = 1 + below(2);
}

/* A wish for every stage that mixes; 0: some stage cannot run as wished. */
static int draw_ways(brute *b, char *methods, size_t methods_bytes, const heddle_model *model, int period, int causal,
                     int decays)
{
    static const char *const softmax[] = {"auto", "auto",      "auto", "local", "ulysses",
                                          "ring", "gather-kv", "rsa",  "usp"};
    static const char *const linear[] = {"auto", "auto", "auto", "local", "lasp", "lasp2", "scan"};
    int feasible = 1;
    for (int i = 0; i < period; i++) {
        heddle_stage_info stage = {.struct_bytes = sizeof stage};
        HD_OK(heddle_model_stage(&stage, model, i));
        hd_method_stage mixes = {stage.kind, stage.mixed_dim, stage.heads, causal, decays};
        const char *wanted = stage.kind == HEDDLE_STAGE_LINEAR ? linear[below(7)] : softmax[below(9)];
        if (stage.mixed_dim >= 0) {
            size_t n = strlen(methods);
            snprintf(methods + n, methods_bytes - n, "%s%s=%s", n > 0 ? "," : "", stage.name, wanted);
        }
        for (int k = i; k < b->nstages; k += period) {
            feasible = list_ways(b, k, &mixes, wanted) && feasible;
        }
    }
    return feasible;
}

static int try_one(int trial)
{
    static brute b;
    char dims[256];
    char order[MAX_STAGES] = "";
    char methods[512] = "";
    char mesh[256];
    heddle_model_info info = {.struct_bytes = sizeof info};
    heddle_schedule *s = NULL;
    draw_mesh(&b);
    int heads = 1 + below(4);
    snprintf(dims, sizeof dims, "b: {size: %d, role: batch}, t: %d, s: %d, c: {size: %d, role: channel}", 1 + below(3),
             1 + below(40), 1 + below(12), heads * (1 + below(2)));
    int causal = below(2);
    int decays = below(2);
    char options[64];
    snprintf(options, sizeof options, ", causal: %s%s", causal ? "true" : "false", decays ? ", decay: 0.9" : "");
    int period = 1 + below(b.mesh.naxes == 1 ? 3 : 2);
    int repeat = 1 + below(2);
    for (int i = 0; i < period; i++) {
        order[i] = "tsTT-"[below(5)];
    }
    const char *linear_options = options;
    int one_dim = below(4) == 0; /* nothing to switch to */
    for (int i = 0; one_dim && i < period; i++) {
        order[i] = order[i] == 's' ? 't' : order[i];
    }
    if (one_dim) {
        snprintf(dims, sizeof dims, "t: %d, c: {size: %d, role: channel}", 1 + below(40), heads * (1 + below(2)));
    }
    heddle_model *model = make_model(below(2) ? "bf16" : "f32", dims, one_dim ? "t, c" : "b, t, s, c", order, repeat,
                                     heads, linear_options);
    HD_OK(heddle_model_get_info(&info, model));
    b.shape = info.shape;
    b.nstages = period * repeat;
    list_layouts(&b);
    int feasible = draw_ways(&b, methods, sizeof methods, model, period, causal, decays);
    HD_OK(heddle_mesh_format(mesh, sizeof mesh, &b.mesh));
    heddle_plan_options o;
    heddle_plan_options_init(&o);
    o.methods = methods;
    o.backward = b.backward;
    heddle_status st = heddle_plan(&s, model, &b.mesh, &o);
    if (!feasible) {
        assert_int_equal(st, HEDDLE_ERR_INFEASIBLE);
        heddle_model_destroy(model);
        return 0;
    }
    HD_OK(st);
    try_all(&b, 0, -1, (total){0, 0, 0, 0, 0});
    total planned = total_of(&b, s);
    if (compare(planned, b.best) != 0) {
        fail_msg("trial %d: {%s} %s %s x %d, %s%s: planned %lld %lld %lld %lld %lld, best %lld %lld %lld %lld %lld",
                 trial, dims, mesh, order, repeat, methods, b.backward ? ", backward" : "", (long long)planned.max,
                 (long long)planned.bytes, (long long)planned.methods, (long long)planned.switches,
                 (long long)planned.elems, (long long)b.best.max, (long long)b.best.bytes, (long long)b.best.methods,
                 (long long)b.best.switches, (long long)b.best.elems);
    }
    int with_methods = planned.methods > 0;
    heddle_schedule_destroy(s);
    heddle_model_destroy(model);
    return with_methods;
}

static void equals_exhaustive_search(void **state)
{
    (void)state;
    int with_methods = 0;
    for (int trial = 0; trial < 600; trial++) {
        with_methods += try_one(trial);
    }
    assert_true(with_methods > 100);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(knows_every_method),
        cmocka_unit_test(prices_as_the_runtime_plans),
        cmocka_unit_test(sends_the_known_volumes),
        cmocka_unit_test(states_travel_where_they_are_small),
        cmocka_unit_test(attends_over_the_only_dim),
        cmocka_unit_test(leaves_whole_dims_only_for_work),
        cmocka_unit_test(prefers_whole_dims_at_equal_cost),
        cmocka_unit_test(refuses_bad_requests),
        cmocka_unit_test(keeps_the_schedules_of_presets),
        cmocka_unit_test(is_fast),
        cmocka_unit_test(equals_exhaustive_search),
    };
    return HD_RUN_CASES(cases, argc, argv);
}
