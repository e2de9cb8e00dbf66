/* Times of operations to a machine's tables: non-negative least squares of relative errors for work, one table per kind
 * and group for exchanges. */
#include "planner/machine/machine.h"
#include "runtime/base/base.h"

#include <heddle/sys/calibrate.h>
#include <math.h>
#include <string.h>

enum { UNKNOWNS = HD_WORKS * HEDDLE_DTYPE_COUNT * HD_RATE_POINTS, SWEEPS = 20000, WORST_MEDIAN_PERCENT = 50 };

/* Seconds that a unit of work takes at one size. */
typedef struct unknown {
    heddle_work work;
    heddle_dtype dtype;
    double size, value;
    double limit; /* no operation leaves room for more */
} unknown;

/* Normal equations of scaled unknowns: value = scaled * limit. */
typedef struct system {
    int n;
    double start_s; /* of each term */
    unknown of[UNKNOWNS];
    double left[UNKNOWNS][UNKNOWNS], right[UNKNOWNS];
} fit_system;

static heddle_dtype dtype_of(const heddle_measured_term *term)
{
    return term->work == HEDDLE_WORK_MEMORY ? HEDDLE_F32 : term->dtype; /* bytes have none */
}

static heddle_status check(const heddle_measured *m, int row)
{
    int good = isfinite(m->seconds) && m->seconds > 0;
    const char *what = "seconds";
    if (good && m->ranks == 0) {
        what = "nterms";
        good = m->nterms >= 1 && m->nterms <= HEDDLE_MEASURED_TERMS;
        for (int i = 0; i < m->nterms && good; i++) {
            const heddle_measured_term *t = &m->term[i];
            what = "term";
            good = (int)t->work >= 0 && (int)t->work < (int)HD_WORKS && (int)t->dtype >= 0 &&
                   (int)t->dtype < HEDDLE_DTYPE_COUNT && isfinite(t->amount) && t->amount > 0 && isfinite(t->size) &&
                   t->size > 0;
        }
    } else if (good) {
        what = "ranks, exchange or bytes";
        good = m->ranks >= 2 && (int)m->exchange >= 0 && (int)m->exchange < (int)HD_EXCHANGES && isfinite(m->bytes) &&
               m->bytes > 0;
    }
    return good ? HEDDLE_OK : hd_fail(HEDDLE_ERR_ARG, "measured time %d: %s out of range", row, what);
}

/* --- work --------------------------------------------------------------------------------------------------------- */

static heddle_status find(int *out, fit_system *s, const heddle_measured_term *t)
{
    const heddle_dtype dtype = dtype_of(t);
    int sizes = 0;
    for (int i = 0; i < s->n; i++) {
        if (s->of[i].work == t->work && s->of[i].dtype == dtype) {
            if (s->of[i].size == t->size) {
                *out = i;
                return HEDDLE_OK;
            }
            sizes++;
        }
    }
    if (sizes == HD_RATE_POINTS) {
        return hd_fail(HEDDLE_ERR_ARG, "more than %d sizes of one kind of work, %g is one too many",
                       (int)HD_RATE_POINTS, t->size);
    }
    *out = s->n;
    s->of[s->n++] = (unknown){.work = t->work, .dtype = dtype, .size = t->size, .limit = HUGE_VAL};
    return HEDDLE_OK;
}

/* Without what its terms begin with. */
static double rest_of(const fit_system *s, const heddle_measured *m)
{
    return m->seconds - m->nterms * s->start_s;
}

static heddle_status collect(fit_system *s, const heddle_measured *measured, int count)
{
    heddle_status st = HEDDLE_OK;
    for (int r = 0; r < count; r++) {
        s->start_s =
            measured[r].ranks == 0 ? fmin(s->start_s, measured[r].seconds / (2 * measured[r].nterms)) : s->start_s;
    }
    for (int r = 0; r < count; r++) {
        for (int i = 0; measured[r].ranks == 0 && i < measured[r].nterms; i++) {
            int at = 0;
            HD_TRY(find(&at, s, &measured[r].term[i]));
            s->of[at].limit = fmin(s->of[at].limit, rest_of(s, &measured[r]) / measured[r].term[i].amount);
        }
    }
out:
    return st;
}

static void add_row(fit_system *s, const double *row, double right)
{
    for (int i = 0; i < s->n; i++) {
        for (int k = 0; k < s->n && row[i] != 0; k++) {
            s->left[i][k] += row[i] * row[k];
        }
        s->right[i] += row[i] * right;
    }
}

/* The unknown of the same work at the next larger size; -1: there is none. */
static int next_size(const fit_system *s, int at)
{
    int best = -1;
    for (int i = 0; i < s->n; i++) {
        if (s->of[i].work == s->of[at].work && s->of[i].dtype == s->of[at].dtype && s->of[i].size > s->of[at].size &&
            (best < 0 || s->of[i].size < s->of[best].size)) {
            best = i;
        }
    }
    return best;
}

