/* libheddle_nccl: messages between CUDA devices by NCCL, behind heddle's table. Nothing of heddle is linked.
 *
 * Communicators are made such that no call of NCCL waits (config.blocking 0): what it has begun is asked after. */
#include "runtime/device/cuda/context.h"
#include "runtime/device/cuda/fail.h"

#include <heddle/sys/device_messages.h>
#include <nccl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(ncclUniqueId) == HEDDLE_MESSAGES_ID_BYTES, "an id travels as bytes");

typedef struct hd_nccl {
    ncclComm_t comm;
    int device, is_borrowed;
} hd_nccl;

/* --- errors ------------------------------------------------------------------------------------------------------- */

static heddle_status status_of(ncclResult_t result, ncclComm_t comm, const char *call)
{
    if (result == ncclSuccess || result == ncclInProgress) {
        return HEDDLE_OK;
    }
    const char *words = ncclGetLastError(comm);
    return hd_cuda_fail(result == ncclUnhandledCudaError ? HEDDLE_ERR_DEVICE : HEDDLE_ERR_TRANSPORT,
                        "NCCL: %.*s failed with %d, %s (%.300s)", (int)strcspn(call, "("), call, (int)result,
                        ncclGetErrorString(result), words != NULL ? words : "");
}

/* `call`, as one expression: its status. */
#define NCCL(comm, call) status_of((call), (comm), #call)

static heddle_status cuda_status(cudaError_t error, int device, const char *call)
{
    if (error == cudaSuccess) {
        return HEDDLE_OK;
    }
    (void)cudaGetLastError();
    return hd_cuda_fail(HEDDLE_ERR_DEVICE, "device cuda:%d: %s failed with error %d, %s", device, call, (int)error,
                        cudaGetErrorString(error));
}

/* NCCL takes the calling thread's current device. *before: for hd_context_leave. */
static heddle_status enter(int *before, int device)
{
    return cuda_status(hd_context_enter(before, device), device, "entering its context");
}

/* --- versions ----------------------------------------------------------------------------------------------------- */

/* The first that has ncclCommInitRankConfig, whose communicators do not wait; all else that is called here is older. */
enum { FIRST_VERSION = NCCL_VERSION(2, 14, 0) };

/* Before 2.9 a version had four digits. */
static void write_version(char *out, size_t bytes, int code)
{
    const int major = code < 10000 ? 1000 : 10000;
    snprintf(out, bytes, "%d.%d.%d", code / major, code % major / 100, code % 100);
}

/* A library takes the config of headers that are older than itself, and nothing newer is wanted. */
static ncclConfig_t config_of_first_version(void)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.size = (offsetof(ncclConfig_t, blocking) + sizeof config.blocking + 7) / 8 * 8;
    config.version = FIRST_VERSION;
    config.blocking = 0;
    return config;
}

static heddle_status describe(char *out, size_t bytes)
{
    char built[24], here[24];
    int found = 0;
    heddle_status st = NCCL(NULL, ncclGetVersion(&found));
    if (st != HEDDLE_OK) {
        return st;
    }
    write_version(built, sizeof built, NCCL_VERSION_CODE);
    write_version(here, sizeof here, found);
    if (found / 10000 != FIRST_VERSION / 10000 || found < FIRST_VERSION) {
        return hd_cuda_fail(HEDDLE_ERR_UNSUPPORTED,
                            "NCCL %s was found, wanted 2.14 or a later one of version 2, the first that has "
                            "ncclCommInitRankConfig",
                            here);
    }
    snprintf(out, bytes, "NCCL %s%s%s", here, found != NCCL_VERSION_CODE ? ", built for " : "",
             found != NCCL_VERSION_CODE ? built : "");
    return HEDDLE_OK;
}

/* --- communicators ------------------------------------------------------------------------------------------------ */

static heddle_status make_id(unsigned char id[HEDDLE_MESSAGES_ID_BYTES])
{
    ncclUniqueId made;
    heddle_status st = NCCL(NULL, ncclGetUniqueId(&made));
    if (st == HEDDLE_OK) {
        memcpy(id, &made, sizeof made);
    }
    return st;
}

static heddle_status make(hd_nccl **out, int device)
{
    *out = calloc(1, sizeof **out);
    if (*out == NULL) {
        return hd_cuda_fail(HEDDLE_ERR_NOMEM, "a communicator of NCCL: no %zu bytes", sizeof **out);
    }
    (*out)->device = device;
    return HEDDLE_OK;
}

static void end(void *handle, int gives_up)
{
    hd_nccl *nccl = handle;
    int before = 0;
    if (nccl == NULL) {
        return;
    }
    if (!nccl->is_borrowed && nccl->comm != NULL) {
        int has_entered = enter(&before, nccl->device) == HEDDLE_OK; /* a device that fails keeps nothing alive */
        (void)(gives_up ? ncclCommAbort(nccl->comm) : ncclCommDestroy(nccl->comm));
        if (has_entered) {
            hd_context_leave(before);
        }
    }
    free(nccl);
}

