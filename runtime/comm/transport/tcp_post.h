/* The post between ranks: letters that go out in order, and are kept until somebody asks for them. The bytes of a
 * message go from the sender's array, and to that of a receiver who waits for them already: what lies in large pieces
 * is not copied, the rest in small parts through a window that stays in the cache. */
#ifndef HD_TCP_POST_H
#define HD_TCP_POST_H

#include "runtime/comm/transport/tcp_bytes.h"
#include "runtime/comm/transport/tcp_line.h"

#include <poll.h>
#include <sys/uio.h>

enum { HD_LETTER_GATHER, HD_LETTER_PAIR, HD_LETTER_EXCHANGE, HD_LETTER_ABORT, HD_LETTER_GOODBYE };
enum { HD_LETTER_BYTES = 1 << 30 /* at most: what a damaged header says is not believed */, HD_TCP_WHY_BYTES = 512 };
enum { HD_TCP_WINDOW_BYTES = 1 << 17, HD_TCP_PIECE_BYTES = 1 << 14 /* from which on a piece is not copied */ };
enum { HD_TCP_PAIR_TAG = 1 << 15 /* of no exchange of heddle's: large messages between two ranks */ };

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

/* What goes, with room for its bytes or a message that says where they are: to send it again takes no memory. */
typedef struct hd_parcel {
    struct hd_parcel *next;
    int to;         /* -1: not on its way */
    int is_for_one; /* freed when it is out */
    size_t sent;
    const heddle_message *message; /* of src, both the caller's while it is on its way; NULL: the bytes are in data */
    const unsigned char *src;
    hd_letter_head head; /* one write for it and the bytes behind it */
    unsigned char data[];
} hd_parcel;

/* Where the bytes of a letter are awaited. */
typedef struct hd_landing {
    struct hd_landing *next;
    int tag;
    const heddle_message *message;
    unsigned char *dst;
    char *done; /* all of them are there */
} hd_landing;

typedef struct hd_tcp_peer {
    int fd; /* -1: this rank itself, or the connection has ended */
    int said_goodbye;
    int is_silenced;           /* nothing goes out any more */
    hd_parcel *out, **out_end; /* oldest first */
    hd_letter *in, **in_end;   /* oldest first, whole ones */
    hd_letter *coming;         /* being read */
    hd_landing *landing;       /* letters of exchanges that are awaited, in order */
    hd_landing *into;          /* of the one being read; `nowhere`: its receiver has gone */
    hd_landing nowhere;
    hd_letter_head head;
    size_t head_filled, filled; /* filled: of what goes into a landing */
} hd_tcp_peer;

struct hd_tcp {
    int rank, size;
    hd_tcp_patience patience; /* while ranks meet; its interrupt, afterwards, too */
    hd_secret secret;         /* of the meeting's key */
    hd_tcp_peer *peer;        /* [size] */
    struct pollfd *fds;       /* [size] */
    unsigned char *window;    /* [HD_TCP_WINDOW_BYTES] */
    int aborted_by;           /* -1: nobody; this rank itself: it had no memory for a letter */
    char why[HD_TCP_WHY_BYTES];
    int is_guess; /* nobody said so: a connection ended */
};

/* Writes and reads what can be, without waiting; notes who gave up. */
void hd_tcp_turn(hd_tcp *tcp);
/* Until something can be written or read, a few milliseconds at most. */
void hd_tcp_sleep(hd_tcp *tcp);
/* Nothing comes from there any more; without a goodbye before it, that rank is taken for one that gave up. */
void hd_tcp_hang_up(hd_tcp *tcp, int r, const char *why);
/* tcp_end.c: the kernel has all that was posted, but for those whose connection has ended. */
int hd_tcp_all_out(const hd_tcp *tcp);
/* The oldest letter of this kind and tag, to be freed by hd_free; NULL: none is there. */
hd_letter *hd_tcp_take(hd_tcp *tcp, int from, int kind, int tag);
/* A copy of data goes out as soon as it can. */
heddle_status hd_tcp_send(hd_tcp *tcp, int to, int kind, const void *data, size_t bytes);
/* Tells the others that `by` gave up, and why: this rank itself, or one that it heard of. */
heddle_status hd_tcp_tell_end(hd_tcp *tcp, int by, const char *why);

/* HEDDLE_ERR_UNSUPPORTED, with both numbers: more than a letter has. */
heddle_status hd_parcel_make(hd_parcel **out, const hd_tcp *tcp, int to, size_t bytes);
/* For a message; its src is set before it is posted. */
heddle_status hd_parcel_make_message(hd_parcel **out, const hd_tcp *tcp, const heddle_message *message);
void hd_tcp_post(hd_tcp *tcp, int to, int kind, int tag, hd_parcel *parcel);
/* Takes it back, wherever it is, and frees it. NULL is legal. */
void hd_tcp_forget(hd_tcp *tcp, hd_parcel *parcel);
/* The next letter of this tag from there goes to its place, unless it has begun to come. */
void hd_tcp_expect(hd_tcp *tcp, int from, hd_landing *landing);
/* No longer; bytes that are still to come go nowhere. */
void hd_tcp_expect_not(hd_tcp *tcp, int from, hd_landing *landing);

/* tcp_parts.c, for the turns: bytes of the parcel from `at` on; */
struct iovec hd_parcel_part(hd_tcp *tcp, hd_parcel *parcel, size_t at);
/* a large message between two ranks, whose receiver has asked for it and is about to say where it belongs; */
int hd_landing_is_to_come(const hd_tcp_peer *q);
/* the one that awaits the letter whose head has come, not awaited any more (NULL: nobody does); */
hd_landing *hd_landing_take(hd_tcp_peer *q);
/* where its next bytes belong; and so many have come there. */
struct iovec hd_landing_part(hd_tcp *tcp, const hd_tcp_peer *q);
void hd_landing_fill(const hd_tcp *tcp, hd_tcp_peer *q, size_t came);

#endif
