/* Session: life cycle, counters, records. switch.c has enter and backward. */
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/reshard/plan.h"
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
    session->elem_bytes = heddle_dtype_bytes(session->info.shape.dtype);
    const int wanted = heddle_mesh_size(&session->info.mesh), size = heddle_comm_size(session->comm);
    if (wanted != size) {
        return hd_fail(HEDDLE_ERR_LAYOUT, "the schedule is for a mesh of %d ranks, the communicator has %d", wanted,
                       size);
    }
    return hd_session_stages_make(session);
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

static void note_size(heddle_session *session, const hd_session_edge *edge)
{
    const size_t most = edge->from.bytes > edge->to.bytes ? edge->from.bytes : edge->to.bytes;
    session->largest_bytes = most > session->largest_bytes ? most : session->largest_bytes;
}

/* An edge for every stage; stages that are entered over the same layouts share it. Fails on all ranks alike, or with a
 * communicator that is of no use any more. */
static heddle_status prepare_forward(heddle_session *session)
{
    for (int i = 0; i < session->info.nedges; i++) {
        hd_session_stage *stage = &session->stages[i];
        const heddle_layout from = heddle_layout_dual(&stage->target[HD_BACKWARD]);
        heddle_status st = hd_session_edge_get(&stage->edge[HD_FORWARD], session, &from, &stage->target[HD_FORWARD]);
        if (st != HEDDLE_OK) {
            return st;
        }
        note_size(session, stage->edge[HD_FORWARD]);
    }
    return HEDDLE_OK;
}

/* The transpose of every edge, and what a loss on the output may begin with. Most are edges of the schedule too: the
 * way back from s@sp to t@sp is the way into the temporal stage. */
static heddle_status prepare_backward(heddle_session *session)
{
    const heddle_layout whole = heddle_layout_replicated();
    for (int i = session->info.nedges - 1; i >= 0; i--) {
        hd_session_stage *stage = &session->stages[i];
        hd_session_edge **edge = &stage->edge[HD_BACKWARD];
        const heddle_layout *to = &stage->target[HD_BACKWARD];
        const heddle_layout from = heddle_layout_dual(&stage->target[HD_FORWARD]);
        heddle_status st = HEDDLE_OK;
        if (i + 1 == session->info.nedges) {
            const heddle_layout loss = layout_of_loss(&stage->target[HD_FORWARD]);
            st = hd_session_edge_get(edge, session, &whole, to);
            st = st == HEDDLE_OK ? hd_session_edge_get(edge, session, &loss, to) : st;
        }
        st = st == HEDDLE_OK ? hd_session_edge_get(edge, session, &from, to) : st;
        if (st != HEDDLE_OK) {
            return st;
        }
    }
    return HEDDLE_OK;
}

static heddle_status prepare_edges(heddle_session *session)
{
    heddle_status st = prepare_forward(session);
    return st == HEDDLE_OK && session->backward ? prepare_backward(session) : st;
}

/* Those that the usual pass needs; in a device's memory all, because a pass that is captured may not allocate. Where
 * ranks are threads no pass does, and tensors with gaps have theirs from the beginning: CUDA may wait there for peers,
 * which wait for this rank. */
static heddle_status prepare_buffers(heddle_session *session)
{
    int moves = 0;
    for (int i = 0; i < session->nedges; i++) {
        moves |= !session->edges[i]->keeps;
    }
    if (session->dry_run || !moves) {
        return HEDDLE_OK;
    }
    const int needed = session->space == HEDDLE_SPACE_DEVICE ? HD_SESSION_BUFFERS : HD_SESSION_BUFFERS - 1;
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < needed && st == HEDDLE_OK; i++) {
        st = hd_session_buffer_grow(session, &session->buffer[i], 0);
    }
    if (session->space == HEDDLE_SPACE_DEVICE && hd_comm_sharers(session->comm).any_together) {
        st = st == HEDDLE_OK ? hd_session_buffer_grow(session, &session->source, 0) : st;
        st = st == HEDDLE_OK ? hd_session_buffer_grow(session, &session->landing, 0) : st;
    }
    return st;
}

