/* A hash for secrets: BLAKE2s of RFC 7693, with a key a proof that its maker knows the key. */
#ifndef HD_BLAKE2S_H
#define HD_BLAKE2S_H

#include <stddef.h>

enum { HD_BLAKE2S_BYTES = 32 }; /* of a hash, and of a key, at most */

/* out_bytes (1 to 32) of the hash; key_bytes 0: without a key. */
void hd_blake2s(void *out, size_t out_bytes, const void *key, size_t key_bytes, const void *data, size_t bytes);

#endif
