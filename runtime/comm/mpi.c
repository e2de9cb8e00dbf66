/* The MPI transport: a heddle_transport over duplicates of an MPI communicator. Nothing here waits without a deadline,
 * except MPI's own start and end. */
#include "mpi_transport.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SPIN_TURNS = 256, ABORT_LOOK_TURNS = 64, ABORT_PUSH_NS = 50000000 };

static int64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

heddle_status mpi_fail(const mpi_transport *t, int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS || length <= 0) {
        snprintf(text, sizeof(text), "code %d", code);
    }
    return heddle_transport_fail(HEDDLE_ERR_TRANSPORT, "rank %d: %s failed: %s", t->rank, call, text);
}

/* --- giving up --------------------------------------------------------------------------------------------------- */

static heddle_status look_for_abort(mpi_transport *t)
{
    int there = 0;
    MPI_Status status;
    if (t->heard.rank >= 0) {
        return HEDDLE_OK;
    }
    int code = MPI_Iprobe(MPI_ANY_SOURCE, MPI_TAG_ABORT, t->control, &there, &status);
    if (code == MPI_SUCCESS && there) {
        mpi_abort_note note;
        code = MPI_Recv(&note, (int)sizeof(note), MPI_BYTE, status.MPI_SOURCE, MPI_TAG_ABORT, t->control,
                        MPI_STATUS_IGNORE);
        if (code == MPI_SUCCESS) {
            note.why[MPI_WHY_BYTES - 1] = '\0';
            t->heard = note;
            t->broken = 1;
        }
    }
    return code == MPI_SUCCESS ? HEDDLE_OK : mpi_fail(t, code, "looking for an abort");
}

static heddle_status abort_poll(void *ctx, int *aborted_by, char *why, size_t why_bytes)
{
    mpi_transport *t = ctx;
    heddle_status st = look_for_abort(t);
    *aborted_by = t->heard.rank;
    if (t->heard.rank >= 0 && why_bytes > 0) {
        snprintf(why, why_bytes, "%s", t->heard.why);
    }
    return st;
}

/* One small message to everybody. It fits MPI's eager size, so it leaves without the receiver's help; the note stays
 * allocated because nobody waits for it. */
