/* Every walk that there is, judged without the search: prices are the planner's own, the walks are not. */
#ifndef HD_TEST_PLAN_JUDGE_H
#define HD_TEST_PLAN_JUDGE_H

#include "case.h"
#include "draw_layout.h"
#include "plan_maker.h"

#include "planner/price/price.h"

#include <string.h>

enum { MAX_STEPS = 8, MAX_WAYS = 512, MAX_LAYOUTS = 64, MOST_WALKS = 40000 };

/* What a walk costs, in the order in which it is compared; parts that do not count are 0. */
typedef struct sum {
    int64_t part[4];
} sum;

typedef struct way {
    int layout;
    const char *method;
    sum cost;
    int64_t kept, need;
} way;

typedef struct judge {
    heddle_model *model;
    heddle_mesh mesh;
    heddle_plan_options options;
    hd_pricer pricer;
    int is_time, nlayouts, period, nsteps;
    heddle_layout layout[MAX_LAYOUTS];
    int nways[MAX_STEPS]; /* by stage of a period */
    way ways[MAX_STEPS][MAX_WAYS];
    sum edge[MAX_LAYOUTS][MAX_LAYOUTS], last[MAX_LAYOUTS];
    int64_t edge_need[MAX_LAYOUTS][MAX_LAYOUTS], last_need[MAX_LAYOUTS];
    int64_t resident, cap;
    heddle_layout end; /* unless it is any */
    char end_text[HEDDLE_LINE_BYTES];
    /* forced: -1 and NULL: anything */
    int force_stage, force_repetition, force_layout;
    const char *force_method;
    sum best, second;
    int found;
    int64_t least_peak, second_peak, most_peak;
} judge;

static inline sum plus(sum a, sum b)
{
    for (int i = 0; i < 4; i++) {
        a.part[i] += b.part[i];
    }
    return a;
}

static inline int compare(sum a, sum b)
{
    for (int i = 0; i < 4; i++) {
        if (a.part[i] != b.part[i]) {
            return a.part[i] < b.part[i] ? -1 : 1;
        }
    }
    return 0;
}

static inline sum sum_of(const judge *j, const hd_price *p, int is_method)
{
    return j->is_time ? (sum){{p->time_ps, 0, 0, 0}}
                      : (sum){{p->moved.bytes_per_rank_max, p->moved.bytes_total, is_method, 0}};
}

static inline void list_ways(judge *j, int k)
{
    const hd_model_stage *stage = &j->model->stage[k];
    const hd_method_stage mixes = {.kind = stage->kind,
                                   .dim = stage->mixed_dim,
                                   .heads = stage->mixed_dim >= 0 ? stage->heads : 0,
                                   .causal = stage->kind == HEDDLE_STAGE_LINEAR && stage->causal,
                                   .decays = stage->kind == HEDDLE_STAGE_LINEAR && stage->decay != 1,
                                   .dims = stage->mixed_dims,
                                   .kv_heads = stage->kv_heads,
                                   .joined_rows = stage->joined_rows};
    const hd_method *method = NULL;
    j->nways[k] = 0;
    for (int i = 0; i < j->nlayouts; i++) {
        hd_method_group group;
        HD_OK(hd_method_group_make(&group, &j->model->shape, &j->mesh, &j->layout[i], &mixes));
        for (int m = 0; (method = hd_method_at(mixes.kind, m)) != NULL; m++) {
            char reason[HD_METHOD_REASON_BYTES];
            hd_price price;
            if (method->only_named || hd_method_why_not(reason, method, &group) != NULL) {
                continue;
            }
            assert_true(j->nways[k] < MAX_WAYS);
            HD_OK(hd_price_stage(&price, &j->pricer, k, &j->layout[i], method));
            int64_t kept = j->options.backward ? price.kept_bytes : 0;
            j->ways[k][j->nways[k]++] = (way){.layout = i,
                                              .method = method->name,
                                              .cost = sum_of(j, &price, method != &hd_method_local),
                                              .kept = kept,
                                              .need = price.input_bytes + kept + price.workspace_bytes};
        }
        hd_method_group_free(&group);
    }
}

