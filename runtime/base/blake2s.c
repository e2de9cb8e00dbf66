/* BLAKE2s as RFC 7693 has it: the names h, v, m, t and the numbers are those of its sections 2.6 to 3.3. */
#include "runtime/base/blake2s.h"

#include <stdint.h>
#include <string.h>

enum { BLOCK_BYTES = 64, ROUNDS = 10 };

static const uint32_t iv[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                               0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static const uint8_t sigma[ROUNDS][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

static uint32_t rotate(uint32_t x, int bits)
{
    return x >> bits | x << (32 - bits);
}

static void mix(uint32_t v[16], int a, int b, int c, int d, uint32_t x, uint32_t y)
{
    v[a] += v[b] + x;
    v[d] = rotate(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 12);
    v[a] += v[b] + y;
    v[d] = rotate(v[d] ^ v[a], 8);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 7);
}

/* t: bytes up to the end of this block. */
static void compress(uint32_t h[8], const unsigned char block[BLOCK_BYTES], uint64_t t, int is_last)
{
    uint32_t v[16], m[16];
    memcpy(v, h, sizeof iv);
    memcpy(v + 8, iv, sizeof iv);
    v[12] ^= (uint32_t)t;
    v[13] ^= (uint32_t)(t >> 32);
    v[14] = is_last ? ~v[14] : v[14];
    for (int i = 0; i < 16; i++) { /* little-endian words, whatever the machine's are */
        const unsigned char *b = block + 4 * i;
        m[i] = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    }
    for (int r = 0; r < ROUNDS; r++) {
        const uint8_t *s = sigma[r];
        for (int i = 0; i < 4; i++) { /* columns */
            mix(v, i, 4 + i, 8 + i, 12 + i, m[s[2 * i]], m[s[2 * i + 1]]);
        }
        for (int i = 0; i < 4; i++) { /* diagonals */
            mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
        }
    }
    for (int i = 0; i < 8; i++) {
        h[i] ^= v[i] ^ v[8 + i];
    }
}

void hd_blake2s(void *out, size_t out_bytes, const void *key, size_t key_bytes, const void *data, size_t bytes)
{
    uint32_t h[8];
    uint64_t t = 0;
    unsigned char block[BLOCK_BYTES] = {0}, *to = out;
    const unsigned char *from = data;
    memcpy(h, iv, sizeof h);
    h[0] ^= 0x01010000u ^ (uint32_t)key_bytes << 8 ^ (uint32_t)out_bytes;
    if (key_bytes > 0) { /* is a block of its own */
        memcpy(block, key, key_bytes);
        t = BLOCK_BYTES;
        if (bytes > 0) {
            compress(h, block, t, 0);
        }
    }
    for (; bytes > BLOCK_BYTES; bytes -= BLOCK_BYTES, from += BLOCK_BYTES) {
        compress(h, from, t += BLOCK_BYTES, 0);
    }
    if (bytes > 0 || key_bytes == 0) {
        memset(block, 0, sizeof block);
        if (bytes > 0) {
            memcpy(block, from, bytes);
        }
        t += bytes;
    }
    compress(h, block, t, 1);
    for (size_t i = 0; i < out_bytes; i++) {
        to[i] = (unsigned char)(h[i / 4] >> 8 * (i % 4));
    }
}
