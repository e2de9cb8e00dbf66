#include "runtime/base/hash.h"

uint64_t hd_hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ byte[i]) * 0x100000001b3u;
    }
    return hash;
}

void hd_hash_mix(uint64_t hash[2], const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    hash[0] = hd_hash(hash[0], data, bytes);
    for (size_t i = 0; i < bytes; i++) {
        hash[1] = (hash[1] + byte[i]) * 0x9E3779B97F4A7C15u;
        hash[1] ^= hash[1] >> 29;
    }
}
