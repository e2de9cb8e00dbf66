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

/* The least of edge[b] + behind[b]. */
static double least_behind(const double *behind, const double *edge, int n)
{
    enum { LANES = 8 };
    double least[LANES];
    int b = 0;
    for (int i = 0; i < LANES; i++) {
        least[i] = INFINITY;
    }
    for (; b + LANES <= n; b += LANES) {
        for (int i = 0; i < LANES; i++) {
            const double sum = edge[b + i] + behind[b + i];
            least[i] = sum < least[i] ? sum : least[i];
        }
    }
    for (; b < n; b++) {
        least[0] = edge[b] + behind[b] < least[0] ? edge[b] + behind[b] : least[0];
    }
    for (int i = 1; i < LANES; i++) {
        least[0] = least[i] < least[0] ? least[i] : least[0];
    }
    return least[0];
}

heddle_status hd_near_go_back(double *here, hd_near *w, int stage, const double *own, int in_full)
{
    heddle_status st = HEDDLE_OK;
    const double *edge = edges_before(w, stage);
    for (int a = 0; a < w->n; a++, edge += w->n) {
        const int is_admitted = own[a] < INFINITY;
        HD_TRY(is_admitted && in_full ? hd_near_refine(w, a) : HEDDLE_OK);
        here[a] = is_admitted ? least_behind(w->behind, edge, w->n) : INFINITY;
    }
out:
    return st;
}
