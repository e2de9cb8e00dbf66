/* The network as this rank holds it: the plan, a block for every stage, all parameters in one list. */
#include "train.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the planner needs to know. b is the number of data ranks: each works on one sample at a time. */
static heddle_status make_model(network *net)
{
    const options *opt = net->opt;
    char text[2048];
    const int64_t grid = opt->side / opt->patch;
    const char *time_kind = opt->linear ? "linear-attention" : "attention";
    const char *time_options = opt->linear ? "causal: false" : "rope: true, qk_norm: true";
    snprintf(text, sizeof(text),
             "model: train-video\n"
             "dtype: f32\n"
             "dims: {b: {size: %" PRId64 ", role: batch}, t: %" PRId64 ", s: %" PRId64 ", c: {size: %" PRId64
             ", role: channel}}\n"
             "tensors: {x: [b, t, s, c]}\n"
             "repeat: %" PRId64 "\n"
             "stages:\n"
             "  - {name: s.attn, kind: attention, over: s, heads: %" PRId64 ", modulate: true, qk_norm: true}\n"
             "  - {name: s.mlp, kind: mlp, ratio: 4, modulate: true}\n"
             "  - {name: t.attn, kind: %s, over: t, heads: %" PRId64 ", modulate: true, %s}\n"
             "  - {name: t.mlp, kind: mlp, ratio: 4, modulate: true}\n",
             opt->dp, opt->frames, grid * grid, opt->channels, opt->layers, opt->heads, time_kind, opt->heads,
             time_options);
    return heddle_model_parse(&net->model, text, strlen(text), "the model of this example");
}

/* Tokens come and go sharded over samples and frames; the planner decides what happens in between. */
static heddle_status make_plan(network *net)
{
    const char *home = "b@dp,t@sp";
    heddle_plan_options want;
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    heddle_session_options both;
    heddle_plan_options_init(&want);
    want.prologue = want.epilogue = home;
    want.methods = net->opt->methods;
    want.backward = 1;
    heddle_session_options_init(&both);
    both.backward = 1;
    heddle_status st = heddle_plan(&net->schedule, net->model, &net->mesh, &want);
    st = st ? st : heddle_schedule_get_info(&info, net->schedule);
    if (st != HEDDLE_OK) {
        return st;
    }
    net->shape = info.shape;
    net->nstages = info.nstages;
    st = heddle_layout_parse(&net->home, home, &net->shape, &net->mesh);
    st = st ? st : heddle_layout_box(&net->box, &net->shape, &net->mesh, &net->home, net->rank);
    st = st ? st : heddle_session_create(&net->session, net->comm, net->schedule, &both);
    net->rows = heddle_box_elems(&net->box) / net->opt->channels;
    return st;
}

static heddle_status make_stage(network *net, int index)
{
    stage *s = &net->stages[index];
    heddle_stage_info about = HEDDLE_EMPTY(heddle_stage_info);
    heddle_block_options want;
    heddle_tape_options keep;
    s->plan = HEDDLE_EMPTY(heddle_schedule_stage);
    heddle_status st = heddle_schedule_stage_at(&s->plan, net->schedule, index);
    st = st ? st : heddle_model_stage(&about, net->model, index % 4);
    if (st != HEDDLE_OK) {
        return st;
    }
    heddle_block_options_init(&want);
    want.kind = about.kind;
    want.shape = net->shape;
    want.mixed_dim = about.mixed_dim;
    want.heads = about.heads;
    want.mlp_channels = about.mlp_channels;
    want.modulate = about.modulate;
    want.rope = about.rope;
    want.qk_norm = about.qk_norm;
    want.causal = about.causal;
    want.decay = about.decay;
    heddle_tape_options_init(&keep);
    keep.recompute = net->opt->recompute;
    s->table = index / 2; /* attention and the MLP behind it share a vector */
    st = heddle_block_create(&s->block, &want);
    st = st ? st : heddle_block_seed(s->block, random_bits((uint64_t)net->opt->seed, 1, (uint64_t)index));
    if (st == HEDDLE_OK && strcmp(s->plan.method, "local") != 0) {
        st = heddle_block_shard_attention(s->block, net->comm, &net->mesh, &s->plan.layout, s->plan.method);
    }
    return st ? st : heddle_tape_create(&s->tape, s->block, &keep);
}

static void list_dense(network *net, dense *layer)
{
    net->parts[net->nparts++] = (heddle_bucket_part){layer->weight, layer->dweight, layer->in * layer->out, 1};
    net->parts[net->nparts++] = (heddle_bucket_part){layer->bias, layer->dbias, layer->out, 0};
}

