/* Inside of the emulator. One lock, one place to wait: whoever changes something wakes everybody there. A stream that
 * has nothing to do waits at a place of its own.
 *
 * The race detector must see what CUDA orders and nothing else, or a missing event would go unnoticed. So the emulator
 * itself is built without it, its lock is one that the detector does not know, and the edges that CUDA promises are
 * said by hand (hd_sim_release, hd_sim_acquire): enqueue -> run, record -> wait, run -> synchronize.
 */
#ifndef HD_CUDASIM_INTERNAL_H
#define HD_CUDASIM_INTERNAL_H

#include "cuda.h"
#include "cuda_runtime_api.h"
#include "cudasim.h"
#include "lang_cpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    HD_SIM_MAX_DEVICES = 16,
    HD_SIM_MAX_CONNECTIONS = 32,
    HD_SIM_MAX_KERNELS = 256,
    HD_SIM_MAX_LANES = 16 /* streams of one capture */
};

/* --- lock.c */

void hd_sim_lock(void);
void hd_sim_unlock(void);
/* With the lock, all four; a wait opens it. */
typedef struct hd_sim_place {
    _Atomic uint32_t calls;
    int waiting;
} hd_sim_place;
void hd_sim_wait_at(hd_sim_place *place); /* until somebody calls there, once */
void hd_sim_call(hd_sim_place *place);
void hd_sim_wait(void); /* until something changes */
void hd_sim_changed(void);
void hd_sim_rest(unsigned turns); /* who has looked so often for what another thread does; without the lock */
void hd_sim_release(void *edge);
void hd_sim_acquire(void *edge);
_Noreturn void hd_sim_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Of two strings; not strcmp, of which the race detector looks at every byte. */
static inline int hd_sim_is_same(const char *a, const char *b)
{
    while (a != b && *a == *b && *a != 0) {
        a++;
        b++;
    }
    return a == b || *a == *b;
}

/* --- device.c */

/* The beginning of every call: set up, counted, made to fail; by then the thread has a context. Not for error queries.
 */
#define HD_SIM_CALL() HD_SIM_BEGIN(hd_sim_begin_in_context(__func__))

/* Of those for which CUDA needs no context, and makes none. */
#define HD_SIM_QUESTION() HD_SIM_BEGIN(hd_sim_begin(__func__))

#define HD_SIM_BEGIN(begin)                                                                                            \
    do {                                                                                                               \
        cudaError_t early = (begin);                                                                                   \
        if (early != cudaSuccess) {                                                                                    \
            return early;                                                                                              \
        }                                                                                                              \
    } while (0)

/* Of calls that a capture forbids, also to other threads, unless it is relaxed. */
#define HD_SIM_CALL_OUTSIDE_CAPTURE()                                                                                  \
    do {                                                                                                               \
        HD_SIM_CALL();                                                                                                 \
        if (hd_sim_forbids()) {                                                                                        \
            return hd_sim_result(cudaErrorStreamCaptureUnsupported);                                                   \
        }                                                                                                              \
    } while (0)

cudaError_t hd_sim_begin(const char *call);
int hd_sim_has_failed(void); /* a call has, that was asked to */
/* Where CUDA waits as long as its guide allows: no other thread's call comes in between. */
void hd_sim_keep_driver(void);
void hd_sim_leave_driver(void);
/* Remembers it for cudaGetLastError. */
cudaError_t hd_sim_result(cudaError_t error);
int hd_sim_is_device(int device);
int hd_sim_most_shared(void); /* bytes */
int64_t hd_sim_memory_bytes(void);
int64_t hd_sim_room(int device); /* of that, with the lock */
int hd_sim_connections(void);    /* of every device; 0: one for every stream */
/* With the lock, both. Where it is asked for: until all is done that devices were given to do. Who enqueues lets those
 * go first that wait so. */
void hd_sim_wait_to_allocate(void);
void hd_sim_let_allocate(void);

/* --- context.c */

cudaError_t hd_sim_begin_in_context(const char *call);
int hd_sim_device(void);              /* the calling thread's current one */
CUcontext hd_sim_primary(int device); /* made, if it was not */