static void build(fit_system *s, const heddle_measured *measured, int count)
{
    static const double alike = 0.05; /* rates of neighbouring sizes, where times do not tell them apart */
    double row[UNKNOWNS];
    for (int r = 0; r < count; r++) {
        const heddle_measured *m = &measured[r];
        memset(row, 0, sizeof row);
        for (int i = 0; m->ranks == 0 && i < m->nterms; i++) {
            int at = 0;
            heddle_ignore(find(&at, s, &m->term[i])); /* there since collect */
            row[at] += m->term[i].amount * s->of[at].limit / m->seconds;
        }
        if (m->ranks == 0) {
            add_row(s, row, rest_of(s, m) / m->seconds);
        }
    }
    for (int i = 0; i < s->n; i++) {
        const int next = next_size(s, i);
        memset(row, 0, sizeof row);
        if (next >= 0) {
            const double scale = fmin(s->of[i].limit, s->of[next].limit);
            row[i] = alike * s->of[i].limit / scale;
            row[next] = -alike * s->of[next].limit / scale;
            add_row(s, row, 0);
        }
    }
}

/* By coordinates: each unknown in turn takes what is best for it, within 1/1000 of its limit and twice that. */
static heddle_status solve(fit_system *s)
{
    for (int i = 0; i < s->n; i++) {
        s->of[i].value = 0.5;
    }
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        double moved = 0;
        for (int i = 0; i < s->n; i++) {
            double rest = s->right[i];
            for (int k = 0; k < s->n; k++) {
                rest -= k == i ? 0 : s->left[i][k] * s->of[k].value;
            }
            const double value = fmin(fmax(rest / s->left[i][i], 1e-3), 2);
            moved = fmax(moved, fabs(value - s->of[i].value));
            s->of[i].value = value;
        }
        if (!isfinite(moved)) {
            break;
        }
        if (moved < 1e-7) {
            return HEDDLE_OK;
        }
    }
    return hd_fail(HEDDLE_ERR_INFEASIBLE, "the fit of %d rates of work did not come to an end in %d sweeps", s->n,
                   (int)SWEEPS);
}

static void insert(hd_rate *rate, double size, double per_second)
{
    int at = rate->npoints++;
    for (; at > 0 && rate->size[at - 1] > size; at--) {
        rate->size[at] = rate->size[at - 1];
        rate->per_second[at] = rate->per_second[at - 1];
    }
    rate->size[at] = size;
    rate->per_second[at] = per_second;
}

static heddle_status fit_work(heddle_machine *machine, const heddle_measured *measured, int count, double launch_s)
{
    heddle_status st = HEDDLE_OK;
    fit_system *s = NULL;
    HD_TRY(hd_alloc((void **)&s, 1, sizeof *s, "a fit"));
    s->start_s = launch_s > 0 ? launch_s : 0;
    HD_TRY(collect(s, measured, count));
    build(s, measured, count);
    HD_TRY(solve(s));
    for (int i = 0; i < s->n; i++) {
        hd_work_rate *to = &machine->work[s->of[i].work][s->of[i].dtype];
        to->start_s = s->start_s;
        insert(&to->rate, s->of[i].size, 1 / (s->of[i].value * s->of[i].limit));
    }
out:
    hd_free(s);
    return st;
}

/* --- exchanges ---------------------------------------------------------------------------------------------------- */

/* Among so many ranks. Caches make the time no line over the bytes, so that every size is a point of the table; what is
 * smaller than all of them takes hardly less than the smallest. */
static heddle_status fit_group(hd_exchange_rate *out, int ranks, heddle_exchange exchange,
                               const heddle_measured *measured, int count)
{
    static const double start = 0.9;
    double smallest = HUGE_VAL;
    hd_rate rate = {0};
    for (int i = 0; i < count; i++) {
        const int is_of = measured[i].ranks == ranks && measured[i].exchange == exchange;
        smallest = is_of ? fmin(smallest, measured[i].seconds) : smallest;
    }
    for (int i = 0; i < count; i++) {
        const heddle_measured *m = &measured[i];
        if (m->ranks != ranks || m->exchange != exchange) {
            continue;
        }
        if (rate.npoints == HD_RATE_POINTS || out->ngroups == HD_RATE_GROUPS) {
            return hd_fail(HEDDLE_ERR_ARG, "measured time %d: more than %d sizes, or %d groups, of one exchange", i,
                           (int)HD_RATE_POINTS, (int)HD_RATE_GROUPS);
        }
        insert(&rate, m->bytes, m->bytes / (m->seconds - start * smallest));
    }
    out->group[out->ngroups].ranks = ranks;
    out->group[out->ngroups].start_s = start * smallest;
    out->group[out->ngroups++].rate = rate;
    return HEDDLE_OK;
}

