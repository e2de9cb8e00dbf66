/* The best mesh of so many ranks against a plan on every mesh there is, names of axes, and what is refused. */
#include "case.h"
#include "draw.h"
#include "plan_maker.h"

#include "planner/search/search_internal.h"

#include <string.h>
#include <time.h>

typedef struct found {
    double value;
    int naxes, meshes;
} found;

/* An axis ends where a level does, or within a unit of it: 4 ranks share a host, all the network. */
static int lies_well(int inner)
{
    return inner % 4 == 0 || 4 % inner == 0;
}

static void try_all(found *best, const heddle_model *model, const heddle_plan_options *o, heddle_mesh *mesh, int rest,
                    int has_levels)
{
    for (int size = 2; size <= rest && mesh->naxes < HEDDLE_MAX_AXES; size++) {
        if (rest % size != 0 || (has_levels && rest != size && !lies_well(rest / size))) {
            continue;
        }
        heddle_mesh next = *mesh;
        snprintf(next.axis[next.naxes].name, sizeof next.axis[0].name, "x%d", next.naxes);
        next.axis[next.naxes++].size = size;
        try_all(best, model, o, &next, rest / size, has_levels);
    }
    heddle_schedule *s = NULL;
    if (rest == 1 && mesh->naxes > 0 && heddle_plan(&s, model, mesh, o) == HEDDLE_OK) {
        double value = info_of(s).value;
        best->meshes++;
        if (best->naxes == 0 || value < best->value || (value == best->value && mesh->naxes < best->naxes)) {
            best->value = value;
            best->naxes = mesh->naxes;
        }
        heddle_schedule_destroy(s);
    }
}

HD_CASE(takes_the_best_of_all_meshes)
{
    static const char *const orders[] = {"s-t-", "t-s-", "s-", "ts", "T-"};
    heddle_machine *machine = NULL;
    HD_OK(heddle_machine_load(&machine, "6x4xh100-nvlink+eth100"));
    for (int trial = 0; trial < hd_rounds(60); trial++) {
        char dims[256];
        heddle_schedule *s = NULL;
        heddle_plan_options o;
        found best = {0, 0, 0};
        int ranks = 2 + below(23);
        snprintf(dims, sizeof dims, "b: {size: %d, role: batch}, t: %d, s: %d, c: {size: 64, role: channel}",
                 1 + below(3), 1 + below(40), 1 + below(400));
        heddle_model *model = make_model("bf16", dims, "b, t, s, c", orders[below(5)], 1 + below(4), 4 << below(3), "");
        heddle_plan_options_init(&o);
        o.methods = "";
        o.epilogue = "any";
        o.machine = trial % 3 > 0 ? machine : NULL;
        try_all(&best, model, &o, &(heddle_mesh){0}, ranks, o.machine != NULL);
        assert_true(best.meshes > 0);
        HD_OK(heddle_plan_ranks(&s, model, ranks, &o));
        heddle_schedule_info info = info_of(s);
        assert_int_equal(heddle_mesh_size(&info.mesh), ranks);
        if (info.value != best.value) {
            fail_msg("trial %d: {%s} on %d ranks: %.17g, %.17g on the best mesh", trial, dims, ranks, info.value,
                     best.value);
        }
        heddle_schedule_destroy(s);
        heddle_model_destroy(model);
    }
    heddle_machine_destroy(machine);
}

