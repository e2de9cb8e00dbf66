/* A search below a bound that is above the best walk finds the best walk, however near the bound is. */
#include "case.h"
#include "plan_maker.h"

#include "planner/search/search_internal.h"

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

/* Part 0 of what is found; -1: nothing. */
static int64_t found_below(const heddle_model *model, const char *mesh, const heddle_plan_options *o, hd_cost *bound)
{
    heddle_mesh m;
    hd_prices prices = {0};
    hd_search s = {0};
    hd_walk walk = {0};
    int found = 0;
    HD_OK(heddle_mesh_parse(&m, mesh));
    HD_OK(hd_search_open(&s, model, &m, o, &prices));
    HD_OK(hd_search_run(&walk, &found, &s, bound->part[0] > 0 ? bound : NULL));
    const int64_t cost = found ? walk.cost.part[0] : -1;
    if (bound->part[0] == 0) {
        *bound = walk.cost;
    }
    hd_walk_free(&walk);
    hd_search_close(&s);
    hd_prices_free(&prices);
    return cost;
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
        o.epilogue = "any";
        o.backward = models[i].backward;
        for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
            hd_cost best = {{0}};
            const int64_t least = found_below(model, meshes[m], &o, &best);
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
