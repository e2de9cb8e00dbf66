#include "planner/machine/fit.h"
#include "runtime/base/base.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* From here on a time tells more of its bytes than of its start. */
static const double above_start = 1.25;

static heddle_status check_samples(const hd_sample *sample, int n, const char *what)
{
    int sizes = n > 0;
    for (int i = 0; i < n; i++) {
        if (!(sample[i].bytes > 0 && sample[i].bytes < 1e18 && sample[i].seconds > 0 && sample[i].seconds < 1e6)) {
            return hd_fail(HEDDLE_ERR_ARG, "%s: a time of %g s for %g bytes cannot be", what, sample[i].seconds,
                           sample[i].bytes);
        }
        sizes += i > 0 && sample[i].bytes != sample[0].bytes;
    }
    if (sizes < 2) {
        return hd_fail(HEDDLE_ERR_INFEASIBLE, "%s: a start and a rate want times of two sizes or more, found %s", what,
                       n == 0 ? "none" : "one");
    }
    return HEDDLE_OK;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static heddle_status set_errors(hd_line *line, const hd_sample *sample, int n, double start_s, const hd_rate *rate)
{
    heddle_status st = HEDDLE_OK;
    double *error = NULL;
    HD_TRY(hd_alloc((void **)&error, (size_t)n, sizeof *error, "the errors of a fit"));
    for (int i = 0; i < n; i++) {
        error[i] = fabs((start_s + sample[i].bytes / hd_rate_at(rate, sample[i].bytes)) / sample[i].seconds - 1);
    }
    qsort(error, (size_t)n, sizeof *error, compare);
    line->median_error = error[n / 2];
    line->worst_error = error[n - 1];
out:
    hd_free(error);
    return st;
}

heddle_status hd_fit_line(hd_line *out, const hd_sample *sample, int n, const char *what)
{
    heddle_status st = HEDDLE_OK;
    double ww = 0, wb = 0, bb = 0, w = 0, b = 0; /* sums over 1 / t and bytes / t */
    hd_line made = {0};
    HD_TRY(check_samples(sample, n, what));
    for (int i = 0; i < n; i++) {
        const double one = 1 / sample[i].seconds, bytes = sample[i].bytes / sample[i].seconds;
        ww += one * one;
        wb += one * bytes;
        bb += bytes * bytes;
        w += one;
        b += bytes;
    }
    const double determinant = ww * bb - wb * wb;
    double per_byte = (ww * b - wb * w) / determinant;
    made.start_s = (bb * w - wb * b) / determinant;
    if (!(made.start_s > 0)) { /* the best with none */
        made.start_s = 0;
        per_byte = b / bb;
    }
    if (!(per_byte > 0) || !isfinite(per_byte)) {
        st = hd_fail(HEDDLE_ERR_INFEASIBLE, "%s: the times do not grow with the bytes (%g s a byte)", what, per_byte);
        goto out;
    }
    made.per_second = 1 / per_byte;
    HD_TRY(set_errors(&made, sample, n, made.start_s, &(hd_rate){1, {1}, {made.per_second}}));
    if (made.median_error > HD_FIT_MEDIAN) {
        st = hd_fail(HEDDLE_ERR_INFEASIBLE,
                     "%s: no start and rate explain the times: with the best ones, %.3g us and %.3g GB/s, half of them "
                     "are off by more than %.0f %%",
                     what, 1e6 * made.start_s, 1e-9 * made.per_second, 100 * made.median_error);
        goto out;
    }
    *out = made;
out:
    return st;
}

static int by_bytes(const void *a, const void *b)
{
    return compare(&((const hd_sample *)a)->bytes, &((const hd_sample *)b)->bytes);
}

/* Times of one size become their mean; returns the number of sizes. `sample` is in order. */
static int merge_sizes(hd_sample *sample, int n)
{
    int sizes = 0;
    for (int i = 0, same = 0; i < n; i += same) {
        double sum = 0;
        for (same = 0; i + same < n && sample[i + same].bytes == sample[i].bytes; same++) {
            sum += sample[i + same].seconds;
        }
        sample[sizes++] = (hd_sample){sample[i].bytes, sum / same};
    }
    return sizes;
}

/* Of more sizes than the table has points, those that are evenly apart, the last one among them. */
static void set_points(hd_rate *rate, const hd_line *line, const hd_sample *sample, int sizes)
{
    int first = 0;
    while (first < sizes && sample[first].seconds < above_start * line->start_s) {
        first++;
    }
    rate->npoints = 0;
    if (first > 0) {
        rate->size[0] = sample[first - 1].bytes;
        rate->per_second[0] = line->per_second;
        rate->npoints = 1;
    }
    const int left = sizes - first, room = HD_RATE_POINTS - rate->npoints, taken = left < room ? left : room;
    for (int i = 0; i < taken; i++) {
        const int at = taken == 1 ? sizes - 1 : first + (int)((int64_t)i * (left - 1) / (taken - 1));
        rate->size[rate->npoints] = sample[at].bytes;
        rate->per_second[rate->npoints++] = sample[at].bytes / (sample[at].seconds - line->start_s);
    }
}

heddle_status hd_fit_rate(hd_line *out, double *start_s, hd_rate *rate, const hd_sample *sample, int n,
                          const char *what)
{
    heddle_status st = HEDDLE_OK;
    hd_sample *sorted = NULL;
    hd_line line;
    hd_rate made = {0};
    HD_TRY(hd_fit_line(&line, sample, n, what));
    HD_TRY(hd_alloc((void **)&sorted, (size_t)n, sizeof *sorted, "the times of a fit"));
    memcpy(sorted, sample, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_bytes);
    set_points(&made, &line, sorted, merge_sizes(sorted, n));
    HD_TRY(set_errors(&line, sample, n, line.start_s, &made));
    *rate = made;
    *start_s = line.start_s;
    *out = line;
out:
    hd_free(sorted);
    return st;
}

heddle_status hd_put_group(hd_exchange_rate *exchange, int ranks, double start_s, const hd_rate *rate, const char *what)
{
    int at = 0;
    while (at < exchange->ngroups && exchange->group[at].ranks < ranks) {
        at++;
    }
    if (at == exchange->ngroups || exchange->group[at].ranks != ranks) {
        if (exchange->ngroups == HD_RATE_GROUPS) {
            return hd_fail(HEDDLE_ERR_UNSUPPORTED,
                           "%s: a machine keeps figures of %d sizes of groups, this is one more", what, HD_RATE_GROUPS);
        }
        memmove(&exchange->group[at + 1], &exchange->group[at],
                (size_t)(exchange->ngroups - at) * sizeof exchange->group[0]);
        exchange->ngroups++;
    }
    exchange->group[at].ranks = ranks;
    exchange->group[at].start_s = start_s;
    exchange->group[at].rate = *rate;
    return HEDDLE_OK;
}

heddle_status hd_fit_group(hd_line *out, hd_exchange_rate *exchange, int ranks, const hd_sample *sample, int n,
                           const char *what)
{
    double start_s = 0;
    hd_rate rate;
    const heddle_status st = hd_fit_rate(out, &start_s, &rate, sample, n, what);
    return st == HEDDLE_OK ? hd_put_group(exchange, ranks, start_s, &rate, what) : st;
}
