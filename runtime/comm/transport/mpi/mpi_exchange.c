/* Exchanges over MPI: one derived type per strided message, built when the exchange is made. */
#include "mpi_transport.h"

#include <limits.h>
#include <stdlib.h>

enum { TEST_TURNS = 16 };

typedef struct part {
    int peer;
    int is_send;
    int order; /* position in the caller's list: messages between one pair match in that order */
    int64_t offset_bytes;
    MPI_Datatype type;
    int count;
    int made; /* the type is ours to free */
} part;

typedef struct exchange {
    int nparts;
    int tag;
    int rank, size; /* for the order of the parts */
    part *parts;
    mpi_flight flight; /* its count: requests of the present execution */
    MPI_Status *statuses;
} exchange;

static heddle_status checked(const mpi_transport *t, int code, const char *call)
{
    return code == MPI_SUCCESS ? HEDDLE_OK : mpi_fail(t, code, call);
}

/* type <- `count` times `old`, `stride_bytes` apart. Counts beyond int are cut into a grid and a rest. Frees `old`. */
static heddle_status repeat(const mpi_transport *t, MPI_Datatype *type, int64_t count, int64_t stride_bytes)
{
    enum { GRID = 1 << 30 };
    MPI_Datatype old = *type;
    MPI_Datatype made = MPI_DATATYPE_NULL;
    int code;
    if (count <= INT_MAX) {
        code = MPI_Type_create_hvector((int)count, 1, (MPI_Aint)stride_bytes, old, &made);
    } else {
        int64_t whole = count / GRID;
        MPI_Datatype pieces[2] = {MPI_DATATYPE_NULL, MPI_DATATYPE_NULL};
        MPI_Datatype row = MPI_DATATYPE_NULL;
        const int lengths[2] = {1, 1};
        const MPI_Aint at[2] = {0, (MPI_Aint)(whole * GRID * stride_bytes)};
        code = MPI_Type_create_hvector(GRID, 1, (MPI_Aint)stride_bytes, old, &row);
        if (code == MPI_SUCCESS) {
            code = MPI_Type_create_hvector((int)whole, 1, (MPI_Aint)(GRID * stride_bytes), row, &pieces[0]);
            MPI_Type_free(&row);
        }
        if (code == MPI_SUCCESS) {
            code = MPI_Type_create_hvector((int)(count % GRID), 1, (MPI_Aint)stride_bytes, old, &pieces[1]);
        }
        if (code == MPI_SUCCESS) {
            code = MPI_Type_create_struct(2, lengths, at, pieces, &made);
        }
        for (int i = 0; i < 2; i++) {
            if (pieces[i] != MPI_DATATYPE_NULL) {
                MPI_Type_free(&pieces[i]);
            }
        }
    }
    MPI_Type_free(type);
    *type = made;
    return checked(t, code, "building a derived type");
}

/* type <- the same bytes, the next one `stride_bytes` further on. Frees the old type. */
static heddle_status space_out(const mpi_transport *t, MPI_Datatype *type, int64_t stride_bytes)
{
    MPI_Datatype made = MPI_DATATYPE_NULL;
    int code = MPI_Type_create_resized(*type, 0, (MPI_Aint)stride_bytes, &made);
    MPI_Type_free(type);
    *type = made;
    return checked(t, code, "MPI_Type_create_resized");
}

heddle_status mpi_bytes_type(const mpi_transport *t, int64_t bytes, MPI_Datatype *type, int *count, int *made)
{
    enum { TOKEN = 1 << 30 };
    *made = 0;
    if (bytes <= INT_MAX) {
        *type = MPI_BYTE;
        *count = (int)bytes;
        return HEDDLE_OK;
    }
    if (bytes / TOKEN > INT_MAX) {
        return heddle_set_error(HEDDLE_ERR_UNSUPPORTED, "one message of %lld bytes is more than MPI can carry",
                                (long long)bytes);
    }
    MPI_Datatype token = MPI_DATATYPE_NULL;
    int code = MPI_Type_contiguous(TOKEN, MPI_BYTE, &token);
    if (code == MPI_SUCCESS) {
        const int lengths[2] = {(int)(bytes / TOKEN), (int)(bytes % TOKEN)};
        const MPI_Aint at[2] = {0, (MPI_Aint)(bytes / TOKEN * TOKEN)};
        const MPI_Datatype types[2] = {token, MPI_BYTE};
        code = MPI_Type_create_struct(2, lengths, at, types, type);
        MPI_Type_free(&token);
    }
    if (code == MPI_SUCCESS) {
        code = MPI_Type_commit(type);
    }
    *count = 1;
    *made = code == MPI_SUCCESS;
    return checked(t, code, "building a contiguous type");
}

