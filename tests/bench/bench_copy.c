/* Every copy kernel on the lanes of a dim switch between threads pinned to cores, against contiguous copies of the
 * same bytes from the ranks that own them, all interleaved round-robin between the same barriers.
 *
 *     bench_copy A B C ELEM_BYTES [RANKS [SECONDS [KERNELS]]]      [a b c]: a@sp -> b@sp (push), b@sp -> a@sp (pull),
 *                                                        a@sp -> b@sp as b,a,c (permuted push)
 */
#include "kernels/copy.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { MAX_RANKS = 8, MAX_ROUNDS = 1000, MAX_ROWS = 128 };

typedef enum way {
    WAY_ROOF,
    WAY_ROOF_LAST,
    WAY_PUSH,
    WAY_PUSH_PEERS,
    WAY_PULL,
    WAY_PULL_PEERS,
    WAY_PERMUTED,
    WAYS
} way;
static const char *const way_name[WAYS] = {"roof (own first)", "roof (own last)", "push, row order", "push, per peer",
                                           "pull, row order",  "pull, per peer",  "permuted push"};

static int64_t extent_a, extent_b, row_bytes;
static int nranks;
static double seconds = 3;
static const char *only; /* ",name,name,"; NULL: all kernels */
static void *src[MAX_RANKS], *dst[MAX_RANKS];
static atomic_int arrived, stop;
static double times[WAYS][MAX_ROWS][MAX_ROUNDS][MAX_RANKS];
static int rounds_done;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t start_of(int64_t extent, int rank)
{
    int64_t rest = extent % nranks;
    return extent / nranks * rank + (rank < rest ? rank : rest);
}

static void barrier(int *epoch)
{
    *epoch += nranks;
    atomic_fetch_add(&arrived, 1);
    while (atomic_load_explicit(&arrived, memory_order_acquire) < *epoch) {
        __asm__ volatile("" ::: "memory");
    }
}

typedef struct job {
    hd_lane lane[MAX_RANKS];
    int nloops;
    int64_t count[HD_MAX_LOOPS];
} job;

static void make_job(job *j, way w, int rank)
{
    int64_t a0 = start_of(extent_a, rank), na = start_of(extent_a, rank + 1) - a0;
    memset(j, 0, sizeof(*j));
    j->nloops = w <= WAY_ROOF_LAST ? 0 : w == WAY_PERMUTED ? 2 : 1;
    j->count[0] = na;
    j->count[1] = extent_b / nranks;
    for (int p = 0; p < nranks; p++) {
        int peer = w == WAY_ROOF ? (rank + p) % nranks : w == WAY_ROOF_LAST ? (rank + 1 + p) % nranks : p;
        int64_t b0 = start_of(extent_b, peer), nb = start_of(extent_b, peer + 1) - b0;
        hd_lane *l = &j->lane[p];
        int64_t run = nb * row_bytes, pitch = extent_b * row_bytes;
        switch (w) {
        case WAY_ROOF:
        case WAY_ROOF_LAST: /* what peer holds of mine, whole, to where it belongs */
            *l = (hd_lane){peer, rank, a0 * run, b0 * na * row_bytes, na * run, {0}, {0}};
            break;
        case WAY_PUSH:
        case WAY_PUSH_PEERS:
            *l = (hd_lane){rank, peer, b0 * row_bytes, a0 * run, run, {pitch}, {run}};
            break;
        case WAY_PULL:
        case WAY_PULL_PEERS:
            *l = (hd_lane){peer, rank, a0 * run, b0 * row_bytes, run, {run}, {pitch}};
            break;
        default:
            *l = (hd_lane){rank,
                           peer,
                           b0 * row_bytes,
                           a0 * row_bytes,
                           row_bytes,
                           {pitch, row_bytes},
                           {row_bytes, extent_a * row_bytes}};
        }
    }
}

static void do_job(const job *j, way w, const hd_copy_kernel *kernel)
{
    if (w == WAY_ROOF || w == WAY_ROOF_LAST || w == WAY_PUSH_PEERS || w == WAY_PULL_PEERS || w == WAY_PERMUTED) {
        for (int l = 0; l < nranks; l++) {
            kernel->copy(&j->lane[l], 1, j->nloops, j->count, (const void *const *)src, dst);
        }
    } else {
        kernel->copy(j->lane, nranks, j->nloops, j->count, (const void *const *)src, dst);
    }
}

static int fits(const job *j, const hd_copy_kernel *kernel)
{
    char name[64];
    snprintf(name, sizeof name, ",%s,", kernel->name);
    if (only != NULL && strstr(only, name) == NULL) {
        return 0;
    }
    for (int l = 0; l < nranks; l++) {
        if (j->lane[l].run_bytes < kernel->min_run_bytes) {
            return 0;
        }
    }
    return 1;
}