/* --- memory.c */

typedef enum hd_sim_kind { HD_SIM_DEVICE, HD_SIM_PINNED, HD_SIM_REGISTERED, HD_SIM_IMPORTED } hd_sim_kind;

typedef struct hd_sim_area {
    char *base; /* as the program knows it */
    size_t bytes;
    hd_sim_kind kind;
    int device;
    int is_pooled;              /* hd_sim_set_pooled */
    int is_unmapped;            /* registered host memory that kernels may not touch */
    char *pages;                /* in the untouchable view */
    size_t page_bytes;          /* 0: host memory */
    int origin_process, opened; /* of imported memory */
    uint64_t origin_offset;
} hd_sim_area;

void hd_sim_memory_begin(void);
size_t hd_sim_span(void); /* of addresses of devices' memory */
/* With the lock, these eight; pages: of the view that cannot be touched. */
void hd_sim_add_area(const hd_sim_area *area);
void hd_sim_remove_area(const hd_sim_area *area);
char *hd_sim_take_pages(size_t bytes);
void hd_sim_give_pages(const hd_sim_area *area);
int hd_sim_map(const hd_sim_area *area, int file, uint64_t offset); /* 0: failed */
int hd_sim_file(const hd_sim_area *area, uint64_t *offset);         /* what lies behind its view */
hd_sim_area *hd_sim_find_import(int process, uint64_t offset);
/* With the lock. NULL: memory the device does not know. */
const hd_sim_area *hd_sim_find(const void *pointer);
int hd_sim_is_device_range(const void *pointer);
/* cudaErrorInvalidValue: not within one piece of memory. Host memory that is not known is its own view. */
cudaError_t hd_sim_check(const void *pointer, size_t bytes, void **view, int *is_pageable, int *is_device);

/* --- stream.c, event.c */

typedef struct hd_sim_op hd_sim_op;
struct hd_sim_op {
    hd_sim_op *next;
    uint64_t turn;               /* in its connection */
    void (*run)(hd_sim_op *op);  /* on the stream's thread, without the lock */
    void (*drop)(hd_sim_op *op); /* what it holds; may be NULL */
    union {
        struct {
            void *dst;
            const void *src;
            size_t dst_pitch, src_pitch, width, height;
        } copy;
        struct {
            void *dst;
            int value;
            size_t bytes;
        } set;
        struct {
            cudaEvent_t event;
            uint64_t ticket;
        } event;
        struct {
            cudaStream_t stream;
            uint64_t ticket;
        } after;
        struct {
            cudaHostFn_t function;
            void *user;
        } host;
        cudaGraph_t graph;
        struct {
            const char *name;
            hd_sim_body body;
            unsigned blocks, threads, shared_bytes;
            void *args;
        } kernel;
    } u;
};

struct CUstream_st {
    int device, references, is_legacy, is_blocking, is_closing, priority;
    int connection;
    uint64_t enqueued, finished;
    hd_sim_op *first, *last;
    const hd_sim_op *running;
    hd_sim_place work;              /* where its thread waits for it */
    cudaStream_t next, handle;      /* handle: what programs know it by; NULL: a legacy stream */
    struct hd_sim_capture *capture; /* NULL: none */
    int lane;                       /* in it */
    char edge;
};

struct CUevent_st {
    int references, is_timed;
    uint64_t recorded, done;
    uint64_t time_ns;
    uint64_t capture; /* in which it was recorded last; 0: none */
    uint64_t seen[HD_SIM_MAX_LANES];
    cudaEvent_t kept; /* the next one that could not be destroyed */
    char edge;
};

int hd_sim_running_device(void); /* of the kernel that runs on this thread */
/* With the lock; the stream that a handle means, NULL: none. */
cudaStream_t hd_sim_stream(cudaStream_t handle);
int hd_sim_is_capturing(cudaStream_t handle); /* without the lock */
/* Takes the operation over. Without the lock. */
cudaError_t hd_sim_enqueue(cudaStream_t handle, hd_sim_op *what);
/* With the lock: behind what is in the stream now. */
void hd_sim_finish(cudaStream_t stream);
void hd_sim_finish_device(int device);
int hd_sim_is_copied(const void *memory, size_t bytes); /* by what is enqueued, or under way */
void hd_sim_stream_unref(cudaStream_t stream);
void hd_sim_event_unref(cudaEvent_t event);

