/* What this thread has asked CUDA and cuBLAS for, by name: a sentence of all that was called in between. */
#ifndef HD_TEST_COUNTED_CALLS_H
#define HD_TEST_COUNTED_CALLS_H

#include "device_sim.h"

#include <stdio.h>
#include <stdlib.h>

enum { COUNTED_MOST = 96, COUNTED_BYTES = 1024 };

typedef struct counted_calls {
    device_sim sim;
    int64_t before[COUNTED_MOST]; /* in the order in which the thread came to them */
} counted_calls;

static inline void counted_begin(counted_calls *c)
{
    int64_t calls = 0;
    memset(c->before, 0, sizeof c->before);
    for (int i = 0; c->sim.calls_by_name(i, &calls) != NULL; i++) {
        c->before[i] = calls;
    }
}

static inline int counted_compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* "3 cudaLaunchKernel, 1 cudaEventRecord", by name. By which call a fake cuBLAS enqueues does not count. */
static inline const char *counted_since(const counted_calls *c, char text[COUNTED_BYTES])
{
    char part[COUNTED_MOST][96];
    int64_t calls = 0;
    int n = 0;
    const char *name;
    for (int i = 0; (name = c->sim.calls_by_name(i, &calls)) != NULL; i++) {
        if (calls > c->before[i] && strcmp(name, "cudaLaunchHostFunc") != 0) {
            snprintf(part[n++], sizeof part[0], "%s %lld", name, (long long)(calls - c->before[i]));
        }
    }
    qsort(part, (size_t)n, sizeof part[0], counted_compare);
    text[0] = 0;
    for (int i = 0; i < n; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, COUNTED_BYTES - used, "%s%s", i > 0 ? ", " : "", part[i]);
    }
    return text;
}

#endif
