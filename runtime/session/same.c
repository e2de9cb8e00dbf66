/* The ranks' schedules and options are compared before anything is made of them. */
#include "runtime/base/base.h"
#include "runtime/base/hash.h"
#include "runtime/comm/comm_internal.h"
#include "session_internal.h"

#include <string.h>

/* Layouts and names may be many: their order and their texts as one number. */
static heddle_status add_schedule(hd_fields *fields, const heddle_session *session, char text[HEDDLE_LINE_BYTES])
{
    const heddle_schedule_info *info = &session->info;
    uint64_t layouts = HD_HASH_BASIS, names = HD_HASH_BASIS;
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < info->nedges; i++) {
        heddle_schedule_edge edge = HEDDLE_EMPTY(heddle_schedule_edge);
        HD_TRY(heddle_schedule_edge_at(&edge, session->schedule, i));
        HD_TRY(heddle_layout_format(text, HEDDLE_LINE_BYTES, &edge.from, &info->shape, &info->mesh));
        layouts = hd_hash(layouts, text, strlen(text) + 1);
        HD_TRY(heddle_layout_format(text, HEDDLE_LINE_BYTES, &edge.to, &info->shape, &info->mesh));
        layouts = hd_hash(layouts, text, strlen(text) + 1);
    }
    for (int i = 0; i < info->nstages; i++) {
        heddle_schedule_stage stage = HEDDLE_EMPTY(heddle_schedule_stage);
        HD_TRY(heddle_schedule_stage_at(&stage, session->schedule, i));
        names = hd_hash(names, stage.name, strlen(stage.name) + 1);
    }
    hd_fields_add(fields, "sequence of layouts", "%016llx", (unsigned long long)layouts);
    hd_fields_add(fields, "list of stage names", "%016llx", (unsigned long long)names);
out:
    return st;
}

static heddle_status add_fields(hd_fields *fields, const heddle_session *session)
{
    const heddle_schedule_info *info = &session->info;
    char text[HEDDLE_LINE_BYTES];
    heddle_status st = HEDDLE_OK;
    HD_TRY(heddle_shape_format(text, sizeof(text), &info->shape));
    hd_fields_add(fields, "shape", "%s", text);
    HD_TRY(heddle_mesh_format(text, sizeof(text), &info->mesh));
    hd_fields_add(fields, "mesh", "%s", text);
    hd_fields_add(fields, "number of stages", "%d", info->nstages);
    hd_fields_add(fields, "number of edges", "%d", info->nedges);
    hd_fields_add(fields, "dry_run", "%d", session->dry_run);
    hd_fields_add(fields, "backward", "%d", session->backward);
    hd_fields_add(fields, "space", "%d", (int)session->space);
    HD_TRY(add_schedule(fields, session, text));
out:
    return st;
}

heddle_status hd_session_compare(const heddle_session *session, heddle_comm *comm, heddle_status mine)
{
    hd_fields fields = {.what = "session"};
    return hd_comm_agree_on(comm, &fields, mine == HEDDLE_OK ? add_fields(&fields, session) : mine);
}
