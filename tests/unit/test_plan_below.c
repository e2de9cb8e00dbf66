/* A search below a bound that is above the best walk finds the best walk, however near the bound is; and what is left
 * out by what edges cost at least is not in it. */
#include "case.h"
#include "draw.h"
#include "plan_maker.h"

#include "planner/search/search_internal.h"

#include "runtime/base/base.h"

/* Uneven parts and many repetitions: edges that come again and again cost more than is known of them at first. */
static const struct {
    const char *dims, *order;
    int repeat, backward;
} models[] = {
    {"b: {size: 3, role: batch}, t: 34, h: 58, w: 33, c: {size: 1024, role: channel}", "w-t", 28, 1},
    {"b: {size: 2, role: batch}, t: 25, h: 34, w: 39, c: {size: 256, role: channel}", "whwtw", 60, 0},
    {"b: {size: 2, role: batch}, t: 46, h: 29, w: 31, c: {size: 128, role: channel}", "hhwhtw", 100, 0},
};

static const char *const meshes[] = {"[a=24]",        "[a=3 b=8]",     "[a=6 b=4]",         "[a=12 b=2]",
                                     "[a=3 b=4 c=2]", "[a=3 b=2 c=4]", "[a=3 b=2 c=2 d=2]", "[a=6 b=2 c=2]",
                                     "[a=12]",        "[a=3 b=4]",     "[a=3 b=2 c=2]",     "[a=6 b=2]"};

/* Part 0 of what is found; -1: nothing, no layout may be forced. is_plain: of edges nothing is known but prices. */
static int64_t found_by(const heddle_model *model, const char *mesh, const heddle_plan_options *o, hd_cost *bound,
                        int is_plain)
{
    heddle_mesh m;
    hd_prices prices = {0};
    hd_search s = {0};
    hd_walk walk = {0};
    int found = 0;
    HD_OK(heddle_mesh_parse(&m, mesh));
    heddle_status st = hd_search_open(&s, model, &m, o, &prices);
    s.is_monotone = s.is_monotone && !is_plain;
    if (st != HEDDLE_ERR_INFEASIBLE || o->force == NULL) {
        HD_OK(st);
        HD_OK(hd_search_run(&walk, &found, &s, bound->part[0] > 0 ? bound : NULL));
    }
    const int64_t cost = found ? walk.cost.part[0] : -1;
    if (found && bound->part[0] == 0) {
        *bound = walk.cost;
    }
    hd_walk_free(&walk);
    hd_search_close(&s);
    hd_prices_free(&prices);
    return cost;
}

static int64_t found_below(const heddle_model *model, const char *mesh, const heddle_plan_options *o, hd_cost *bound)
{
    return found_by(model, mesh, o, bound, 0);
}

/* Found before a search, by classes of layouts where they are many: the best walk is not below it. */
static void floor_holds(const heddle_model *model, const char *mesh, const heddle_plan_options *o, const hd_cost *best)
{
    heddle_mesh m;
    hd_prices prices = {0};
    hd_search s = {0};
    double *through = NULL;
    int64_t floor = 0;
    HD_OK(heddle_mesh_parse(&m, mesh));
    HD_OK(hd_search_open(&s, model, &m, o, &prices));
    HD_OK(hd_search_near_floor(&floor, &through, &s, best->part[0] + 1));
    if (floor > best->part[0]) {
        fail_msg("on %s no walk is said to be below %lld, the best is %lld", mesh, (long long)floor,
                 (long long)best->part[0]);
    }
    hd_free(through);
    hd_search_close(&s);
    hd_prices_free(&prices);
}

