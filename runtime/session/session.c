/* Session: life cycle, counters, records. switch.c has enter and backward. */
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/device/device.h"
#include "session_internal.h"

#include <string.h>

void heddle_session_options_init(heddle_session_options *options)
{
    if (options != NULL) {
        *options = (heddle_session_options){.struct_bytes = sizeof(*options)};
    }
}

static heddle_status check_schedule(heddle_session *session)
{
    session->info.struct_bytes = sizeof(session->info);
    heddle_status st = heddle_schedule_get_info(&session->info, session->schedule);
    if (st != HEDDLE_OK) {
        return st;
    }
    const int wanted = heddle_mesh_size(&session->info.mesh), size = heddle_comm_size(session->comm);
    if (wanted != size) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "the schedule is for a mesh of %d ranks, the communicator has %d", wanted,
                       size);
    }
    return hd_session_names_make(session);
}

static heddle_status prepare_plan(heddle_session *session, const heddle_layout *from, const heddle_layout *to)
{
    hd_session_plan *plan = NULL;
    return heddle_layout_equal(from, to, &session->info.mesh) ? HEDDLE_OK
                                                              : hd_session_plan_get(&plan, session, from, to);
}

/* The gradient of a loss on the output, in the layout that the output has: what is replicated has one and the same
 * gradient everywhere. */
static heddle_layout layout_of_loss(const heddle_layout *output)
{
    heddle_layout layout = *output;
    for (int a = 0; a < HEDDLE_MAX_AXES; a++) {
        if (layout.dim_of_axis[a] == HEDDLE_PARTIAL) {
            layout.dim_of_axis[a] = HEDDLE_REPLICATED;
        }
    }
    return layout;
}

/* The transpose of every edge, and what a loss on the output may begin with. Most are edges of the schedule too: the
 * way back from s@sp to t@sp is the way into the temporal stage. */
static heddle_status prepare_backward(heddle_session *session)
{
    const heddle_layout whole = heddle_layout_replicated();
    for (int i = session->info.nedges - 1; i >= 0; i--) {
        heddle_schedule_edge edge;
        heddle_status st = heddle_schedule_edge_at(&edge, session->schedule, i);
        if (st != HEDDLE_OK) {
            return st;
        }
        const heddle_layout from = heddle_layout_dual(&edge.to), to = heddle_layout_dual(&edge.from);
        if (i + 1 == session->info.nedges) {
            const heddle_layout loss = layout_of_loss(&edge.to);
            st = prepare_plan(session, &whole, &to);
            st = st == HEDDLE_OK ? prepare_plan(session, &loss, &to) : st;
        }
        if (st == HEDDLE_OK) {
            st = prepare_plan(session, &from, &to);
        }
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    return HEDDLE_OK;
}

/* A plan for every distinct edge. Fails on all ranks alike, or with a communicator that is of no use any more. */
static heddle_status prepare_plans(heddle_session *session)
{
    for (int i = 0; i < session->info.nedges; i++) {
        heddle_schedule_edge edge;
        heddle_status st = heddle_schedule_edge_at(&edge, session->schedule, i);
        if (st == HEDDLE_OK) {
            st = prepare_plan(session, &edge.from, &edge.to);
        }
        if (st != HEDDLE_OK) {
            return st;
        }
        size_t bytes = hd_session_local_bytes(session, &edge.to);
        session->largest_bytes = bytes > session->largest_bytes ? bytes : session->largest_bytes;
        bytes = hd_session_local_bytes(session, &edge.from);
        session->largest_bytes = bytes > session->largest_bytes ? bytes : session->largest_bytes;
    }
    return session->backward ? prepare_backward(session) : HEDDLE_OK;
}

/* The two that the usual pass needs. */
static heddle_status prepare_buffers(heddle_session *session)
{
    if (session->dry_run || session->nplans == 0) {
        return HEDDLE_OK;
    }
    heddle_status st = hd_session_buffer_grow(session, &session->buffer[0], 0);
    return st != HEDDLE_OK ? st : hd_session_buffer_grow(session, &session->buffer[1], 0);
}

static heddle_status start(heddle_session *session)
{
    void *records = NULL;
    heddle_status st;
    HD_TRY(hd_alloc(&records, HD_SESSION_RECORDS, sizeof(*session->records), "a session's records"));
    session->records = records;
    HD_TRY(check_schedule(session));
    session->last_left = session->info.nstages;
out:
    return st;
}

/* This rank's arguments; the others have to hear of what is wrong with them. */
static heddle_status take(heddle_session **made, heddle_session **out, heddle_comm *comm,
                          const heddle_schedule *schedule, const heddle_session_options *options)
{
    heddle_session_options taken;
    heddle_status st = HEDDLE_OK;
    const int rank = heddle_comm_rank(comm);
    if (out == NULL || schedule == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_session_create: %s is NULL on rank %d", out == NULL ? "out" : "schedule",
                       rank);
    }
    heddle_session_options_init(&taken);
    HD_TRY(hd_struct_take(&taken, options, HD_STRUCT(heddle_session_options, backward)));
    HD_TRY(hd_device_need(taken.space, taken.device, "a session", hd_comm_transport_name(comm)));
    HD_TRY(hd_alloc((void **)made, 1, sizeof(**made), "a session"));
    heddle_session *session = *made;
    session->comm = comm;
    session->schedule = schedule;
    session->rank = rank;
    session->dry_run = taken.dry_run != 0;
    session->backward = taken.backward != 0;
    session->space = taken.space;
    session->counters.struct_bytes = sizeof(session->counters);
    HD_TRY(start(session));
out:
    return st;
}