/* Every parameter with its gradient, in the same order on every rank. */
static heddle_status list_parameters(network *net)
{
    int count = 4 * 2 + 1;
    for (int i = 0; i < net->nstages; i++) {
        count += heddle_block_nparams(net->stages[i].block);
    }
    net->parts = calloc((size_t)count, sizeof(*net->parts));
    if (net->parts == NULL) {
        return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for a list of %d parameters", count);
    }
    list_dense(net, &net->embed);
    list_dense(net, &net->final);
    list_dense(net, &net->cond.fc1);
    list_dense(net, &net->cond.fc2);
    net->parts[net->nparts++] = (heddle_bucket_part){net->cond.table, net->cond.dtable,
                                                     net->cond.ntables * ROWS_OF_VECTOR * net->opt->channels, 0};
    for (int i = 0; i < net->nstages; i++) {
        for (int k = 0; k < heddle_block_nparams(net->stages[i].block); k++) {
            heddle_param param = HEDDLE_EMPTY(heddle_param), grad = HEDDLE_EMPTY(heddle_param);
            heddle_status st = heddle_block_param(&param, net->stages[i].block, k);
            st = st ? st : heddle_block_gradient(&grad, net->stages[i].block, k);
            if (st != HEDDLE_OK) {
                return st;
            }
            net->parts[net->nparts++] = (heddle_bucket_part){
                param.data, grad.data, param.extent[0] * (param.ndim == 2 ? param.extent[1] : 1), param.ndim == 2};
        }
    }
    for (int i = 0; i < net->nparts; i++) {
        net->nparams += net->parts[i].elems;
    }
    return HEDDLE_OK;
}

static heddle_status make_buffers(network *net)
{
    const size_t rows = (size_t)(net->rows > 0 ? net->rows : 1), bytes = rows * (size_t)net->opt->channels * 4;
    const int64_t grid = net->opt->side / net->opt->patch;
    void *x = NULL, *dx = NULL;
    heddle_status st = heddle_buffer_alloc(&x, net->comm, bytes, HEDDLE_SPACE_HOST);
    st = st ? st : heddle_buffer_alloc(&dx, net->comm, bytes, HEDDLE_SPACE_HOST);
    net->x = x;
    net->dx = dx;
    net->normed = malloc(bytes);
    net->dnormed = malloc(bytes);
    net->rstd = malloc(rows * sizeof(float));
    net->positions = malloc((size_t)(grid * grid * net->opt->channels) * sizeof(float));
    if (net->normed == NULL || net->dnormed == NULL || net->rstd == NULL || net->positions == NULL) {
        return st ? st : heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for %zu bytes of activation", bytes);
    }
    position_table(net->positions, grid, net->opt->channels);
    return st;
}

heddle_status network_create(network *out, heddle_comm *comm, const options *opt)
{
    const uint64_t seed = (uint64_t)opt->seed;
    memset(out, 0, sizeof(*out));
    out->opt = opt;
    out->comm = comm;
    out->rank = heddle_comm_rank(comm);
    out->mesh = (heddle_mesh){.naxes = 2, .axis = {{"dp", (int)opt->dp}, {"sp", (int)opt->sp}}};
    out->width = COLOURS * opt->patch * opt->patch;
    heddle_status st = make_model(out);
    st = st ? st : make_plan(out);
    for (int i = 0; st == HEDDLE_OK && i < out->nstages; i++) {
        st = make_stage(out, i);
    }
    const double range = sqrt(6.0 / (double)(out->width + opt->channels));
    st = st ? st : dense_create(&out->embed, out->width, opt->channels, range, random_bits(seed, 2, 0));
    st = st ? st : dense_create(&out->final, opt->channels, out->width, range / 4, random_bits(seed, 2, 1));
    st = st ? st : condition_create(&out->cond, opt->channels, opt->dp, out->nstages / 2, random_bits(seed, 2, 2));
    st = st ? st : make_buffers(out);
    return st ? st : list_parameters(out);
}

void network_destroy(network *net)
{
    for (int i = 0; i < net->nstages; i++) {
        heddle_tape_destroy(net->stages[i].tape);
        heddle_block_destroy(net->stages[i].block);
    }
    dense_destroy(&net->embed);
    dense_destroy(&net->final);
    condition_destroy(&net->cond);
    heddle_session_destroy(net->session);
    heddle_schedule_destroy(net->schedule);
    heddle_model_destroy(net->model);
    if (net->comm != NULL) {
        heddle_buffer_free(net->comm, net->x);
        heddle_buffer_free(net->comm, net->dx);
    }
    free(net->parts);
    free(net->normed);
    free(net->dnormed);
    free(net->rstd);
    free(net->positions);
}

heddle_status network_commit(network *net)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; st == HEDDLE_OK && i < net->nstages; i++) {
        st = heddle_block_commit(net->stages[i].block);
    }
    return st;
}
