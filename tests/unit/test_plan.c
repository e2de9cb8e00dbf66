/* The search with whole dims: known answers, exact costs, and random small models against every assignment there is.
 * test_plan_methods.c has the methods. */
#include "case.h"
#include "draw.h"
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

enum { TEXT_BYTES = 8192, MAX_LAYOUTS = 64, MAX_STAGES = 8 };

/* A model with one attention stage per letter of `order` ('-' is an MLP), run `repeat` times. */
static heddle_model *make_model(const char *dims, const char *tensor, const char *order, int repeat)
{
    char text[TEXT_BYTES];
    heddle_model *model = NULL;
    int n = snprintf(text, sizeof text, "model: m\ndtype: bf16\ndims: {%s}\ntensors: {x: [%s]}\nrepeat: %d\nstages:\n",
                     dims, tensor, repeat);
    for (int i = 0; order[i] != '\0'; i++) {
        if (order[i] == '-') {
            n += snprintf(text + n, sizeof text - (size_t)n, "  - {name: m%d, kind: mlp, ratio: 4}\n", i);
        } else {
            n += snprintf(text + n, sizeof text - (size_t)n, "  - {name: a%d, kind: attention, over: %c, heads: 1}\n",
                          i, order[i]);
        }
    }
    HD_OK(heddle_model_parse(&model, text, (size_t)n, "test"));
    return model;
}

static heddle_model *video(int64_t t, int64_t s, int64_t c, int repeat)
{
    char dims[256];
    snprintf(dims, sizeof dims, "b: {size: 1, role: batch}, t: %lld, s: %lld, c: {size: %lld, role: channel}",
             (long long)t, (long long)s, (long long)c);
    return make_model(dims, "b, t, s, c", "s--t--", repeat);
}

static heddle_schedule *plan(const heddle_model *model, const char *mesh_text, const char *prologue,
                             const char *epilogue)
{
    heddle_schedule *schedule = NULL;
    heddle_plan_options options;
    heddle_mesh mesh;
    heddle_plan_options_init(&options);
    options.prologue = prologue;
    options.epilogue = epilogue;
    options.methods = "*=local";
    HD_OK(heddle_mesh_parse(&mesh, mesh_text));
    HD_OK(heddle_plan(&schedule, model, &mesh, &options));
    return schedule;
}

static heddle_schedule_info info_of(const heddle_schedule *schedule)
{
    heddle_schedule_info info = {.struct_bytes = sizeof info};
    HD_OK(heddle_schedule_get_info(&info, schedule));
    return info;
}

static const char *layout_at(const heddle_schedule *schedule, int stage)
{
    static char text[256];
    heddle_schedule_stage s = {.struct_bytes = sizeof s};
    heddle_schedule_info info = info_of(schedule);
    HD_OK(heddle_schedule_stage_at(&s, schedule, stage));
    HD_OK(heddle_layout_format(text, sizeof text, &s.layout, &info.shape, &info.mesh));
    return text;
}

static heddle_schedule_edge edge_at(const heddle_schedule *schedule, int edge)
{
    heddle_schedule_edge e = {.struct_bytes = sizeof e};
    HD_OK(heddle_schedule_edge_at(&e, schedule, edge));
    return e;
}

static void counts_switches(void **state)
{
    (void)state;
    heddle_model *pair = video(16, 64, 8, 28);
    heddle_schedule *s = plan(pair, "[sp=4]", NULL, "any");
    assert_int_equal(info_of(s).switches, 55);
    assert_int_equal(info_of(s).nstages, 168);
    assert_int_equal(info_of(s).nedges, 169);
    heddle_schedule_destroy(s);
    heddle_model_destroy(pair);
    const char *dims = "t: 8, h: 8, w: 8, c: {size: 4, role: channel}";
    static const int layers[][2] = {{4, 5}, {28, 41}, {1, 1}, {2, 2}};
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        heddle_model *axial = make_model(dims, "t, h, w, c", "thw", layers[i][0]);
        s = plan(axial, "[sp=4]", NULL, "any");
        assert_int_equal(info_of(s).switches, layers[i][1]);
        heddle_schedule_destroy(s);
        heddle_model_destroy(axial);
    }
}

