/* Random numbers without state: each is a function of a seed, a stream and a position in it, so that every rank can
 * have any of them, whoever works on what. */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index);
double random_unit(uint64_t seed, uint64_t stream, uint64_t index);   /* 0 < u < 1 */
double random_normal(uint64_t seed, uint64_t stream, uint64_t index); /* standard normal */

#endif