static inline void list_edges(judge *j)
{
    const int is_any = j->options.epilogue != NULL && strcmp(j->options.epilogue, "any") == 0;
    for (int i = 0; i < j->nlayouts; i++) {
        hd_price price;
        for (int k = 0; k < j->nlayouts; k++) {
            HD_OK(hd_price_edge(&price, &j->pricer, &j->layout[i], &j->layout[k], 0));
            j->edge[i][k] = i == k ? (sum){{0, 0, 0, 0}} : sum_of(j, &price, 0);
            j->edge_need[i][k] = i == k ? 0 : price.input_bytes + price.workspace_bytes;
        }
        HD_OK(hd_price_edge(&price, &j->pricer, &j->layout[i], &j->end, 1));
        j->last[i] = is_any ? (sum){{0, 0, 0, 0}} : sum_of(j, &price, 0);
        j->last_need[i] = is_any ? 0 : price.input_bytes + price.workspace_bytes;
    }
}

static inline void end_walk(judge *j, sum cost, int64_t peak)
{
    peak += j->resident;
    if (peak < j->least_peak) {
        j->second_peak = j->least_peak;
        j->least_peak = peak;
    } else if (peak < j->second_peak) {
        j->second_peak = peak;
    }
    j->most_peak = peak > j->most_peak ? peak : j->most_peak;
    if (j->cap > 0 && peak > j->cap) {
        return;
    }
    if (j->found == 0 || compare(cost, j->best) < 0) {
        j->second = j->best;
        j->best = cost;
    } else if (j->found == 1 || compare(cost, j->second) < 0) {
        j->second = cost;
    }
    j->found += j->found < 2;
}

static inline int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline void try_all(judge *j, int step, int layout, sum so_far, int64_t kept, int64_t peak)
{
    if (step == j->nsteps) {
        end_walk(j, plus(so_far, j->last[layout]), larger(peak, kept + j->last_need[layout]));
        return;
    }
    int k = step % j->period;
    int forced = k == j->force_stage && (j->force_repetition < 0 || j->force_repetition == step / j->period);
    for (int i = 0; i < j->nways[k]; i++) {
        const way *w = &j->ways[k][i];
        if (forced && ((j->force_layout >= 0 && j->force_layout != w->layout) ||
                       (j->force_method != NULL && strcmp(j->force_method, w->method) != 0))) {
            continue;
        }
        sum cost = plus(so_far, w->cost);
        int64_t most = peak;
        if (step > 0) {
            cost = plus(cost, j->edge[layout][w->layout]);
            most = larger(most, kept + j->edge_need[layout][w->layout]);
        }
        try_all(j, step + 1, w->layout, cost, kept + w->kept, larger(most, kept + w->need));
    }
}

static inline void judge_all(judge *j)
{
    j->found = 0;
    j->least_peak = j->second_peak = INT64_MAX;
    j->most_peak = 0;
    try_all(j, 0, 0, (sum){{0, 0, 0, 0}}, 0, 0);
}

static inline double value_of(const judge *j, sum cost)
{
    return j->is_time ? (double)(cost.part[0] + hd_price_gradients_ps(&j->pricer)) / 1e12 : (double)cost.part[0];
}

/* Last digits may be lost on the way through a double. */
static inline void is_value(double found, double wanted, const char *what, int trial)
{
    double difference = found > wanted ? found - wanted : wanted - found;
    if (difference > wanted * 1e-12) {
        fail_msg("trial %d: %s is %.17g, %.17g by every walk", trial, what, found, wanted);
    }
}

static inline heddle_machine *machine_of(int which)
{
    static const char *const names[] = {"8xh100-nvlink", "8xl40-pcie", "2x4xh100-nvlink+eth100"};
    heddle_machine *machine = NULL;
    HD_OK(heddle_machine_load(&machine, names[which]));
    return machine;
}

