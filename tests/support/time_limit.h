/* Limits of time in tests: written for a machine of its own, longer where other work shares it, and by
 * HEDDLE_TEST_TIME_SCALE, as where a sanitizer slows them down. */
#ifndef HD_TEST_TIME_LIMIT_H
#define HD_TEST_TIME_LIMIT_H

#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Cores that a program has: those of its affinity, and no more than the quota of its container (cgroup v2). Counted
 * before its ranks are bound to one each. */
static double hd_test_cores = 1;
__attribute__((constructor)) static void hd_test_count_cores(void)
{
    cpu_set_t own;
    double quota, period;
    hd_test_cores = sched_getaffinity(0, sizeof own, &own) == 0 ? CPU_COUNT(&own) : 1;
    FILE *file = fopen("/sys/fs/cgroup/cpu.max", "r"); /* "max" where there is no quota */
    if (file != NULL && fscanf(file, "%lf %lf", &quota, &period) == 2 && quota < hd_test_cores * period) {
        hd_test_cores = quota / period;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

/* How many times as long everything takes that others' work keeps from the cores: the most that this process has seen,
 * so that a limit which is asked for later is no shorter than a deadline that it has to outlast. */
static inline double hd_test_crowding(void)
{
    static _Atomic double most = 1;
    double load = 0, seen = atomic_load(&most);
    const double now = getloadavg(&load, 1) == 1 ? load / hd_test_cores : 1;
    while (now > seen && !atomic_compare_exchange_weak(&most, &seen, now)) {
    }
    return now > seen ? now : seen;
}

/* Whatever a test makes of the library's clock. */
static inline int64_t hd_test_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline double hd_test_scale(void)
{
    const char *scale = getenv("HEDDLE_TEST_TIME_SCALE");
    return scale != NULL ? atof(scale) : 1;
}

/* Of what passes each time, and so does not grow with the load: a sleep. */
static inline int64_t hd_test_wait_ns(double seconds)
{
    return (int64_t)(seconds * 1e9 * hd_test_scale());
}

/* A deadline that somebody misses, and that others have to keep: it passes each time, so it grows no more than that. */
static inline int64_t hd_test_missed_ns(double seconds)
{
    const double crowding = hd_test_crowding() < 8 ? hd_test_crowding() : 8;
    return (int64_t)(seconds * 1e9 * (crowding > hd_test_scale() ? crowding : hd_test_scale()));
}

static inline int64_t hd_test_limit_ns(double seconds)
{
    return (int64_t)((double)hd_test_wait_ns(seconds) * hd_test_crowding());
}

#endif