static heddle_status begin(void **out, const unsigned char id[HEDDLE_MESSAGES_ID_BYTES], int rank, int nranks,
                           int device)
{
    ncclUniqueId name;
    ncclConfig_t config = config_of_first_version();
    hd_nccl *made = NULL;
    int before = 0;
    heddle_status st = make(&made, device);
    st = st == HEDDLE_OK ? enter(&before, device) : st;
    if (st == HEDDLE_OK) {
        memcpy(&name, id, sizeof name);
        st = NCCL(NULL, ncclCommInitRankConfig(&made->comm, nranks, name, rank, &config));
        hd_context_leave(before);
    }
    if (st == HEDDLE_OK) {
        *out = made;
    } else {
        end(made, 1); /* what fails while ranks meet has a communicator already */
    }
    return st;
}

static heddle_status look(void *handle, int *rank, int *nranks, int *device)
{
    heddle_status st = NCCL(handle, ncclCommCount(handle, nranks));
    st = st == HEDDLE_OK ? NCCL(handle, ncclCommUserRank(handle, rank)) : st;
    return st == HEDDLE_OK ? NCCL(handle, ncclCommCuDevice(handle, device)) : st;
}

static heddle_status borrow(void **out, void *handle, int rank, int nranks, int device)
{
    hd_nccl *made = NULL;
    int its_ranks = 0, its_rank = 0, its_device = 0;
    heddle_status st = look(handle, &its_rank, &its_ranks, &its_device);
    if (st != HEDDLE_OK) {
        return st;
    }
    if (its_ranks != nranks || its_rank != rank || its_device != device) {
        return hd_cuda_fail(
            HEDDLE_ERR_MISMATCH,
            "the communicator of NCCL is rank %d of %d on cuda:%d, heddle's is rank %d of %d on cuda:%d", its_rank,
            its_ranks, its_device, rank, nranks, device);
    }
    st = make(&made, device);
    if (st == HEDDLE_OK) {
        made->comm = handle;
        made->is_borrowed = 1;
        *out = made;
    }
    return st;
}

static heddle_status test(void *handle, int *done)
{
    hd_nccl *nccl = handle;
    ncclResult_t state = ncclSuccess;
    heddle_status st = NCCL(nccl->comm, ncclCommGetAsyncError(nccl->comm, &state));
    *done = state != ncclInProgress;
    return st == HEDDLE_OK ? status_of(state, nccl->comm, "what was enqueued") : st;
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

static heddle_status add_all(const hd_nccl *nccl, const heddle_device_message *sends, int nsends,
                             const heddle_device_message *recvs, int nrecvs, cudaStream_t stream)
{
    heddle_status st = HEDDLE_OK;
    for (int i = 0; i < nsends && st == HEDDLE_OK; i++) {
        st = NCCL(nccl->comm,
                  ncclSend(sends[i].data, (size_t)sends[i].bytes, ncclInt8, sends[i].peer, nccl->comm, stream));
    }
    for (int i = 0; i < nrecvs && st == HEDDLE_OK; i++) {
        st = NCCL(nccl->comm,
                  ncclRecv(recvs[i].data, (size_t)recvs[i].bytes, ncclInt8, recvs[i].peer, nccl->comm, stream));
    }
    return st;
}

static heddle_status exchange(void *handle, const heddle_device_message *sends, int nsends,
                              const heddle_device_message *recvs, int nrecvs, heddle_stream stream)
{
    const hd_nccl *nccl = handle;
    int before = 0;
    heddle_status st = enter(&before, nccl->device);
    if (st != HEDDLE_OK) {
        return st;
    }
    st = NCCL(nccl->comm, ncclGroupStart());
    if (st == HEDDLE_OK) {
        heddle_status added = add_all(nccl, sends, nsends, recvs, nrecvs, stream);
        ncclResult_t ended = ncclGroupEnd(); /* also of a group that is not whole: it fails as what was added did */
        st = added != HEDDLE_OK ? added : status_of(ended, nccl->comm, "ncclGroupEnd");
    }
    hd_context_leave(before);
    return st;
}

/* --- the table ---------------------------------------------------------------------------------------------------- */

static const heddle_device_messages nccl_messages = {
    .struct_bytes = sizeof nccl_messages,
    .name = "nccl",
    .device = "cuda",
    .describe = describe,
    .make_id = make_id,
    .begin = begin,
    .look = look,
    .borrow = borrow,
    .test = test,
    .exchange = exchange,
    .end = end,
};

/* HEDDLE_DEVICE_MESSAGES_LIBRARY. */
HEDDLE_API heddle_status heddle_device_messages_v1(const heddle_device_messages **out, heddle_device_fail_fn say);

heddle_status heddle_device_messages_v1(const heddle_device_messages **out, heddle_device_fail_fn say)
{
    hd_cuda_fail_by(say);
    *out = &nccl_messages;
    return HEDDLE_OK;
}
