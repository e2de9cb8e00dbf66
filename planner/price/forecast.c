/* A forecast: the prices of a schedule's stages and edges, added up. */
#include "planner/price/price_internal.h"

#include "runtime/base/base.h"
#include "runtime/layout/algebra.h"

#include <heddle/forecast.h>
#include <stdio.h>
#include <string.h>

struct heddle_forecast {
    char machine[HD_MACHINE_CALLED_BYTES];
    char link_name[HEDDLE_MACHINE_LINKS][HEDDLE_NAME_BYTES];
    hd_link_bytes link[HEDDLE_MACHINE_LINKS];
    heddle_forecast_info info;
    int nstages;
    hd_price *stage, *edge; /* [nstages], [nstages + 1] */
    int64_t *stage_bytes, *edge_bytes;
};

void heddle_forecast_options_init(heddle_forecast_options *options)
{
    if (options != NULL) {
        *options = (heddle_forecast_options){.struct_bytes = sizeof *options};
    }
}

void heddle_forecast_destroy(heddle_forecast *forecast)
{
    if (forecast != NULL) {
        HD_FREE_ALL(forecast->stage, forecast->edge, forecast->stage_bytes, forecast->edge_bytes, forecast);
    }
}

heddle_status hd_price_need_schedule(const heddle_model *m, const heddle_schedule *s)
{
    heddle_status st = HEDDLE_OK;
    if (s->period != m->nstages || s->repeat != m->repeat) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "the schedule has %d stages run %d times, model '%s' %d run %d times",
                       s->period, s->repeat, m->name, m->nstages, m->repeat);
    }
    HD_TRY(hd_shape_need(&s->shape, &m->shape, 1, "the schedule's activation", "the model has"));
    for (int k = 0; k < s->period; k++) {
        const hd_model_stage *stage = &m->stage[k];
        if (strcmp(s->stage[k].name, stage->name) != 0 || s->stage[k].mixes.dim != stage->mixed_dim) {
            return hd_fail(HEDDLE_ERR_LAYOUT, "stage %d of the schedule is '%s' over dim %d, the model's '%s' over %d",
                           k, s->stage[k].name, s->stage[k].mixes.dim, stage->name, stage->mixed_dim);
        }
    }
out:
    return st;
}

static heddle_status check(const hd_pricer *p, const heddle_schedule *s)
{
    if (p->in_parts < 0) {
        return hd_fail(HEDDLE_ERR_ARG, "workspace_bytes %lld: 0 or more", (long long)p->in_parts);
    }
    if (heddle_mesh_size(p->mesh) > p->machine->ranks) {
        return hd_fail(HEDDLE_ERR_ARG, "the schedule is for %d ranks, machine '%s' has %d", heddle_mesh_size(p->mesh),
                       p->machine->name, p->machine->ranks);
    }
    return hd_price_need_schedule(p->model, s);
}

/* What was priced before under the same conditions, or -1. */
static int same_stage(const heddle_schedule *s, int i)
{
    for (int j = i - s->period; j >= 0; j -= s->period) {
        if (s->run[j].layout == s->run[i].layout && s->run[j].method == s->run[i].method) {
            return j;
        }
    }
    return -1;
}

static int64_t channels_before(const heddle_model *m, int step, int nstages)
{
    return step < nstages ? m->stage[step % m->nstages].in_channels : m->stage[m->nstages - 1].channels;
}

static int same_edge(const heddle_schedule *s, const heddle_model *m, int i, int nstages)
{
    for (int j = 0; j < i && i < nstages; j++) {
        if (s->edge[j].kind != HD_EDGE_FREE && s->edge[j].from == s->edge[i].from && s->edge[j].to == s->edge[i].to &&
            channels_before(m, j, nstages) == channels_before(m, i, nstages)) {
            return j;
        }
    }
    return -1;
}

static heddle_status price_all(heddle_forecast *f, hd_pricer *p, const heddle_schedule *s)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < f->nstages; i++) {
        int same = same_stage(s, i);
        if (same >= 0) {
            f->stage[i] = f->stage[same];
        } else {
            HD_TRY(hd_price_stage(&f->stage[i], p, i % s->period, &s->layout[s->run[i].layout], s->run[i].method));
        }
    }
    for (int i = 0; i <= f->nstages; i++) {
        const hd_schedule_edge *e = &s->edge[i];
        int same = same_edge(s, p->model, i, f->nstages);
        p->channels = channels_before(p->model, i, f->nstages);
        if (same >= 0) {
            f->edge[i] = f->edge[same];
        } else if (e->kind != HD_EDGE_FREE) {
            HD_TRY(hd_price_edge(&f->edge[i], p, &s->layout[e->from], &s->layout[e->to], i == f->nstages));
        }
    }
out:
    return st;
}

static double seconds(int64_t ps)
{
    return (double)ps * 1e-12;
}

