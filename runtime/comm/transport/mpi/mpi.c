/* The MPI transport: a heddle_transport over duplicates of an MPI communicator. Nothing here waits without a deadline,
 * except MPI's own start and end. */
#include "mpi_transport.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPIN_TURNS = 256, ABORT_LOOK_TURNS = 64, INTERRUPT_NS = 10000000 };

/* --- control traffic ---------------------------------------------------------------------------------------------- */

static int is_interrupted(mpi_transport *t)
{
    const int64_t now_ns = mpi_now_ns();
    if (t->interrupt == NULL || now_ns - t->asked_ns < INTERRUPT_NS) {
        return 0;
    }
    t->asked_ns = now_ns;
    return t->interrupt(t->interrupt_arg) != 0;
}

/* As the rest of heddle does in its waits: "yes" is this rank giving up. */
static heddle_status ask_interrupt(mpi_transport *t)
{
    if (!is_interrupted(t)) {
        return HEDDLE_OK;
    }
    heddle_ignore(mpi_abort_send(t, "interrupted"));
    return heddle_set_error(HEDDLE_ERR_INTERRUPTED, "rank %d was interrupted while it waited for other ranks", t->rank);
}

static heddle_status wait_turn(mpi_transport *t, int64_t turn, int64_t deadline_ns, const char *what, int peer)
{
    if (turn % ABORT_LOOK_TURNS == 0) {
        heddle_status st = mpi_look(t);
        st = st == HEDDLE_OK ? mpi_heard(t) : st;
        st = st == HEDDLE_OK ? ask_interrupt(t) : st;
        if (st != HEDDLE_OK) {
            return st;
        }
        if (mpi_now_ns() > deadline_ns) {
            t->broken = 1;
            return peer < 0
                       ? heddle_set_error(HEDDLE_ERR_TIMEOUT,
                                          "rank %d: %s over MPI passed its deadline: not all of %d ranks came", t->rank,
                                          what, t->size)
                       : heddle_set_error(HEDDLE_ERR_TIMEOUT, "rank %d: %s with rank %d over MPI passed its deadline",
                                          t->rank, what, peer);
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
        return heddle_set_error(HEDDLE_ERR_UNSUPPORTED, "allgather of %zu bytes per rank: MPI counts end at %d", bytes,
                                INT_MAX);
    }
    heddle_status st = mpi_enter(t); /* also: an area that was given up may still be written to */
    if (st != HEDDLE_OK) {
        return st;
    }
    if (need_bytes > t->bounce_bytes) {
        char *larger = malloc(need_bytes);
        if (larger == NULL) {
            return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for an allgather area of %zu bytes", need_bytes);
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
    st = mpi_wait(t, &request, 1, deadline_ns, "gathering from all ranks", -1);
    if (st == HEDDLE_OK) {
        memcpy(recv, t->bounce + bytes, bytes * (size_t)t->size);
    }
    return st;
}

/* The caller takes its memory back, so MPI must have let go of it, and the peers are told because that takes both. */
static heddle_status sendrecv_failed(mpi_transport *t, heddle_status st)
{
    char why[2 * MPI_WHY_BYTES];
    snprintf(why, sizeof(why), "%s", heddle_last_error());
    heddle_ignore(mpi_abort_send(t, why));
    if (mpi_withdraw(t) != HEDDLE_OK) {
        char half_way[MPI_WHY_BYTES];
        snprintf(half_way, sizeof(half_way), "%s", heddle_last_error());
        return heddle_set_error(st, "%s; %s", why, half_way);
    }
    return heddle_set_error(st, "%s", why);
}

static heddle_status sendrecv(void *ctx, const void *send, size_t send_bytes, int to, void *recv, size_t recv_bytes,
                              int from, int64_t deadline_ns)
{
    mpi_transport *t = ctx;
    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    mpi_end end[2] = {{.peer = from}, {.peer = to, .is_send = 1}};
    mpi_flight flight = {.count = 2, .requests = requests, .end = end};
    MPI_Datatype types[2] = {MPI_BYTE, MPI_BYTE};
    int counts[2] = {0, 0};
    int made[2] = {0, 0};
    heddle_status st = mpi_enter(t);
    if (st == HEDDLE_OK) {
        st = mpi_bytes_type(t, (int64_t)recv_bytes, &types[0], &counts[0], &made[0]);
    }
    if (st == HEDDLE_OK) {
        st = mpi_bytes_type(t, (int64_t)send_bytes, &types[1], &counts[1], &made[1]);
    }
    int code = MPI_SUCCESS;
    mpi_flight_begin(t, &flight);
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
    if (requests[0] != MPI_REQUEST_NULL || requests[1] != MPI_REQUEST_NULL) {
        st = sendrecv_failed(t, st);
    }
    mpi_flight_end(t, &flight);
    for (int i = 0; i < 2; i++) {
        if (made[i]) {
            MPI_Type_free(&types[i]);
        }
    }
    return st;
}

/* --- making and ending -------------------------------------------------------------------------------------------- */

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
        if (t->listening != MPI_REQUEST_NULL) { /* nothing came, so this withdraws it */
            MPI_Cancel(&t->listening);
            MPI_Wait(&t->listening, MPI_STATUS_IGNORE);
        }
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
    free(t->note_requests);
    free(t->quiet);
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
        if (is_interrupted(t)) {
            t->broken = 1;
            return heddle_set_error(HEDDLE_ERR_INTERRUPTED, "rank %d was interrupted while the ranks were meeting",
                                    t->rank);
        }
        if (mpi_now_ns() > deadline_ns) {
            t->broken = 1;
            return heddle_set_error(HEDDLE_ERR_TIMEOUT,
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
        t->note_requests = calloc((size_t)t->size * 2, sizeof(MPI_Request));
        t->quiet = calloc((size_t)t->size, 1);
        st = t->note_requests != NULL && t->quiet != NULL
                 ? mpi_listen(t)
                 : heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for notes from %d ranks", t->size);
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
        return heddle_set_error(HEDDLE_ERR_NOMEM, "no memory for the MPI transport's %zu bytes", sizeof(*t));
    }
    t->control = MPI_COMM_NULL;
    t->bulk = MPI_COMM_NULL;
    t->owns_mpi = owns_mpi;
    t->interrupt = options->interrupt;
    t->interrupt_arg = options->interrupt_arg;
    t->listening = MPI_REQUEST_NULL;
    int64_t deadline_ms = options->deadline_ms > 0 ? options->deadline_ms : 60000;
    heddle_status st = attach(t, mpi, mpi_now_ns() + deadline_ms * 1000000);
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
            .abort_send = mpi_abort_send,
            .abort_poll = mpi_abort_poll,
            .destroy = destroy,
            .withdraw = mpi_withdraw,
            .exchange_missing = mpi_exchange_missing,
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
        return heddle_set_error(HEDDLE_ERR_ARG, "heddle_comm_from_mpi: MPI %s",
                                finalized ? "is already finalised" : "is not initialised");
    }
    if (out == NULL || mpi == MPI_COMM_NULL) {
        return heddle_set_error(HEDDLE_ERR_ARG, "heddle_comm_from_mpi: %s",
                                out == NULL ? "out is NULL" : "the communicator is MPI_COMM_NULL");
    }
    MPI_Comm_test_inter(mpi, &inter);
    if (inter) {
        return heddle_set_error(HEDDLE_ERR_ARG, "heddle_comm_from_mpi: an inter-communicator has two groups of "
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
        return heddle_set_error(HEDDLE_ERR_UNSUPPORTED, "MPI was finalised; it cannot be started again in this "
                                                        "process");
    }
    if (!initialized) {
        int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided);
        if (code != MPI_SUCCESS) {
            return heddle_set_error(HEDDLE_ERR_TRANSPORT, "MPI_Init_thread failed with code %d", code);
        }
    }
    return make(out, MPI_COMM_WORLD, !initialized, options);
}
