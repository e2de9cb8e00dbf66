/* What memory the device knows, and its two views. */
#include "sim.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef HD_SIM_ASAN
#include <sanitizer/asan_interface.h>
#else
#define __asan_poison_memory_region(at, bytes) ((void)(at), (void)(bytes))
#define __asan_unpoison_memory_region(at, bytes) ((void)(at), (void)(bytes))
#endif

/* Addresses are used in turn, so that a stale one is seen; the race detector, which keeps something for every address
 * ever used, gets fewer. */
#ifdef HD_SIM_TSAN
static const size_t SPAN = (size_t)1 << 32;
#else
static const size_t SPAN = (size_t)1 << 36;
#endif
enum { PAGE = 4096, ALIGNMENT = 256, PATTERN = 0xcb, MOST_AREAS = 1 << 18 };

static char *untouchable; /* SPAN bytes; the view lies SPAN bytes further */
static int file;          /* what lies behind the view: page at offset x of both */
static size_t turn;       /* where the next search begins */
static char given_edge;   /* freed here, allocated there */

static hd_sim_area *area; /* [MOST_AREAS], never moved: the race detector does not see the emulator's own lock */
static int nareas;
static _Atomic uint64_t generation = 1;
static _Atomic int64_t device_bytes;
static _Atomic int gives_pooled;

void hd_sim_set_pooled(int is_pooled)
{
    atomic_store(&gives_pooled, is_pooled);
}

