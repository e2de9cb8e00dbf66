/* Plans with whole dims of random small models against every assignment of layouts there is. */
#include "case.h"
#include "draw.h"
#include "plan_maker.h"

#include "runtime/schedule/schedule_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYOUTS = 64, MAX_STAGES = 8 };

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
    b->nlayouts = all_layouts(b->layout, b->elems, &b->shape, &b->mesh);
    for (int i = 0; i < b->nlayouts; i++) {
        for (int k = 0; k < b->nlayouts; k++) {
            hd_edge_cost cost;
            HD_OK(hd_edge_links_listed(&cost, NULL, NULL, &b->shape, &b->mesh, &b->layout[i], &b->layout[k]));
            b->edge[i][k] = (total){cost.bytes_per_rank_max, cost.bytes_total, cost.bytes_total > 0, 0};
        }
    }
}

/* A layout is allowed when the mixed dim is whole on every rank that has anything, and its largest part is within 25 %
 * of the smallest largest part. */
static void list_allowed(brute *b, const heddle_model *model, int period)
{
    for (int i = 0; i < b->nstages; i++) {
        heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
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
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
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
    heddle_model_info info = HEDDLE_EMPTY(heddle_model_info);
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
    heddle_model *model = attention_model(dims, seqs == 3 ? "b, t, s, u, c" : "b, t, s, c", order, repeat);
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
    heddle_schedule *s = plan_local(model, mesh, prologue, epilogue != NULL ? epilogue : "any");
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

HD_CASE(equals_exhaustive_search)
{
    for (int trial = 0; trial < 400; trial++) {
        try_one(trial);
    }
}