static void add_step(heddle_forecast *f, const hd_price *price)
{
    f->info.compute_s += seconds(price->compute_ps);
    f->info.transfer_s += seconds(price->transfer_ps);
    f->info.hidden_s += seconds(price->hidden_ps);
    for (int l = 0; l < f->info.nlinks; l++) {
        f->link[l].sent_max = hd_add_saturated(f->link[l].sent_max, price->link[l].sent_max);
        f->link[l].received_max = hd_add_saturated(f->link[l].received_max, price->link[l].received_max);
        f->link[l].total = hd_add_saturated(f->link[l].total, price->link[l].total);
    }
}

int64_t hd_price_conditioning(const heddle_model *m)
{
    int64_t samples = m->batch_dim >= 0 ? m->shape.dim[m->batch_dim].extent : 1;
    __int128 rows = (__int128)samples * m->text_tokens;
    return hd_saturated(rows * m->shape.dim[m->channel_dim].extent * (int64_t)heddle_dtype_bytes(m->dtype));
}

static void hold(heddle_forecast *f, int64_t *out, int64_t activations, int64_t workspace, int step)
{
    heddle_forecast_memory *m = &f->info.memory;
    *out = hd_add_saturated(m->weights, hd_add_saturated(activations, workspace));
    if (*out > m->total) {
        m->total = *out;
        m->activations = activations;
        m->workspace = workspace;
        m->peak_stage = step;
    }
}

/* An edge holds source and destination; a stage its input and what it works in; and each what earlier stages keep. A
 * stage is at its fullest on the way back, when its own is kept as well. */
static heddle_status hold_all(heddle_forecast *f, const hd_pricer *p)
{
    int64_t always = hd_price_conditioning(p->model);
    int64_t kept = always;
    heddle_status st = hd_price_resident(&f->info.memory.weights, p);
    f->info.memory.struct_bytes = sizeof f->info.memory;
    for (int i = 0; i <= f->nstages; i++) {
        const hd_price *e = &f->edge[i];
        hold(f, &f->edge_bytes[i], hd_add_saturated(kept, e->input_bytes), e->workspace_bytes, i);
        if (i < f->nstages) {
            const hd_price *s = &f->stage[i];
            kept = hd_add_saturated(kept, s->kept_bytes);
            hold(f, &f->stage_bytes[i], hd_add_saturated(kept, s->input_bytes), s->workspace_bytes, i);
        }
    }
    return st;
}

/* Sums do not wrap, they stay at the largest number: then nothing is said, but which stage it is. */
static heddle_status check_sums(const heddle_forecast *f, const heddle_schedule *s)
{
    if (hd_price_ps(f->info.serial_s) == INT64_MAX) {
        return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                       "the serial part of a sample would take a rank more than 2^63 picoseconds, which are 106 days");
    }
    for (int i = 0; i < f->nstages; i++) {
        const char *name = s->stage[i % s->period].name;
        if (f->stage[i].compute_ps == INT64_MAX || f->stage[i].transfer_ps == INT64_MAX) {
            return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                           "stage '%s' would take a rank more than 2^63 picoseconds, which are 106 days", name);
        }
        if (f->stage_bytes[i] == INT64_MAX) {
            return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                           "stage '%s' of repetition %d: the fullest rank would need more than 2^63 bytes", name,
                           i / s->period + 1);
        }
    }
    return HEDDLE_OK;
}

/* Of one sample: its text's rows have the text encoder's products, its own tokens those of the VAE. */
static double serial_s(const hd_pricer *p)
{
    const heddle_model *m = p->model;
    const double text = m->text_tokens > 0 ? (double)m->text_tokens : 1;
    double tokens = 1;
    for (int d = 0; d < m->shape.ndim; d++) {
        tokens *= d != m->batch_dim && d != m->channel_dim ? (double)m->shape.dim[d].extent : 1;
    }
    return hd_price_work_s(p, HD_WORK_PRODUCT, m->dtype, (double)m->serial_flops, text) +
           hd_price_work_s(p, HD_WORK_PRODUCT, m->dtype, (double)m->serial_token_flops * tokens, tokens);
}

static heddle_status add_up(heddle_forecast *f, hd_pricer *p, const heddle_schedule *s)
{
    heddle_status st = HEDDLE_OK;
    const heddle_model *m = p->model;
    hd_price ends;
    for (int i = 0; i <= f->nstages; i++) {
        add_step(f, &f->edge[i]);
        if (i < f->nstages) {
            add_step(f, &f->stage[i]);
        }
    }
    f->info.transfer_s += seconds(hd_price_gradients_ps(p));
    f->info.time_s = f->info.compute_s + f->info.transfer_s - f->info.hidden_s;
    f->info.serial_s = p->backward ? 0 : serial_s(p); /* once per sample, not in time_s; training makes none */
    f->info.sample_s = m->passes > 0 && !p->backward ? (double)m->passes * f->info.time_s + f->info.serial_s : 0;
    HD_TRY(hold_all(f, p));
    HD_TRY(check_sums(f, s));
    HD_TRY(hd_price_ends(&ends, p, &s->layout[s->run[0].layout], &s->layout[s->run[f->nstages - 1].layout]));
    f->info.end_bytes_per_rank_max = ends.moved.bytes_per_rank_max;
    f->info.end_s = seconds(ends.time_ps);
out:
    return st;
}

