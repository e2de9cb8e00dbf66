/* What tests ask of the emulated device besides heddle's table: functions of device_sim.c and cudasim.h in the library
 * that was loaded for it. */
#ifndef HD_TEST_DEVICE_SIM_H
#define HD_TEST_DEVICE_SIM_H

#include "device_copy.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef struct device_sim {
    void *handle;
    heddle_status (*stream_create)(void **stream);
    void (*stream_destroy)(void *stream);                /* released before */
    heddle_status (*capture)(void *stream, int mode);    /* of CUDA: 0 global, 1 of the thread, 2 relaxed */
    heddle_status (*record)(void *stream, void **graph); /* ends a capture */
    heddle_status (*replay)(void *graph, void *stream);
    void (*graph_free)(void *graph); /* NULL is legal */
    void (*hold)(void *stream);      /* what is enqueued from now on waits until release */
    void (*release)(void);
    void (*fail_at)(int64_t n, int error);
    void (*spare_looks)(int are_spared); /* at events: no calls of fail_at and calls */
    int64_t (*device_bytes)(void);
    int64_t (*calls)(void);                               /* since the program's start */
    const char *(*calls_by_name)(int at, int64_t *calls); /* of this thread */
    void (*refuse_at)(int64_t n);
    int64_t (*asked)(void);
    int64_t (*copied)(void); /* bytes between host and devices, since the program's start */
    void (*set_processors)(int n);
    int (*most_blocks)(void); /* of a launch since this was asked last */
    void (*set_serial)(int is_serial);
    int (*unloaded)(void);                  /* kernels that were launched without having been loaded before */
    int (*contexts)(int device);            /* of this process */
    void (*set_host_offset)(int64_t bytes); /* of registered memory on a device */
    void (*set_pooled)(int is_pooled);      /* memory that is given out from now on */
    void (*set_link)(int device, int link); /* 0 works, 1 loses, 2 stalls: hd_sim_set_link */
    void (*set_unseen)(int sight);          /* 1 kernels, by the race detector; 2 behind the call of fail_at alone */
    /* CUDA's own */
    int (*priority)(void *stream, int *priority);
    int (*set_device)(int device);
    int (*current)(void **context);
    int (*set_current)(void *context);
    void *(*context_create)(int device); /* current then */
    void (*context_destroy)(void *context);
} device_sim;

/* Where the library lies, for all that is attached in this program. With HEDDLE_TEST_CARD it is the one that the caller
 * has named in HEDDLE_MODULE_PATH, of a real device: programs that ask nothing of the emulated one judge that, too. */
__attribute__((constructor)) static inline void device_sim_here(void)
{
    setenv("HEDDLE_MODULE_PATH", HEDDLE_DEVICE_SIM, getenv("HEDDLE_TEST_CARD") == NULL);
}

/* Functions of a library, to a struct of nothing else. They are copied: a pointer to data is none to a function. */
static inline heddle_status sim_functions(void *out, void *library, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        void *found = library != NULL ? dlsym(library, names[i]) : NULL;
        if (found == NULL) {
            return heddle_set_error(HEDDLE_ERR_INTERNAL, "the emulated device has no %s", names[i]);
        }
        memcpy((char *)out + i * sizeof found, &found, sizeof found);
    }
    return HEDDLE_OK;
}

/* After something was attached. */
static inline heddle_status device_sim_get(device_sim *out)
{
    static const char *const names[] = {
        "device_sim_stream_create", "device_sim_stream_destroy", "device_sim_capture",    "device_sim_record",
        "device_sim_replay",        "device_sim_graph_free",     "device_sim_hold",       "device_sim_release",
        "hd_sim_fail_at",           "hd_sim_spare_looks",        "hd_sim_device_bytes",   "hd_sim_calls",
        "hd_sim_calls_by_name",     "hd_sim_refuse_at",          "hd_sim_asked",          "hd_sim_copied",
        "hd_sim_set_processors",    "hd_sim_most_blocks",        "hd_sim_set_serial",     "hd_sim_unloaded",
        "hd_sim_contexts",          "hd_sim_set_host_offset",    "hd_sim_set_pooled",     "hd_sim_set_link",
        "hd_sim_set_unseen",        "cudaStreamGetPriority",     "cudaSetDevice",         "cuCtxGetCurrent",
        "cuCtxSetCurrent",          "hd_sim_context_create",     "hd_sim_context_destroy"};
    out->handle = dlopen(HEDDLE_DEVICE_SIM "/libheddle_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    return sim_functions((char *)out + offsetof(device_sim, stream_create), out->handle, names,
                         sizeof names / sizeof names[0]);
}

static inline int is_on_card(void)
{
    return getenv("HEDDLE_TEST_CARD") != NULL;
}

/* From now on the race detector does not look into kernels: ranks will give up. A card has none. */
static inline heddle_status device_sim_unseen(void)
{
    device_sim sim;
    heddle_status st = is_on_card() ? HEDDLE_OK : device_sim_get(&sim);
    if (st == HEDDLE_OK && !is_on_card()) {
        sim.set_unseen(1);
    }
    return st;
}

/* NULL is legal: of a case that failed before it had one. */
static inline void device_stream_free(const device_sim *sim, void *stream)
{
    if (stream != NULL) {
        sim->stream_destroy(stream);
    }
}

static inline void device_graph_free(const device_sim *sim, void *graph)
{
    if (graph != NULL) {
        sim->graph_free(graph);
    }
}

#endif
