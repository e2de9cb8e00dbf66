/* One step of the walks of near.c, forwards and backwards: sums and minima over arrays, and the edges that these come
 * from looked at in full as they turn up. */
#include "planner/search/near.h"

#include "runtime/base/base.h"

#include <math.h>

static double *edges_before(const hd_near *w, int stage)
{
    return w->edge + (size_t)w->s->width_of[stage] * (size_t)w->n * (size_t)w->n;
}

/* here[b] = the least of before[a] + edge[a][b], came[b] its a. */
static void go_on_all(double *here, double *came, const double *before, const double *edge, int n)
{
    for (int b = 0; b < n; b++) {
        here[b] = INFINITY;
        came[b] = 0;
    }
    for (int a = 0; a < n; a++, edge += n) {
        const double so_far = before[a], from = a;
        for (int b = 0; so_far < INFINITY && b < n; b++) {
            const double sum = so_far + edge[b];
            came[b] = sum < here[b] ? from : came[b];
            here[b] = sum < here[b] ? sum : here[b];
        }
    }
}

/* The same for some of them: rows of edges are passed by, so for few. */
static void go_on_few(double *here, double *came, const double *before, const double *edge, int n, const int *of,
                      int count)
{
    for (int i = 0; i < count; i++) {
        const int b = of[i];
        here[b] = INFINITY;
        for (int a = 0; a < n; a++) {
            const double sum = before[a] + edge[(size_t)a * (size_t)n + (size_t)b];
            came[b] = sum < here[b] ? a : came[b];
            here[b] = sum < here[b] ? sum : here[b];
        }
    }
}

/* For the states of `row`; the edges that this comes from are refined, some rounds of it: what is left is known less
 * well. */
heddle_status hd_near_go_on(double *here, const double *before, hd_near *w, int stage, const hd_row *row)
{
    enum { ROUNDS = 16, FEW_OF = 8 /* times as many are all */ };
    heddle_status st = HEDDLE_OK;
    int count = row->nadmitted;
    for (int i = 0; i < count; i++) {
        w->open[i] = w->index[row->admitted[i]];
    }
    for (int round = 0; count > 0 && round < ROUNDS; round++) {
        if (round > 0 && FEW_OF * count < w->n) {
            go_on_few(here, w->came, before, edges_before(w, stage), w->n, w->open, count);
        } else {
            go_on_all(here, w->came, before, edges_before(w, stage), w->n);
        }
        const int asked = count;
        count = 0;
        for (int i = 0; i < asked; i++) {
            const int b = w->open[i];
            int more = 0;
            HD_TRY(here[b] < INFINITY ? hd_near_refine(&more, w, stage, (int)w->came[b], b) : HEDDLE_OK);
            w->open[count] = b;
            count += more;
        }
    }
out:
    return st;
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

/* *out: the least of edge[a][b] + behind[b] for one a. The edges that this comes from are refined, as far as it is
 * below `goal`. One edge changes at a time: the least of some of them each is kept. */
static heddle_status refine_back(double *out, hd_near *w, int stage, int a, double goal)
{
    enum { EACH = 32, PARTS = (HD_SEARCH_STATES + 2 + EACH - 1) / EACH };
    heddle_status st = HEDDLE_OK;
    const double *edge = edges_before(w, stage) + (size_t)a * (size_t)w->n;
    double least[PARTS];
    int is_open = 1;
    const int parts = (w->n + EACH - 1) / EACH;
    for (int p = 0; p < parts; p++) {
        const int count = w->n - p * EACH < EACH ? w->n - p * EACH : EACH;
        least[p] = least_behind(w->behind + p * EACH, edge + p * EACH, count);
    }
    while (is_open) {
        int p = 0;
        for (int k = 1; k < parts; k++) {
            p = least[k] < least[p] ? k : p;
        }
        *out = least[p];
        is_open = *out < goal && *out < INFINITY;
        if (is_open) {
            const int first = p * EACH, count = w->n - first < EACH ? w->n - first : EACH;
            int b = first;
            while (edge[b] + w->behind[b] > *out) {
                b++;
            }
            HD_TRY(hd_near_refine(&is_open, w, stage, a, b));
            least[p] = least_behind(w->behind + first, edge + first, count);
        }
    }
    *out = *out > goal ? goal : *out;
out:
    return st;
}

heddle_status hd_near_go_back(double *here, hd_near *w, int stage, const hd_row *row, const double *goal, double more)
{
    heddle_status st = HEDDLE_OK;
    const int n = w->n;
    for (int i = 0; i < n; i++) {
        here[i] = INFINITY;
    }
    for (int i = 0; i < row->nadmitted; i++) {
        const int a = w->index[row->admitted[i]];
        if (goal != NULL) {
            HD_TRY(refine_back(&here[a], w, stage, a, goal[a] + more));
        } else {
            here[a] = least_behind(w->behind, edges_before(w, stage) + (size_t)a * (size_t)n, n);
        }
    }
out:
    return st;
}
