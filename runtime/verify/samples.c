#include "runtime/verify/samples.h"

#include "runtime/verify/judge.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

double samples_now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

heddle_status samples_slowest(double *ms, int samples, heddle_comm *comm)
{
    int n = heddle_comm_size(comm);
    double *all = calloc((size_t)n, sizeof *all);
    heddle_status st = all != NULL ? HEDDLE_OK : judge_no_memory("times of the ranks", (double)n * sizeof *all);
    for (int i = 0; i < samples && st == HEDDLE_OK; i++) {
        st = heddle_comm_allgather(comm, &ms[i], all, sizeof ms[i]);
        for (int r = 0; r < n && st == HEDDLE_OK; r++) {
            ms[i] = fmax(ms[i], all[r]);
        }
    }
    free(all);
    return st;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void samples_sort(double *ms, int samples)
{
    qsort(ms, (size_t)samples, sizeof *ms, ascending);
}

double samples_median(double *ms, int samples)
{
    samples_sort(ms, samples);
    return samples > 0 ? ms[samples / 2] : 0;
}
