/* The emulated CUDA makes contexts where the real one does, and every thread has a stack of them. */
#include "case.h"
#include "cuda.h"
#include "cuda_runtime_api.h"
#include "cudasim.h"

#include <pthread.h>

#define OK(call) assert_int_equal(call, 0)

static void on_a_thread(void *(*what)(void *arg), void *arg)
{
    pthread_t thread;
    OK(pthread_create(&thread, NULL, what, arg));
    OK(pthread_join(thread, NULL));
}

/* What is asked of devices by their number needs none. */
HD_CASE(questions_make_none)
{
    struct cudaDeviceProp about;
    int number = 0;
    OK(cudaGetDeviceCount(&number));
    OK(cudaGetDevice(&number));
    OK(cudaGetDeviceProperties(&about, 1));
    OK(cudaDeviceGetAttribute(&number, cudaDevAttrMultiProcessorCount, 0));
    OK(cudaRuntimeGetVersion(&number));
    OK(cudaGetLastError());
    assert_int_equal(hd_sim_contexts(0) + hd_sim_contexts(1), 0);
}

HD_CASE(choosing_makes_one)
{
    CUcontext context = NULL, again = NULL;
    int device = 0;
    OK(cudaSetDevice(1));
    assert_int_equal(hd_sim_contexts(1), 1);
    assert_int_equal(hd_sim_contexts(0), 0);
    OK(cuCtxGetCurrent(&context));
    OK(cuDevicePrimaryCtxRetain(&again, 1));
    assert_non_null(context);
    assert_ptr_equal(context, again);
    OK(cuCtxGetDevice(&device));
    assert_int_equal(device, 1);
    assert_int_equal(hd_sim_contexts(1), 1);
}

static void *ask(void *event)
{
    assert_int_equal(cudaEventQuery(event), cudaSuccess);
    return NULL;
}

/* Device 0's, where a thread that has chosen nothing asks of an event of device 1. */
HD_CASE(a_query_makes_one)
{
    cudaEvent_t event = NULL;
    OK(cudaSetDevice(1));
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    assert_int_equal(hd_sim_contexts(0), 0);
    on_a_thread(ask, event);
    assert_int_equal(hd_sim_contexts(0), 1);
    OK(cudaEventDestroy(event));
}

HD_CASE(peer_access_makes_one)
{
    OK(cudaSetDevice(1));
    OK(cudaDeviceEnablePeerAccess(0, 0));
    assert_int_equal(hd_sim_contexts(0), 1);
}

/* What is on top is current, whoever has put it there; setting one replaces it. */
HD_CASE(contexts_are_a_stack)
{
    CUcontext first = NULL, own = NULL, seen = NULL;
    int device = 0;
    assert_int_equal(cuCtxPopCurrent(&seen), CUDA_ERROR_INVALID_CONTEXT);
    assert_int_equal(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuDevicePrimaryCtxRetain(&first, 0));
    OK(cuCtxPushCurrent(first));
    own = hd_sim_context_create(1);
    assert_non_null(own);
    OK(cudaGetDevice(&device));
    assert_int_equal(device, 1);
    assert_int_equal(hd_sim_contexts(1), 1);
    OK(cuCtxPopCurrent(&seen));
    assert_ptr_equal(seen, own);
    OK(cuCtxSetCurrent(own));
    OK(cuCtxPopCurrent(&seen));
    assert_ptr_equal(seen, own);
    OK(cuCtxGetCurrent(&seen));
    assert_null(seen);
    hd_sim_context_destroy(own);
    assert_int_equal(hd_sim_contexts(1), 0);
}

HD_CASE(functions_are_found_by_name)
{
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result;
    OK(cudaGetDriverEntryPointByVersion("cuCtxPushCurrent", &found, 12000, cudaEnableDefault, &result));
    assert_non_null(found);
    OK(cudaGetDriverEntryPointByVersion("cuNothing", &found, 12000, cudaEnableDefault, &result));
    assert_null(found);
    assert_int_equal(result, cudaDriverEntryPointSymbolNotFound);
    assert_int_equal(hd_sim_contexts(0), 0);
}
