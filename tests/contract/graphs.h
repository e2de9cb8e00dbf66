/* Graphs of the emulated CUDA. */
#ifndef HD_TEST_GRAPHS_H
#define HD_TEST_GRAPHS_H

#include "device_sim.h"

typedef struct graphs { /* CUDA's, of the emulated library */
    int (*begin)(void *stream, int mode);
    int (*end)(void *stream, void **graph);
    int (*instantiate)(void **exec, void *graph, unsigned long long flags);
    int (*launch)(void *exec, void *stream);
    int (*graph_destroy)(void *graph);
    int (*exec_destroy)(void *exec);
} graphs;

static inline graphs get_graphs(const device_sim *sim)
{
    static const char *const names[] = {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate",
                                        "cudaGraphLaunch",        "cudaGraphDestroy",     "cudaGraphExecDestroy"};
    graphs out;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *found = dlsym(sim->handle, names[i]);
        memcpy((char *)&out + i * sizeof found, &found, sizeof found);
    }
    return out;
}

#endif
