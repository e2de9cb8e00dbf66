/* Session: life cycle, enter, counters. */
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "session_internal.h"

#include <string.h>

void heddle_session_options_init(heddle_session_options *options)
{
    memset(options, 0, sizeof(*options));
    options->struct_bytes = sizeof(*options);
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

/* A plan for every distinct edge. Fails on all ranks alike, or with a communicator that is of no use any more. */
static heddle_status prepare_plans(heddle_session *session)
{
    for (int i = 0; i < session->info.nedges; i++) {
        heddle_schedule_edge edge;
        hd_session_plan *plan = NULL;
        heddle_status st = heddle_schedule_edge_at(&edge, session->schedule, i);
        if (st == HEDDLE_OK && !heddle_layout_equal(&edge.from, &edge.to, &session->info.mesh)) {
            st = hd_session_plan_get(&plan, session, &edge.from, &edge.to);
        }
        if (st != HEDDLE_OK) {
            return st;
        }
        size_t bytes = hd_session_local_bytes(session, &edge.to);
        session->largest_bytes = bytes > session->largest_bytes ? bytes : session->largest_bytes;
        bytes = hd_session_local_bytes(session, &edge.from);
        session->largest_bytes = bytes > session->largest_bytes ? bytes : session->largest_bytes;
    }
    return HEDDLE_OK;
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
out:
    return st;
}

heddle_status heddle_session_create(heddle_session **out, heddle_comm *comm, const heddle_schedule *schedule,
                                    const heddle_session_options *options)
{
    heddle_session *session = NULL;
    heddle_status st;
    if (out == NULL || comm == NULL || schedule == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_session_create needs out, comm and schedule, but %s is NULL",
                       out == NULL    ? "out"
                       : comm == NULL ? "comm"
                                      : "schedule");
    }
    if (options != NULL && options->struct_bytes != sizeof(*options)) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_session_options has %zu bytes, not %zu: call the _init function",
                       options->struct_bytes, sizeof(*options));
    }
    st = hd_alloc((void **)&session, 1, sizeof(*session), "a session");
    if (st != HEDDLE_OK) {
        heddle_comm_abort(comm, heddle_last_error()); /* the others wait for this rank's fingerprint */
        goto out;
    }
    session->comm = comm;
    session->schedule = schedule;
    session->rank = heddle_comm_rank(comm);
    session->dry_run = options != NULL && options->dry_run != 0;
    session->counters.struct_bytes = sizeof(session->counters);
    HD_TRY(hd_session_agree(session, start(session)));
    HD_TRY(prepare_plans(session));
    HD_TRY(hd_session_agree(session, prepare_buffers(session)));
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

/* --- enter --- */

static heddle_status check_same_shape(const heddle_session *session, const heddle_tensor *x, const char *stage)
{
    const heddle_shape *wanted = &session->info.shape;
    int same = x->shape.dtype == wanted->dtype && x->shape.ndim == wanted->ndim;
    for (int d = 0; same && d < wanted->ndim; d++) {
        same = x->shape.dim[d].extent == wanted->dim[d].extent &&
               strncmp(x->shape.dim[d].name, wanted->dim[d].name, HEDDLE_NAME_BYTES) == 0;
    }
    if (same) {
        return HEDDLE_OK;
    }
    char has[512] = "?", wants[512] = "?";
    heddle_shape_format(has, sizeof(has), &x->shape);
    heddle_shape_format(wants, sizeof(wants), wanted);
    return hd_fail(HEDDLE_ERR_LAYOUT, "entering '%s': x is %s, the schedule is for %s", stage, has, wants);
}

/* The local part that x describes lies within data_bytes. */
static heddle_status check_memory(const heddle_session *session, const heddle_tensor *x, const heddle_box *box,
                                  const char *stage)
{
    if (session->dry_run || heddle_box_elems(box) == 0) {
        return HEDDLE_OK;
    }
    if (x->data == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "entering '%s': x->data is NULL on rank %d, which holds %lld elements", stage,
                       session->rank, (long long)heddle_box_elems(box));
    }
    int64_t last = 0;
    for (int d = 0; d < box->ndim; d++) {
        int64_t step = 0;
        if (x->stride_elems[d] < 0 || __builtin_mul_overflow(box->len[d] - 1, x->stride_elems[d], &step) ||
            __builtin_add_overflow(last, step, &last)) {
            return hd_fail(HEDDLE_ERR_ARG, "entering '%s': stride %lld of dim %s is out of range", stage,
                           (long long)x->stride_elems[d], x->shape.dim[d].name);
        }
    }
    const size_t elem_bytes = heddle_dtype_bytes(x->shape.dtype);
    if ((uint64_t)last >= x->data_bytes / elem_bytes) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "entering '%s': rank %d's part ends at element %lld, but x->data_bytes %zu holds only %zu",
                       stage, session->rank, (long long)last + 1, x->data_bytes, x->data_bytes / elem_bytes);
    }
    return HEDDLE_OK;
}

static void describe(heddle_tensor *x, const heddle_session *session, const heddle_layout *layout, void *data)
{
    heddle_box box;
    heddle_layout_box(&box, &session->info.shape, &session->info.mesh, layout, session->rank);
    x->layout = *layout;
    heddle_box_strides(x->stride_elems, &box, NULL);
    if (!session->dry_run) {
        x->data = data;
        x->data_bytes = (size_t)heddle_box_elems(&box) * heddle_dtype_bytes(session->info.shape.dtype);
    }
}