/* Any, whole, or blocks of explicit lengths, which are no layout of the search's, where the mesh has room for them. */
static inline void draw_end(judge *j)
{
    const int kind = below(3);
    j->end = heddle_layout_replicated();
    j->options.epilogue = kind == 0 ? "any" : NULL;
    for (int i = 0; kind == 2 && i < 20 && j->end.nshards[0] == 0; i++) {
        j->end = j->layout[below(j->nlayouts)];
        draw_blocks(&j->end, &j->model->shape, &j->mesh);
    }
    if (kind == 2) {
        HD_OK(heddle_layout_format(j->end_text, sizeof j->end_text, &j->end, &j->model->shape, &j->mesh));
        j->options.epilogue = j->end_text;
    }
}

static inline void open_judge(judge *j, heddle_machine *machine, int is_time, int backward)
{
    static const char *const meshes[] = {"[sp=2]",    "[sp=3]",    "[sp=4]",       "[sp=8]",
                                         "[a=2 b=2]", "[a=2 b=4]", "[a=2 i=2 j=2]"};
    static const char *const orders[] = {"t-s", "ts", "t", "s-", "st-s", "T-", "tS", "-"};
    char dims[256];
    double walks = 1;
    int64_t elems[MAX_LAYOUTS];
    memset(j, 0, sizeof *j);
    HD_OK(heddle_mesh_parse(&j->mesh, meshes[below(7)]));
    snprintf(dims, sizeof dims, "b: {size: %d, role: batch}, t: %d, s: %d, c: {size: %d, role: channel}", 1 + below(3),
             1 + below(24), 1 + below(64), 64 * (1 + below(4)));
    const char *order = orders[below(j->mesh.naxes > 1 ? 4 : 8)];
    j->model =
        make_model("bf16", dims, below(3) == 0 ? "t, s, c" : "b, t, s, c", order, 1 + below(3), 4 << below(2), "");
    heddle_plan_options_init(&j->options);
    j->options.methods = "";
    j->options.slack_percent = 1000000000;
    j->options.machine = is_time ? machine : NULL;
    j->options.backward = backward;
    j->options.training = backward;
    j->is_time = is_time;
    j->pricer = (hd_pricer){.model = j->model, .machine = j->options.machine, .mesh = &j->mesh, .backward = backward};
    j->nlayouts = all_layouts(j->layout, elems, &j->model->shape, &j->mesh);
    draw_end(j);
    j->period = j->model->nstages;
    j->force_stage = -1;
    for (int k = 0; k < j->period; k++) {
        list_ways(j, k);
        walks *= j->nways[k];
    }
    double period_walks = walks;
    int repeat = 1;
    while (repeat < j->model->repeat && walks * period_walks <= MOST_WALKS) {
        walks *= period_walks;
        repeat++;
    }
    HD_OK(heddle_model_resize(j->model, NULL, repeat));
    j->nsteps = j->period * repeat;
    list_edges(j);
    HD_OK(hd_price_resident(&j->resident, &j->pricer));
    j->resident += hd_price_conditioning(j->model);
    if (walks > 4 * MOST_WALKS) { /* too many even once: another one */
        heddle_model_destroy(j->model);
        open_judge(j, machine, is_time, backward);
    }
}

/* The plan is the best walk, and the next best is known; *out stays NULL where there is none. */
static inline heddle_schedule *check_plan(judge *j, int trial)
{
    heddle_schedule *s = NULL;
    heddle_status st = heddle_plan(&s, j->model, &j->mesh, &j->options);
    if (j->found == 0) {
        assert_int_equal(st, HEDDLE_ERR_INFEASIBLE);
        return NULL;
    }
    if (st != HEDDLE_OK) {
        fail_msg("trial %d: %s", trial, heddle_last_error());
    }
    heddle_schedule_info info = info_of(s);
    is_value(info.value, value_of(j, j->best), "the value", trial);
    is_value(info.runner_up, j->found > 1 ? value_of(j, j->second) : 0, "the runner-up", trial);
    if (!j->is_time) {
        int64_t total = info.bytes_total + (j->options.backward ? info.backward_bytes_total : 0);
        assert_int_equal(total, j->best.part[1]);
    }
    assert_true(info.lower_bound <= info.value * (1 + 1e-12));
    return s;
}

static inline void close_judge(judge *j, heddle_machine *machine, heddle_schedule *schedule)
{
    heddle_schedule_destroy(schedule);
    heddle_model_destroy(j->model);
    heddle_machine_destroy(machine);
}

#endif
