/* The model, its making, and one training step. */
#include "trainer.h"

#include <math.h>
#include <string.h>

static const char model_text[] = "model: four-axes\n"
                                 "dtype: f32\n"
                                 "dims: {b: {size: 2, role: batch}, t: {size: 6, role: seq}, s: {size: 10, role: seq}, "
                                 "c: {size: 16, role: channel}}\n"
                                 "tensors: {x: [b, t, s, c]}\n"
                                 "stages:\n"
                                 "  - {name: space, kind: attention, over: s, heads: 2}\n"
                                 "  - {name: time, kind: attention, over: t, heads: 2}\n"
                                 "  - {name: pair, kind: mlp, width: 50}\n";

static float noise(int what, int64_t i)
{
    uint64_t h = ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u + (uint64_t)what * 0xc2b2ae3d27d4eb4fu;
    h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
    return (float)(h >> 40) / 8388608.0F - 1;
}

/* This rank's part of a global tensor that is a function of the element's number. */
static void make_part(float *out, const trainer *t, int what)
{
    const heddle_box *box = &t->box;
    const int64_t c = box->len[3];
    int64_t n = 0;
    for (int64_t b = 0; b < box->len[0]; b++) {
        for (int64_t i = 0; i < box->len[1]; i++) {
            for (int64_t s = 0; s < box->len[2] * c; s++) {
                int64_t row = ((box->lo[0] + b) * t->shape.dim[1].extent + box->lo[1] + i) * t->shape.dim[2].extent;
                out[n++] = noise(what, (row + box->lo[2]) * c + s);
            }
        }
    }
}

/* --- making ------------------------------------------------------------------------------------------------------- */

static heddle_status make_layer(trainer *t, layer *l, int index, const heddle_layout *pair_layout)
{
    heddle_dense_pair_options pair;
    heddle_param p[4];
    int64_t lo = 0, len = 0;
    heddle_status st = HEDDLE_OK;
    for (int k = 0; k < 2; k++) {
        heddle_block_options options;
        heddle_block_options_init(&options);
        options.kind = HEDDLE_STAGE_ATTENTION;
        options.shape = t->shape;
        options.mixed_dim = k == 0 ? 2 : 1;
        options.heads = 2;
        options.modulate = 0;
        st = st ? st : heddle_block_create(&l->block[k], &options);
        st = st ? st : heddle_block_seed(l->block[k], (uint64_t)(2 * index + k));
        for (int m = 0; m < MICRO; m++) {
            st = st ? st : heddle_tape_create(&l->tape[k][m], l->block[k], NULL);
        }
    }
    heddle_dense_pair_options_init(&pair);
    pair.hidden = HIDDEN;
    st = st ? st : heddle_dense_pair_create(&l->pair, t->inner, &t->shape, &t->inner_mesh, pair_layout, TP - 1, &pair);
    for (int i = 0; i < 4; i++) {
        p[i] = HEDDLE_EMPTY(heddle_param);
        st = st ? st : heddle_dense_pair_param(&p[i], l->pair, i);
    }
    if (st != HEDDLE_OK) {
        return st;
    }
    heddle_dense_pair_rows(&lo, &len, l->pair); /* this rank's rows of W1 and columns of W2 */
    int64_t c = p[3].extent[0];
    for (int64_t i = 0; i < len * c; i++) {
        p[0].data[i] = 0.3F * noise(100 + index, lo * c + i);
        p[2].data[i] = 0.3F * noise(200 + index, i / len * HIDDEN + lo + i % len);
    }
    return heddle_dense_pair_commit(l->pair);
}

/* Two buckets of gradients. Ranks that differ in sp or tp have worked on other rows of the same samples, so gradients
 * add up over both, except over tp where each rank has a block of the weight of its own. */