heddle_status heddle_session_create(heddle_session **out, heddle_comm *comm, const heddle_schedule *schedule,
                                    const heddle_session_options *options)
{
    heddle_session *session = NULL;
    heddle_status st = HD_NEED(comm);
    if (st != HEDDLE_OK) {
        return st; /* there is nobody to tell */
    }
    HD_TRY(hd_comm_agree(comm, take(&session, out, comm, schedule, options)));
    HD_TRY(hd_session_compare(session));
    HD_TRY(prepare_plans(session));
    HD_TRY(hd_comm_agree(comm, prepare_buffers(session)));
    *out = session;
    session = NULL;
out:
    heddle_session_destroy(session);
    return st;
}

void heddle_session_destroy(heddle_session *session)
{
    if (session == NULL) {
        return;
    }
    for (int i = 0; i < session->nplans; i++) {
        heddle_reshard_destroy(session->plans[i].reshard);
        hd_free(session->plans[i].line);
    }
    for (int i = 0; i < HD_SESSION_BUFFERS; i++) {
        heddle_buffer_free(session->comm, session->buffer[i].memory);
    }
    heddle_buffer_free(session->comm, session->staging.memory);
    hd_free(session->plans);
    hd_free(session->names);
    hd_free(session->records);
    hd_free(session);
}

heddle_status heddle_session_rewind(heddle_session *session)
{
    heddle_status st = HD_NEED(session);
    if (st != HEDDLE_OK) {
        return st;
    }
    for (int i = 0; i < session->nnames; i++) {
        session->names[i].entered = 0;
        session->names[i].left = 0;
    }
    session->last_left = session->info.nstages;
    return HEDDLE_OK;
}

heddle_status heddle_session_get_counters(heddle_session_counters *out, const heddle_session *session)
{
    heddle_status st;
    HD_TRY(HD_NEED(out));
    HD_TRY(HD_NEED(session));
    st = hd_struct_give(out, &session->counters, HD_STRUCT(heddle_session_counters, enters));
out:
    return st;
}

heddle_status heddle_session_record_at(heddle_session_record *out, const heddle_session *session, int index)
{
    heddle_status st;
    HD_TRY(HD_NEED(out));
    HD_TRY(HD_NEED(session));
    const int64_t first = session->nrecords > HD_SESSION_RECORDS ? session->nrecords - HD_SESSION_RECORDS : 0;
    if (index < first || index >= session->nrecords) {
        return hd_fail(HEDDLE_ERR_ARG, "record %d was asked for; records %lld to %lld are kept", index,
                       (long long)first, (long long)session->nrecords - 1);
    }
    *out = session->records[index % HD_SESSION_RECORDS];
out:
    return st;
}