static heddle_status make(heddle_forecast *f, hd_pricer *p, const heddle_schedule *s)
{
    heddle_status st = HEDDLE_OK;
    size_t n = (size_t)f->nstages;
    const heddle_machine *machine = p->machine;
    HD_TRY(hd_alloc((void **)&f->stage, n, sizeof *f->stage, "prices of stages"));
    HD_TRY(hd_alloc((void **)&f->edge, n + 1, sizeof *f->edge, "prices of edges"));
    HD_TRY(hd_alloc((void **)&f->stage_bytes, n, sizeof *f->stage_bytes, "memory of stages"));
    HD_TRY(hd_alloc((void **)&f->edge_bytes, n + 1, sizeof *f->edge_bytes, "memory of edges"));
    snprintf(f->machine, sizeof f->machine, "%s", machine->name);
    f->info.nlinks = hd_price_levels(machine, p->mesh).count;
    for (int l = 0; l < f->info.nlinks; l++) {
        snprintf(f->link_name[l], sizeof f->link_name[l], "%s", machine->link[machine->level[l].link].name);
    }
    HD_TRY(price_all(f, p, s));
    st = add_up(f, p, s);
out:
    return st;
}

heddle_status heddle_forecast_create(heddle_forecast **out, const heddle_model *model, const heddle_schedule *schedule,
                                     const heddle_machine *machine, const heddle_forecast_options *options)
{
    heddle_status st = HEDDLE_OK;
    heddle_forecast *f = NULL;
    heddle_forecast_options o;
    HD_TRY(HD_NEED(out, model, schedule, machine));
    heddle_forecast_options_init(&o);
    HD_TRY(hd_struct_take(&o, options, HD_STRUCT(heddle_forecast_options, training)));
    hd_pricer p = {.model = model,
                   .machine = machine,
                   .mesh = &schedule->mesh,
                   .backward = o.training != 0,
                   .recompute = o.training != 0 && o.recompute != 0,
                   .in_parts = o.workspace_bytes};
    HD_TRY(check(&p, schedule));
    HD_TRY(hd_alloc((void **)&f, 1, sizeof *f, "a forecast"));
    f->nstages = schedule->period * schedule->repeat;
    HD_TRY(make(f, &p, schedule));
    *out = f;
    f = NULL;
out:
    heddle_forecast_destroy(f);
    return st;
}

heddle_status heddle_forecast_get_info(heddle_forecast_info *out, const heddle_forecast *forecast)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, forecast));
    heddle_forecast_info info = forecast->info;
    info.machine = forecast->machine;
    st = hd_struct_give(out, &info, HD_STRUCT(heddle_forecast_info, machine));
out:
    return st;
}

static heddle_status give_step(heddle_forecast_step *out, const hd_price *price, int64_t memory_bytes)
{
    heddle_forecast_step step = {.time_s = seconds(price->time_ps),
                                 .compute_s = seconds(price->compute_ps),
                                 .transfer_s = seconds(price->transfer_ps),
                                 .hidden_s = seconds(price->hidden_ps),
                                 .memory_bytes = memory_bytes,
                                 .kept_bytes = price->kept_bytes};
    for (int l = 0; l < HEDDLE_MACHINE_LINKS; l++) {
        step.link_sent_max[l] = price->link[l].sent_max;
        step.link_received_max[l] = price->link[l].received_max;
        step.link_total[l] = price->link[l].total;
    }
    return hd_struct_give(out, &step, HD_STRUCT(heddle_forecast_step, time_s));
}

static heddle_status need_index(const char *what, int index, int count)
{
    return index >= 0 && index < count ? HEDDLE_OK
                                       : hd_fail(HEDDLE_ERR_ARG, "%s %d of a forecast with %d", what, index, count);
}

heddle_status heddle_forecast_stage(heddle_forecast_step *out, const heddle_forecast *forecast, int stage)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, forecast));
    HD_TRY(need_index("stage", stage, forecast->nstages));
    st = give_step(out, &forecast->stage[stage], forecast->stage_bytes[stage]);
out:
    return st;
}

heddle_status heddle_forecast_edge(heddle_forecast_step *out, const heddle_forecast *forecast, int edge)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, forecast));
    HD_TRY(need_index("edge", edge, forecast->nstages + 1));
    st = give_step(out, &forecast->edge[edge], forecast->edge_bytes[edge]);
out:
    return st;
}

heddle_status heddle_forecast_link_at(heddle_forecast_link *out, const heddle_forecast *forecast, int link)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(HD_NEED(out, forecast));
    HD_TRY(need_index("link", link, forecast->info.nlinks));
    const hd_link_bytes *l = &forecast->link[link];
    const heddle_forecast_link made = {
        .name = forecast->link_name[link], .sent_max = l->sent_max, .received_max = l->received_max, .total = l->total};
    st = hd_struct_give(out, &made, HD_STRUCT(heddle_forecast_link, name));
out:
    return st;
}