static heddle_status fit_exchange(hd_exchange_rate *out, heddle_exchange exchange, const heddle_measured *measured,
                                  int count)
{
    heddle_status st = HEDDLE_OK;
    for (int ranks = 1;;) { /* ascending */
        int next = 0;
        for (int i = 0; i < count; i++) {
            const int of = measured[i].exchange == exchange ? measured[i].ranks : 0;
            next = of > ranks && (next == 0 || of < next) ? of : next;
        }
        if (next == 0) {
            return st;
        }
        ranks = next;
        HD_TRY(fit_group(out, ranks, exchange, measured, count));
    }
out:
    return st;
}

/* --- all of it ---------------------------------------------------------------------------------------------------- */

static double fitted(const heddle_machine *machine, const heddle_measured *m)
{
    double sum = 0;
    if (m->ranks > 0) {
        return hd_machine_exchange_s(machine, 0, (hd_exchange)m->exchange, m->ranks, m->bytes);
    }
    for (int i = 0; i < m->nterms; i++) {
        const heddle_measured_term *t = &m->term[i];
        sum += hd_machine_work_s(machine, (hd_work)t->work, t->dtype, t->amount, t->size);
    }
    return sum;
}

static heddle_status judge(const heddle_machine *machine, heddle_measured *measured, int count)
{
    int bad = 0, work = 0;
    for (int i = 0; i < count; i++) {
        measured[i].fitted = fitted(machine, &measured[i]);
        const double error = fabs(measured[i].fitted / measured[i].seconds - 1);
        work += measured[i].ranks == 0;
        bad += measured[i].ranks == 0 && !(error <= WORST_MEDIAN_PERCENT / 100.0);
    }
    return 2 * bad < work || work == 0
               ? HEDDLE_OK
               : hd_fail(HEDDLE_ERR_INFEASIBLE,
                         "%d of %d times of work are off by more than %d %%: no rates explain them; does "
                         "something else use the machine?",
                         bad, work, (int)WORST_MEDIAN_PERCENT);
}

static heddle_status describe(heddle_machine *machine, const heddle_calibration *about)
{
    heddle_status st = HEDDLE_OK;
    const char *source = about->source != NULL ? about->source : "";
    HD_TRY(hd_alloc((void **)&machine->source, strlen(source) + 1, 1, "a machine's source"));
    memcpy(machine->source, source, strlen(source) + 1);
    hd_copy_text(machine->name, sizeof machine->name, about->name);
    hd_copy_text(machine->link[0].name, sizeof machine->link[0].name, about->link);
    hd_copy_text(machine->level[0].name, sizeof machine->level[0].name, "host");
    machine->ranks = machine->level[0].size = about->ranks;
    machine->nlevels = machine->nlinks = 1;
    machine->memory_bytes = about->memory_bytes;
    machine->overlap_slowdown = about->overlap_slowdown >= 1 ? about->overlap_slowdown : 1;
    machine->crowding_slowdown = about->crowding_slowdown >= 1 ? about->crowding_slowdown : 1;
    machine->is_calibrated = 1;
    machine->on_device = about->on_device;
out:
    return st;
}

heddle_status heddle_machine_fit(heddle_machine **out, heddle_measured *measured, int count,
                                 const heddle_calibration *about)
{
    heddle_status st = HEDDLE_OK;
    heddle_machine *machine = NULL;
    heddle_calibration taken = HEDDLE_EMPTY(heddle_calibration);
    HD_TRY(HD_NEED(out, measured, about));
    HD_TRY(hd_struct_take(&taken, about, HD_STRUCT(heddle_calibration, ranks)));
    HD_TRY(HD_NEED(taken.name, taken.link));
    if (count < 1 || count > HEDDLE_MEASURED_MAX || taken.ranks < 1 || taken.ranks > HD_MACHINE_MAX_RANKS) {
        st = hd_fail(HEDDLE_ERR_ARG, "a fit of %d times for %d ranks; it wants 1 to %d times and 1 to %d ranks", count,
                     taken.ranks, (int)HEDDLE_MEASURED_MAX, (int)HD_MACHINE_MAX_RANKS);
        goto out;
    }
    for (int i = 0; i < count; i++) {
        HD_TRY(check(&measured[i], i));
    }
    HD_TRY(hd_alloc((void **)&machine, 1, sizeof *machine, "a machine"));
    HD_TRY(describe(machine, &taken));
    HD_TRY(fit_work(machine, measured, count, taken.launch_s));
    for (int e = 0; e < (int)HD_EXCHANGES; e++) {
        HD_TRY(fit_exchange(&machine->link[0].exchange[e], (heddle_exchange)e, measured, count));
    }
    HD_TRY(judge(machine, measured, count));
    *out = machine;
    machine = NULL;
out:
    heddle_machine_destroy(machine);
    return st;
}
