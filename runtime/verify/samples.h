/* Times of calls that all ranks make together. */
#ifndef HD_VERIFY_SAMPLES_H
#define HD_VERIFY_SAMPLES_H

#include <heddle/heddle.h>

enum { SAMPLES_AT_MOST = 100000 };

double samples_now_ms(void);
/* Collective: every sample becomes that of the slowest rank. HEDDLE_ERR_NOMEM names the bytes. */
heddle_status samples_slowest(double *ms, int samples, heddle_comm *comm);
/* Ascending. */
void samples_sort(double *ms, int samples);
/* Sorts; 0 of none. */
double samples_median(double *ms, int samples);

#endif
