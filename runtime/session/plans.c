/* One reshard per pair of layouts, shared by all edges that have it. */
#include "runtime/base/base.h"
#include "runtime/base/hash.h"
#include "session_internal.h"

#include <string.h>

/* What this rank sends, by the index algebra: independent of what the plan will count while it moves. */
static heddle_status planned_bytes(hd_session_plan *plan, const heddle_session *session,
                                   const heddle_reshard_line *line)
{
    void *sends = NULL;
    int count = 0;
    const int capacity = heddle_mesh_size(&line->mesh);
    heddle_status st;
    HD_TRY(hd_alloc(&sends, (size_t)capacity, sizeof(heddle_peer_bytes), "the bytes per peer of a switch"));
    HD_TRY(heddle_reshard_sends(sends, capacity, &count, line, session->rank));
    plan->bytes_planned = 0;
    for (int i = 0; i < count && i < capacity; i++) {
        plan->bytes_planned += ((const heddle_peer_bytes *)sends)[i].bytes;
    }
out:
    hd_free(sends);
    return st;
}

/* Something failed on this rank alone, before the others could be asked: they must not wait for it. */
static heddle_status tell(const heddle_session *session, heddle_status st)
{
    if (st != HEDDLE_OK) {
        heddle_comm_abort(session->comm, heddle_last_error());
    }
    return st;
}

static heddle_status describe_plan(hd_session_plan *plan, const heddle_session *session, const heddle_layout *from,
                                   const heddle_layout *to)
{
    heddle_reshard_line line;
    char text[HEDDLE_LINE_BYTES];
    heddle_status st;
    memset(&line, 0, sizeof(line));
    line.shape = session->info.shape;
    line.mesh = session->info.mesh;
    line.from = plan->from = *from;
    line.to = plan->to = *to;
    HD_TRY(heddle_reshard_format(text, sizeof(text), &line));
    HD_TRY(hd_strdup(&plan->line, text));
    HD_TRY(planned_bytes(plan, session, &line));
out:
    return st;
}

static heddle_status make(hd_session_plan *plan, heddle_session *session, const heddle_layout *from,
                          const heddle_layout *to)
{
    heddle_status st;
    HD_TRY(tell(session, describe_plan(plan, session, from, to)));
    if (session->dry_run) {
        goto out;
    }
    heddle_reshard_options options;
    heddle_reshard_options_init(&options);
    options.memory = HEDDLE_MEMORY_PEER; /* hd_session_source sees to it */
    HD_TRY(heddle_reshard_create(&plan->reshard, session->comm, &session->info.shape, &session->info.mesh, from, to,
                                 &options));
    plan->info.struct_bytes = sizeof(plan->info);
    HD_TRY(heddle_reshard_get_info(&plan->info, plan->reshard));
    session->counters.workspace_bytes += plan->info.workspace_bytes;
out:
    if (st != HEDDLE_OK) {
        heddle_reshard_destroy(plan->reshard);
        hd_free(plan->line);
        memset(plan, 0, sizeof(*plan));
    }
    return st;
}

static heddle_status reserve_one(heddle_session *session)
{
    if (session->nplans < session->plans_capacity) {
        return HEDDLE_OK;
    }
    void *bigger = NULL;
    const int capacity = session->plans_capacity * 2 + 8;
    heddle_status st = hd_alloc(&bigger, (size_t)capacity, sizeof(*session->plans), "a session's plans");
    if (st != HEDDLE_OK) {
        return st;
    }
    if (session->nplans > 0) {
        memcpy(bigger, session->plans, (size_t)session->nplans * sizeof(*session->plans));
    }
    hd_free(session->plans);
    session->plans = bigger;
    session->plans_capacity = capacity;
    return HEDDLE_OK;
}

heddle_status hd_session_plan_get(hd_session_plan **out, heddle_session *session, const heddle_layout *from,
                                  const heddle_layout *to)
{
    for (int i = 0; i < session->nplans; i++) {
        if (heddle_layout_equal(&session->plans[i].from, from, &session->info.mesh) &&
            heddle_layout_equal(&session->plans[i].to, to, &session->info.mesh)) {
            *out = &session->plans[i];
            return HEDDLE_OK;
        }
    }
    heddle_status st = tell(session, reserve_one(session));
    if (st == HEDDLE_OK) {
        st = make(&session->plans[session->nplans], session, from, to);
    }
    if (st == HEDDLE_OK) {
        *out = &session->plans[session->nplans++];
    }
    return st;
}

/* --- the same schedule everywhere --- */

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