/* Under a cap that little fits under: what is found on one mesh bounds the search of another only if it fits. */
HD_CASE(takes_the_best_of_all_meshes_that_fits)
{
    static const char *const orders[] = {"s-t-", "t-s-", "sts-"};
    heddle_machine *machine = NULL;
    int dearer = 0;
    HD_OK(heddle_machine_load(&machine, "6x4xh100-nvlink+eth100"));
    for (int trial = 0; trial < hd_rounds(60); trial++) {
        char dims[256];
        heddle_schedule *s = NULL;
        heddle_plan_options o;
        found best = {0, 0, 0}, any = {0, 0, 0};
        const int ranks = 4 * (2 + below(5));
        snprintf(dims, sizeof dims, "b: {size: %d, role: batch}, t: %d, s: %d, c: {size: 64, role: channel}",
                 1 + below(3), 5 + below(40), 5 + below(400));
        heddle_model *model = make_model("bf16", dims, "b, t, s, c", orders[below(3)], 1 + below(4), 8, "");
        heddle_plan_options_init(&o);
        o.methods = "";
        o.epilogue = "any";
        o.machine = machine;
        o.workspace_bytes = 1; /* so that edges need most */
        try_all(&any, model, &o, &(heddle_mesh){0}, ranks, 1);
        o.objective = "memory";
        HD_OK(heddle_plan_ranks(&s, model, ranks, &o));
        const int64_t least = (int64_t)info_of(s).value;
        heddle_schedule_destroy(s);
        o.objective = NULL;
        o.memory_bytes = least + below((int)(least / 8));
        try_all(&best, model, &o, &(heddle_mesh){0}, ranks, 1);
        HD_OK(heddle_plan_ranks(&s, model, ranks, &o));
        if (info_of(s).value != best.value) {
            fail_msg("trial %d: {%s} on %d ranks within %lld: %.17g, %.17g on the best mesh", trial, dims, ranks,
                     (long long)o.memory_bytes, info_of(s).value, best.value);
        }
        dearer += best.value > any.value;
        heddle_schedule_destroy(s);
        heddle_model_destroy(model);
    }
    assert_true(dearer > 0);
    heddle_machine_destroy(machine);
}

/* Where the batch is one sample axes that shard it, and those that shard nothing, are looked at together. */
HD_CASE(takes_the_best_of_all_meshes_for_one_sample)
{
    static const char *const orders[] = {"t-s-w-", "t-s-w-", "s-t-w-"};
    heddle_machine *machine = NULL;
    const int ranks = 24;
    int with_most = 0;
    HD_OK(heddle_machine_load(&machine, "6x4xl20-pcie+eth100"));
    for (int trial = 0; trial < 3; trial++) {
        char dims[256];
        heddle_schedule *s = NULL;
        heddle_plan_options o;
        found best = {0, 0, 0};
        snprintf(dims, sizeof dims, "b: {size: 1, role: batch}, t: %d, s: %d, w: %d, c: {size: 256, role: channel}",
                 8 + below(17), 16 + below(33), 16 + below(33));
        heddle_model *model = make_model("bf16", dims, "b, t, s, w, c", orders[trial], 28, 8, "");
        heddle_plan_options_init(&o);
        o.methods = "";
        o.epilogue = trial == 0 ? "*" : "any";
        o.machine = machine;
        try_all(&best, model, &o, &(heddle_mesh){0}, ranks, 1);
        HD_OK(heddle_plan_ranks(&s, model, ranks, &o));
        with_most += info_of(s).mesh.naxes == HEDDLE_MAX_AXES;
        if (info_of(s).value != best.value) {
            fail_msg("trial %d: {%s} on %d ranks: %.17g, %.17g on the best mesh", trial, dims, ranks, info_of(s).value,
                     best.value);
        }
        heddle_schedule_destroy(s);
        heddle_model_destroy(model);
    }
    assert_true(with_most > 0); /* where there are enough layouts for it */
    heddle_machine_destroy(machine);
}

static void names_of(char *out, size_t out_bytes, const heddle_model *model, int ranks, const heddle_plan_options *o)
{
    heddle_schedule *s = NULL;
    HD_OK(heddle_plan_ranks(&s, model, ranks, o));
    heddle_schedule_info info = info_of(s);
    HD_OK(heddle_mesh_format(out, out_bytes, &info.mesh));
    heddle_schedule_destroy(s);
}

