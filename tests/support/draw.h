/* The random numbers of a test program: one sequence, from the start in every case, since cases are processes. */
#ifndef HD_TEST_DRAW_H
#define HD_TEST_DRAW_H

#include "runtime/verify/random.h"

static random_source drawn = {42};

static inline uint64_t drawn_bits(void)
{
    return random_bits(&drawn);
}

/* low <= result <= high */
static inline int64_t between(int64_t low, int64_t high)
{
    return random_between(&drawn, low, high);
}

/* 0 <= result < n */
static inline int below(int n)
{
    return (int)between(0, n - 1);
}

/* -1 <= result < 1 */
static inline float symmetric(void)
{
    return (float)random_unit(&drawn);
}

#endif
