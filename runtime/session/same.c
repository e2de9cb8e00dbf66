/* The ranks' schedules and options are compared before anything is made of them. */
#include "runtime/base/base.h"
#include "runtime/base/hash.h"
#include "session_internal.h"

#include <string.h>

/* Something failed on this rank alone, before the others could be asked: they must not wait for it. */
static heddle_status tell(const heddle_session *session, heddle_status st)
{
    if (st != HEDDLE_OK) {
        heddle_comm_abort(session->comm, heddle_last_error());
    }
    return st;
}

enum { FIELDS = 7 };

static const char *const field_names[FIELDS] = {
    "shape and mesh", "number of stages", "number of edges", "layouts", "stage names", "dry_run", "backward",
};

static heddle_status fingerprint(uint64_t *field, const heddle_session *session)
{
    const heddle_schedule_info *info = &session->info;
    char text[HEDDLE_LINE_BYTES];
    heddle_status st;
    memset(field, 0, FIELDS * sizeof(*field));
    HD_TRY(heddle_shape_format(text, sizeof(text), &info->shape));
    field[0] = hd_hash(HD_HASH_BASIS, text, strlen(text));
    HD_TRY(heddle_mesh_format(text, sizeof(text), &info->mesh));
    field[0] = hd_hash(field[0], text, strlen(text));
    field[1] = (uint64_t)info->nstages;
    field[2] = (uint64_t)info->nedges;
    field[3] = field[4] = HD_HASH_BASIS;
    for (int i = 0; i < info->nedges; i++) {
        heddle_schedule_edge edge;
        HD_TRY(heddle_schedule_edge_at(&edge, session->schedule, i));
        HD_TRY(heddle_layout_format(text, sizeof(text), &edge.from, &info->shape, &info->mesh));
        field[3] = hd_hash(field[3], text, strlen(text) + 1);
        HD_TRY(heddle_layout_format(text, sizeof(text), &edge.to, &info->shape, &info->mesh));
        field[3] = hd_hash(field[3], text, strlen(text) + 1);
    }
    for (int i = 0; i < info->nstages; i++) {
        heddle_schedule_stage stage;
        HD_TRY(heddle_schedule_stage_at(&stage, session->schedule, i));
        field[4] = hd_hash(field[4], stage.name, strlen(stage.name) + 1);
    }
    field[5] = (uint64_t)session->dry_run;
    field[6] = (uint64_t)session->backward;
out:
    return st;
}

heddle_status hd_session_compare(heddle_session *session)
{
    uint64_t mine[FIELDS] = {0};
    void *all = NULL;
    const int size = heddle_comm_size(session->comm);
    heddle_status st;
    HD_TRY(tell(session, fingerprint(mine, session)));
    HD_TRY(tell(session, hd_alloc(&all, (size_t)size, sizeof(mine), "the ranks' fingerprints of a session")));
    HD_TRY(heddle_comm_allgather(session->comm, mine, all, sizeof(mine)));
    const uint64_t(*of)[FIELDS] = all;
    for (int rank = 1; rank < size; rank++) {
        for (int f = 0; f < FIELDS; f++) {
            if (of[rank][f] != of[0][f]) {
                st = hd_fail(HEDDLE_ERR_MISMATCH,
                             "rank %d creates a session with another schedule than rank 0: %s "
                             "differ (%llx there, %llx on rank 0)",
                             rank, field_names[f], (unsigned long long)of[rank][f], (unsigned long long)of[0][f]);
                goto out;
            }
        }
    }
out:
    hd_free(all);
    return st;
}
