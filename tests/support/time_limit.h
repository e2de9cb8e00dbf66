/* Limits of time in tests: written for a machine of its own, longer by HEDDLE_TEST_TIME_SCALE where the tests share it
 * or a sanitizer slows them down. */
#ifndef HD_TEST_TIME_LIMIT_H
#define HD_TEST_TIME_LIMIT_H

#include <stdint.h>
#include <stdlib.h>

static inline int64_t hd_test_limit_ns(double seconds)
{
    const char *scale = getenv("HEDDLE_TEST_TIME_SCALE");
    return (int64_t)(seconds * 1e9 * (scale != NULL ? atof(scale) : 1));
}

#endif
