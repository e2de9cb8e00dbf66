/* Transfers along a pipeline axis: who gets what, both ways, sizes and memory of every kind, wrong use. */
#include "case.h"
#include "check.h"

#include "runtime/base/base.h"

#include <heddle/train/pipeline.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE = 300000 };

typedef struct problem {
    heddle_mesh mesh;
    int axis;
} problem;

/* Every stage hands on what it got with its rank added at the end of a list, then the list comes back. */
static heddle_status relay(heddle_pipeline *pipeline, heddle_comm *comm, unsigned char *data, size_t bytes)
{
    heddle_status st = HEDDLE_OK;
    int stage = heddle_pipeline_stage(pipeline), stages = heddle_pipeline_stages(pipeline);
    memset(data, 255, bytes);
    if (stage > 0) {
        HD_TRY(heddle_pipeline_recv_prev(pipeline, data, bytes, HEDDLE_NO_STREAM));
    }
    if (bytes > 16) {
        data[stage] = (unsigned char)heddle_comm_rank(comm);
        data[bytes - 1] = (unsigned char)stage;
    }
    if (stage + 1 < stages) {
        HD_TRY(heddle_pipeline_send_next(pipeline, data, bytes, HEDDLE_NO_STREAM));
        HD_TRY(heddle_pipeline_recv_next(pipeline, data, bytes, HEDDLE_NO_STREAM));
    }
    if (stage > 0) {
        HD_TRY(heddle_pipeline_send_prev(pipeline, data, bytes, HEDDLE_NO_STREAM));
    }
out:
    return st;
}