static heddle_status make_buckets(trainer *t)
{
    heddle_bucket_part part[2][LAYERS * 9];
    int n[2] = {0, 0};
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < t->nlayers; i++) {
        for (int j = 0; j < 12; j++) {
            heddle_param p = HEDDLE_EMPTY(heddle_param), g = HEDDLE_EMPTY(heddle_param);
            layer *l = &t->layer[i];
            int split = j >= 8 && j != 11; /* fc1 and fc2.weight, not fc2.bias */
            st = st      ? st
                 : j < 8 ? heddle_block_param(&p, l->block[j / 4], j % 4)
                         : heddle_dense_pair_param(&p, l->pair, j - 8);
            st = st      ? st
                 : j < 8 ? heddle_block_gradient(&g, l->block[j / 4], j % 4)
                         : heddle_dense_pair_gradient(&g, l->pair, j - 8);
            if (st != HEDDLE_OK) {
                return st;
            }
            int64_t elems = p.extent[0] * (p.ndim == 2 ? p.extent[1] : 1);
            part[split][n[split]++] = (heddle_bucket_part){p.data, g.data, elems, p.ndim == 2};
        }
    }
    for (int split = 0; split < 2; split++) {
        heddle_bucket_options options;
        heddle_adamw_options adamw;
        heddle_bucket_options_init(&options);
        options.sum_axes = 1U << SP | (split ? 0 : 1U << TP);
        options.average_axes = 1U << DP;
        options.shard_axis = DP; /* each data rank updates its block, then all gather */
        options.norm_axes = 1U << PP | (split ? 1U << TP : 0);
        heddle_adamw_options_init(&adamw);
        adamw.epsilon = 1e-3;
        adamw.max_norm = 10; /* the first step is clipped */
        st = st ? st : heddle_bucket_create(&t->bucket[split], t->comm, &t->mesh, part[split], n[split], &options);
        st = st ? st : heddle_adamw_create(&t->adamw[split], t->bucket[split], &adamw);
    }
    return st;
}

/* The planner decides where each stage is sharded: space by t, time by s, and what moves between them. */
static heddle_status make_plan(trainer *t)
{
    heddle_plan_options plan;
    heddle_schedule_info info = HEDDLE_EMPTY(heddle_schedule_info);
    heddle_session_options session;
    heddle_plan_options_init(&plan);
    plan.prologue = plan.epilogue = "b@dp,t@sp,t@tp";
    heddle_status st = heddle_model_parse(&t->model, model_text, strlen(model_text), "four-axes");
    st = st ? st : heddle_model_resize(t->model, NULL, t->nlayers);
    st = st ? st : heddle_plan(&t->schedule, t->model, &t->inner_mesh, &plan);
    st = st ? st : heddle_schedule_get_info(&info, t->schedule);
    t->shape = info.shape;
    heddle_session_options_init(&session);
    session.backward = 1;
    st = st ? st : heddle_session_create(&t->session, t->inner, t->schedule, &session);
    st = st ? st : heddle_layout_parse(&t->ends, plan.prologue, &t->shape, &t->inner_mesh);
    t->back = heddle_layout_dual(&t->ends);
    st = st ? st : heddle_layout_box(&t->box, &t->shape, &t->inner_mesh, &t->ends, heddle_comm_rank(t->inner));
    return st;
}

heddle_status trainer_make(trainer *t, heddle_comm *comm, const char *mesh_text)
{
    heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
    heddle_status st = heddle_mesh_parse(&t->mesh, mesh_text);
    if (st == HEDDLE_OK && (heddle_axis_index(&t->mesh, "pp") != PP || heddle_axis_index(&t->mesh, "dp") != DP ||
                            heddle_axis_index(&t->mesh, "sp") != SP || heddle_axis_index(&t->mesh, "tp") != TP ||
                            LAYERS % t->mesh.axis[PP].size != 0 || BATCH % t->mesh.axis[DP].size != 0)) {
        st =
            heddle_set_error(HEDDLE_ERR_ARG, "wanted a mesh [pp=.. dp=.. sp=.. tp=..] with pp 1, 2 or 4 and dp 1 or 2");
    }
    t->comm = comm;
    t->inner_mesh = (heddle_mesh){3, {t->mesh.axis[DP], t->mesh.axis[SP], t->mesh.axis[TP]}};
    st = st ? st : heddle_comm_axes_group(&t->inner, comm, &t->mesh, 1U << DP | 1U << SP | 1U << TP);
    st = st ? st : heddle_pipeline_create(&t->pipeline, comm, &t->mesh, PP);
    if (st == HEDDLE_OK) {
        t->nlayers = LAYERS / heddle_pipeline_stages(t->pipeline);
        t->first_layer = heddle_pipeline_stage(t->pipeline) * t->nlayers;
    }
    st = st ? st : make_plan(t);
    st = st ? st : heddle_schedule_stage_at(&stage, t->schedule, 2);
    for (int i = 0; i < t->nlayers; i++) {
        st = st ? st : make_layer(t, &t->layer[i], t->first_layer + i, &stage.layout);
    }
    return st ? st : make_buckets(t);
}

