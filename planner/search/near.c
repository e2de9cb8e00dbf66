/* States that no walk below a bound goes through, and what no walk is below, found without the price of an edge: by the
 * costs of the best walks to every state and from it to the end, with edges at what they cost at least (near_edges.c).
 * Every edge is looked at, so the steps are plain sums and minima over arrays.
 *
 * Numbers are whole picoseconds in doubles: exact, and what no walk reaches is infinite. */
#include "planner/search/near.h"

#include "runtime/base/base.h"

#include <math.h>
#include <string.h>

enum { FEW = 8 /* states that are not worth it */ };
static const double EXACT = 0x1p52, EDGES_MAX = 1 << 24;

/* --- the walks ---------------------------------------------------------------------------------------------------- */

static double *at(const hd_near *w, double *cost, int repetition, int stage)
{
    return cost + ((size_t)repetition * (size_t)w->s->m->nstages + (size_t)stage) * (size_t)w->n;
}

/* here[b] = the least of before[a] + edge[a][b]. */
static void go_on(double *here, const double *before, const double *edge, int n)
{
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

/* here[a] = the least of edge[a][b] + behind[b]. */
static void go_back(double *here, const double *behind, const double *edge, int n)
{
    enum { LANES = 8 };
    for (int a = 0; a < n; a++, edge += n) {
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
        here[a] = least[0];
    }
}

/* Adds what a step costs in its states; the others are not reached. */
static void add_costs(double *here, const hd_row *row, int n)
{
    for (int state = 0, i = 0; state < n; state++) {
        if (i < row->nadmitted && row->admitted[i] == state) {
            here[state] += (double)row->way[row->first[state]].price.cost.part[0];
            i++;
        } else {
            here[state] = INFINITY;
        }
    }
}

/* What every state costs more than a repetition ago, at least: so it goes on, for a step adds the same to all, and
 * keeps what is less less. *is_steady: exactly so. 0: other states were reached. */
static int repeats(double *drift, int *is_steady, const double *now, const double *then, int n)
{
    double least = INFINITY, most = -INFINITY;
    for (int i = 0; i < n; i++) {
        if ((now[i] == INFINITY) != (then[i] == INFINITY)) {
            return 0;
        }
        if (now[i] < INFINITY) {
            const double more = now[i] - then[i];
            least = more < least ? more : least;
            most = more > most ? more : most;
        }
    }
    *drift = least;
    *is_steady = least == most;
    return least < INFINITY;
}

/* One repetition, the `done`th from the first, or from the last. */
static void walk_on(hd_near *w, hd_near_walks *to)
{
    const hd_search *s = w->s;
    const int period = s->m->nstages, n = w->n;
    for (int k = 0; k < period; k++) {
        double *here = at(w, to->cost, to->done, k);
        const double *before = k > 0 ? here - n : to->done > 0 ? at(w, to->cost, to->done - 1, period - 1) : NULL;
        if (before != NULL) {
            go_on(here, before, w->edge + (size_t)s->width_of[k] * (size_t)n * (size_t)n, n);
        }
        add_costs(here, &s->row[s->row_of[to->done * period + k]], n);
    }
}

/* The costs behind every step's state, its own aside. */
static heddle_status walk_back(hd_near *w, hd_near_walks *from)
{
    heddle_status st = HEDDLE_OK;
    const hd_search *s = w->s;
    const int period = s->m->nstages, n = w->n;
    double row_bytes = (double)s->m->stage[period - 1].channels * (double)heddle_dtype_bytes(s->m->dtype);
    for (int k = period - 1; k >= 0; k--) {
        double *here = at(w, from->cost, from->done, k);
        int next = k + 1 < period ? k + 1 : 0;
        if (next > 0 || from->done > 0) {
            memcpy(w->behind, next > 0 ? here + n : at(w, from->cost, from->done - 1, 0), (size_t)n * sizeof *here);
            add_costs(w->behind, &s->row[s->row_of[(s->m->repeat - 1 - from->done) * period + k + 1]], n);
            go_back(here, w->behind, w->edge + (size_t)s->width_of[next] * (size_t)n * (size_t)n, n);
        }
        for (int i = 0; i < n && next == 0 && from->done == 0 && s->epilogue >= 0; i++) {
            HD_TRY(w->wanted[i] ? hd_near_edges_from(w->behind, w, row_bytes, i, w->ends) : HEDDLE_OK);
            here[i] = w->behind[s->epilogue];
        }
    }
out:
    return st;
}

/* All repetitions, or until more of them tell nothing new; *is_known 0: of the others nothing is known. */
static heddle_status walk_all(int *is_known, hd_near *w, hd_near_walks *walked, int is_back)
{
    heddle_status st = HEDDLE_OK;
    const int repeat = w->s->m->repeat, last = is_back ? 0 : w->s->m->nstages - 1;
    int is_steady = 0;
    *is_known = 0;
    while (!is_steady && walked->done < HD_NEAR_REPETITIONS && walked->done < repeat) {
        if (is_back) {
            HD_TRY(walk_back(w, walked));
        } else {
            walk_on(w, walked);
        }
        walked->done++;
        *is_known =
            walked->done == repeat ||
            (walked->done > 1 && repeats(&walked->drift, &is_steady, at(w, walked->cost, walked->done - 1, last),
                                         at(w, walked->cost, walked->done - 2, last), w->n));
    }
out:
    return st;
}

/* --- what is dropped ---------------------------------------------------------------------------------------------- */

/* Repetition `i`, from the first or from the last: the one that was walked, and what it costs more than that. */
static const double *walked_at(double *more, const hd_near *w, const hd_near_walks *walked, int i, int stage)
{
    int known = i < walked->done ? i : walked->done - 1;
    *more = i > known ? walked->drift * (i - known) : 0;
    return at(w, walked->cost, known, stage);
}

static void mark(hd_near *w, int repetition, double bound)
{
    const hd_search *s = w->s;
    for (int k = 0; k < s->m->nstages; k++) {
        double more_to = 0, more_from = 0;
        int row = s->row_of[repetition * s->m->nstages + k];
        const double *to = walked_at(&more_to, w, &w->to, repetition, k);
        const double *from = walked_at(&more_from, w, &w->from, s->m->repeat - 1 - repetition, k);
        for (int i = 0; i < w->n; i++) {
            w->kept[row * w->n + i] |= (char)(to[i] + more_to + from[i] + more_from <= bound);
        }
    }
}

/* Between those repetitions that were walked what is known grows towards one end. */
int hd_near_drop(hd_near *w, double bound)
{
    hd_search *s = w->s;
    int is_empty = 0;
    memset(w->kept, 0, (size_t)s->nrows * (size_t)w->n);
    for (int r = 0; r < s->m->repeat; r++) {
        if (r < w->to.done || r >= s->m->repeat - w->from.done) {
            mark(w, r, bound);
        }
    }
    for (int i = 0; i < s->nrows; i++) {
        hd_row *row = &s->row[i];
        int nadmitted = 0;
        for (int k = 0; k < row->nadmitted; k++) {
            row->admitted[nadmitted] = row->admitted[k];
            nadmitted += w->kept[i * w->n + row->admitted[k]] != 0;
        }
        row->nadmitted = nadmitted;
        is_empty |= nadmitted == 0;
    }
    return is_empty;
}

int hd_near_applies(const hd_search *s)
{
    const double edges = (double)s->nwidths * s->nlayouts * s->nlayouts;
    int is_steady = 1;
    for (int i = 0; i < s->nforces; i++) {
        is_steady = is_steady && s->force[i].repetition < 0;
    }
    return s->aim.is_time && s->least != NULL && hd_pricer_nests(&s->pricer) && s->nstates > FEW && edges < EDGES_MAX &&
           (is_steady || s->m->repeat <= HD_NEAR_REPETITIONS);
}

heddle_status hd_near_walk(double *floor, hd_near *w, int both_ways)
{
    heddle_status st = HEDDLE_OK;
    int is_known = 0;
    double more = 0;
    *floor = 0;
    HD_TRY(walk_all(&is_known, w, &w->from, 1));
    HD_TRY(is_known && both_ways ? walk_all(&is_known, w, &w->to, 0) : HEDDLE_OK);
    if (is_known) {
        const double *from = walked_at(&more, w, &w->from, w->s->m->repeat - 1, 0);
        memcpy(w->behind, from, (size_t)w->n * sizeof *from);
        add_costs(w->behind, &w->s->row[w->s->row_of[0]], w->n);
        *floor = INFINITY;
        for (int i = 0; i < w->n; i++) {
            *floor = w->behind[i] + more < *floor ? w->behind[i] + more : *floor;
        }
        *floor = *floor < EXACT ? *floor : 0;
    }
out:
    return st;
}
