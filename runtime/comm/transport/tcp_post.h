/* The post between ranks: letters that go out in order, and are kept until somebody asks for them. */
#ifndef HD_TCP_POST_H
#define HD_TCP_POST_H

#include "runtime/comm/transport/tcp_line.h"

#include <poll.h>

enum { HD_LETTER_GATHER, HD_LETTER_PAIR, HD_LETTER_EXCHANGE, HD_LETTER_ABORT, HD_LETTER_GOODBYE };
enum { HD_LETTER_BYTES = 1 << 30 /* at most: what a damaged header says is not believed */, HD_TCP_WHY_BYTES = 512 };

typedef struct hd_letter_head {
    uint64_t bytes;
    int32_t kind, tag;
} hd_letter_head;

/* What came. */
typedef struct hd_letter {
    struct hd_letter *next;
    hd_letter_head head;
    size_t filled;
    unsigned char data[];
} hd_letter;

/* What goes, with room for its bytes: to send it again takes no memory. */
typedef struct hd_parcel {
    struct hd_parcel *next;
    int to;         /* -1: not on its way */
    int is_for_one; /* freed when it is out */
    size_t sent;
    hd_letter_head head; /* one write for it and the bytes behind it */
    unsigned char data[];
} hd_parcel;

typedef struct hd_tcp_peer {
    int fd; /* -1: this rank itself, or the connection has ended */
    int said_goodbye;
    hd_parcel *out, **out_end; /* oldest first */
    hd_letter *in, **in_end;   /* oldest first, whole ones */
    hd_letter *coming;         /* being read */
    hd_letter_head head;
    size_t head_filled;
} hd_tcp_peer;

struct hd_tcp {
    int rank, size;
    hd_tcp_patience patience; /* while ranks meet; its interrupt, afterwards, too */
    hd_secret secret;         /* of the meeting's key */
    hd_tcp_peer *peer;        /* [size] */
    struct pollfd *fds;       /* [size] */
    int aborted_by;           /* -1: nobody */
    char why[HD_TCP_WHY_BYTES];
};

/* Writes and reads what can be, without waiting; notes who gave up. */
void hd_tcp_turn(hd_tcp *tcp);
/* Until something can be written or read, a few milliseconds at most. */
void hd_tcp_sleep(hd_tcp *tcp);
/* The oldest letter of this kind and tag, to be freed by hd_free; NULL: none is there. */
hd_letter *hd_tcp_take(hd_tcp *tcp, int from, int kind, int tag);
/* A copy of data goes out as soon as it can. */
heddle_status hd_tcp_send(hd_tcp *tcp, int to, int kind, const void *data, size_t bytes);

/* HEDDLE_ERR_UNSUPPORTED, with both numbers: more than a letter has. */
heddle_status hd_parcel_make(hd_parcel **out, const hd_tcp *tcp, int to, size_t bytes);
void hd_tcp_post(hd_tcp *tcp, int to, int kind, int tag, hd_parcel *parcel);
/* Takes it back, wherever it is, and frees it. NULL is legal. */
void hd_tcp_forget(hd_tcp *tcp, hd_parcel *parcel);

#endif
