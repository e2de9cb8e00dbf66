/* Megatron-SP, which is no schedule of ours, from parts that are. */
#include "rows.h"

#include <stdio.h>
#include <string.h>

/* "s@r,s@u": all axes on the dim with the most rows. */
static void write_longest(char *out, size_t out_bytes, const heddle_model_info *model, const heddle_mesh *mesh)
{
    int longest = -1;
    size_t used = 0;
    out[0] = '\0';
    for (int d = 0; d < model->shape.ndim; d++) {
        if (d != model->channel_dim && d != model->batch_dim &&
            (longest < 0 || model->shape.dim[d].extent > model->shape.dim[longest].extent)) {
            longest = d;
        }
    }
    for (int a = 0; a < mesh->naxes && longest >= 0 && used < out_bytes; a++) {
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s@%s", a > 0 ? "," : "",
                                 model->shape.dim[longest].name, mesh->axis[a].name);
    }
}

/* One all-gather of the activation, from rows shared by all ranks: the edge behind a last stage that is forced there.
 * A reduce-scatter moves as much. */
static heddle_status price_gather(plan_row *out, const cli_question *q, const heddle_model_info *model,
                                  const char *mesh)
{
    heddle_stage_info last = HEDDLE_EMPTY(heddle_stage_info);
    heddle_forecast_step gather = HEDDLE_EMPTY(heddle_forecast_step);
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    cli_question whole = *q;
    cli_answer answer = {0};
    char rows[256], force[512];
    whole.ranks = 0;
    whole.options.epilogue = "*";
    whole.options.methods = "";
    whole.options.memory_bytes = 0;
    heddle_status st = heddle_mesh_parse(&whole.mesh, mesh);
    st = st == HEDDLE_OK ? heddle_model_stage(&last, q->model, model->nstages - 1) : st;
    if (st != HEDDLE_OK) {
        return st;
    }
    write_longest(rows, sizeof rows, model, &whole.mesh);
    snprintf(force, sizeof force, "%s=%s", last.name, rows);
    whole.options.force = force;
    st = cli_answer_plan(&answer, &whole, &whole.options);
    const int end = st == HEDDLE_OK ? answer.view.info.nstages : 0;
    st = st == HEDDLE_OK ? heddle_forecast_edge(&gather, answer.forecast, end) : st;
    st = st == HEDDLE_OK ? heddle_schedule_edge_at(&edge, answer.schedule, end) : st;
    cli_answer_end(&answer);
    out->sent_max = edge.bytes_per_rank_max;
    out->total = edge.bytes_total;
    out->time_s = gather.transfer_s;
    for (int i = 0; i < out->nlinks; i++) {
        out->link[i].sent_max = gather.link_sent_max[i];
        out->link[i].received_max = gather.link_received_max[i];
        out->link[i].total = gather.link_total[i];
    }
    return st;
}

heddle_status cli_row_of_megatron(plan_row *out, const cli_question *q, const plan_row *even)
{
    heddle_model_info model = HEDDLE_EMPTY(heddle_model_info);
    int64_t exchanges = 0;
    heddle_status st = heddle_model_get_info(&model, q->model);
    *out = *even;
    snprintf(out->name, sizeof out->name, "megatron-sp");
    if (st != HEDDLE_OK || even->refusal[0] != '\0' || even->ranks == 1) {
        return st;
    }
    for (int k = 0; k < model.nstages; k++) {
        heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
        heddle_ignore(heddle_model_stage(&stage, q->model, k));
        exchanges += stage.kind == HEDDLE_STAGE_ATTENTION || stage.kind == HEDDLE_STAGE_MLP ? 2 * model.repeat : 0;
    }
    exchanges *= q->options.backward ? 2 : 1;
    st = price_gather(out, q, &model, even->mesh);
    if (st == HEDDLE_ERR_INFEASIBLE) {
        snprintf(out->refusal, sizeof out->refusal, "its all-gather has no price: %s", heddle_last_error());
        return HEDDLE_OK;
    }
    out->sent_max *= exchanges;
    out->total *= exchanges;
    out->time_s = even->compute_s + (double)exchanges * out->time_s;
    for (int i = 0; i < out->nlinks; i++) {
        out->link[i].sent_max *= exchanges;
        out->link[i].received_max *= exchanges;
        out->link[i].total *= exchanges;
    }
    out->memory_bytes = 0; /* its weights are sharded: memory of another model */
    return st;
}
