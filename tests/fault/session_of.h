/* A session on a model of one stage. */
#ifndef SESSION_OF_H
#define SESSION_OF_H

#include "runtime/base/base.h"

#include <heddle/heddle.h>
#include <stdio.h>
#include <string.h>

enum { SESSION_ELEMS = 5 * 7 * 4 };

typedef struct session_of {
    heddle_model *model;
    heddle_schedule *schedule;
    heddle_session *session;
    heddle_shape shape;
    heddle_mesh mesh;
    heddle_layout before, within; /* the stage */
} session_of;

static inline heddle_status session_of_make(session_of *f, heddle_comm *comm)
{
    static const char text[] = "{model: one, dtype: f32, dims: {b: {size: 1, role: batch}, t: {size: 5, role: seq},"
                               " s: {size: 7, role: seq}, c: {size: 4, role: channel}}, tensors: {x: [b, t, s, c]},"
                               " stages: [{name: s.attn, kind: attention, over: s, heads: 2}]}";
    heddle_status st = HEDDLE_OK;
    char mesh[32];
    heddle_session_options options;
    heddle_plan_options plan;
    memset(f, 0, sizeof *f);
    snprintf(mesh, sizeof mesh, "[sp=%d]", heddle_comm_size(comm));
    HD_TRY(heddle_shape_parse(&f->shape, "f32[b=1 t=5 s=7 c=4]"));
    HD_TRY(heddle_mesh_parse(&f->mesh, mesh));
    HD_TRY(heddle_layout_parse(&f->before, "s@sp", &f->shape, &f->mesh));
    HD_TRY(heddle_layout_parse(&f->within, "t@sp", &f->shape, &f->mesh));
    HD_TRY(heddle_model_parse(&f->model, text, sizeof text - 1, "one.json"));
    heddle_plan_options_init(&plan);
    plan.prologue = "s@sp";
    HD_TRY(heddle_plan(&f->schedule, f->model, &f->mesh, &plan));
    heddle_session_options_init(&options);
    options.backward = 1;
    HD_TRY(heddle_session_create(&f->session, comm, f->schedule, &options));
out:
    return st;
}

static inline void session_of_end(session_of *f)
{
    heddle_session_destroy(f->session);
    heddle_schedule_destroy(f->schedule);
    heddle_model_destroy(f->model);
}

#endif
