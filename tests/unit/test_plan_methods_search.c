/* Plans of random small models against every assignment of layouts and methods there is. */
#include "case.h"
#include "draw.h"
#include "method_judge.h"
#include "plan_maker.h"

enum { MAX_LAYOUTS = 64, MAX_STAGES = 8 };

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
    HD_OK(hd_edge_links_listed(&forward, NULL, NULL, &b->shape, &b->mesh, from, to));
    if (b->backward) {
        heddle_layout behind = is_last ? *to : heddle_layout_dual(to); /* no partial sums here */
        heddle_layout before = heddle_layout_dual(from);
        HD_OK(hd_edge_links_listed(&back, NULL, NULL, &b->shape, &b->mesh, &behind, &before));
    }
    return (total){forward.bytes_per_rank_max + back.bytes_per_rank_max, forward.bytes_total + back.bytes_total, 0,
                   forward.bytes_total > 0, 0};
}

static void list_layouts(brute *b)
{
    const heddle_layout replicated = heddle_layout_replicated();
    b->nlayouts = all_layouts(b->layout, b->elems, &b->shape, &b->mesh);
    for (int i = 0; i < b->nlayouts; i++) {
        for (int k = 0; k < b->nlayouts; k++) {
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
        heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
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
    heddle_model_info info = HEDDLE_EMPTY(heddle_model_info);
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

HD_CASE(equals_exhaustive_search)
{
    int with_methods = 0;
    for (int trial = 0; trial < 1500; trial++) {
        with_methods += try_one(trial);
    }
    assert_true(with_methods > 100);
}