static heddle_status abort_send(void *ctx, const char *why)
{
    mpi_transport *t = ctx;
    if (t->note != NULL) {
        return HEDDLE_OK;
    }
    t->note = calloc(1, sizeof(*t->note));
    t->note_requests = malloc((size_t)t->size * sizeof(MPI_Request));
    if (t->note == NULL || t->note_requests == NULL) {
        return heddle_transport_fail(HEDDLE_ERR_NOMEM, "no memory to tell %d ranks to give up", t->size - 1);
    }
    t->broken = 1;
    t->note->rank = t->rank;
    snprintf(t->note->why, sizeof(t->note->why), "%s", why);
    int code = MPI_SUCCESS;
    for (int i = 0; i < t->size; i++) {
        int peer = (t->rank + i) % t->size;
        t->note_requests[i] = MPI_REQUEST_NULL;
        if (peer != t->rank) {
            int sent = MPI_Isend(t->note, (int)sizeof(*t->note), MPI_BYTE, peer, MPI_TAG_ABORT, t->control,
                                 &t->note_requests[i]);
            code = sent != MPI_SUCCESS ? sent : code; /* the others are told all the same */
        }
    }
    int64_t end_ns = now_ns() + ABORT_PUSH_NS;
    for (int done = 0; !done && now_ns() < end_ns;) {
        if (MPI_Testall(t->size, t->note_requests, &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS) {
            break;
        }
    }
    return code == MPI_SUCCESS ? HEDDLE_OK : mpi_fail(t, code, "telling the others to give up");
}

/* --- control traffic ------------------------------------------------------------------------------------------------
 */

static heddle_status wait_turn(mpi_transport *t, int64_t turn, int64_t deadline_ns, const char *what, int peer)
{
    if (turn % ABORT_LOOK_TURNS == 0) {
        heddle_status st = look_for_abort(t);
        if (st != HEDDLE_OK) {
            return st;
        }
        if (t->heard.rank >= 0) {
            return heddle_transport_fail(HEDDLE_ERR_PEER, "rank %d gave up: %s", t->heard.rank, t->heard.why);
        }
        if (now_ns() > deadline_ns) {
            t->broken = 1;
            return peer < 0
                       ? heddle_transport_fail(HEDDLE_ERR_TIMEOUT,
                                               "rank %d: %s over MPI passed its deadline: not all of %d ranks came",
                                               t->rank, what, t->size)
                       : heddle_transport_fail(HEDDLE_ERR_TIMEOUT,
                                               "rank %d: %s with rank %d over MPI passed its deadline", t->rank, what,
                                               peer);
        }
    }
    if (turn > SPIN_TURNS) { /* costs half a microsecond when nobody else wants the core */
        sched_yield();
    }
    return HEDDLE_OK;
}

heddle_status mpi_wait(mpi_transport *t, MPI_Request *requests, int count, int64_t deadline_ns, const char *what,
                       int peer)
{
    for (int64_t turn = 1;; turn++) {
        int done = 0;
        int code = MPI_Testall(count, requests, &done, MPI_STATUSES_IGNORE);
        if (code != MPI_SUCCESS) {
            t->broken = 1;
            return mpi_fail(t, code, what);
        }
        if (done) {
            return HEDDLE_OK;
        }
        heddle_status st = wait_turn(t, turn, deadline_ns, what, peer);
        if (st != HEDDLE_OK) {
            t->broken = 1;
            return st;
        }
    }
}

static heddle_status allgather(void *ctx, const void *send, void *recv, size_t bytes, int64_t deadline_ns)
{
    mpi_transport *t = ctx;
    size_t need_bytes = bytes * ((size_t)t->size + 1);
    if (bytes > INT_MAX) {
        return heddle_transport_fail(HEDDLE_ERR_UNSUPPORTED, "allgather of %zu bytes per rank: MPI counts end at %d",
                                     bytes, INT_MAX);
    }
    if (t->broken) { /* an area that was given up may still be written to */
        return heddle_transport_fail(HEDDLE_ERR_TRANSPORT, "rank %d: an earlier failure has broken this communicator",
                                     t->rank);
    }
    if (need_bytes > t->bounce_bytes) {
        char *larger = malloc(need_bytes);
        if (larger == NULL) {
            return heddle_transport_fail(HEDDLE_ERR_NOMEM, "no memory for an allgather area of %zu bytes", need_bytes);
        }
        free(t->bounce);
        t->bounce = larger;
        t->bounce_bytes = need_bytes;
    }
    if (bytes == 0) {
        return HEDDLE_OK;
    }
    MPI_Request request;
    memcpy(t->bounce, send, bytes);
    int code =
        MPI_Iallgather(t->bounce, (int)bytes, MPI_BYTE, t->bounce + bytes, (int)bytes, MPI_BYTE, t->control, &request);
    if (code != MPI_SUCCESS) {
        return mpi_fail(t, code, "MPI_Iallgather");
    }
    heddle_status st = mpi_wait(t, &request, 1, deadline_ns, "gathering from all ranks", -1);
    if (st == HEDDLE_OK) {
        memcpy(recv, t->bounce + bytes, bytes * (size_t)t->size);
    }
    return st;
}

static heddle_status sendrecv(void *ctx, const void *send, size_t send_bytes, int to, void *recv, size_t recv_bytes,
                              int from, int64_t deadline_ns)
{
    mpi_transport *t = ctx;
    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    MPI_Datatype types[2] = {MPI_BYTE, MPI_BYTE};
    int counts[2] = {0, 0};
    int made[2] = {0, 0};
    heddle_status st = mpi_bytes_type(t, (int64_t)recv_bytes, &types[0], &counts[0], &made[0]);
    if (st == HEDDLE_OK) {
        st = mpi_bytes_type(t, (int64_t)send_bytes, &types[1], &counts[1], &made[1]);
    }
    int code = MPI_SUCCESS;
    if (st == HEDDLE_OK && from >= 0) {
        code = MPI_Irecv(recv, counts[0], types[0], from, MPI_TAG_SENDRECV, t->control, &requests[0]);
    }
    if (st == HEDDLE_OK && code == MPI_SUCCESS && to >= 0) {
        code = MPI_Isend(send, counts[1], types[1], to, MPI_TAG_SENDRECV, t->control, &requests[1]);
    }
    if (code != MPI_SUCCESS) {
        st = mpi_fail(t, code, "sending and receiving");
    }
    if (st == HEDDLE_OK) {
        st = mpi_wait(t, requests, 2, deadline_ns, from >= 0 ? "receiving" : "sending", from >= 0 ? from : to);
    }
    if (st != HEDDLE_OK && requests[0] != MPI_REQUEST_NULL) {
        MPI_Cancel(&requests[0]); /* the caller may free its buffer */
        MPI_Request_free(&requests[0]);
    }
    for (int i = 0; i < 2; i++) {
        if (made[i]) {
            MPI_Type_free(&types[i]);
        }
    }
    return st;
}

/* --- making and ending ----------------------------------------------------------------------------------------------
 */

/* MPI_Comm_free and MPI_Finalize would wait for ranks that are gone, so a broken transport leaves both out; mpirun
 * then ends the job when this process ends. */
static void destroy(void *ctx)
{
    mpi_transport *t = ctx;
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (t->broken) {
        return; /* areas that MPI may still write to stay */
    }
    if (!finalized) {
        if (t->bulk != MPI_COMM_NULL) {
            MPI_Comm_free(&t->bulk);
        }
        if (t->control != MPI_COMM_NULL) {
            MPI_Comm_free(&t->control);
        }
        if (t->owns_mpi) {
            MPI_Finalize();
        }
    }
    free(t->bounce);
    free(t);
}

static heddle_status duplicate(mpi_transport *t, MPI_Comm from, MPI_Comm *out, const char *name, int64_t deadline_ns)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int code = MPI_Comm_idup(from, out, &request);
    if (code != MPI_SUCCESS) {
        *out = MPI_COMM_NULL;
        return mpi_fail(t, code, "MPI_Comm_idup");
    }
    for (int64_t turn = 1;; turn++) {
        int done = 0;
        code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) {
            return mpi_fail(t, code, "MPI_Comm_idup");
        }
        if (done) {
            break;
        }
        if (now_ns() > deadline_ns) {
            t->broken = 1;
            return heddle_transport_fail(HEDDLE_ERR_TIMEOUT,
                                         "rank %d: duplicating the MPI communicator passed its deadline: not all of "
                                         "%d ranks came",
                                         t->rank, t->size);
        }
        if (turn > SPIN_TURNS) {
            sched_yield();
        }
    }
    MPI_Comm_set_errhandler(*out, MPI_ERRORS_RETURN);
    MPI_Comm_set_name(*out, name);
    return HEDDLE_OK;
}

