/* One forward pass: patches to tokens, the blocks with a switch of the activation before those that want another
 * layout, tokens to patches. */
#include "latte.h"

#include <math.h>

/* Global coordinates b, t, s of row `row` of a box. */
static void place_of(int64_t *at, const heddle_box *box, int64_t row)
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
    heddle_status st = dense_forward(net->x, &net->layers.patch, net->patches, rows, net->work->opt->threads);
    for (int64_t row = 0; st == HEDDLE_OK && row < rows; row++) {
        place_of(at, &net->first_box, row);
        for (int64_t k = 0; k < c; k++) {
            net->x[row * c + k] += net->positions[at[2] * c + k];
        }
    }
    return st;
}

static void add_frame_positions(const network *net, float *x, const heddle_box *box)
{
    const int64_t c = net->cfg->channels;
    for (int64_t row = 0; row < rows_of(box); row++) {
        int64_t at[3];
        place_of(at, box, row);
        for (int64_t k = 0; k < c; k++) {
            x[row * c + k] += net->frame_positions[at[1] * c + k];
        }
    }
}

static heddle_status run_stage(network *net, heddle_tensor *x, int index)
{
    const heddle_conditioning given = {.vector = net->vector, .text = net->text};
    const int kind = index % STAGES_PER_LAYER;
    const int64_t layer = index / STAGES_PER_LAYER;
    net_stage *s = &net->stages[index];
    heddle_box box;
    heddle_status st = HEDDLE_OK;
    if (s->plan.kind == HEDDLE_STAGE_ATTENTION) { /* the first of its half of the layer */
        st = table_take(net->table, net->work->files, net->cfg, kind, layer);
        make_vector(net);
    }
    st = st ? st : block_take(s->block, net->work->files, net->cfg, kind, layer);
    st = st ? st : heddle_session_enter(net->session, s->plan.name, x, NULL, HEDDLE_NO_STREAM);
    st = st ? st : heddle_layout_box(&box, &net->about.shape, &net->about.mesh, &x->layout, net->rank);
    if (st == HEDDLE_OK && index == 3 && net->about.shape.dim[1].extent > 1) { /* before time is first attended over */
        add_frame_positions(net, x->data, &box);
    }
    return st ? st : heddle_block_forward(s->block, x, &box, &given, HEDDLE_NO_STREAM);
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
        result[pixel_of(net, at, out, k % out, k / out / p, k / out % p)] = net->whole[i];
    }
}

heddle_status network_forward(network *net, float *result, const float *latent, double timestep)
{
    heddle_tensor x;
    heddle_status st = embed(net, latent);
    st = st ? st : embed_time(net, timestep);
    st = st ? st : heddle_tensor_init(&x, net->x, &net->about.shape, &net->about.mesh, &net->first, NULL, net->rank);
    st = st ? st : heddle_session_rewind(net->session);
    for (int i = 0; st == HEDDLE_OK && i < net->about.nstages; i++) {
        st = run_stage(net, &x, i);
    }
    st = st ? st : heddle_session_enter(net->session, "end", &x, NULL, HEDDLE_NO_STREAM);
    if (st != HEDDLE_OK) {
        return st;
    }
    norm_rows(net, x.data);
    st = dense_forward(net->mine, &net->layers.final, net->normed, rows_of(&net->last_box), net->work->opt->threads);
    st = st ? st : heddle_reshard_execute(net->collect, net->mine, net->whole, HEDDLE_NO_STREAM);
    if (st == HEDDLE_OK) {
        place_patches(result, net);
    }
    return st;
}
