/* Host memory that devices know, and what any pointer is. */
#include "sim.h"

enum { PAGE = 4096 };

static _Atomic int64_t host_offset;

void hd_sim_set_host_offset(int64_t bytes)
{
    atomic_store(&host_offset, bytes);
}

static const hd_sim_area *find_within(void *memory, size_t bytes)
{
    const hd_sim_area *a = hd_sim_find(memory);
    return a != NULL ? a : hd_sim_find((char *)memory + bytes - 1);
}

static cudaError_t add_host(void *memory, size_t bytes, hd_sim_kind kind, int is_mapped)
{
    hd_sim_area a = {
        .base = memory, .bytes = bytes, .kind = kind, .device = hd_sim_device(), .is_unmapped = !is_mapped};
    hd_sim_lock();
    hd_sim_wait_to_allocate();
    const hd_sim_area *known = find_within(memory, bytes);
    while (known != NULL && known->kind == HD_SIM_REGISTERED && hd_sim_has_failed()) {
        hd_sim_remove_area(known); /* its end may have been the call that failed, and its memory another's since */
        known = find_within(memory, bytes);
    }
    if (known == NULL) {
        hd_sim_add_area(&a);
    }
    hd_sim_unlock();
    return known != NULL ? cudaErrorHostMemoryAlreadyRegistered : cudaSuccess;
}

static cudaError_t remove_host(void *memory, hd_sim_kind kind, cudaError_t otherwise)
{
    hd_sim_lock();
    const hd_sim_area *a = hd_sim_find(memory);
    int is_it = a != NULL && a->base == memory && a->kind == kind;
    if (is_it && hd_sim_is_copied(memory, a->bytes)) { /* CUDA does not promise to wait for it */
        hd_sim_die("host memory at %p is given back while it is copied", memory);
    }
    if (is_it) {
        hd_sim_finish_device(a->device);
        hd_sim_wait_to_allocate();
        hd_sim_remove_area(hd_sim_find(memory));
    }
    hd_sim_unlock();
    return is_it ? cudaSuccess : otherwise;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    (void)flags;
    HD_SIM_CALL_OUTSIDE_CAPTURE();
    *out = NULL;
    if (bytes == 0) {
        return cudaSuccess;
    }
    if (posix_memalign(out, PAGE, bytes) != 0) {
        *out = NULL;
        return hd_sim_result(cudaErrorMemoryAllocation);
    }
    return hd_sim_result(add_host(*out, bytes, HD_SIM_PINNED, 1));
}

cudaError_t cudaFreeHost(void *memory)
{
    HD_SIM_CALL_OUTSIDE_CAPTURE();
    if (memory == NULL) {
        return cudaSuccess;
    }
    cudaError_t error = remove_host(memory, HD_SIM_PINNED, cudaErrorInvalidValue);
    if (error == cudaSuccess) {
        free(memory);
    }
    return hd_sim_result(error);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned int flags)
{
    HD_SIM_CALL_OUTSIDE_CAPTURE();
    if (memory == NULL || bytes == 0 || hd_sim_is_device_range(memory)) {
        return hd_sim_result(cudaErrorInvalidValue);
    }
    return hd_sim_result(add_host(memory, bytes, HD_SIM_REGISTERED, (flags & cudaHostRegisterMapped) != 0));
}

cudaError_t cudaHostUnregister(void *memory)
{
    HD_SIM_CALL_OUTSIDE_CAPTURE();
    return hd_sim_result(remove_host(memory, HD_SIM_REGISTERED, cudaErrorHostMemoryNotRegistered));
}

cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned int flags)
{
    (void)flags;
    HD_SIM_CALL();
    hd_sim_lock();
    const hd_sim_area *a = hd_sim_find(host);
    *out = NULL;
    if (a != NULL && a->page_bytes == 0 && !a->is_unmapped) {
        *out = (char *)host + (a->kind == HD_SIM_REGISTERED ? atomic_load(&host_offset) : 0);
    }
    hd_sim_unlock();
    return hd_sim_result(*out != NULL ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer)
{
    HD_SIM_CALL();
    void *address = (void *)(uintptr_t)pointer;
    hd_sim_lock();
    const hd_sim_area *a = hd_sim_find(pointer);
    memset(out, 0, sizeof *out);
    out->type = a == NULL ? cudaMemoryTypeUnregistered : a->page_bytes == 0 ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
    out->device = a != NULL ? a->device : -1;
    out->devicePointer = a != NULL ? address : NULL;
    out->hostPointer = a == NULL || a->page_bytes == 0 ? address : NULL;
    hd_sim_unlock();
    return cudaSuccess;
}