void hd_sim_memory_begin(void)
{
    untouchable = mmap(NULL, 2 * SPAN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    area = mmap(NULL, MOST_AREAS * sizeof *area, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1, 0);
    file = memfd_create("cudasim", MFD_CLOEXEC);
    if (untouchable == MAP_FAILED || (void *)area == MAP_FAILED || file < 0 || ftruncate(file, (off_t)SPAN) != 0) {
        hd_sim_die("no addresses for the memory of devices");
    }
}

size_t hd_sim_span(void)
{
    return SPAN;
}

int64_t hd_sim_device_bytes(void)
{
    return atomic_load(&device_bytes);
}

int hd_sim_is_device_range(const void *pointer)
{
    return (const char *)pointer >= untouchable && (const char *)pointer < untouchable + SPAN;
}

const hd_sim_area *hd_sim_find(const void *pointer)
{
    for (int i = 0; i < nareas; i++) {
        if ((const char *)pointer >= area[i].base && (const char *)pointer < area[i].base + area[i].bytes) {
            return &area[i];
        }
    }
    return NULL;
}

void hd_sim_add_area(const hd_sim_area *what)
{
    if (nareas == MOST_AREAS) {
        hd_sim_die("more than %d pieces of memory", nareas);
    }
    area[nareas++] = *what;
    atomic_fetch_add(&generation, 1);
}

void hd_sim_remove_area(const hd_sim_area *what)
{
    area[what - area] = area[--nareas];
    atomic_fetch_add(&generation, 1);
}

static char *view_of(const hd_sim_area *a, const void *pointer)
{
    return (char *)pointer + (a->page_bytes > 0 ? SPAN : 0);
}

/* Pages that nobody has, searched from behind those given last. */
char *hd_sim_take_pages(size_t bytes)
{
    for (size_t at = turn, tried = 0; tried < 2 * SPAN;) {
        if (at + bytes > SPAN) {
            tried += SPAN - at + 1;
            at = 0;
        }
        const hd_sim_area *other = NULL;
        for (int i = 0; i < nareas && other == NULL; i++) {
            const hd_sim_area *a = &area[i];
            other =
                a->page_bytes > 0 && a->pages < untouchable + at + bytes && untouchable + at < a->pages + a->page_bytes
                    ? a
                    : NULL;
        }
        if (other == NULL) {
            turn = at + bytes;
            return untouchable + at;
        }
        tried += (size_t)(other->pages + other->page_bytes - untouchable) - at;
        at = (size_t)(other->pages + other->page_bytes - untouchable);
    }
    return NULL;
}

int hd_sim_map(const hd_sim_area *a, int from, uint64_t offset)
{
    return mmap(a->pages + SPAN, a->page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, from, (off_t)offset) !=
           MAP_FAILED;
}

int hd_sim_file(const hd_sim_area *a, uint64_t *offset)
{
    *offset = (uint64_t)(a->pages - untouchable);
    return file;
}

hd_sim_area *hd_sim_find_import(int process, uint64_t offset)
{
    for (int i = 0; i < nareas; i++) {
        if (area[i].kind == HD_SIM_IMPORTED && area[i].origin_process == process && area[i].origin_offset == offset) {
            return &area[i];
        }
    }
    return NULL;
}

int64_t hd_sim_room(int device)
{
    int64_t room = hd_sim_memory_bytes();
    for (int i = 0; i < nareas; i++) {
        room -= area[i].kind == HD_SIM_DEVICE && area[i].device == device ? (int64_t)area[i].bytes : 0;
    }
    return room;
}

/* Its end lies as near to that of its last page as the alignment lets it. */
static cudaError_t take(void **out, size_t bytes)
{
    size_t aligned = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    hd_sim_area a = {.bytes = bytes, .kind = HD_SIM_DEVICE, .device = hd_sim_device()};
    a.is_pooled = atomic_load(&gives_pooled);
    a.page_bytes = (aligned + PAGE - 1) / PAGE * PAGE;
    a.pages = (int64_t)bytes <= hd_sim_room(a.device) ? hd_sim_take_pages(a.page_bytes) : NULL;
    if (a.pages == NULL || !hd_sim_map(&a, file, (uint64_t)(a.pages - untouchable))) {
        return cudaErrorMemoryAllocation;
    }
    hd_sim_acquire(&given_edge);
    a.base = a.pages + a.page_bytes - aligned;
    memset(a.base + SPAN, PATTERN, bytes);
    __asan_poison_memory_region(a.pages + SPAN, a.page_bytes - aligned);
    __asan_poison_memory_region(a.base + SPAN + bytes, aligned - bytes);
    hd_sim_add_area(&a);
    atomic_fetch_add(&device_bytes, (int64_t)bytes);
    *out = a.base;
    return cudaSuccess;
}

void hd_sim_give_pages(const hd_sim_area *a)
{
    __asan_unpoison_memory_region(a->pages + SPAN, a->page_bytes);
    if (mmap(a->pages + SPAN, a->page_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
             0) == MAP_FAILED) {
        hd_sim_die("%zu bytes of a device cannot be given back", a->page_bytes);
    }
}

static int64_t asked, refuse_at;

void hd_sim_refuse_at(int64_t n)
{
    hd_sim_lock();
    refuse_at = n > 0 ? asked + n : 0;
    hd_sim_unlock();
}

int64_t hd_sim_asked(void)
{
    hd_sim_lock();
    const int64_t n = asked;
    hd_sim_unlock();
    return n;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    HD_SIM_CALL_OUTSIDE_CAPTURE();
    *out = NULL;
    if (bytes == 0) {
        return cudaSuccess;
    }
    hd_sim_lock();
    hd_sim_wait_to_allocate();
    cudaError_t error = ++asked == refuse_at ? cudaErrorMemoryAllocation : take(out, bytes);
    hd_sim_unlock();
    return hd_sim_result(error);
}

/* As on a GPU, it waits for all that the device has been given to do. */
cudaError_t cudaFree(void *memory)
{
    HD_SIM_CALL_OUTSIDE_CAPTURE();
    if (memory == NULL) {
        return cudaSuccess;
    }
    hd_sim_lock();
    const hd_sim_area *a = hd_sim_find(memory);
    cudaError_t error = cudaErrorInvalidValue;
    if (a != NULL && a->base == memory && a->kind == HD_SIM_DEVICE) {
        error = cudaSuccess;
        hd_sim_finish_device(a->device);
        hd_sim_wait_to_allocate();
        a = hd_sim_find(memory); /* the lock was open */
        hd_sim_release(&given_edge);
        hd_sim_give_pages(a);
        (void)fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(a->pages - untouchable),
                        (off_t)a->page_bytes);
        atomic_fetch_sub(&device_bytes, (int64_t)a->bytes);
        hd_sim_remove_area(a);
    }
    hd_sim_unlock();
    return hd_sim_result(error);
}

