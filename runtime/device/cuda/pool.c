/* Memory for pools of frameworks (heddle/cuda.h). heddle itself may not have been loaded: nothing here says errors. */
#include "runtime/device/cuda/cuda.h"

#include <heddle/cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* CUDA IPC shares what the driver has allocated, in which smaller pieces lie together. */
static const size_t GRAIN_BYTES = (size_t)2 << 20;

typedef enum piece_state {
    IN_USE,
    GOING, /* it is being given back */
    FREE,
    SPENT /* free, but work with it may be under way: for nobody else */
} piece_state;

typedef struct piece {
    struct piece *next; /* at a higher address */
    char *memory;
    size_t bytes;
    int device;
    int holders; /* communicators whose peers may have it mapped: it is not given back to the device */
    piece_state state;
} piece;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows; CUDA is called without it */
static piece *pieces;
static _Atomic pid_t owner; /* a fork has neither the memory nor, for certain, the lock */

/* --- the list ----------------------------------------------------------------------------------------------------- */

/* Where a piece at this address is linked in, or would be. */
static piece **place_of(const void *memory)
{
    piece **at = &pieces;
    while (*at != NULL && (uintptr_t)(*at)->memory < (uintptr_t)memory) {
        at = &(*at)->next;
    }
    return at;
}

static piece *find(const void *memory)
{
    piece *p = *place_of(memory);
    return p != NULL && p->memory == memory ? p : NULL;
}

static void link_in(piece *p)
{
    piece **at = place_of(p->memory);
    p->next = *at;
    *at = p;
}

static void link_out(piece *p)
{
    *place_of(p->memory) = p->next;
}

/* The smallest that fits. */
static piece *take_free(int device, size_t bytes, size_t most_bytes)
{
    piece *best = NULL;
    pthread_mutex_lock(&lock);
    for (piece *p = pieces; p != NULL; p = p->next) {
        const int fits = p->state == FREE && p->device == device && p->bytes >= bytes && p->bytes <= most_bytes;
        best = fits && (best == NULL || p->bytes < best->bytes) ? p : best;
    }
    if (best != NULL) {
        best->state = IN_USE;
    }
    pthread_mutex_unlock(&lock);
    return best;
}

/* --- the device --------------------------------------------------------------------------------------------------- */

typedef struct visit {
    int before;
    enum cudaStreamCaptureMode mode;
} visit;

/* What is done here, of memory that is in no capture, does no harm to any. */
static int begin(visit *v, int device)
{
    v->mode = cudaStreamCaptureModeRelaxed;
    if (hd_context_enter(&v->before, device) == cudaSuccess) {
        if (cudaThreadExchangeStreamCaptureMode(&v->mode) == cudaSuccess) {
            return 1;
        }
        hd_context_leave(v->before);
    }
    (void)cudaGetLastError();
    return 0;
}

static void end(visit *v)
{
    (void)cudaThreadExchangeStreamCaptureMode(&v->mode);
    (void)cudaGetLastError();
    hd_context_leave(v->before);
}

/* Is all done that the device was doing? cudaFree waits for that, whatever was enqueued where, and is the only such
 * wait that leaves the captures of other threads alone. The stream that a framework gives will not do: graphs are
 * replayed on others, and its owner may have destroyed it. */
static int wait_for_device(int device)
{
    visit v;
    void *memory = NULL;
    if (!begin(&v, device)) {
        return 0;
    }
    const int is_done = cudaMalloc(&memory, GRAIN_BYTES) == cudaSuccess && cudaFree(memory) == cudaSuccess;
    end(&v);
    return is_done;
}

static piece *new_piece(int device, size_t bytes)
{
    visit v;
    void *memory = NULL;
    piece *p = calloc(1, sizeof *p);
    if (p == NULL || !begin(&v, device)) {
        free(p);
        return NULL;
    }
    const cudaError_t error = cudaMalloc(&memory, bytes);
    end(&v);
    if (error != cudaSuccess) {
        free(p);
        return NULL;
    }
    *p = (piece){.memory = memory, .bytes = bytes, .device = device};
    return p;
}

/* One that is in no list. */
static void give_back(piece *p)
{
    visit v;
    if (p != NULL && begin(&v, p->device)) {
        (void)cudaFree(p->memory);
        end(&v);
    }
    free(p);
}

/* --- the pool ----------------------------------------------------------------------------------------------------- */

/* The first process that asks is. */
static int is_owner(void)
{
    pid_t nobody = 0;
    const pid_t own = getpid();
    return atomic_compare_exchange_strong(&owner, &nobody, own) || nobody == own;
}

void *heddle_cuda_malloc(size_t bytes, int device, heddle_stream stream)
{
    (void)stream;
    if (bytes == 0 || bytes > SIZE_MAX / 4 || !is_owner()) {
        return NULL;
    }
    const size_t whole = (bytes + GRAIN_BYTES - 1) / GRAIN_BYTES * GRAIN_BYTES;
    piece *p = take_free(device, whole, 2 * whole);
    if (p == NULL && (p = new_piece(device, whole)) != NULL) {
        pthread_mutex_lock(&lock);
        link_in(p);
        pthread_mutex_unlock(&lock);
    }
    if (p == NULL) { /* rather one that is too large than none */
        p = take_free(device, whole, SIZE_MAX);
    }
    return p != NULL ? p->memory : NULL;
}

/* The lock is held. NULL: it stays. */
static piece *take_out(piece *p)
{
    if (p->holders > 0 || p->state == IN_USE || p->state == GOING) {
        return NULL;
    }
    link_out(p);
    return p;
}

void heddle_cuda_free(void *memory, size_t bytes, int device, heddle_stream stream)
{
    (void)bytes;
    (void)device;
    (void)stream;
    if (memory == NULL || atomic_load(&owner) != getpid()) {
        return;
    }
    pthread_mutex_lock(&lock);
    piece *p = find(memory);
    p = p != NULL && p->state == IN_USE ? p : NULL;
    if (p != NULL) {
        p->state = GOING;
    }
    const int is_held = p != NULL && p->holders > 0; /* who is going is held by nobody new */
    pthread_mutex_unlock(&lock);
    if (p == NULL) {
        return;
    }
    const piece_state state = is_held && wait_for_device(p->device) ? FREE : SPENT;
    pthread_mutex_lock(&lock);
    p->state = state;
    p = take_out(p);
    pthread_mutex_unlock(&lock);
    give_back(p);
}

/* --- for communicators -------------------------------------------------------------------------------------------- */

void hd_cuda_hold(void **memory, size_t *bytes, int device, const void *after)
{
    pthread_mutex_lock(&lock);
    piece *p = pieces;
    while (p != NULL && (p->device != device || p->state == GOING || (uintptr_t)p->memory <= (uintptr_t)after)) {
        p = p->next;
    }
    if (p != NULL) {
        p->holders++;
    }
    *memory = p != NULL ? p->memory : NULL;
    *bytes = p != NULL ? p->bytes : 0;
    pthread_mutex_unlock(&lock);
}

void hd_cuda_let_go(void *memory)
{
    pthread_mutex_lock(&lock);
    piece *p = find(memory);
    if (p != NULL) {
        p->holders--;
        p = take_out(p);
    }
    pthread_mutex_unlock(&lock);
    give_back(p);
}
