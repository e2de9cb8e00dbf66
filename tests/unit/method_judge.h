/* What a method sends in a layout: every rank by itself, by the functions that the runtime plans with. */
#ifndef METHOD_JUDGE_H
#define METHOD_JUDGE_H

#include "case.h"

#include "runtime/schedule/schedule_internal.h"

#include <heddle/attention.h>
#include <heddle/linear_attention.h>
#include <string.h>

/* The axes of more than one rank that shard `dim`, as a mesh and layout of their own, and the rank's place in it. */
static inline int cut_out(heddle_mesh *mesh, heddle_layout *layout, int *place, const heddle_mesh *whole,
                          const heddle_layout *of, int dim, int rank)
{
    int coords[HEDDLE_MAX_AXES];
    int64_t *block = layout->shard_len;
    const int64_t *from = of->shard_len;
    HD_OK(heddle_mesh_coords(coords, whole, rank));
    *layout = heddle_layout_replicated();
    memset(mesh, 0, sizeof *mesh);
    *place = 0;
    for (int a = 0; a < whole->naxes; a++) {
        if (of->dim_of_axis[a] == dim && whole->axis[a].size > 1) {
            int k = mesh->naxes++;
            mesh->axis[k] = whole->axis[a];
            layout->dim_of_axis[k] = 1;
            layout->nshards[k] = of->nshards[a];
            memcpy(block, from, (size_t)of->nshards[a] * sizeof *block);
            block += of->nshards[a];
            *place = *place * whole->axis[a].size + coords[a];
        }
        from += of->nshards[a];
    }
    return mesh->naxes;
}

static inline heddle_status judge_rank(heddle_attention_traffic *out, const char *method, const hd_method_stage *stage,
                                       const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *layout,
                                       int rank)
{
    heddle_mesh group;
    heddle_layout cut;
    heddle_box box;
    int place = 0;
    int64_t channels = shape->dim[shape->ndim - 1].extent;
    heddle_shape fibres = {
        .dtype = shape->dtype,
        .ndim = 4,
        .dim = {{"f", 1}, {"x", shape->dim[stage->dim].extent}, {"h", stage->heads}, {"w", channels / stage->heads}}};
    cut_out(&group, &cut, &place, mesh, layout, stage->dim, rank);
    HD_OK(heddle_layout_box(&box, shape, mesh, layout, rank));
    for (int d = 0; d < shape->ndim - 1; d++) {
        fibres.dim[0].extent *= d == stage->dim ? 1 : box.len[d];
    }
    if (stage->kind == HEDDLE_STAGE_LINEAR) {
        heddle_linear_attention_options options;
        double decay[64];
        for (int h = 0; h < 64; h++) {
            decay[h] = stage->decays ? 0.9 : 1;
        }
        heddle_linear_attention_options_init(&options);
        HD_OK(heddle_linear_method_parse(&options.method, method));
        options.bidirectional = !stage->causal;
        options.decay = decay;
        return heddle_linear_attention_plan_traffic(out, &fibres, &group, &cut, &options, place);
    }
    heddle_attention_options options;
    heddle_attention_options_init(&options);
    HD_OK(heddle_attention_method_parse(&options.method, method));
    return heddle_attention_plan_traffic(out, &fibres, &group, &cut, &options, place);
}

static inline heddle_status judge(hd_method_cost *out, const char *method, const hd_method_stage *stage,
                                  const heddle_shape *shape, const heddle_mesh *mesh, const heddle_layout *layout)
{
    memset(out, 0, sizeof *out);
    for (int rank = 0; rank < heddle_mesh_size(mesh); rank++) {
        heddle_attention_traffic t;
        heddle_status st = judge_rank(&t, method, stage, shape, mesh, layout, rank);
        if (st != HEDDLE_OK) {
            return st;
        }
        hd_edge_cost *f = &out->forward;
        hd_edge_cost *b = &out->backward;
        f->bytes_per_rank_max = t.forward_bytes > f->bytes_per_rank_max ? t.forward_bytes : f->bytes_per_rank_max;
        b->bytes_per_rank_max = t.backward_bytes > b->bytes_per_rank_max ? t.backward_bytes : b->bytes_per_rank_max;
        f->bytes_total += t.forward_bytes;
        b->bytes_total += t.backward_bytes;
        f->messages += t.forward_messages;
        b->messages += t.backward_messages;
    }
    return HEDDLE_OK;
}

#endif