static heddle_status start(heddle_session *session)
{
    void *records = NULL;
    heddle_status st;
    HD_TRY(hd_alloc(&records, HD_SESSION_RECORDS, sizeof(*session->records), "a session's records"));
    session->records = records;
    HD_TRY(check_schedule(session));
    HD_TRY(heddle_session_rewind(session));
out:
    return st;
}

/* This rank's arguments; the others have to hear of what is wrong with them. */
static heddle_status take(heddle_session **made, heddle_session **out, heddle_comm *comm,
                          const heddle_schedule *schedule, const heddle_session_options *options)
{
    heddle_session_options taken;
    heddle_status st = HEDDLE_OK;
    const int *local = NULL;
    const int rank = heddle_comm_rank(comm);
    if (out == NULL || schedule == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_session_create: %s is NULL on rank %d", out == NULL ? "out" : "schedule",
                       hd_comm_rank_name(comm, rank));
    }
    heddle_session_options_init(&taken);
    HD_TRY(hd_struct_take(&taken, options, HD_STRUCT(heddle_session_options, backward)));
    HD_TRY(hd_alloc((void **)made, 1, sizeof(**made), "a session"));
    heddle_session *session = *made;
    session->comm = comm;
    session->schedule = schedule;
    session->rank = rank;
    session->dry_run = taken.dry_run != 0;
    session->backward = taken.backward != 0;
    session->space = taken.space;
    session->device = taken.device;
    session->any_memory = taken.space == HEDDLE_SPACE_DEVICE || hd_comm_local_ranks(comm, &local) < 2 ||
                          hd_comm_shares_address_space(comm);
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
    st = take(&session, out, comm, schedule, options);
    HD_TRY(hd_session_compare(session, comm, st));
    HD_TRY(hd_comm_agree(comm, hd_comm_need_space(comm, session->space, session->device, "a session")));
    HD_TRY(prepare_edges(session));
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
    hd_session_edges_free(session);
    for (int i = 0; i < HD_SESSION_BUFFERS; i++) {
        heddle_buffer_free(session->comm, session->buffer[i].memory);
    }
    heddle_buffer_free(session->comm, session->source.memory);
    heddle_buffer_free(session->comm, session->landing.memory);
    for (int i = 0; i < session->noutgrown; i++) {
        heddle_buffer_free(session->comm, session->outgrown[i]);
    }
    HD_FREE_ALL(session->outgrown, session->stages, session->names, session->records, session);
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
    session->next[HD_FORWARD] = 0;
    session->next[HD_BACKWARD] = session->info.nstages;
    return HEDDLE_OK;
}

/* What devices count is known when they have got to it, and not by call. */
static void count_late(heddle_session_counters *counters, const heddle_session *session)
{
    int64_t sent = 0;
    int any = 0;
    for (int i = 0; i < session->nedges; i++) {
        const heddle_reshard *reshard = session->edges[i]->reshard;
        if (reshard != NULL && hd_reshard_counts_late(reshard)) {
            any = 1;
            sent += hd_reshard_measured_bytes(reshard);
        }
    }
    counters->bytes_sent = any ? sent : counters->bytes_sent;
}

heddle_status heddle_session_get_counters(heddle_session_counters *out, const heddle_session *session)
{
    heddle_status st;
    HD_TRY(HD_NEED(out, session));
    heddle_session_counters counters = session->counters;
    count_late(&counters, session);
    st = hd_struct_give(out, &counters, HD_STRUCT(heddle_session_counters, enters));
out:
    return st;
}

heddle_status heddle_session_record_at(heddle_session_record *out, const heddle_session *session, int index)
{
    heddle_status st;
    HD_TRY(HD_NEED(out, session));
    const int64_t first = session->nrecords > HD_SESSION_RECORDS ? session->nrecords - HD_SESSION_RECORDS : 0;
    if (index < first || index >= session->nrecords) {
        return hd_fail(HEDDLE_ERR_ARG, "record %d was asked for; records %lld to %lld are kept", index,
                       (long long)first, (long long)session->nrecords - 1);
    }
    st = hd_struct_give(out, &session->records[index % HD_SESSION_RECORDS], HD_STRUCT(heddle_session_record, backward));
out:
    return st;
}
