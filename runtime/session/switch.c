/* Enter and backward: the switch of an activation, and of its gradient. */
#include "runtime/base/base.h"
#include "runtime/comm/comm_internal.h"
#include "runtime/layout/algebra.h"
#include "runtime/reshard/plan.h"
#include "runtime/session/inner.h"
#include "session_internal.h"

#include <string.h>

/* One call. The two directions differ in their words, and in the layout that they lead to. */
typedef struct passage {
    heddle_session *session;
    const char *stage;  /* as the caller wrote it */
    const char *verb;   /* for sentences: "entering" */
    const char *tensor; /* "x" */
    int direction;
    const hd_device_gate *gate; /* x's change, made on the way; NULL: there is none */
} passage;

/* Plain comparison: the usual case needs no more. hd_session_edge_get finds what is equal in another form. */
static int same_form(const heddle_layout *a, const heddle_layout *b, int naxes)
{
    int nshards = 0;
    for (int i = 0; i < naxes; i++) {
        if (a->dim_of_axis[i] != b->dim_of_axis[i] || a->nshards[i] != b->nshards[i]) {
            return 0;
        }
        nshards += a->nshards[i];
    }
    return memcmp(a->shard_len, b->shard_len, (size_t)nshards * sizeof(*a->shard_len)) == 0;
}

static heddle_status check_same_shape(const passage *p, const heddle_tensor *x, const char *tensor)
{
    const heddle_shape *wanted = &p->session->info.shape;
    if (x->shape.dtype == wanted->dtype && x->shape.ndim == wanted->ndim &&
        memcmp(x->shape.dim, wanted->dim, (size_t)wanted->ndim * sizeof(*wanted->dim)) == 0) {
        return HEDDLE_OK; /* as the session's own results are; a name may have other bytes behind its end */
    }
    heddle_status st = hd_shape_need(&x->shape, wanted, 1, tensor, "the schedule is for");
    return st == HEDDLE_OK ? st : hd_fail_prefix(st, "%s '%s'", p->verb, p->stage);
}

static int name_of_own(const heddle_session *session)
{
    return hd_comm_rank_name(session->comm, session->rank);
}

/* The local part that x describes lies within capacity_bytes. */
static heddle_status check_memory(const passage *p, const heddle_tensor *x, const char *tensor,
                                  const hd_session_side *side, int is_written)
{
    if (p->session->dry_run || side->elems == 0) {
        return HEDDLE_OK;
    }
    if (x->data == NULL) {
        return hd_fail(HEDDLE_ERR_ARG, "%s '%s': %s->data is NULL on rank %d, which holds %lld elements", p->verb,
                       p->stage, tensor, name_of_own(p->session), (long long)side->elems);
    }
    int64_t bytes = 0;
    heddle_status st = hd_box_reach(&bytes, &side->box, x->stride_elems, &x->shape, is_written);
    if (st != HEDDLE_OK) {
        return hd_fail_prefix(st, "%s '%s': %s", p->verb, p->stage, tensor);
    }
    const int64_t elem_bytes = (int64_t)p->session->elem_bytes;
    if ((uint64_t)bytes > x->capacity_bytes) {
        return hd_fail(HEDDLE_ERR_ARG,
                       "%s '%s': rank %d's part ends at element %lld, but %s->capacity_bytes %zu holds only %zu",
                       p->verb, p->stage, name_of_own(p->session), (long long)(bytes / elem_bytes), tensor,
                       x->capacity_bytes, x->capacity_bytes / (size_t)elem_bytes);
    }
    return HEDDLE_OK;
}

static void describe(heddle_tensor *x, const heddle_session *session, const hd_session_side *side, void *data)
{
    x->layout = side->layout;
    memcpy(x->stride_elems, side->stride_elems, sizeof(x->stride_elems));
    if (!session->dry_run) {
        x->data = data;
        x->capacity_bytes = side->bytes;
        x->space = session->space;
        x->device = session->device;
    }
}

/* A rank that cannot take part tells the others, which would wait for it until their deadline. */
static heddle_status give_up(const passage *p, heddle_status st)
{
    char why[HD_SENTENCE_BYTES];
    st = hd_fail_prefix(st, "%s '%s'", p->verb, p->stage);
    return hd_comm_give_up(p->session->comm, st, why, sizeof why);
}

