/* The members of a group: how many rows each has, and which of them are alike. Blocks of a dim have few lengths, so
 * members come in runs, and what is asked of a group takes as long as it has runs. */
#include "runtime/base/base.h"
#include "runtime/method/method.h"

heddle_status hd_method_group_add(hd_method_group *g, int64_t rows, int count)
{
    heddle_status st = HEDDLE_OK;
    HD_TRY(hd_grow((void **)&g->run, &g->runs_capacity, g->nruns + (g->nruns > 0), sizeof *g->run, "rows of a group"));
    if (g->nruns == 0 || g->run[g->nruns - 1].rows != rows) {
        g->run[g->nruns++].rows = rows;
        HD_TRY(hd_grow((void **)&g->run, &g->runs_capacity, g->nruns, sizeof *g->run, "rows of a group"));
        g->run[g->nruns] = g->run[g->nruns - 1];
    }
    hd_run *behind = &g->run[g->nruns];
    behind->first += count;
    behind->full_before += rows > 0 ? count : 0;
    behind->rows_before += rows * count;
    behind->rows = 0;
out:
    return st;
}

/* The run that member m is in; of m = n what stands behind them all. */
static const hd_run *run_of(const hd_method_group *g, int m)
{
    int low = 0, high = g->nruns;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        low = g->run[middle].first <= m ? middle : low;
        high = g->run[middle].first <= m ? high : middle - 1;
    }
    return &g->run[low];
}

int64_t hd_group_rows(const hd_method_group *g, int first, int count)
{
    const hd_run *from = run_of(g, first), *to = count > 1 ? run_of(g, first + count) : from;
    return (to->rows_before + (first + count - to->first) * to->rows) -
           (from->rows_before + (first - from->first) * from->rows);
}

int hd_group_full(const hd_method_group *g, int first, int count)
{
    const hd_run *from = run_of(g, first), *to = count > 1 ? run_of(g, first + count) : from;
    return (to->full_before + (to->rows > 0 ? first + count - to->first : 0)) -
           (from->full_before + (from->rows > 0 ? first - from->first : 0));
}

/* A segment is `inner` members: what one Ulysses group of a 2-D method holds. */
void hd_method_group_count(hd_method_group *g, int n, int inner)
{
    g->n = n;
    g->inner = inner;
    g->sequence = hd_group_rows(g, 0, n);
    g->rows_most = g->segment_rows_most = 0;
    g->full_segments = inner == 1 ? hd_group_full(g, 0, n) : 0;
    for (int i = 0; i < g->nruns; i++) {
        g->rows_most = g->run[i].rows > g->rows_most ? g->run[i].rows : g->rows_most;
    }
    for (int first = 0; inner > 1 && first < n; first += inner) {
        const int64_t rows = hd_group_rows(g, first, inner);
        g->segment_rows_most = rows > g->segment_rows_most ? rows : g->segment_rows_most;
        g->full_segments += rows > 0;
    }
    g->segment_rows_most = inner == 1 ? g->rows_most : g->segment_rows_most;
}

/* Behind part `index` of the heads, the first one that has other heads. */
static int heads_end(const hd_method_group *g, int spread, int index)
{
    const hd_head_part part = hd_group_part(g, spread, index);
    int next = index + 1;
    if (part.nq == 0) {
        return spread;
    }
    if (g->heads_a_kv_head == 1) {
        const int longer = (int)(g->heads % spread), full = g->heads < spread ? (int)g->heads : spread;
        return index < longer ? longer : full;
    }
    for (; next < spread; next++) {
        const hd_head_part other = hd_group_part(g, spread, next);
        if (other.nq != part.nq || other.nkv != part.nkv) {
            break;
        }
    }
    return next;
}

/* --- kinds -------------------------------------------------------------------------------------------------------- */

typedef struct kinds {
    const hd_method *method;
    const hd_method_group *g;
    const hd_levels *levels; /* NULL: none */
    int base, spread;
    int has_halo;            /* sends to those alone whose windows reach it */
    int nperiods, period[2]; /* members after which sets of the levels begin anew, and segments, too */
    hd_member_visit *visit;
    void *context;
} kinds;

/* With a window a member is like the one before it where all that both may see has parts of one length. */
static int halo_end(const kinds *k, int member, int end)
{
    const hd_method_group *g = k->g;
    const hd_run *run = run_of(g, member);
    const int inner = g->halo.count > 1 ? g->halo.along[1].parts : g->n, segment = member / inner * inner;
    const int reach = g->halo.along[g->halo.count - 1].reach;
    const int first = (int)hd_larger(run->first, segment);
    if (run->rows == 0) {
        return end;
    }
    end = (int)hd_smaller(end, segment + inner);
    return k->levels == NULL && member - first >= reach ? (int)hd_larger(member + 1, end - reach) : member + 1;
}

/* The first member behind `member` that may be of another kind: with other rows or heads; of a ring also those whose
 * neighbours have other rows. */
static int same_end(const kinds *k, int member)
{
    const hd_method_group *g = k->g;
    const hd_run *run = run_of(g, member);
    const int end = run[1].first, index = member % k->spread;
    if (k->method->states != NULL || g->projected_length > 0) {
        return member + 1;
    }
    if (k->has_halo) {
        return halo_end(k, member, end);
    }
    if (k->spread > 1) {
        return (int)hd_smaller(end, member - index + heads_end(g, k->spread, index));
    }
    return member == run->first ? member + 1 : (int)hd_larger(member + 1, end - 1);
}

