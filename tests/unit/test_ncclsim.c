/* The fake NCCL over the emulated CUDA runtime: messages on streams, between threads and processes, captured; and what
 * goes wrong with them. */
#include "case.h"
#include "cudasim.h"
#include "ncclsim.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 4, ELEMS = 70000 }; /* of one message: more than a socket holds */

typedef struct rank_args {
    ncclUniqueId id;
    int rank, nranks, rounds, blocking;
    int odd;    /* 1: the last rank sends less than is wanted */
    int absent; /* 1: the last rank does not come to the exchange, and aborts */
    int graph;
    int wrong;           /* elements */
    ncclResult_t result; /* of the exchange */
} rank_args;

static ncclResult_t settle(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
        state = asked != ncclSuccess ? asked : state;
    }
    return state;
}

static ncclResult_t all_to_all(const rank_args *a, ncclComm_t comm, int32_t *out, int32_t *in, cudaStream_t stream)
{
    ncclResult_t result = ncclGroupStart();
    for (int p = 0; p < a->nranks && result == ncclSuccess; p++) {
        size_t less = a->odd && a->rank == a->nranks - 1 ? 1 : 0;
        result = ncclSend(out + p * ELEMS, ELEMS - less, ncclInt32, p, comm, stream);
        result = result == ncclSuccess
                     ? ncclRecv(in + p * ELEMS, ELEMS - (p == a->rank ? less : 0), ncclInt32, p, comm, stream)
                     : result;
    }
    ncclResult_t ended = ncclGroupEnd();
    result = result == ncclSuccess ? ended : result;
    return result == ncclInProgress ? settle(comm) : result;
}

static int32_t value(int from, int to, int i, int round)
{
    return from * 1000003 + to * 5003 + i + round * 77;
}

static int count_wrong(const rank_args *a, const int32_t *in, int round)
{
    const int32_t *seen = hd_sim_view(in, (uint64_t)a->nranks * ELEMS * 4);
    int wrong = 0;
    for (int p = 0; p < a->nranks; p++) {
        for (int i = 0; i < ELEMS; i++) {
            wrong += seen[p * ELEMS + i] != value(p, a->rank, i, round);
        }
    }
    return wrong;
}

static void fill(const rank_args *a, int32_t *out, int round)
{
    int32_t *seen = hd_sim_view(out, (uint64_t)a->nranks * ELEMS * 4);
    for (int p = 0; p < a->nranks; p++) {
        for (int i = 0; i < ELEMS; i++) {
            seen[p * ELEMS + i] = value(a->rank, p, i, round);
        }
    }
}

static void exchange_rounds(rank_args *a, ncclComm_t comm, int32_t *out, int32_t *in, cudaStream_t stream)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    if (a->graph) {
        assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), 0);
        a->result = all_to_all(a, comm, out, in, stream);
        assert_int_equal(cudaStreamEndCapture(stream, &graph), 0);
        assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), 0);
        assert_int_equal(cudaGraphDestroy(graph), 0);
    }
    for (int round = 0; round < a->rounds && a->result == ncclSuccess; round++) {
        fill(a, out, round);
        if (exec != NULL) {
            assert_int_equal(cudaGraphLaunch(exec, stream), 0);
        } else {
            a->result = all_to_all(a, comm, out, in, stream);
        }
        assert_int_equal(cudaStreamSynchronize(stream), 0);
        a->result = a->result == ncclSuccess ? settle(comm) : a->result;
        a->wrong += a->result == ncclSuccess ? count_wrong(a, in, round) : 0;
    }
    if (exec != NULL) {
        assert_int_equal(cudaGraphExecDestroy(exec), 0);
    }
}

static void *rank_main(void *argument)
{
    rank_args *a = argument;
    ncclComm_t comm = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    cudaStream_t stream = NULL;
    int32_t *out = NULL, *in = NULL;
    int nranks = 0, rank = -1, device = -1;
    size_t bytes = (size_t)a->nranks * ELEMS * 4;
    config.blocking = a->blocking;
    assert_int_equal(cudaSetDevice(a->rank % 2), 0);
    assert_int_equal(ncclCommInitRankConfig(&comm, a->nranks, a->id, a->rank, &config),
                     a->blocking ? ncclSuccess : ncclInProgress);
    assert_int_equal(settle(comm), ncclSuccess);
    assert_int_equal(ncclCommCount(comm, &nranks) + ncclCommUserRank(comm, &rank) + ncclCommCuDevice(comm, &device), 0);
    assert_true(nranks == a->nranks && rank == a->rank && device == a->rank % 2);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), 0);
    assert_int_equal(cudaMalloc((void **)&out, bytes) + cudaMalloc((void **)&in, bytes), 0);
    int goes = a->absent && a->rank == a->nranks - 1;
    if (!goes) {
        exchange_rounds(a, comm, out, in, stream);
    }
    assert_int_equal(goes || a->result != ncclSuccess ? ncclCommAbort(comm) : ncclCommDestroy(comm), ncclSuccess);
    assert_int_equal(cudaStreamDestroy(stream), 0);
    assert_int_equal(cudaFree(out) + cudaFree(in), 0);
    return NULL;
}