/* The memory of x and dst is of the session's space. */
static heddle_status check_space(const passage *p, const heddle_tensor *x, const char *tensor)
{
    const heddle_session *session = p->session;
    if (x->space == session->space && x->device == session->device) {
        return HEDDLE_OK;
    }
    heddle_status st = hd_comm_need_space(session->comm, x->space, x->device, tensor);
    if (st == HEDDLE_OK) {
        static const char *const memory[] = {"host memory", "a device's memory"};
        st = hd_fail(HEDDLE_ERR_ARG, "%s is %s, the session's buffers are %s", tensor, memory[x->space],
                     memory[session->space]);
    }
    return hd_fail_prefix(st, "%s '%s'", p->verb, p->stage);
}

/* A tensor of the caller's that the result shall be written to. */
static heddle_status check_dst(const passage *p, const heddle_tensor *dst, const hd_session_side *to)
{
    heddle_status st;
    HD_TRY(check_same_shape(p, dst, "dst"));
    HD_TRY(check_space(p, dst, "dst"));
    if (!same_form(&dst->layout, &to->layout, p->session->info.mesh.naxes) &&
        !heddle_layout_equal(&dst->layout, &to->layout, &p->session->info.mesh)) {
        return hd_fail(HEDDLE_ERR_LAYOUT,
                       "%s '%s': dst is in another layout than the stage's; heddle_session_expect "
                       "gives it",
                       p->verb, p->stage);
    }
    st = check_memory(p, dst, "dst", to, 1);
out:
    return st;
}

static heddle_status execute(const passage *p, heddle_tensor *x, const heddle_tensor *dst, hd_session_edge *edge,
                             heddle_session_record *record, heddle_stream stream)
{
    heddle_session *session = p->session;
    const void *src = NULL;
    void *result = NULL;
    heddle_status st = hd_session_source(&src, session, x, edge, stream);
    if (st == HEDDLE_OK) {
        st = hd_session_result(&result, session, &edge->to, dst, src);
    }
    if (st != HEDDLE_OK) {
        return give_up(p, st);
    }
    const int64_t before = hd_reshard_measured_bytes(edge->reshard);
    st = p->gate != NULL ? hd_reshard_execute_gated(edge->reshard, src, p->gate, result, stream)
                         : heddle_reshard_execute(edge->reshard, src, result, stream);
    if (st != HEDDLE_OK) {
        return hd_fail_prefix(st, "%s '%s'", p->verb, p->stage);
    }
    record->bytes_sent =
        hd_reshard_counts_late(edge->reshard) ? edge->bytes_planned : hd_reshard_measured_bytes(edge->reshard) - before;
    if (dst != NULL) {
        st = hd_session_deliver(session, edge, dst, result, stream);
        if (st != HEDDLE_OK) {
            return hd_fail_prefix(st, "%s '%s'", p->verb, p->stage);
        }
        *x = *dst;
        x->layout = edge->to.layout;
    } else {
        describe(x, session, &edge->to, result);
    }
    return HEDDLE_OK;
}

static heddle_status move(const passage *p, heddle_tensor *x, const heddle_tensor *dst, hd_session_edge *edge,
                          heddle_session_record *record, heddle_stream stream)
{
    heddle_session *session = p->session;
    const int64_t start_ns = hd_now_ns();
    heddle_status st;
    HD_TRY(check_memory(p, x, p->tensor, &edge->from, 0));
    HD_TRY(dst != NULL ? check_dst(p, dst, &edge->to) : HEDDLE_OK);
    record->line = edge->line;
    record->bytes_planned = edge->bytes_planned;
    if (session->dry_run) {
        record->path = "dry run";
        record->bytes_sent = edge->bytes_planned;
        describe(x, session, &edge->to, NULL);
    } else {
        record->path = p->gate != NULL ? "fused push" : edge->path;
        record->bytes_messages = edge->bytes_messages;
        HD_TRY(execute(p, x, dst, edge, record, stream));
    }
    record->ns = hd_now_ns() - start_ns;
    session->switches++;
    session->counters.switches++;
    session->counters.bytes_sent += record->bytes_sent;
    session->counters.bytes_planned += record->bytes_planned;
    session->counters.switch_ns += record->ns;
out:
    return st;
}

/* Counted only when it succeeded, so that a call that was refused may be made again. */
static void count(const passage *p, const hd_session_stage *stage, const heddle_session_record *record)
{
    heddle_session *session = p->session;
    const int index = (int)(stage - session->stages), last = session->info.nstages;
    session->records[session->nrecords++ % HD_SESSION_RECORDS] = *record;
    if (p->direction == HD_BACKWARD) {
        session->counters.backward_enters++;
        session->last_left = index;
        session->next[HD_BACKWARD] = index - 1;
    } else {
        session->counters.enters++;
        session->next[HD_FORWARD] = index < last ? index + 1 : last;
    }
    if (stage->counter != NULL) {
        *(p->direction == HD_BACKWARD ? &stage->counter->left : &stage->counter->entered) += 1;
    }
}

