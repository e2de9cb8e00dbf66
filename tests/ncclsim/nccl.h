/* The part of NCCL's interface that heddle uses, for ranks on the emulated CUDA runtime: same names, types and values
 * as the real header has (golden/nccl_header compares the two where there is one), so that what includes <nccl.h>
 * builds against either. What the fake does on request is in ncclsim.h. */
#ifndef HD_NCCLSIM_NCCL_H
#define HD_NCCLSIM_NCCL_H

#include <cuda_runtime_api.h>
#include <limits.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HD_NCCLSIM 1
#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_VERSION_CODE 22809
#define NCCL_VERSION(X, Y, Z) (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_CONFIG_UNDEF_INT INT_MIN

/* Found by dlsym, wherever it was linked into, and by the library beside which it was. */
#define NCCLSIM_EXPORT __attribute__((visibility("default")))

typedef struct ncclComm *ncclComm_t;

typedef struct {
    char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7,
    ncclNumResults = 8,
} ncclResult_t;

typedef enum {
    ncclInt8 = 0,
    ncclChar = 0,
    ncclUint8 = 1,
    ncclInt32 = 2,
    ncclInt64 = 4,
    ncclFloat32 = 7,
} ncclDataType_t;

/* The real one has more members behind these: by name only. */
typedef struct {
    size_t size;
    unsigned int magic, version;
    int blocking;
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                                                        \
    {                                                                                                                  \
        sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION_CODE, NCCL_CONFIG_UNDEF_INT                                     \
    }

NCCLSIM_EXPORT ncclResult_t ncclGetVersion(int *version);
NCCLSIM_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId);
NCCLSIM_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                                   ncclConfig_t *config);
NCCLSIM_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);
NCCLSIM_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm);
NCCLSIM_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm);
NCCLSIM_EXPORT const char *ncclGetErrorString(ncclResult_t result);
NCCLSIM_EXPORT const char *ncclGetLastError(ncclComm_t comm);
NCCLSIM_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);
NCCLSIM_EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int *count);
NCCLSIM_EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device);
NCCLSIM_EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank);
NCCLSIM_EXPORT ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer,
                                     ncclComm_t comm, cudaStream_t stream);
NCCLSIM_EXPORT ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                                     cudaStream_t stream);
NCCLSIM_EXPORT ncclResult_t ncclGroupStart(void);
NCCLSIM_EXPORT ncclResult_t ncclGroupEnd(void);

#ifdef __cplusplus
}
#endif

#endif
