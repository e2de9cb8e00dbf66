/* Proofs that the other side knows the key: proof.h says what they are of. */
#include "runtime/comm/ground/proof.h"

#include "runtime/base/base.h"
#include "runtime/base/blake2s.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

_Static_assert(sizeof(hd_handshake) == 28 + 16 + 17 + 3, "it is hashed as it lies");

void hd_secret_of(hd_secret *out, const void *key, size_t bytes)
{
    hd_blake2s(out->bytes, sizeof out->bytes, NULL, 0, key, bytes);
}

int hd_handshake_begin(hd_handshake *shake, int from, int to)
{
    *shake = (hd_handshake){.knock = {.magic = HD_KNOCK_MAGIC, .from = from, .to = to}};
    return hd_random_bytes(shake->knock.nonce, sizeof shake->knock.nonce);
}

/* A listener of both versions sees addresses of version 4 within those of version 6. */
int hd_handshake_where(hd_handshake *shake, int fd, int side)
{
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
        struct sockaddr_storage room;
    } at;
    socklen_t bytes = sizeof at;
    memset(&at, 0, sizeof at);
    if ((side == HD_CALLER ? getpeername(fd, &at.any, &bytes) : getsockname(fd, &at.any, &bytes)) != 0) {
        return -1;
    }
    if (at.any.sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&at.six.sin6_addr)) {
        shake->version = 4;
        memcpy(shake->address, at.six.sin6_addr.s6_addr + 12, 4);
        memcpy(shake->port, &at.six.sin6_port, sizeof shake->port);
    } else if (at.any.sa_family == AF_INET6) {
        shake->version = 6;
        memcpy(shake->address, &at.six.sin6_addr, sizeof shake->address);
        memcpy(shake->port, &at.six.sin6_port, sizeof shake->port);
    } else if (at.any.sa_family == AF_INET) {
        shake->version = 4;
        memcpy(shake->address, &at.four.sin_addr, 4);
        memcpy(shake->port, &at.four.sin_port, sizeof shake->port);
    }
    return 0;
}

void hd_prove(unsigned char proof[HD_PROOF_BYTES], const hd_secret *secret, const hd_handshake *shake, int side)
{
    unsigned char text[1 + sizeof *shake];
    text[0] = (unsigned char)side;
    memcpy(text + 1, shake, sizeof *shake);
    hd_blake2s(proof, HD_PROOF_BYTES, secret->bytes, sizeof secret->bytes, text, sizeof text);
}

/* No shorter way for a compiler, either. */
static int are_equal(const unsigned char a[HD_PROOF_BYTES], const unsigned char b[HD_PROOF_BYTES])
{
    volatile unsigned char differs = 0;
    for (int i = 0; i < HD_PROOF_BYTES; i++) {
        differs = (unsigned char)(differs | (a[i] ^ b[i]));
    }
    return differs == 0;
}

int hd_proves(const unsigned char proof[HD_PROOF_BYTES], const hd_secret *secret, const hd_handshake *shake, int side)
{
    unsigned char right[HD_PROOF_BYTES];
    hd_prove(right, secret, shake, side);
    return are_equal(proof, right);
}

/* Of another length than what a proof is of: neither passes for the other. */
void hd_seal(unsigned char seal[HD_PROOF_BYTES], const hd_secret *secret, const hd_handshake *shake, int side,
             const void *said, size_t bytes)
{
    unsigned char text[HD_PROOF_BYTES + HD_BLAKE2S_BYTES];
    hd_prove(text, secret, shake, side);
    hd_blake2s(text + HD_PROOF_BYTES, HD_BLAKE2S_BYTES, NULL, 0, said, bytes);
    hd_blake2s(seal, HD_PROOF_BYTES, secret->bytes, sizeof secret->bytes, text, sizeof text);
}

int hd_is_sealed(const unsigned char seal[HD_PROOF_BYTES], const hd_secret *secret, const hd_handshake *shake, int side,
                 const void *said, size_t bytes)
{
    unsigned char right[HD_PROOF_BYTES];
    hd_seal(right, secret, shake, side, said, bytes);
    return are_equal(seal, right);
}
