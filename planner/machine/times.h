/* Measured times on their way from a text into a machine's links. */
#ifndef HD_TIMES_H
#define HD_TIMES_H

#include "planner/machine/fit.h"

enum { HD_TIMES_MAX = 64 };

/* Of one exchange among one number of ranks; bytes: that a rank sends or receives, to and from all others. */
typedef struct hd_times {
    hd_exchange exchange;
    int ranks, n;
    int is_spread; /* evenly over all ranks of the machine; else neighbours by number */
    hd_sample sample[HD_TIMES_MAX];
    double per_second; /* > 0: bytes that a rank sends, and no times */
} hd_times;

typedef struct hd_time_sets {
    int nsets;
    hd_times set[HEDDLE_IMPORT_ROWS];
    double overlap_slowdown; /* 0: not said */
} hd_time_sets;

/* What a published test times; sum_and_gather counts for both of its halves, each half of its time. */
typedef enum hd_test {
    HD_TEST_ALL_TO_ALL,
    HD_TEST_GATHER,
    HD_TEST_SCATTER,
    HD_TEST_SUM_AND_GATHER,
    HD_TEST_HOP
} hd_test;

/* `buffer_bytes`: as nccl-tests counts them: what a rank sends in all, its own block included; of a gather what it has
 * in the end. HEDDLE_ERR_UNSUPPORTED: too many. */
heddle_status hd_times_add(hd_time_sets *import, hd_test test, int ranks, double buffer_bytes, double seconds);
/* What a rank of such a group sends in a second, in a ring. HEDDLE_ERR_UNSUPPORTED: too many; HEDDLE_ERR_LAYOUT: there
 * are figures of it. */
heddle_status hd_times_add_rate(hd_time_sets *import, hd_test test, int ranks, int is_spread, double per_second);
heddle_status hd_times_nccl_tests(hd_time_sets *out, const char *path);
heddle_status hd_times_galvatron(hd_time_sets *out, const char *path);

#endif
