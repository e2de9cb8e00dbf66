/* Enter and backward: the switch of an activation, and of its gradient. */
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/device/device.h"
#include "session_internal.h"

#include <string.h>

/* One call. The two directions differ in their words, and in the layout that they lead to. */
typedef struct passage {
    heddle_session *session;
    const char *stage;  /* as the caller wrote it */
    const char *verb;   /* for sentences: "entering" */
    const char *tensor; /* "x" */
    int backward;
} passage;

static heddle_status check_same_shape(const passage *p, const heddle_tensor *x)
{
    const heddle_shape *wanted = &p->session->info.shape;
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
    return hd_fail(HEDDLE_ERR_LAYOUT, "%s '%s': %s is %s, the schedule is for %s", p->verb, p->stage, p->tensor, has,
                   wants);
}

/* The local part that x describes lies within capacity_bytes. */
static heddle_status check_memory(const passage *p, const heddle_tensor *x, const heddle_box *box)
{
    const int rank = p->session->rank;
    if (p->session->dry_run || heddle_box_elems(box) == 0) {
        return HEDDLE_OK;
    }
    if (x->data == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "%s '%s': %s->data is NULL on rank %d, which holds %lld elements", p->verb,
                       p->stage, p->tensor, rank, (long long)heddle_box_elems(box));
    }
    int64_t last = 0;
    for (int d = 0; d < box->ndim; d++) {
        int64_t step = 0;
        if (x->stride_elems[d] < 0 || __builtin_mul_overflow(box->len[d] - 1, x->stride_elems[d], &step) ||
            __builtin_add_overflow(last, step, &last)) {
            return hd_fail(HEDDLE_ERR_ARG, "%s '%s': stride %lld of dim %s is out of range", p->verb, p->stage,
                           (long long)x->stride_elems[d], x->shape.dim[d].name);
        }
    }
    const size_t elem_bytes = heddle_dtype_bytes(x->shape.dtype);
    if ((uint64_t)last >= x->capacity_bytes / elem_bytes) {
        return hd_fail(
            HEDDLE_ERR_ARG, "%s '%s': rank %d's part ends at element %lld, but %s->capacity_bytes %zu holds only %zu",
            p->verb, p->stage, rank, (long long)last + 1, p->tensor, x->capacity_bytes, x->capacity_bytes / elem_bytes);
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
        x->capacity_bytes = (size_t)heddle_box_elems(&box) * heddle_dtype_bytes(session->info.shape.dtype);
    }
}

/* A rank that cannot take part tells the others, which would wait for it until their deadline. */
static heddle_status give_up(const passage *p, heddle_status st)
{
    st = hd_fail_prefix(st, "%s '%s'", p->verb, p->stage);
    heddle_comm_abort(p->session->comm, heddle_last_error());
    return st;
}

static heddle_status move(const passage *p, heddle_tensor *x, const heddle_box *box, const heddle_layout *target,
                          heddle_session_record *record, heddle_stream stream)
{
    heddle_session *session = p->session;
    hd_session_plan *plan = NULL;
    const void *src = NULL;
    void *dst = NULL;
    heddle_status st = hd_session_plan_get(&plan, session, &x->layout, target);
    if (st != HEDDLE_OK) {
        return hd_fail_prefix(st, "%s '%s'", p->verb, p->stage);
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
        return give_up(p, st);
    }
    const int64_t before = plan->info.measured_bytes_sent;
    st = heddle_reshard_execute(plan->reshard, src, dst, stream);
    if (st == HEDDLE_OK) {
        st = heddle_reshard_get_info(&plan->info, plan->reshard);
    }
    if (st != HEDDLE_OK) {
        return hd_fail_prefix(st, "%s '%s'", p->verb, p->stage);
    }
    record->bytes_sent = plan->info.measured_bytes_sent - before;
    describe(x, session, target, dst);
    return HEDDLE_OK;
}

/* Counted only when it succeeded, so that a call that was refused may be made again. */
static void count(const passage *p, const hd_session_step *step, const heddle_session_record *record)
{
    heddle_session *session = p->session;
    session->records[session->nrecords++ % HD_SESSION_RECORDS] = *record;
    if (p->backward) {
        session->counters.backward_enters++;
        session->last_left = step->index;
    } else {
        session->counters.enters++;
    }
    if (step->name != NULL) {
        *(p->backward ? &step->name->left : &step->name->entered) += 1;
    }
}

/* Its memory is of the session's space. */
static heddle_status check_space(const passage *p, const heddle_tensor *x)
{
    heddle_status st = x->space == p->session->space && x->device == 0
                           ? HEDDLE_OK
                           : hd_device_need(x->space, x->device, p->tensor, hd_comm_transport_name(p->session->comm));
    return st == HEDDLE_OK ? st : hd_fail_prefix(st, "%s '%s'", p->verb, p->stage);
}

static heddle_status pass(const passage *p, heddle_tensor *x, heddle_stream stream)
{
    heddle_session *session = p->session;
    hd_session_step step;
    heddle_box box;
    heddle_status st;
    HD_TRY(hd_session_find(&step, session, p->stage, p->backward));
    HD_TRY(check_same_shape(p, x));
    HD_TRY(check_space(p, x));
    st = heddle_layout_box(&box, &session->info.shape, &session->info.mesh, &x->layout, session->rank);
    if (st != HEDDLE_OK) {
        return hd_fail_prefix(st, "%s '%s': %s's layout", p->verb, p->stage, p->tensor);
    }
    heddle_session_record record = {.backward = p->backward,
                                    .stage = step.name == NULL ? "end" : step.name->name,
                                    .repetition = step.repetition,
                                    .line = "",
                                    .path = ""};
    if (!heddle_layout_equal(&x->layout, &step.target, &session->info.mesh)) {
        HD_TRY(check_memory(p, x, &box));
        const int64_t start_ns = hd_now_ns();
        HD_TRY(move(p, x, &box, &step.target, &record, stream));
        record.ns = hd_now_ns() - start_ns;
        session->switches++;
        session->counters.switches++;
        session->counters.bytes_sent += record.bytes_sent;
        session->counters.bytes_planned += record.bytes_planned;
        session->counters.switch_ns += record.ns;
    }
    count(p, &step, &record);
out:
    return st;
}

static heddle_status missing(const char *function, const heddle_session *session, const char *stage, const char *tensor)
{
    return hd_need(NULL, function, session == NULL ? "session" : stage == NULL ? "stage" : tensor);
}

heddle_status heddle_session_enter(heddle_session *session, const char *stage, heddle_tensor *x, heddle_stream stream)
{
    const passage p = {session, stage, "entering", "x", 0};
    return session == NULL || stage == NULL || x == NULL ? missing("heddle_session_enter", session, stage, "x")
                                                         : pass(&p, x, stream);
}

heddle_status heddle_session_backward(heddle_session *session, const char *stage, heddle_tensor *dx,
                                      heddle_stream stream)
{
    const passage p = {session, stage, "leaving backward from", "dx", 1};
    return session == NULL || stage == NULL || dx == NULL ? missing("heddle_session_backward", session, stage, "dx")
                                                          : pass(&p, dx, stream);
}
