/* 128 bits of anything: names and comparisons, no secrets. */
#ifndef HD_HASH_H
#define HD_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HD_HASH_START                                                                                                  \
    {                                                                                                                  \
        0xcbf29ce484222325u, 0                                                                                         \
    }

void hd_hash_mix(uint64_t hash[2], const void *data, size_t bytes);

#endif