/* Rows that touch are one run; a loop of one turn is none. */
static heddle_message merged(const heddle_message *message)
{
    heddle_message m = *message;
    m.nloops = 0;
    int64_t run = message->run_bytes;
    for (int i = message->nloops - 1; i >= 0; i--) {
        int64_t count = message->count[i];
        if (count == 1) {
            continue;
        }
        if (m.nloops == 0 && message->stride_bytes[i] == run) {
            run *= count;
            continue;
        }
        m.count[m.nloops] = count; /* innermost first from here on */
        m.stride_bytes[m.nloops] = message->stride_bytes[i];
        m.nloops++;
    }
    m.run_bytes = run;
    return m;
}

static heddle_status build_type(const mpi_transport *t, part *p, const heddle_message *message)
{
    heddle_message m = merged(message);
    heddle_status st = mpi_bytes_type(t, m.run_bytes, &p->type, &p->count, &p->made);
    if (st != HEDDLE_OK || m.nloops == 0) {
        return st;
    }
    if (!p->made) { /* the run as a type of its own, which the loops repeat */
        MPI_Datatype run = MPI_DATATYPE_NULL;
        st = checked(t, MPI_Type_contiguous(p->count, MPI_BYTE, &run), "MPI_Type_contiguous");
        p->type = run;
        p->count = 1;
        p->made = st == HEDDLE_OK;
    }
    int outermost = m.nloops - 1;
    if (m.count[outermost] > INT_MAX) {
        outermost++;
    }
    for (int i = 0; i < outermost && st == HEDDLE_OK; i++) {
        st = repeat(t, &p->type, m.count[i], m.stride_bytes[i]);
        p->made = p->type != MPI_DATATYPE_NULL;
    }
    if (st == HEDDLE_OK && outermost < m.nloops) { /* rows with gaps, counted: Open MPI has a short cut for these */
        st = space_out(t, &p->type, m.stride_bytes[outermost]);
        p->made = p->type != MPI_DATATYPE_NULL;
        p->count = (int)m.count[outermost];
    }
    if (st == HEDDLE_OK) {
        st = checked(t, MPI_Type_commit(&p->type), "MPI_Type_commit");
    }
    return st;
}

static int64_t message_bytes(const heddle_message *message)
{
    int64_t bytes = message->run_bytes;
    for (int i = 0; i < message->nloops; i++) {
        bytes *= message->count[i];
    }
    return bytes;
}

/* Receives before sends, so that no message arrives unexpected; each rank starts with another peer, so that no peer is
 * everybody's first. */
static int distance(const part *p, int rank, int size)
{
    int d = p->is_send ? p->peer - rank : rank - p->peer;
    d = (d % size + size) % size;
    return d == 0 ? size : d;
}

static int comes_before(const part *a, const part *b, int rank, int size)
{
    if (a->is_send != b->is_send) {
        return b->is_send;
    }
    int da = distance(a, rank, size);
    int db = distance(b, rank, size);
    return da != db ? da < db : a->order < b->order;
}

/* Shell sort: `order` makes it stable, and it needs neither memory nor a context argument. */
static void sort_parts(exchange *x)
{
    int gap = 1;
    while (gap < x->nparts / 3) {
        gap = 3 * gap + 1;
    }
    for (; gap > 0; gap /= 3) {
        for (int i = gap; i < x->nparts; i++) {
            part moving = x->parts[i];
            int j = i;
            for (; j >= gap && comes_before(&moving, &x->parts[j - gap], x->rank, x->size); j -= gap) {
                x->parts[j] = x->parts[j - gap];
            }
            x->parts[j] = moving;
        }
    }
}

heddle_status mpi_exchange_create(void *ctx, void **out, const heddle_message *messages, int nmessages, int tag)
{
    mpi_transport *t = ctx;
    if (tag < 0 || tag > t->tag_max) {
        return heddle_set_error(HEDDLE_ERR_UNSUPPORTED, "exchange tag %d is outside this MPI's 0..%d", tag, t->tag_max);
    }
    heddle_status st = HEDDLE_OK;
    size_t room = nmessages > 0 ? (size_t)nmessages : 1;
    exchange *x = calloc(1, sizeof(*x));
    if (x != NULL) {
        x->parts = calloc(room, sizeof(*x->parts));
        x->flight.requests = calloc(room, sizeof(MPI_Request));
        x->flight.end = calloc(room, sizeof(*x->flight.end));
        x->statuses = calloc(room, sizeof(MPI_Status));
    }
    if (x == NULL || x->parts == NULL || x->flight.requests == NULL || x->flight.end == NULL || x->statuses == NULL) {
        st = heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for an exchange of %d messages", nmessages);
    } else {
        x->tag = tag;
        x->rank = t->rank;
        x->size = t->size;
    }
    for (int i = 0; i < nmessages && st == HEDDLE_OK; i++) {
        const heddle_message *m = &messages[i];
        if (m->peer < 0 || m->peer >= t->size) {
            st = heddle_set_error(HEDDLE_ERR_ARG, "message %d is for rank %d, but there are %d ranks", i, m->peer,
                                  t->size);
        } else if (message_bytes(m) > 0) { /* nothing to move is no message, on both ends alike */
            part *p = &x->parts[x->nparts++];
            *p = (part){m->peer, m->is_send != 0, i, m->offset_bytes, MPI_DATATYPE_NULL, 0, 0};
            st = build_type(t, p, m);
        }
    }
    if (st != HEDDLE_OK) {
        mpi_exchange_destroy(ctx, x);
        return st;
    }
    sort_parts(x);
    for (int i = 0; i < x->nparts; i++) {
        x->flight.end[i] = (mpi_end){.peer = x->parts[i].peer, .is_send = x->parts[i].is_send};
    }
    *out = x;
    return HEDDLE_OK;
}