/* And none that a set's border divides from it, or the two before them, or the two behind them, in a ring of `spread`
 * members each. */
static int kind_end(const kinds *k, int member)
{
    const hd_method_group *g = k->g;
    const int pair[] = {member, (member + k->spread) % g->n, (member + g->n - k->spread) % g->n};
    int64_t end = same_end(k, member);
    for (int level = 0; k->levels != NULL && level < k->levels->count; level++) {
        const int64_t within = k->levels->within[level];
        for (int i = 0; i < 3 && within > g->stride; i++) {
            const int64_t rank = k->base + (int64_t)pair[i] * g->stride, left = within - rank % within;
            const int64_t behind = member + (left + g->stride - 1) / g->stride;
            const int64_t round = (int64_t)member + g->n - pair[i];
            end = behind < end ? behind : end;
            end = round < end ? round : end;
        }
    }
    return (int)end;
}

/* The first member from `from` on that has other rows than the one `size` behind it, which is before `limit`. */
static int unlike(const hd_method_group *g, int from, int size, int limit)
{
    const hd_run *a = run_of(g, from), *b = run_of(g, from + size);
    int m = from;
    while (m + size < limit && a->rows == b->rows) {
        m = (int)hd_smaller(a[1].first, b[1].first - size);
        a += m == a[1].first;
        b += m + size == b[1].first;
    }
    return (int)hd_smaller(m, limit - size);
}

/* How many members before and behind a period of `size` from `member` on have to come again with it, and where that
 * must end: where segments do, or their heads. -1: it does not. */
static int margin_of(int *limit, const kinds *k, int member, int size)
{
    const hd_method_group *g = k->g;
    const hd_halo *halo = k->has_halo ? &g->halo : NULL;
    const int segment = halo != NULL && halo->count > 1 ? halo->along[1].parts : k->spread, index = member % segment;
    *limit = g->n;
    if (k->method->states != NULL || g->projected_length > 0) {
        return -1;
    }
    if (size < segment && segment % size == 0 && halo != NULL) {
        *limit = member - index + segment;
        return index >= halo->along[1].reach ? halo->along[1].reach : -1;
    }
    if (size < segment && segment % size == 0) { /* key heads: each segment's member counts its own */
        *limit = member - index + heads_end(g, segment, index);
        return g->heads_a_kv_head > 1 && index < g->heads ? -1 : 0;
    }
    if (size % segment != 0) {
        return -1;
    }
    return (halo != NULL ? halo->along[0].reach : 1) * segment;
}

/* How often the `size` members from `member` on come one behind the other, at most up to `end`. */
static int again(const kinds *k, int member, int size, int end)
{
    int limit = 0;
    const int margin = margin_of(&limit, k, member, size);
    if (margin < 0 || member < margin || member + size >= limit) {
        return 1;
    }
    const int more = unlike(k->g, member - margin, size, limit) - margin - member;
    return (int)hd_smaller(1 + (more > 0 ? more / size : 0), (end - member) / size);
}

/* The members from `first` on, `times` of each, by the periods that are left. */
static void visit_range(const kinds *k, int first, int end, int times, int nperiods)
{
    for (int m = first, next = 0; m < end; m = next) {
        const int size = nperiods > 0 ? k->period[nperiods - 1] : 0;
        if (nperiods == 0) {
            next = (int)hd_smaller(kind_end(k, m), end);
            k->visit(k->context, m, times * (next - m));
            continue;
        }
        const int is_whole = m % size == 0 && m + size <= end, count = is_whole ? again(k, m, size, end) : 1;
        next = (int)hd_smaller(end, (m / size + 1) * size);
        visit_range(k, m, next, times * count, nperiods - 1);
        next += (count - 1) * size;
    }
}

static int common_multiple(int a, int b)
{
    int64_t x = a, y = b;
    while (y != 0) {
        const int64_t rest = x % y;
        x = y;
        y = rest;
    }
    const int64_t multiple = a / x * b;
    return multiple < INT32_MAX ? (int)multiple : INT32_MAX;
}

static void set_periods(kinds *k)
{
    const hd_method_group *g = k->g;
    int sets = 1, periodic = 1;
    for (int level = 0; k->levels != NULL && level < k->levels->count; level++) {
        const int64_t within = k->levels->within[level];
        if (within > g->stride && within < (int64_t)g->n * g->stride) { /* more than one member, and not all */
            periodic = periodic && k->base == 0 && within % g->stride == 0;
            sets = common_multiple(sets, (int)(within / g->stride));
        }
    }
    const int both = common_multiple(sets, g->inner);
    if (periodic && sets > 1 && 2 * sets <= g->n) {
        k->period[k->nperiods++] = sets;
    }
    if (periodic && both > sets && 2 * both <= g->n) {
        k->period[k->nperiods++] = both;
    }
}

void hd_method_kinds(const hd_method *method, const hd_method_group *g, const hd_levels *levels, int base,
                     hd_member_visit *visit, void *context)
{
    kinds k = {.method = method,
               .g = g,
               .levels = levels,
               .base = base,
               .spread = hd_group_spread(method, g),
               .has_halo = g->halo.count > 0 && (method == &hd_method_gather_kv || method == &hd_method_halo),
               .visit = visit,
               .context = context};
    set_periods(&k);
    visit_range(&k, 0, g->n, 1, k.nperiods);
}
