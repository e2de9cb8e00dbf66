/* What a rank has on a device (--device): tokens, stages and the end of the network are there, from a pass's first
 * product to its last one. Up go patches and what the time says, down the result's tokens. */
#include "latte.h"

#include <heddle/sys/device.h>
#include <heddle/train/tape.h>
#include <stdlib.h>
#include <string.h>

static heddle_status settle(network *net)
{
    const heddle_device *table = heddle_comm_device_table(net->comm);
    const int device = heddle_comm_device(net->comm);
    void *event = NULL;
    int done = 0;
    heddle_status st = table->event_create(&event, device);
    st = st ? st : table->event_record(event, device, net->there.stream);
    while (st == HEDDLE_OK && !done) { /* kernels that wait for a rank end at their deadline */
        st = table->event_test(event, device, &done);
    }
    table->event_destroy(event, device);
    return st ? st : heddle_comm_poll(net->comm);
}

static heddle_status copy(network *net, void *dst, const void *src, int64_t count)
{
    const int64_t bytes = count * (int64_t)sizeof(float);
    net->there.copied_bytes += bytes;
    return bytes == 0 ? HEDDLE_OK
                      : heddle_comm_device_table(net->comm)->copy(dst, 0, src, 0, bytes, 1,
                                                                  heddle_comm_device(net->comm), net->there.stream);
}

static heddle_status make(float **out, network *net, int64_t count)
{
    void *memory = NULL;
    heddle_status st =
        heddle_buffer_alloc(&memory, net->comm, (size_t)(count + 1) * sizeof(float), HEDDLE_SPACE_DEVICE);
    *out = memory;
    return st;
}

/* Made, and filled with what the host has. */
static heddle_status place(float **out, network *net, const float *values, int64_t count)
{
    heddle_status st = make(out, net, count);
    return st ? st : copy(net, *out, values, count);
}

/* A row of `table` for each row of the box: the token's, or the frame's. */
static heddle_status place_rows(float **out, network *net, const heddle_box *box, const float *table, int dim)
{
    const int64_t c = net->cfg->channels, rows = rows_of(box);
    float *all = malloc((size_t)(rows * c + 1) * sizeof(float));
    heddle_status st = all != NULL ? HEDDLE_OK : no_memory("positions", rows * c);
    for (int64_t row = 0; st == HEDDLE_OK && row < rows; row++) {
        int64_t at[3];
        place_of(at, box, row);
        memcpy(all + row * c, table + at[dim] * c, (size_t)c * sizeof(float));
    }
    st = st ? st : place(out, net, all, rows * c);
    st = st ? st : settle(net); /* the rows are free again */
    free(all);
    return st;
}

/* Every stage of every layer keeps its weights, and all have one workspace. */
static heddle_status take_weights(network *net)
{
    heddle_status st = HEDDLE_OK;
    heddle_box box;
    for (int i = 0; st == HEDDLE_OK && i < net->about.nstages; i++) {
        const net_stage *s = &net->stages[i];
        st = i > 0 ? heddle_block_share_workspace(s->block, net->stages[0].block) : HEDDLE_OK;
        st = st ? st : block_take(s->block, net->work->files, net->cfg, i % STAGES_PER_LAYER, i / STAGES_PER_LAYER);
        st = st ? st : heddle_layout_box(&box, &net->about.shape, &net->about.mesh, &s->plan.layout, net->rank);
        st = st ? st : heddle_block_reserve(s->block, &box);
    }
    return st ? st : heddle_block_agree(net->stages[0].block, net->comm);
}

heddle_status there_open(network *net)
{
    there *d = &net->there;
    const layers *l = &net->layers;
    const int64_t c = net->cfg->channels, b = net->work->samples, halves = 2 * net->cfg->layers;
    const int64_t first = rows_of(&net->first_box), last = rows_of(&net->last_box);
    heddle_box box;
    heddle_status st = heddle_comm_device_table(net->comm)->stream_create(&d->stream, heddle_comm_device(net->comm));
    d->vectors_here = malloc((size_t)(b * (halves * ROWS_OF_VECTOR + 2) * c) * sizeof(float));
    st = st == HEDDLE_OK && d->vectors_here == NULL ? no_memory("conditioning", b * halves * ROWS_OF_VECTOR * c) : st;
    st = st ? st : heddle_layout_box(&box, &net->about.shape, &net->about.mesh, &net->stages[3].plan.layout, net->rank);
    st = st ? st : place(&d->patch_weight, net, l->patch.weight, l->patch.in * l->patch.out);
    st = st ? st : place(&d->patch_bias, net, l->patch.bias, l->patch.out);
    st = st ? st : place(&d->final_weight, net, l->final.weight, l->final.in * l->final.out);
    st = st ? st : place(&d->final_bias, net, l->final.bias, l->final.out);
    st = st ? st : place(&d->text, net, net->text, b * net->work->in.text.extent[1] * c);
    st = st ? st : place_rows(&d->positions, net, &net->first_box, net->positions, 2);
    st = st ? st : place_rows(&d->frame_positions, net, &box, net->frame_positions, 1);
    st = st ? st : make(&d->patches, net, first * l->patch.in);
    st = st ? st : make(&d->normed, net, last * c);
    st = st ? st : make(&d->vectors, net, b * (halves * ROWS_OF_VECTOR + 2) * c);
    st = st ? st : take_weights(net);
    st = st ? st : settle(net);
    d->copied_bytes = 0;
    return st ? st : heddle_comm_barrier(net->comm); /* nobody runs while others allocate */
}

