/* The network as a rank holds it. */
#include "latte.h"

#include <stdlib.h>
#include <string.h>

int64_t rows_of(const heddle_box *box)
{
    return box->len[0] * box->len[1] * box->len[2];
}

static heddle_space space_of(const network *net)
{
    return net->is_there ? HEDDLE_SPACE_DEVICE : HEDDLE_SPACE_HOST;
}

/* Layers whose stages run alike share a block; of local attention the layout makes no difference. On a device every
 * layer has its own. */
static const net_stage *alike(const network *net, int index)
{
    const net_stage *s = &net->stages[index];
    for (int i = index % STAGES_PER_LAYER; i < index && !net->is_there; i += STAGES_PER_LAYER) {
        const net_stage *other = &net->stages[i];
        if (strcmp(other->plan.method, s->plan.method) == 0 &&
            (strcmp(s->plan.method, "local") == 0 ||
             heddle_layout_equal(&other->plan.layout, &s->plan.layout, &net->about.mesh))) {
            return other;
        }
    }
    return NULL;
}

static heddle_status make_block(network *net, net_stage *s, int index)
{
    heddle_stage_info about = HEDDLE_EMPTY(heddle_stage_info);
    heddle_block_options want;
    heddle_status st = heddle_model_stage(&about, net->work->model, index % STAGES_PER_LAYER);
    heddle_block_options_init(&want);
    want.kind = about.kind;
    want.shape = net->about.shape;
    want.mixed_dim = about.mixed_dim;
    want.heads = about.heads;
    want.mlp_channels = about.mlp_channels;
    want.text_tokens = net->work->in.text.extent[1];
    want.modulate = about.modulate;
    want.threads = (int)net->work->opt->threads;
    want.space = space_of(net);
    want.comm = net->comm;
    st = st ? st : heddle_block_create(&s->block, &want);
    if (st == HEDDLE_OK && strcmp(s->plan.method, "local") != 0) {
        st = heddle_block_shard_attention(s->block, net->comm, &net->about.mesh, &s->plan.layout, s->plan.method);
    }
    return st;
}

static heddle_status make_stages(network *net)
{
    heddle_status st = HEDDLE_OK;
    net->stages = calloc((size_t)net->about.nstages, sizeof(*net->stages));
    if (net->stages == NULL) {
        return no_memory("stages", net->about.nstages);
    }
    for (int i = 0; st == HEDDLE_OK && i < net->about.nstages; i++) {
        net_stage *s = &net->stages[i];
        s->plan = HEDDLE_EMPTY(heddle_schedule_stage);
        st = heddle_schedule_stage_at(&s->plan, net->work->schedule, i);
        const net_stage *same = st == HEDDLE_OK ? alike(net, i) : NULL;
        if (same != NULL) {
            s->block = same->block;
            s->is_shared = 1;
        } else if (st == HEDDLE_OK) {
            st = make_block(net, s, i);
        }
    }
    return st;
}

/* The layouts of both ends, and this rank's rows there. */
static heddle_status find_ends(network *net)
{
    heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
    net->about = HEDDLE_EMPTY(heddle_schedule_info);
    heddle_status st = heddle_schedule_get_info(&net->about, net->work->schedule);
    st = st ? st : heddle_schedule_edge_at(&edge, net->work->schedule, 0);
    net->first = edge.from;
    st = st ? st : heddle_schedule_edge_at(&edge, net->work->schedule, net->about.nedges - 1);
    net->last = edge.to;
    st = st ? st : heddle_layout_box(&net->first_box, &net->about.shape, &net->about.mesh, &net->first, net->rank);
    return st ? st : heddle_layout_box(&net->last_box, &net->about.shape, &net->about.mesh, &net->last, net->rank);
}