void trainer_free(trainer *t)
{
    for (int i = 0; i < 2; i++) {
        heddle_adamw_destroy(t->adamw[i]);
        heddle_bucket_destroy(t->bucket[i]);
    }
    for (int i = 0; i < LAYERS; i++) {
        heddle_dense_pair_destroy(t->layer[i].pair);
        for (int m = 0; m < MICRO; m++) {
            heddle_tape_destroy(t->layer[i].tape[0][m]);
            heddle_tape_destroy(t->layer[i].tape[1][m]);
        }
        heddle_block_destroy(t->layer[i].block[0]);
        heddle_block_destroy(t->layer[i].block[1]);
    }
    heddle_pipeline_destroy(t->pipeline);
    heddle_session_destroy(t->session);
    heddle_schedule_destroy(t->schedule);
    heddle_model_destroy(t->model);
    heddle_comm_destroy(t->inner);
}

/* --- one step ----------------------------------------------------------------------------------------------------- */

static const char *const stage_name[] = {"space", "time"};
static const heddle_conditioning none;

static heddle_status forward(trainer *t, int m, int step)
{
    heddle_tensor x;
    heddle_box box;
    const int rank = heddle_comm_rank(t->inner), last = heddle_pipeline_stages(t->pipeline) - 1;
    const size_t bytes = (size_t)heddle_box_elems(&t->box) * sizeof(float);
    heddle_status st = HEDDLE_OK;
    if (t->first_layer == 0) {
        make_part(t->x, t, 1000 + step * MICRO + m);
    } else {
        st = heddle_pipeline_recv_prev(t->pipeline, t->x, bytes, HEDDLE_NO_STREAM);
    }
    st = st ? st : heddle_tensor_init(&x, t->x, &t->shape, &t->inner_mesh, &t->ends, NULL, rank);
    st = st ? st : heddle_session_rewind(t->session);
    for (int i = 0; i < t->nlayers; i++) {
        layer *l = &t->layer[i];
        for (int k = 0; k < 2; k++) {
            st = st ? st : heddle_session_enter(t->session, stage_name[k], &x, NULL, HEDDLE_NO_STREAM);
            st = st ? st : heddle_layout_box(&box, &t->shape, &t->inner_mesh, &x.layout, rank);
            st = st ? st : heddle_block_forward_tape(l->block[k], &x, &box, &none, l->tape[k][m], HEDDLE_NO_STREAM);
        }
        st = st ? st : heddle_session_enter(t->session, "pair", &x, NULL, HEDDLE_NO_STREAM);
        if (st != HEDDLE_OK) {
            return st;
        }
        memcpy(l->pair_in[m], x.data, x.capacity_bytes);
        st = heddle_dense_pair_forward(l->pair, t->tmp, x.data, HEDDLE_NO_STREAM);
        for (size_t e = 0; e < x.capacity_bytes / sizeof(float); e++) {
            ((float *)x.data)[e] += t->tmp[e];
        }
    }
    st = st ? st : heddle_session_enter(t->session, "end", &x, NULL, HEDDLE_NO_STREAM);
    if (st == HEDDLE_OK) {
        memcpy(t->out[m], x.data, bytes);
    }
    return st || heddle_pipeline_stage(t->pipeline) == last
               ? st
               : heddle_pipeline_send_next(t->pipeline, t->out[m], bytes, HEDDLE_NO_STREAM);
}