void there_close(network *net)
{
    there *d = &net->there;
    float *const all[] = {d->patch_weight, d->patch_bias,      d->final_weight, d->final_bias, d->text,
                          d->positions,    d->frame_positions, d->patches,      d->normed,     d->vectors};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        heddle_buffer_free(net->comm, all[i]);
    }
    if (d->stream != HEDDLE_NO_STREAM) {
        heddle_comm_device_table(net->comm)->stream_destroy(d->stream, heddle_comm_device(net->comm));
    }
    free(d->vectors_here);
}

/* Behind the vectors of all layers' halves what the end of the network is given: [b, 2, c], shift and scale. */
static heddle_status take_vectors(network *net)
{
    const int64_t c = net->cfg->channels, b = net->work->samples, each = b * ROWS_OF_VECTOR * c;
    const int64_t halves = 2 * net->cfg->layers;
    float *ends = net->there.vectors_here + halves * each;
    heddle_status st = HEDDLE_OK;
    for (int64_t i = 0; st == HEDDLE_OK && i < halves; i++) {
        st = table_take(net->table, net->work->files, net->cfg, i % 2 == 0 ? 0 : 3, i / 2);
        make_vector(net);
        memcpy(net->there.vectors_here + i * each, net->vector, (size_t)each * sizeof(float));
    }
    for (int64_t i = 0; i < b * 2 * c; i++) {
        ends[i] = net->layers.final_table[i % (2 * c)] + net->time[i / (2 * c) * c + i % c];
    }
    return st ? st : copy(net, net->there.vectors, net->there.vectors_here, halves * each + b * 2 * c);
}

heddle_status there_begin(network *net)
{
    const there *d = &net->there;
    const int64_t rows = rows_of(&net->first_box), in = net->layers.patch.in, c = net->cfg->channels;
    heddle_status st = take_vectors(net);
    st = st ? st : copy(net, d->patches, net->patches, rows * in);
    st = st ? st
            : heddle_rows_dense(net->comm, net->x, d->patches, rows, in, d->patch_weight, d->patch_bias, c, HEDDLE_F32,
                                d->stream);
    st = st ? st : heddle_rows_add(net->comm, net->x, d->positions, rows, c, HEDDLE_F32, d->stream);
    return st;
}

heddle_status there_add_frames(network *net, const heddle_tensor *x, const heddle_box *box)
{
    return heddle_rows_add(net->comm, x->data, net->there.frame_positions, rows_of(box), net->cfg->channels, HEDDLE_F32,
                           net->there.stream);
}

const float *there_vector(const network *net, int index)
{
    const int64_t half = 2 * (index / STAGES_PER_LAYER) + (index % STAGES_PER_LAYER >= 3);
    return net->there.vectors + half * net->work->samples * ROWS_OF_VECTOR * net->cfg->channels;
}

heddle_status there_end(network *net, const heddle_tensor *x, int64_t all_rows)
{
    const there *d = &net->there;
    const heddle_box *box = &net->last_box;
    const int64_t c = net->cfg->channels, width = net->layers.final.out;
    const float *ends =
        d->vectors + net->work->samples * ROWS_OF_VECTOR * c * 2 * net->cfg->layers + box->lo[0] * 2 * c;
    heddle_status st = heddle_rows_norm(net->comm, d->normed, x->data, rows_of(box), c, ends, ends + c,
                                        box->len[1] * box->len[2], 2 * c, HEDDLE_F32, d->stream);
    st = st ? st
            : heddle_rows_dense(net->comm, net->mine, d->normed, rows_of(box), c, d->final_weight, d->final_bias, width,
                                HEDDLE_F32, d->stream);
    st = st ? st : heddle_reshard_execute(net->collect, net->mine, net->whole, d->stream);
    st = st ? st : settle(net); /* a copy to memory like this may keep other ranks' calls waiting until it is done */
    st = st ? st : copy(net, net->tokens, net->whole, all_rows * width);
    return st ? st : settle(net);
}
