/* BLAKE2s: the values of RFC 7693, appendices B and E. */
#include "case.h"

#include "runtime/base/blake2s.h"

#include <stdint.h>
#include <string.h>

HD_CASE(appendix_b)
{
    static const unsigned char wanted[32] = {0x50, 0x8C, 0x5E, 0x8C, 0x32, 0x7C, 0x14, 0xE2, 0xE1, 0xA7, 0x2B,
                                             0xA3, 0x4E, 0xEB, 0x45, 0x2F, 0x37, 0x45, 0x8B, 0x20, 0x9E, 0xD6,
                                             0x3A, 0x29, 0x4D, 0x99, 0x9B, 0x4C, 0x86, 0x67, 0x59, 0x82};
    unsigned char got[32];
    hd_blake2s(got, 32, NULL, 0, "abc", 3);
    assert_memory_equal(got, wanted, 32);
}

/* The sequence of the appendix: Fibonacci's numbers from a seed. */
static void fill(unsigned char *out, size_t bytes, uint32_t seed)
{
    uint32_t a = 0xDEAD4BAD * seed, b = 1;
    for (size_t i = 0; i < bytes; i++) {
        const uint32_t t = a + b;
        a = b;
        b = t;
        out[i] = (unsigned char)(t >> 24);
    }
}

/* The hash of 48 hashes, with a key and without one: of no byte, of a part of a block, of a block and of many. */
HD_CASE(appendix_e)
{
    static const unsigned char wanted[32] = {0x6A, 0x41, 0x1F, 0x08, 0xCE, 0x25, 0xAD, 0xCD, 0xFB, 0x02, 0xAB,
                                             0xA6, 0x41, 0x45, 0x1C, 0xEC, 0x53, 0xC5, 0x98, 0xB2, 0x4F, 0x4F,
                                             0xC7, 0x87, 0xFB, 0xDC, 0x88, 0x79, 0x7F, 0x4C, 0x1D, 0xFE};
    static const size_t sizes[] = {16, 20, 28, 32}, lengths[] = {0, 3, 64, 65, 255, 1024};
    unsigned char all[48 * 32], data[1024], key[32], got[32];
    size_t at = 0;
    for (int s = 0; s < 4; s++) {
        for (int l = 0; l < 6; l++) {
            fill(data, lengths[l], (uint32_t)lengths[l]);
            fill(key, sizes[s], (uint32_t)sizes[s]);
            hd_blake2s(all + at, sizes[s], NULL, 0, data, lengths[l]);
            at += sizes[s];
            hd_blake2s(all + at, sizes[s], key, sizes[s], data, lengths[l]);
            at += sizes[s];
        }
    }
    hd_blake2s(got, 32, NULL, 0, all, at);
    assert_memory_equal(got, wanted, 32);
}