/* --- graph.c: with the lock, but for the first */

int hd_sim_forbids(void);
cudaError_t hd_sim_capture_implicit(cudaStream_t stream);
/* Into the graph of the stream's capture, instead of being done. */
cudaError_t hd_sim_capture_op(cudaStream_t stream, const hd_sim_op *what);
void hd_sim_capture_record(cudaEvent_t event, cudaStream_t stream);
/* Only where the stream or the event's last record is of a capture. */
cudaError_t hd_sim_capture_wait(cudaStream_t stream, const struct CUevent_st *event);

/* --- copy.c */

int hd_sim_copies(const hd_sim_op *op, const void *memory, size_t bytes);

/* --- launch.c */

int hd_sim_take_turn(void); /* 1: no other kernel runs until it is given back */
void hd_sim_give_turn(int is_taken, const char *kernel);
int hd_sim_is_reversed(void);
int hd_sim_is_unseen(void); /* by the race detector */
unsigned hd_sim_told_apart(void);

/* --- traffic.c */

int hd_sim_is_counted(void);
/* Around a kernel, where it is; in between, what it touches: its place among devices' addresses. */
void hd_sim_count_begin(void);
void hd_sim_note(int64_t offset, uint64_t bytes, int is_store);
void hd_sim_count_end(const char *name);

/* --- fibre.c */

void hd_sim_run_kernel(hd_sim_op *op);
void hd_sim_end_fibres(void); /* of this thread */

/* Why a thread of a kernel does not run. */
typedef enum hd_sim_state {
    HD_SIM_READY,
    HD_SIM_AT_BARRIER,
    HD_SIM_AT_WARP, /* waits for the other lanes of its warp */
    HD_SIM_DONE
} hd_sim_state;

enum { HD_SIM_LEFT_BYTES = 48, HD_SIM_MAX_COPIES = 256 /* of a thread that are not done */, HD_SIM_MAX_GROUPS = 8 };

/* A copy of 16 bytes that has been asked for; from NULL: zeros. */
typedef struct hd_sim_copy {
    void *to;
    const void *from;
    unsigned group;
} hd_sim_copy;

/* What a thread has as a lane of its warp. */
typedef struct hd_sim_lane {
    hd_sim_state state;
    unsigned meetings; /* it has been to; what it leaves lies at this number % 2 */
    const char *word;  /* that it waits at */
    _Alignas(8) unsigned char left[2][HD_SIM_LEFT_BYTES];
    unsigned copies, done, groups;              /* asked for, done, ended */
    hd_sim_copy copy[HD_SIM_MAX_COPIES];        /* number n at n % HD_SIM_MAX_COPIES */
    int is_one;                                 /* thread to the race detector, with all others of its block */
    void *copier;                               /* who copies, for the race detector */
    char asked[8], ended[HD_SIM_MAX_GROUPS][8]; /* edges */
} hd_sim_lane;

/* Of a thread of the present block; of the calling one. */
hd_sim_lane *hd_sim_lane_of(unsigned thread);
hd_sim_lane *hd_sim_own_lane(void);
const char *hd_sim_kernel_name(void);
void hd_sim_wait_for_warp(int is_order); /* is_order: what the lanes stored before is seen behind it */

/* --- warp.c */

void hd_sim_lane_begins(hd_sim_lane *lane);
void hd_sim_lane_ends(hd_sim_lane *lane); /* for good */
/* Lanes that have all come to a word go on. Ends the program where one has not, and cannot. */
enum { HD_SIM_BEHIND_BYTES = 4096 };
void hd_sim_fill_shared(char *memory, unsigned bytes);
/* Ends the program where a block wrote behind the memory that its launch gave it. */
void hd_sim_check_shared(const char *memory, unsigned bytes, unsigned block);
void hd_sim_warps_go_on(unsigned threads, unsigned block);

#endif