heddle_status mpi_exchange_start(void *ctx, void *exchange_, const void *src, void *dst)
{
    mpi_transport *t = ctx;
    exchange *x = exchange_;
    MPI_Request *requests = x->flight.requests;
    heddle_status st = mpi_enter(t);
    if (st != HEDDLE_OK || x->nparts == 0) {
        return st;
    }
    mpi_flight_begin(t, &x->flight);
    for (int i = 0; i < x->nparts; i++) {
        const part *p = &x->parts[i];
        int code = p->is_send ? MPI_Isend((const char *)src + p->offset_bytes, p->count, p->type, p->peer, x->tag,
                                          t->bulk, &requests[i])
                              : MPI_Irecv((char *)dst + p->offset_bytes, p->count, p->type, p->peer, x->tag, t->bulk,
                                          &requests[i]);
        if (code != MPI_SUCCESS) {
            t->broken = 1;
            return mpi_fail(t, code, p->is_send ? "MPI_Isend" : "MPI_Irecv");
        }
        x->flight.count = i + 1;
    }
    return HEDDLE_OK;
}

static heddle_status test_failed(mpi_transport *t, const exchange *x, int code)
{
    t->broken = 1;
    for (int i = 0; code == MPI_ERR_IN_STATUS && i < x->flight.count; i++) {
        int each = x->statuses[i].MPI_ERROR;
        if (each != MPI_SUCCESS && each != MPI_ERR_PENDING) {
            return mpi_fail(t, each, x->parts[i].is_send ? "a send" : "a receive");
        }
    }
    return mpi_fail(t, code, "MPI_Testall");
}

heddle_status mpi_exchange_test(void *ctx, void *exchange_, int *done)
{
    mpi_transport *t = ctx;
    exchange *x = exchange_;
    if (x->flight.count == 0) {
        *done = 1;
        return HEDDLE_OK;
    }
    /* Several turns a call: one moves a fragment or so, and the caller's loop costs as much as an idle turn. */
    int all = 0;
    int code = MPI_SUCCESS;
    for (int turn = 0; turn < TEST_TURNS && !all && code == MPI_SUCCESS; turn++) {
        code = MPI_Testall(x->flight.count, x->flight.requests, &all, x->statuses);
    }
    if (code != MPI_SUCCESS) {
        return test_failed(t, x, code);
    }
    *done = all;
    if (!all) {
        return HEDDLE_OK;
    }
    mpi_flight_end(t, &x->flight);
    if (!mpi_has_note(t)) {
        return HEDDLE_OK;
    }
    /* Whoever gave up said so before it touched its memory again. What came out of that memory cannot be trusted. */
    heddle_status st = mpi_look(t);
    return st == HEDDLE_OK ? mpi_heard(t) : st;
}

int mpi_exchange_missing(void *ctx, void *exchange_, int *peers, int capacity)
{
    const exchange *x = exchange_;
    int count = 0;
    (void)ctx;
    for (int i = 0; i < x->flight.count; i++) {
        int listed = x->flight.requests[i] == MPI_REQUEST_NULL;
        for (int k = 0; k < count && !listed; k++) {
            listed = peers[k] == x->parts[i].peer;
        }
        if (!listed && count < capacity) {
            peers[count++] = x->parts[i].peer;
        }
    }
    return count;
}

void mpi_exchange_destroy(void *ctx, void *exchange_)
{
    mpi_transport *t = ctx;
    exchange *x = exchange_;
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (x == NULL) {
        return;
    }
    if (!finalized && x->flight.count > 0) {
        heddle_ignore(mpi_abort_send(t, "an exchange was destroyed while its messages were in flight"));
        (void)mpi_withdraw(t); /* nobody to tell */
    }
    for (int i = 0; x->parts != NULL && !finalized && i < x->nparts; i++) {
        if (x->parts[i].made && x->parts[i].type != MPI_DATATYPE_NULL) {
            MPI_Type_free(&x->parts[i].type);
        }
    }
    free(x->statuses);
    free(x->flight.end);
    free(x->flight.requests);
    free(x->parts);
    free(x);
}