/* A rank that cannot take part tells the others, which would wait for it until their deadline. */
static heddle_status give_up(heddle_session *session, const char *stage, heddle_status st)
{
    st = hd_fail_prefix(st, "entering '%s'", stage);
    heddle_comm_abort(session->comm, heddle_last_error());
    return st;
}

static heddle_status move(heddle_session *session, const char *stage, heddle_tensor *x, const heddle_box *box,
                          const heddle_layout *target, heddle_session_record *record, heddle_stream stream)
{
    hd_session_plan *plan = NULL;
    const void *src = NULL;
    void *dst = NULL;
    heddle_status st = hd_session_plan_get(&plan, session, &x->layout, target);
    if (st != HEDDLE_OK) {
        return hd_fail_prefix(st, "entering '%s'", stage);
    }
    record->line = plan->line;
    record->bytes_planned = plan->bytes_planned;
    if (session->dry_run) {
        record->path = "dry run";
        record->bytes_sent = plan->bytes_planned;
        describe(x, session, target, NULL);
        return HEDDLE_OK;
    }
    record->path = plan->info.path;
    record->bytes_messages = plan->info.bytes_messages;
    st = hd_session_source(&src, session, x, box);
    if (st == HEDDLE_OK) {
        st = hd_session_result(&dst, session, hd_session_local_bytes(session, target), src);
    }
    if (st != HEDDLE_OK) {
        return give_up(session, stage, st);
    }
    const int64_t before = plan->info.measured_bytes_sent;
    st = heddle_reshard_execute(plan->reshard, src, dst, stream);
    if (st == HEDDLE_OK) {
        st = heddle_reshard_get_info(&plan->info, plan->reshard);
    }
    if (st != HEDDLE_OK) {
        return hd_fail_prefix(st, "entering '%s'", stage);
    }
    record->bytes_sent = plan->info.measured_bytes_sent - before;
    describe(x, session, target, dst);
    return HEDDLE_OK;
}

heddle_status heddle_session_enter(heddle_session *session, const char *stage, heddle_tensor *x, heddle_stream stream)
{
    hd_session_name *name = NULL;
    heddle_layout target;
    heddle_box box;
    heddle_status st;
    if (session == NULL || stage == NULL || x == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_session_enter needs session, stage and x, but %s is NULL",
                       session == NULL ? "session"
                       : stage == NULL ? "stage"
                                       : "x");
    }
    HD_TRY(hd_session_find(session, stage, &name, &target));
    HD_TRY(check_same_shape(session, x, stage));
    st = heddle_layout_box(&box, &session->info.shape, &session->info.mesh, &x->layout, session->rank);
    if (st != HEDDLE_OK) {
        return hd_fail_prefix(st, "entering '%s': x's layout", stage);
    }
    heddle_session_record record = {.stage = name == NULL ? "end" : name->name,
                                    .repetition = name == NULL ? 0 : name->entered,
                                    .line = "",
                                    .path = ""};
    if (!heddle_layout_equal(&x->layout, &target, &session->info.mesh)) {
        HD_TRY(check_memory(session, x, &box, stage));
        const int64_t start_ns = hd_now_ns();
        HD_TRY(move(session, stage, x, &box, &target, &record, stream));
        record.ns = hd_now_ns() - start_ns;
        session->switches++;
        session->counters.switches++;
        session->counters.bytes_sent += record.bytes_sent;
        session->counters.bytes_planned += record.bytes_planned;
        session->counters.switch_ns += record.ns;
    }
    session->counters.enters++;
    session->records[session->nrecords++ % HD_SESSION_RECORDS] = record;
    if (name != NULL) {
        name->entered++;
    }
out:
    return st;
}

heddle_status heddle_session_rewind(heddle_session *session)
{
    if (session == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_session_rewind needs a session, not NULL");
    }
    for (int i = 0; i < session->nnames; i++) {
        session->names[i].entered = 0;
    }
    return HEDDLE_OK;
}

heddle_status heddle_session_get_counters(heddle_session_counters *out, const heddle_session *session)
{
    if (out == NULL || session == NULL || out->struct_bytes != sizeof(*out)) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "heddle_session_get_counters needs a session and counters whose struct_bytes "
                       "is %zu, not %zu",
                       sizeof(*out), out == NULL ? (size_t)0 : out->struct_bytes);
    }
    *out = session->counters;
    return HEDDLE_OK;
}

heddle_status heddle_session_record_at(heddle_session_record *out, const heddle_session *session, int index)
{
    if (out == NULL || session == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "heddle_session_record_at needs out and session, but %s is NULL",
                       out == NULL ? "out" : "session");
    }
    const int64_t first = session->nrecords > HD_SESSION_RECORDS ? session->nrecords - HD_SESSION_RECORDS : 0;
    if (index < first || index >= session->nrecords) {
        return hd_fail(HEDDLE_ERR_ARG, "record %d was asked for; records %lld to %lld are kept", index,
                       (long long)first, (long long)session->nrecords - 1);
    }
    *out = session->records[index % HD_SESSION_RECORDS];
    return HEDDLE_OK;
}
