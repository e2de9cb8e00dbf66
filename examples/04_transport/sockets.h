/* The post between ranks: letters that go out in order and are kept until somebody asks for them. */
#ifndef SOCKETS_H
#define SOCKETS_H

#include <heddle/heddle.h>
#include <heddle/sys/transport.h>

enum { KIND_GATHER, KIND_PAIR, KIND_EXCHANGE, KIND_ABORT, KIND_GOODBYE };
enum { WHY_BYTES = 512, LETTER_MAX_BYTES = 1 << 30 /* what a damaged header says is not believed */ };

typedef struct header {
    uint64_t bytes;
    int32_t kind, tag;
} header;

/* What came. */
typedef struct letter {
    struct letter *next;
    header head;
    size_t filled;
    unsigned char data[];
} letter;

/* What goes: with room for its bytes, so that sending it again needs no memory. */
typedef struct parcel parcel;

typedef struct peer {
    int fd; /* -1: this rank itself, or the connection has ended */
    int said_goodbye;
    parcel *out, **out_end; /* oldest first */
    letter *in, **in_end;   /* oldest first, whole ones */
    letter *coming;         /* being read */
    header head;
    size_t head_filled;
} peer;

typedef struct sockets {
    int rank, size;
    int (*interrupt)(void *arg); /* heddle_comm_options.interrupt; NULL: nobody asks for the end */
    void *interrupt_arg;
    int64_t asked_ns; /* when it was last asked */
    peer *peer;
    int aborted_by; /* -1: nobody */
    char why[WHY_BYTES];
} sockets;

/* Meet all ranks. */
heddle_status post_open(sockets **out, const heddle_comm_options *options);
/* Says goodbye, unless a rank gave up, and frees everything. */
void post_close(sockets *s);

/* Writes and reads what can be, without waiting; notes who gave up. */
void post_turn(sockets *s);
/* Until something can be written or read, a few milliseconds at most. */
void post_sleep(sockets *s);
/* The oldest letter of this kind and tag, NULL: none is there. The caller frees it. */
letter *post_take(sockets *s, int from, int kind, int tag);
/* HEDDLE_ERR_UNSUPPORTED, with both numbers: more than a letter may have. */
heddle_status post_check(const sockets *s, int to, size_t bytes);
heddle_status post_copy(sockets *s, int to, int kind, const void *data, size_t bytes);

parcel *parcel_make(size_t bytes); /* NULL: no memory */
unsigned char *parcel_data(parcel *p);
int parcel_is_out(const parcel *p); /* still being sent; NULL: no */
void post_parcel(sockets *s, int to, int kind, int tag, parcel *p);
/* Takes a parcel back, wherever it is, and frees it. NULL is legal. */
void post_forget(sockets *s, parcel *p);

/* Between two turns of a wait: HEDDLE_ERR_INTERRUPTED when the program wants its end. Asks every 10 ms at most. */
heddle_status post_interrupted(sockets *s);

int64_t post_now_ns(void);

#endif
