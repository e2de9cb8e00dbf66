/* Names of errors. */
#include "sim.h"

static const struct {
    cudaError_t error;
    const char *name, *text;
} known[] = {
#define KNOWN(error, text)                                                                                             \
    {                                                                                                                  \
        error, #error, text                                                                                            \
    }
    KNOWN(cudaSuccess, "no error"),
    KNOWN(cudaErrorInvalidValue, "invalid argument"),
    KNOWN(cudaErrorInvalidPitchValue, "invalid pitch argument"),
    KNOWN(cudaErrorMemoryAllocation, "out of memory"),
    KNOWN(cudaErrorInitializationError, "initialization error"),
    KNOWN(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    KNOWN(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy"),
    KNOWN(cudaErrorInsufficientDriver, "CUDA driver version is insufficient for CUDA runtime version"),
    KNOWN(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    KNOWN(cudaErrorInvalidDevice, "invalid device ordinal"),
    KNOWN(cudaErrorDeviceUninitialized, "invalid device context"),
    KNOWN(cudaErrorMapBufferObjectFailed, "mapping of buffer object failed"),
    KNOWN(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    KNOWN(cudaErrorIllegalState, "the operation cannot be performed in the present state"),
    KNOWN(cudaErrorNotReady, "device not ready"),
    KNOWN(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    KNOWN(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled"),
    KNOWN(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped"),
    KNOWN(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region"),
    KNOWN(cudaErrorLaunchFailure, "unspecified launch failure"),
    KNOWN(cudaErrorNotSupported, "operation not supported"),
    KNOWN(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    KNOWN(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    KNOWN(cudaErrorStreamCaptureMerge, "operation would result in a merge of separate capture sequences"),
    KNOWN(cudaErrorStreamCaptureUnmatched, "capture was not ended in the same stream as it began"),
    KNOWN(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work"),
    KNOWN(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    KNOWN(cudaErrorStreamCaptureImplicit,
          "operation would make the legacy stream depend on a capturing blocking stream"),
    KNOWN(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    KNOWN(cudaErrorStreamCaptureWrongThread,
          "attempt to terminate a thread-local capture sequence from another thread"),
    KNOWN(cudaErrorUnknown, "unknown error"),
};

static int find(cudaError_t error)
{
    for (int i = 0; i < (int)(sizeof known / sizeof known[0]); i++) {
        if (known[i].error == error) {
            return i;
        }
    }
    return -1;
}

const char *cudaGetErrorName(cudaError_t error)
{
    int i = find(error);
    return i >= 0 ? known[i].name : "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    int i = find(error);
    return i >= 0 ? known[i].text : "unrecognized error code";
}