static heddle_status relay_rank(heddle_comm *comm, void *arg)
{
    heddle_status st = HEDDLE_OK;
    const problem *p = arg;
    const size_t sizes[] = {0, 40, LARGE};
    heddle_pipeline *pipeline = NULL;
    unsigned char *own = malloc(LARGE);
    void *reached = NULL;
    int coords[HEDDLE_MAX_AXES], stages = p->mesh.axis[p->axis].size;
    int64_t sent = 0;
    HD_TRY(heddle_mesh_coords(coords, &p->mesh, heddle_comm_rank(comm)));
    HD_TRY(heddle_buffer_alloc(&reached, comm, LARGE, HEDDLE_SPACE_HOST));
    HD_TRY(heddle_pipeline_create(&pipeline, comm, &p->mesh, p->axis));
    int stage = heddle_pipeline_stage(pipeline);
    CHECK(stage == coords[p->axis] && heddle_pipeline_stages(pipeline) == stages);
    for (int turn = 0; turn < 6; turn++) {
        unsigned char *data = turn < 3 ? own : reached;
        size_t bytes = sizes[turn % 3];
        HD_TRY(relay(pipeline, comm, data, bytes));
        sent += (int64_t)bytes * ((stage + 1 < stages) + (stage > 0));
        for (int s = 0; bytes > 0 && s < stages; s++) { /* all that differ on the axis only, in its order */
            int wanted[HEDDLE_MAX_AXES];
            HD_TRY(heddle_mesh_coords(wanted, &p->mesh, data[s]));
            for (int a = 0; a < p->mesh.naxes; a++) {
                CHECK(wanted[a] == (a == p->axis ? s : coords[a]));
            }
        }
        CHECK(bytes == 0 || data[bytes - 1] == stages - 1);
    }
    CHECK(heddle_pipeline_bytes_sent(pipeline) == sent);
    CHECK(stage > 0 || heddle_pipeline_send_prev(pipeline, own, 1, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    CHECK(stage > 0 || heddle_pipeline_recv_prev(pipeline, own, 1, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    CHECK(stage + 1 < stages || heddle_pipeline_send_next(pipeline, own, 1, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    CHECK(stage + 1 < stages || heddle_pipeline_recv_next(pipeline, own, 1, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    CHECK(heddle_pipeline_send_next(pipeline, NULL, 1, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    CHECK(heddle_pipeline_send_next(NULL, own, 1, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
    HD_TRY(heddle_comm_barrier(comm));
    if (stages > 1 && stage < 2) { /* another size on the other side: both hear of it */
        CHECK((stage == 0 ? heddle_pipeline_send_next(pipeline, own, 9, HEDDLE_NO_STREAM)
                          : heddle_pipeline_recv_prev(pipeline, own, 8, HEDDLE_NO_STREAM)) == HEDDLE_ERR_MISMATCH);
    }
out:
    heddle_pipeline_destroy(pipeline);
    heddle_buffer_free(comm, reached);
    free(own);
    return st;
}

HD_CASE(relays)
{
    static const problem problems[] = {
        {{.naxes = 1, .axis = {{"pp", 1}}}, 0},
        {{.naxes = 1, .axis = {{"pp", 2}}}, 0},
        {{.naxes = 2, .axis = {{"pp", 3}, {"sp", 2}}}, 0},
        {{.naxes = 2, .axis = {{"dp", 2}, {"pp", 4}}}, 1},
        {{.naxes = 4, .axis = {{"pp", 2}, {"dp", 2}, {"tp", 2}, {"sp", 2}}}, 0},
    };
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        for (int t = 0; t < 4; t++) {
            heddle_comm_options options;
            heddle_comm_options_init(&options);
            options.pretend_hosts = t >= 2 ? 2 : 0;
            HD_OK(heddle_run_ranks_with(heddle_mesh_size(&problems[i].mesh), t % 2 ? "shm" : "threads", &options,
                                        relay_rank, (void *)&problems[i]));
        }
    }
}

HD_RANK_CASE(mistakes, "4 threads", "4 shm")
{
    heddle_status st = HEDDLE_OK;
    heddle_pipeline *pipeline = NULL;
    const heddle_mesh mesh = {.naxes = 2, .axis = {{"pp", 2}, {"dp", 2}}};
    const heddle_mesh small = {.naxes = 1, .axis = {{"pp", 2}}};
    int odd = heddle_comm_rank(comm) == 3;
    heddle_status alone = odd ? HEDDLE_ERR_ARG : HEDDLE_ERR_PEER;
    CHECK(heddle_pipeline_create(&pipeline, comm, odd ? NULL : &mesh, 0) == alone);
    CHECK(heddle_pipeline_create(&pipeline, comm, odd ? &small : &mesh, 0) == alone);
    CHECK(heddle_pipeline_create(&pipeline, comm, &mesh, odd ? -1 : 0) == alone);
    CHECK(heddle_pipeline_create(&pipeline, comm, &mesh, odd ? 2 : 0) == alone);
    CHECK(heddle_pipeline_create(&pipeline, comm, &mesh, odd) == HEDDLE_ERR_MISMATCH);
    CHECK(strstr(heddle_last_error(), "rank 3") != NULL && pipeline == NULL);
    CHECK(heddle_pipeline_create(NULL, comm, &mesh, 0) == HEDDLE_ERR_ARG);
    CHECK(heddle_pipeline_create(&pipeline, NULL, &mesh, 0) == HEDDLE_ERR_ARG);
    HD_TRY(heddle_pipeline_create(&pipeline, comm, &mesh, 0));
    if (heddle_comm_rank(comm) < 2) {
        CHECK(heddle_pipeline_send_prev(pipeline, &odd, sizeof odd, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
        CHECK(strstr(heddle_last_error(), "stage 0 of 2 has no previous one") != NULL);
    } else {
        CHECK(heddle_pipeline_recv_next(pipeline, &odd, sizeof odd, HEDDLE_NO_STREAM) == HEDDLE_ERR_ARG);
        CHECK(strstr(heddle_last_error(), "stage 1 of 2 has no next one") != NULL);
    }
    HD_TRY(heddle_comm_barrier(comm));
out:
    heddle_pipeline_destroy(pipeline);
    return st;
}

HD_CASE(null_is_taken)
{
    heddle_pipeline_destroy(NULL);
}
