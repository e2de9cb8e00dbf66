/* Names and comparisons of anything, no secrets. */
#ifndef HD_HASH_H
#define HD_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HD_HASH_BASIS 0xcbf29ce484222325u

/* 64 bits, FNV-1a: of what `hash` is of, followed by data. Begins with HD_HASH_BASIS. */
uint64_t hd_hash(uint64_t hash, const void *data, size_t bytes);

/* 128 bits. */
#define HD_HASH_START                                                                                                  \
    {                                                                                                                  \
        HD_HASH_BASIS, 0                                                                                               \
    }
void hd_hash_mix(uint64_t hash[2], const void *data, size_t bytes);

#endif