HD_CASE(finds_the_best_below_any_bound)
{
    static const int parts[] = {10000, 2000, 770, 300, 60, 20, 9};
    heddle_machine *machine = NULL;
    HD_OK(heddle_machine_load(&machine, "8x8xh100-nvlink+ib400"));
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        heddle_plan_options o;
        heddle_model *model =
            make_model("bf16", models[i].dims, "b, t, h, w, c", models[i].order, models[i].repeat, 16, "");
        heddle_plan_options_init(&o);
        o.machine = machine;
        o.methods = "*=local";
        o.epilogue = "any";
        o.backward = models[i].backward;
        for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
            if (!hd_goes("model %zu on %s", i, meshes[m])) {
                continue;
            }
            hd_cost best = {{0}};
            const int64_t least = found_below(model, meshes[m], &o, &best);
            floor_holds(model, meshes[m], &o, &best);
            for (size_t k = 0; k < sizeof parts / sizeof *parts; k++) {
                hd_cost bound = best;
                bound.part[0] += least / parts[k];
                const int64_t got = found_below(model, meshes[m], &o, &bound);
                if (got != least) {
                    fail_msg("model %zu on %s: %lld below %lld, the best is %lld", i, meshes[m], (long long)got,
                             (long long)bound.part[0], (long long)least);
                }
            }
        }
        heddle_model_destroy(model);
    }
    heddle_machine_destroy(machine);
}

/* What is forced in one repetition may be cheaper than what all others may do, or the one way that there is. */
HD_CASE(a_repetition_may_be_forced)
{
    static const char *const methods[] = {"ring", "gather-kv", "ulysses", "usp"};
    heddle_machine *machine = NULL;
    int found = 0;
    HD_OK(heddle_machine_load(&machine, "8x8xh100-nvlink+ib400"));
    for (int trial = 0; trial < hd_rounds(120); trial++) {
        char dims[256], base[64], force[64];
        const int repeat = 2 + below(5);
        heddle_plan_options o;
        heddle_plan_options_init(&o);
        snprintf(dims, sizeof dims, "b: {size: 1, role: batch}, t: %d, h: %d, w: 7, c: {size: 256, role: channel}",
                 below(2) ? 1 : 64, 512 << below(6));
        heddle_model *model = make_model("bf16", dims, "b, t, h, w, c", below(2) ? "h-" : "ht", repeat, 16, "");
        snprintf(base, sizeof base, "a0=%s", methods[below(4)]);
        snprintf(force, sizeof force, "a0#%d=/%s", 1 + below(repeat), methods[below(4)]);
        o.machine = machine;
        o.epilogue = "any";
        o.methods = base;
        o.force = force;
        for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
            hd_cost best = {{0}}, plain = {{0}};
            const int64_t got = found_by(model, meshes[m], &o, &best, 0);
            const int64_t least = found_by(model, meshes[m], &o, &plain, 1);
            found += got >= 0;
            if (got != least || hd_cost_compare(&best, &plain) != 0) {
                fail_msg("trial %d: %s x %d, %s, %s on %s: %lld, the best is %lld", trial, dims, repeat, base, force,
                         meshes[m], (long long)got, (long long)least);
            }
            if (got >= 0) {
                floor_holds(model, meshes[m], &o, &best);
            }
        }
        heddle_model_destroy(model);
    }
    assert_in_range(found, hd_rounds(120), INT32_MAX);
    heddle_machine_destroy(machine);
}

/* From 2^53 ps on two costs may differ by less than what one more is. */
HD_CASE(plans_of_hours_are_found)
{
    heddle_machine *machine = NULL;
    heddle_plan_options o;
    heddle_plan_options_init(&o);
    HD_OK(heddle_machine_load(&machine, "8x8xh100-nvlink+ib400"));
    o.machine = machine;
    o.methods = "*=local";
    o.epilogue = "any";
    for (int repeat = 1; repeat < 9; repeat++) {
        heddle_model *model =
            make_model("bf16", "b: {size: 1, role: batch}, t: 1024, h: 8388608, w: 7, c: {size: 256, role: channel}",
                       "b, t, h, w, c", repeat % 2 ? "ht-" : "h-", repeat, 16, "");
        for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
            hd_cost best = {{0}}, plain = {{0}};
            const int64_t got = found_by(model, meshes[m], &o, &best, 0);
            assert_true(got > INT64_C(1) << 53);
            assert_int_equal(got, found_by(model, meshes[m], &o, &plain, 1));
            assert_int_equal(hd_cost_compare(&best, &plain), 0);
        }
        heddle_model_destroy(model);
    }
    heddle_machine_destroy(machine);
}
