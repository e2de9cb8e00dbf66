/* What an executor's blocks in host memory, its methods and its session will hold. The blocks' arrays are those of
 * docs/blocks.md: one of each kind for all stages, as large as the largest. */
#include "planner/price/price_internal.h"

#include "runtime/base/base.h"
#include "runtime/layout/algebra.h"

#include <heddle/forecast.h>
#include <string.h>

enum { LEAST_BUFFER_BYTES = 4096 };

/* Arrays of a box's rows. */
enum { WIDE, RESULT, FACTORS, TEXT, TURNED, D_RESULT, D_WIDE, D_TEXT, RAW, ARRAYS };

typedef struct arrays {
    int64_t bytes[ARRAYS];
} arrays;

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void want(arrays *all, int which, __int128 rows, __int128 columns, int64_t elem)
{
    all->bytes[which] = larger(all->bytes[which], hd_saturated((__int128)hd_saturated(rows * columns) * elem));
}

/* Attention over rows: q, k and v of them and results, all of which forward makes where dims are sharded, and
 * recomputing everywhere. */
static void want_mixing(arrays *all, const hd_share *share, const hd_pricer *p)
{
    const hd_model_stage *s = share->stage;
    const int is_linear = s->kind == HEDDLE_STAGE_LINEAR, is_sharded = share->group.n > 1;
    const int64_t elem = (int64_t)heddle_dtype_bytes(p->model->dtype), rows = share->rows, c = s->in_channels;
    if (p->backward ? p->recompute : is_sharded) {
        want(all, WIDE, rows, 3 * c, is_linear ? 4 : elem);
        want(all, RESULT, rows, c, elem);
        want(all, FACTORS, rows, is_linear ? s->heads : is_sharded ? 0 : 2 * s->heads, 4);
    }
    if (p->backward || is_sharded) {
        want(all, TURNED, rows, s->qk_norm ? 3 * c : 0, elem);
        want(all, RAW, rows, is_sharded && is_linear ? c : 0, 4);
    }
    if (p->backward) {
        want(all, D_RESULT, rows, c, 4);
        want(all, D_WIDE, rows, 3 * c, 4);
        want(all, RAW, rows, is_sharded && !is_linear && elem < 4 ? 4 * c : 0, elem);
    }
}

static void want_cross(arrays *all, const hd_share *share, const hd_pricer *p)
{
    const hd_model_stage *s = share->stage;
    const int64_t elem = (int64_t)heddle_dtype_bytes(p->model->dtype), rows = share->rows, c = s->in_channels;
    const __int128 text = (__int128)share->samples * p->model->text_tokens;
    if (!p->backward || p->recompute) {
        want(all, TEXT, text, 2 * c, elem);
    }
    if (p->backward) {
        want(all, D_RESULT, rows, c, 4);
        want(all, D_WIDE, rows, c, 4);
        want(all, D_TEXT, text, 2 * c, 4);
    }
    if (p->backward && p->recompute) {
        want(all, WIDE, rows, c, elem);
        want(all, RESULT, rows, c, elem);
        want(all, FACTORS, rows, 2 * s->heads, 4);
    }
}

static heddle_status hold_stage(heddle_forecast_executor *out, arrays *all, const hd_pricer *p,
                                const heddle_schedule *s, int i)
{
    heddle_status st = HEDDLE_OK;
    hd_price price;
    hd_share share = {0};
    const int k = i % s->period;
    const heddle_layout *layout = &s->layout[s->run[i].layout];
    HD_TRY(hd_price_stage(&price, p, k, layout, s->run[i].method));
    HD_TRY(hd_share_make(&share, p, k, layout, s->run[i].method));
    if (share.stage->kind == HEDDLE_STAGE_ATTENTION || share.stage->kind == HEDDLE_STAGE_LINEAR) {
        want_mixing(all, &share, p);
    } else if (share.stage->kind == HEDDLE_STAGE_CROSS) {
        want_cross(all, &share, p);
    }
    out->kept = hd_add_saturated(out->kept, price.kept_bytes);
    out->methods = larger(out->methods, price.method_bytes);
out:
    hd_share_free(&share);
    return st;
}

/* A block of its own has a stage in every repetition on the way back; else one for all that run alike. */
static int has_block(const heddle_schedule *s, const hd_pricer *p, int i)
{
    for (int j = i % s->period; j < i && !p->backward; j += s->period) {
        if (s->run[j].method == s->run[i].method &&
            (s->run[i].method == &hd_method_local || s->run[j].layout == s->run[i].layout)) {
            return 0;
        }
    }
    return 1;
}

/* Two buffers of the largest part that a rank has in any of the layouts, where anything is switched. */
static heddle_status hold_edges(heddle_forecast_executor *out, const hd_pricer *p, const heddle_schedule *s)
{
    heddle_status st = HEDDLE_OK;
    int moves = 0;
    int64_t most = LEAST_BUFFER_BYTES;
    for (int i = 0; i <= s->period * s->repeat; i++) {
        const hd_schedule_edge *e = &s->edge[i];
        hd_price price;
        if (e->kind != HD_EDGE_FREE) {
            HD_TRY(hd_price_edge(&price, p, &s->layout[e->from], &s->layout[e->to], i == s->period * s->repeat));
            most = larger(most, larger(price.input_bytes, price.workspace_bytes));
            moves |= price.workspace_bytes > 0;
        }
    }
    out->switches = moves ? hd_saturated(2 * (__int128)most) : 0;
out:
    return st;
}

heddle_status heddle_forecast_of_executor(heddle_forecast_executor *out, const heddle_model *model,
                                          const heddle_schedule *schedule, const heddle_forecast_options *options)
{
    heddle_status st = HEDDLE_OK;
    heddle_forecast_options o;
    heddle_forecast_executor made = {0};
    arrays all;
    memset(&all, 0, sizeof all);
    HD_TRY(HD_NEED(out, model, schedule));
    heddle_forecast_options_init(&o);
    HD_TRY(hd_struct_take(&o, options, HD_STRUCT(heddle_forecast_options, training)));
    HD_TRY(hd_price_need_schedule(model, schedule));
    const hd_pricer p = {.model = model,
                         .mesh = &schedule->mesh,
                         .backward = o.training != 0,
                         .recompute = o.training != 0 && o.recompute != 0};
    for (int i = 0; i < schedule->period * schedule->repeat; i++) {
        const int64_t weights = hd_saturated((__int128)model->stage[i % schedule->period].nweights * 4);
        made.parameters = hd_add_saturated(made.parameters, has_block(schedule, &p, i) ? weights : 0);
        HD_TRY(hold_stage(&made, &all, &p, schedule, i));
    }
    made.gradients = p.backward ? made.parameters : 0;
    for (int i = 0; i < ARRAYS; i++) {
        made.blocks = hd_add_saturated(made.blocks, all.bytes[i]);
    }
    HD_TRY(hold_edges(&made, &p, schedule));
    st = hd_struct_give(out, &made, HD_STRUCT(heddle_forecast_executor, parameters));
out:
    return st;
}