HD_CASE(tells_meshes_that_take_an_axis_apart)
{
    static const struct {
        const char *fine, *coarse;
        int is;
    } pair[] = {
        {"[a=2 b=2 c=128 d=8]", "[a=4 b=128 c=8]", 1},
        {"[a=4 b=2 c=64 d=8]", "[a=4 b=128 c=8]", 1},
        {"[a=4 b=128 c=2 d=4]", "[a=4 b=128 c=8]", 1},
        {"[a=4 b=128 c=8]", "[a=4 b=128 c=8]", 1},
        {"[a=2 b=3 c=5]", "[a=30]", 1},
        {"[a=2 b=128 c=2 d=8]", "[a=4 b=128 c=8]", 0},
        {"[a=6 b=5]", "[a=5 b=6]", 0},
        {"[a=4 b=128 c=8]", "[a=4 b=2 c=64 d=8]", 0},
        {"[a=2 b=2]", "[a=8]", 0},
        {"[a=8 b=2]", "[a=8]", 0},
    };
    for (size_t i = 0; i < sizeof pair / sizeof pair[0]; i++) {
        heddle_mesh fine, coarse;
        HD_OK(heddle_mesh_parse(&fine, pair[i].fine));
        HD_OK(heddle_mesh_parse(&coarse, pair[i].coarse));
        if (hd_search_refines(&fine, &coarse) != pair[i].is) {
            fail_msg("%s and %s", pair[i].fine, pair[i].coarse);
        }
    }
}

HD_CASE(names_axes_for_what_they_shard)
{
    char mesh[256];
    heddle_plan_options o;
    heddle_plan_options_init(&o);
    o.methods = "";
    o.epilogue = "any";
    heddle_model *model = make_model("bf16", "b: {size: 2, role: batch}, t: 16, s: 64, c: {size: 64, role: channel}",
                                     "b, t, s, c", "s-t-", 4, 8, "");
    names_of(mesh, sizeof mesh, model, 2, &o);
    assert_string_equal(mesh, "[b=2]");
    names_of(mesh, sizeof mesh, model, 8, &o);
    assert_string_equal(mesh, "[b=2 sp=4]");
    heddle_model_destroy(model);
    model = make_model("bf16", "s: 4096, c: {size: 96, role: channel}", "s, c", "s-", 4, 8, "");
    names_of(mesh, sizeof mesh, model, 16, &o);
    assert_string_equal(mesh, "[r=2 u=8]");
    heddle_model_destroy(model);
}

HD_CASE(refuses_what_a_mesh_would_be_needed_for)
{
    heddle_schedule *s = NULL;
    heddle_plan_options o;
    heddle_model *model = make_model("bf16", "s: 64, c: {size: 64, role: channel}", "s, c", "s-", 4, 8, "");
    heddle_plan_options_init(&o);
    o.force = "a0=s@sp";
    HD_FAILS(HEDDLE_ERR_ARG, heddle_plan_ranks(&s, model, 4, &o));
    assert_non_null(strstr(heddle_last_error(), "--mesh"));
    o.force = NULL;
    HD_FAILS(HEDDLE_ERR_ARG, heddle_plan_ranks(&s, model, 0, &o));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_plan_ranks(&s, model, 131073, &o));
    assert_non_null(strstr(heddle_last_error(), "meshes of 1 to 131072 are searched; plan on one mesh (--mesh)"));
    HD_FAILS(HEDDLE_ERR_ARG, heddle_plan_ranks(NULL, model, 4, &o));
    o.max_waste_percent = 1;
    o.methods = "*=local";
    HD_FAILS(HEDDLE_ERR_INFEASIBLE, heddle_plan_ranks(&s, model, 4, &o));
    assert_non_null(strstr(heddle_last_error(), "stage 'a0'"));
    o.max_waste_percent = 0;
    o.objective = "speed";
    HD_FAILS(HEDDLE_ERR_ARG, heddle_plan_ranks(&s, model, 4, &o));
    assert_non_null(strstr(heddle_last_error(), "slow-bytes"));
    o.objective = "time";
    HD_FAILS(HEDDLE_ERR_ARG, heddle_plan_ranks(&s, model, 4, &o));
    assert_non_null(strstr(heddle_last_error(), "needs a machine"));
    heddle_model_destroy(model);
}
