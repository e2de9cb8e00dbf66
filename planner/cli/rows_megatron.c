/* Tensor parallelism, which is no schedule of ours, from parts that are. */
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

/* The activation with one stage that mixes nothing: it runs in any layout, whatever the stages of the model want. */
static heddle_status open_rows(heddle_model **out, const heddle_model_info *model)
{
    const heddle_shape *shape = &model->shape;
    char text[2048];
    size_t used =
        (size_t)snprintf(text, sizeof text, "model: rows\ndtype: %s\ndims:\n", heddle_dtype_name(shape->dtype));
    for (int d = 0; d < shape->ndim && used < sizeof text; d++) {
        const char *role = d == model->channel_dim ? "channel" : d == model->batch_dim ? "batch" : "seq";
        used += (size_t)snprintf(text + used, sizeof text - used, "  %s: {size: %lld, role: %s}\n", shape->dim[d].name,
                                 (long long)shape->dim[d].extent, role);
    }
    for (int d = 0; d < shape->ndim && used < sizeof text; d++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", d == 0 ? "tensors:\n  x: [" : ", ",
                                 shape->dim[d].name);
    }
    if (used < sizeof text) {
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "]\nstages:\n  - {name: rows, kind: module, token_flops: 1}\n");
    }
    return used < sizeof text ? heddle_model_parse(out, text, used, "rows")
                              : heddle_set_error(HEDDLE_ERR_UNSUPPORTED, "the names of the dims are too long");
}

/* One all-gather of the activation, from rows shared by all ranks: the edge behind a stage that is forced there. A
 * reduce-scatter moves as much. */
