/* Random numbers of judges and tests, the same on every machine. */
#ifndef HD_VERIFY_RANDOM_H
#define HD_VERIFY_RANDOM_H

#include <stdint.h>

typedef struct random_source {
    uint64_t state; /* the seed; any number will do */
} random_source;

/* splitmix64: its finaliser, a hash of one number, and its sequence. */
static inline uint64_t random_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static inline uint64_t random_bits(random_source *source)
{
    return random_mix(source->state += 0x9e3779b97f4a7c15u);
}

/* low <= result <= high */
static inline int64_t random_between(random_source *source, int64_t low, int64_t high)
{
    return low + (int64_t)(random_bits(source) % (uint64_t)(high - low + 1));
}

/* -1 <= result < 1, exact in f32 */
static inline double random_unit_of(uint64_t bits)
{
    return (double)(bits >> 40) * 0x1p-23 - 1;
}

static inline double random_unit(random_source *source)
{
    return random_unit_of(random_bits(source));
}

/* Without a state, so that any rank can have any number: the bits at place (a, b) of table `seed`. */
static inline uint64_t random_at(uint64_t seed, uint64_t a, uint64_t b)
{
    return random_mix(random_mix(random_mix(seed) + a) + b * 0x9e3779b97f4a7c15u);
}

#endif
