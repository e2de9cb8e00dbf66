/* Who sits where: what the ranks of a transport tell one another before anything else. */
#ifndef HD_CALLBACKS_H
#define HD_CALLBACKS_H

#include <heddle/sys/transport.h>

typedef struct hd_introduction {
    uint64_t word[6]; /* host (2), random (2), options (2) */
} hd_introduction;

/* Of the running kernel and these namespaces (files of /proc), mixed into `hash`. 0: it cannot be told. */
int hd_host_hash(uint64_t hash[2], const char *const *space, int nspaces);
heddle_status hd_introduce(hd_introduction *mine, const heddle_comm_options *options);
/* HEDDLE_ERR_MISMATCH names the first rank and option that differ. */
heddle_status hd_introductions_agree(const hd_introduction *all, int size);
/* Ranks that truly sit on the host of `rank`, whatever is pretended. */
int hd_introductions_on_host(const hd_introduction *all, int size, int rank);
/* 1 when ranks a and b share memory. */
int hd_introductions_meet(const hd_introduction *all, int size, int a, int b, const heddle_comm_options *options);

/* What heddle_comm_sendrecv was asked for. */
typedef struct hd_two_way {
    const void *send;
    size_t send_bytes;
    int to;
    void *recv;
    size_t recv_bytes;
    int from;
} hd_two_way;

heddle_status hd_callbacks_sendrecv(heddle_comm *comm, const heddle_transport *t, void *ctx, const hd_two_way *way);

#endif
