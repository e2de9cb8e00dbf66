/* Limits of time in tests: written for a machine of its own, longer where other work shares it, and by
 * HEDDLE_TEST_TIME_SCALE, as where a sanitizer slows them down. */
#ifndef HD_TEST_TIME_LIMIT_H
#define HD_TEST_TIME_LIMIT_H

#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* How many times as long everything takes that others' work keeps from the cores. */
static inline double hd_test_crowding(void)
{
    double load = 0;
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return getloadavg(&load, 1) == 1 && load > (double)cores ? load / (double)cores : 1;
}

/* Of what passes each time, and so does not grow with the load: a deadline that somebody misses, a sleep. */
static inline int64_t hd_test_wait_ns(double seconds)
{
    const char *scale = getenv("HEDDLE_TEST_TIME_SCALE");
    return (int64_t)(seconds * 1e9 * (scale != NULL ? atof(scale) : 1));
}

static inline int64_t hd_test_limit_ns(double seconds)
{
    return (int64_t)((double)hd_test_wait_ns(seconds) * hd_test_crowding());
}

#endif