/* The stage that follows in the schedule, when it is the one that is asked for. */
static hd_session_stage *next_stage(const passage *p)
{
    const int index = p->session->next[p->direction];
    hd_session_stage *stage = index < 0 ? NULL : &p->session->stages[index];
    if (stage == NULL || strcmp(stage->name, p->stage) != 0) {
        return NULL;
    }
    const hd_session_name *counter = stage->counter;
    const int at = counter == NULL               ? 0
                   : p->direction == HD_BACKWARD ? counter->repetitions - 1 - counter->left
                                                 : counter->entered;
    return stage->repetition == at ? stage : NULL;
}

/* The edge that was taken into this stage last, or at first the schedule's; else one that is found or made. */
static heddle_status choose_edge(hd_session_edge **out, const passage *p, hd_session_stage *stage,
                                 const heddle_tensor *x)
{
    const heddle_shape *shape = &p->session->info.shape;
    const heddle_mesh *mesh = &p->session->info.mesh;
    heddle_status st;
    *out = stage->edge[p->direction];
    if (*out != NULL && same_form(&x->layout, &(*out)->from.layout, mesh->naxes)) {
        return HEDDLE_OK;
    }
    st = heddle_layout_check(&x->layout, shape, mesh);
    if (st != HEDDLE_OK) {
        return hd_fail_prefix(st, "%s '%s': %s's layout", p->verb, p->stage, p->tensor);
    }
    st = hd_session_edge_get(out, p->session, &x->layout, &stage->target[p->direction]);
    if (st != HEDDLE_OK) {
        return hd_fail_prefix(st, "%s '%s'", p->verb, p->stage);
    }
    stage->edge[p->direction] = *out;
    return HEDDLE_OK;
}

static heddle_status pass(const passage *p, heddle_tensor *x, const heddle_tensor *dst, heddle_stream stream)
{
    hd_session_stage *stage = next_stage(p);
    hd_session_edge *edge = NULL;
    heddle_status st;
    HD_TRY(stage != NULL ? HEDDLE_OK : hd_session_find(&stage, p->session, p->stage, p->direction));
    HD_TRY(check_same_shape(p, x, p->tensor));
    HD_TRY(check_space(p, x, p->tensor));
    HD_TRY(choose_edge(&edge, p, stage, x));
    heddle_session_record record = {.backward = p->direction == HD_BACKWARD,
                                    .stage = stage->name,
                                    .repetition = stage->repetition,
                                    .line = "",
                                    .path = ""};
    HD_TRY(edge->keeps ? HEDDLE_OK : move(p, x, dst, edge, &record, stream));
    count(p, stage, &record);
out:
    return st;
}

static heddle_status missing(const char *function, const heddle_session *session, const char *stage, const char *tensor)
{
    return hd_need(NULL, function, session == NULL ? "session" : stage == NULL ? "stage" : tensor);
}

heddle_status heddle_session_enter(heddle_session *session, const char *stage, heddle_tensor *x,
                                   const heddle_tensor *dst, heddle_stream stream)
{
    const passage p = {session, stage, "entering", "x", HD_FORWARD, NULL};
    return session == NULL || stage == NULL || x == NULL ? missing("heddle_session_enter", session, stage, "x")
                                                         : pass(&p, x, dst, stream);
}

int hd_session_takes_gate(const heddle_session *session, const heddle_tensor *x)
{
    const int next = session->next[HD_FORWARD];
    const hd_session_edge *edge = session->stages[next].edge[HD_FORWARD];
    return edge != NULL && edge->reshard != NULL && hd_reshard_takes_gate(edge->reshard) &&
           same_form(&x->layout, &edge->from.layout, session->info.mesh.naxes) &&
           hd_session_is_direct(session, x, &edge->from);
}

heddle_status hd_session_enter_gated(heddle_session *session, const char *stage, heddle_tensor *x,
                                     const hd_device_gate *gate, heddle_stream stream)
{
    const passage p = {session, stage, "entering", "x", HD_FORWARD, gate};
    return pass(&p, x, NULL, stream);
}

heddle_status heddle_session_backward(heddle_session *session, const char *stage, heddle_tensor *dx,
                                      const heddle_tensor *dst, heddle_stream stream)
{
    const passage p = {session, stage, "leaving backward from", "dx", HD_BACKWARD, NULL};
    return session == NULL || stage == NULL || dx == NULL ? missing("heddle_session_backward", session, stage, "dx")
                                                          : pass(&p, dx, dst, stream);
}
