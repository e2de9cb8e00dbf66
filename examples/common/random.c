#include "random.h"

#include <math.h>

/* splitmix64 of the position */
uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint64_t z = seed * 0x9E3779B97F4A7C15U + stream * 0xD1B54A32D192ED03U + index * 0x8CB92BA72F3D8DD7U;
    for (int round = 0; round < 2; round++) {
        z += 0x9E3779B97F4A7C15U;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
        z ^= z >> 31;
    }
    return z;
}

double random_unit(uint64_t seed, uint64_t stream, uint64_t index)
{
    return ((double)(random_bits(seed, stream, index) >> 12) + 0.5) * 0x1p-52;
}

double random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    const double u = random_unit(seed, stream, 2 * index), v = random_unit(seed, stream, 2 * index + 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}
