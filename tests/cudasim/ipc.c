/* Memory of one process's device in another process: the file behind the view,
 * found through /proc. */
#include "sim.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* What a handle holds. */
typedef struct name {
    uint64_t offset, page_bytes, bytes, in_pages;
    int32_t process, file, device;
    uint32_t mark;
} name;

enum { MARK = 0x68646970 };
_Static_assert(sizeof(name) <= CUDA_IPC_HANDLE_SIZE, "a handle holds a name");

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *out, void *memory)
{
    HD_SIM_CALL();
    memset(out, 0, sizeof *out);
    hd_sim_lock();
    const hd_sim_area *a = hd_sim_find(memory);
    int is_own = a != NULL && a->kind == HD_SIM_DEVICE;
    if (is_own) {
        name n = {.page_bytes = a->page_bytes,
                  .bytes = a->bytes,
                  .in_pages = (uint64_t)(a->base - a->pages),
                  .process = getpid(),
                  .device = a->device,
                  .mark = MARK};
        n.file = hd_sim_file(a, &n.offset);
        memcpy(out, &n, sizeof n);
    }
    hd_sim_unlock();
    return hd_sim_result(is_own ? cudaSuccess : cudaErrorInvalidValue);
}

static cudaError_t import(void **out, const name *n)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)n->process, (int)n->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return cudaErrorMapBufferObjectFailed;
    }
    hd_sim_area a = {.bytes = n->bytes, .kind = HD_SIM_IMPORTED, .device = n->device, .page_bytes = n->page_bytes};
    a.origin_process = n->process;
    a.origin_offset = n->offset;
    a.opened = 1;
    a.pages = hd_sim_take_pages(a.page_bytes);
    cudaError_t error = cudaErrorMapBufferObjectFailed;
    if (a.pages != NULL && hd_sim_map(&a, file, n->offset)) {
        a.base = a.pages + n->in_pages;
        hd_sim_add_area(&a);
        *out = a.base;
        error = cudaSuccess;
    }
    close(file);
    return error;
}

/* Opened twice, it is the same address. */
cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned int flags)
{
    HD_SIM_CALL();
    *out = NULL;
    name n;
    memcpy(&n, &handle, sizeof n);
    if (flags != cudaIpcMemLazyEnablePeerAccess || n.mark != MARK) {
        return hd_sim_result(flags != cudaIpcMemLazyEnablePeerAccess ? cudaErrorInvalidValue
                                                                     : cudaErrorInvalidResourceHandle);
    }
    if (n.process == getpid()) {
        return hd_sim_result(cudaErrorDeviceUninitialized);
    }
    hd_sim_lock();
    hd_sim_area *known = hd_sim_find_import(n.process, n.offset);
    cudaError_t error = cudaSuccess;
    if (known != NULL) {
        known->opened++;
        *out = known->base;
    } else {
        error = import(out, &n);
    }
    hd_sim_unlock();
    return hd_sim_result(error);
}

cudaError_t cudaIpcCloseMemHandle(void *memory)
{
    HD_SIM_CALL();
    hd_sim_lock();
    const hd_sim_area *a = hd_sim_find(memory);
    int is_import = a != NULL && a->kind == HD_SIM_IMPORTED && a->base == memory;
    if (is_import) {
        hd_sim_area *open = hd_sim_find_import(a->origin_process, a->origin_offset);
        if (--open->opened == 0) {
            hd_sim_finish_device(hd_sim_device());
            a = hd_sim_find(memory);
            hd_sim_give_pages(a);
            hd_sim_remove_area(a);
        }
    }
    hd_sim_unlock();
    return hd_sim_result(is_import ? cudaSuccess : cudaErrorInvalidValue);
}
