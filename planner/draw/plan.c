/* What is known of a schedule, from its forecast or from its own file. */
#include "planner/draw/draw.h"

#include <stdlib.h>
#include <string.h>

static draw_cost cost_of(const heddle_forecast_step *step, int nlinks)
{
    draw_cost c = {step->time_s, step->compute_s, step->transfer_s, step->hidden_s, step->memory_bytes, .link = -1};
    for (int l = 0; l < nlinks; l++) {
        c.link_sent_max[l] = step->link_sent_max[l];
        c.link = step->link_total[l] > 0 ? l : c.link;
    }
    return c;
}

static heddle_status take_forecast(draw_plan *p)
{
    heddle_status st = heddle_forecast_get_info(&p->cost, p->forecast);
    for (int i = 0; i < p->view.info.nedges && st == HEDDLE_OK; i++) {
        heddle_forecast_step step = HEDDLE_EMPTY(heddle_forecast_step);
        st = heddle_forecast_edge(&step, p->forecast, i);
        p->edge[i] = cost_of(&step, p->cost.nlinks);
        if (st == HEDDLE_OK && i < p->view.info.nstages) {
            st = heddle_forecast_stage(&step, p->forecast, i);
            p->stage[i] = cost_of(&step, p->cost.nlinks);
        }
    }
    return st;
}

/* Of a file that was planned for a machine: its seconds, of which nothing says what is work and what is transfer. A
 * stage that sends nothing only works. */
static heddle_status take_file(draw_plan *p)
{
    heddle_status st = HEDDLE_OK;
    p->cost.time_s = p->view.info.predicted_s;
    p->cost.machine = p->view.info.machine;
    for (int i = 0; i < p->view.info.nedges && st == HEDDLE_OK; i++) {
        heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        st = heddle_schedule_edge_at(&edge, p->view.schedule, i);
        p->edge[i] = (draw_cost){.time_s = edge.predicted_s, .transfer_s = edge.predicted_s, .link = -1};
        if (st == HEDDLE_OK && i < p->view.info.nstages) {
            st = heddle_schedule_stage_at(&stage, p->view.schedule, i);
            p->stage[i] = (draw_cost){.time_s = stage.predicted_s, .compute_s = stage.predicted_s, .link = -1};
        }
    }
    return st;
}

heddle_status draw_plan_make(draw_plan *out, const heddle_model *model, const heddle_schedule *schedule,
                             const heddle_machine *machine, const heddle_forecast *forecast)
{
    schedule_view *v = &out->view;
    memset(out, 0, sizeof *out);
    *v = (schedule_view){.model = model, .schedule = schedule, .info = HEDDLE_EMPTY(heddle_schedule_info)};
    v->is_stages_alone = 1;
    out->machine = machine;
    out->forecast = forecast;
    out->cost = HEDDLE_EMPTY(heddle_forecast_info);
    out->where = HEDDLE_EMPTY(heddle_machine_info);
    heddle_status st = heddle_schedule_get_info(&v->info, schedule);
    st = st == HEDDLE_OK && machine != NULL ? heddle_machine_get_info(&out->where, machine) : st;
    if (st != HEDDLE_OK) {
        return st;
    }
    v->nranks = heddle_mesh_size(&v->info.mesh);
    v->elems = 1;
    for (int d = 0; d < v->info.shape.ndim; d++) {
        v->elems *= (double)v->info.shape.dim[d].extent;
    }
    v->bytes = v->elems * (double)heddle_dtype_bytes(v->info.shape.dtype);
    if (forecast == NULL && !(v->info.predicted_s > 0)) {
        return HEDDLE_OK;
    }
    out->stage = calloc((size_t)v->info.nstages, sizeof *out->stage);
    out->edge = calloc((size_t)v->info.nedges, sizeof *out->edge);
    if (out->stage == NULL || out->edge == NULL) {
        st = heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for the times of %d stages", v->info.nstages);
    } else {
        st = forecast != NULL ? take_forecast(out) : take_file(out);
    }
    if (st != HEDDLE_OK) {
        draw_plan_free(out);
    }
    return st;
}

void draw_plan_free(draw_plan *plan)
{
    free(plan->stage);
    free(plan->edge);
    plan->stage = NULL;
    plan->edge = NULL;
}

double draw_value(const heddle_schedule_info *info)
{
    return info->objective != NULL ? info->value : (double)info->bytes_per_rank_max;
}