typedef struct known_volume {
    int t, s, c, ranks;
    double ideal_mb; /* sent per rank and switch */
} known_volume;

static void moves_known_volumes(void **state)
{
    (void)state;
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
        heddle_schedule *s = plan(model, mesh, NULL, "any");
        double mb = (double)info_of(s).bytes_total / 55 / known[i].ranks / 1e6;
        assert_int_equal(info_of(s).switches, 55);
        assert_true(mb > known[i].ideal_mb * 0.997 && mb < known[i].ideal_mb * 1.003);
        heddle_schedule_destroy(s);
        heddle_model_destroy(model);
    }
}

static void weighs_uneven_blocks_exactly(void **state)
{
    (void)state;
    heddle_model *model = video(60, 3600, 1152, 2);
    heddle_schedule *s = plan(model, "[sp=8]", NULL, NULL);
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

static void honours_both_ends(void **state)
{
    (void)state;
    heddle_model *model = video(16, 64, 8, 1);
    heddle_schedule *s = plan(model, "[sp=4]", "s@sp", "t@sp");
    assert_string_equal(layout_at(s, 0), "t@sp");
    assert_string_equal(edge_at(s, 0).kind, "switch");
    assert_string_equal(edge_at(s, 6).kind, "switch");
    assert_int_equal(info_of(s).switches, 3);
    heddle_schedule_destroy(s);
    s = plan(model, "[sp=4]", "*", "any");
    assert_string_equal(edge_at(s, 0).kind, "split");
    assert_int_equal(edge_at(s, 0).bytes_total, 0);
    assert_string_equal(edge_at(s, 6).kind, "free");
    assert_int_equal(info_of(s).switches, 1);
    heddle_schedule_destroy(s);
    s = plan(model, "[sp=4]", "t@sp(1 5 5 5)", NULL);
    assert_true(edge_at(s, 0).bytes_total > 0);
    assert_string_equal(edge_at(s, 0).kind, "general");
    heddle_schedule_destroy(s);
    s = plan(model, "[sp=4]", "sum@sp", NULL);
    assert_true(edge_at(s, 0).bytes_total > 0);
    heddle_schedule_destroy(s);
    heddle_model_destroy(model);
}

static void replicates_only_where_nothing_else_divides_work(void **state)
{
    (void)state;
    const char *dims = "b: {size: 1, role: batch}, t: 15, s: 405, c: {size: 8, role: channel}";
    heddle_model *model = make_model(dims, "b, t, s, c", "s-t-", 3);
    for (int n = 1; n <= 16; n++) {
        char mesh[32];
        snprintf(mesh, sizeof mesh, "[sp=%d]", n);
        heddle_schedule *s = plan(model, mesh, NULL, "any");
        for (int i = 0; i < 12 && n > 1; i++) {
            const char *layout = layout_at(s, i);
            assert_true(strcmp(layout, "t@sp") == 0 || strcmp(layout, "s@sp") == 0);
        }
        assert_int_equal(info_of(s).switches, n > 1 ? 5 : 0);
        heddle_schedule_destroy(s);
    }
    heddle_model_destroy(model);
    /* Two samples on two ranks: the batch takes the mesh, nothing moves. On four it would leave half of them idle. */
    model = make_model("b: {size: 2, role: batch}, t: 16, s: 64, c: {size: 8, role: channel}", "b, t, s, c", "s-t-", 3);
    heddle_schedule *s = plan(model, "[sp=2]", NULL, "any");
    assert_int_equal(info_of(s).switches, 0);
    assert_string_equal(layout_at(s, 0), "b@sp");
    heddle_schedule_destroy(s);
    s = plan(model, "[sp=4]", NULL, "any");
    assert_int_equal(info_of(s).switches, 5);
    heddle_schedule_destroy(s);
    s = plan(model, "[cfg=2 sp=4]", NULL, "any");
    assert_int_equal(info_of(s).switches, 5);
    assert_string_equal(layout_at(s, 0), "b@cfg,t@sp");
    heddle_schedule_destroy(s);
    heddle_model_destroy(model);
    /* One sequence dim and no batch: attention on whole fibres has to be replicated. */
    model = make_model("s: 64, c: {size: 8, role: channel}", "s, c", "s-", 2);
    s = plan(model, "[sp=4]", NULL, "any");
    assert_string_equal(layout_at(s, 0), "*");
    heddle_schedule_destroy(s);
    heddle_model_destroy(model);
}

static void refuses_with_reasons(void **state)
{
    (void)state;
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

/* What a stage's largest part is larger than an even one, in percent. */
static double waste_at(const heddle_schedule *schedule, int stage)
{
    heddle_schedule_info info = info_of(schedule);
    heddle_schedule_stage s = {.struct_bytes = sizeof s};
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
static void no_stage_wastes_more_than_allowed(void **state)
{
    (void)state;
    static const char *const meshes[] = {"[sp=4]", "[sp=7]", "[a=2 b=3]"};
    int made = 0;
    int refused = 0;
    for (int trial = 0; trial < 600; trial++) {
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
    assert_int_equal(made + refused, 600);
    assert_true(made > 100 && refused > 100);
}

/* Processor time of the fastest of a few plans, in milliseconds. */
static double plan_ms(const heddle_model *model, const char *mesh, int tries)
{
    double best_ms = INFINITY;
    for (int k = 0; k < tries; k++) {
        clock_t start = clock();
        heddle_schedule *s = plan(model, mesh, NULL, NULL);
        double ms = (double)(clock() - start) * 1e3 / CLOCKS_PER_SEC;
        best_ms = ms < best_ms ? ms : best_ms;
        heddle_schedule_destroy(s);
    }
    return best_ms;
}

static void is_fast(void **state)
{
    (void)state;
    heddle_model *model = video(60, 3600, 1152, 128);
    static const char *const meshes[] = {"[sp=8]", "[sp=64]", "[node=8 gpu=8]"};
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        double ms = plan_ms(model, meshes[i], 5);
        print_message("128 layer pairs on %s: %.3f ms\n", meshes[i], ms);
        assert_true(ms < 100); /* 10 ms is the aim; sanitizers are slow */
    }
    heddle_model_destroy(model);
}

/* The work is linear in the ranks: the most that a mesh may have are no matter of seconds. */
static void is_fast_for_many_ranks(void **state)
{
    (void)state;
    heddle_model *model = video(131072, 70000, 8, 2);
    static const char *const meshes[] = {"[sp=65536]", "[node=256 gpu=256]", "[node=32768 gpu=2]"};
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        double ms = plan_ms(model, meshes[i], 3);
        print_message("two layer pairs on %s: %.1f ms\n", meshes[i], ms);
        assert_true(ms * 1e6 < (double)hd_test_limit_ns(1.5)); /* 100 ms is the aim */
    }
    heddle_model_destroy(model);
}

/* --- exact costs against the list of peers ------------------------------------------------------------------------ */

static heddle_layout random_layout(const heddle_shape *shape, const heddle_mesh *mesh, int with_partial)
{
    heddle_layout layout = heddle_layout_replicated();
    for (int a = 0; a < mesh->naxes; a++) {
        int d = below(shape->ndim + 1 + with_partial) - 1 - with_partial;
        layout.dim_of_axis[a] = d;
    }
    /* Explicit lengths on an axis that has its dim alone. */
    int d = layout.dim_of_axis[0];
    int is_alone = d >= 0;
    for (int a = 1; a < mesh->naxes; a++) {
        is_alone = is_alone && layout.dim_of_axis[a] != d;
    }
    if (is_alone && mesh->axis[0].size <= 4 && below(3) == 0) {
        int64_t left = shape->dim[d].extent;
        layout.nshards[0] = mesh->axis[0].size;
        for (int i = 0; i < layout.nshards[0]; i++) {
            layout.shard_len[i] = i + 1 < layout.nshards[0] ? below((int)left + 1) : left;
            left -= layout.shard_len[i];
        }
    }
    return layout;
}

static void prices_edges_exactly(void **state)
{
    (void)state;
    for (int trial = 0; trial < 3000; trial++) {
        heddle_shape shape = {.dtype = HEDDLE_BF16, .ndim = 1 + below(3)};
        heddle_mesh mesh = {.naxes = 1 + below(3)};
        char from[256];
        char to[256];
        hd_edge_cost closed;
        hd_edge_cost listed;
        for (int d = 0; d < shape.ndim; d++) {
            snprintf(shape.dim[d].name, sizeof shape.dim[d].name, "d%d", d);
            shape.dim[d].extent = 1 + below(9);
        }
        for (int a = 0; a < mesh.naxes; a++) {
            snprintf(mesh.axis[a].name, sizeof mesh.axis[a].name, "a%d", a);
            mesh.axis[a].size = 1 + below(4);
        }
        int with_partial = below(3) == 0;
        heddle_layout a = random_layout(&shape, &mesh, with_partial);
        heddle_layout b = random_layout(&shape, &mesh, with_partial && below(2) == 0);
        HD_OK(heddle_layout_check(&a, &shape, &mesh));
        HD_OK(hd_edge_cost_of(&closed, &shape, &mesh, &a, &b));
        HD_OK(hd_edge_cost_listed(&listed, &shape, &mesh, &a, &b));
        if (memcmp(&closed, &listed, sizeof closed) != 0) {
            HD_OK(heddle_layout_format(from, sizeof from, &a, &shape, &mesh));
            HD_OK(heddle_layout_format(to, sizeof to, &b, &shape, &mesh));
            fail_msg("trial %d, %s -> %s: %lld %lld %lld %lld, listed %lld %lld %lld %lld", trial, from, to,
                     (long long)closed.bytes_per_rank_max, (long long)closed.bytes_total, (long long)closed.messages,
                     (long long)closed.bytes_received_max, (long long)listed.bytes_per_rank_max,
                     (long long)listed.bytes_total, (long long)listed.messages, (long long)listed.bytes_received_max);
        }
    }
}

/* --- every assignment --------------------------------------------------------------------------------------------- */

typedef struct total {
    int64_t max, bytes, switches, elems;
} total;

typedef struct brute {
    heddle_shape shape;
    heddle_mesh mesh;
    int nlayouts;
    heddle_layout layout[MAX_LAYOUTS];
    int64_t elems[MAX_LAYOUTS];
    total edge[MAX_LAYOUTS][MAX_LAYOUTS];
    int nstages;
    int allowed[MAX_STAGES][MAX_LAYOUTS];
    total best;
    int found;
} brute;

static total plus(total a, total b)
{
    total sum = {a.max + b.max, a.bytes + b.bytes, a.switches + b.switches, a.elems + b.elems};
    return sum;
}

static int compare(total a, total b)
{
    int64_t difference = a.max != b.max             ? a.max - b.max
                         : a.bytes != b.bytes       ? a.bytes - b.bytes
                         : a.switches != b.switches ? a.switches - b.switches
                                                    : a.elems - b.elems;
    return difference < 0 ? -1 : difference > 0;
}

static void list_layouts(brute *b)
{
    int choices = b->shape.ndim; /* every dim but the channels, and replicated */
    int count = 1;
    for (int a = 0; a < b->mesh.naxes; a++) {
        count *= choices;
    }
    b->nlayouts = count;
    for (int i = 0; i < count; i++) {
        b->layout[i] = heddle_layout_replicated();
        for (int a = 0, rest = i; a < b->mesh.naxes; a++, rest /= choices) {
            b->layout[i].dim_of_axis[a] = rest % choices == 0 ? HEDDLE_REPLICATED : rest % choices - 1;
        }
        b->elems[i] = 0;
        for (int rank = 0; rank < heddle_mesh_size(&b->mesh); rank++) {
            heddle_box box;
            HD_OK(heddle_layout_box(&box, &b->shape, &b->mesh, &b->layout[i], rank));
            b->elems[i] = heddle_box_elems(&box) > b->elems[i] ? heddle_box_elems(&box) : b->elems[i];
        }
    }
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < count; k++) {
            hd_edge_cost cost;
            HD_OK(hd_edge_cost_listed(&cost, &b->shape, &b->mesh, &b->layout[i], &b->layout[k]));
            b->edge[i][k] = (total){cost.bytes_per_rank_max, cost.bytes_total, cost.bytes_total > 0, 0};
        }
    }
}

