/* The clock of the library, slower: what it waits for others by a constant, they keep on a busy machine, too. Linked
 * with -Wl,--wrap=hd_now_ns; what limits a test is read by hd_test_now_ns. */
#ifndef HD_TEST_SLOW_CLOCK_H
#define HD_TEST_SLOW_CLOCK_H

#include "time_limit.h"

static int64_t slowness = 1; /* of processes that are started from now on */

int64_t __real_hd_now_ns(void);
int64_t __wrap_hd_now_ns(void);
int64_t __wrap_hd_now_ns(void)
{
    return __real_hd_now_ns() / slowness;
}

static inline void slow_down(void)
{
    slowness = (int64_t)hd_test_crowding();
}

#endif
