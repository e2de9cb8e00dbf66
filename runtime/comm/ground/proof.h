/* Two that know one key show it to each other and tell it to nobody. The caller sends a knock with random bytes, a
 * nonce; the callee answers with its own nonce and a proof; the caller checks it and sends its proof. A proof is a
 * keyed hash of both nonces, who calls whom, the address that was called, and which of the two speaks: so none is of
 * use another time, to another rank, as the other side's, or to a relay at another address. What is said behind it is
 * not covered: who can change bytes on their way can change those. */
#ifndef HD_COMM_PROOF_H
#define HD_COMM_PROOF_H

#include <stddef.h>
#include <stdint.h>

enum { HD_KNOCK_MAGIC = 0x6864646d, HD_NONCE_BYTES = 16, HD_PROOF_BYTES = 32, HD_SECRET_BYTES = 32 };

typedef struct hd_secret {
    unsigned char bytes[HD_SECRET_BYTES];
} hd_secret;

typedef struct hd_knock {
    uint32_t magic; /* two versions of the library do not meet */
    int32_t from, to;
    unsigned char nonce[HD_NONCE_BYTES];
} hd_knock;

typedef struct hd_answer {
    unsigned char nonce[HD_NONCE_BYTES], proof[HD_PROOF_BYTES];
} hd_answer;

/* What both sides know when the callee answers. No bytes between the members: it is hashed as it lies. */
typedef struct hd_handshake {
    hd_knock knock;
    unsigned char nonce[HD_NONCE_BYTES]; /* the callee's */
    unsigned char version, address[16];  /* 4 or 6; 0: a socket of this host */
    unsigned char port[2], unused;
} hd_handshake;

enum { HD_CALLEE, HD_CALLER };

/* Of a key of any length. */
void hd_secret_of(hd_secret *out, const void *key, size_t bytes);
/* The caller's knock. -1: the kernel gives no random bytes, errno. */
int hd_handshake_begin(hd_handshake *shake, int from, int to);
/* Notes the address that was called as this side of the connection sees it. -1: errno. */
int hd_handshake_where(hd_handshake *shake, int fd, int side);
void hd_prove(unsigned char proof[HD_PROOF_BYTES], const hd_secret *secret, const hd_handshake *shake, int side);
/* 1: `side` made it, and knows the secret. Takes as long when it is wrong. */
int hd_proves(const unsigned char proof[HD_PROOF_BYTES], const hd_secret *secret, const hd_handshake *shake, int side);

/* A proof of these bytes as well: `side` says them in this conversation. */
void hd_seal(unsigned char seal[HD_PROOF_BYTES], const hd_secret *secret, const hd_handshake *shake, int side,
             const void *said, size_t bytes);
int hd_is_sealed(const unsigned char seal[HD_PROOF_BYTES], const hd_secret *secret, const hd_handshake *shake, int side,
                 const void *said, size_t bytes);

#endif