/* A layout is allowed when the mixed dim is whole on every rank that has anything, and its largest part is within 25 %
 * of the smallest largest part. */
static void list_allowed(brute *b, const heddle_model *model, int period)
{
    for (int i = 0; i < b->nstages; i++) {
        heddle_stage_info stage = {.struct_bytes = sizeof stage};
        int64_t least = INT64_MAX;
        HD_OK(heddle_model_stage(&stage, model, i % period));
        for (int k = 0; k < b->nlayouts; k++) {
            int whole = 1;
            for (int a = 0; a < b->mesh.naxes; a++) {
                whole = whole && (stage.mixed_dim < 0 || b->layout[k].dim_of_axis[a] != stage.mixed_dim ||
                                  b->mesh.axis[a].size == 1);
            }
            b->allowed[i][k] = whole;
            least = whole && b->elems[k] < least ? b->elems[k] : least;
        }
        for (int k = 0; k < b->nlayouts; k++) {
            b->allowed[i][k] = b->allowed[i][k] && b->elems[k] * 100 <= least * 125;
        }
    }
}

static void try_all(brute *b, int stage, int layout, total so_far, int epilogue)
{
    if (stage == b->nstages) {
        total all = epilogue >= 0 ? plus(so_far, b->edge[layout][epilogue]) : so_far;
        if (!b->found || compare(all, b->best) < 0) {
            b->best = all;
            b->found = 1;
        }
        return;
    }
    for (int k = 0; k < b->nlayouts; k++) {
        if (b->allowed[stage][k]) {
            total step = {0, 0, 0, b->elems[k]};
            total move = layout >= 0 ? b->edge[layout][k] : (total){0, 0, 0, 0};
            try_all(b, stage + 1, k, plus(so_far, plus(step, move)), epilogue);
        }
    }
}