static heddle_status price_gather(plan_row *out, const cli_question *q, const heddle_model_info *model,
                                  const char *mesh)
{
    heddle_forecast_step gather = HEDDLE_EMPTY(heddle_forecast_step);
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    cli_question whole = *q;
    cli_answer answer = {0};
    char rows[256], force[512];
    whole.ranks = 0;
    whole.options.epilogue = "*";
    whole.options.methods = "";
    whole.options.memory_bytes = 0;
    whole.model = NULL;
    heddle_status st = heddle_mesh_parse(&whole.mesh, mesh);
    st = st == HEDDLE_OK ? open_rows(&whole.model, model) : st;
    if (st != HEDDLE_OK) {
        return st;
    }
    write_longest(rows, sizeof rows, model, &whole.mesh);
    snprintf(force, sizeof force, "rows=%s", rows);
    whole.options.force = force;
    st = cli_answer_plan(&answer, &whole, &whole.options);
    st = st == HEDDLE_OK ? heddle_forecast_edge(&gather, answer.forecast, 1) : st;
    st = st == HEDDLE_OK ? heddle_schedule_edge_at(&edge, answer.schedule, 1) : st;
    cli_answer_end(&answer);
    heddle_model_destroy(whole.model);
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

/* --- memory ------------------------------------------------------------------------------------------------------- */

static int is_split(const heddle_stage_info *stage)
{
    return stage->kind == HEDDLE_STAGE_ATTENTION || stage->kind == HEDDLE_STAGE_MLP;
}

/* What one rank alone would hold. */
static heddle_status hold_alone(heddle_forecast_memory *out, const cli_question *q)
{
    cli_question alone = *q;
    cli_answer answer = {0};
    alone.ranks = 0;
    alone.options.epilogue = "any";
    alone.options.methods = alone.options.prologue = alone.options.force = NULL;
    alone.options.memory_bytes = 0;
    heddle_status st = heddle_mesh_parse(&alone.mesh, "[sp=1]");
    st = st == HEDDLE_OK ? cli_answer_plan(&answer, &alone, &alone.options) : st;
    if (st == HEDDLE_OK) {
        *out = answer.view.of.memory;
    }
    cli_answer_end(&answer);
    return st;
}

/* Inputs of stages, of those that are held when most is: in a training step the stages before keep theirs. */
static double held_inputs(const cli_question *q, const heddle_model_info *model, int peak, double row_bytes)
{
    double bytes = 0;
    const int last = peak < model->nstages * model->repeat ? peak : model->nstages * model->repeat - 1;
    for (int i = q->options.backward ? 0 : last; i <= last; i++) {
        heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
        heddle_ignore(heddle_model_stage(&stage, q->model, i % model->nstages));
        bytes += row_bytes * (double)stage.in_channels * (q->options.backward && i == last ? 2 : 1);
    }
    return bytes;
}

/* What stages make of their inputs is split, and so are weights of attention and MLP. Inputs are whole where sums are
 * all-reduced, split where rows are gathered; one activation that is gathered or summed comes on top. */
static heddle_status hold_split(plan_row *out, const cli_question *q, const heddle_model_info *model, int is_tp)
{
    heddle_forecast_memory alone;
    const heddle_status st = hold_alone(&alone, q);
    if (st != HEDDLE_OK) {
        return st;
    }
    double rows = 1, split = 0;
    for (int d = 0; d < model->shape.ndim; d++) {
        rows *= d == model->channel_dim ? 1 : (double)model->shape.dim[d].extent;
    }
    for (int k = 0; k < model->nstages; k++) {
        heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
        heddle_ignore(heddle_model_stage(&stage, q->model, k));
        split += model->weights_sharded || is_split(&stage) ? (double)stage.nweights * model->repeat : 0;
    }
    const double elem = (double)heddle_dtype_bytes(model->shape.dtype), n = out->ranks;
    const double channels = (double)model->shape.dim[model->channel_dim].extent;
    const double samples = model->batch_dim >= 0 ? (double)model->shape.dim[model->batch_dim].extent : 1;
    const double text = samples * (double)model->text_tokens * channels * elem;
    const double inputs = held_inputs(q, model, alone.peak_stage, rows * elem);
    const double whole = text + (is_tp ? inputs : 0) + rows * channels * elem;
    const double each = model->nweights > 0 ? (double)alone.weights / (double)model->nweights : 0;
    const double shared = (double)alone.activations + (double)alone.workspace - text - (is_tp ? inputs : 0);
    const double bytes = whole + shared / n + each * ((double)model->nweights - split * (1 - 1 / n));
    out->memory_bytes = bytes < 9e18 ? (int64_t)bytes : INT64_MAX;
    cli_row_weigh(out, q);
    if (q->options.memory_bytes > 0 && out->memory_bytes > q->options.memory_bytes) {
        snprintf(out->refusal, sizeof out->refusal, "a rank needs %lld bytes; %lld are allowed",
                 (long long)out->memory_bytes, (long long)q->options.memory_bytes);
    }
    return st;
}

/* --- the row ------------------------------------------------------------------------------------------------------ */

/* Gathers of the activation in a pass; a stage of half its channels counts half. An all-reduce moves what a gather and
 * a reduce-scatter move. On the way back rows are gathered once more, for gradients of weights. */
static double count_gathers(const cli_question *q, const heddle_model_info *model, int is_tp)
{
    double channels = 0;
    const int of_stage = 2 + (!q->options.backward ? 0 : is_tp ? 2 : 3);
    for (int k = 0; k < model->nstages; k++) {
        heddle_stage_info stage = HEDDLE_EMPTY(heddle_stage_info);
        heddle_ignore(heddle_model_stage(&stage, q->model, k));
        channels += is_split(&stage) ? (double)stage.in_channels : 0;
    }
    return channels * model->repeat * of_stage / (double)model->shape.dim[model->channel_dim].extent;
}

static int64_t times(int64_t bytes, double count)
{
    const double all = (double)bytes * count;
    return all < 9e18 ? (int64_t)(all + 0.5) : INT64_MAX;
}

heddle_status cli_row_of_megatron(plan_row *out, const cli_question *q, const plan_row *even, int is_tp)
{
    heddle_model_info model = HEDDLE_EMPTY(heddle_model_info);
    heddle_status st = heddle_model_get_info(&model, q->model);
    *out = *even;
    snprintf(out->name, sizeof out->name, is_tp ? "megatron-tp" : "megatron-sp");
    if (st != HEDDLE_OK || even->refusal[0] != '\0' || even->ranks == 1) {
        return st;
    }
    st = price_gather(out, q, &model, even->mesh);
    if (st == HEDDLE_ERR_INFEASIBLE) {
        snprintf(out->refusal, sizeof out->refusal, "its all-gather has no price: %s", heddle_last_error());
        return HEDDLE_OK;
    }
    const double gathers = count_gathers(q, &model, is_tp);
    out->sent_max = times(out->sent_max, gathers);
    out->total = times(out->total, gathers);
    out->time_s = even->compute_s + gathers * out->time_s;
    for (int i = 0; i < out->nlinks; i++) {
        out->link[i].sent_max = times(out->link[i].sent_max, gathers);
        out->link[i].received_max = times(out->link[i].received_max, gathers);
        out->link[i].total = times(out->link[i].total, gathers);
    }
    return st == HEDDLE_OK ? hold_split(out, q, &model, is_tp) : st;
}