/* Each data rank's loss is the mean over the elements of its own samples. */
static double loss_and_gradient(trainer *t, int m, int step)
{
    const int64_t elems = heddle_box_elems(&t->box);
    const double all = (double)PART * MICRO, own_samples = all / t->mesh.axis[DP].size;
    double loss = 0;
    make_part(t->tmp, t, 2000 + step * MICRO + m);
    for (int64_t e = 0; e < elems; e++) {
        double off = (double)t->out[m][e] - (double)t->tmp[e];
        loss += off * off / all;
        t->out[m][e] = (float)(2 * off / own_samples);
    }
    return loss;
}

static heddle_status backward(trainer *t, int m)
{
    heddle_tensor dx;
    const size_t bytes = (size_t)heddle_box_elems(&t->box) * sizeof(float);
    heddle_status st = HEDDLE_OK;
    if (heddle_pipeline_stage(t->pipeline) < heddle_pipeline_stages(t->pipeline) - 1) {
        st = heddle_pipeline_recv_next(t->pipeline, t->out[m], bytes, HEDDLE_NO_STREAM);
    }
    st = st ? st
            : heddle_tensor_init(&dx, t->out[m], &t->shape, &t->inner_mesh, &t->back, NULL, heddle_comm_rank(t->inner));
    st = st ? st : heddle_session_rewind(t->session);
    st = st ? st : heddle_session_backward(t->session, "end", &dx, NULL, HEDDLE_NO_STREAM);
    for (int i = t->nlayers - 1; i >= 0; i--) {
        layer *l = &t->layer[i];
        st = st ? st : heddle_dense_pair_backward(l->pair, t->tmp, dx.data, l->pair_in[m], HEDDLE_NO_STREAM);
        for (size_t e = 0; st == HEDDLE_OK && e < dx.capacity_bytes / sizeof(float); e++) {
            ((float *)dx.data)[e] += t->tmp[e];
        }
        st = st ? st : heddle_session_backward(t->session, "pair", &dx, NULL, HEDDLE_NO_STREAM);
        for (int k = 1; k >= 0; k--) {
            st = st ? st : heddle_block_backward(l->block[k], &dx, &none, NULL, l->tape[k][m], HEDDLE_NO_STREAM);
            st = st ? st : heddle_session_backward(t->session, stage_name[k], &dx, NULL, HEDDLE_NO_STREAM);
        }
    }
    return st || t->first_layer == 0 ? st : heddle_pipeline_send_prev(t->pipeline, dx.data, bytes, HEDDLE_NO_STREAM);
}

heddle_status train_step(double *loss, trainer *t, int step)
{
    double norm[2];
    heddle_status st = HEDDLE_OK;
    *loss = 0;
    for (int m = 0; m < MICRO; m++) { /* all forwards, then all backwards */
        st = st ? st : forward(t, m, step);
    }
    for (int m = 0; m < MICRO; m++) {
        if (st == HEDDLE_OK && heddle_pipeline_stage(t->pipeline) == heddle_pipeline_stages(t->pipeline) - 1) {
            *loss += loss_and_gradient(t, m, step);
        }
        st = st ? st : backward(t, m);
    }
    for (int i = 0; i < 2; i++) {
        st = st ? st : heddle_bucket_reduce(t->bucket[i], HEDDLE_NO_STREAM);
        st = st ? st : heddle_bucket_norm(&norm[i], t->bucket[i], HEDDLE_NO_STREAM);
    }
    for (int i = 0; i < 2; i++) {
        st = st ? st : heddle_adamw_step_clipped(t->adamw[i], 0.01, hypot(norm[0], norm[1]), HEDDLE_NO_STREAM);
        heddle_bucket_zero(t->bucket[i], HEDDLE_NO_STREAM);
    }
    for (int i = 0; i < t->nlayers; i++) {
        st = st ? st : heddle_block_commit(t->layer[i].block[0]);
        st = st ? st : heddle_block_commit(t->layer[i].block[1]);
        st = st ? st : heddle_dense_pair_commit(t->layer[i].pair);
    }
    return st ? st : heddle_comm_allreduce_sum(t->comm, loss, 1, HEDDLE_F64);
}