static heddle_status attach(mpi_transport *t, MPI_Comm mpi, int64_t deadline_ns)
{
    int *tag_max = NULL;
    int found = 0;
    MPI_Comm_rank(mpi, &t->rank);
    MPI_Comm_size(mpi, &t->size);
    heddle_status st = duplicate(t, mpi, &t->control, "heddle control", deadline_ns);
    if (st == HEDDLE_OK) {
        st = duplicate(t, mpi, &t->bulk, "heddle exchange", deadline_ns);
    }
    if (st == HEDDLE_OK) {
        MPI_Comm_get_attr(t->bulk, MPI_TAG_UB, (void *)&tag_max, &found);
        t->tag_max = found ? *tag_max : 32767; /* what the standard promises */
    }
    return st;
}

static heddle_status make(heddle_comm **out, MPI_Comm mpi, int owns_mpi, const heddle_comm_options *options)
{
    heddle_comm_options defaults;
    if (options == NULL) {
        heddle_comm_options_init(&defaults);
        options = &defaults;
    }
    mpi_transport *t = calloc(1, sizeof(*t));
    if (t == NULL) {
        return heddle_transport_fail(HEDDLE_ERR_NOMEM, "no memory for the MPI transport's %zu bytes", sizeof(*t));
    }
    t->control = MPI_COMM_NULL;
    t->bulk = MPI_COMM_NULL;
    t->owns_mpi = owns_mpi;
    t->heard.rank = -1;
    int64_t deadline_ms = options->deadline_ms > 0 ? options->deadline_ms : 60000;
    heddle_status st = attach(t, mpi, now_ns() + deadline_ms * 1000000);
    if (st == HEDDLE_OK) {
        const heddle_transport table = {
            .struct_bytes = sizeof(table),
            .name = "mpi",
            .rank = t->rank,
            .size = t->size,
            .allgather = allgather,
            .exchange_create = mpi_exchange_create,
            .exchange_start = mpi_exchange_start,
            .exchange_test = mpi_exchange_test,
            .exchange_destroy = mpi_exchange_destroy,
            .sendrecv = sendrecv,
            .abort_send = abort_send,
            .abort_poll = abort_poll,
            .destroy = destroy,
        };
        st = heddle_comm_from_callbacks(out, &table, t, options);
    }
    if (st != HEDDLE_OK) {
        destroy(t);
    }
    return st;
}

heddle_status heddle_comm_from_mpi(heddle_comm **out, MPI_Comm mpi, const heddle_comm_options *options)
{
    int initialized = 0;
    int finalized = 0;
    int inter = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (!initialized || finalized) {
        return heddle_transport_fail(HEDDLE_ERR_ARG, "heddle_comm_from_mpi: MPI %s",
                                     finalized ? "is already finalised" : "is not initialised");
    }
    if (out == NULL || mpi == MPI_COMM_NULL) {
        return heddle_transport_fail(HEDDLE_ERR_ARG, "heddle_comm_from_mpi: %s",
                                     out == NULL ? "out is NULL" : "the communicator is MPI_COMM_NULL");
    }
    MPI_Comm_test_inter(mpi, &inter);
    if (inter) {
        return heddle_transport_fail(HEDDLE_ERR_ARG, "heddle_comm_from_mpi: an inter-communicator has two groups of "
                                                     "ranks, not one; merge it first");
    }
    return make(out, mpi, 0, options);
}

heddle_status heddle_transport_open_v1(heddle_comm **out, const heddle_comm_options *options)
{
    int initialized = 0;
    int finalized = 0;
    int provided = MPI_THREAD_SINGLE;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized) {
        return heddle_transport_fail(HEDDLE_ERR_UNSUPPORTED, "MPI was finalised; it cannot be started again in this "
                                                             "process");
    }
    if (!initialized) {
        int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
        if (code != MPI_SUCCESS) {
            return heddle_transport_fail(HEDDLE_ERR_TRANSPORT, "MPI_Init_thread failed with code %d", code);
        }
    }
    return make(out, MPI_COMM_WORLD, !initialized, options);
}
