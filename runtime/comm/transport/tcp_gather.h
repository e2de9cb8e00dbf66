/* How ranks that know where rank 0 is hear where the others listen: each calls rank 0 and says its place, and when all
 * have come rank 0 tells each of them everybody's. Both ends show that they know the secret (proof.h), and what they
 * say is sealed with it. The key under which all ranks then connect is made on every rank, of the secret and of what
 * was said; it does not travel. */
#ifndef HD_TCP_GATHER_H
#define HD_TCP_GATHER_H

#include "runtime/comm/transport/tcp_line.h"
#include "runtime/comm/transport/tcp_star.h"

enum { HD_TCP_NONCE_BYTES = 16, HD_TCP_NOTICE_BYTES = 512 };

typedef struct hd_tcp_gathering {
    int rank, size;
    hd_secret secret;
    const char *host; /* where rank 0 is; the others' */
    int port;
    int listener; /* rank 0's */
    hd_tcp_patience patience;
    hd_tcp_star star; /* zeros at first; afterwards the lines of the gathering, to be freed */
} hd_tcp_gathering;

/* A rank's word to rank 0. No bytes between the members, here and below: it is sealed as it lies. */
typedef struct hd_tcp_hello {
    int32_t size, place_bytes;
    unsigned char caller[HD_TCP_NONCE_BYTES]; /* random: the same when a rank calls again, another one's if two say that
                                                 they are one rank */
    hd_tcp_place place;
    unsigned char seal[HD_PROOF_BYTES];
} hd_tcp_hello;

/* Rank 0's word to a rank; status HEDDLE_OK: all places follow. */
typedef struct hd_tcp_notice {
    int32_t status, size;
    unsigned char salt[HD_TCP_NONCE_BYTES], places[HD_PROOF_BYTES]; /* a hash */
    char text[HD_TCP_NOTICE_BYTES];                                 /* why not */
    unsigned char seal[HD_PROOF_BYTES];
} hd_tcp_notice;

/* Collective. place[rank] is what this rank says, all are there afterwards. key: for hd_tcp_meeting. Strangers' calls
 * cost no time and change nothing. HEDDLE_ERR_MISMATCH, on all that have come: another number of ranks, a rank that is
 * there twice. HEDDLE_ERR_TIMEOUT: who is missing, or what became of the last call. HEDDLE_ERR_PEER: a rank came and
 * went; rank 0 gave up, and why. */
heddle_status hd_tcp_gather(hd_tcp_place *place, uint64_t key[2], hd_tcp_gathering *g);

/* The two sides, and what both make of it. */
heddle_status hd_tcp_receive_all(hd_tcp_place *place, hd_tcp_notice *notice, hd_tcp_gathering *g);
heddle_status hd_tcp_visit_first(hd_tcp_place *place, hd_tcp_notice *notice, hd_tcp_gathering *g);
void hd_tcp_hash_places(unsigned char hash[HD_PROOF_BYTES], const hd_tcp_place *place, int size);

/* What came of a rank in this conversation. 0: it does not know the secret, or says what no rank says. */
int hd_tcp_read_hello(const hd_tcp_hello *h, const hd_secret *secret, const hd_handshake *shake);
int hd_tcp_read_notice(const hd_tcp_notice *n, const hd_secret *secret, const hd_handshake *shake);

#endif
