/* States that no walk below a bound goes through, and what no walk is below, found without the price of an edge: by the
 * costs of the best walks to every state and from it to the end, with edges at what they cost at least (near_edges.c).
 * Every edge is looked at, so the steps are plain sums and minima over arrays.
 *
 * Numbers are whole picoseconds in doubles: exact, and what no walk reaches is infinite. */
#include "planner/search/near.h"

#include "runtime/base/base.h"

#include <math.h>
#include <string.h>

enum { FEW = 8, MANY = 256 /* states that are not worth it; that classes are worth it for */ };
static const double EXACT = 0x1p52, EDGES_MAX = 1 << 24;

/* --- the walks ---------------------------------------------------------------------------------------------------- */

static double *at(const hd_near *w, double *cost, int repetition, int stage)
{
    return cost + ((size_t)repetition * (size_t)w->s->m->nstages + (size_t)stage) * (size_t)w->n;
}

/* Repetition `i`, from the first or from the last: one that was walked, and what it costs more than that. */
static const double *walked_at(double *more, const hd_near *w, const hd_near_walks *walked, int i, int stage)
{
    const int cycles = i < walked->done || walked->done == 0 ? 0 : (i - walked->done) / walked->cycle + 1;
    *more = walked->drift * cycles;
    return at(w, walked->cost, i - cycles * walked->cycle, stage);
}

/* What the classes of a step cost by themselves. */
static const double *own_of(const hd_near *w, int step)
{
    return w->own + (size_t)w->s->row_of[step] * (size_t)w->n;
}

static void add_costs(double *here, const hd_near *w, int step)
{
    const double *own = own_of(w, step);
    for (int i = 0; i < w->n; i++) {
        here[i] += own[i];
    }
}

/* What every state costs more than some repetitions ago, at least: so it goes on, for a step adds the same to all, and
 * keeps what is less less. Of edges that were looked at meanwhile more is known than then, never less: what is known in
 * the end adds at least as much. *is_steady: exactly so. 0: other states were reached. */
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

/* The number of repetitions of which most is known: the best walk may need two or three to come round. Where something
 * is forced in one of them, those that were not walked may be cheaper than those that were: then nothing is known. */
static int find_cycle(int *is_steady, const hd_near *w, hd_near_walks *walked, int stage)
{
    const double *now = at(w, walked->cost, walked->done - 1, stage);
    walked->cycle = 0;
    *is_steady = 0;
    for (int c = 1; hd_search_repeats(w->s) && c < walked->done && !*is_steady; c++) {
        double drift = 0;
        if (repeats(&drift, is_steady, now, at(w, walked->cost, walked->done - 1 - c, stage), w->n) &&
            (walked->cycle == 0 || *is_steady || drift * walked->cycle > walked->drift * c)) {
            walked->cycle = c;
            walked->drift = drift;
        }
    }
    return walked->cycle > 0;
}

/* One repetition, the `done`th from the first, or from the last. */
static void walk_on(hd_near *w, hd_near_walks *to)
{
    const int period = w->s->m->nstages, n = w->n;
    for (int k = 0; k < period; k++) {
        double *here = at(w, to->cost, to->done, k);
        const double *before = k > 0 ? here - n : to->done > 0 ? at(w, to->cost, to->done - 1, period - 1) : NULL;
        const int step = to->done * period + k;
        if (before != NULL) {
            hd_near_go_on(here, before, w, k);
        } else {
            memset(here, 0, (size_t)n * sizeof *here);
        }
        add_costs(here, w, step);
    }
}

static heddle_status go_to_end(double *here, hd_near *w)
{
    heddle_status st = HEDDLE_OK;
    const heddle_model *m = w->s->m;
    const double *own = own_of(w, w->s->nsteps - 1);
    const double row_bytes = (double)m->stage[m->nstages - 1].channels * (double)heddle_dtype_bytes(m->dtype);
    const int end = w->s->epilogue >= 0 ? w->index[w->s->epilogue] : -1;
    for (int i = 0; i < w->n; i++) {
        float edge = 0;
        HD_TRY(own[i] < INFINITY && end >= 0 ? hd_near_edge(&edge, w, row_bytes, i, end) : HEDDLE_OK);
        here[i] = own[i] < INFINITY ? edge : INFINITY;
    }
out:
    return st;
}

/* The costs behind every step's state, its own aside. in_full: edges are refined. */
static heddle_status walk_back(hd_near *w, hd_near_walks *from, int in_full)
{
    heddle_status st = HEDDLE_OK;
    const hd_search *s = w->s;
    const int period = s->m->nstages, n = w->n;
    for (int k = period - 1; k >= 0; k--) {
        double *here = at(w, from->cost, from->done, k);
        int next = k + 1 < period ? k + 1 : 0, step = (s->m->repeat - 1 - from->done) * period + k;
        if (next > 0 || from->done > 0) {
            memcpy(w->behind, next > 0 ? here + n : at(w, from->cost, from->done - 1, 0), (size_t)n * sizeof *here);
            add_costs(w->behind, w, step + 1);
            HD_TRY(hd_near_go_back(here, w, next, own_of(w, step), in_full));
        } else {
            HD_TRY(go_to_end(here, w));
        }
    }
out:
    return st;
}

