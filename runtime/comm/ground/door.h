/* The door of a rank where others are to come: whoever knocks is heard beside all others, so that nobody keeps the
 * ranks waiting, and no number of strangers keeps them out. */
#ifndef HD_COMM_DOOR_H
#define HD_COMM_DOOR_H

#include "runtime/base/base.h"
#include "runtime/comm/ground/proof.h"

#include <sys/types.h>

enum { HD_DOOR_VISITORS = 64 /* at once; who has said least for longest goes first when more come */ };

/* Who has come, and has not shown who it is. */
typedef struct hd_visitor {
    int fd;    /* -1: nobody */
    pid_t pid; /* 0: not of this host */
    int64_t since_ns;
    int is_answered; /* its knock has come, and the answer has gone */
    hd_handshake shake;
    size_t filled; /* bytes that have come of what is awaited */
    unsigned char proof[HD_PROOF_BYTES];
} hd_visitor;

typedef struct hd_door {
    int listener; /* does not block */
    const hd_secret *secret;
    int me;
    int is_of_host; /* Unix sockets: processes of other users are sent away unheard */
    /* Something has come from one that has its answer. Takes visitor->fd (and leaves -1 there), or sends it away
     * (*is_over), or waits for more. */
    heddle_status (*enter)(void *ctx, hd_visitor *visitor, int *is_over);
    void *ctx;
    int error;    /* errno: no room for anybody, not even with all visitors gone; 0 */
    pid_t silent; /* the last one that went without having shown who it is; 0 */
    hd_visitor visitor[HD_DOOR_VISITORS];
} hd_door;

/* `door` as the caller has filled it, up to ctx. */
void hd_door_open(hd_door *door);
/* One look at everybody, after up to wait_ms until somebody stirs. Not HEDDLE_OK: what `enter` returned. */
heddle_status hd_door_turn(hd_door *door, int wait_ms);
/* How many are there; *silent (not NULL): the process of one of them, or of one that went, 0. */
int hd_door_visitors(const hd_door *door, pid_t *silent);
/* 1: `bytes` are in `into`; 0: not yet; -1: gone. */
int hd_door_hear(hd_visitor *visitor, void *into, size_t bytes);
void hd_door_close(hd_door *door); /* the listener stays */

#endif