static total total_of(const brute *b, const heddle_schedule *s)
{
    total sum = {0, 0, 0, 0};
    for (int i = 0; i <= b->nstages; i++) {
        heddle_schedule_edge e = edge_at(s, i);
        sum = plus(sum, (total){e.bytes_per_rank_max, e.bytes_total, e.bytes_total > 0, 0});
    }
    for (int i = 0; i < b->nstages; i++) {
        heddle_schedule_stage stage = {.struct_bytes = sizeof stage};
        HD_OK(heddle_schedule_stage_at(&stage, s, i));
        for (int k = 0; k < b->nlayouts; k++) {
            if (heddle_layout_equal(&stage.layout, &b->layout[k], &b->mesh)) {
                assert_true(b->allowed[i][k]);
                sum.elems += b->elems[k];
            }
        }
    }
    return sum;
}

/* Any end: a layout of the list as text, or NULL. */
static const char *random_end(int *index, char *text, const brute *b)
{
    *index = -1;
    if (below(2) == 0) {
        return NULL;
    }
    *index = below(b->nlayouts);
    HD_OK(heddle_layout_format(text, 256, &b->layout[*index], &b->shape, &b->mesh));
    return text;
}

static void try_one(int trial)
{
    static brute b;
    char dims[256];
    char order[MAX_STAGES] = "";
    char prologue_text[256];
    char epilogue_text[256];
    heddle_model_info info = {.struct_bytes = sizeof info};
    const char *letters = "tsu-";
    int seqs = 2 + below(2);
    memset(&b, 0, sizeof b);
    HD_OK(heddle_mesh_parse(&b.mesh, below(3) == 0 ? "[node=2 gpu=2]" : "[sp=3]"));
    if (b.mesh.naxes == 1) {
        b.mesh.axis[0].size = 1 + below(6);
    }
    snprintf(dims, sizeof dims, "b: {size: %d, role: batch}, t: %d, s: %d, u: %d, c: {size: 2, role: channel}",
             1 + below(4), 1 + below(9), 1 + below(12), 1 + below(6));
    int period = 1 + below(b.mesh.naxes == 1 ? 3 : 2);
    int repeat = 1 + below(2);
    for (int i = 0; i < period; i++) {
        int k = below(seqs + 1);
        order[i] = k == seqs ? '-' : letters[k];
    }
    heddle_model *model = make_model(dims, seqs == 3 ? "b, t, s, u, c" : "b, t, s, c", order, repeat);
    HD_OK(heddle_model_get_info(&info, model));
    b.shape = info.shape;
    b.nstages = period * repeat;
    list_layouts(&b);
    list_allowed(&b, model, period);
    int from = -1;
    int to = -1;
    const char *prologue = random_end(&from, prologue_text, &b);
    const char *epilogue = random_end(&to, epilogue_text, &b);
    try_all(&b, 0, from, (total){0, 0, 0, 0}, to);
    char mesh[256];
    HD_OK(heddle_mesh_format(mesh, sizeof mesh, &b.mesh));
    heddle_schedule *s = plan(model, mesh, prologue, epilogue != NULL ? epilogue : "any");
    total planned = total_of(&b, s);
    if (compare(planned, b.best) != 0) {
        fail_msg("trial %d: {%s} %s %s x %d, %s -> %s: planned %lld %lld %lld %lld, best %lld %lld %lld %lld", trial,
                 dims, mesh, order, repeat, prologue ? prologue : "free", epilogue ? epilogue : "any",
                 (long long)planned.max, (long long)planned.bytes, (long long)planned.switches,
                 (long long)planned.elems, (long long)b.best.max, (long long)b.best.bytes, (long long)b.best.switches,
                 (long long)b.best.elems);
    }
    assert_int_equal(info_of(s).bytes_per_rank_max, planned.max);
    assert_int_equal(info_of(s).bytes_total, planned.bytes);
    assert_int_equal(info_of(s).switches, planned.switches);
    heddle_schedule_destroy(s);
    heddle_model_destroy(model);
}

static void equals_exhaustive_search(void **state)
{
    (void)state;
    for (int trial = 0; trial < 400; trial++) {
        try_one(trial);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(counts_switches),
        cmocka_unit_test(moves_known_volumes),
        cmocka_unit_test(weighs_uneven_blocks_exactly),
        cmocka_unit_test(honours_both_ends),
        cmocka_unit_test(replicates_only_where_nothing_else_divides_work),
        cmocka_unit_test(refuses_with_reasons),
        cmocka_unit_test(no_stage_wastes_more_than_allowed),
        cmocka_unit_test(is_fast),
        cmocka_unit_test(is_fast_for_many_ranks),
        cmocka_unit_test(prices_edges_exactly),
        cmocka_unit_test(equals_exhaustive_search),
    };
    return HD_RUN_CASES(cases, argc, argv);
}
