/* One step of the walks of near.c, forwards and backwards: sums and minima over arrays, and the edges that these come
 * from looked at in full as they turn up. */
#include "planner/search/near.h"

#include "runtime/base/base.h"

#include <math.h>

static double *edges_before(const hd_near *w, int stage)
{
    return w->edge + (size_t)w->s->width_of[stage] * (size_t)w->n * (size_t)w->n;
}

void hd_near_go_on(double *here, const double *before, const hd_near *w, int stage)
{
    const double *edge = edges_before(w, stage);
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

/* sum[b] = edge[b] + behind[b], and the least of them. */
static double add_up(double *restrict sum, const double *behind, const double *edge, int n)
{
    enum { LANES = 8 };
    double least[LANES];
    int b = 0;
    for (int i = 0; i < LANES; i++) {
        least[i] = INFINITY;
    }
    for (; b + LANES <= n; b += LANES) {
        for (int i = 0; i < LANES; i++) {
            sum[b + i] = edge[b + i] + behind[b + i];
            least[i] = sum[b + i] < least[i] ? sum[b + i] : least[i];
        }
    }
    for (; b < n; b++) {
        sum[b] = edge[b] + behind[b];
        least[0] = sum[b] < least[0] ? sum[b] : least[0];
    }
    for (int i = 1; i < LANES; i++) {
        least[0] = least[i] < least[0] ? least[i] : least[0];
    }
    return least[0];
}

/* The first from `at` on that is below `bound`; n: none. */
static int next_below(const double *sum, int at, int n, double bound)
{
    enum { LANES = 8 };
    while (at + LANES <= n) {
        double least[LANES / 2];
        for (int i = 0; i < LANES / 2; i++) {
            least[i] = sum[at + i] < sum[at + i + LANES / 2] ? sum[at + i] : sum[at + i + LANES / 2];
        }
        least[0] = least[0] < least[2] ? least[0] : least[2];
        least[1] = least[1] < least[3] ? least[1] : least[3];
        if (least[0] < bound || least[1] < bound) {
            break;
        }
        at += LANES;
    }
    while (at < n && sum[at] >= bound) {
        at++;
    }
    return at;
}

/* *least is raised to what it is by edges in full: those are looked at that are below what was found. The one that was
 * the least comes first, for then few others are. */
static heddle_status least_in_full(double *least, hd_near *w, int stage, int from)
{
    heddle_status st = HEDDLE_OK;
    const int n = w->n, first = next_below(w->sum, 0, n, nextafter(*least, INFINITY));
    const double *edge = edges_before(w, stage) + (size_t)from * (size_t)n, known = *least;
    HD_TRY(hd_near_look(w, stage, from, first));
    *least = edge[first] + w->behind[first];
    for (int b = *least > known ? next_below(w->sum, 0, n, *least) : n; b < n;) {
        HD_TRY(hd_near_look(w, stage, from, b));
        *least = edge[b] + w->behind[b] < *least ? edge[b] + w->behind[b] : *least;
        b = next_below(w->sum, b + 1, n, *least);
    }
out:
    return st;
}

heddle_status hd_near_go_back(double *here, hd_near *w, int stage, const double *own, int in_full)
{
    heddle_status st = HEDDLE_OK;
    const double *edge = edges_before(w, stage);
    for (int a = 0; a < w->n; a++, edge += w->n) {
        here[a] = own[a] < INFINITY ? add_up(w->sum, w->behind, edge, w->n) : INFINITY;
        HD_TRY(in_full && here[a] < INFINITY ? least_in_full(&here[a], w, stage, a) : HEDDLE_OK);
    }
out:
    return st;
}