/* The result's tokens are short: each rank makes those of its rows, and all get all. */
static heddle_status make_collect(network *net)
{
    heddle_reshard_options want;
    heddle_shape shape = net->about.shape;
    const heddle_layout everywhere = heddle_layout_replicated();
    const int64_t width = net->layers.final.out, rows = shape.dim[0].extent * shape.dim[1].extent * shape.dim[2].extent;
    void *mine = NULL, *whole = NULL;
    shape.dim[3].extent = width;
    heddle_reshard_options_init(&want);
    want.tuning = HEDDLE_TUNING_RULES;
    want.space = space_of(net);
    want.device = net->is_there ? heddle_comm_device(net->comm) : 0;
    heddle_status st =
        heddle_reshard_create(&net->collect, net->comm, &shape, &net->about.mesh, &net->last, &everywhere, &want);
    st = st ? st
            : heddle_buffer_alloc(&mine, net->comm, (size_t)(rows_of(&net->last_box) * width + 1) * sizeof(float),
                                  space_of(net));
    net->mine = mine;
    st = st ? st : heddle_buffer_alloc(&whole, net->comm, (size_t)(rows * width) * sizeof(float), space_of(net));
    net->whole = whole;
    net->tokens = net->is_there ? malloc((size_t)(rows * width) * sizeof(float)) : net->whole;
    return st == HEDDLE_OK && net->tokens == NULL ? no_memory("the result's tokens", rows * width) : st;
}

static heddle_status make_buffers(network *net)
{
    const int64_t c = net->cfg->channels, b = net->work->samples;
    const int64_t first = rows_of(&net->first_box), last = rows_of(&net->last_box);
    const heddle_dim *dim = net->about.shape.dim;
    void *x = NULL;
    heddle_status st = heddle_buffer_alloc(&x, net->comm, (size_t)(first * c + 1) * sizeof(float), space_of(net));
    net->x = x;
    const struct {
        float **out;
        int64_t count;
    } all[] = {{&net->patches, first * net->layers.patch.in},
               {&net->normed, last * c},
               {&net->positions, dim[2].extent * c},
               {&net->frame_positions, dim[1].extent * c},
               {&net->text, b * net->work->in.text.extent[1] * c},
               {&net->features, b * TIME_FEATURES},
               {&net->hidden, b * c},
               {&net->active, b * c},
               {&net->time, b * c},
               {&net->shared, b * ROWS_OF_VECTOR * c},
               {&net->vector, b * ROWS_OF_VECTOR * c},
               {&net->table, ROWS_OF_VECTOR * c}};
    for (size_t i = 0; st == HEDDLE_OK && i < sizeof(all) / sizeof(all[0]); i++) {
        *all[i].out = malloc((size_t)(all[i].count + 1) * sizeof(float));
        st = *all[i].out != NULL ? HEDDLE_OK : no_memory("a rank's arrays", all[i].count);
    }
    return st;
}

static heddle_status make_session(network *net)
{
    heddle_session_options want;
    heddle_session_options_init(&want);
    want.space = space_of(net);
    want.device = net->is_there ? heddle_comm_device(net->comm) : 0;
    return heddle_session_create(&net->session, net->comm, net->work->schedule, &want);
}

heddle_status network_create(network *out, heddle_comm *comm, const job *work)
{
    memset(out, 0, sizeof(*out));
    out->work = work;
    out->cfg = &work->cfg;
    out->comm = comm;
    out->rank = heddle_comm_rank(comm);
    out->is_there = work->opt->device != NULL;
    heddle_status st = find_ends(out);
    st = st ? st : layers_take(&out->layers, work->files, out->cfg);
    st = st ? st : make_stages(out);
    st = st ? st : make_session(out);
    st = st ? st : make_collect(out);
    st = st ? st : make_buffers(out);
    if (st == HEDDLE_OK) {
        make_positions(out);
        st = project_text(out);
    }
    return st == HEDDLE_OK && out->is_there ? there_open(out) : st;
}

void network_destroy(network *net)
{
    if (net->is_there) {
        there_close(net);
        free(net->tokens);
    }
    for (int i = 0; net->stages != NULL && i < net->about.nstages; i++) {
        heddle_block_destroy(net->stages[i].is_shared ? NULL : net->stages[i].block);
    }
    free(net->stages);
    heddle_session_destroy(net->session);
    heddle_reshard_destroy(net->collect);
    heddle_buffer_free(net->comm, net->x);
    heddle_buffer_free(net->comm, net->mine);
    heddle_buffer_free(net->comm, net->whole);
    layers_free(&net->layers);
    float *const all[] = {net->patches, net->normed, net->positions, net->frame_positions, net->text,   net->features,
                          net->hidden,  net->active, net->time,      net->shared,          net->vector, net->table};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        free(all[i]);
    }
}
