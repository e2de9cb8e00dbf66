/* Figures of an exchange from its times. */
#ifndef HD_FIT_H
#define HD_FIT_H

#include "planner/machine/machine.h"

typedef struct hd_sample {
    double bytes, seconds;
} hd_sample;

/* seconds = start_s + bytes / per_second, and how far off it is, as parts of the times. */
typedef struct hd_line {
    double start_s, per_second;
    double median_error, worst_error;
} hd_line;

/* Least squares of the relative errors, so that short and long times count alike; the start is not negative. `what`
 * names the times in sentences. HEDDLE_ERR_INFEASIBLE: fewer than two sizes, times that do not grow with the bytes, or
 * half of them off by more than HD_FIT_MEDIAN; HEDDLE_ERR_ARG: a size or a time that is not positive and finite. */
#define HD_FIT_MEDIAN 0.25
heddle_status hd_fit_line(hd_line *out, const hd_sample *sample, int n, const char *what);
/* The line and, where its start is no longer most of the time, a point of the table for each size: what a look-up at a
 * measured size gives is then what was measured. *start_s and *rate are set; errors are those of the look-up. */
heddle_status hd_fit_rate(hd_line *out, double *start_s, hd_rate *rate, const hd_sample *sample, int n,
                          const char *what);
/* The table of `ranks`, which is put in its place or replaced. HEDDLE_ERR_UNSUPPORTED: there are HD_RATE_GROUPS. */
heddle_status hd_put_group(hd_exchange_rate *exchange, int ranks, double start_s, const hd_rate *rate,
                           const char *what);
/* The same of what times give. */
heddle_status hd_fit_group(hd_line *out, hd_exchange_rate *exchange, int ranks, const hd_sample *sample, int n,
                           const char *what);

#endif
