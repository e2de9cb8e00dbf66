/* Activations and gradients between neighbouring stages of a pipeline axis. */
#include "runtime/parallel/parallel_internal.h"

#include <stdio.h>
#include <string.h>

struct heddle_pipeline {
    heddle_comm *group; /* the ranks that differ on the pipeline axis only; rank = stage */
    int64_t bytes_sent;
};

heddle_status heddle_pipeline_create(heddle_pipeline **out, heddle_comm *comm, const heddle_mesh *mesh, int axis)
{
    heddle_status st = HEDDLE_OK;
    heddle_pipeline *pipeline = NULL;
    HD_TRY(HD_NEED(comm)); /* there is nobody to tell */
    st = HD_NEED(out, mesh);
    st = st == HEDDLE_OK ? hd_alloc((void **)&pipeline, 1, sizeof *pipeline, "a pipeline") : st;
    st = st == HEDDLE_OK ? heddle_mesh_check(mesh) : st;
    if (st == HEDDLE_OK && heddle_mesh_size(mesh) != heddle_comm_size(comm)) {
        st = hd_fail(HEDDLE_ERR_ARG, "the mesh has %d ranks, the communicator %d", heddle_mesh_size(mesh),
                     heddle_comm_size(comm));
    }
    if (st == HEDDLE_OK && (axis < 0 || axis >= mesh->naxes)) {
        st = hd_fail(HEDDLE_ERR_ARG, "a pipeline along axis %d of a mesh with %d axes", axis, mesh->naxes);
    }
    hd_fields asked = {.what = "pipeline"};
    char text[HEDDLE_LINE_BYTES] = "";
    st = st == HEDDLE_OK ? heddle_mesh_format(text, sizeof text, mesh) : st;
    hd_fields_add(&asked, "mesh", "%s", text);
    hd_fields_add(&asked, "axis", "%d", axis);
    HD_TRY(hd_comm_agree_on(comm, &asked, st));
    HD_TRY(heddle_comm_axis_group(&pipeline->group, comm, mesh, axis));
    *out = pipeline;
    pipeline = NULL;
out:
    heddle_pipeline_destroy(pipeline);
    return st;
}

void heddle_pipeline_destroy(heddle_pipeline *pipeline)
{
    if (pipeline != NULL) {
        heddle_comm_destroy(pipeline->group);
        hd_free(pipeline);
    }
}

int heddle_pipeline_stage(const heddle_pipeline *pipeline)
{
    return pipeline != NULL ? heddle_comm_rank(pipeline->group) : -1;
}

int heddle_pipeline_stages(const heddle_pipeline *pipeline)
{
    return pipeline != NULL ? heddle_comm_size(pipeline->group) : 0;
}

int64_t heddle_pipeline_bytes_sent(const heddle_pipeline *pipeline)
{
    return pipeline != NULL ? pipeline->bytes_sent : 0;
}

static heddle_status neighbour(int *out, const heddle_pipeline *pipeline, int step, const void *data, size_t bytes,
                               const char *function)
{
    if (pipeline == NULL || (data == NULL && bytes > 0)) {
        return hd_need(NULL, function, pipeline == NULL ? "pipeline" : "data");
    }
    int stage = heddle_comm_rank(pipeline->group), stages = heddle_comm_size(pipeline->group);
    if (stage + step < 0 || stage + step >= stages) {
        return hd_fail(HEDDLE_ERR_ARG, "stage %d of %d has no %s one", stage, stages, step > 0 ? "next" : "previous");
    }
    *out = stage + step;
    return HEDDLE_OK;
}

static heddle_status send(heddle_pipeline *pipeline, int step, const void *data, size_t bytes, heddle_stream stream,
                          const char *function)
{
    heddle_status st = HEDDLE_OK;
    int peer = 0;
    HD_TRY(neighbour(&peer, pipeline, step, data, bytes, function));
    HD_TRY(heddle_comm_sendrecv(pipeline->group, data, bytes, peer, NULL, 0, -1, stream));
    pipeline->bytes_sent += (int64_t)bytes;
out:
    return st;
}

static heddle_status recv(heddle_pipeline *pipeline, int step, void *data, size_t bytes, heddle_stream stream,
                          const char *function)
{
    heddle_status st = HEDDLE_OK;
    int peer = 0;
    HD_TRY(neighbour(&peer, pipeline, step, data, bytes, function));
    HD_TRY(heddle_comm_sendrecv(pipeline->group, NULL, 0, -1, data, bytes, peer, stream));
out:
    return st;
}

heddle_status heddle_pipeline_send_next(heddle_pipeline *pipeline, const void *data, size_t bytes, heddle_stream stream)
{
    return send(pipeline, 1, data, bytes, stream, __func__);
}

heddle_status heddle_pipeline_recv_prev(heddle_pipeline *pipeline, void *data, size_t bytes, heddle_stream stream)
{
    return recv(pipeline, -1, data, bytes, stream, __func__);
}

heddle_status heddle_pipeline_send_prev(heddle_pipeline *pipeline, const void *data, size_t bytes, heddle_stream stream)
{
    return send(pipeline, -1, data, bytes, stream, __func__);
}

heddle_status heddle_pipeline_recv_next(heddle_pipeline *pipeline, void *data, size_t bytes, heddle_stream stream)
{
    return recv(pipeline, 1, data, bytes, stream, __func__);
}