/* From the first stage's states to the end. */
static double least_of_all(hd_near *w, const hd_near_walks *from)
{
    double more = 0, least = INFINITY;
    const double *cost = walked_at(&more, w, from, w->s->m->repeat - 1, 0);
    memcpy(w->behind, cost, (size_t)w->n * sizeof *cost);
    add_costs(w->behind, w, 0);
    for (int i = 0; i < w->n; i++) {
        least = w->behind[i] + more < least ? w->behind[i] + more : least;
    }
    return least < EXACT ? least : 0;
}

/* All repetitions, or until more of them tell nothing new, or all walks cost `enough`; *is_known 0: of the others
 * nothing is known. */
static heddle_status walk_all(int *is_known, hd_near *w, hd_near_walks *from, int in_full, double enough)
{
    heddle_status st = HEDDLE_OK;
    const int repeat = w->s->m->repeat;
    int is_steady = 0;
    *is_known = 0;
    while (!is_steady && from->done < HD_NEAR_REPETITIONS && from->done < repeat) {
        HD_TRY(walk_back(w, from, in_full));
        from->done++;
        *is_known = find_cycle(&is_steady, w, from, 0) || from->done == repeat;
        is_steady = is_steady || (*is_known && least_of_all(w, from) >= enough);
    }
out:
    return st;
}

/* --- walks through a state ---------------------------------------------------------------------------------------- */

static void pass_through(hd_near *w, int repetition)
{
    const hd_search *s = w->s;
    for (int k = 0; k < s->m->nstages; k++) {
        double more_to = 0, more_from = 0;
        double *least = w->through + (size_t)s->row_of[repetition * s->m->nstages + k] * (size_t)w->n;
        const double *to = walked_at(&more_to, w, &w->to, repetition, k);
        const double *from = walked_at(&more_from, w, &w->from, s->m->repeat - 1 - repetition, k);
        for (int i = 0; i < w->n; i++) {
            const double sum = to[i] + more_to + from[i] + more_from;
            least[i] = sum < least[i] ? sum : least[i];
        }
    }
}

/* Between those repetitions that were walked what is known grows towards one end, from common cycle to cycle. */
static void pass_all(double *through, hd_near *w)
{
    const hd_search *s = w->s;
    const int common = w->to.cycle * w->from.cycle;
    for (size_t i = 0; i < (size_t)s->nrows * (size_t)w->n; i++) {
        w->through[i] = INFINITY;
    }
    for (int r = 0; r < s->m->repeat; r++) {
        if (r < w->to.done + common || r >= s->m->repeat - w->from.done - common) {
            pass_through(w, r);
        }
    }
    for (int i = 0; i < s->nrows; i++) {
        for (int k = 0; k < s->nstates; k++) {
            const int at = w->index[k];
            through[i * s->nstates + k] = at >= 0 ? w->through[i * w->n + at] : INFINITY;
        }
    }
}

void hd_near_follow(int16_t *state, const hd_near *w)
{
    const hd_search *s = w->s;
    const int period = s->m->nstages;
    const float *edge = NULL;
    for (int step = 0; step < s->nsteps; step++) {
        double more = 0, least = INFINITY;
        const double *own = own_of(w, step);
        const double *behind = walked_at(&more, w, &w->from, s->m->repeat - 1 - step / period, step % period);
        int best = 0;
        for (int i = 0; i < w->n; i++) {
            const double sum = (edge != NULL ? edge[i] : 0) + own[i] + behind[i];
            best = sum < least ? i : best;
            least = sum < least ? sum : least;
        }
        state[step] = (int16_t)(w->out[best].layout - s->layout);
        edge = w->edge + ((size_t)s->width_of[(step + 1) % period] * (size_t)w->n + (size_t)best) * (size_t)w->n;
    }
}

int hd_near_applies(const hd_search *s)
{
    const double edges = (double)s->nwidths * s->nlayouts * s->nlayouts;
    return s->aim.is_time && s->is_monotone && hd_pricer_nests(&s->pricer) && s->nstates > FEW && edges < EDGES_MAX &&
           (hd_search_repeats(s) || s->m->repeat <= HD_NEAR_REPETITIONS);
}

int hd_near_is_rough(const hd_search *s)
{
    int is_idle = 0;
    for (int d = 0; d < s->m->shape.ndim; d++) {
        is_idle = is_idle || (d != s->m->channel_dim && s->m->shape.dim[d].extent == 1);
    }
    return is_idle && s->nstates > MANY && hd_near_applies(s);
}

/* First by what the first rank receives, where that may be enough; where it is below the bound, by all of the few
 * ranks. */
heddle_status hd_near_floor(double *floor, hd_near *w, double bound, int is_first)
{
    heddle_status st = HEDDLE_OK;
    int is_known = is_first;
    *floor = 0;
    if (is_first) {
        HD_TRY(walk_all(&is_known, w, &w->to, 0, bound));
        *floor = is_known ? least_of_all(w, &w->to) : 0;
    }
    if (!is_first || (is_known && *floor < bound)) {
        HD_TRY(walk_all(&is_known, w, &w->from, 1, bound));
        *floor = is_known ? least_of_all(w, &w->from) : *floor;
    }
out:
    return st;
}

int hd_near_through(double *through, hd_near *w)
{
    hd_near_walks *to = &w->to;
    const int repeat = w->s->m->repeat, last = w->s->m->nstages - 1;
    int is_steady = 0, is_known = 0;
    for (to->done = 0; !is_steady && to->done < HD_NEAR_REPETITIONS && to->done < repeat;) {
        walk_on(w, to);
        to->done++;
        is_known = find_cycle(&is_steady, w, to, last) || to->done == repeat;
    }
    if (is_known) {
        pass_all(through, w);
    }
    return is_known;
}
