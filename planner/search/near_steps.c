/* One step of the walks of near.c, forwards and backwards: sums and minima over arrays, and the edges that these come
 * from looked at in full as they turn up. */
#include "planner/search/near.h"

#include "runtime/base/base.h"

#include <math.h>

static float *edges_before(const hd_near *w, int stage)
{
    return w->edge + (size_t)w->s->width_of[stage] * (size_t)w->n * (size_t)w->n;
}

void hd_near_go_on(double *here, const double *before, const hd_near *w, int stage)
{
    const float *edge = edges_before(w, stage);
    const int n = w->n;
    for (int b = 0; b < n; b++) {
        here[b] = INFINITY;
    }
    for (int a = 0; a < n; a++, edge += n) {
        const double so_far = before[a];
        for (int b = 0; so_far < INFINITY && b < n; b++) {
            const double sum = so_far + edge[b];
            here[b] = sum < here[b] ? sum : here[b];
        }
    }
}

/* Of every LANES states one is in a lane. So many are not unrolled by compilers, which then take several at once. */
enum { LANES = 32 };

static double least_of(const double *lane)
{
    double least = INFINITY;
    for (int i = 0; i < LANES; i++) {
        least = lane[i] < least ? lane[i] : least;
    }
    return least;
}

/* sum[b] = edge[b] + behind[b], and the least of every lane. */
static void add_up(double *restrict sum, double *restrict lane, const double *restrict behind,
                   const float *restrict edge, int n)
{
    int b = 0;
    for (int i = 0; i < LANES; i++) {
        lane[i] = INFINITY;
    }
    for (; b + LANES <= n; b += LANES) {
        for (int i = 0; i < LANES; i++) {
            const double one = edge[b + i] + behind[b + i];
            sum[b + i] = one;
            lane[i] = one < lane[i] ? one : lane[i];
        }
    }
    for (int i = 0; b + i < n; i++) {
        sum[b + i] = edge[b + i] + behind[b + i];
        lane[i] = sum[b + i] < lane[i] ? sum[b + i] : lane[i];
    }
}

/* *least is raised to what it is by edges in full: those are looked at that are below what was found. The one that was
 * the least comes first, and what it costs to stay is known: then few others are below. */
static heddle_status least_in_full(double *least, hd_near *w, const double *lane, int stage, int from)
{
    heddle_status st = HEDDLE_OK;
    const int n = w->n;
    const float *edge = edges_before(w, stage) + (size_t)from * (size_t)n;
    const double known = *least;
    int first = 0;
    while (lane[first] > known) {
        first++;
    }
    while (w->sum[first] > known) {
        first += LANES;
    }
    HD_TRY(hd_near_look(w, stage, from, first));
    *least = edge[first] + w->behind[first];
    *least = w->behind[from] < *least ? w->behind[from] : *least; /* an edge that stays is free */
    for (int i = 0; *least > known && i < LANES; i++) {
        for (int b = i; lane[i] < *least && b < n; b += LANES) {
            if (w->sum[b] < *least) {
                HD_TRY(hd_near_look(w, stage, from, b));
                *least = edge[b] + w->behind[b] < *least ? edge[b] + w->behind[b] : *least;
            }
        }
    }
out:
    return st;
}

heddle_status hd_near_go_back(double *here, hd_near *w, int stage, const double *own, int in_full)
{
    heddle_status st = HEDDLE_OK;
    const float *edge = edges_before(w, stage);
    double lane[LANES];
    for (int a = 0; a < w->n; a++, edge += w->n) {
        here[a] = INFINITY;
        if (own[a] < INFINITY) {
            add_up(w->sum, lane, w->behind, edge, w->n);
            here[a] = least_of(lane);
            HD_TRY(in_full && here[a] < INFINITY ? least_in_full(&here[a], w, lane, stage, a) : HEDDLE_OK);
        }
    }
out:
    return st;
}