static void *rank_main(void *arg)
{
    int rank = (int)(intptr_t)arg;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)rank, &one);
    pthread_setaffinity_np(pthread_self(), sizeof(one), &one);
    int nkernels, epoch = 0;
    const hd_copy_kernel *kernel = hd_copy_kernels(&nkernels);
    job jobs[WAYS];
    for (way w = WAY_ROOF; w < WAYS; w++) {
        make_job(&jobs[w], w, rank);
    }
    int64_t end = now_ns() + (int64_t)(seconds * 1e9);
    int round = -1;
    int repeat = extent_a * extent_b * row_bytes < (32 << 20) ? 8 : 1;
    do {
        for (way w = WAY_ROOF; w < WAYS; w++) {
            for (int k = 0; k < nkernels; k++) {
                if (!fits(&jobs[w], &kernel[k])) {
                    continue;
                }
                if (repeat > 1) { /* the kernel before left the caches in its own state */
                    barrier(&epoch);
                    do_job(&jobs[w], w, &kernel[k]);
                    do_job(&jobs[w], w, &kernel[k]);
                }
                barrier(&epoch);
                int64_t t0 = now_ns();
                for (int i = 0; i < repeat; i++) {
                    do_job(&jobs[w], w, &kernel[k]);
                    barrier(&epoch);
                }
                if (round >= 0) {
                    times[w][k][round][rank] = (double)(now_ns() - t0) * 1e-3 / repeat;
                }
            }
        }
        round++;
        barrier(&epoch);
        if (rank == 0 && (now_ns() > end || round == MAX_ROUNDS)) {
            rounds_done = round;
            atomic_store(&stop, 1);
        }
        barrier(&epoch);
    } while (!atomic_load(&stop));
    return NULL;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(void)
{
    int nkernels;
    const hd_copy_kernel *kernel = hd_copy_kernels(&nkernels);
    double roof_min = 1e30, roof_median = 1e30;
    double low[WAYS][MAX_ROWS], middle[WAYS][MAX_ROWS];
    for (way w = WAY_ROOF; w < WAYS; w++) {
        for (int k = 0; k < nkernels; k++) {
            double slowest[MAX_ROUNDS];
            for (int i = 0; i < rounds_done; i++) {
                slowest[i] = 0;
                for (int r = 0; r < nranks; r++) {
                    slowest[i] = times[w][k][i][r] > slowest[i] ? times[w][k][i][r] : slowest[i];
                }
            }
            qsort(slowest, (size_t)rounds_done, sizeof(double), by_value);
            low[w][k] = slowest[0];
            middle[w][k] = slowest[rounds_done / 2];
            if (w <= WAY_ROOF_LAST && low[w][k] > 0) {
                roof_min = low[w][k] < roof_min ? low[w][k] : roof_min;
                roof_median = middle[w][k] < roof_median ? middle[w][k] : roof_median;
            }
        }
    }
    printf("%d rounds, run %lld B, %.2f MB in all; us min/median, (share of the best contiguous copy: min median)\n",
           rounds_done, (long long)(extent_b / nranks * row_bytes), (double)(extent_a * extent_b * row_bytes) * 1e-6);
    for (way w = WAY_ROOF; w < WAYS; w++) {
        printf("%s\n", way_name[w]);
        for (int k = 0; k < nkernels; k++) {
            if (low[w][k] > 0) {
                printf("  %-18s %9.1f %9.1f  (%.2f %.2f)\n", kernel[k].name, low[w][k], middle[w][k],
                       roof_min / low[w][k], roof_median / middle[w][k]);
            }
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: bench_copy A B C ELEM_BYTES [RANKS [SECONDS [KERNELS]]]\n");
        return 2;
    }
    extent_a = atoll(argv[1]);
    extent_b = atoll(argv[2]);
    row_bytes = atoll(argv[3]) * atoll(argv[4]);
    nranks = argc > 5 ? atoi(argv[5]) : 2;
    seconds = argc > 6 ? atof(argv[6]) : 3;
    static char list[512];
    if (argc > 7) {
        snprintf(list, sizeof list, ",%s,", argv[7]);
        only = list;
    }
    if (extent_a <= 0 || extent_b <= 0 || row_bytes <= 0 || nranks < 1 || nranks > MAX_RANKS) {
        fprintf(stderr, "bench_copy: extents must be positive, ranks 1 to %d\n", MAX_RANKS);
        return 2;
    }
    size_t bytes =
        (size_t)(((extent_a + nranks) * (extent_b + nranks) * row_bytes / nranks + (4 << 20)) & ~(int64_t)4095);
    pthread_t thread[MAX_RANKS];
    for (int r = 0; r < nranks; r++) {
        src[r] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        dst[r] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (src[r] == MAP_FAILED || dst[r] == MAP_FAILED) {
            fprintf(stderr, "bench_copy: no memory for %zu bytes\n", bytes);
            return 1;
        }
        memset(src[r], r + 1, bytes);
        memset(dst[r], 0, bytes);
    }
    for (int r = 0; r < nranks; r++) {
        pthread_create(&thread[r], NULL, rank_main, (void *)(intptr_t)r);
    }
    for (int r = 0; r < nranks; r++) {
        pthread_join(thread[r], NULL);
    }
    report();
    return 0;
}
