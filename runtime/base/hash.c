#include "runtime/base/hash.h"

void hd_hash_mix(uint64_t hash[2], const void *data, size_t bytes)
{
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++) {
        hash[0] = (hash[0] ^ byte[i]) * 0x100000001b3u;
        hash[1] = (hash[1] + byte[i]) * 0x9E3779B97F4A7C15u;
        hash[1] ^= hash[1] >> 29;
    }
}