static rank_args *run_threads(rank_args of)
{
    static rank_args a[RANKS];
    pthread_t thread[RANKS];
    assert_int_equal(ncclGetUniqueId(&of.id), ncclSuccess);
    of.nranks = RANKS;
    for (int r = 0; r < RANKS; r++) {
        a[r] = of;
        a[r].rank = r;
        assert_int_equal(pthread_create(&thread[r], NULL, rank_main, &a[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(thread[r], NULL);
    }
    assert_int_equal(ncclsim_comms(), 0);
    assert_int_equal(hd_sim_device_bytes(), 0);
    return a;
}

HD_CASE(all_to_all_of_threads)
{
    for (int how = 0; how < 4; how++) {
        rank_args *a = run_threads((rank_args){.rounds = 5, .blocking = how % 2, .graph = how / 2});
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(a[r].result, ncclSuccess);
            assert_int_equal(a[r].wrong, 0);
        }
    }
}

HD_CASE(all_to_all_of_processes)
{
    rank_args a = {.nranks = 3, .rounds = 2, .blocking = 0};
    pid_t child[3];
    memset(&a.id, 7, sizeof a.id);
    memcpy(&a.id, &(pid_t){getpid()}, sizeof(pid_t));
    for (int r = 0; r < 3; r++) {
        child[r] = fork();
        if (child[r] == 0) {
            a.rank = r;
            rank_main(&a);
            _exit(a.result != ncclSuccess || a.wrong != 0);
        }
    }
    for (int r = 0; r < 3; r++) {
        int status = 0;
        assert_int_equal(waitpid(child[r], &status, 0), child[r]);
        assert_int_equal(status, 0);
    }
}

/* Whoever receives from the last rank sees the wrong size, and all others that something has failed elsewhere. */
HD_CASE(a_size_that_differs_is_an_error)
{
    rank_args *a = run_threads((rank_args){.rounds = 1, .odd = 1});
    int invalid = 0;
    for (int r = 0; r < RANKS; r++) {
        assert_true(a[r].result == ncclInvalidUsage || a[r].result == ncclRemoteError);
        invalid += a[r].result == ncclInvalidUsage;
    }
    assert_true(invalid > 0);
}

HD_CASE(who_aborts_ends_the_others)
{
    rank_args *a = run_threads((rank_args){.rounds = 1, .absent = 1});
    for (int r = 0; r < RANKS - 1; r++) {
        assert_int_equal(a[r].result, ncclRemoteError);
    }
}

HD_CASE(calls_and_groups_fail_on_request)
{
    int version = 0;
    ncclUniqueId id;
    setenv("HEDDLE_NCCLSIM_VERSION", "21000", 1);
    assert_int_equal(ncclGetVersion(&version), ncclSuccess);
    assert_int_equal(version, 21000);
    unsetenv("HEDDLE_NCCLSIM_VERSION");
    int64_t before = ncclsim_calls();
    ncclsim_fail_at(2, ncclSystemError);
    assert_int_equal(ncclGetVersion(&version), ncclSuccess);
    assert_int_equal(version, NCCL_VERSION_CODE);
    assert_int_equal(ncclGetUniqueId(&id), ncclSystemError);
    assert_string_equal(ncclGetLastError(NULL), "a test has made this call fail");
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    assert_int_equal(ncclsim_calls() - before, 3);
    ncclsim_fail_group_at(1, ncclInternalError);
    rank_args *a = run_threads((rank_args){.rounds = 1});
    int internal = 0;
    for (int r = 0; r < RANKS; r++) {
        internal += a[r].result == ncclInternalError;
        assert_true(a[r].result == ncclInternalError || a[r].result == ncclRemoteError);
    }
    assert_int_equal(internal, 1);
}

/* A rank that never comes is waited for until the communicator is aborted; what is enqueued behind goes on. */
HD_CASE(a_wait_ends_when_the_communicator_is_aborted)
{
    setenv("HEDDLE_NCCLSIM_SILENT", "1", 1);
    rank_args a = {.nranks = 2};
    ncclComm_t comm[2];
    cudaStream_t stream = NULL;
    int32_t *memory = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    assert_int_equal(ncclGetUniqueId(&a.id), ncclSuccess);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ncclCommInitRankConfig(&comm[r], 2, a.id, r, &config), ncclInProgress);
    }
    assert_true(settle(comm[0]) == ncclSuccess && settle(comm[1]) == ncclSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), 0);
    assert_int_equal(cudaMalloc((void **)&memory, 64), 0);
    assert_int_equal(ncclRecv(memory, 16, ncclInt32, 1, comm[0], stream), ncclInProgress);
    assert_int_equal(cudaStreamQuery(stream), 0); /* in no stream yet */
    assert_int_equal(settle(comm[0]), ncclSuccess);
    assert_int_equal(cudaStreamQuery(stream), cudaErrorNotReady);
    assert_int_equal(ncclCommAbort(comm[1]), ncclSuccess);
    usleep(20000);
    assert_int_equal(cudaStreamQuery(stream), cudaErrorNotReady);
    assert_int_equal(ncclCommAbort(comm[0]), ncclSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), 0);
    assert_int_equal(cudaStreamDestroy(stream) + cudaFree(memory), 0);
    unsetenv("HEDDLE_NCCLSIM_SILENT");
}
