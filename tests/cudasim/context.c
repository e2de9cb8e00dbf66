/* Contexts: one of each device that CUDA's runtime uses (the primary one), those that programs make, and the stack of
 * every thread, the top of which is current. As the runtime of CUDA 12 and later: choosing a device makes its primary
 * context, and so does every call that needs one on a thread that has none, of the device chosen last. */
#include "sim.h"

enum { MOST_NESTED = 8 };

struct CUctx_st {
    int device;
};

static struct CUctx_st primary[HD_SIM_MAX_DEVICES];
static _Atomic int has_primary[HD_SIM_MAX_DEVICES], made[HD_SIM_MAX_DEVICES];

static _Thread_local CUcontext stack[MOST_NESTED];
static _Thread_local int depth;
static _Thread_local int chosen; /* where the runtime goes when there is no context */

int hd_sim_contexts(int device)
{
    return atomic_load(&has_primary[device]) + atomic_load(&made[device]);
}

CUcontext hd_sim_primary(int device)
{
    primary[device].device = device;
    atomic_store(&has_primary[device], 1);
    return &primary[device];
}

static void replace(CUcontext context)
{
    depth -= depth > 0;
    if (context != NULL) {
        stack[depth++] = context;
    }
}

int hd_sim_device(void)
{
    return depth > 0 ? stack[depth - 1]->device : chosen;
}

cudaError_t hd_sim_begin_in_context(const char *call)
{
    const cudaError_t early = hd_sim_begin(call);
    if (early == cudaSuccess && depth == 0) {
        replace(hd_sim_primary(chosen));
    }
    return early;
}

cudaError_t cudaGetDevice(int *device)
{
    HD_SIM_QUESTION();
    *device = hd_sim_device();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    HD_SIM_QUESTION();
    if (!hd_sim_is_device(device)) {
        return hd_sim_result(cudaErrorInvalidDevice);
    }
    chosen = device;
    if (depth == 0 || stack[depth - 1] != &primary[device]) {
        replace(hd_sim_primary(device));
    }
    return cudaSuccess;
}

/* --- the driver's; its errors have the runtime's numbers ---------------------------------------------------------- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    const cudaError_t early = hd_sim_begin(__func__);
    if (early != cudaSuccess || !hd_sim_is_device(device)) {
        return early != cudaSuccess ? (CUresult)early : CUDA_ERROR_INVALID_DEVICE;
    }
    *out = hd_sim_primary(device);
    return CUDA_SUCCESS;
}

/* The next ones touch nothing but the thread's own stack: they are not made to fail. */
CUresult cuCtxPushCurrent(CUcontext context)
{
    hd_sim_count_call(__func__);
    if (context == NULL) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (depth == MOST_NESTED) {
        hd_sim_die("a thread has pushed %d contexts", depth);
    }
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *out)
{
    hd_sim_count_call(__func__);
    if (depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *out = stack[--depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    hd_sim_count_call(__func__);
    if (depth == 0) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *device = stack[depth - 1]->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *out)
{
    hd_sim_count_call(__func__);
    *out = depth > 0 ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    replace(context);
    return CUDA_SUCCESS;
}

void *hd_sim_context_create(int device)
{
    CUcontext context = malloc(sizeof *context);
    if (context != NULL) {
        context->device = device;
        atomic_fetch_add(&made[device], 1);
        (void)cuCtxPushCurrent(context);
    }
    return context;
}

void hd_sim_context_destroy(void *context)
{
    if (depth > 0 && stack[depth - 1] == context) {
        depth--;
    }
    atomic_fetch_sub(&made[((CUcontext)context)->device], 1);
    free(context);
}

/* --- where a program finds them ----------------------------------------------------------------------------------- */

#define ENTRY(function)                                                                                                \
    {                                                                                                                  \
#function, (void (*)(void))function                                                                            \
    }

static const struct {
    const char *name;
    void (*function)(void);
} entries[] = {ENTRY(cuDevicePrimaryCtxRetain), ENTRY(cuCtxPushCurrent), ENTRY(cuCtxPopCurrent),
               ENTRY(cuCtxGetCurrent),          ENTRY(cuCtxGetDevice),   ENTRY(cuPointerGetAttribute)};

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **out, unsigned int version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result)
{
    (void)flags;
    HD_SIM_QUESTION();
    *out = NULL;
    *result = cudaDriverEntryPointSymbolNotFound;
    if (version > CUDART_VERSION) {
        return hd_sim_result(cudaErrorInvalidValue);
    }
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (strcmp(entries[i].name, symbol) == 0) {
            memcpy(out, &entries[i].function, sizeof *out);
            *result = cudaDriverEntryPointSuccess;
        }
    }
    return cudaSuccess;
}
