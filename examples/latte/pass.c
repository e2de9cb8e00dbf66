/* One forward pass: patches to tokens, the blocks with a switch of the activation before those that want another
 * layout, tokens to patches. */
#include "latte.h"

#include <math.h>

void place_of(int64_t *at, const heddle_box *box, int64_t row)
{
    at[2] = box->lo[2] + row % box->len[2];
    at[1] = box->lo[1] + row / box->len[2] % box->len[1];
    at[0] = box->lo[0] + row / (box->len[2] * box->len[1]);
}

/* Where value (channel, y, x) of the patch of a token lies in an array [b, channels, t, h, w]. */
static int64_t pixel_of(const network *net, const int64_t *at, int64_t channels, int64_t channel, int64_t y, int64_t x)
{
    const int64_t p = net->cfg->patch, columns = net->work->columns_of_patches;
    const int64_t height = net->work->rows_of_patches * p, width = columns * p;
    const int64_t frames = net->about.shape.dim[1].extent;
    return (((at[0] * channels + channel) * frames + at[1]) * height + at[2] / columns * p + y) * width +
           at[2] % columns * p + x;
}

static heddle_status embed(network *net, const float *latent)
{
    const int64_t p = net->cfg->patch, in = net->cfg->in_channels, c = net->cfg->channels;
    const int64_t rows = rows_of(&net->first_box), values = net->layers.patch.in;
    int64_t at[3] = {0, 0, 0};
    for (int64_t i = 0; i < rows * values; i++) {
        const int64_t k = i % values;
        if (k == 0) {
            place_of(at, &net->first_box, i / values);
        }
        net->patches[i] = latent[pixel_of(net, at, in, k / (p * p), k / p % p, k % p)];
    }
    if (net->is_there) {
        return there_begin(net);
    }
    heddle_status st = dense_forward(net->x, &net->layers.patch, net->patches, rows, net->work->opt->threads);
    for (int64_t row = 0; st == HEDDLE_OK && row < rows; row++) {
        place_of(at, &net->first_box, row);
        for (int64_t k = 0; k < c; k++) {
            net->x[row * c + k] += net->positions[at[2] * c + k];
        }
    }
    return st;
}

static heddle_status add_frame_positions(network *net, heddle_tensor *tensor, const heddle_box *box)
{
    const int64_t c = net->cfg->channels;
    float *x = tensor->data;
    if (net->is_there) {
        return there_add_frames(net, tensor, box);
    }
    for (int64_t row = 0; row < rows_of(box); row++) {
        int64_t at[3];
        place_of(at, box, row);
        for (int64_t k = 0; k < c; k++) {
            x[row * c + k] += net->frame_positions[at[1] * c + k];
        }
    }
    return HEDDLE_OK;
}

/* In host memory blocks serve all layers, and so does the vector: the stage's is made. */
static heddle_status take_stage(network *net, int index)
{
    const int kind = index % STAGES_PER_LAYER;
    const int64_t layer = index / STAGES_PER_LAYER;
    const net_stage *s = &net->stages[index];
    heddle_status st = HEDDLE_OK;
    if (s->plan.kind == HEDDLE_STAGE_ATTENTION) { /* the first of its half of the layer */
        st = table_take(net->table, net->work->files, net->cfg, kind, layer);
        make_vector(net);
    }
    return st ? st : block_take(s->block, net->work->files, net->cfg, kind, layer);
}

static heddle_status run_stage(network *net, heddle_tensor *x, int index)
{
    const heddle_stream stream = net->there.stream;
    const heddle_conditioning given = {.vector = net->is_there ? there_vector(net, index) : net->vector,
                                       .text = net->is_there ? net->there.text : net->text};
    net_stage *s = &net->stages[index];
    heddle_box box;
    heddle_status st = net->is_there ? HEDDLE_OK : take_stage(net, index);
    st = st ? st : heddle_session_enter(net->session, s->plan.name, x, NULL, stream);
    st = st ? st : heddle_layout_box(&box, &net->about.shape, &net->about.mesh, &x->layout, net->rank);
    if (st == HEDDLE_OK && index == 3 && net->about.shape.dim[1].extent > 1) { /* before time is first attended over */
        st = add_frame_positions(net, x, &box);
    }
    return st ? st : heddle_block_forward(s->block, x, &box, &given, stream);
}

/* Norm without weights, and what the time says of shift and scale. */
static void norm_rows(network *net, const float *x)
{
    const int64_t c = net->cfg->channels;
    for (int64_t row = 0; row < rows_of(&net->last_box); row++) {
        const float *from = x + row * c, *table = net->layers.final_table;
        double mean = 0, square = 0;
        int64_t at[3];
        place_of(at, &net->last_box, row);
        for (int64_t k = 0; k < c; k++) {
            mean += from[k];
        }
        mean /= (double)c;
        for (int64_t k = 0; k < c; k++) {
            square += (from[k] - mean) * (from[k] - mean);
        }
        const double rstd = 1 / sqrt(square / (double)c + 1e-6);
        for (int64_t k = 0; k < c; k++) {
            const double time = net->time[at[0] * c + k];
            net->normed[row * c + k] = (float)((from[k] - mean) * rstd * (1 + table[c + k] + time) + table[k] + time);
        }
    }
}

/* A token of the result is its patch with the channel fastest. */
static void place_patches(float *result, const network *net)
{
    const heddle_dim *dim = net->about.shape.dim;
    const heddle_box all = {4, {0}, {dim[0].extent, dim[1].extent, dim[2].extent, 1}};
    const int64_t p = net->cfg->patch, out = net->cfg->out_channels, width = net->layers.final.out;
    int64_t at[3] = {0, 0, 0};
    for (int64_t i = 0; i < rows_of(&all) * width; i++) {
        const int64_t k = i % width;
        if (k == 0) {
            place_of(at, &all, i / width);
        }
        result[pixel_of(net, at, out, k % out, k / out / p, k / out % p)] = net->tokens[i];
    }
}

/* x behind the last stage to the tokens of the result, on every rank. */
static heddle_status end(network *net, const heddle_tensor *x)
{
    const heddle_dim *dim = net->about.shape.dim;
    if (net->is_there) {
        return there_end(net, x, dim[0].extent * dim[1].extent * dim[2].extent);
    }
    norm_rows(net, x->data);
    heddle_status st =
        dense_forward(net->mine, &net->layers.final, net->normed, rows_of(&net->last_box), net->work->opt->threads);
    return st ? st : heddle_reshard_execute(net->collect, net->mine, net->whole, HEDDLE_NO_STREAM);
}

heddle_status network_forward(network *net, float *result, const float *latent, double timestep)
{
    heddle_tensor x;
    heddle_status st = embed_time(net, timestep);
    st = st ? st : embed(net, latent);
    st = st ? st : heddle_tensor_init(&x, net->x, &net->about.shape, &net->about.mesh, &net->first, NULL, net->rank);
    x.space = net->is_there ? HEDDLE_SPACE_DEVICE : HEDDLE_SPACE_HOST;
    x.device = net->is_there ? heddle_comm_device(net->comm) : 0;
    st = st ? st : heddle_session_rewind(net->session);
    for (int i = 0; st == HEDDLE_OK && i < net->about.nstages; i++) {
        st = run_stage(net, &x, i);
    }
    st = st ? st : heddle_session_enter(net->session, "end", &x, NULL, net->there.stream);
    st = st ? st : end(net, &x);
    if (st == HEDDLE_OK) {
        place_patches(result, net);
    }
    return st;
}