cudaError_t hd_sim_check(const void *pointer, size_t bytes, void **view, int *is_pageable, int *is_device)
{
    const hd_sim_area *a = hd_sim_find(pointer);
    *view = (void *)(uintptr_t)pointer;
    *is_pageable = a == NULL;
    *is_device = 0;
    if (a == NULL) {
        return hd_sim_is_device_range(pointer) ? cudaErrorInvalidValue : cudaSuccess;
    }
    *view = view_of(a, pointer);
    *is_device = a->page_bytes > 0;
    int is_within = (const char *)pointer + bytes <= a->base + a->bytes;
    return is_within || !*is_device ? cudaSuccess : cudaErrorInvalidValue;
}

/* The pieces that a thread touched last are remembered for as long as none comes or goes: of pages side by side
 * each in a place of its own, so those of arrays that a kernel reads by turns. */
enum { PLACES = 8 };
typedef struct touched {
    uint64_t generation;
    const char *base, *end;
    char *view;
} touched;

static void find_touched(touched *out, const void *address, uint64_t bytes)
{
    hd_sim_lock();
    const hd_sim_area *a = hd_sim_find(address);
    out->generation = atomic_load(&generation);
    out->base = a != NULL ? a->base : NULL;
    out->end = a != NULL ? a->base + a->bytes : NULL;
    out->view = a != NULL ? view_of(a, a->base) : NULL;
    int is_unmapped = a != NULL && a->is_unmapped;
    hd_sim_unlock();
    if (a == NULL) {
        hd_sim_die("a kernel touches %llu bytes at %p, which no device knows", (unsigned long long)bytes, address);
    }
    if (is_unmapped) {
        hd_sim_die("a kernel touches host memory at %p that was registered without cudaHostRegisterMapped", address);
    }
}

static void *touch(const void *address, uint64_t bytes, int is_store)
{
    static _Thread_local touched place[PLACES];
    touched *last = &place[(uintptr_t)address / PAGE % PLACES];
    const char *at = address;
    if (last->generation != atomic_load_explicit(&generation, memory_order_relaxed) || at < last->base ||
        at + bytes > last->end) {
        find_touched(last, address, bytes);
    }
    if (((uintptr_t)address & (bytes - 1)) != 0) { /* a power of two */
        hd_sim_die("a kernel touches %llu bytes at %p: not aligned", (unsigned long long)bytes, address);
    }
    if (hd_sim_is_counted() && hd_sim_is_device_range(address)) {
        hd_sim_note(at - untouchable, bytes, is_store);
    }
    return last->view + (at - last->base);
}

void *hd_sim_at(const void *address, uint64_t bytes)
{
    return touch(address, bytes, 0);
}

static _Atomic int links[HD_SIM_MAX_DEVICES];

void hd_sim_set_link(int device, hd_sim_link link)
{
    atomic_store(&links[device], link);
}

static int is_of_another(const void *address, int device)
{
    hd_sim_lock();
    const hd_sim_area *a = hd_sim_find(address);
    const int is = a != NULL && (a->kind == HD_SIM_IMPORTED || (a->kind == HD_SIM_DEVICE && a->device != device));
    hd_sim_unlock();
    return is;
}

void *hd_sim_to(const void *address, uint64_t bytes)
{
    void *view = touch(address, bytes, 1);
    const int device = hd_sim_running_device();
    if (atomic_load_explicit(&links[device], memory_order_relaxed) == HD_SIM_LINK_WORKS ||
        !is_of_another(address, device)) {
        return view;
    }
    while (atomic_load(&links[device]) == HD_SIM_LINK_STALLS) {
        hd_sim_nap();
    }
    return atomic_load(&links[device]) == HD_SIM_LINK_WORKS ? view : NULL;
}

void *hd_sim_view(const void *device_memory, uint64_t bytes)
{
    void *view = NULL;
    int is_pageable = 0, is_device = 0;
    hd_sim_lock();
    cudaError_t error = hd_sim_check(device_memory, bytes, &view, &is_pageable, &is_device);
    hd_sim_unlock();
    return error == cudaSuccess && is_device ? view : NULL;
}

CUresult cuPointerGetAttribute(void *out, CUpointer_attribute what, CUdeviceptr memory)
{
    hd_sim_lock();
    const hd_sim_area *a = hd_sim_find((const void *)(uintptr_t)memory);
    const int is_known = a != NULL && what == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
    if (is_known) {
        *(unsigned char *)out = a->kind == HD_SIM_DEVICE && !a->is_pooled;
    }
    hd_sim_unlock();
    return is_known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
